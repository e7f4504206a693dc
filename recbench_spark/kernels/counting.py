"""Ranks by counting: exact for every block size, partitioning, thread count and device.

The score of user u and item i is, by definition, a float64 number:

    s_ui = (sum_d u_d * v_id, added in index order) / n_i + b_i

of the stored float32 vectors, with n_i = 1 (dot) or |v_i| (cosine; 0 for a zero vector) and the
item's bias b_i. A product of two float32 is exact in float64, so a fused multiply-add (which rounds
once) and a product followed by an addition give the same bits: the definition needs no compiler
flag. The rank of a positive p is a count, `1 + #{c : s_c > s_p}` and a tie term: no list, no sort.

The counting multiplies tiles of users by tiles of items in float32 and compares while the tile is
in the second-level cache. With x the float32 product and E its error bound (`_error_bound`),

    x > s_p + E  =>  s > s_p          x < s_p - E  =>  s < s_p

decides all but a few pairs; what lies between is scored in float64. Low precision never decides
more than it has proven, so the counts do not depend on how the product was computed.

Source of the bound: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., eq. 3.5:
|fl(x'y) - x'y| <= gamma_n |x|'|y| with gamma_n = n u / (1 - n u), in any order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.errors import DataError
from recbench_spark.kernels.compiling import compiled, readonly

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

USER_TILE, ITEM_TILE = 128, 2048
"""Scores of one tile: 1 MB, so that they are compared before they leave the cache."""

_BLOCK = 64  # scores looked at together when a few of a tile are wanted
_FEW = 12  # positives of a user that are compared each with each
_UNIT = 2.0**-24  # unit roundoff of float32
_TINY = 2.0**-126  # smallest normal float32: what flushing to zero may lose
_HUGE = 2.0**126  # above this a float32 product may overflow
_SLACK = 1.0 + 2.0**-20  # covers the float64 roundings of norms, bound and score itself

# ---------------------------------------------------------------------------- what goes in and out


@dataclass(frozen=True)
class ItemLists:
    """Item indices of each user, row after row (CSR).

    `offsets_u`: int64 (users + 1), `items_p`: int64 (entries); -1 is an item unknown to the
    catalogue. Order and duplicates do not matter; ascending rows are read faster.
    """

    offsets_u: Ints
    items_p: Ints

    @classmethod
    def empty(cls, users: int) -> ItemLists:
        """No items for any of so many users."""
        return cls(np.zeros(users + 1, np.int64), np.zeros(0, np.int64))

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.offsets_u) - 1

    def checked(self, items: int, name: str) -> ItemLists:
        """Itself as int64 arrays; a DataError where it is no CSR of indices in [-1, items)."""
        offsets_u = np.ascontiguousarray(self.offsets_u, np.int64)
        items_p = np.ascontiguousarray(self.items_p, np.int64)
        ends = (len(offsets_u) > 0 and offsets_u[0] == 0) and offsets_u[-1] == len(items_p)
        if not ends or np.any(np.diff(offsets_u) < 0):
            raise DataError(
                f"{name}: offsets do not describe {len(items_p)} entries",
                "offsets start at 0, never fall and end at the number of entries",
            )
        wrong = int(np.count_nonzero((items_p < -1) | (items_p >= items)))
        if wrong:
            raise DataError(
                f"{name}: {wrong} item indices outside the catalogue of {items} items",
                "map item ids with the catalogue of this model; -1 stands for an unknown item",
            )
        return ItemLists(readonly(offsets_u), readonly(items_p))


@dataclass(frozen=True)
class Counts:
    """What the ranks of the truth items follow from; p runs over the truth entries as given.

    `above_p`: candidates with a higher score, -1 where the truth item is not ranked (unknown, not
    scored, masked or no candidate). `tied_p`: other candidates with an equal score. `before_p`:
    those of them with a smaller index. `candidates_u`: ranked candidates of the user.
    `top_items_uk`, `top_scores_uk`: the first K candidates by score, then smaller index, padded
    with -1 and NaN; None unless asked for. Rank by item id: `1 + above_p + before_p`.
    """

    above_p: Ints
    tied_p: Ints
    before_p: Ints
    candidates_u: Ints
    top_items_uk: Ints | None = None
    top_scores_uk: Floats | None = None


# ------------------------------------------------------------------- positives and masks, put in order


class Plan(NamedTuple):
    """Positives to rank and items to leave out: ascending, without duplicates, a row a user.

    A slot is one ranked positive of one user; `slot_p` leads from a truth entry to its slot, or -1.
    """

    slot_offsets: Ints
    slot_items: Ints
    slot_users: Ints
    masked_offsets: Ints
    masked_items: Ints
    slot_p: Ints


def make_plan(scored_i: Flags, truth: ItemLists, masked: ItemLists) -> Plan:
    """Sort both lists, drop duplicates and what is never ranked; ranked = scored and not masked."""
    items = len(scored_i)
    truth, masked = truth.checked(items, "truth"), masked.checked(items, "masked items")
    if truth.users != masked.users:
        raise DataError(
            f"truth of {truth.users} users, masked items of {masked.users}",
            "give one row, possibly empty, to each user in both",
        )
    none = ItemLists.empty(truth.users)
    masked_offsets, masked_items = _ordered(*_pair(masked), *_pair(none), scored_i)
    slot_offsets, slot_items = _ordered(*_pair(truth), masked_offsets, masked_items, scored_i)
    slot_users = np.repeat(np.arange(truth.users), np.diff(slot_offsets))
    slot_p = _find_slots(*_pair(truth), slot_offsets, slot_items)
    return Plan(slot_offsets, slot_items, slot_users, masked_offsets, masked_items, slot_p)


def _pair(lists: ItemLists) -> tuple[Ints, Ints]:
    return readonly(lists.offsets_u), readonly(lists.items_p)


@compiled
def _ordered(
    offsets_u: Ints, items_p: Ints, left_offsets: Ints, left_items: Ints, scored_i: Flags
) -> tuple[Ints, Ints]:
    """Rows ascending and without duplicates, unscored items, unknown items and those left out."""
    users = len(offsets_u) - 1
    out_offsets, out_items = np.zeros(users + 1, np.int64), np.empty(len(items_p), np.int64)
    end = 0
    for u in range(users):
        left = left_items[left_offsets[u] : left_offsets[u + 1]]
        last = -1
        for item in _ascending(items_p[offsets_u[u] : offsets_u[u + 1]]):
            kept = item > last and scored_i[item]
            if kept and (len(left) == 0 or _position(left, item) < 0):
                out_items[end] = item
                end += 1
            last = max(last, item)
        out_offsets[u + 1] = end
    return out_offsets, out_items[:end].copy()


@compiled
def _ascending(items: Ints) -> Ints:
    for at in range(1, len(items)):
        if items[at] < items[at - 1]:
            return np.sort(items)
    return items.copy()


@compiled
def _position(ascending: Ints, item: int) -> int:
    """Index of `item`, -1 where it is not there."""
    at = np.searchsorted(ascending, item)
    found = at < len(ascending) and ascending[at] == item
    return int(at) if found else -1


@compiled
def _find_slots(offsets_u: Ints, items_p: Ints, slot_offsets: Ints, slot_items: Ints) -> Ints:
    slot_p = np.full(len(items_p), -1, np.int64)
    for u in range(len(offsets_u) - 1):
        row = slot_items[slot_offsets[u] : slot_offsets[u + 1]]
        for p in range(offsets_u[u], offsets_u[u + 1]):
            at = _position(row, items_p[p])
            if at >= 0:
                slot_p[p] = slot_offsets[u] + at
    return slot_p


class Tally(NamedTuple):
    """Counts of the slots, while they grow."""

    above: Ints
    tied: Ints
    before: Ints


def make_tally(plan: Plan) -> Tally:
    """All counts at 0."""
    slots = len(plan.slot_items)
    return Tally(np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64))


@compiled
def count_among_positives(plan: Plan, scores_s: Floats, tally: Tally) -> None:
    """Compare the positives of each user with each other; tiles leave them out."""
    for u in range(len(plan.slot_offsets) - 1):
        first, last = plan.slot_offsets[u], plan.slot_offsets[u + 1]
        if last - first > _FEW:
            _rank_sorted(scores_s, first, last, tally)
            continue
        for s in range(first, last):
            above, tied, before = _count_exact(scores_s[first:last], s - first)
            tally.above[s], tally.tied[s], tally.before[s] = above, tied, before


@compiled
def _rank_sorted(scores_s: Floats, first: int, last: int, tally: Tally) -> None:
    """The same by sorting: where there are many, comparing each with each takes longer."""
    order = first + np.argsort(-scores_s[first:last], kind="mergesort")
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and scores_s[order[stop]] == scores_s[order[start]]:
            stop += 1
        for at in range(start, stop):  # stable: equal scores are in order of items
            s = order[at]
            tally.above[s], tally.tied[s], tally.before[s] = start, stop - start - 1, at - start
        start = stop


def gather_counts(
    plan: Plan,
    tally: Tally,
    candidates_u: Ints,
    cutoff: int | None,
    top: tuple[Ints, Floats] | None,
) -> Counts:
    """From slots to truth entries. Beyond a cut-off: above = cutoff and no ties, however found."""
    above, tied, before = tally
    if cutoff is not None:
        beyond = above >= cutoff
        above = np.where(beyond, cutoff, above)
        tied, before = np.where(beyond, 0, tied), np.where(beyond, 0, before)
    ranked = plan.slot_p >= 0

    def spread(values: Ints, otherwise: int) -> Ints:
        out = np.full(len(ranked), otherwise, np.int64)
        out[ranked] = values[plan.slot_p[ranked]]
        return out

    lists = top if top is not None else (None, None)
    return Counts(spread(above, -1), spread(tied, 0), spread(before, 0), candidates_u, *lists)


def count_candidates(scored_i: Flags, plan: Plan) -> Ints:
    """Scored items less the user's masked ones, int64 (u,)."""
    return np.count_nonzero(scored_i) - np.diff(plan.masked_offsets)


