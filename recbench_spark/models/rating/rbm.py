"""A restricted Boltzmann machine over each user's ratings.

Visible units are softmax, hidden ones binary.
p(h_f = 1 | ratings) = sigma(c_f + sum_i W_(i, k_i, f)), p(rating of i is level k | h) = softmax over k of
b_ik + sum_f W_ikf h_f; only rated items have units. It learns by one-step contrastive divergence, user
after user. A prediction is the mean level given the hidden units' probabilities. Source: Salakhutdinov,
Mnih and Hinton, "Restricted Boltzmann machines for collaborative filtering" (ICML 2007), sections 2 and 3;
without their conditional units, momentum and batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import DataError, DivergedError
from recbench_spark.models.rating import interface
from recbench_spark.models.rating.draws import as_unsigned, draw_state, normal_table, permutation, uniform
from recbench_spark.models.rating.interface import Fit, Ratings

MOST_LEVELS = 64
"""Most distinct ratings: with more they are measurements, not levels."""

WEIGHTS, HIDDEN, VISIBLE = range(3)
"""Purposes of random draws: each has draws of its own."""


class RbmSettings(interface.RatingSettings):
    """Settings of the restricted Boltzmann machine."""

    kind: Literal["rbm"] = "rbm"
    dims: Annotated[int, Field(ge=1, le=2048)] = 100
    """Hidden units."""
    epochs: Annotated[int, Field(ge=1)] = 30
    """Passes over the ratings."""
    rate: Annotated[float, Field(gt=0, le=interface.MAX_RATE)] = 0.005
    """Learning rate."""
    rate_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Factor on the rate from each epoch to the next."""
    regulariser: Annotated[float, Field(ge=0)] = 0.001
    """Weight of squared weights."""
    init_sd: Annotated[float, Field(gt=0)] = 0.01
    """Standard deviation of the weights at the start."""


class RbmModel(RbmSettings, interface.RatingModelConfig):
    """A restricted Boltzmann machine."""

    kind: Literal["rbm"]


class Machine(NamedTuple):
    """Learnt parameters, changed in place by each epoch.

    W (items, levels, d), b (items, levels), c (d,).
    """

    w_ikd: Floats
    b_ik: Floats
    c_d: Floats


class Visible(NamedTuple):
    """Rating levels, user after user, items ascending."""

    starts_u: Ints
    items_r: Ints
    levels_r: Ints


