"""Ranks up to a cut-off, by 8-bit products and bounds.

Whole-number products decide almost all pairs, and bounds skip tiles.

If K candidates beat a positive, its exact rank is not needed, so few comparisons have to be exact. Items
are in tiles by falling length. Users and the items in a tile are rounded to 8-bit whole numbers,

    u = a q_u + e_u        w_i = c q_i + e_i        w_i = v_i / n_i

whose product q_u'q_i is exact in 32 bits, on any hardware. With P = q_u'q_i + round(b_i / (a c)),

    |s - a c P| <= |e_u| |w_i| + |a q_u| |e_i| + a c / 2 <= |e_u| L + (|u| + |e_u|) e + a c / 2 = E

where L and e are the tile's largest |w_i| and |e_i| (triangle and Cauchy-Schwarz inequalities; the errors
are measured, not assumed). P decides where it differs from s_p / (a c) by more than E / (a c); the rest is
scored in float64 by the score's definition. A user is done if all open positives have s_p > |u| L + B, with
B the largest bias from this tile on.

Source: items by length as in C. Teflioudi, R. Gemulla, O. Mykytiuk 2015, "LEMP: fast retrieval of large
entries in a matrix product" (length-based pruning); whole numbers bounding a product as in H. Li et al.
2017, "FEXIPRO: fast and exact inner product retrieval" (integer upper bound).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels import counting
from recbench_spark.ranking.kernels.counting import CountingSettings, PreparedBlock
from recbench_spark.ranking.kernels.positives import Positives, Tally
from recbench_spark.ranking.kernels.products import Order, Pairing, exact_score

Bytes = npt.NDArray[np.int8]

USER_TILE, ITEM_TILE = 128, 4096
"""Users and items in one tile: 2 MB of products, the fastest size at 20,000 and at 100,000 items."""

_BLOCK = 64  # products compared together; fewer than _ROOM
_TOGETHER = 1 << 14  # users whose undecided pairs are stored (64 MB) and whose items are rounded once
_ROOM = 512  # a user's undecided pairs before they are settled
_MANY = 256  # products in a row which are compared one by one
LEVELS = 127
_MOST_DIMS = 2**30 // LEVELS**2  # products stay below 2^30, with the same room for the bias
_MOST_BIAS = 2.0**30 - 2.0
_PAYS = 2**16  # item coordinates per positive from which reduced products are faster
_NEVER, _ALWAYS = np.int32(-(2**31)), np.int32(2**31 - 1)  # below, above every product
_ROUNDING = 2.0**-20  # of |u| L + |b|: float32 rounding of w_i, float64 roundings of score and bounds
TINY = 2.0**-1000
_FAST = 2.0**-50  # of (dims + 4) (|u| |w| + |b|): float64 sums in any order


class RoundedRows(NamedTuple):
    """Rows rounded to whole numbers, with scales and errors.

    Each user has its own scale and error; a tile of items shares them. `rows` int8 (n, dims); `scale` a
    (n,) or c (1,); `error` |e|, for a tile the largest; `length` |u|, or the tile's largest |w|.
    """

    rows: Bytes
    scale: Floats
    error: Floats
    length: Floats


def applies(prepared: PreparedBlock, settings: CountingSettings) -> bool:
    """Tell whether ranks are counted here.

    They are, up to a cut-off and without lists, if it is possible and faster. It is faster if a user's
    positives, each compared with some hundred items, cost less than the product saves: measured from 3,706
    items and 17 positives (no) to 100,000 items and 5 (yes).
    """
    if not settings.may_reduce:
        return False
    dims, items = prepared.products.dims, len(prepared.products.order.items_t)
    users, positives = len(prepared.pairing.length_u), len(prepared.plan.slot_items)
    pays = items * dims * users >= _PAYS * positives
    return (pays or settings.reduced is True) and fits(prepared) and int8_is_exact()


def fits(prepared: PreparedBlock) -> bool:
    """Tell whether vectors are neither empty nor too long."""
    return 0 < prepared.products.dims <= _MOST_DIMS


@cache
def int8_is_exact() -> bool:
    """Tell whether this machine multiplies 8-bit numbers exactly, extremes included.

    Processors before AVX512-VNNI add pairs of products in 16 bits, which can saturate.
    """
    draws = np.random.default_rng(0)
    left = draws.choice([-LEVELS, LEVELS], (64, 256)).astype(np.int8)
    right = draws.choice([-LEVELS, LEVELS, 1], (128, 256)).astype(np.int8)
    left[:8], right[:16] = LEVELS, LEVELS
    try:
        product = torch._int_mm(torch.from_numpy(left), torch.from_numpy(right).t()).numpy()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool(np.array_equal(product, left.astype(np.int64) @ right.T.astype(np.int64)))


# ------------------------------------------------------------------------------------ whole numbers


@compile_kernel
def round_users(vectors_ud: Floats32, length_u: Floats, users_r: Ints) -> RoundedRows:
    """Round users' vectors, each with its own scale."""
    dims = vectors_ud.shape[1]
    rows = np.zeros((len(users_r), dims), np.int8)
    scale, error = np.zeros(len(users_r)), np.zeros(len(users_r))
    for r in range(len(users_r)):
        largest, row = np.float32(0.0), vectors_ud[users_r[r]]
        for d in range(dims):
            largest = max(largest, abs(row[d]))
        scale[r] = np.float64(largest) / LEVELS
        if scale[r] > 0.0:
            error[r] = _round_row(row, 1.0, scale[r], rows[r])
    return RoundedRows(rows, scale, error, length_u[users_r])