# ------------------------------------------------------------------------- scores that are products


class Order(NamedTuple):
    """Scored items by falling length; places t.

    `items_t`, `length_t`; `bias_t`: the largest bias from this place on; `place_i` leads from an item
    to its place, -1 where it is not scored.
    """

    items_t: Ints
    length_t: Floats
    bias_t: Floats
    place_i: Ints


@dataclass(frozen=True)
class Products:
    """Item side of scores that are products of vectors; see the module for the equation.

    `vectors_id` float32, may be memory-mapped; `divisor_i`, `bias_i` float64; `scored_i` bool;
    `length_i` float64, the length of the row that is multiplied (0 where not scored).
    """

    vectors_id: Floats32
    divisor_i: Floats
    bias_i: Floats
    scored_i: Flags
    length_i: Floats
    widened: bool
    """The bias is one more dimension of the product; NaN in it takes an item out."""

    @property
    def dims(self) -> int:
        """Length of the stored vectors."""
        return int(self.vectors_id.shape[1])

    @cached_property
    def order(self) -> Order:
        """Found once. Stable, so items of one length stay in order."""
        items_t = np.flatnonzero(self.scored_i)
        items_t = items_t[np.argsort(-self.length_i[items_t], kind="stable")]
        bias_t = np.maximum.accumulate(self.bias_i[items_t][::-1])[::-1]
        place_i = np.full(len(self.scored_i), -1, np.int64)
        place_i[items_t] = np.arange(len(items_t))
        return Order(items_t, self.length_i[items_t], bias_t, place_i)

    @cached_property
    def on_devices(self) -> dict[str, Any]:
        """What `kernels.fused` has put on devices, by device."""
        return {}

    def item_operand(self, start: int, stop: int) -> Floats32:
        """Rows of the float32 product, (items, dims or dims + 1)."""
        cut = slice(start, stop)
        operand = np.empty((stop - start, self.dims + self.widened), np.float32)
        operand[:, : self.dims] = self.vectors_id[cut]
        divided = np.flatnonzero(self.divisor_i[cut] != 1.0)
        rows = self.vectors_id[start + divided].astype(np.float64)
        operand[divided, : self.dims] = rows / self.divisor_i[start + divided, None]
        if self.widened:
            with np.errstate(over="ignore"):  # an infinite bias makes the bound infinite
                operand[:, -1] = np.where(self.scored_i[cut], self.bias_i[cut], np.nan)
        return operand

    def user_operand(self, vectors_ud: Floats32) -> Floats32:
        """The users' vectors, with a 1 for the bias where the product is widened."""
        if not self.widened:
            return vectors_ud
        return np.hstack([vectors_ud, np.ones((len(vectors_ud), 1), np.float32)])

    def size(self, start: int, stop: int) -> tuple[float, float]:
        """Largest length and largest |bias| among these items."""
        if start == stop:
            return 0.0, 0.0
        return float(self.length_i[start:stop].max()), float(np.abs(self.bias_i[start:stop]).max())


