"""Ranks up to a cut-off, by 8-bit products and bounds.

Whole-number products decide almost all pairs, and bounds skip tiles.

If K candidates beat a positive, its exact rank is not needed, so few comparisons have to be exact. Items
are in tiles by falling length. Users and the items in a tile are rounded to 8-bit whole numbers,

    u = a q_u + e_u        w_i = c q_i + e_i        w_i = v_i / n_i

whose product q_u'q_i is exact in 32 bits, on any hardware. With P = q_u'q_i + round(b_i / (a c)),

    |s - a c P| <= |e_u| |w_i| + |a q_u| |e_i| + a c / 2 <= |e_u| L + (|u| + |e_u|) e + a c / 2 = E

where L and e are the tile's largest |w_i| and |e_i| (triangle and Cauchy-Schwarz inequalities; the errors
are measured, not assumed). P decides where it differs from s_p / (a c) by more than E / (a c); the rest is
scored in float32 with the bound in `products.error_bound`, and what this leaves open in float64 by the
score's definition. A user is done if all open positives have s_p > |u| L + B, with B the largest bias from
this tile on.

Products are made and compared in registers by the processor's family (`families`): only those that reach a
user's lowest limit are written. A family gets whole numbers and returns whole numbers, so its kind changes
no count.

Source: items by length as in C. Teflioudi, R. Gemulla, O. Mykytiuk 2015, "LEMP: fast retrieval of large
entries in a matrix product" (length-based pruning); whole numbers bounding a product as in H. Li et al.
2017, "FEXIPRO: fast and exact inner product retrieval" (integer upper bound).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.counting import CountingSettings, PreparedBlock
from recbench_spark.ranking.kernels.families import (
    Batch,
    KernelFamily,
    Reached,
    choose_family,
    make_reached,
    run_family,
)
from recbench_spark.ranking.kernels.instructions import LANES
from recbench_spark.ranking.kernels.moments import TileChanges, UserMoments, hide_reached, order_users
from recbench_spark.ranking.kernels.positives import HiddenPlaces, Positives, Tally, list_hidden
from recbench_spark.ranking.kernels.products import Pairing, error_bound, exact_score
from recbench_spark.ranking.kernels.rounding import (
    ItemTile,
    RoundedItems,
    RoundedUsers,
    round_items,
    round_users,
)
from recbench_spark.ranking.kernels.word_loops import BLOCK, scan

USER_TILE = 192
"""Users multiplied by a tile of items at once: their numbers stay in the first-level cache."""

_TOGETHER = 1 << 14  # users whose vectors are rounded at once
_MOST_DIMS = 2**15  # products of unsigned items stay below 2^30, with the same room for the bias
_MOST_BIAS = 2.0**30 - 2.0
_TRACKED = 16  # open users from which a tile keeps which items are candidates; others look them up
_PAYS = 2**16  # item coordinates per positive from which reduced products are faster
_HIDDEN, _NEVER = np.int32(-(2**31)), np.int32(2**31 - 1)  # below each limit; a limit above each product
_ROUNDING = 2.0**-20  # of |u| L + |b|: float32 rounding of w_i and biases, float64 roundings
TINY = 2.0**-1000


def applies(prepared: PreparedBlock, settings: CountingSettings) -> bool:
    """Tell whether ranks are counted here.

    They are, up to a cut-off and without lists, if it is possible and faster. It is faster if a user's
    positives, each compared with some hundred items, cost less than the product saves: measured from 3,706
    items and 17 positives (no) to 100,000 items and 5 (yes).
    """
    if not settings.may_reduce or not fits(prepared):
        return False
    numbers = len(prepared.products.order.items_t) * prepared.products.dims * len(prepared.pairing.length_u)
    positives = 0 if settings.reduced else len(prepared.plan.slot_items)
    if numbers < _PAYS * positives:
        return False
    family = choose_family()
    return family is not None and numbers >= family.pays * positives


def fits(prepared: PreparedBlock) -> bool:
    """Tell whether vectors are neither empty nor too long."""
    return 0 < prepared.products.dims <= _MOST_DIMS


# --------------------------------------------------------------------------------------- a batch of rows


class Users(NamedTuple):
    """A block's vectors, as they are and rounded, lists, positives' scores, cut-off.

    `row_u`: each user's row in `rounded`. `place_i` int32: each item's place. `moments`: users' moments,
    and items' periods.
    """

    pairing: Pairing
    rounded: RoundedUsers
    row_u: Ints
    plan: Positives
    hidden: HiddenPlaces
    place_i: Ints32
    scores_s: Floats
    cutoff: int
    moments: UserMoments


class Work(NamedTuple):
    """Room for one batch of users, and for undecided pairs.

    `users_r`: the batch's users; `ends_r`: the end of each row's open positives in `slots_n`, `low_n`,
    `high_n`, their limits. `near_ends_r`: the end of each row's undecided items in `near_c`, their
    products, `items_c`, and `score_c`, their scores, exact where `exact_c`. `marks_c` marks them among a
    row's products, `flags_t` a user's own items among all; `hits_n`: where a search found some.
    """

    batch: Batch
    reached: Reached
    users_r: Ints
    ends_r: Ints
    near_ends_r: Ints
    slots_n: Ints
    low_n: Ints32
    high_n: Ints32
    marks_c: Bools
    flags_t: Bools
    hits_n: Ints32
    near_c: Ints32
    items_c: Ints32
    score_c: Floats
    exact_c: Bools


@compile_kernel
def _scale_and_bound(own: float, error: float, scale: float, tile: ItemTile) -> tuple[float, float]:
    """Return a c and E from the module's equation.

    E is infinite if whole numbers cannot hold the bias.
    """
    scale *= tile.scale
    if scale == 0.0:  # all products are 0, on any scale
        scale = max(tile.bias / _MOST_BIAS, TINY)
    if tile.bias / scale > _MOST_BIAS:
        return 1.0, np.inf
    bound = error * tile.length + (own + error) * tile.error + scale / 2
    return scale, bound + _ROUNDING * (own * tile.length + tile.bias)


@compile_kernel
def _reach(own: float, length: float, bias: float) -> float:
    """Return the highest score with this item length and bias."""
    return own * length + bias + _ROUNDING * (own * length + abs(bias))


@compile_kernel
def _whole(limit: float) -> np.int32:
    return np.int32(min(max(limit, np.float64(_HIDDEN) + 1.0), np.float64(_NEVER)))


@compile_kernel
def _open_rows(
    users_u: Ints, at: int, tile: ItemTile, users: Users, above_s: Ints, work: Work
) -> tuple[int, int]:
    """Fill a batch with users whom the tile may push down.

    Returns the next user's place, and the batch's rows.
    """
    offsets, scores_s, cutoff, row_u = users.plan.slot_offsets, users.scores_s, users.cutoff, users.row_u
    slots_n, ends_r, users_r, length_k = work.slots_n, work.ends_r, work.users_r, users.rounded.length
    length, bias, row, n = tile.length, tile.reach, 0, 0
    while at < len(users_u) and row < len(users_r):
        u, begin = users_u[at], n
        reach = _reach(length_k[row_u[u]], length, bias)
        for s in range(offsets[u], offsets[u + 1]):
            if above_s[s] < cutoff and scores_s[s] <= reach:
                slots_n[n] = s
                n += 1
        if n > begin:
            ends_r[row], users_r[row] = n, u
            row += 1
        at += 1
    return at, row


@compile_kernel
def _limit_rows(rows: int, tile: ItemTile, users: Users, work: Work) -> None:
    """Write a batch's numbers and limits, rounded outward.

    Products from `high` on are certainly above the score, those below `low` below it.
    """
    rounded, scores_s, row_u = users.rounded, users.scores_s, users.row_u
    rows_kd, scale_k, error_k, length_k, shift_k = rounded
    rows_rd, ones, lows = work.batch
    slots_n, low_n, high_n = work.slots_n, work.low_n, work.high_n
    ends_r, users_r, begin = work.ends_r, work.users_r, 0
    for row in range(rows):
        k, lowest = row_u[users_r[row]], _NEVER
        scale, bound = _scale_and_bound(length_k[k], error_k[k], scale_k[k], tile)
        one, shift, sure = 1.0 / scale, shift_k[k], bound < np.inf  # a whole unit covers the roundings
        for n in range(begin, ends_r[row]):
            score = scores_s[slots_n[n]]
            low_n[n], high_n[n] = _HIDDEN + 1, _NEVER
            if sure:
                low_n[n] = _whole(np.floor((score - bound) * one) - 1.0 + shift)
                high_n[n] = _whole(np.floor((score + bound) * one) + 2.0 + shift)
            lowest = min(lowest, low_n[n])
        for d in range(rows_rd.shape[1]):
            rows_rd[row, d] = rows_kd[k, d]
        ones[row] = np.float32(tile.bias * one) if sure else np.float32(0.0)
        lows[row], begin = lowest, ends_r[row]
    for row in range(rows, len(lows)):
        lows[row] = _NEVER


@compile_kernel
def _hide_items(rows: int, tile: ItemTile, users: Users, work: Work) -> None:
    """Hide products with users' masked items and positives."""
    (places, values, counts), users_r = work.reached, work.users_r
    (blocks_u, hidden), place_i, flags_t = users.hidden, users.place_i, work.flags_t
    slot_offsets, slot_items = users.plan.slot_offsets, users.plan.slot_items
    start, size, hits_n = tile.start, len(tile.items_t), work.hits_n
    for row in range(rows):
        u = users_r[row]
        while counts[row] > 0 and places[row, counts[row] - 1] >= size:  # padding
            counts[row] -= 1
        count = counts[row]
        if count == 0:
            continue
        for flag in (True, False):
            for b in range(blocks_u[u], blocks_u[u + 1]):
                _, end = scan(hidden, b, start, start + size, hits_n, 0)
                for n in range(end):
                    flags_t[hidden[b, hits_n[n]]] = flag
            for n in range(slot_offsets[u], slot_offsets[u + 1]):
                flags_t[place_i[slot_items[n]]] = flag
            if flag:
                for c in range(count):
                    values[row, c] = _HIDDEN if flags_t[start + places[row, c]] else values[row, c]


