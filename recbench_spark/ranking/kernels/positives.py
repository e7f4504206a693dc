"""Sorted truth and masked items, and the counts behind ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.word_loops import BLOCK

_FEW = 100  # positives per user up to which all pairs are compared


@dataclass(frozen=True)
class ItemLists:
    """Each user's item indices, row after row (CSR).

    `offsets_u`: int64 (users + 1), `items_p`: int64 (entries); -1: an item unknown to the catalogue. Order
    and duplicates do not matter; ascending rows are read faster.
    """

    offsets_u: Ints
    items_p: Ints

    @classmethod
    def empty(cls, users: int) -> ItemLists:
        """Return lists without items for so many users."""
        return cls(np.zeros(users + 1, np.int64), np.zeros(0, np.int64))

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.offsets_u) - 1

    def check_indices(self, items: int, name: str) -> ItemLists:
        """Return the lists as checked int64 arrays.

        Raises:
            DataError: they are no CSR within [-1, items).
        """
        offsets_u = np.ascontiguousarray(self.offsets_u, np.int64)
        items_p = np.ascontiguousarray(self.items_p, np.int64)
        ends = (len(offsets_u) > 0 and offsets_u[0] == 0) and offsets_u[-1] == len(items_p)
        if not ends or np.any(np.diff(offsets_u) < 0):
            raise DataError(
                f"{name}: offsets do not describe {len(items_p)} entries",
                "offsets start at 0, never fall and end at the number of entries",
            )
        if len(items_p) and (items_p.min() < -1 or items_p.max() >= items):
            wrong = int(np.count_nonzero((items_p < -1) | (items_p >= items)))
            raise DataError(
                f"{name}: {wrong} item indices outside the catalogue of {items} items",
                "map item ids with the catalogue of this model; -1 stands for an unknown item",
            )
        return ItemLists(readonly(offsets_u), readonly(items_p))


@dataclass(frozen=True)
class RankCounts:
    """Counts from which the truth items' ranks follow.

    p runs over the truth entries in input order. Rank by item id: `1 + above_p + before_p`.

    Attributes:
        above_p: candidates with a higher score, -1 if the truth item is not ranked (unknown, not scored,
            masked or no candidate).
        tied_p: other candidates with an equal score.
        before_p: tied candidates with a smaller index.
        candidates_u: the user's ranked candidates.
        top_items_uk, top_scores_uk: the first K candidates by score, then smaller index, padded with -1 and
            NaN; None unless requested.
    """

    above_p: Ints
    tied_p: Ints
    before_p: Ints
    candidates_u: Ints
    top_items_uk: Ints | None = None
    top_scores_uk: Floats | None = None


class Positives(NamedTuple):
    """Users' positives and hidden items, as sorted rows.

    Positives are ranked, hidden items left out. Rows are ascending, without duplicates, one per user. A
    slot is one ranked positive of one user; `slot_p` maps a truth entry to its slot, or -1.
    """

    slot_offsets: Ints
    slot_items: Ints
    slot_users: Ints
    masked_offsets: Ints
    masked_items: Ints
    slot_p: Ints


def make_positives(scored_i: Bools, truth: ItemLists, masked: ItemLists) -> Positives:
    """Sort both lists; drop duplicates and items never ranked.

    An item is ranked if it is scored and not masked.
    """
    items = len(scored_i)
    truth, masked = truth.check_indices(items, "truth"), masked.check_indices(items, "masked items")
    if truth.users != masked.users:
        raise DataError(
            f"truth of {truth.users} users, masked items of {masked.users}",
            "give one row, possibly empty, to each user in both",
        )
    none = ItemLists.empty(truth.users)
    masked_offsets, masked_items = _order_rows(*list_arrays(masked), *list_arrays(none), scored_i)
    slot_offsets, slot_items = _order_rows(*list_arrays(truth), masked_offsets, masked_items, scored_i)
    slot_users = np.repeat(np.arange(truth.users), np.diff(slot_offsets))
    slot_p = find_slots(*list_arrays(truth), slot_offsets, slot_items)
    return Positives(slot_offsets, slot_items, slot_users, masked_offsets, masked_items, slot_p)


def list_arrays(lists: ItemLists) -> tuple[Ints, Ints]:
    """Return offsets and entries."""
    return readonly(lists.offsets_u), readonly(lists.items_p)


@compile_kernel
def _order_rows(
    offsets_u: Ints, items_p: Ints, left_offsets: Ints, left_items: Ints, scored_i: Bools
) -> tuple[Ints, Ints]:
    """Sort rows, and drop entries that are never ranked.

    Never ranked are duplicates, unscored items, unknown items and items to leave out.
    """
    users = len(offsets_u) - 1
    out_offsets, out_items = np.zeros(users + 1, np.int64), np.empty(len(items_p) + 1, np.int64)
    allowed_i, end = scored_i.copy(), 0
    for u in range(users):
        for n in range(left_offsets[u], left_offsets[u + 1]):
            allowed_i[left_items[n]] = False
        row, last = items_p[offsets_u[u] : offsets_u[u + 1]], -1
        for item in row if _rises(row) else np.sort(row):
            if item > last:
                out_items[end] = item
                end += allowed_i[item]
                last = item
        for n in range(left_offsets[u], left_offsets[u + 1]):
            allowed_i[left_items[n]] = scored_i[left_items[n]]
        out_offsets[u + 1] = end
    return out_offsets, out_items[:end].copy()


@compile_kernel
def _rises(items: Ints) -> bool:
    rises = True
    for at in range(1, len(items)):
        rises &= items[at] >= items[at - 1]
    return rises


@compile_kernel
def _position(ascending: Ints, item: int) -> int:
    """Return the index of `item`, -1 if absent."""
    at = np.searchsorted(ascending, item)
    present = at < len(ascending) and ascending[at] == item
    return int(at) if present else -1


@compile_kernel
def find_slots(offsets_u: Ints, items_p: Ints, slot_offsets: Ints, slot_items: Ints) -> Ints:
    """Return each truth entry's slot, or -1."""
    slot_p = np.full(len(items_p), -1, np.int64)
    for u in range(len(offsets_u) - 1):
        row = slot_items[slot_offsets[u] : slot_offsets[u + 1]]
        for p in range(offsets_u[u], offsets_u[u + 1]):
            at = _position(row, items_p[p])
            if at >= 0:
                slot_p[p] = slot_offsets[u] + at
    return slot_p


