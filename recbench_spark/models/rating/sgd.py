"""Biased matrix factorisation by stochastic gradient descent.

r_ui ~ c_ui + b_u + b_i + p_u . q_i with c_ui the centre. For each rating, with its error e,
b_u += rate (e - reg b_u) and p_u, q_i += rate (e q_i - reg p_u), rate (e p_u - reg q_i).

Source: Koren, Bell and Volinsky, "Matrix factorization techniques" (IEEE Computer 2009). Rendle, Zhang and
Koren (2019, section 4) name the rarely searched settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator, model_validator

from recbench_spark.config import Strict
from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import ConfigError, DataError, DivergedError
from recbench_spark.models.prefix_vectors import RidgeFoldIn
from recbench_spark.models.rating import draws, interface
from recbench_spark.models.rating.draws import shuffle
from recbench_spark.models.rating.interface import Fit, Ratings
from recbench_spark.models.rating.means import MeansSettings, RatingMeans, fit_deviations
from recbench_spark.models.rating.simd import dot_rows, fetch_row, pad_dims, step_rows, zero_rows

Positive = Annotated[float, Field(ge=0)]

AHEAD = 12
"""Prefetch distance: how many ratings ahead rows are loaded."""

USER_FACTORS, ITEM_FACTORS, ORDER, STOPPING = range(4)
"""Purposes of random draws: each has draws of its own."""


class Steps(Strict):
    """Learning rates or regularisers, one number per kind of parameter."""

    user_biases: Positive
    """Number for users' biases."""
    item_biases: Positive
    """Number for items' biases."""
    user_factors: Positive
    """Number for users' factors."""
    item_factors: Positive
    """Number for items' factors."""

    def as_float32(self, by: float = 1.0) -> tuple[np.float32, ...]:
        """Return the four numbers times `by`, in the order above."""
        four = (self.user_biases, self.item_biases, self.user_factors, self.item_factors)
        return tuple(np.float32(number * by) for number in four)


def equal_steps(number: float) -> Steps:
    """Return the same number for all four."""
    return Steps(user_biases=number, item_biases=number, user_factors=number, item_factors=number)


class Stopping(Strict):
    """Early stopping: end when the held-out error rises.

    The fit returns the best epoch.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of ratings held out to watch the error."""
    patience: Annotated[int, Field(ge=1)] = 3
    """Epochs without a smaller error before the fit ends."""


class SgdSettings(interface.RatingSettings):
    """Settings of stochastic gradient descent, all open to search.

    Attributes:
        rates: learning rates; a single number in a file stands for all four.
        regularisers: likewise.
        rate_decay: factor on the rates from each epoch to the next.
        centring: means to subtract from the ratings before learning and to add to the predictions.
        biases: true if b_u and b_i are learnt.
        order: `given`: the order of the rows; `shuffled`: anew each epoch; `shuffled_once`; both by hash.
        init_sd: standard deviation of the factors before the first epoch.
        stopping: settings of early stopping; None: all epochs are run.
    """

    kind: Literal["sgd_mf"] = "sgd_mf"
    dims: Annotated[int, Field(ge=1, le=4096)] = 64
    """Number of factors for each user and item."""
    epochs: Annotated[int, Field(ge=1)] = 64
    """Passes over the ratings."""
    rates: Steps = equal_steps(0.005)
    regularisers: Steps = equal_steps(0.04)
    rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    centring: Literal["none", "global", "users", "items", "items_users", "users_items"] = "global"
    biases: bool = True
    order: Literal["given", "shuffled_once", "shuffled"] = "shuffled"
    init_sd: Positive = 0.1
    stopping: Stopping | None = None

    @field_validator("rates")
    @classmethod
    def _check_rates(cls, rates: Steps) -> Steps:
        for name, rate in rates:
            if rate > interface.MAX_RATE:
                raise ValueError(f"{name}: a learning rate of {rate:g} is above {interface.MAX_RATE:g}")
        return rates

    @model_validator(mode="before")
    @classmethod
    def _expand_single_number(cls, given: Any) -> Any:
        """Accept `rates: .003` as short for four equal rates."""
        if isinstance(given, dict):
            names = [n for n in ("rates", "regularisers") if isinstance(given.get(n), int | float)]
            given = given | {name: dict.fromkeys(Steps.model_fields, given[name]) for name in names}
        return given

    def make_fold_in(self, items: int | None = None, threshold: float | None = None) -> RidgeFoldIn:
        """Return the ridges on a user's factors and bias.

        A model without biases has no ridge for them.
        """
        ridges = self.regularisers
        if "users" in self.centring:
            raise ConfigError(
                f"sgd_mf: centring '{self.centring}' subtracts means of users, which no fold-in has",
                "centring: global, items or none",
            )
        if not (ridges.user_factors and (ridges.user_biases or not self.biases)):
            raise ConfigError(
                "sgd_mf: a regulariser of 0 leaves users with few ratings without a solution",
                "regularisers.user_factors and regularisers.user_biases above 0",
            )
        return RidgeFoldIn(ridges.user_factors, ridges.user_biases if self.biases else None)