@compile_kernel
def _count_certain(rows: int, cutoff: int, above_s: Ints, work: Work) -> None:
    """Count products that are certainly above a positive.

    Positives that stay undecided, and open, move to the front.
    """
    values, counts = work.reached.values, work.reached.counts
    slots_n, low_n, high_n, ends_r = work.slots_n, work.low_n, work.high_n, work.ends_r
    begin, left = 0, 0
    for row in range(rows):
        count, end = counts[row], ends_r[row]
        for n in range(begin, end if count else begin):
            low, high, s = low_n[n], high_n[n], slots_n[n]
            some, certain = np.int32(0), np.int32(0)
            for c in range(count):
                value = values[row, c]
                some, certain = np.int32(some + (value >= low)), np.int32(certain + (value >= high))
            above_s[s] += certain
            if above_s[s] < cutoff and some > certain:
                slots_n[left], low_n[left], high_n[left] = s, low, high
                left += 1
        begin, ends_r[row] = end, left


@compile_kernel
def _find_undecided(rows: int, items_t: Ints32, work: Work) -> None:
    """Write each row's items that a positive leaves undecided."""
    places, values, counts = work.reached.places, work.reached.values, work.reached.counts
    low_n, high_n, ends_r, marks_c = work.low_n, work.high_n, work.ends_r, work.marks_c
    near_c, items_c, near_ends_r = work.near_c, work.items_c, work.near_ends_r
    begin, at = 0, np.uint64(0)
    for row in range(rows):
        count, end = counts[row], ends_r[row]
        for n in range(begin, end):
            low, high = low_n[n], high_n[n]
            if n == begin:
                for c in range(count):
                    marks_c[c] = (values[row, c] >= low) & (values[row, c] < high)
            else:
                for c in range(count):
                    marks_c[c] |= (values[row, c] >= low) & (values[row, c] < high)
        for c in range(count if begin < end else 0):
            near_c[at], items_c[at] = values[row, c], items_t[places[row, c]]
            at += np.uint64(marks_c[c])
        counts[row], near_ends_r[row], begin = 0, np.int64(at), end


