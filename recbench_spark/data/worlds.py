"""Generate the default world, whose truth is known.

Users meet items in a closed loop: period by period a recommender exposes items, users rate them, and
good ratings raise the exposure of the item among users of the same taste. Afterwards, in the open
loop, items are exposed uniformly at random, whether or not the loop exposed them to the user before;
`open_items: unseen` leaves out the exposed ones, and with them most of what the user likes best. The
exposure and the users' true preferences are known exactly, so that models and estimators can be
compared with the truth.

All rows are computed from `xxhash64` and integers, user by user, so they are the same for a seed
with any partitioning, cluster or platform. Workers make the rows of their users in blocks of at
most about half a million; the driver (and each task's closure) holds one integer array of
periods x tastes x items, 8 bytes each: 77 KB by default, 26 MB for 100,000 items.

The equations are, all in integers (u users, i items, g tastes, t periods, d dimensions):

    affinity_ui   = sum_d p_ud q_id + quality_i
    rating_ui     = 1 + #{thresholds <= affinity_ui + noise_ui}
    exposure_tgi  = seed_i + BOOST * (ratings >= 4 that users of taste g gave i before period t)
    P(draw = i)   = loop * exposure_tgi / sum_i exposure_tgi + (1 - loop) / items
    propensity_gi = 1 - mean over users of taste g of prod_t (1 - P(draw = i)) ^ draws_tu
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import WorldSettings
from recbench_spark.data.world_hashes import (
    EXPOSE,
    GENRE,
    ITEM_FACTOR,
    ITEM_QUALITY,
    LEVEL,
    OPEN,
    RATING_NOISE,
    TASTE,
    USER_FACTOR,
    WHEN,
    contains,
    draw_below,
    hash_keys,
    hash_long,
)
from recbench_spark.data.world_loop import (
    LEVELS,
    Loop,
    choose_draws,
    exposure_weights,
    survival,
)
from recbench_spark.engine.versions import collect_arrow, make_frame
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.splits.positions import number_slots
from recbench_spark.kernels.streams import Batches

Cells = Callable[[Ints], Ints]

DIMS = 12
"""Length of a factor where `world.tastes` is at most 8; see `factor_length` for more tastes."""


CENTRE, SPREAD = 2, 3
"""A factor's entry is +-CENTRE, given by its taste, plus an own part drawn from -SPREAD..SPREAD."""

QUALITY, NOISE = 12, 5
"""Item quality is drawn from -QUALITY..QUALITY, the noise of a rating from -NOISE..NOISE."""

THRESHOLDS = np.array([-29, 5, 51, 69])
"""Affinity plus noise at which the rating becomes 2, 3, 4 and 5. About 8 % of all pairs reach 4 where
there are 8 tastes or 16, about 12 % where there are 32."""

RELEVANT = 4
"""Smallest rating that is positive feedback, and that a benchmark should count as relevant."""


START, PERIOD = 1_577_836_800_000_000, 30 * 86_400_000_000
"""Start of the loop (2020-01-01) and length of a period (30 days), in microseconds."""

BLOCK_ROWS = 500_000
"""Draws that a worker holds at once: about 100 MB."""

PARTITION_ROWS = 500_000
"""Rows that a task makes: a second or two of work, against some 50 ms that a Python task costs."""


def read_world(spark: SparkSession, world: WorldSettings) -> DataFrame:
    """Return the log in `INTERACTIONS`: closed loop (`part` NULL) and open loop (`part` 'open_loop').

    The number of closed-loop rows is `world.interactions` within about a per cent: a user gets an
    item once, so the draws are chosen to leave that many. One small job per period computes the
    feedback; the rows themselves are lazy. Attributes: the user's `taste`, the item's `genre`.
    """
    rows = _user_frame(spark, world).mapInArrow(
        partial(_write_rows, world=world, loop=simulate_loop(spark, world)),
        "user long, item long, rating tinyint, event_time long, open boolean, taste long, genre long",
    )
    attributes = F.create_map(
        F.lit("taste"),
        F.concat(F.lit("taste"), F.col("taste").cast("string")),
        F.lit("genre"),
        F.concat(F.lit("genre"), F.col("genre").cast("string")),
    )
    return rows.select(
        _user_id(F.col("user"), world).alias("user_id"),
        _item_id(F.col("item"), world).alias("item_id"),
        F.col("rating").cast("double").alias("rating"),
        "event_time",
        F.when(F.col("open"), F.lit("open_loop")).alias("part"),
        attributes.alias("attributes"),
    )


