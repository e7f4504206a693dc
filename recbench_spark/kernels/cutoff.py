"""Ranks up to a cut-off K: whole-number products decide almost everything, bounds leave tiles out.

A positive that K candidates beat is of no further interest, so few comparisons have to be exact.
Items go in tiles by falling length. Users and items of a tile are rounded to 8-bit whole numbers,

    u = a q_u + e_u        w_i = c q_i + e_i        w_i = v_i / n_i

whose product q_u'q_i is exact in 32 bits, on any hardware. With P = q_u'q_i + round(b_i / (a c)),

    |s - a c P| <= |e_u| |w_i| + |a q_u| |e_i| + a c / 2 <= |e_u| L + (|u| + |e_u|) e + a c / 2 = E

where L and e are the largest |w_i| and |e_i| of the tile (triangle and Cauchy-Schwarz inequalities;
the errors are measured, not assumed). Then P decides where it differs by more than E / (a c) from
s_p / (a c), and the rest is scored in float64 by the function that defines the score. A user all of
whose open positives have s_p > |u| L + B, with B the largest bias from this tile on, is multiplied no more.

Source: bounds on lengths as in C. Teflioudi, R. Gemulla, O. Mykytiuk 2015, "LEMP: fast retrieval of
large entries in a matrix product", section 3; whole-number products with a bound on what rounding
hides as in H. Li et al. 2017, "FEXIPRO: fast and exact inner product retrieval", section 4.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.kernels import counting
from recbench_spark.kernels.counting import (
    Flags,
    Floats,
    Floats32,
    Ints,
    Order,
    Pairing,
    Plan,
    Prepared,
    Settings,
    Tally,
    compiled,
)

Bytes = npt.NDArray[np.int8]
Whole = npt.NDArray[np.int32]

USER_TILE, ITEM_TILE = 128, 4096
"""Products of one tile: 2 MB; the fastest of those tried, at 20,000 and at 100,000 items."""

_BLOCK = 64  # products looked at together
_ROOM = 512  # undecided pairs of a user that are put off
_LEVELS = 127
_MOST_DIMS = 2**30 // _LEVELS**2  # products stay below 2^30, and leave as much for the bias
_MOST_BIAS = 2.0**30 - 2.0
_NEVER, _ALWAYS = np.int32(-(2**31)), np.int32(2**31 - 1)  # below, above every product
_ROUNDING = 2.0**-20  # of |u| L + |b|: float32 rounding of w_i, float64 roundings of score and bounds
_TINY = 2.0**-1000
_FAST = 2.0**-50  # of (dims + 4) (|u| |w| + |b|): float64 sums in any order


class Side(NamedTuple):
    """Rows rounded to whole numbers; of users each has a scale and error, of a tile of items there is one.

    `rows` int8 (n, dims); `scale` a (n,) or c (1,); `error` |e|, of a tile the largest; `length` |u|,
    or the largest |w| of the tile.
    """

    rows: Bytes
    scale: Floats
    error: Floats
    length: Floats


def applies(prepared: Prepared, settings: Settings) -> bool:
    """Whether ranks are counted here: up to a cut-off, without lists, on hardware that can."""
    wanted = settings.reduced and settings.cutoff is not None and not settings.top_k
    return wanted and 0 < prepared.products.dims <= _MOST_DIMS and whole_products()


@cache
def whole_products() -> bool:
    """Whether this machine multiplies 8-bit numbers exactly, extremes included.

    Processors before AVX512-VNNI add pairs of products in 16 bits, which can saturate.
    """
    draws = np.random.default_rng(0)
    left = draws.choice([-_LEVELS, _LEVELS], (64, 256)).astype(np.int8)
    right = draws.choice([-_LEVELS, _LEVELS, 1], (128, 256)).astype(np.int8)
    left[:8], right[:16] = _LEVELS, _LEVELS
    try:
        found = torch._int_mm(torch.from_numpy(left), torch.from_numpy(right).t()).numpy()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(np.array_equal(found, left.astype(np.int64) @ right.T.astype(np.int64)))


# ------------------------------------------------------------------------------------ whole numbers


@compiled
def round_users(vectors_ud: Floats32, length_u: Floats) -> Side:
    """Each user with a scale of his own."""
    users, dims = vectors_ud.shape
    rows = np.zeros((users, dims), np.int8)
    scale, error = np.zeros(users), np.zeros(users)
    for u in range(users):
        largest = np.float32(0.0)
        for d in range(dims):
            largest = max(largest, abs(vectors_ud[u, d]))
        scale[u] = np.float64(largest) / _LEVELS
        if scale[u] > 0.0:
            error[u] = _round_row(vectors_ud[u], 1.0, scale[u], rows[u])
    return Side(rows, scale, error, length_u)


@compiled
def _round_row(row: Floats32, divisor: float, scale: float, out: Bytes) -> float:
    """Nearest whole numbers of row / divisor / scale; returns the length of what they leave out."""
    left, one = 0.0, np.float64(1.0) / (divisor * scale)
    for d in range(len(row)):
        whole = np.rint(np.float64(row[d]) * one)
        whole = min(max(whole, -np.float64(_LEVELS)), np.float64(_LEVELS))
        out[d] = np.int8(whole)
        rest = np.float64(row[d]) / divisor - whole * scale
        left += rest * rest
    return float(np.sqrt(left))


@compiled
def round_items(vectors_id: Floats32, divisor_i: Floats, length_i: Floats, items_t: Ints) -> Side:
    """The items of a tile with one scale; `error` and `length` hold their largest."""
    dims = vectors_id.shape[1]
    rows = np.zeros((len(items_t), dims), np.int8)
    largest, error, length = 0.0, 0.0, 0.0
    for t in range(len(items_t)):
        row, own = vectors_id[items_t[t]], np.float32(0.0)
        for d in range(dims):
            own = max(own, abs(row[d]))
        largest = max(largest, np.float64(own) / divisor_i[items_t[t]])
        length = max(length, length_i[items_t[t]])
    scale = largest / _LEVELS
    if scale > 0.0:
        for t in range(len(items_t)):
            i = items_t[t]
            error = max(error, _round_row(vectors_id[i], divisor_i[i], scale, rows[t]))
    return Side(rows, np.array([scale]), np.array([error]), np.array([length]))


# ------------------------------------------------------------------------------------ what is left out


@compiled
def _hidden_places(plan: Plan, place_i: Ints) -> tuple[Ints, Ints]:
    """Places of each user's masked items and positives, ascending rows: tiles leave them out."""
    users = len(plan.slot_offsets) - 1
    offsets = np.zeros(users + 1, np.int64)
    places = np.empty(len(plan.masked_items) + len(plan.slot_items), np.int64)
    for u in range(users):
        at = offsets[u]
        for m in range(plan.masked_offsets[u], plan.masked_offsets[u + 1]):
            places[at] = place_i[plan.masked_items[m]]
            at += 1
        for s in range(plan.slot_offsets[u], plan.slot_offsets[u + 1]):
            places[at] = place_i[plan.slot_items[s]]
            at += 1
        places[offsets[u] : at].sort()
        offsets[u + 1] = at
    return offsets, places


