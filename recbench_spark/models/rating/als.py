"""Alternating least squares: solve users and items in turn.

Each step solves all rows on one side exactly, while the other side is fixed. All learners use the
conditional mean in `blocks`, with different priors: a row a minimises
sum_r (t_r - w_a - v_a . h_r)^2 + v_a' B v_a + c_a |v_a|^2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.errors import ConfigError, DivergedError
from recbench_spark.models.prefix_vectors import ConfidenceFoldIn, FoldInSettings, PairFoldIn, RidgeFoldIn
from recbench_spark.models.rating import interface
from recbench_spark.models.rating.blocks import DrawKey, FactorSide, Grouped, Prior, draw_side, group
from recbench_spark.models.rating.draws import normal_table
from recbench_spark.models.rating.gibbs import row_sums
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.models.rating.simd import pad_dims, zero_rows

FIXING_RIDGE = 1e30
"""Prior precision which keeps a bias at 0."""


class AlsSettings(interface.RatingSettings):
    """Settings of ALS-WR, matrix factorisation with biases.

    `regulariser` counts once per rating in a row, for its factors and its bias.
    """

    kind: Literal["als_wr"] = "als_wr"
    dims: Annotated[int, Field(ge=1, le=1024)] = 32
    """Number of factors for each user and item."""
    sweeps: Annotated[int, Field(ge=1)] = 16
    """Sweeps over users and items."""
    regulariser: Annotated[float, Field(gt=0)] = 0.05
    """Weight of squared lengths, once per rating in a row."""
    init_sd: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of the factors at the start."""

    def make_fold_in(self, items: int | None = None, threshold: float | None = None) -> RidgeFoldIn:
        """Return the fit's ridge regression, with a bias."""
        return RidgeFoldIn(self.regulariser, self.regulariser)


class AlsWrModel(AlsSettings, interface.RatingModelConfig):
    """ALS with weighted regularisation and biases, in one process."""

    revised: ClassVar[tuple[str, ...]] = interface.VECTORS
    kind: Literal["als_wr"]


class ImplicitAlsSettings(interface.RatingSettings):
    """Settings of iALS, which learns from pairs without their ratings.

    Attributes:
        unobserved_weight: alpha_0, the weight of every pair's squared score.
        regulariser: lambda.
        frequency: nu: a row with n pairs is regularised by lambda (n + alpha_0 rows on the other side)^nu.
    """

    kind: Literal["implicit_als"] = "implicit_als"
    dims: Annotated[int, Field(ge=1, le=1024)] = 64
    """Number of factors for each user and item."""
    sweeps: Annotated[int, Field(ge=1)] = 16
    """Sweeps over users and items."""
    unobserved_weight: Annotated[float, Field(gt=0)] = 0.1
    regulariser: Annotated[float, Field(gt=0)] = 0.003
    frequency: Annotated[float, Field(ge=0, le=1)] = 1.0
    init_sd: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of the factors at the start."""

    def make_fold_in(self, items: int | None = None, threshold: float | None = None) -> PairFoldIn:
        """Return the fit's regression over pairs."""
        return PairFoldIn(self.unobserved_weight, self.regulariser, self.frequency, items, threshold)


class ImplicitAlsMfModel(ImplicitAlsSettings, interface.RatingModelConfig):
    """ALS over all pairs, for ranking: iALS."""

    kind: Literal["implicit_als"]


class ProductAlsSettings(interface.RatingSettings):
    """Settings of ALS for products alone, as in Spark MLlib.

    Names and objective are MLlib's.

    Attributes:
        frequency: a row with n training pairs is regularised by `regularization` times n^frequency: 1 as in
            MLlib (ALS-WR), 0 alike for all rows.
    """

    kind: Literal["als"] = "als"
    rank: Annotated[int, Field(ge=1, le=2048)] = 32
    """Number of factors for each user and item."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Sweeps over items and users."""
    regularization: Annotated[float, Field(ge=0)] = 0.05
    """Weight of squared lengths (Spark's regParam)."""
    frequency: Annotated[float, Field(ge=0, le=1)] = 1.0
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Growth of confidence with the rating, if `implicit`."""
    implicit: bool = True
    """Learn from confidence in pairs; false: predict ratings."""

    @model_validator(mode="after")
    def _check_alpha(self) -> Self:
        if self.implicit and self.alpha == 0:
            raise ValueError("alpha: 0 makes all pairs alike; set it above 0, or take kind: mllib_als")
        return self

    def make_fold_in(self, items: int | None = None, threshold: float | None = None) -> FoldInSettings:
        """Return the fit's regression, which needs a ridge."""
        if not self.regularization:
            raise ConfigError(
                "als: a regulariser of 0 leaves users with few ratings without a solution",
                "regularization above 0",
            )
        if self.implicit:
            return ConfidenceFoldIn(self.regularization, self.alpha, threshold, self.frequency)
        return RidgeFoldIn(self.regularization, frequency=self.frequency)