def _score_in_any_order(rows: int, plain: bool, pairing: Pairing, work: Work) -> None:
    """Score undecided items in float32."""
    vectors_ud, vectors_id = pairing.vectors_ud, pairing.vectors_id
    divisor_i, bias_i, dims = pairing.divisor_i, pairing.bias_i, pairing.vectors_ud.shape[1]
    items_c, score_c, exact_c, users_r = work.items_c, work.score_c, work.exact_c, work.users_r
    begin = 0
    for row in range(rows):
        u, end = users_r[row], work.near_ends_r[row]
        for c in range(begin, end):
            i, total = np.int64(items_c[c]), np.float32(0.0)
            for d in range(dims):
                total += vectors_ud[u, d] * vectors_id[i, d]
            score_c[c], exact_c[c] = total, False
            if not plain:
                score_c[c] = score_c[c] / divisor_i[i] + bias_i[i]
        begin = end


_score_roughly = compile_kernel(_score_in_any_order, fastmath={"reassoc", "contract"})


@compile_kernel
def _rough_bound(own: float, tile: ItemTile, dims: int) -> float:
    """Return the bound of a score in float32, for all items of the tile.

    The sum is not divided by |v_i| yet, so it may lose more with the shortest, and overflow with the
    longest vector.
    """
    short, long = tile.shortest, tile.longest
    return max(
        error_bound(own, tile.length * short, tile.bias * short, dims) / short,
        error_bound(own, tile.length * long, tile.bias * long, dims) / long,
    )