class SgdMfModel(SgdSettings, interface.RatingModelConfig):
    """Matrix factorisation by stochastic gradient descent."""

    revised: ClassVar[tuple[str, ...]] = interface.VECTORS
    kind: Literal["sgd_mf"]


@dataclass(frozen=True)
class RatingFactorModel:
    """Predicts c_ui + b_u + b_i + p_u . q_i, clipped to the scale.

    Mean and biases include the centre c.

    Attributes:
        mean: start of every prediction.
        bias_u: (users,) deviation of each user.
        bias_i: (items,) deviation of each item.
        p_ud: (users, d) factors of users, float32.
        q_id: (items, d) factors of items, float32.
        scale: (2,) lowest and highest rating.
    """

    mean: float
    bias_u: Floats
    bias_i: Floats
    p_ud: Floats32
    q_id: Floats32
    scale: Floats

    kind: ClassVar[str] = "factors"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) predictions in float64.

        An unseen user or item has bias 0 and no factors.
        """
        users = interface.indices_with_unseen(users_p, len(self.bias_u), "user")
        items = interface.indices_with_unseen(items_p, len(self.bias_i), "item")
        bias_u, bias_i = interface.add_unseen_row(self.bias_u), interface.add_unseen_row(self.bias_i)
        p_ud, q_id = interface.add_unseen_row(self.p_ud), interface.add_unseen_row(self.q_id)

        def score_block(u: Ints, i: Ints) -> Floats:
            product_p = np.einsum("pd,pd->p", p_ud[u].astype(np.float64), q_id[i].astype(np.float64))
            return np.asarray(self.mean + bias_u[u] + bias_i[i] + product_p)

        return np.clip(interface.in_blocks(score_block, users, items), self.scale[0], self.scale[1])


def make_score_fit(
    train: Ratings,
    tables: tuple[Floats32, Floats32],
    steps: int,
    watched: Ratings | None,
    *,
    error: DivergedError,
    bias_i: Floats | None = None,
) -> Fit:
    """Return a fit made from vectors which rank.

    Users and items without a training pair get zero vectors.

    Args:
        train: the pairs in the fit.
        tables: (users, d) and (items, d) vectors; they are changed.
        steps: number of steps in the fit.
        watched: pairs to predict; None: none.
        error: raised if a number is not finite.
        bias_i: (items,) biases; None: none.
    """
    for table, key_r in zip(tables, (train.users_r, train.items_r), strict=True):
        table[np.bincount(key_r, minlength=len(table)) == 0] = 0
    bias_i = np.zeros(train.n_items) if bias_i is None else bias_i
    if not all(np.isfinite(table).all() for table in (*tables, bias_i)):
        raise error
    model = RatingFactorModel(0.0, np.zeros(train.n_users), bias_i, *tables, np.array(interface.REAL))
    return interface.finish_fit(model, watched, steps)


class Parameters(NamedTuple):
    """Learnt parameters, changed in place by each epoch.

    Factor rows are padded with zeros, which stay zero.
    """

    b_u: Floats32
    b_i: Floats32
    p_ud: Floats32
    q_id: Floats32

    def copy(self) -> Parameters:
        """Return a copy which later epochs do not change."""
        return Parameters(*(table.copy() for table in self))


def fit_sgd(
    train: Ratings, settings: SgdSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Pass over the training ratings epoch by epoch.

    A fit takes one thread, whatever `threads` says. Raises DivergedError with epoch and learning rates if
    the factors grow beyond all bounds.
    """
    learnt, stopping = _split_for_stopping(train, settings, seed)
    centre = _centre(learnt, settings)
    monitor = _EpochMonitor(settings, centre, train, watched, stopping)
    parameters, triples = start(train, settings, seed), subtract_centre(learnt, centre)
    if settings.order != "given":
        triples = triples[draws.hash_order(learnt, seed)]
    for epoch in range(settings.epochs):
        if settings.order == "shuffled":
            shuffle(triples, seed, epoch)
        if not math.isfinite(run_epoch(parameters, triples, settings, epoch)):
            raise DivergedError(
                f"the descent diverged in epoch {epoch + 1}: its errors are no longer finite",
                f"lower the learning rates, now {settings.rates}, or init_sd",
            )
        if monitor.should_stop(parameters, epoch):
            break
    return monitor.result()


def start(train: Ratings, settings: SgdSettings, seed: int) -> Parameters:
    """Return zero biases and factors drawn by hash of (seed, row)."""
    p_ud = _draw_rows(train.n_users, settings, seed, USER_FACTORS)
    q_id = _draw_rows(train.n_items, settings, seed, ITEM_FACTORS)
    biases = np.zeros(train.n_users, np.float32), np.zeros(train.n_items, np.float32)
    return Parameters(*biases, p_ud, q_id)


def subtract_centre(ratings: Ratings, centre: RatingMeans) -> draws.Triples:
    """Subtract the centre from each rating."""
    left_r = ratings.ratings_r - centre.baseline(ratings.users_r, ratings.items_r)
    return draws.make_triples(ratings.users_r, ratings.items_r, left_r)


