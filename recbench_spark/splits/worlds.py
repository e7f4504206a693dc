"""Generate the default world, whose truth is known.

Users meet items in a closed loop: period by period a recommender exposes items, users rate them, and good
ratings raise the item's exposure among users with the same taste. Afterwards, in the open loop, items are
exposed uniformly at random, whether or not the loop exposed them to the user before; `open_items: unseen`
leaves out the exposed ones, and with them most of what the user likes best. The exposure and the users'
true preferences are known exactly, so that models and estimators can be compared with the truth.

All rows are computed from `xxhash64` and integers, user by user, so they are the same for a seed with any
partitioning, cluster or platform. The log is a list of pieces, ranges of users. A task makes one by itself,
in blocks with at most about half a million rows. It needs the loop: one integer array, periods x tastes x
items, 8 bytes each: 77 KB by default, 26 MB for 100,000 items. This module has no Spark.

The equations are, all in integers (u users, i items, g tastes, t periods, d dimensions):

    affinity_ui   = sum_d p_ud q_id + quality_i
    rating_ui     = 1 + #{thresholds <= affinity_ui + noise_ui}
    exposure_tgi  = seed_i + BOOST * (ratings >= 4 that users of taste g gave i before period t)
    P(draw = i)   = loop * exposure_tgi / sum_i exposure_tgi + (1 - loop) / items
    propensity_gi = 1 - mean over users of taste g of prod_t (1 - P(draw = i)) ^ draws_tu
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import WorldSettings
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.hashing import hash_longs
from recbench_spark.core.streams import Batches
from recbench_spark.engine.pipes import cut_parts
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.splits import world_loop
from recbench_spark.splits.kernels.positions import number_slots
from recbench_spark.splits.world_loop import LEVELS, Loop, draw_below, hash_keys
from recbench_spark.storage.blocks import Blocks, Engine, PieceRows, return_rows, run_pieces

Run = Callable[[Callable[[range], Any], Sequence[range]], Iterable[Any]]
"""Calls a function for each piece: `map` in this process, or tasks. Results come in any order."""

DIMS = 12
"""Length of a factor if `world.tastes` is at most 8; see `factor_length` for more tastes."""


CENTRE, SPREAD = 2, 3
"""A factor's entry is +-CENTRE, given by its taste, plus an own part drawn from -SPREAD..SPREAD."""

QUALITY, NOISE = 12, 5
"""Item quality is drawn from -QUALITY..QUALITY, a rating's noise from -NOISE..NOISE."""

THRESHOLDS = np.array([-29, 5, 51, 69])
"""Affinity plus noise at which the rating becomes 2, 3, 4 and 5. About 8 % of all pairs reach 4 with 8
tastes or 16, about 12 % with 32.
"""

RELEVANT = 4
"""Smallest rating that is positive feedback, and that a benchmark should count as relevant."""


START, PERIOD = 1_577_836_800_000_000, 30 * 86_400_000_000
"""Start of the loop (2020-01-01, since 1970) and length of a period (30 days), in microseconds."""

BLOCK_ROWS = 500_000
"""Draws that a worker holds at once: about 100 MB."""

PIECE_ROWS = 500_000
"""Rows in a piece: a second or two of work, against some 50 ms that a Python task costs."""

ATTRIBUTES = ("taste", "genre")
"""Attributes of a row: the user's taste and the item's genre."""

SIDES = {
    side: pa.schema({f"{side}_id": pa.string(), "vector": pa.list_(pa.float32()), "bias": pa.float64()})
    for side in ("user", "item")
}
"""Columns of true factors."""


