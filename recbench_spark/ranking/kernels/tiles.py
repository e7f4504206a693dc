"""One tile, users x items, of whole-number products: masked and compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.instructions import LANES, ROWS
from recbench_spark.ranking.kernels.moments import TileChanges, UserMoments, hide_absent
from recbench_spark.ranking.kernels.positives import HiddenPlaces, Positives, Tally
from recbench_spark.ranking.kernels.products import Pairing, exact_score, exact_scores
from recbench_spark.ranking.kernels.top import TopCandidates, collect
from recbench_spark.ranking.kernels.word_loops import Whole, fetch, multiply, scan
from recbench_spark.ranking.kernels.words import WordRows, WordTile, fit_rows, limits

_PAIRS = 4096  # undecided pairs stored before they are settled
_AHEAD = 8  # pairs whose items are fetched
_FAST = 2.0**-50  # of (dims + 4) (|u| |w| + |b|): float64 sums in any order


class FloatTile(NamedTuple):
    """A tile's first item, largest length and largest |bias|."""

    start: int
    length: float
    bias: float


class OpenPairs(NamedTuple):
    """Undecided pairs in a tile, and the exact scores at its places.

    `slots`, `places`: the pairs; `user_t`, `score_t`: whose score a place has last had.
    """

    slots: Ints
    places: Ints32
    user_t: Ints
    score_t: Floats


def make_open_pairs(width: int) -> OpenPairs:
    """Return room for a tile's row and some pairs more."""
    room = width + _PAIRS + LANES
    return OpenPairs(
        np.empty(room, np.int64), np.empty(room, np.int32), np.empty(width, np.int64), np.empty(width)
    )