@compile_kernel
def _round_row(row: Floats32, divisor: float, scale: float, out: Bytes) -> float:
    """Round row / divisor / scale to whole numbers.

    Returns the length of the rounding errors.
    """
    squares, one = 0.0, np.float64(1.0) / (divisor * scale)
    for d in range(len(row)):
        whole = np.rint(np.float64(row[d]) * one)
        whole = min(max(whole, -np.float64(LEVELS)), np.float64(LEVELS))
        out[d] = np.int8(whole)
        rest = np.float64(row[d]) / divisor - whole * scale
        squares += rest * rest
    return float(np.sqrt(squares))


@compile_kernel
def round_items(vectors_id: Floats32, divisor_i: Floats, length_i: Floats, items_t: Ints) -> RoundedRows:
    """Round a tile's items with one scale.

    `error` and `length` hold their largest values.
    """
    dims = vectors_id.shape[1]
    rows = np.zeros((len(items_t), dims), np.int8)
    largest, error, length = 0.0, 0.0, 0.0
    for t in range(len(items_t)):
        row, own = vectors_id[items_t[t]], np.float32(0.0)
        for d in range(dims):
            own = max(own, abs(row[d]))
        largest = max(largest, np.float64(own) / divisor_i[items_t[t]])
        length = max(length, length_i[items_t[t]])
    scale = largest / LEVELS
    if scale > 0.0:
        for t in range(len(items_t)):
            i = items_t[t]
            error = max(error, _round_row(vectors_id[i], divisor_i[i], scale, rows[t]))
    return RoundedRows(rows, np.array([scale]), np.array([error]), np.array([length]))


# ------------------------------------------------------------------------------------ what is left out


@compile_kernel
def _find_hidden_places(plan: Positives, place_i: Ints, tile: int) -> tuple[Ints, Ints32]:
    """Return users' masked items and positives, as places by tile.

    Tiles leave them out.
    """
    users = len(plan.slot_offsets) - 1
    offsets = plan.masked_offsets + plan.slot_offsets
    places = np.empty(offsets[users], np.int32)
    tiles = len(place_i) // tile + 1
    starts = np.empty(tiles + 1, np.int64)
    for u in range(users):
        masked = plan.masked_items[plan.masked_offsets[u] : plan.masked_offsets[u + 1]]
        positives = plan.slot_items[plan.slot_offsets[u] : plan.slot_offsets[u + 1]]
        row = places[offsets[u] : offsets[u + 1]]
        if tiles > 4 * len(row):
            _fill_sorted(masked, positives, place_i, row)
        else:
            _fill_by_tile(masked, positives, place_i, tile, starts, row)
    return offsets, places