def list_pieces(world: WorldSettings) -> list[range]:
    """List the log's pieces: users whose rows one task makes."""
    return cut_parts(range(world.users), 1 + (world.interactions + world.open_loop) // PIECE_ROWS)


def read_piece(piece: range, world: WorldSettings, loop: Loop) -> Batches:
    """Yield some users' rows in `INTERACTIONS`.

    `part` is NULL (closed loop) or 'open_loop'. The closed loop has `world.interactions` rows within about
    a per cent: a user gets an item once, so the draws are chosen to leave that many.

    Args:
        piece: one of `list_pieces`.
        world: the world.
        loop: its loop (`simulate_loop`).
    """
    items = np.arange(world.items)
    names, genres = name_items(items, world), item_genres(items, world)
    for users in _split_blocks(piece, world, loop):
        user_r, item_r, time_r, opened_r = _draw_rows(users, world, loop)
        taste_r = user_tastes(users, world)[user_r]
        columns = [
            name_users(users, world).take(pa.array(user_r)),
            names.take(pa.array(item_r)),
            pa.array(draw_ratings(users, user_r, item_r, world).astype(np.float64)),
            pa.array(time_r),
            pc.if_else(pa.array(opened_r), "open_loop", pa.scalar(None, pa.string())),
            _map_attributes(np.stack([taste_r, genres[item_r]], axis=1), world),
        ]
        yield from pa.Table.from_arrays(columns, schema=INTERACTIONS).to_batches(max_chunksize=1 << 16)


def open_rows(engine: Engine, world: WorldSettings) -> PieceRows:
    """Return the log, whose pieces tasks make (`read_piece`).

    A small job per period counts the feedback.
    """
    read = partial(_read_rows, world=world, loop=simulate_loop(world, run_pieces(engine)))
    return PieceRows(engine, list_pieces(world), read)


def _read_rows(
    pieces: Iterable[range], columns: Sequence[str], world: WorldSettings, loop: Loop
) -> Iterator[pa.Table]:
    for piece in pieces:
        yield pa.Table.from_batches(read_piece(piece, world, loop), INTERACTIONS).select(columns)


def read_factors(piece: range, world: WorldSettings, side: str) -> Batches:
    """Yield id, vector, bias of some users or items (`side`).

    Product plus biases is the exact affinity.
    """
    ids = np.arange(piece.start, piece.stop)
    if side == "user":
        names, factors, bias = name_users(ids, world), user_factors(ids, world), np.zeros(len(ids))
    else:
        names, factors = name_items(ids, world), item_factors(ids, world)
        bias = item_qualities(ids, world.seed).astype(np.float64)
    offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * factor_length(world))
    vectors = pa.ListArray.from_arrays(offsets, pa.array(factors.astype(np.float32).ravel()))
    yield pa.RecordBatch.from_arrays([names, vectors, pa.array(bias)], schema=SIDES[side])