def make_products(
    vectors_id: Floats32,
    bias_i: Floats | None = None,
    scored_i: Flags | None = None,
    kind: Literal["dot", "cosine"] = "dot",
) -> Products:
    """One pass over the item vectors: lengths, and a DataError for numbers that are not finite."""
    items, dims = vectors_id.shape
    vectors_id = readonly(np.ascontiguousarray(vectors_id, np.float32))
    scored = np.ones(items, np.bool_) if scored_i is None else np.array(scored_i, np.bool_)
    bias = np.zeros(items) if bias_i is None else np.where(scored, bias_i, 0.0)
    length_i = np.where(scored, lengths(vectors_id), 0.0)
    check_finite(length_i, "item vectors", "train again, or mark these items as not scored")
    check_finite(bias, "item biases", "train again, or mark these items as not scored")
    cosine = kind == "cosine"
    divisor_i = np.where(length_i > 0.0, length_i, 1.0) if cosine else np.ones(items)
    lengths_i = np.where(length_i > 0.0, 1.0, 0.0) if cosine else length_i
    widened = bias_i is not None or dims == 0 or not bool(scored.all())
    return Products(vectors_id, divisor_i, bias, scored, lengths_i, widened)


def check_finite(values: Floats | Floats32, name: str, hint: str) -> None:
    """A DataError that says how many rows are not finite."""
    wrong = int(np.count_nonzero(~np.isfinite(values)))
    if wrong:
        raise DataError(f"{wrong} {name} hold NaN or infinite numbers", hint)


