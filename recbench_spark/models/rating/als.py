"""Alternating least squares: each step solves all rows of one side exactly, while the other side is fixed.

Both learners use the conditional mean of `blocks`, with different priors: a row a minimises
sum_r (t_r - w_a - v_a . h_r)^2 + v_a' B v_a + c_a |v_a|^2.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from recbench_spark.models.rating.blocks import (
    DrawKey,
    FactorSide,
    Floats,
    Grouped,
    Prior,
    Table,
    draw_side,
    group,
)
from recbench_spark.models.rating.interface import REAL, Fit, Indices, Ratings, RatingSettings, rmse
from recbench_spark.models.rating.normals import normal_table
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.models.rating.simd import pad_dims, zero_rows
from recbench_spark.models.rating.wishart import row_sums

FIXING_RIDGE = 1e30
"""Prior precision of a bias that must stay 0."""


class AlsSettings(RatingSettings):
    """Settings of ALS-WR: `regulariser` counts once per rating of a row, for its factors and its bias."""

    kind: Literal["als_wr"] = "als_wr"
    dims: Annotated[int, Field(ge=1, le=1024)] = 32
    """Factors of a user and of an item."""
    sweeps: Annotated[int, Field(ge=1)] = 16
    """Sweeps over users and items."""
    regulariser: Annotated[float, Field(gt=0)] = 0.05
    """Weight of squared lengths, once per rating of a row."""
    init_sd: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of the factors at the start."""


class ImplicitAlsSettings(RatingSettings):
    """Settings of iALS, which learns from the pairs alone and not from their ratings.

    Attributes:
        unobserved_weight: alpha_0, the weight of every pair's squared score.
        regulariser: lambda.
        frequency: nu: a row with n pairs is regularised by lambda (n + alpha_0 rows of the other side)^nu.
    """

    kind: Literal["implicit_als"] = "implicit_als"
    dims: Annotated[int, Field(ge=1, le=1024)] = 64
    """Factors of a user and of an item."""
    sweeps: Annotated[int, Field(ge=1)] = 16
    """Sweeps over users and items."""
    unobserved_weight: Annotated[float, Field(gt=0)] = 0.1
    regulariser: Annotated[float, Field(gt=0)] = 0.003
    frequency: Annotated[float, Field(ge=0, le=1)] = 1.0
    init_sd: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of the factors at the start."""


def fit_als(
    train: Ratings, settings: AlsSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit ALS-WR: minimise sum (r - mean - b_u - b_i - p_u q_i)^2 + reg sum_a n_a (b_a^2 + |v_a|^2).

    Source: Zhou, Wilkinson, Schreiber and Pan, "Large-scale parallel collaborative filtering for the
    Netflix Prize" (AAIM 2008), with biases, which are solved together with the factors.
    """
    mean = float(train.ratings_r.mean())
    sides, groups = _start(train, settings, seed, (train.ratings_r - mean).astype(np.float32))
    rmse_s: list[float] = []
    watched_p = np.zeros(0)
    for _ in range(settings.sweeps):
        for at in (0, 1):
            count_a = np.diff(groups[at].starts_a)
            prior = Prior(
                _no_rows(settings.dims),
                settings.dims,
                0.0,
                0.0,
                0.0,
                _ridge(settings.regulariser * count_a),
            )
            _solve_side(sides, groups, at, prior, threads)
        model = _model(sides, settings.dims, mean, train)
        if watched is not None:
            watched_p = model.predict(watched.users_r, watched.items_r)
            rmse_s.append(rmse(watched_p, watched.ratings_r))
    return Fit(model, np.array(rmse_s), watched_p, settings.sweeps)


def fit_implicit_als(
    train: Ratings,
    settings: ImplicitAlsSettings,
    seed: int,
    watched: Ratings | None = None,
    threads: int = 1,
) -> Fit:
    """Fit iALS: minimise sum_pairs (1 - p q)^2 + alpha_0 sum_all (p q)^2 + sum_a c_a |v_a|^2.

    Source: Hu, Koren and Volinsky (ICDM 2008) in the form of Rendle, Krichene, Zhang and Koren, "Revisiting
    the performance of iALS on item recommendation benchmarks" (RecSys 2022), equations 1 and 6.
    """
    sides, groups = _start(train, settings, seed, np.ones(len(train), np.float32))
    for _ in range(settings.sweeps):
        for at in (0, 1):
            _solve_side(sides, groups, at, _implicit_prior(sides, groups, at, settings), threads)
    model = dataclasses.replace(_model(sides, settings.dims, 0.0, train), scale=np.array(REAL))
    watched_p = np.zeros(0) if watched is None else model.predict(watched.users_r, watched.items_r)
    return Fit(model, np.zeros(0), watched_p, settings.sweeps)


def _implicit_prior(
    sides: list[FactorSide], groups: list[Grouped], at: int, settings: ImplicitAlsSettings
) -> Prior:
    """Return the prior with B = alpha_0 sum of v v' over the other side; it fixes the bias at 0."""
    other, dims = sides[1 - at], settings.dims
    rated = np.arange(len(other.biases) - 1)
    products = row_sums(other.factors, other.biases, rated, dims)[1][1:, 1:]
    rows = _no_rows(dims)
    rows[1 : 1 + dims, :dims] = settings.unobserved_weight * products
    weight_a = np.diff(groups[at].starts_a) + settings.unobserved_weight * len(rated)
    return Prior(
        rows, dims, FIXING_RIDGE, 0.0, 0.0, _ridge(settings.regulariser * weight_a**settings.frequency)
    )


def _start(
    train: Ratings, settings: AlsSettings | ImplicitAlsSettings, seed: int, targets_r: Table
) -> tuple[list[FactorSide], list[Grouped]]:
    """Return factors by hash (zeros for rows without ratings) and the ratings in the order of each side."""
    keys, sizes = (train.users_r, train.items_r), (train.n_users, train.n_items)
    sides = [_side(keys[at], sizes[at], settings, seed, at) for at in (0, 1)]
    groups = [group(keys[at], sizes[at], [keys[1 - at].astype(np.int32)], targets_r) for at in (0, 1)]
    return sides, groups


def _side(
    key_r: Indices, size: int, settings: AlsSettings | ImplicitAlsSettings, seed: int, at: int
) -> FactorSide:
    factors, rated = zero_rows(size + 1, pad_dims(settings.dims)), np.unique(key_r)
    factors[rated, : settings.dims] = normal_table((size, settings.dims), settings.init_sd, seed, at)[rated]
    return FactorSide(factors, np.zeros(size + 1, np.float32))


def _solve_side(
    sides: list[FactorSide], groups: list[Grouped], at: int, prior: Prior, threads: int
) -> None:
    nothing = FactorSide(zero_rows(1, sides[at].factors.shape[1]), np.zeros(1, np.float32))
    key = DrawKey(np.uint64(0), 0, 0)
    draw_side(sides[at], nothing, sides[1 - at], nothing, groups[at], prior=prior, key=key, threads=threads)


def _no_rows(dims: int) -> Table:
    return zero_rows(pad_dims(dims) + 2, pad_dims(dims))


def _ridge(values_a: Floats) -> Table:
    return np.asarray(values_a, np.float32)


def _model(sides: list[FactorSide], dims: int, mean: float, train: Ratings) -> RatingFactorModel:
    (p, b_u), (q, b_i) = ((s.factors[:-1, :dims].copy(), s.biases[:-1].astype(np.float64)) for s in sides)
    return RatingFactorModel(mean, b_u, b_i, p, q, np.array(train.scale))