@compile_kernel
def _fill_sorted(masked: Ints, positives: Ints, place_i: Ints, out: Ints32) -> None:
    for m in range(len(masked)):
        out[m] = place_i[masked[m]]
    for s in range(len(positives)):
        out[len(masked) + s] = place_i[positives[s]]
    out.sort()


@compile_kernel
def _fill_by_tile(
    masked: Ints, positives: Ints, place_i: Ints, tile: int, starts: Ints, out: Ints32
) -> None:
    """Count, then write; order is free within a tile."""
    starts[:] = 0
    for items in (masked, positives):
        for n in range(len(items)):
            starts[place_i[items[n]] // tile + 1] += 1
    for t in range(1, len(starts)):
        starts[t] += starts[t - 1]
    for items in (masked, positives):
        for n in range(len(items)):
            place = place_i[items[n]]
            out[starts[place // tile]] = place
            starts[place // tile] += 1


# ------------------------------------------------------------------------------ scores of float64


def _sum_products(user_d: Floats32, item_d: Floats32) -> float:
    """Return the dot product in float64, added in any order."""
    total = 0.0
    for d in range(len(user_d)):
        total += np.float64(user_d[d]) * np.float64(item_d[d])
    return total


_fast_score = compile_kernel(_sum_products, fastmath={"reassoc", "contract"})


# ------------------------------------------------------------------------------------ counting a tile


@compile_kernel
def _limits(score: float, scale: float, bound: float) -> tuple[np.int32, np.int32]:
    """Return the limits of undecided products, rounded outward.

    Products from `high` on are certainly above the score, those below `low` below it.
    """
    if not bound < np.inf:
        return np.int32(_NEVER + 1), _ALWAYS
    low = np.floor((score - bound) / scale) - 1.0
    high = np.floor((score + bound) / scale) + 2.0
    least, most = np.float64(_NEVER) + 1.0, np.float64(_ALWAYS)
    return np.int32(min(max(low, least), most)), np.int32(min(max(high, least), most))


class RoundedTile(NamedTuple):
    """A tile's rounded items, and their bias, (0,) without biases.

    The items stand at places from `start` on.
    """

    start: int
    items_t: Ints
    bias_t: Floats
    side: RoundedRows
    bias: float
    reach: float
    """`bias`: the tile's largest |b|; `reach`: the largest b in this and all later tiles."""


@compile_kernel
def _scale_and_bound(r: int, users: RoundedRows, tile: RoundedTile) -> tuple[float, float]:
    """Return a c and E from the module's equation.

    E is infinite if whole numbers cannot hold the bias.
    """
    own, error, length = users.length[r], users.error[r], tile.side.length[0]
    scale = users.scale[r] * tile.side.scale[0]
    if scale == 0.0:  # all products are 0, on any scale
        scale = max(tile.bias / _MOST_BIAS, TINY)
    if tile.bias / scale > _MOST_BIAS:
        return 1.0, np.inf
    bound = error * length + (own + error) * tile.side.error[0] + scale / 2
    return scale, bound + _ROUNDING * (own * length + tile.bias)


@compile_kernel
def _add_bias(row: Ints32, bias_t: Floats, scale: float) -> None:
    """Add round(b / scale) to each product."""
    one = 1.0 / scale
    for t in range(len(bias_t)):
        row[t] += np.int32(np.rint(bias_t[t] * one))


@compile_kernel
def _count_from(block: Ints32, threshold: np.int32) -> int:
    """Return #{P >= threshold}."""
    count = np.int32(0)
    for c in range(len(block)):
        count = np.int32(count + (block[c] >= threshold))
    return int(count)


class State(NamedTuple):
    """A scan between tiles: next hidden places, and undecided pairs.

    `pending` int32 (users from `base`, room, 2): slot minus the user's first slot, item.
    """

    hidden_at: Ints
    hidden_offsets: Ints
    hidden: Ints32
    pending: Ints32
    pending_count: Ints
    base: int


def make_state(plan: Positives, place_i: Ints, tile: int) -> State:
    """Return the state before the scan's first tile."""
    offsets, places = _find_hidden_places(plan, place_i, tile)
    users = len(offsets) - 1
    pending = np.empty((min(users, _TOGETHER), _ROOM, 2), np.int32)
    return State(offsets[:-1].copy(), offsets, places, pending, np.zeros(users, np.int64), 0)


class Users(NamedTuple):
    """A block's vectors, lists, positives' scores, and cut-off."""

    pairing: Pairing
    plan: Positives
    scores_s: Floats
    cutoff: int


@compile_kernel
def _settle(u: int, users: Users, tally: Tally, state: State) -> None:
    """Score the user's undecided pairs in float64 and count them."""
    pairing, plan = users.pairing, users.plan
    near, own = _FAST * (pairing.vectors_ud.shape[1] + 4), pairing.length_u[u]
    mine = state.pending[u - state.base]
    for n in range(state.pending_count[u]):
        s, item = plan.slot_offsets[u] + mine[n, 0], np.int64(mine[n, 1])
        if tally.above[s] >= users.cutoff:
            continue
        score, bias = users.scores_s[s], pairing.bias_i[item]
        rough = _fast_score(pairing.vectors_ud[u], pairing.vectors_id[item])
        rough = rough / pairing.divisor_i[item] + bias
        if abs(rough - score) > near * (own * pairing.length_i[item] + abs(bias)):
            tally.above[s] += rough > score
            continue
        exact = exact_score(pairing, u, int(item))
        tally.above[s] += exact > score
        tally.tied[s] += exact == score
        tally.before[s] += exact == score and item < plan.slot_items[s]


@compile_kernel
def _settle_all(users_u: Ints, users: Users, tally: Tally, state: State) -> None:
    for u in users_u:
        _settle(u, users, tally, state)


@compile_kernel
def _find_from(row: Ints32, low: np.int32, out: Ints32) -> int:
    """Write the places of P >= low; return their number.

    `out` has room for the row and one more.
    """
    count, whole = np.uint64(0), len(row) // _BLOCK * _BLOCK
    for begin in range(0, whole, _BLOCK):
        reached = np.int32(0)
        for c in range(_BLOCK):
            reached = np.int32(reached + (row[begin + c] >= low))
        if reached:
            for c in range(_BLOCK):  # without a branch: a place that does not count is overwritten
                out[count] = begin + c
                count += np.uint64(row[begin + c] >= low)
    for c in range(whole, len(row)):
        out[count] = c
        count += np.uint64(row[c] >= low)
    return int(count)


class OpenPositives(NamedTuple):
    """A user's open positives, (n,), with their limits.

    `places`, `values`: products reaching any limit, with room for a row and one more.
    """

    slots: Ints
    low: Ints32
    high: Ints32
    places: Ints32
    values: Ints32


@compile_kernel
def _open_slots(
    slots: tuple[int, int],
    reach: float,
    on: tuple[float, float],
    users: Users,
    above_s: Ints,
    out: OpenPositives,
) -> int:
    """Write the positives this tile may push down.

    Returns their number.
    """
    count, (first, last), (scale, bound) = 0, slots, on
    for s in range(first, last):
        if above_s[s] < users.cutoff and users.scores_s[s] <= reach:
            out.slots[count] = s
            out.low[count], out.high[count] = _limits(users.scores_s[s], scale, bound)
            count += 1
    return count


@compile_kernel
def _close_certain(row: Ints32, open_: OpenPositives, count: int, cutoff: int, above_s: Ints) -> int:
    """Count certain pairs in a row; return positives still open.

    Open positives move to the front.
    """
    left = 0
    for n in range(count):
        s = open_.slots[n]
        above_s[s] += _count_from(row, open_.high[n])
        if above_s[s] < cutoff:
            open_.slots[left], open_.low[left], open_.high[left] = s, open_.low[n], open_.high[n]
            left += 1
    return left


@compile_kernel
def _defer_pairs(
    places_n: Ints32,
    values_n: Ints32,
    between: tuple[np.int32, np.int32],
    slot: int,
    items_t: Ints,
    mine: Ints32,
    at: int,
) -> int:
    """Defer a positive's undecided pairs; return the new length.

    `mine` has room for them.
    """
    low, high = between
    end = np.uint64(at)
    for n in range(len(values_n)):
        mine[end, 0], mine[end, 1] = slot, items_t[places_n[n]]
        end += np.uint64((values_n[n] >= low) & (values_n[n] < high))
    return int(end)


@compile_kernel
def _scan_row(
    u: int,
    row: Ints32,
    items_t: Ints,
    open_: OpenPositives,
    count: int,
    users: Users,
    tally: Tally,
    state: State,
) -> None:
    """Compare open positives with the products reaching any of them.

    The row is searched once for these products.
    """
    lowest = open_.low[:count].min()
    reached = _count_from(row, lowest)
    many = reached > _MANY
    if many:
        count = _close_certain(row, open_, count, users.cutoff, tally.above)
        lowest = open_.low[:count].min() if count else _ALWAYS
    if reached == 0 or count == 0:
        return
    reached = _find_from(row, lowest, open_.places)
    for n in range(reached):
        open_.values[n] = row[open_.places[n]]
    if not many:
        count = _close_certain(open_.values[:reached], open_, count, users.cutoff, tally.above)
    if count:  # only positives that stay open need their undecided pairs
        _defer_open(u, reached, items_t, open_, count, users, tally, state)


@compile_kernel
def _defer_open(
    u: int,
    reached: int,
    items_t: Ints,
    open_: OpenPositives,
    count: int,
    users: Users,
    tally: Tally,
    state: State,
) -> None:
    """Defer undecided pairs for each open positive.

    If there may be no room, all pairs of the user are decided.
    """
    mine, first, at = state.pending[u - state.base], users.plan.slot_offsets[u], state.pending_count[u]
    for n in range(count):
        between, slot = (open_.low[n], open_.high[n]), open_.slots[n] - first
        for begin in range(0, reached, _BLOCK):
            places, values = open_.places[begin:reached][:_BLOCK], open_.values[begin:reached][:_BLOCK]
            if _count_from(values, between[0]) == _count_from(values, between[1]):
                continue
            if at + _BLOCK >= _ROOM:
                state.pending_count[u] = at
                _settle(u, users, tally, state)
                at = 0
            at = _defer_pairs(places, values, between, slot, items_t, mine, at)
    state.pending_count[u] = at


@compile_kernel
def _scan_tile(
    products_rt: Ints32,
    users_r: Ints,
    tile: RoundedTile,
    sides: RoundedRows,
    users: Users,
    tally: Tally,
    state: State,
) -> None:
    """Count one tile of whole-number products, (users, items)."""
    offsets, width = users.plan.slot_offsets, products_rt.shape[1] + 1
    open_ = _make_open(np.max(offsets[users_r + 1] - offsets[users_r]), width)
    for r in range(products_rt.shape[0]):
        u, row = users_r[r], products_rt[r]
        scale, bound = _scale_and_bound(r, sides, tile)
        if bound < np.inf:
            _add_bias(row, tile.bias_t, scale)
        _hide_places(row, tile.start, u, state)
        reach = _reach(sides.length[r], tile.side.length[0], tile.reach)
        slots = offsets[u], offsets[u + 1]
        count = _open_slots(slots, reach, (scale, bound), users, tally.above, open_)
        if count:
            _scan_row(u, row, tile.items_t, open_, count, users, tally, state)


@compile_kernel
def _make_open(most: int, width: int) -> OpenPositives:
    slots, low, high = np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most, np.int32)
    return OpenPositives(slots, low, high, np.empty(width, np.int32), np.empty(width, np.int32))


@compile_kernel
def _reach(own: float, length: float, bias: float) -> float:
    """Return the highest score with this item length and bias."""
    return own * length + bias + _ROUNDING * (own * length + abs(bias))


@compile_kernel
def _hide_places(row: Ints32, start: int, u: int, state: State) -> None:
    at, last = state.hidden_at[u], state.hidden_offsets[u + 1]
    while at < last and state.hidden[at] < start + len(row):
        if state.hidden[at] >= start:  # earlier ones belong to tiles that this user skipped
            row[state.hidden[at] - start] = _NEVER
        at += 1
    state.hidden_at[u] = at


# ------------------------------------------------------------------------------------- all tiles


@compile_kernel
def _still_open(users_u: Ints, users: Users, length: float, bias: float, tally: Tally) -> Bools:
    """Mark users with a positive such items may push down.

    The items have at most this length and bias.
    """
    out = np.zeros(len(users_u), np.bool_)
    for r in range(len(users_u)):
        u = users_u[r]
        reach = _reach(users.pairing.length_u[u], length, bias)
        for s in range(users.plan.slot_offsets[u], users.plan.slot_offsets[u + 1]):
            out[r] |= tally.above[s] < users.cutoff and users.scores_s[s] <= reach
    return out


def count_products(prepared: PreparedBlock, settings: CountingSettings) -> None:
    """Count all tiles on the CPU into `prepared.tally`.

    Positives below the cut-off are counted only that far.
    """
    products, pairing, plan, scores_s, tally = prepared
    assert settings.cutoff is not None
    users = Users(pairing, plan, scores_s, settings.cutoff)
    state = make_state(plan, products.order.place_i, settings.item_tile or ITEM_TILE)

    for base in range(0, len(pairing.length_u), _TOGETHER):
        together = state._replace(base=base)

        def count(users_u: Ints, state: State = together) -> None:
            _count_users(users_u, users, tally, state, settings, order=products.order)
            _settle_all(users_u, users, tally, state)

        some_u = np.arange(base, min(base + _TOGETHER, len(pairing.length_u)))
        counting.in_threads(count, some_u, settings.threads)


def _count_users(
    users_u: Ints, users: Users, tally: Tally, state: State, settings: CountingSettings, *, order: Order
) -> None:
    """Count tiles: outer loop over items, inner one over users.

    Tiles of items come by falling length; only tiles with open users are counted.
    """
    pairing = users.pairing
    sides, first = round_users(pairing.vectors_ud, pairing.length_u, users_u), users_u[:1]
    user_tile, item_tile = settings.user_tile or USER_TILE, settings.item_tile or ITEM_TILE
    buffer = torch.empty(user_tile * item_tile, dtype=torch.int32)
    for start in range(0, len(order.items_t), item_tile):
        limits = order.length_t[start], order.bias_t[start]
        users_u = users_u[_still_open(users_u, users, *limits, tally)]
        if not len(users_u):
            break
        tile = _make_tile(start, min(start + item_tile, len(order.items_t)), order, pairing)
        operand_dt = torch.from_numpy(tile.side.rows).t()
        for at in range(0, len(users_u), user_tile):
            users_r = users_u[at : at + user_tile]
            found_rt = buffer[: len(users_r) * len(tile.items_t)].view(len(users_r), -1)
            rounded = RoundedRows(*(one[users_r - first] for one in sides))
            torch._int_mm(torch.from_numpy(rounded.rows), operand_dt, out=found_rt)
            _scan_tile(found_rt.numpy(), users_r, tile, rounded, users, tally, state)


def _make_tile(start: int, stop: int, order: Order, pairing: Pairing) -> RoundedTile:
    items_t = order.items_t[start:stop]
    side = round_items(pairing.vectors_id, pairing.divisor_i, pairing.length_i, items_t)
    bias_t = pairing.bias_i[items_t]
    largest = float(np.abs(bias_t).max())
    return RoundedTile(
        start, items_t, bias_t if largest else bias_t[:0], side, largest, float(order.bias_t[start])
    )