@compiled
def lengths(vectors_nd: Floats32) -> Floats:
    """Euclidean length of each row, float64, summed in index order."""
    out = np.empty(vectors_nd.shape[0])
    for n in range(vectors_nd.shape[0]):
        total = 0.0
        for d in range(vectors_nd.shape[1]):
            total += np.float64(vectors_nd[n, d]) * np.float64(vectors_nd[n, d])
        out[n] = math.sqrt(total)
    return out


class Pairing(NamedTuple):
    """Both sides of the exact score, as arrays."""

    vectors_ud: Floats32
    length_u: Floats
    vectors_id: Floats32
    length_i: Floats
    divisor_i: Floats
    bias_i: Floats
    scored_i: Flags


def make_pairing(products: Products, vectors_ud: Floats32) -> Pairing:
    """Check the users' vectors and set them beside the items'."""
    if vectors_ud.ndim != 2 or vectors_ud.shape[1] != products.dims:
        raise DataError(
            f"user vectors of shape {vectors_ud.shape}, item vectors of {products.dims} dimensions",
            "take both from the same model",
        )
    vectors_ud = readonly(np.ascontiguousarray(vectors_ud, np.float32))
    length_u = lengths(vectors_ud)
    check_finite(length_u, "user vectors", "train again, or leave these users out")
    p = products
    return Pairing(vectors_ud, length_u, p.vectors_id, p.length_i, p.divisor_i, p.bias_i, p.scored_i)


@compiled
def exact_score(pairing: Pairing, u: int, i: int) -> float:
    """s_ui of the module's equation: the definition of the score."""
    total = 0.0
    if pairing.length_u[u] > 0.0 and pairing.length_i[i] > 0.0:  # else the sum is 0
        for d in range(pairing.vectors_ud.shape[1]):
            total += np.float64(pairing.vectors_ud[u, d]) * np.float64(pairing.vectors_id[i, d])
    return float(total / pairing.divisor_i[i] + pairing.bias_i[i])


@compiled
def exact_scores(pairing: Pairing, users_c: Ints, items_c: Ints) -> Floats:
    """s_ui of pairs, float64 (c,); NaN for an unknown (-1) or unscored item."""
    out = np.full(len(items_c), np.nan)
    for c in range(len(items_c)):
        if items_c[c] >= 0 and pairing.scored_i[items_c[c]]:
            out[c] = exact_score(pairing, users_c[c], items_c[c])
    return out


@compiled
def error_bound(length_u: float, length: float, bias: float, dims: int) -> float:
    """E with |x - s| <= E for a float32 product x, in any order and with flushing to zero.

    n = dims + 2: the bias is one more term, and rounding operands to float32 (unit vectors of the
    cosine, bias) costs at most one more factor 1 + u. Infinite where x may overflow.
    """
    n = dims + 2
    size = length_u * length + bias
    if not size < _HUGE:
        return np.inf
    gamma = n * _UNIT / (1.0 - n * _UNIT)
    lost = _TINY * (2.0 * n + math.sqrt(n) * (length_u + length + 1.0))
    return (gamma * size + lost) * _SLACK


@compiled
def error_bounds(length_u: Floats, length: float, bias: float, dims: int) -> Floats:
    """`error_bound` of each user."""
    out = np.empty(len(length_u))
    for u in range(len(length_u)):
        out[u] = error_bound(length_u[u], length, bias, dims)
    return out


@compiled
def undecided(score: float, bound: float) -> tuple[np.float32, np.float32]:
    """Smallest and largest float32 product that `score` cannot be told from, rounded outward.

    One step beyond the nearest float32 also covers the float64 rounding of score -+ bound.
    """
    low = np.nextafter(np.float32(score - bound), np.float32(-np.inf))
    high = np.nextafter(np.float32(score + bound), np.float32(np.inf))
    return low, high


@compiled
def undecided_limits(scores_s: Floats, bound_s: Floats) -> tuple[Floats32, Floats32]:
    """`undecided` of each score."""
    low, high = np.empty(len(scores_s), np.float32), np.empty(len(scores_s), np.float32)
    for s in range(len(scores_s)):
        low[s], high[s] = undecided(scores_s[s], bound_s[s])
    return low, high