def true_factors(spark: SparkSession, world: WorldSettings) -> tuple[DataFrame, DataFrame]:
    """Return users and items as (id, vector, bias); dot product plus biases is the affinity, exactly."""
    schema = "id long, vector array<float>, bias double"
    users = _user_frame(spark, world).mapInArrow(partial(_write_factors, side="user", world=world), schema)
    items = spark.range(0, world.items, 1, 1 + world.items // 100_000).mapInArrow(
        partial(_write_factors, side="item", world=world), schema
    )
    return (
        users.select(_user_id(F.col("id"), world).alias("user_id"), "vector", "bias"),
        items.select(_item_id(F.col("id"), world).alias("item_id"), "vector", "bias"),
    )


def true_propensities(spark: SparkSession, world: WorldSettings, by_taste: bool = False) -> DataFrame:
    """Return (item_id, propensity[, taste]): P(the closed loop exposes the item to a user).

    The user is drawn uniformly from all users, or from those of each taste. The exposure weights are those
    of the simulated loop; the result is computed in float64 from these integers.
    """
    counts_gl = _count_users(spark, world)
    chances_gli = exposure_chances(spark, world)
    expected_gi = np.stack([counts_gl[g] @ chances_gli[g] for g in range(world.tastes)])
    items, frames = np.arange(world.items), []
    if not by_taste:
        table = {"item": items, "propensity": expected_gi.sum(axis=0) / counts_gl.sum()}
        frames.append(pa.table(table))
    for g in np.flatnonzero(counts_gl.sum(axis=1)) if by_taste else ():
        table = {"item": items, "propensity": expected_gi[g] / counts_gl[g].sum()}
        frames.append(pa.table({**table, "taste": [f"taste{g}"] * world.items}))
    columns = ["propensity", "taste"] if by_taste else ["propensity"]
    frame = make_frame(spark, pa.concat_tables(frames))
    return frame.select(_item_id(F.col("item"), world).alias("item_id"), *columns)


def exposure_chances(spark: SparkSession | None, world: WorldSettings) -> Floats:
    """Return (g, l, i) P(the closed loop exposes an item to a user of a taste and level)."""
    loop = simulate_loop(spark, world)
    return 1 - np.stack([survival(loop, g, len(loop.draws_tl)) for g in range(world.tastes)])


@lru_cache(maxsize=4)
def simulate_loop(spark: SparkSession | None, world: WorldSettings) -> Loop:
    """Run the loop: per period choose the draws and aggregate the feedback on the cluster.

    Without Spark (None) the feedback is counted in this process, all users at once, for small worlds.
    Raise ConfigError where the world has too few users and items for its interactions.
    """
    counts_gl = _count_users(spark, world)
    feedback_gi = np.zeros((world.tastes, world.items), dtype=np.int64)
    draws = np.zeros((0, LEVELS), dtype=np.int64)
    cumulative = np.zeros((0, world.tastes, world.items), dtype=np.int64)
    for t in range(world.periods):
        weights_gi = exposure_weights(feedback_gi, world)
        cumulative = np.concatenate([cumulative, weights_gi.cumsum(axis=1)[None]])
        rows = world.interactions * (t + 1) // world.periods
        draws = np.concatenate([draws, choose_draws(Loop(draws, cumulative), counts_gl, rows)[None]])
        if t + 1 < world.periods:
            cells = partial(_feedback_cells, t=t, world=world, loop=Loop(draws, cumulative))
            feedback_gi += _count_cells(spark, world, cells, feedback_gi.size).reshape(world.tastes, -1)
    return Loop(draws, cumulative)


