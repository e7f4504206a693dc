"""NSVD1: a user's factors sum those of rated items.

So a user has no parameter but a bias.
r_ui = mean + b_u + b_i + q_i . x_u with x_u = n_u^(-1/2) sum_{j of u} y_j. Descent goes user after user. It
changes q_i and biases after each rating, and y_j once per user by the ratings' summed gradients.

Source: Paterek, "Improving regularized singular value decomposition" (KDD Cup 2007), section 3.3.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DivergedError
from recbench_spark.models.rating import interface
from recbench_spark.models.rating.draws import normal_table, permutation
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.sgd import RatingFactorModel


class NsvdSettings(interface.RatingSettings):
    """Settings of NSVD1: one rate and regulariser for all parameters."""

    kind: Literal["nsvd1"] = "nsvd1"
    dims: Annotated[int, Field(ge=1, le=1024)] = 32
    """Factors of an item."""
    epochs: Annotated[int, Field(ge=1)] = 30
    """Passes over the ratings."""
    rate: Annotated[float, Field(gt=0, le=interface.MAX_RATE)] = 0.005
    """Learning rate."""
    rate_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Factor on the rate from each epoch to the next."""
    regulariser: Annotated[float, Field(ge=0)] = 0.02
    """Weight of squared lengths."""
    init_sd: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the factors at the start."""


class Nsvd1Model(NsvdSettings, interface.RatingModelConfig):
    """NSVD1: users as sums over their rated items' factors."""

    revised: ClassVar[tuple[str, ...]] = interface.VECTORS
    kind: Literal["nsvd1"]


class Nsvd(NamedTuple):
    """Learnt parameters, changed in place by each epoch."""

    b_u: Floats
    b_i: Floats
    q_id: Floats
    y_id: Floats


class Histories(NamedTuple):
    """Ratings user after user, minus the overall mean."""

    starts_u: Ints
    items_r: Ints
    left_r: Floats


def fit_nsvd(
    train: Ratings, settings: NsvdSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Descend over users, shuffled by hash each epoch.

    The descent takes one thread. Raises DivergedError if the descent diverges.
    """
    histories, mean = make_histories(train), float(train.ratings_r.mean())
    learnt = start(train, settings, seed)
    errors = interface.WatchedErrors(watched)
    for epoch in range(settings.epochs):
        rate = settings.rate * settings.rate_decay**epoch
        descend(learnt, histories, permutation(train.n_users, seed, epoch), rate, settings.regulariser)
        if not math.isfinite(learnt.q_id.sum() + learnt.y_id.sum()):
            message = f"the descent diverged in epoch {epoch + 1}"
            raise DivergedError(message, f"lower the rate {settings.rate}")
        if watched is not None:
            errors.measure(_model(learnt, histories, mean, train))
    return errors.finish(_model(learnt, histories, mean, train), settings.epochs)


def make_histories(train: Ratings) -> Histories:
    """Return the ratings sorted by user, then item."""
    order = np.lexsort((train.items_r, train.users_r))
    starts_u = np.searchsorted(train.users_r[order], np.arange(train.n_users + 1))
    return Histories(starts_u, train.items_r[order], train.ratings_r[order] - train.ratings_r.mean())


def start(train: Ratings, settings: NsvdSettings, seed: int) -> Nsvd:
    """Return zero biases and factors drawn by hash."""
    shape = (train.n_items, settings.dims)
    q_id, y_id = (np.asarray(normal_table(shape, settings.init_sd, seed, n), np.float64) for n in (0, 1))
    return Nsvd(np.zeros(train.n_users), np.zeros(train.n_items), q_id, y_id)


@compile_kernel
def descend(
    learnt: Nsvd, histories: Histories, order_u: npt.NDArray[np.uint32], rate: float, regulariser: float
) -> None:
    """Run one epoch of descent."""
    b_u, b_i, q_id, y_id = learnt
    starts_u, items_r, left_r = histories
    x, gradient = np.zeros(q_id.shape[1]), np.zeros(q_id.shape[1])
    for u in order_u:
        first, last = starts_u[u], starts_u[u + 1]
        _sum_bag(x, gradient, y_id, items_r[first:last])
        weight = 1 / math.sqrt(max(last - first, 1))
        for r in range(first, last):
            i, product = items_r[r], 0.0
            for d in range(len(x)):
                product += q_id[i, d] * x[d]
            e = left_r[r] - b_u[u] - b_i[i] - product
            b_u[u] += rate * (e - regulariser * b_u[u])
            b_i[i] += rate * (e - regulariser * b_i[i])
            for d in range(len(x)):
                gradient[d] += e * q_id[i, d]
                q_id[i, d] += rate * (e * x[d] - regulariser * q_id[i, d])
        for r in range(first, last):
            for d in range(len(x)):
                y_id[items_r[r], d] += rate * (weight * gradient[d] - regulariser * y_id[items_r[r], d])


@compile_kernel
def _sum_bag(x: Floats, gradient: Floats, y_id: Floats, items_r: Ints) -> None:
    """Set x = n^(-1/2) sum of y over items; reset the gradient."""
    weight = 1 / math.sqrt(max(len(items_r), 1))
    for d in range(len(x)):
        x[d] = gradient[d] = 0.0
    for i in items_r:
        for d in range(len(x)):
            x[d] += weight * y_id[i, d]


def _model(learnt: Nsvd, histories: Histories, mean: float, train: Ratings) -> RatingFactorModel:
    x_ud = np.zeros((train.n_users, learnt.y_id.shape[1]))
    gradient = np.zeros(x_ud.shape[1])
    for u in range(train.n_users):
        items = histories.items_r[histories.starts_u[u] : histories.starts_u[u + 1]]
        _sum_bag(x_ud[u], gradient, learnt.y_id, items)
    factors = x_ud.astype(np.float32), learnt.q_id.astype(np.float32)
    return RatingFactorModel(mean, learnt.b_u.copy(), learnt.b_i.copy(), *factors, np.array(train.scale))