# ------------------------------------------------------------------------------------ counting a tile


class Work(NamedTuple):
    """What the tiles leave behind: places in the lists, best candidates."""

    masked_at: Ints
    slot_at: Ints
    best_items: Ints
    best_x: Floats32
    best_count: Ints
    best_cut: Floats32
    best_bound: Floats


def make_work(plan: Plan, bound_u: Floats, top_k: int) -> Work:
    """Before the first tile. The candidates of a list have room for twice the list and some."""
    users = len(plan.slot_offsets) - 1
    room = 2 * top_k + 4 * _BLOCK if top_k else 0
    return Work(
        masked_at=plan.masked_offsets[:-1].copy(),
        slot_at=plan.slot_offsets[:-1].copy(),
        best_items=np.empty((users, room), np.int64),
        best_x=np.empty((users, room), np.float32),
        best_count=np.zeros(users, np.int64),
        best_cut=np.full(users, -np.inf, np.float32),
        best_bound=bound_u,
    )


class Tile(NamedTuple):
    """Scalars of one tile of items: its first item, largest length and largest |bias|."""

    start: int
    length: float
    bias: float


@compiled
def _scan_tile(
    x_ri: Floats32,
    users_r: Ints,
    tile: Tile,
    pairing: Pairing,
    plan: Plan,
    scores_s: Floats,
    limits: tuple[int, int],
    progress: tuple[Tally, Work],
) -> None:
    """Count one tile of float32 products, (rows of users, items from `tile.start`)."""
    tally, work = progress
    cutoff, top_k = limits
    dims, start = pairing.vectors_ud.shape[1], tile.start
    scores_c = np.empty(x_ri.shape[1])
    for r in range(x_ri.shape[0]):
        u, row = users_r[r], x_ri[r]
        first, last = plan.slot_offsets[u], plan.slot_offsets[u + 1]
        bound = error_bound(pairing.length_u[u], tile.length, tile.bias, dims)
        if bound == np.inf:
            _forget(row, start, pairing.scored_i)
        masked_end = plan.masked_offsets[u + 1]
        work.masked_at[u] = _hide(row, start, plan.masked_items, work.masked_at[u], masked_end)
        if top_k > 0:
            _collect(row, start, u, pairing, top_k, work)
        work.slot_at[u] = _hide(row, start, plan.slot_items, work.slot_at[u], last)
        fresh = False
        for s in range(first, last):
            if tally.above[s] >= cutoff:
                continue
            low, high = undecided(scores_s[s], bound)
            above, not_below = _count_limits(row, low, high)
            if not_below != above:
                if not fresh:
                    scores_c[:], fresh = np.nan, True
                own = scores_s[s], plan.slot_items[s]
                more, tied, before = _resolve_slot(row, scores_c, start, (low, high), own, u, pairing)
                above += more
                tally.tied[s] += tied
                tally.before[s] += before
            tally.above[s] += above


@compiled
def _forget(row: Floats32, start: int, scored_i: Flags) -> None:
    """Products that may have overflowed say nothing: 0, with an infinite bound."""
    for c in range(len(row)):
        row[c] = 0.0 if scored_i[start + c] else np.nan


@compiled
def _hide(row: Floats32, start: int, items: Ints, at: int, last: int) -> int:
    """NaN is neither above nor below anything: take `items` out of the row."""
    while at < last and items[at] < start + len(row):
        row[items[at] - start] = np.nan
        at += 1
    return at


@compiled
def _count_limits(row: Floats32, low: np.float32, high: np.float32) -> tuple[int, int]:
    """#{x > high}, #{x >= low}; the casts keep 32-bit counters, so 16 lanes instead of 8."""
    above, not_below = np.int32(0), np.int32(0)
    for c in range(len(row)):
        above = np.int32(above + (row[c] > high))
        not_below = np.int32(not_below + (row[c] >= low))
    return int(above), int(not_below)


@compiled
def _count_within(block: Floats32, low: np.float32, high: np.float32) -> int:
    """#{low <= x <= high}."""
    within = np.int32(0)
    for c in range(len(block)):
        within = np.int32(within + ((block[c] >= low) & (block[c] <= high)))
    return int(within)


@compiled
def _resolve_slot(
    row: Floats32,
    scores_c: Floats,
    start: int,
    limits: tuple[np.float32, np.float32],
    own: tuple[float, int],
    u: int,
    pairing: Pairing,
) -> tuple[int, int, int]:
    """above, tied, before among the undecided items, scored in float64, each once a row."""
    low, high = limits
    score, own_item = own
    above, tied, before = 0, 0, 0
    for begin in range(0, len(row), _BLOCK):
        block, known = row[begin : begin + _BLOCK], scores_c[begin : begin + _BLOCK]
        if _count_within(block, low, high) == 0:
            continue
        for c in range(len(block)):
            if block[c] >= low and block[c] <= high:
                item = start + begin + c
                if np.isnan(known[c]):
                    known[c] = exact_score(pairing, u, item)
                above += known[c] > score
                tied += known[c] == score
                before += known[c] == score and item < own_item
    return above, tied, before