def true_factors(engine: Engine, world: WorldSettings) -> tuple[Blocks, Blocks]:
    """Return true factors of users and items, which tasks make.

    See `read_factors`.
    """
    items = cut_parts(range(world.items), 1 + world.items // 100_000)

    def open_side(side: str, pieces: Sequence[range]) -> Blocks:
        read, names = partial(_read_sides, world=world, side=side), tuple(SIDES[side].names)
        return Blocks(engine.parallelize(pieces, len(pieces)), return_rows, names, read=read)

    return open_side("user", list_pieces(world)), open_side("item", items)


def _read_sides(pieces: Iterable[range], world: WorldSettings, side: str) -> Iterator[pa.Table]:
    for piece in pieces:
        yield pa.Table.from_batches(read_factors(piece, world, side))


def list_propensities(world: WorldSettings, by_taste: bool = False, run: Run = map) -> pa.Table:
    """Return (item_id, propensity[, taste]) under the closed loop.

    The propensity is P(the closed loop exposes the item to a user). The user is drawn uniformly from all
    users, or from those with each taste. The exposure weights come from the simulated loop; the result is
    computed in float64 from these integers.
    """
    counts_gl, chances_gli = simulate_loop(world, run).counts_gl, exposure_chances(world, run)
    expected_gi = np.stack([counts_gl[g] @ chances_gli[g] for g in range(world.tastes)])
    ids = name_items(np.arange(world.items), world)
    if not by_taste:
        return pa.table({"item_id": ids, "propensity": expected_gi.sum(axis=0) / counts_gl.sum()})
    tables = []
    for g in np.flatnonzero(counts_gl.sum(axis=1)):
        columns = {"item_id": ids, "propensity": expected_gi[g] / counts_gl[g].sum()}
        tables.append(pa.table({**columns, "taste": pa.repeat(f"taste{g}", world.items)}))
    return pa.concat_tables(tables)


def exposure_chances(world: WorldSettings, run: Run = map) -> Floats:
    """Return (g, l, i) P(exposure), by taste and level.

    P is the chance that the closed loop exposes an item to a user.
    """
    loop = simulate_loop(world, run)
    return 1 - np.stack([world_loop.survival(loop, g, len(loop.draws_tl)) for g in range(world.tastes)])


def simulate_loop(world: WorldSettings, run: Run = map) -> Loop:
    """Run the loop, period by period.

    A period chooses the draws and counts the feedback, piece by piece. A process keeps the loops of a few
    worlds. `run` gets at most 16 bytes for each good rating in a period.

    Raises:
        ConfigError: the world has too few users and items for its interactions.
    """
    held = _hold_loop(world)
    if not held:
        held.append(_simulate_loop(world, run))
    return held[0]


@lru_cache(maxsize=4)
def _hold_loop(world: WorldSettings) -> list[Loop]:
    """Return a world's loop, or an empty list for it."""
    return []


def _simulate_loop(world: WorldSettings, run: Run) -> Loop:
    counts = _count_cells(partial(_user_cells, world=world), world.tastes * LEVELS, world, run)
    feedback_gi = np.zeros((world.tastes, world.items), dtype=np.int64)
    draws, cumulative = np.zeros((0, LEVELS), np.int64), np.zeros((0, *feedback_gi.shape), np.int64)
    loop = Loop(draws, cumulative, counts.reshape(world.tastes, LEVELS))
    for t in range(world.periods):
        weights_gi = world_loop.exposure_weights(feedback_gi, world).cumsum(axis=1)
        loop = replace(loop, cumulative_tgi=np.concatenate([loop.cumulative_tgi, weights_gi[None]]))
        draws_l = world_loop.choose_draws(loop, world.interactions * (t + 1) // world.periods)
        loop = replace(loop, draws_tl=np.concatenate([loop.draws_tl, draws_l[None]]))
        if t + 1 < world.periods:
            cells = partial(_feedback_cells, t=t, world=world, loop=loop)
            feedback_gi += _count_cells(cells, feedback_gi.size, world, run).reshape(feedback_gi.shape)
    return loop


def _count_cells(cells: partial[Ints], size: int, world: WorldSettings, run: Run) -> Ints:
    """Count each cell 0..size-1 over all users."""
    counts = np.zeros(size, dtype=np.int64)
    for cell_c, n_c in run(partial(_count_piece, cells=cells, world=world), list_pieces(world)):
        counts[cell_c] += n_c
    return counts


def _count_piece(piece: range, cells: partial[Ints], world: WorldSettings) -> Any:
    blocks = _split_blocks(piece, world, cells.keywords.get("loop"))
    return np.unique(np.concatenate([cells(users) for users in blocks]), return_counts=True)


# --- users and items, computed from their numbers ---


def name_users(users: Ints, world: WorldSettings) -> pa.Array:
    """Return users' ids, which sort as text like their numbers."""
    return _make_names("u", users, max(6, len(str(world.users - 1))))


def name_items(items: Ints, world: WorldSettings) -> pa.Array:
    """Return items' ids, which sort as text like their numbers."""
    return _make_names("i", items, max(5, len(str(world.items - 1))))


def _make_names(letter: str, numbers: Ints, width: int) -> pa.Array:
    return pa.array([f"{letter}{n:0{width}d}" for n in numbers.tolist()], pa.string())


def user_tastes(users: Ints, world: WorldSettings) -> Ints:
    """Return each user's taste, 0..tastes-1."""
    return draw_below(world.tastes, world_loop.TASTE, users, seed=world.seed)


def activity_levels(users: Ints, seed: int) -> Ints:
    """Return each user's activity level, 0..LEVELS-1."""
    return draw_below(LEVELS, world_loop.LEVEL, users, seed=seed)


def item_genres(items: Ints, world: WorldSettings) -> Ints:
    """Return each item's genre, 0..tastes-1.

    Users with that taste like it best.
    """
    return draw_below(world.tastes, world_loop.GENRE, items, seed=world.seed)


def item_qualities(items: Ints, seed: int) -> Ints:
    """Return each item's quality: a bias for all users.

    The quality is added to the affinity.
    """
    return draw_below(2 * QUALITY + 1, world_loop.ITEM_QUALITY, items, seed=seed) - QUALITY


def factor_length(world: WorldSettings) -> int:
    """Return the length of factors.

    The length is such that different tastes differ in half of their signs: 12 for up to 8 tastes, where the
    last four repeat the first four; otherwise the next power of two.
    """
    return DIMS if world.tastes <= 8 else 1 << (world.tastes - 1).bit_length()


def user_factors(users: Ints, world: WorldSettings) -> Ints:
    """Return p_ud, whole numbers up to CENTRE + SPREAD."""
    return _make_factors(world_loop.USER_FACTOR, users, user_tastes(users, world), world)


def item_factors(items: Ints, world: WorldSettings) -> Ints:
    """Return q_id, whole numbers up to CENTRE + SPREAD."""
    return _make_factors(world_loop.ITEM_FACTOR, items, item_genres(items, world), world)


def _make_factors(purpose: int, ids: Ints, tastes: Ints, world: WorldSettings) -> Ints:
    """Draw factors around the taste's row in a Hadamard matrix.

    So tastes differ in half of the signs.
    """
    dims = np.arange(factor_length(world))
    common = np.bitwise_count(np.arange(world.tastes)[:, None] & dims[None, :]) % 2
    centre_gd = CENTRE * (1 - 2 * common.astype(np.int64))
    own = draw_below(2 * SPREAD + 1, purpose, ids[:, None], dims[None, :], seed=world.seed) - SPREAD
    factors: Ints = centre_gd[tastes] + own
    return factors


# --- rows of a block of users ---


def draw_closed_loop(users: Ints, world: WorldSettings, loop: Loop) -> tuple[Ints, Ints, Ints]:
    """Draw the closed loop's first exposures.

    The result has the user's position in `users`, item and time.
    """
    periods = [_draw_period(users, t, world, loop) for t in range(len(loop.draws_tl))]
    user_r, item_r, time_r = (np.concatenate(part) for part in zip(*periods, strict=True))
    # A user's draws are in order of time, and `unique` returns the first draw of each pair.
    _, first = np.unique(user_r * world.items + item_r, return_index=True)
    return user_r[first], item_r[first], time_r[first]


def _draw_period(users: Ints, t: int, world: WorldSettings, loop: Loop) -> tuple[Ints, Ints, Ints]:
    """Draw a period: user position, item, time; pairs may repeat."""
    draws_u = loop.draws_tl[t][activity_levels(users, world.seed)]
    user_r, slot_r = number_slots(draws_u)
    taste_r = user_tastes(users, world)[user_r]
    start_u = hash_keys(world_loop.EXPOSE, users, np.int64(t), seed=world.seed)
    draw_r = hash_longs(slot_r, start_u[user_r])
    # All tastes share one ascending array; each starts at the end of the one before.
    totals_g = loop.cumulative_tgi[t, :, -1]
    starts_g = np.cumsum(totals_g) - totals_g
    place_r = (draw_r % totals_g[taste_r].astype(np.uint64)).astype(np.int64) + starts_g[taste_r]
    flat = (loop.cumulative_tgi[t] + starts_g[:, None]).ravel()
    item_r = np.searchsorted(flat, place_r, side="right") - taste_r * world.items
    within_r = (hash_keys(world_loop.WHEN, draw_r, seed=world.seed) % np.uint64(PERIOD)).astype(np.int64)
    time_r = START + t * PERIOD + _spread_times(slot_r, within_r, draws_u[user_r])
    return user_r, item_r, time_r


def _spread_times(slot: Ints, within: Ints, slots: Ints) -> Ints:
    """Compute a slot's time.

    Slots in a period are equally long, and a draw has a place within its slot.
    """
    return slot * (PERIOD // slots) + within // slots


def draw_open_loop(users: Ints, seen_r: Ints, world: WorldSettings) -> tuple[Ints, Ints, Ints]:
    """Draw uniformly exposed items: user position, item and time.

    A user gets the first new items in an endless uniform sequence, which is a draw without replacement. If
    pairs are left out, the user gets half of the remaining items at most.

    Args:
        users: the users' numbers.
        seen_r: pairs to leave out, ascending: user position * items + item.
        world: the world, with the number of draws and of items.
    """
    share = world.open_loop * np.stack([users, users + 1]) // world.users
    unseen_u = world.items - np.bincount(seen_r // world.items, minlength=len(users))
    most_u = unseen_u // 2 if world.open_items == "unseen" else unseen_u
    wanted_u = np.minimum(share[1] - share[0], most_u)
    start_u = hash_keys(world_loop.OPEN, users, seed=world.seed)
    length_u = 2 * wanted_u
    while True:
        user_r, slot_r = number_slots(length_u)
        item_r = (hash_longs(slot_r, start_u[user_r]) % np.uint64(world.items)).astype(np.int64)
        pair_r = user_r * world.items + item_r
        _, first = np.unique(pair_r, return_index=True)
        place_f = np.searchsorted(seen_r, pair_r[first])  # of the end of `seen_r`: no pair, -1
        fresh = np.sort(first[np.append(seen_r, -1)[place_f] != pair_r[first]])
        fresh_u = np.bincount(user_r[fresh], minlength=len(users))
        if (fresh_u >= wanted_u).all():
            break
        length_u = np.where(fresh_u < wanted_u, 2 * length_u, length_u)
    place_r = np.arange(len(fresh)) - np.repeat(np.cumsum(fresh_u) - fresh_u, fresh_u)
    chosen = fresh[place_r < wanted_u[user_r[fresh]]]
    user_r, slot_r = number_slots(wanted_u)
    within = draw_below(PERIOD, world_loop.WHEN, users[user_r], slot_r, seed=world.seed)
    time_r = START + world.periods * PERIOD + _spread_times(slot_r, within, wanted_u[user_r])
    return user_r, item_r[chosen], time_r


def draw_ratings(users: Ints, user_r: Ints, item_r: Ints, world: WorldSettings) -> Ints:
    """Return each row's rating 1..5.

    Affinity and noise are compared with the thresholds.
    """
    all_items = np.arange(world.items)
    p_ud = user_factors(users, world).astype(np.int32)
    q_id = item_factors(all_items, world).astype(np.int32)
    affinity_r = np.einsum("rd,rd->r", p_ud[user_r], q_id[item_r])
    affinity_r = affinity_r + item_qualities(all_items, world.seed)[item_r]
    start_u = hash_keys(world_loop.RATING_NOISE, users, seed=world.seed)
    noise_r = hash_longs(item_r, start_u[user_r]) % np.uint64(2 * NOISE + 1)
    felt_r = affinity_r + noise_r.astype(np.int64) - NOISE
    ratings: Ints = 1 + np.searchsorted(THRESHOLDS, felt_r, side="right")
    return ratings


# --- pieces ---


def _draw_rows(users: Ints, world: WorldSettings, loop: Loop) -> tuple[Ints, Ints, Ints, Bools]:
    """Draw both loops: user position, item, time, and whether open."""
    closed = draw_closed_loop(users, world, loop)
    seen_r = closed[0] * world.items + closed[1]
    opened = draw_open_loop(users, seen_r if world.open_items == "unseen" else seen_r[:0], world)
    user_r, item_r, time_r = (np.concatenate(pair) for pair in zip(closed, opened, strict=True))
    return user_r, item_r, time_r, np.arange(len(user_r)) >= len(closed[0])


def _map_attributes(class_ra: Ints, world: WorldSettings) -> pa.MapArray:
    """Return each row's classes as a map.

    The keys are ATTRIBUTES. `class_ra`, (r, 2), holds the class number for each.
    """
    names = pa.array([f"{key}{g}" for key in ATTRIBUTES for g in range(world.tastes)])
    values = names.take(pa.array((class_ra + np.array([0, world.tastes])).ravel()))
    keys = pa.array(ATTRIBUTES).take(pa.array(np.tile([0, 1], len(class_ra))))
    return pa.MapArray.from_arrays(pa.array(2 * np.arange(len(class_ra) + 1), pa.int32()), keys, values)


def _user_cells(users: Ints, world: WorldSettings) -> Ints:
    return user_tastes(users, world) * LEVELS + activity_levels(users, world.seed)


def _feedback_cells(users: Ints, t: int, world: WorldSettings, loop: Loop) -> Ints:
    """Return cells, taste * items + item, for good ratings.

    The ratings are those in period `t`. A repeated exposure counts again.
    """
    user_r, item_r, _ = _draw_period(users, t, world, loop)
    good = draw_ratings(users, user_r, item_r, world) >= RELEVANT
    return user_tastes(users, world)[user_r[good]] * world.items + item_r[good]


def _split_blocks(piece: range, world: WorldSettings, loop: Loop | None) -> Iterator[Ints]:
    """Split a piece's users into blocks of about BLOCK_ROWS draws."""
    users = np.arange(piece.start, piece.stop)
    rows_u = np.full(len(users), 1 + 2 * world.open_loop // world.users)
    if loop is not None:
        rows_u += loop.draws_tl.sum(axis=0)[activity_levels(users, world.seed)]
    yield from np.split(users, np.flatnonzero(np.diff(np.cumsum(rows_u) // BLOCK_ROWS)) + 1)