# --- users and items, computed from their numbers ---


def user_tastes(users: Ints, world: WorldSettings) -> Ints:
    """Return the taste of each user, 0..tastes-1."""
    return draw_below(world.tastes, TASTE, users, seed=world.seed)


def activity_levels(users: Ints, seed: int) -> Ints:
    """Return the activity level of each user, 0..LEVELS-1."""
    return draw_below(LEVELS, LEVEL, users, seed=seed)


def item_genres(items: Ints, world: WorldSettings) -> Ints:
    """Return the genre of each item, 0..tastes-1; users of that taste like it best."""
    return draw_below(world.tastes, GENRE, items, seed=world.seed)


def item_qualities(items: Ints, seed: int) -> Ints:
    """Return the quality of each item: its bias in the affinity, the same for all users."""
    return draw_below(2 * QUALITY + 1, ITEM_QUALITY, items, seed=seed) - QUALITY


def factor_length(world: WorldSettings) -> int:
    """Return the length of a factor, long enough that different tastes differ in half of their signs.

    It is 12 for up to 8 tastes, where the last four repeat the first four; otherwise the next power of
    two.
    """
    return DIMS if world.tastes <= 8 else 1 << (world.tastes - 1).bit_length()


def user_factors(users: Ints, world: WorldSettings) -> Ints:
    """Return p_ud, whole numbers of at most CENTRE + SPREAD."""
    return _make_factors(USER_FACTOR, users, user_tastes(users, world), world)


def item_factors(items: Ints, world: WorldSettings) -> Ints:
    """Return q_id, whole numbers of at most CENTRE + SPREAD."""
    return _make_factors(ITEM_FACTOR, items, item_genres(items, world), world)


def _make_factors(purpose: int, ids: Ints, tastes: Ints, world: WorldSettings) -> Ints:
    """Draw factors around the taste's row of a Hadamard matrix: tastes differ in half of the signs."""
    dims = np.arange(factor_length(world))
    common = np.bitwise_count(np.arange(world.tastes)[:, None] & dims[None, :]) % 2
    centre_gd = CENTRE * (1 - 2 * common.astype(np.int64))
    own = draw_below(2 * SPREAD + 1, purpose, ids[:, None], dims[None, :], seed=world.seed) - SPREAD
    factors: Ints = centre_gd[tastes] + own
    return factors


# --- rows of a block of users ---


def draw_closed_loop(users: Ints, world: WorldSettings, loop: Loop) -> tuple[Ints, Ints, Ints]:
    """Draw the first exposures of the closed loop: position of the user in `users`, item and time."""
    periods = [_draw_period(users, t, world, loop) for t in range(len(loop.draws_tl))]
    user_r, item_r, time_r = (np.concatenate(part) for part in zip(*periods, strict=True))
    # A user's draws are in order of time, and `unique` returns the first draw of each pair.
    _, first = np.unique(user_r * world.items + item_r, return_index=True)
    return user_r[first], item_r[first], time_r[first]


def _draw_period(users: Ints, t: int, world: WorldSettings, loop: Loop) -> tuple[Ints, Ints, Ints]:
    """Draw a period: user position, item and time of each draw, with repeats."""
    draws_u = loop.draws_tl[t][activity_levels(users, world.seed)]
    user_r, slot_r = number_slots(draws_u)
    taste_r = user_tastes(users, world)[user_r]
    start_u = hash_keys(EXPOSE, users, np.int64(t), seed=world.seed)
    draw_r = hash_long(slot_r, start_u[user_r])
    # All tastes share one ascending array; each starts at the end of the one before.
    totals_g = loop.cumulative_tgi[t, :, -1]
    starts_g = np.cumsum(totals_g) - totals_g
    place_r = (draw_r % totals_g[taste_r].astype(np.uint64)).astype(np.int64) + starts_g[taste_r]
    flat = (loop.cumulative_tgi[t] + starts_g[:, None]).ravel()
    item_r = np.searchsorted(flat, place_r, side="right") - taste_r * world.items
    within_r = (hash_keys(WHEN, draw_r, seed=world.seed) % np.uint64(PERIOD)).astype(np.int64)
    time_r = START + t * PERIOD + _spread_times(slot_r, within_r, draws_u[user_r])
    return user_r, item_r, time_r