@compiled
def count_pairs(
    slots_c: Ints, items_c: Ints, pairing: Pairing, plan: Plan, scores_s: Floats, tally: Tally
) -> None:
    """Score (slot, item) pairs in float64 and count them: what a device left undecided."""
    scores_c = exact_scores(pairing, plan.slot_users[slots_c], items_c)
    for c in range(len(slots_c)):
        s = slots_c[c]
        tally.above[s] += scores_c[c] > scores_s[s]
        tally.tied[s] += scores_c[c] == scores_s[s]
        tally.before[s] += scores_c[c] == scores_s[s] and items_c[c] < plan.slot_items[s]


# --------------------------------------------------------------------------------------- the first K


@compiled
def _collect(row: Floats32, start: int, u: int, pairing: Pairing, top_k: int, work: Work) -> None:
    """Keep the candidates that may be among the first K: running threshold, then compaction."""
    items, x = work.best_items[u], work.best_x[u]
    count, cut = work.best_count[u], work.best_cut[u]
    for begin in range(0, len(row), _BLOCK):
        block = row[begin : begin + _BLOCK]
        reached = _count_within(block, cut, np.float32(np.inf))
        if reached == 0:
            continue
        if count + reached > len(items):
            work.best_count[u] = count
            _compact(u, pairing, top_k, work)
            count, cut = work.best_count[u], work.best_cut[u]
        for c in range(len(block)):
            if block[c] >= cut:
                items[count], x[count] = start + begin + c, block[c]
                count += 1
    work.best_count[u] = count


@compiled
def _compact(u: int, pairing: Pairing, top_k: int, work: Work) -> None:
    """Drop candidates that K others beat for certain; if many stay, those that K others beat.

    Items arrive by rising index and stay in this order, so a later item loses every tie.
    """
    count, bound = work.best_count[u], work.best_bound[u]
    if count <= top_k:
        return
    kth = np.partition(work.best_x[u, :count], count - top_k)[count - top_k]
    low, _ = undecided(np.float64(kth), 2.0 * bound)
    cut = max(work.best_cut[u], low)
    _keep(u, work.best_x[u, :count] >= cut, work)
    count = work.best_count[u]
    if count > top_k + _BLOCK:
        scores = exact_scores(pairing, np.full(count, u), work.best_items[u, :count])
        kept = np.zeros(count, np.bool_)
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        kept[order] = True
        low, _ = undecided(scores[order[-1]], bound)
        cut = max(cut, low)
        _keep(u, kept, work)
    work.best_cut[u] = cut


@compiled
def _keep(u: int, kept: Flags, work: Work) -> None:
    at = 0
    for c in range(len(kept)):
        if kept[c]:
            work.best_items[u, at] = work.best_items[u, c]
            work.best_x[u, at] = work.best_x[u, c]
            at += 1
    work.best_count[u] = at


@compiled
def sort_best(
    users_u: Ints, pairing: Pairing, items_uc: Ints, count_u: Ints, top_k: int
) -> tuple[Ints, Floats]:
    """The first K of each user's candidates (ascending rows of `items_uc`), by exact score."""
    top_items = np.full((len(users_u), top_k), -1, np.int64)
    top_scores = np.full((len(users_u), top_k), np.nan)
    for r in range(len(users_u)):
        items = items_uc[r, : count_u[r]]
        scores = exact_scores(pairing, np.full(len(items), users_u[r]), items)
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[r, k], top_scores[r, k] = items[order[k]], scores[order[k]]
    return top_items, top_scores


# ------------------------------------------------------------------------------------- all tiles


@dataclass(frozen=True)
class Settings:
    """What is asked for, and how the work is cut; the cut never changes a number.

    `top_k` 0: no lists. `cutoff` K: positives beyond rank K are only known to be there (above = K,
    no ties) and are no longer compared, nor are users multiplied who have no others. `reduced`: up to
    a cut-off, 8-bit products and bounds decide what they can (`kernels.cutoff`); None: where that pays.
    """

    top_k: int = 0
    cutoff: int | None = None
    threads: int = 1
    user_tile: int | None = None
    item_tile: int | None = None
    reduced: bool | None = None

    @property
    def may_reduce(self) -> bool:
        """Whether 8-bit products can answer what is asked for."""
        return self.cutoff is not None and not self.top_k and self.reduced is not False