def _fast_score(user_d: Floats32, item_d: Floats32) -> float:
    """The dot product in float64, added in any order."""
    total = 0.0
    for d in range(len(user_d)):
        total += np.float64(user_d[d]) * np.float64(item_d[d])
    return total


_fast_score = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})(_fast_score)


# ------------------------------------------------------------------------------------ counting a tile


@compiled
def _limits(score: float, scale: float, bound: float) -> tuple[np.int32, np.int32]:
    """Products from `high` on are above the score for certain, those below `low` are below it.

    Rounded outward by a whole unit.
    """
    if not bound < np.inf:
        return np.int32(_NEVER + 1), _ALWAYS
    low = np.floor((score - bound) / scale) - 1.0
    high = np.floor((score + bound) / scale) + 2.0
    least, most = np.float64(_NEVER) + 1.0, np.float64(_ALWAYS)
    return np.int32(min(max(low, least), most)), np.int32(min(max(high, least), most))


class Tile(NamedTuple):
    """Items at places from `start`: their rounded side, and their bias, (0,) where there is none."""

    start: int
    items_t: Ints
    bias_t: Floats
    side: Side
    bias: float
    reach: float
    """Largest |b| of the tile; largest b of this and all later ones."""


@compiled
def _scale_and_bound(u: int, users: Side, tile: Tile) -> tuple[float, float]:
    """a c and E of the module's equation; E is infinite where whole numbers cannot hold the bias."""
    own, error, length = users.length[u], users.error[u], tile.side.length[0]
    scale = users.scale[u] * tile.side.scale[0]
    if scale == 0.0:  # all products are 0, on any scale
        scale = max(tile.bias / _MOST_BIAS, _TINY)
    if tile.bias / scale > _MOST_BIAS:
        return 1.0, np.inf
    bound = error * length + (own + error) * tile.side.error[0] + scale / 2
    return scale, bound + _ROUNDING * (own * length + tile.bias)