@compile_kernel
def count_tile(
    found_rt: Whole,
    users_u: Ints,
    tile: WordTile,
    sides: WordRows,
    known: tuple[Pairing, Positives, Floats],
    hidden: tuple[HiddenPlaces, Ints, UserMoments, TileChanges],
    limits_: tuple[int, int],
    progress: tuple[Tally, TopCandidates, OpenPairs],
) -> None:
    """Count one tile of items for all users, some at a time.

    Args:
        found_rt: room for the products, int16 or int32 (users at a time, padded items).
        users_u: the users.
        tile: the items.
        sides: the users as whole numbers, with `found_rt`'s rows more.
        known: vectors, lists and positives' scores.
        hidden: places of masked items and of positives, users' moments, the items' changes.
        limits_: cut-off and length of lists.
        progress: counts, lists and room for undecided pairs.
    """
    (pairing, plan, _), (masked, place_s, moments, changes) = known, hidden
    (cutoff, top_k), (tally, work, open_pairs) = limits_, progress
    size, start, items_t = tile.size, tile.start, tile.items_t
    most = 2**15 - 1 if found_rt.itemsize == 2 else 2**31 - 1
    for at in range(0, len(users_u), len(found_rt)):
        users_r = users_u[at : at + len(found_rt)]
        end = at + -(-len(users_r) // ROWS) * ROWS
        part = WordRows(sides.rows[at:end], sides.scale[at:end], sides.error[at:end])
        multiply(tile.packed, part.rows, size.bits, found_rt[: end - at])
        fits = fit_rows(found_rt, users_r, pairing.length_u, part, size, tile.bias_t)
        _hide_masked(found_rt, users_r, start, len(items_t), masked, -most - 1, open_pairs.places)
        hide_absent(found_rt, users_r, moments, changes, -most - 1)
        if top_k > 0:
            collect(found_rt, users_r, items_t, fits, (most, top_k), pairing, work, open_pairs.places)
        _hide_positives(found_rt, users_r, start, len(items_t), plan.slot_offsets, place_s, -most - 1)
        _count_rows(found_rt, users_r, items_t, fits, (most, cutoff), known, tally, open_pairs)


@compile_kernel
def _hide_masked(
    found_rt: Whole, users_r: Ints, start: int, items: int, hidden: HiddenPlaces, never: int, rows_n: Ints32
) -> None:
    """Set products of masked items and of padding below all others."""
    blocks_u, places = hidden
    for r in range(len(users_r)):
        for b in range(blocks_u[users_r[r]], blocks_u[users_r[r] + 1]):
            _, end = scan(places, b, start, start + items, rows_n, 0)
            for n in range(end):
                found_rt[r, places[b, rows_n[n]] - start] = never
        for t in range(items, found_rt.shape[1]):
            found_rt[r, t] = never


@compile_kernel
def _hide_positives(
    found_rt: Whole, users_r: Ints, start: int, items: int, offsets: Ints, place_s: Ints, never: int
) -> None:
    """Set products of positives below all others."""
    for r in range(len(users_r)):
        for s in range(offsets[users_r[r]], offsets[users_r[r] + 1]):
            place = place_s[s] - start
            if 0 <= place < items:
                found_rt[r, place] = never


@compile_kernel
def _count_rows(
    found_rt: Whole,
    users_r: Ints,
    items_t: Ints,
    fits: Floats,
    limits_: tuple[int, int],
    known: tuple[Pairing, Positives, Floats],
    tally: Tally,
    open_pairs: OpenPairs,
) -> None:
    """Compare products with each positive; settle undecided pairs."""
    (most, cutoff), (pairing, plan, scores_s) = limits_, known
    offsets, above_s, slots, places = plan.slot_offsets, tally.above, open_pairs.slots, open_pairs.places
    open_pairs.user_t[:] = -1
    end = 0
    for r in range(len(users_r)):
        for s in range(offsets[users_r[r]], offsets[users_r[r] + 1]):
            if above_s[s] >= cutoff:
                continue
            low, high = limits(scores_s[s], fits[r], most)
            above, stop = scan(found_rt, r, low, high, places, end)
            above_s[s] += above
            for n in range(end, stop):
                slots[n] = s
            end = stop
            if end > _PAIRS:
                _settle(end, open_pairs, items_t, pairing, plan, scores_s, tally)
                end = 0
    _settle(end, open_pairs, items_t, pairing, plan, scores_s, tally)


def _sum_products(vectors_ud: Floats32, u: int, vectors_id: Floats32, i: int) -> float:
    """Return the dot product in float64, added in any order."""
    total = 0.0
    for d in range(vectors_ud.shape[1]):
        total += np.float64(vectors_ud[u, d]) * np.float64(vectors_id[i, d])
    return total


_fast_sum = compile_kernel(_sum_products, fastmath={"reassoc", "contract"})


@compile_kernel
def _settle(
    count: int,
    open_pairs: OpenPairs,
    items_t: Ints,
    pairing: Pairing,
    plan: Positives,
    scores_s: Floats,
    tally: Tally,
) -> None:
    """Score undecided pairs in float64 and count them."""
    vectors_ud, length_u, vectors_id, length_i, divisor_i, bias_i, _ = pairing
    (slots, places, user_t, score_t), slot_users = open_pairs, plan.slot_users
    above_s, near = tally.above, _FAST * (vectors_ud.shape[1] + 4)
    for n in range(count):
        s, t = slots[n], places[n]
        fetch(vectors_id, items_t[places[min(n + _AHEAD, count - 1)]])
        u, score, item = slot_users[s], scores_s[s], items_t[t]
        if user_t[t] != u:
            bias = bias_i[item]
            rough = _fast_sum(vectors_ud, u, vectors_id, item) / divisor_i[item] + bias
            if abs(rough - score) > near * (length_u[u] * length_i[item] + abs(bias)):
                above_s[s] += rough > score
                continue
            user_t[t], score_t[t] = u, exact_score(pairing, u, item)
        above_s[s] += score_t[t] > score
        tally.tied[s] += score_t[t] == score
        tally.before[s] += score_t[t] == score and item < plan.slot_items[s]


@compile_kernel
def count_pairs(
    slots_c: Ints, items_c: Ints, pairing: Pairing, plan: Positives, scores_s: Floats, tally: Tally
) -> None:
    """Score and count (slot, item) pairs left undecided by devices.

    Scores are float64.
    """
    scores_c = exact_scores(pairing, plan.slot_users[slots_c], items_c)
    for c in range(len(slots_c)):
        s = slots_c[c]
        tally.above[s] += scores_c[c] > scores_s[s]
        tally.tied[s] += scores_c[c] == scores_s[s]
        tally.before[s] += scores_c[c] == scores_s[s] and items_c[c] < plan.slot_items[s]