class Prepared(NamedTuple):
    """A block of users, ready to be counted by tiles on any device."""

    products: Products
    pairing: Pairing
    plan: Plan
    scores_s: Floats
    tally: Tally


def prepare_products(
    products: Products, vectors_ud: Floats32, truth: ItemLists, masked: ItemLists
) -> Prepared:
    """Order the lists, score the positives in float64, compare them with each other."""
    pairing = make_pairing(products, vectors_ud)
    plan = make_plan(products.scored_i, truth, masked)
    if truth.users != len(vectors_ud):
        raise DataError(
            f"{len(vectors_ud)} user vectors, truth of {truth.users} users",
            "give one row, possibly empty, to each user",
        )
    scores_s, tally = exact_scores(pairing, plan.slot_users, plan.slot_items), make_tally(plan)
    count_among_positives(plan, scores_s, tally)
    return Prepared(products, pairing, plan, scores_s, tally)


def count_products(
    prepared: Prepared, settings: Settings, users_u: Ints | None = None
) -> tuple[Ints, Floats] | None:
    """Count all tiles on the CPU into `prepared.tally`; returns the first K if asked for.

    `users_u`: only these of the block, by default all.
    """
    if users_u is None:
        users_u = np.arange(len(prepared.pairing.length_u))
    work = make_work(prepared.plan, _bounds_u(prepared), settings.top_k)

    def count(part: Ints) -> None:
        _count_users(part, prepared, work, settings)

    with plain_products():
        in_threads(count, users_u, settings.threads)
    if not settings.top_k:
        return None
    items_uc, count_u = work.best_items[users_u], work.best_count[users_u]
    return sort_best(users_u, prepared.pairing, items_uc, count_u, settings.top_k)


def in_threads(count: Callable[[Ints], None], users_u: Ints, threads: int) -> None:
    """Count parts of the users at a time, one torch thread each."""
    parts = np.array_split(users_u, max(1, threads))
    one_each = partial(torch.set_num_threads, 1)
    with ThreadPoolExecutor(len(parts), initializer=one_each) as pool:
        for done in [pool.submit(count, part) for part in parts]:
            done.result()


@contextmanager
def plain_products() -> Iterator[None]:
    """float32 products without TF32 or bfloat16 inside: the bound is one of float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _bounds_u(prepared: Prepared) -> Floats:
    """The error bound of each user over all items."""
    length, bias = prepared.products.size(0, len(prepared.products.scored_i))
    return error_bounds(prepared.pairing.length_u, length, bias, prepared.products.dims)


def _count_users(users_u: Ints, prepared: Prepared, work: Work, settings: Settings) -> None:
    """Tiles of items outside, so that each is read once; tiles of users inside."""
    products, items = prepared.products, len(prepared.products.scored_i)
    user_tile, item_tile = settings.user_tile or USER_TILE, settings.item_tile or ITEM_TILE
    operand_ud = products.user_operand(prepared.pairing.vectors_ud[users_u])
    buffer = torch.empty(user_tile * item_tile)
    for start in range(0, items, item_tile):
        stop = min(start + item_tile, items)
        tile = Tile(start, *products.size(start, stop))
        operand_di = torch.from_numpy(products.item_operand(start, stop)).t()
        for at in range(0, len(users_u), user_tile):
            rows_rd = torch.from_numpy(operand_ud[at : at + user_tile])
            x_ri = buffer[: len(rows_rd) * (stop - start)].view(len(rows_rd), stop - start)
            torch.mm(rows_rd, operand_di, out=x_ri)
            users_r = users_u[at : at + user_tile]
            _scan(x_ri.numpy(), users_r, tile, prepared, work, settings)
        users_u, operand_ud = _still_open(users_u, operand_ud, prepared, settings)


def _scan(
    x_ri: Floats32,
    users_r: Ints,
    tile: Tile,
    prepared: Prepared,
    work: Work,
    settings: Settings,
) -> None:
    _, pairing, plan, scores_s, tally = prepared
    limits, progress = (_cutoff(settings), settings.top_k), (tally, work)
    _scan_tile(x_ri, users_r, tile, pairing, plan, scores_s, limits, progress)


def _cutoff(settings: Settings) -> int:
    return np.iinfo(np.int64).max if settings.cutoff is None else settings.cutoff


def _still_open(
    users_u: Ints, operand_ud: Floats32, prepared: Prepared, settings: Settings
) -> tuple[Ints, Floats32]:
    """Users with a positive that may still be within the cut-off, once enough others are done."""
    if settings.cutoff is None or settings.top_k:
        return users_u, operand_ud
    open_u = _open_users(users_u, prepared.plan.slot_offsets, prepared.tally.above, settings.cutoff)
    if np.count_nonzero(open_u) > 0.9 * len(users_u):
        return users_u, operand_ud
    return users_u[open_u], operand_ud[open_u]


@compiled
def _open_users(users_u: Ints, slot_offsets: Ints, above_s: Ints, cutoff: int) -> Flags:
    out = np.zeros(len(users_u), np.bool_)
    for r in range(len(users_u)):
        for s in range(slot_offsets[users_u[r]], slot_offsets[users_u[r] + 1]):
            out[r] |= above_s[s] < cutoff
    return out


# ------------------------------------------------------------------------------------- whole rows


@compiled
def count_rows(scores_ri: Floats, first_user: int, scored_i: Flags, plan: Plan, tally: Tally) -> None:
    """Count float64 rows of the users from `first_user`; what is not ranked becomes NaN in place."""
    for r in range(scores_ri.shape[0]):
        u, row = first_user + r, scores_ri[r]
        for i in range(len(row)):
            if not scored_i[i]:
                row[i] = np.nan
        for m in range(plan.masked_offsets[u], plan.masked_offsets[u + 1]):
            row[plan.masked_items[m]] = np.nan
        for s in range(plan.slot_offsets[u], plan.slot_offsets[u + 1]):
            above, tied, before = _count_exact(row, plan.slot_items[s])
            tally.above[s], tally.tied[s], tally.before[s] = above, tied, before


@compiled
def _count_exact(scores: Floats, at: int) -> tuple[int, int, int]:
    """#{higher}, #{others equal}, #{equal and earlier} than the score at place `at`."""
    score = scores[at]
    above, before, after = 0, 0, 0
    for c in range(at):
        above += scores[c] > score
        before += scores[c] == score
    for c in range(at + 1, len(scores)):
        above += scores[c] > score
        after += scores[c] == score
    return above, before + after, before