class AlsModel(ProductAlsSettings, interface.RatingModelConfig):
    """Alternating least squares of products, with MLlib's objective.

    The model learns confidence in pairs, or ratings. With `implicit` it equals `implicit_als` with
    `unobserved_weight` 1 / alpha, up to the scale of its scores; the regulariser counts only a row's pairs.
    """

    adapter: ClassVar[str] = "rating_models:AlsAdapter"
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["als"]


@dataclass(frozen=True)
class ProductModel(RatingFactorModel):
    """Predicts by factor products, and by one number for unknown pairs.

    A pair is unknown if its user or its item has no training row.

    Attributes:
        unknown: prediction for an unknown pair.
        rated_u: (users,) true for users with training rows.
        rated_i: (items,) likewise.
    """

    unknown: float
    rated_u: Bools
    rated_i: Bools

    kind: ClassVar[str] = "products"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) predictions in float64, within the scale."""
        product_p = super().predict(users_p, items_p)
        known_p = np.append(self.rated_u, np.False_)[users_p] & np.append(self.rated_i, np.False_)[items_p]
        return np.where(known_p, product_p, np.clip(self.unknown, *self.scale))


def fit_als(
    train: Ratings, settings: AlsSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Fit ALS-WR, matrix factorisation with biases.

    The fit minimises sum (r - mean - b_u - b_i - p_u q_i)^2 + reg sum_a n_a (b_a^2 + |v_a|^2).

    Source: Zhou, Wilkinson, Schreiber and Pan, "Large-scale parallel collaborative filtering for the
    Netflix Prize" (AAIM 2008), here with biases, which are solved together with the factors.
    """
    mean = float(train.ratings_r.mean())
    targets_r = (train.ratings_r - mean).astype(np.float32)
    sides, groups = _start(train, settings.dims, settings.init_sd, seed, targets_r)
    errors = interface.WatchedErrors(watched)
    for _ in range(settings.sweeps):
        for at in (0, 1):
            count_a = np.diff(groups[at].starts_a)
            ridge_a = (settings.regulariser * count_a).astype(np.float32)
            prior = Prior(_no_rows(settings.dims), settings.dims, 0.0, 0.0, 0.0, ridge_a)
            _solve_side(sides, groups, at, prior, threads)
        model = _model(sides, settings.dims, mean, train)
        errors.measure(model)
    return errors.finish(model, settings.sweeps)


def fit_implicit_als(
    train: Ratings,
    settings: ImplicitAlsSettings,
    seed: int,
    watched: Ratings | None = None,
    threads: int = 1,
) -> Fit:
    """Fit iALS, which ranks by scores for all pairs.

    The fit minimises sum_pairs (1 - p q)^2 + alpha_0 sum_all (p q)^2 + sum_a c_a |v_a|^2.

    Source: Hu, Koren and Volinsky (ICDM 2008) in the form by Rendle, Krichene, Zhang and Koren, "Revisiting
    the performance of iALS on item recommendation benchmarks" (RecSys 2022), equations 1 and 6.
    """
    weight, frequency = settings.unobserved_weight, settings.frequency
    sides, groups = _start(train, settings.dims, settings.init_sd, seed, np.ones(len(train), np.float32))
    sizes = train.n_items, train.n_users
    ridges = [
        settings.regulariser * (np.diff(side.starts_a) + weight * size) ** frequency
        for side, size in zip(groups, sizes, strict=True)
    ]
    for at in (0, 1) * settings.sweeps:
        _solve_side(sides, groups, at, _product_prior(sides, at, settings.dims, weight, ridges), threads)
    model = dataclasses.replace(_model(sides, settings.dims, 0.0, train), scale=np.array(interface.REAL))
    return interface.finish_fit(model, watched, settings.sweeps)