def _spread_times(slot: Ints, within: Ints, slots: Ints) -> Ints:
    """Compute the time of a slot: slots of a period are equal, and a draw has a place within its slot."""
    return slot * (PERIOD // slots) + within // slots


def draw_open_loop(users: Ints, seen_r: Ints, world: WorldSettings) -> tuple[Ints, Ints, Ints]:
    """Draw uniformly exposed items: user position, item and time.

    A user gets the first new items of an endless uniform sequence, which is a draw without replacement.
    Where pairs are left out, the user gets half of the remaining items at most.

    Args:
        users: the numbers of the users.
        seen_r: pairs to leave out, ascending: user position * items + item.
        world: the world, with the number of draws and of items.
    """
    share = world.open_loop * np.stack([users, users + 1]) // world.users
    unseen_u = world.items - np.bincount(seen_r // world.items, minlength=len(users))
    most_u = unseen_u // 2 if world.open_items == "unseen" else unseen_u
    wanted_u = np.minimum(share[1] - share[0], most_u)
    start_u = hash_keys(OPEN, users, seed=world.seed)
    length_u = 2 * wanted_u
    while True:
        user_r, slot_r = number_slots(length_u)
        item_r = (hash_long(slot_r, start_u[user_r]) % np.uint64(world.items)).astype(np.int64)
        pair_r = user_r * world.items + item_r
        _, first = np.unique(pair_r, return_index=True)
        fresh = np.sort(first[~contains(seen_r, pair_r[first])])
        fresh_u = np.bincount(user_r[fresh], minlength=len(users))
        if (fresh_u >= wanted_u).all():
            break
        length_u = np.where(fresh_u < wanted_u, 2 * length_u, length_u)
    place_r = np.arange(len(fresh)) - np.repeat(np.cumsum(fresh_u) - fresh_u, fresh_u)
    chosen = fresh[place_r < wanted_u[user_r[fresh]]]
    user_r, slot_r = number_slots(wanted_u)
    within = draw_below(PERIOD, WHEN, users[user_r], slot_r, seed=world.seed)
    time_r = START + world.periods * PERIOD + _spread_times(slot_r, within, wanted_u[user_r])
    return user_r, item_r[chosen], time_r


def draw_ratings(users: Ints, user_r: Ints, item_r: Ints, world: WorldSettings) -> Ints:
    """Return the rating 1..5 of each row: affinity and noise against the thresholds."""
    all_items = np.arange(world.items)
    p_ud = user_factors(users, world).astype(np.int32)
    q_id = item_factors(all_items, world).astype(np.int32)
    affinity_r = np.einsum("rd,rd->r", p_ud[user_r], q_id[item_r])
    affinity_r = affinity_r + item_qualities(all_items, world.seed)[item_r]
    start_u = hash_keys(RATING_NOISE, users, seed=world.seed)
    noise_r = hash_long(item_r, start_u[user_r]) % np.uint64(2 * NOISE + 1)
    felt_r = affinity_r + noise_r.astype(np.int64) - NOISE
    ratings: Ints = 1 + np.searchsorted(THRESHOLDS, felt_r, side="right")
    return ratings


# --- workers ---


def _write_rows(batches: Batches, world: WorldSettings, loop: Loop) -> Batches:
    for users in _split_blocks(batches, world, loop):
        closed = draw_closed_loop(users, world, loop)
        seen_r = closed[0] * world.items + closed[1]
        opened = draw_open_loop(users, seen_r if world.open_items == "unseen" else seen_r[:0], world)
        user_r, item_r, time_r = (np.concatenate(pair) for pair in zip(closed, opened, strict=True))
        columns = {
            "user": users[user_r],
            "item": item_r,
            "rating": draw_ratings(users, user_r, item_r, world).astype(np.int8),
            "event_time": time_r,
            "open": np.arange(len(user_r)) >= len(closed[0]),
            "taste": user_tastes(users, world)[user_r],
            "genre": item_genres(np.arange(world.items), world)[item_r],
        }
        yield pa.RecordBatch.from_pydict(columns)


def _write_factors(batches: Batches, side: str, world: WorldSettings) -> Batches:
    for batch in batches:
        ids = batch.column(0).to_numpy()
        factors = user_factors if side == "user" else item_factors
        bias = np.zeros(len(ids)) if side == "user" else item_qualities(ids, world.seed)
        values = pa.array(factors(ids, world).astype(np.float32).ravel())
        offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * factor_length(world))
        vector = pa.ListArray.from_arrays(offsets, values)
        columns = {"id": ids, "vector": vector, "bias": bias.astype(np.float64)}
        yield pa.RecordBatch.from_pydict(columns)


def _write_cells(batches: Batches, cells: Cells, world: WorldSettings, loop: Loop | None) -> Batches:
    for users in _split_blocks(batches, world, loop):
        cell, count = np.unique(cells(users), return_counts=True)
        yield pa.RecordBatch.from_pydict({"cell": cell, "n": count})


def _user_cells(users: Ints, world: WorldSettings) -> Ints:
    return user_tastes(users, world) * LEVELS + activity_levels(users, world.seed)


def _feedback_cells(users: Ints, t: int, world: WorldSettings, loop: Loop) -> Ints:
    """Return taste * items + item of each good rating of a period; a repeated exposure counts again."""
    user_r, item_r, _ = _draw_period(users, t, world, loop)
    good = draw_ratings(users, user_r, item_r, world) >= RELEVANT
    return user_tastes(users, world)[user_r[good]] * world.items + item_r[good]


def _split_blocks(batches: Batches, world: WorldSettings, loop: Loop | None) -> Iterator[Ints]:
    """Split the users of the batches into blocks whose draws stay near BLOCK_ROWS."""
    for batch in batches:
        users = batch.column(0).to_numpy()
        rows_u = np.full(len(users), 1 + 2 * world.open_loop // world.users)
        if loop is not None:
            rows_u += loop.draws_tl.sum(axis=0)[activity_levels(users, world.seed)]
        yield from np.split(users, np.flatnonzero(np.diff(np.cumsum(rows_u) // BLOCK_ROWS)) + 1)


# --- on the cluster ---


def _user_frame(spark: SparkSession, world: WorldSettings) -> DataFrame:
    partitions = 1 + (world.interactions + world.open_loop) // PARTITION_ROWS
    return spark.range(0, world.users, 1, min(partitions, world.users))


def _count_users(spark: SparkSession | None, world: WorldSettings) -> Ints:
    cells = partial(_user_cells, world=world)
    return _count_cells(spark, world, cells, world.tastes * LEVELS).reshape(world.tastes, LEVELS)


def _count_cells(spark: SparkSession | None, world: WorldSettings, cells: Any, size: int) -> Ints:
    """Count each cell 0..size-1 over all users."""
    if spark is None:
        return np.bincount(cells(np.arange(world.users)), minlength=size)
    write = partial(_write_cells, cells=cells, world=world, loop=cells.keywords.get("loop"))
    cell_counts = _user_frame(spark, world).mapInArrow(write, "cell long, n long")
    table = collect_arrow(cell_counts.groupBy("cell").agg(F.sum("n").alias("n")))
    counts = np.zeros(size, dtype=np.int64)
    counts[table["cell"].to_numpy()] = table["n"].to_numpy()
    return counts


def _user_id(number: Column, world: WorldSettings) -> Column:
    return _name("u", number, max(6, len(str(world.users - 1))))


def _item_id(number: Column, world: WorldSettings) -> Column:
    return _name("i", number, max(5, len(str(world.items - 1))))


def _name(letter: str, number: Column, width: int) -> Column:
    return F.concat(F.lit(letter), F.lpad(number.cast("string"), width, "0"))