@dataclass(frozen=True)
class Rbm:
    """Predicts ratings by a fitted machine and users' hidden units.

    Attributes:
        levels_k: (levels,) the distinct ratings, ascending.
        w_ikd: (items, levels, d) weights, float32.
        b_ik: (items, levels) biases.
        hidden_ud: (users + 1, d) probabilities given the user's ratings; the last row for unseen users.
        prior_k: (levels,) shares of the levels, for unseen items.
    """

    levels_k: Floats
    w_ikd: Floats32
    b_ik: Floats
    hidden_ud: Floats32
    prior_k: Floats

    kind: ClassVar[str] = "rbm"

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) the expected level.

        For an unseen item it is the mean of all ratings.
        """
        users = interface.indices_with_unseen(users_p, len(self.hidden_ud) - 1, "user")
        items = interface.indices_with_unseen(items_p, len(self.b_ik), "item")
        return np.asarray(
            _predict_levels(
                users, items, self.levels_k, self.w_ikd, self.b_ik, self.hidden_ud, self.prior_k
            )
        )


def fit_rbm(
    train: Ratings, settings: RbmSettings, seed: int, watched: Ratings | None = None, threads: int = 1
) -> Fit:
    """Learn user by user, shuffled by hash each epoch.

    A fit takes one thread. Raises DataError for ratings with too many levels, and DivergedError if the
    weights diverge.
    """
    levels_k = np.unique(train.ratings_r)
    if len(levels_k) > MOST_LEVELS:
        raise DataError(
            f"{len(levels_k)} distinct ratings are too many levels for an RBM",
            f"round the ratings to at most {MOST_LEVELS} levels, or use another model",
        )
    visible, machine = make_visible(train, levels_k), start(train, levels_k, settings, seed)
    errors = interface.WatchedErrors(watched)
    for epoch in range(settings.epochs):
        order_u = permutation(train.n_users, seed, epoch)
        rate = settings.rate * settings.rate_decay**epoch
        learn(machine, visible, order_u, (rate, settings.regulariser), as_unsigned(seed), epoch)
        if not np.isfinite(machine.c_d.sum() + machine.b_ik.sum()):
            message = f"the weights diverged in epoch {epoch + 1}"
            raise DivergedError(message, f"lower the rate {settings.rate}")
        if watched is not None:
            errors.measure(_model(machine, visible, levels_k, train))
    return errors.finish(_model(machine, visible, levels_k, train), settings.epochs)


def make_visible(train: Ratings, levels_k: Floats) -> Visible:
    """Convert the ratings to level numbers."""
    order = np.lexsort((train.items_r, train.users_r))
    starts_u = np.searchsorted(train.users_r[order], np.arange(train.n_users + 1))
    return Visible(starts_u, train.items_r[order], np.searchsorted(levels_k, train.ratings_r[order]))


def start(train: Ratings, levels_k: Floats, settings: RbmSettings, seed: int) -> Machine:
    """Return the start: weights by hash, smoothed log shares.

    b is the log share of each level among the item's ratings, after one more rating per level.
    """
    shape = train.n_items, len(levels_k)
    w = normal_table((shape[0] * shape[1], settings.dims), settings.init_sd, seed, WEIGHTS, np.float64)
    counts = np.ones(shape)
    np.add.at(counts, (train.items_r, np.searchsorted(levels_k, train.ratings_r)), 1)
    b_ik = np.log(counts / counts.sum(axis=1, keepdims=True))
    return Machine(np.asarray(w, np.float64).reshape(*shape, settings.dims), b_ik, np.zeros(settings.dims))


@compile_kernel
def learn(
    machine: Machine,
    visible: Visible,
    order_u: npt.NDArray[np.uint32],
    numbers: tuple[float, float],
    seed: np.uint64,
    epoch: int,
) -> None:
    """Run one epoch of contrastive divergence.

    For each user it adds the ratings' statistics and subtracts those of one reconstruction.
    """
    rate, regulariser = numbers
    w, b, c = machine
    for u in order_u:
        first, last = visible.starts_u[u], visible.starts_u[u + 1]
        if first == last:
            continue
        items, levels = visible.items_r[first:last], visible.levels_r[first:last]
        h = activate_hidden(machine, items, levels)
        drawn = np.zeros(len(h))
        state = np.uint64(draw_state(seed, HIDDEN, epoch, u))
        for d in range(len(h)):
            drawn[d] = 1.0 if uniform(state, d) < h[d] else 0.0
        again = sample_levels(machine, items, drawn, np.uint64(draw_state(seed, VISIBLE, epoch, u)))
        h_again = activate_hidden(machine, items, again)
        for n in range(len(items)):
            i, k, k_again = items[n], levels[n], again[n]
            b[i, k] += rate
            b[i, k_again] -= rate
            for d in range(len(h)):
                w[i, k, d] += rate * (h[d] - regulariser * w[i, k, d])
                w[i, k_again, d] -= rate * (h_again[d] + regulariser * w[i, k_again, d])
        for d in range(len(h)):
            c[d] += rate * (h[d] - h_again[d])


@compile_kernel
def activate_hidden(machine: Machine, items: Ints, levels: Ints) -> Floats:
    """Return (d,) hidden-unit probabilities given ratings."""
    h = machine.c_d.copy()
    for n in range(len(items)):
        for d in range(len(h)):
            h[d] += machine.w_ikd[items[n], levels[n], d]
    for d in range(len(h)):
        h[d] = 1 / (1 + math.exp(-h[d]))
    return h


@compile_kernel
def sample_levels(machine: Machine, items: Ints, h: Floats, state: np.uint64) -> Ints:
    """Draw (n,) one level per item given the hidden units."""
    levels = np.zeros(len(items), np.int64)
    for n in range(len(items)):
        weights = np.exp(_energies(machine.w_ikd[items[n]], machine.b_ik[items[n]], h))
        remaining = uniform(state, n) * weights.sum()
        while levels[n] < len(weights) - 1 and remaining >= weights[levels[n]]:
            remaining -= weights[levels[n]]
            levels[n] += 1
    return levels


@compile_kernel
def _energies(w_kd: npt.NDArray[np.floating], b_k: Floats, h: npt.NDArray[np.floating]) -> Floats:
    """Return (k,) b_k + sum_d W_kd h_d, minus the largest."""
    energy = b_k.copy()
    for k in range(len(b_k)):
        for d in range(len(h)):
            energy[k] += w_kd[k, d] * h[d]
    return np.asarray(energy - energy.max())


@compile_kernel
def _predict_levels(
    users_p: Ints,
    items_p: Ints,
    levels_k: Floats,
    w_ikd: Floats32,
    b_ik: Floats,
    hidden_ud: Floats32,
    prior_k: Floats,
) -> Floats:
    out = np.zeros(len(users_p))
    for p in range(len(users_p)):
        i, shares = items_p[p], prior_k
        if i < len(b_ik):
            weights = np.exp(_energies(w_ikd[i], b_ik[i], hidden_ud[users_p[p]]))
            shares = weights / weights.sum()
        for k in range(len(levels_k)):
            out[p] += shares[k] * levels_k[k]
    return out


def _model(machine: Machine, visible: Visible, levels_k: Floats, train: Ratings) -> Rbm:
    bounds = zip(visible.starts_u[:-1].tolist(), visible.starts_u[1:].tolist(), strict=True)
    rows = [activate_hidden(machine, visible.items_r[a:b], visible.levels_r[a:b]) for a, b in bounds]
    rows.append(activate_hidden(machine, visible.items_r[:0], visible.levels_r[:0]))
    shares = np.bincount(visible.levels_r, minlength=len(levels_k)) / len(train)
    tables = machine.w_ikd.astype(np.float32), machine.b_ik.copy(), np.array(rows, np.float32)
    return Rbm(levels_k, *tables, shares)