@compile_kernel
def _decide(rows: int, tile: ItemTile, users: Users, tally: Tally, work: Work) -> None:
    """Count undecided pairs, in float64 where float32 is too near."""
    scores_s, above_s, length_u, users_r = users.scores_s, tally.above, users.pairing.length_u, work.users_r
    near_c, score_c, dims = work.near_c, work.score_c, users.pairing.vectors_ud.shape[1]
    slots_n, low_n, high_n = work.slots_n, work.low_n, work.high_n
    ends_r, near_ends_r, begin, first = work.ends_r, work.near_ends_r, 0, 0
    for row in range(rows):
        end, last = ends_r[row], near_ends_r[row]
        bound = _rough_bound(length_u[users_r[row]], tile, dims) if begin < end else 0.0
        for n in range(begin, end):
            low, high, score = low_n[n], high_n[n], scores_s[slots_n[n]]
            above, open_ = np.int32(0), np.int32(0)
            for c in range(first, last):
                inside = (near_c[c] >= low) & (near_c[c] < high)
                above = np.int32(above + (inside & (score_c[c] - score > bound)))
                open_ = np.int32(open_ + (inside & (not abs(score_c[c] - score) > bound)))
            above_s[slots_n[n]] += above
            if open_:
                _decide_exactly(n, users_r[row], (first, last), bound, users, tally, work)
        begin, first = end, last


@compile_kernel
def _decide_exactly(
    n: int, u: int, pairs: tuple[int, int], bound: float, users: Users, tally: Tally, work: Work
) -> None:
    """Score a positive's near pairs in float64, each once for all."""
    low, high, s = work.low_n[n], work.high_n[n], work.slots_n[n]
    near_c, items_c, score_c, exact_c = work.near_c, work.items_c, work.score_c, work.exact_c
    score, own = users.scores_s[s], users.plan.slot_items[s]
    for c in range(*pairs):
        if tally.above[s] >= users.cutoff:
            break
        if near_c[c] < low or near_c[c] >= high or abs(score_c[c] - score) > bound:
            continue
        if not exact_c[c]:
            score_c[c], exact_c[c] = exact_score(users.pairing, u, int(items_c[c])), True
        tally.above[s] += score_c[c] > score
        tally.tied[s] += score_c[c] == score
        tally.before[s] += score_c[c] == score and items_c[c] < own


# --------------------------------------------------------------------------------------------- all tiles