@compiled
def _add_bias(row: Whole, bias_t: Floats, scale: float) -> None:
    """round(b / scale) to each product."""
    one = 1.0 / scale
    for t in range(len(bias_t)):
        row[t] += np.int32(np.rint(bias_t[t] * one))


@compiled
def _count_from(block: Whole, threshold: np.int32) -> int:
    """#{P >= threshold}."""
    count = np.int32(0)
    for c in range(len(block)):
        count = np.int32(count + (block[c] >= threshold))
    return int(count)


class State(NamedTuple):
    """What tiles leave behind: the next hidden place of each user, and pairs nobody has decided yet.

    `pending` int32 (u, room, 2): slot less the user's first, item.
    """

    hidden_at: Ints
    hidden_offsets: Ints
    hidden: Ints
    pending: Whole
    pending_count: Ints


def make_state(plan: Plan, place_i: Ints) -> State:
    """Before the first tile."""
    offsets, places = _hidden_places(plan, place_i)
    users = len(offsets) - 1
    pending = np.empty((users, _ROOM, 2), np.int32)
    return State(offsets[:-1].copy(), offsets, places, pending, np.zeros(users, np.int64))


class Users(NamedTuple):
    """The side of the users: vectors, lists, scores of the positives, and how far to count."""

    pairing: Pairing
    plan: Plan
    scores_s: Floats
    cutoff: int


@compiled
def _settle(u: int, users: Users, tally: Tally, state: State) -> None:
    """Score the pairs of positives that are still open, in float64, and count them."""
    pairing, plan = users.pairing, users.plan
    near, own = _FAST * (pairing.vectors_ud.shape[1] + 4), pairing.length_u[u]
    for n in range(state.pending_count[u]):
        s, item = plan.slot_offsets[u] + state.pending[u, n, 0], np.int64(state.pending[u, n, 1])
        if tally.above[s] >= users.cutoff:
            continue
        score, bias = users.scores_s[s], pairing.bias_i[item]
        rough = _fast_score(pairing.vectors_ud[u], pairing.vectors_id[item])
        rough = rough / pairing.divisor_i[item] + bias
        if abs(rough - score) > near * (own * pairing.length_i[item] + abs(bias)):
            tally.above[s] += rough > score
            continue
        exact = counting.exact_score(pairing, u, int(item))
        tally.above[s] += exact > score
        tally.tied[s] += exact == score
        tally.before[s] += exact == score and item < plan.slot_items[s]
    state.pending_count[u] = 0


@compiled
def _settle_all(users: Users, tally: Tally, state: State) -> None:
    for u in range(len(state.pending_count)):
        _settle(u, users, tally, state)


@compiled
def _find_from(row: Whole, low: np.int32, out: Whole) -> int:
    """Where P >= low: fills `out`, as long as the row and one more; returns how many."""
    found, whole = np.uint64(0), len(row) // _BLOCK * _BLOCK
    for begin in range(0, whole, _BLOCK):
        reached = np.int32(0)
        for c in range(_BLOCK):
            reached = np.int32(reached + (row[begin + c] >= low))
        if reached:
            for c in range(_BLOCK):  # without a branch: written over where it does not count
                out[found] = begin + c
                found += np.uint64(row[begin + c] >= low)
    for c in range(whole, len(row)):
        out[found] = c
        found += np.uint64(row[c] >= low)
    return int(found)


@compiled
def _drop_from(row: Whole, high: np.int32, places: Whole, found: int) -> int:
    """Keep of these places those with P < high; returns how many."""
    kept = 0
    for n in range(found):
        places[kept] = places[n]
        kept += row[places[n]] < high
    return kept


@compiled
def _owe(mine: Whole, at: int, slot: int, items_t: Ints, places_n: Whole) -> int:
    """Put pairs off, as many as there is room for; returns how many."""
    count = min(len(places_n), len(mine) - at)
    for n in range(count):
        mine[at + n, 0], mine[at + n, 1] = slot, items_t[places_n[n]]
    return count


@compiled
def _put_off(u: int, s: int, tile: Tile, places_n: Whole, users: Users, tally: Tally, state: State) -> None:
    """Owe a positive these pairs; where there is no more room, decide all of the user's."""
    done, first = 0, users.plan.slot_offsets[u]
    while done < len(places_n):
        if state.pending_count[u] == _ROOM:
            _settle(u, users, tally, state)
        at = state.pending_count[u]
        more = _owe(state.pending[u], at, s - first, tile.items_t, places_n[done:])
        state.pending_count[u] += more
        done += more