@compiled
def top_rows(scores_ri: Floats, top_k: int) -> tuple[Ints, Floats]:
    """The first K of each row by score, then smaller index; NaN is no candidate."""
    if top_k == 0:
        return np.empty((len(scores_ri), 0), np.int64), np.empty((len(scores_ri), 0))
    top_items = np.full((len(scores_ri), top_k), -1, np.int64)
    top_scores = np.full((len(scores_ri), top_k), np.nan)
    for r in range(len(scores_ri)):
        items = np.flatnonzero(~np.isnan(scores_ri[r]))
        scores = scores_ri[r][items]
        if len(items) > top_k:
            kth = np.partition(scores, len(items) - top_k)[len(items) - top_k]
            items, scores = items[scores >= kth], scores[scores >= kth]
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[r, k], top_scores[r, k] = items[order[k]], scores[order[k]]
    return top_items, top_scores


# --------------------------------------------------------------------------------- given candidates


@compiled
def count_lists(
    slot_p: Ints, offsets_u: Ints, scores_c: Floats, truth_offsets: Ints
) -> tuple[Ints, Ints, Ints]:
    """above, tied, before of each truth entry among its user's scored list."""
    above, tied, before = np.full(len(slot_p), -1), np.zeros_like(slot_p), np.zeros_like(slot_p)
    for u in range(len(offsets_u) - 1):
        first = offsets_u[u]
        row = scores_c[first : offsets_u[u + 1]]
        for p in range(truth_offsets[u], truth_offsets[u + 1]):
            if slot_p[p] >= 0:
                above[p], tied[p], before[p] = _count_exact(row, slot_p[p] - first)
    return above, tied, before


@compiled
def top_lists(offsets_u: Ints, items_c: Ints, scores_c: Floats, top_k: int) -> tuple[Ints, Floats]:
    """The first K of each ascending list by score, then smaller index."""
    users = len(offsets_u) - 1
    top_items = np.full((users, top_k), -1, np.int64)
    top_scores = np.full((users, top_k), np.nan)
    for u in range(users):
        row = slice(offsets_u[u], offsets_u[u + 1])
        items, scores = items_c[row], scores_c[row]
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[u, k], top_scores[u, k] = items[order[k]], scores[order[k]]
    return top_items, top_scores


def count_scored_lists(truth: ItemLists, listed: Plan, scores_c: Floats, top_k: int) -> Counts:
    """Counts among given candidates, whose lists a plan has put in order."""
    slot_p = _find_slots(*_pair(truth), listed.slot_offsets, listed.slot_items)
    offsets = listed.slot_offsets
    counted = count_lists(slot_p, offsets, scores_c, readonly(truth.offsets_u))
    top = top_lists(offsets, listed.slot_items, scores_c, top_k) if top_k else (None, None)
    return Counts(*counted, np.diff(offsets), *top)
