"""Logistic matrix factorisation: descent over pairs and drawn negatives.

An observed pair should have a high score s_ui = b + b_u + b_i + p_u . q_i. Its `negatives` items, drawn
uniformly, should have a low one: sum over pairs of -log sigma(s_ui) - sum over negatives of log(1 -
sigma(s_uj)), with an L2 regulariser at each step. A drawn item may be the user's own, as in the source.
Source: Rendle, Krichene, Zhang and Anderson, "Neural collaborative filtering vs. matrix factorization
revisited" (RecSys 2020), section 3.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from recbench_spark.core.arrays import Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DivergedError
from recbench_spark.models.rating import draws, interface
from recbench_spark.models.rating.draws import draw_state, uniform
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.models.rating.simd import dot_rows, pad_dims, step_rows, zero_rows

NEGATIVES = 3
"""Purpose for draws of negatives; 0 and 1 draw the factors at the start."""


class LogisticSettings(interface.RatingSettings):
    """Settings of logistic matrix factorisation."""

    kind: Literal["logistic_mf"] = "logistic_mf"
    dims: Annotated[int, Field(ge=1, le=4096)] = 64
    """Number of factors for each user and item."""
    epochs: Annotated[int, Field(ge=1)] = 64
    """Passes over the pairs."""
    negatives: Annotated[int, Field(ge=1, le=1000)] = 8
    """Items drawn for each pair, uniformly from all items."""
    rate: Annotated[float, Field(gt=0, le=interface.MAX_RATE)] = 0.002
    """Learning rate."""
    regulariser: Annotated[float, Field(ge=0)] = 0.005
    """Weight of squared lengths."""
    init_sd: Annotated[float, Field(ge=0)] = 0.1
    """Standard deviation of the factors at the start."""


class LogisticMfModel(LogisticSettings, interface.RatingModelConfig):
    """Logistic matrix factorisation with drawn negatives, for ranking."""

    kind: Literal["logistic_mf"]


class Logistic(NamedTuple):
    """Learnt parameters, changed in place by each epoch.

    The overall bias is an array with one number.
    """

    bias: Floats32
    b_u: Floats32
    b_i: Floats32
    p_ud: Floats32
    q_id: Floats32


def fit_logistic(
    train: Ratings, settings: LogisticSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Descend over pairs, shuffled by hash each epoch.

    The descent takes one thread. Raises DivergedError.
    """
    learnt, first_r = start(train, settings, seed), draws.hash_order(train, seed)
    for epoch in range(settings.epochs):
        order_r = first_r[draws.permutation(len(train), seed, epoch)]
        descend(learnt, train.users_r[order_r], train.items_r[order_r], settings, seed, epoch=epoch)
        if not np.isfinite(learnt.b_i.sum() + learnt.b_u.sum()):
            message = f"the descent diverged in epoch {epoch + 1}"
            raise DivergedError(message, f"lower the rate {settings.rate}")
    d, real = settings.dims, np.array([-np.inf, np.inf])
    biases = learnt.b_u.astype(np.float64), learnt.b_i.astype(np.float64)
    factors = learnt.p_ud[:, :d].copy(), learnt.q_id[:, :d].copy()
    model = RatingFactorModel(float(learnt.bias[0]), *biases, *factors, real)
    return interface.finish_fit(model, watched, settings.epochs)


def start(train: Ratings, settings: LogisticSettings, seed: int) -> Logistic:
    """Return zero biases and factors drawn by hash.

    Users and items without pairs have zero factors.
    """
    tables = []
    for at, (key_r, rows) in enumerate(((train.users_r, train.n_users), (train.items_r, train.n_items))):
        table, seen = zero_rows(rows, pad_dims(settings.dims)), np.unique(key_r)
        table[seen, : settings.dims] = draws.normal_table(
            (rows, settings.dims), settings.init_sd, seed, at
        )[seen]
        tables.append(table)
    biases = (np.zeros(rows, np.float32) for rows in (1, train.n_users, train.n_items))
    return Logistic(*biases, *tables)


def descend(
    learnt: Logistic, users_r: Ints, items_r: Ints, settings: LogisticSettings, seed: int, *, epoch: int
) -> None:
    """Run one epoch over the pairs in their order."""
    numbers = np.float32(settings.rate), np.float32(settings.regulariser)
    _descend(learnt, users_r, items_r, numbers, settings.negatives, (draws.as_unsigned(seed), epoch))


@compile_kernel
def _descend(
    learnt: Logistic,
    users_r: Ints,
    items_r: Ints,
    numbers: tuple[np.float32, np.float32],
    negatives: int,
    draw: tuple[np.uint64, int],
) -> None:
    seed, epoch = draw
    items = len(learnt.b_i)
    for r in range(len(users_r)):
        state = np.uint64(draw_state(seed, NEGATIVES, epoch, r))
        _step(learnt, users_r[r], items_r[r], np.float32(1), numbers)
        for n in range(negatives):
            _step(learnt, users_r[r], int(uniform(state, n) * items), np.float32(0), numbers)


@compile_kernel
def _step(
    learnt: Logistic, u: int, i: int, label: np.float32, numbers: tuple[np.float32, np.float32]
) -> None:
    bias, b_u, b_i, p_ud, q_id = learnt
    rate, regulariser = numbers
    score = bias[0] + b_u[u] + b_i[i] + dot_rows(p_ud, u, q_id, i, 0)
    e = label - np.float32(1 / (1 + math.exp(-np.float64(score))))
    keep, step = np.float32(1) - rate * regulariser, rate * e
    bias[0] += step
    b_u[u] = keep * b_u[u] + step
    b_i[i] = keep * b_i[i] + step
    step_rows(p_ud, u, q_id, i, (keep, step, keep, step))
