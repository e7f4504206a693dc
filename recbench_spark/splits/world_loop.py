"""Simulate the recommender in a world's closed loop, and draw by hash.

It has exposure weights, draws and survival probabilities. Axes: g tastes, i items, l activity levels, t
periods. See `worlds` for the equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from recbench_spark.config import WorldSettings
from recbench_spark.core import hashing
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import ConfigError

# One number per purpose is hashed first, so that draws for different purposes are independent.
TASTE, LEVEL, USER_FACTOR, GENRE, ITEM_FACTOR, ITEM_QUALITY, RANK, RATING_NOISE, EXPOSE, WHEN, OPEN = range(
    11
)

LEVELS = 16
"""Number of activity levels. Level l has LEVELS / (LEVELS - l) times the least activity: a Pareto tail from
1 to 16.
"""

FLATTEN, BOOST = 60, 4
"""Zipf seeds fall as 1 / (rank + FLATTEN); one good rating adds BOOST."""

LOOP_UNIT = 1000
"""Unit of `world.loop`: thousandths, to keep exposure weights whole numbers."""

DRAW_UNIT = 1 << 14
"""Fixed-point unit for draws per user and activity."""

SCALE_STEPS = 500
"""Resolution of the draws: they are chosen to one part in this many."""


def hash_keys(*keys: Any, seed: int) -> hashing.Hashes:
    """Compute Spark's `xxhash64(keys..., seed)` for long columns.

    Keys broadcast as numpy arrays do.
    """
    shape = np.broadcast_shapes((1,), *map(np.shape, keys))
    hashes = hashing.start(math.prod(shape))
    for key in (*keys, seed):
        numbers = np.broadcast_to(key, shape).astype(np.int64)
        hashes = hashing.hash_longs(numbers.ravel(), hashes)
    return hashes.reshape(shape)


def draw_below(bound: int, *keys: Any, seed: int) -> Ints:
    """Draw a whole number 0..bound-1 from keys and seed.

    The draw is uneven by less than bound / 2**64.
    """
    return (hash_keys(*keys, seed=seed) % np.uint64(bound)).astype(np.int64)


@dataclass(frozen=True)
class Loop:
    """The recommender's exposure, period by period.

    Attributes:
        draws_tl: items drawn for a user at an activity level.
        cumulative_tgi: running sum over items of the integer exposure weights.
        counts_gl: users with a taste and activity level.
    """

    draws_tl: Ints
    cumulative_tgi: Ints
    counts_gl: Ints


def exposure_weights(feedback_gi: Ints, world: WorldSettings) -> Ints:
    """Return (g, i) integers proportional to P(draw = i).

    The equations are in `worlds`.
    """
    rank_i = np.argsort(np.argsort(hash_keys(RANK, np.arange(world.items), seed=world.seed), kind="stable"))
    seed_i = world.interactions // world.tastes // (rank_i + FLATTEN) + 1
    exposure_gi = seed_i + BOOST * feedback_gi
    total_g = exposure_gi.sum(axis=1, keepdims=True)
    if int(total_g.max()) * world.items * LOOP_UNIT * world.tastes >= 2**62:
        raise ConfigError(f"world: {world.items} items are too many for whole-number exposure weights")
    loop = round(world.loop * LOOP_UNIT)
    weights: Ints = loop * exposure_gi * world.items + (LOOP_UNIT - loop) * total_g
    return weights


def choose_draws(loop: Loop, rows: int) -> Ints:
    """Choose the fewest draws per level with `rows` expected rows.

    `loop` has the latest period's weights but not yet its draws.
    """
    activity_l = 1000 * LEVELS // (LEVELS - np.arange(LEVELS))
    counts_gl, (_, tastes, items) = loop.counts_gl, loop.cumulative_tgi.shape
    before = [survival(loop, g, len(loop.draws_tl)) for g in range(tastes)]
    draw_gi = [draw_probability(loop, g, -1) for g in range(tastes)]

    def draws(scale: int) -> Ints:
        return np.maximum(1, activity_l * scale // DRAW_UNIT)

    def enough(scale: int) -> bool:
        expected = 0
        for g in range(tastes):
            still_li = before[g] * power(1 - draw_gi[g], draws(scale))
            # Summed as whole numbers, because a float sum depends on the order and so on the platform.
            exposed_l = np.floor((1 - still_li) * 2**20).astype(np.int64).sum(axis=1)
            expected += int((exposed_l * counts_gl[g]).sum())
        return expected >= rows << 20

    high = 1
    while not enough(high):
        high *= 2
        if high > 64 * items:
            raise ConfigError(
                f"world: {counts_gl.sum()} users and {items} items are too few for {rows} interactions",
                "raise users or items: an item is exposed to a user once",
            )
    low = high // 2
    while high - low > 1 + high // SCALE_STEPS:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return draws(high)


def draw_probability(loop: Loop, g: int, t: int) -> Floats:
    """Return P(draw = i) for a taste in a period."""
    cumulative_i = loop.cumulative_tgi[t, g]
    probability: Floats = np.diff(cumulative_i, prepend=0) / cumulative_i[-1]
    return probability


def survival(loop: Loop, g: int, periods: int) -> Floats:
    """Return (levels, items) P(item not exposed so far).

    `periods` is the number of the first periods that count.
    """
    still_li = np.ones((LEVELS, loop.cumulative_tgi.shape[2]))
    for t in range(periods):
        still_li *= power(1 - draw_probability(loop, g, t), loop.draws_tl[t])
    return still_li


def power(base_i: Floats, exponent_l: Ints) -> Floats:
    """Compute base_i ** exponent_l as (l, i), by squaring.

    Products round alike everywhere.
    """
    result = np.ones((len(exponent_l), len(base_i)))
    square, rest = base_i.copy(), exponent_l.copy()
    while rest.any():
        result[rest % 2 == 1] *= square
        square *= square
        rest //= 2
    return result