def fit_product_als(
    train: Ratings,
    settings: ProductAlsSettings,
    seed: int,
    watched: Ratings | None = None,
    threads: int = 1,
) -> Fit:
    """Fit MLlib's objective, without biases.

    The objective is sum c (t - p q)^2 + reg sum_a n_a^frequency |v_a|^2. Explicit: c = 1 and t the rating,
    over the rated pairs (Zhou et al., AAIM 2008). Implicit: t = 1 and c = 1 + alpha for training pairs,
    else t = 0 and c = 1 (Hu, Koren and Volinsky, ICDM 2008). This is alpha times iALS with alpha_0 = 1 /
    alpha and targets 1 + 1 / alpha. Vectors start with a length near 1, and users are solved last, as in
    MLlib.

    Raises:
        DivergedError: vectors are not finite.
    """
    weight = 1 / settings.alpha if settings.implicit else 0.0
    targets_r = np.full(len(train), 1 + weight) if settings.implicit else train.ratings_r
    regulariser = settings.regularization * (weight or 1.0)
    sides, groups = _start(train, settings.rank, settings.rank**-0.5, seed, targets_r.astype(np.float32))
    counts = [np.diff(side.starts_a) for side in groups]
    ridges = [regulariser * count_a**settings.frequency for count_a in counts]
    for at in (1, 0) * settings.iterations:
        _solve_side(sides, groups, at, _product_prior(sides, at, settings.rank, weight, ridges), threads)
    if not all(np.isfinite(side.factors).all() for side in sides):
        raise DivergedError("als: vectors are not finite", "regularization above 0")
    mean, scale = (
        (0.0, interface.REAL) if settings.implicit else (float(train.ratings_r.mean()), train.scale)
    )
    b_u, b_i = (np.zeros(len(count_a)) for count_a in counts)
    p, q = (side.factors[:-1, : settings.rank].copy() for side in sides)
    rated_u, rated_i = (count_a > 0 for count_a in counts)
    model = ProductModel(0.0, b_u, b_i, p, q, np.array(scale), mean, rated_u, rated_i)
    return interface.finish_fit(model, watched, settings.iterations)


def _product_prior(
    sides: list[FactorSide], at: int, dims: int, weight: float, ridges: Sequence[Floats]
) -> Prior:
    """Return a row's prior, which fixes the bias at 0.

    B is weight times sum of v v' over the other side.
    """
    rows = _no_rows(dims)
    if weight:
        other = sides[1 - at]
        products = row_sums(other.factors, other.biases, np.arange(len(other.biases) - 1), dims)[1][1:, 1:]
        rows[1 : 1 + dims, :dims] = weight * products
    return Prior(rows, dims, FIXING_RIDGE, 0.0, 0.0, np.asarray(ridges[at], np.float32))


def _start(
    train: Ratings, dims: int, init_sd: float, seed: int, targets_r: Floats32
) -> tuple[list[FactorSide], list[Grouped]]:
    """Draw factors by hash, and sort the ratings by each side.

    Rows without ratings get zeros.
    """
    keys, sizes = (train.users_r, train.items_r), (train.n_users, train.n_items)
    tables = [normal_table((sizes[at], dims), init_sd, seed, at) for at in (0, 1)]
    sides = []
    for key_r, drawn in zip(keys, tables, strict=True):
        (size, _), rated = drawn.shape, np.unique(key_r)
        factors = zero_rows(size + 1, pad_dims(dims))
        factors[rated, :dims] = drawn[rated]
        sides.append(FactorSide(factors, np.zeros(size + 1, np.float32)))
    groups = [group(keys[at], sizes[at], [keys[1 - at].astype(np.int32)], targets_r) for at in (0, 1)]
    return sides, groups


def _solve_side(
    sides: list[FactorSide], groups: list[Grouped], at: int, prior: Prior, threads: int
) -> None:
    nothing = FactorSide(zero_rows(1, sides[at].factors.shape[1]), np.zeros(1, np.float32))
    key = DrawKey(np.uint64(0), 0, 0)
    draw_side(sides[at], nothing, sides[1 - at], nothing, groups[at], prior=prior, key=key, threads=threads)


def _no_rows(dims: int) -> Floats32:
    return zero_rows(pad_dims(dims) + 2, pad_dims(dims))


def _model(sides: list[FactorSide], dims: int, mean: float, train: Ratings) -> RatingFactorModel:
    (p, b_u), (q, b_i) = ((s.factors[:-1, :dims].copy(), s.biases[:-1].astype(np.float64)) for s in sides)
    return RatingFactorModel(mean, b_u, b_i, p, q, np.array(train.scale))