class HiddenPlaces(NamedTuple):
    """Users' masked items as places, which a search finds by tile.

    `blocks_u`: where each user's rows of `places` begin, (users + 1,); `places` int32 (rows, BLOCK), padded
    with -1.
    """

    blocks_u: Ints
    places: Ints32


@compile_kernel
def list_hidden(plan: Positives, place_i: Ints | Ints32) -> HiddenPlaces:
    """Return the places of masked items."""
    offsets, items = plan.masked_offsets, plan.masked_items
    blocks_u = np.zeros_like(offsets)
    for u in range(len(offsets) - 1):
        blocks_u[u + 1] = blocks_u[u] + (offsets[u + 1] - offsets[u] + BLOCK - 1) // BLOCK
    places = np.full((blocks_u[-1], BLOCK), -1, np.int32)
    flat = places.reshape(-1)
    for u in range(len(offsets) - 1):
        first = blocks_u[u] * BLOCK - offsets[u]
        for m in range(offsets[u], offsets[u + 1]):
            flat[first + m] = place_i[items[m]]
    return HiddenPlaces(blocks_u, places)


class Tally(NamedTuple):
    """Running counts for each slot."""

    above: Ints
    tied: Ints
    before: Ints


def make_tally(plan: Positives) -> Tally:
    """Return counts of 0."""
    slots = len(plan.slot_items)
    return Tally(np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64))


@compile_kernel
def count_among_positives(plan: Positives, scores_s: Floats, tally: Tally) -> None:
    """Compare each user's positives with each other.

    Tiles leave them out.
    """
    for u in range(len(plan.slot_offsets) - 1):
        first, last = plan.slot_offsets[u], plan.slot_offsets[u + 1]
        if last - first > _FEW:
            _rank_sorted(scores_s, first, last, tally)
            continue
        for s in range(first, last):
            above, tied, before = count_exact(scores_s[first:last], s - first)
            tally.above[s], tally.tied[s], tally.before[s] = above, tied, before


@compile_kernel
def _rank_sorted(scores_s: Floats, first: int, last: int, tally: Tally) -> None:
    """Compare by sorting.

    With many positives, comparing all pairs takes longer.
    """
    order = first + np.argsort(-scores_s[first:last], kind="mergesort")
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and scores_s[order[stop]] == scores_s[order[start]]:
            stop += 1
        for at in range(start, stop):  # stable sort: equal scores are in item order
            s = order[at]
            tally.above[s], tally.tied[s], tally.before[s] = start, stop - start - 1, at - start
        start = stop


def gather_counts(
    plan: Positives,
    tally: Tally,
    candidates_u: Ints,
    cutoff: int | None,
    top: tuple[Ints, Floats] | None,
) -> RankCounts:
    """Map counts from slots to truth entries.

    Beyond a cut-off: above = cutoff and no ties, for any method.
    """
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
    return RankCounts(spread(above, -1), spread(tied, 0), spread(before, 0), candidates_u, *lists)


def count_candidates(scored_i: Bools, plan: Positives) -> Ints:
    """Count scored items minus the user's masked ones, int64 (u,)."""
    return np.count_nonzero(scored_i) - np.diff(plan.masked_offsets)


@compile_kernel
def count_exact(scores: Floats, at: int) -> tuple[int, int, int]:
    """Return #{higher}, #{others equal}, #{equal and earlier} for place `at`."""
    above, tied, before = 0, 0, 0
    for c in range(len(scores)):
        above += scores[c] > scores[at]
        tied += scores[c] == scores[at]
        before += (scores[c] == scores[at]) & (c < at)
    return above, tied - 1, before