def run_epoch(parameters: Parameters, triples: draws.Triples, settings: SgdSettings, epoch: int) -> float:
    """Make a descent step per rating; return the squared errors' sum."""
    rates = settings.rates.as_float32(settings.rate_decay**epoch)
    if not settings.biases:
        rates = (np.float32(0), np.float32(0), *rates[2:])
    return float(_descend(parameters, triples, rates, settings.regularisers.as_float32()))


@compile_kernel
def _descend(
    parameters: Parameters,
    triples: draws.Triples,
    rates: tuple[np.float32, ...],
    regularisers: tuple[np.float32, ...],
) -> float:
    b_u, b_i, p_ud, q_id = parameters
    one, squares = np.float32(1), 0.0
    keep_bu, keep_bi = one - rates[0] * regularisers[0], one - rates[1] * regularisers[1]
    keep_p, keep_q = one - rates[2] * regularisers[2], one - rates[3] * regularisers[3]
    for r in range(len(triples)):
        if r + AHEAD < len(triples):
            fetch_row(p_ud, triples[r + AHEAD].user)
            fetch_row(q_id, triples[r + AHEAD].item)
        u, i = triples[r].user, triples[r].item
        bias_u, bias_i = b_u[u], b_i[i]
        e = triples[r].target - (bias_u + bias_i + dot_rows(p_ud, u, q_id, i, 0))
        b_u[u] = keep_bu * bias_u + rates[0] * e
        b_i[i] = keep_bi * bias_i + rates[1] * e
        step_rows(p_ud, u, q_id, i, (keep_p, rates[2] * e, keep_q, rates[3] * e))
        squares += np.float64(e) * np.float64(e)
    return squares


def _split_for_stopping(train: Ratings, settings: SgdSettings, seed: int) -> tuple[Ratings, Ratings | None]:
    """Return the ratings to learn from, and those for stopping."""
    if settings.stopping is None:
        return train, None
    out_r = draws.draw_held_out(train, settings.stopping.share, seed + STOPPING)
    if not out_r.any() or out_r.all():
        raise DataError(
            f"a share of {settings.stopping.share} of {len(train)} ratings leaves an empty part",
            "set another stopping.share, or stopping: null",
        )
    return train.rows(~out_r), train.rows(out_r)


def _centre(train: Ratings, settings: SgdSettings) -> RatingMeans:
    if settings.centring == "none":
        return RatingMeans(0.0, np.zeros(train.n_users), np.zeros(train.n_items), np.array(train.scale))
    return fit_deviations(train, MeansSettings(means=settings.centring))


def _draw_rows(rows: int, settings: SgdSettings, seed: int, purpose: int) -> Floats32:
    table = zero_rows(rows, pad_dims(settings.dims))
    table[:, : settings.dims] = draws.normal_table((rows, settings.dims), settings.init_sd, seed, purpose)
    return table


class _EpochMonitor:
    """Measures each epoch, stores the best one, decides to stop."""

    def __init__(
        self, settings: SgdSettings, centre: RatingMeans, train: Ratings, watched: Ratings | None,
        stopping: Ratings | None,
    ) -> None:  # fmt: skip
        self.settings, self.centre, self.scale = settings, centre, train.scale
        self.seen_u = np.bincount(train.users_r, minlength=train.n_users) > 0
        self.seen_i = np.bincount(train.items_r, minlength=train.n_items) > 0
        self.errors, self.stopping = interface.WatchedErrors(watched), stopping
        self.best: RatingFactorModel | None = None
        self.least, self.best_epoch, self.epoch = math.inf, 0, 0

    def should_stop(self, parameters: Parameters, epoch: int) -> bool:
        """Measure the parameters after an epoch; return true to stop."""
        self.epoch, last = epoch, epoch + 1 == self.settings.epochs
        if self.errors.watched is None and self.stopping is None and not last:
            return False
        model, error, held = self._model(parameters), 0.0, self.stopping
        self.errors.measure(model)
        if held is not None:
            error = interface.rmse(model.predict(held.users_r, held.items_r), held.ratings_r)
        if error < self.least or self.stopping is None:
            self.least, self.best, self.best_epoch = error, model, epoch
        patience = self.settings.stopping.patience if self.settings.stopping else math.inf
        return epoch - self.best_epoch >= patience

    def result(self) -> Fit:
        """Return the best epoch's model."""
        assert self.best is not None
        fitted = interface.finish_fit(self.best, self.errors.watched, self.epoch + 1)
        return fitted._replace(rmse_s=np.array(self.errors.rmse_s))

    def _model(self, parameters: Parameters) -> RatingFactorModel:
        """Copy without padding; rows without ratings get zero factors."""
        d, centre = self.settings.dims, self.centre
        p_ud = np.where(self.seen_u[:, None], parameters.p_ud[:, :d], np.float32(0))
        q_id = np.where(self.seen_i[:, None], parameters.q_id[:, :d], np.float32(0))
        bias_u, bias_i = centre.bias_u + parameters.b_u, centre.bias_i + parameters.b_i
        return RatingFactorModel(centre.mean, bias_u, bias_i, p_ud, q_id, np.array(self.scale))