@compiled
def _scan_tile(
    products_rt: Whole,
    users_r: Ints,
    tile: Tile,
    sides: Side,
    users: Users,
    tally: Tally,
    state: State,
) -> None:
    """Count one tile of whole-number products, (rows of users, items)."""
    plan, places = users.plan, np.empty(products_rt.shape[1] + 1, np.int32)
    for r in range(products_rt.shape[0]):
        u, row = users_r[r], products_rt[r]
        scale, bound = _scale_and_bound(u, sides, tile)
        if bound < np.inf:
            _add_bias(row, tile.bias_t, scale)
        _hide_places(row, tile.start, u, state)
        reach = _reach(sides.length[u], tile.side.length[0], tile.reach)
        for s in range(plan.slot_offsets[u], plan.slot_offsets[u + 1]):
            if tally.above[s] >= users.cutoff or users.scores_s[s] > reach:
                continue
            low, high = _limits(users.scores_s[s], scale, bound)
            if _count_from(row, low) == 0:
                continue
            tally.above[s] += _count_from(row, high)
            if tally.above[s] < users.cutoff:  # only a positive that stays open is owed anything
                count = _drop_from(row, high, places, _find_from(row, low, places))
                _put_off(u, s, tile, places[:count], users, tally, state)


@compiled
def _reach(own: float, length: float, bias: float) -> float:
    """No item of this length and bias scores more."""
    return own * length + bias + _ROUNDING * (own * length + abs(bias))


@compiled
def _hide_places(row: Whole, start: int, u: int, state: State) -> None:
    at, last = state.hidden_at[u], state.hidden_offsets[u + 1]
    while at < last and state.hidden[at] < start + len(row):
        if state.hidden[at] >= start:  # earlier ones were passed while the user was not multiplied
            row[state.hidden[at] - start] = _NEVER
        at += 1
    state.hidden_at[u] = at


# ------------------------------------------------------------------------------------- all tiles


@compiled
def _still_open(
    users_u: Ints, users: Users, length_u: Floats, length: float, bias: float, tally: Tally
) -> Flags:
    """Users with a positive that items of this length and bias may still push down."""
    out = np.zeros(len(users_u), np.bool_)
    for r in range(len(users_u)):
        u = users_u[r]
        reach = _reach(length_u[u], length, bias)
        for s in range(users.plan.slot_offsets[u], users.plan.slot_offsets[u + 1]):
            out[r] |= tally.above[s] < users.cutoff and users.scores_s[s] <= reach
    return out


def count_products(prepared: Prepared, settings: Settings) -> None:
    """Count all tiles on the CPU into `prepared.tally`; positives below the cut-off only that far."""
    products, pairing, plan, scores_s, tally = prepared
    assert settings.cutoff is not None
    users = Users(pairing, plan, scores_s, settings.cutoff)
    state = make_state(plan, products.order.place_i)

    def count(users_u: Ints) -> None:
        _count_users(users_u, users, tally, state, settings, products.order)

    counting.in_threads(count, np.arange(len(pairing.length_u)), settings.threads)
    _settle_all(users, tally, state)


def _count_users(
    users_u: Ints, users: Users, tally: Tally, state: State, settings: Settings, order: Order
) -> None:
    """Tiles of items outside, by falling length; tiles of open users inside."""
    pairing = users.pairing
    sides = round_users(pairing.vectors_ud, pairing.length_u)
    user_tile, item_tile = settings.user_tile or USER_TILE, settings.item_tile or ITEM_TILE
    buffer = torch.empty(user_tile * item_tile, dtype=torch.int32)
    for start in range(0, len(order.items_t), item_tile):
        limits = order.length_t[start], order.bias_t[start]
        users_u = users_u[_still_open(users_u, users, sides.length, *limits, tally)]
        if not len(users_u):
            break
        tile = _make_tile(start, min(start + item_tile, len(order.items_t)), order, pairing)
        operand_dt = torch.from_numpy(tile.side.rows).t()
        for at in range(0, len(users_u), user_tile):
            users_r = users_u[at : at + user_tile]
            found_rt = buffer[: len(users_r) * len(tile.items_t)].view(len(users_r), -1)
            torch._int_mm(torch.from_numpy(sides.rows[users_r]), operand_dt, out=found_rt)
            _scan_tile(found_rt.numpy(), users_r, tile, sides, users, tally, state)


def _make_tile(start: int, stop: int, order: Order, pairing: Pairing) -> Tile:
    items_t = order.items_t[start:stop]
    side = round_items(pairing.vectors_id, pairing.divisor_i, pairing.length_i, items_t)
    bias_t = pairing.bias_i[items_t]
    largest = float(np.abs(bias_t).max())
    return Tile(
        start, items_t, bias_t if largest else bias_t[:0], side, largest, float(order.bias_t[start])
    )