@compile_kernel
def _count_tile(
    family: tuple[int, int],
    users_u: Ints,
    tile: ItemTile,
    users: Users,
    there: TileChanges,
    tally: Tally,
    work: Work,
) -> int:
    """Count one tile, batch by batch; move open users to the front.

    Returns how many there are.

    Args:
        family: the address of its code, and the multiple of rows that it takes.
        users_u: users to count.
        tile: items to multiply.
        users: their vectors, lists and scores.
        there: which items are candidates.
        tally: where counts are added.
        work: room for one batch.
    """
    kept, at = 0, 0
    plain = tile.bias == 0.0 and tile.shortest == 1.0 and tile.longest == 1.0
    while at < len(users_u):
        at, rows = _open_rows(users_u, at, tile, users, tally.above, work)
        for row in range(rows):
            users_u[kept + row] = work.users_r[row]
        kept += rows
        if rows:
            _limit_rows(rows, tile, users, work)
            padded = -(-rows // family[1]) * family[1]
            batch = Batch(work.batch.rows[:padded], work.batch.ones[:padded], work.batch.lows[:padded])
            run_family(family[0], tile.packed, tile.shares, batch, work.reached)
            _hide_items(rows, tile, users, work)
            hide_reached(
                work.reached, work.users_r[:rows], tile.items_t, users.moments, there, int(_HIDDEN)
            )
            _count_certain(rows, users.cutoff, tally.above, work)
            _find_undecided(rows, tile.items_t, work)
            _score_roughly(rows, plain, users.pairing, work)
            _decide(rows, tile, users, tally, work)
    return kept


def count_products(prepared: PreparedBlock, settings: CountingSettings) -> None:
    """Count all tiles on the CPU into `prepared.tally`.

    Positives below the cut-off are counted only that far.
    """
    family, items = choose_family(), round_items(prepared.products, settings.item_tile)
    assert family is not None
    model = items, list_hidden(prepared.plan, items.place_i), family
    every_u = order_users(np.arange(len(prepared.pairing.length_u)), prepared.moments)
    parts = np.array_split(every_u, max(1, settings.threads))
    if len(parts) == 1:
        _count_users(every_u, prepared, settings, model)
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        for done in [pool.submit(_count_users, part, prepared, settings, model) for part in parts]:
            done.result()


def _count_users(
    users_u: Ints,
    prepared: PreparedBlock,
    settings: CountingSettings,
    model: tuple[RoundedItems, HiddenPlaces, KernelFamily],
) -> None:
    """Count tiles: outer loop over items, inner one over users.

    Tiles of items come by falling length; only tiles with open users are counted.
    """
    (items, hidden, family), (products, pairing, plan, scores_s, tally, moments) = model, prepared
    assert settings.cutoff is not None
    code = family.compile(), family.rows
    work = _make_work(plan, settings.user_tile or USER_TILE, family.rows, items)
    row_u = np.zeros(len(pairing.length_u), np.int64)
    changes = moments.deal(products, items.cuts)
    for start in range(0, len(users_u), _TOGETHER):
        open_u = users_u[start : start + _TOGETHER].copy()
        row_u[open_u] = np.arange(len(open_u))
        rounded = round_users(
            pairing.vectors_ud, pairing.length_u, open_u, work.batch.rows.shape[1], family.levels
        )
        users = Users(
            pairing, rounded, row_u, plan, hidden, items.place_i, scores_s, settings.cutoff, moments
        )
        for number, tile in enumerate(items):
            width = len(tile.items_t) if len(open_u) >= _TRACKED else 0
            there = changes.open(number, width, np.int16)
            kept = _count_tile(code, open_u, tile, users, there, tally, work)
            open_u = open_u[:kept]
            if not kept:
                break


def _make_work(plan: Positives, rows: int, multiple: int, items: RoundedItems) -> Work:
    padded, width = -(-rows // multiple) * multiple, items.width
    batch = Batch(
        np.zeros((padded, width), np.int8), np.zeros(padded, np.float32), np.empty(padded, np.int32)
    )
    most = rows * int(np.diff(plan.slot_offsets).max(initial=0))
    pairs, places = rows * items.largest + 1, len(items.products.order.items_t)
    return Work(
        batch,
        make_reached(padded, items.largest),
        users_r=np.empty(rows, np.int64),
        ends_r=np.empty(rows, np.int64),
        near_ends_r=np.empty(rows, np.int64),
        slots_n=np.empty(most + 1, np.int64),
        low_n=np.empty(most + 1, np.int32),
        high_n=np.empty(most + 1, np.int32),
        marks_c=np.empty(items.largest, np.bool_),
        flags_t=np.zeros(places + 1, np.bool_),  # the last one is for items without a place, -1
        hits_n=np.empty(BLOCK + LANES, np.int32),
        near_c=np.empty(pairs, np.int32),
        items_c=np.empty(pairs, np.int32),
        score_c=np.empty(pairs),
        exact_c=np.empty(pairs, np.bool_),
    )
