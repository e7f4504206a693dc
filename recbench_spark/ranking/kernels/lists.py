"""`Rankings` from given lists or score tables.

Lists are sorted, duplicates dropped, truth items found. With `gaps=keep` a given rank is the place seen by
the user. A place without a row counts as an unknown item, and only masked rows let others move up.

Axes: u users, n list entries, p truth items, m masked items; b users in a block x l places in their longest
list. Lists of similar length are padded to one matrix and sorted row by row, in the cache; sorting all
entries at once is several times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.hashed_ties import hash_pairs
from recbench_spark.ranking.kernels.rankings import Rankings

Scalar = TypeVar("Scalar", np.int64, np.float64)

CELLS = 1 << 17
"""Padded list entries sorted at once."""

EXACT = 1 << 53
"""Smallest whole number whose successor float64 cannot represent."""

NO_KEY = np.iinfo(np.int64).max
"""Padding of the key matrix; no item has this key."""

LAST_PLACE = 1 << 20
"""Largest rank that can be a place in a shorter list: whole lists have a number for each place."""


@dataclass(frozen=True)
class UserItems:
    """Items of u users, user after user.

    User u has `keys[offsets[u]:offsets[u + 1]]`.

    Attributes:
        offsets: int64 (u + 1,).
        keys: int64; among equal scores the smaller key ranks first.
    """

    offsets: Ints
    keys: Ints


@dataclass(frozen=True)
class InputLists(UserItems):
    """A system's lists, with `rank` or `score`.

    Attributes:
        rank: int64 (n,), from 1, or None; used if both are given.
        score: float64 (n,), higher first, or None.
    """

    rank: Ints | None = None
    score: Floats | None = None


@dataclass(frozen=True)
class HeldOutItems(UserItems):
    """Each user's held-out items, with their relevance, float64 (p,)."""

    relevance: Floats


@dataclass(frozen=True)
class RankedLists:
    """Rankings from `rank_lists`, with its counts.

    Attributes:
        rankings: each user's truth items sorted by key, without duplicates.
        keys: int64 (p,), their keys.
        duplicates_in_lists, duplicates_in_truth: dropped rows; the best duplicate stays.
        train_items: list entries from the user's training part (dropped if masked).
        top: the items at the first K places in each cleaned list, if requested; NO_KEY: an empty place.
    """

    rankings: Rankings
    keys: Ints
    duplicates_in_lists: int
    duplicates_in_truth: int
    train_items: int
    top: UserItems | None


@dataclass
class _RankBuffers:
    """Arrays and counters filled block by block."""

    above: Ints
    tied: Ints
    before: Ints
    length: Ints
    top: Ints
    duplicates: int = 0
    train_items: int = 0

    @classmethod
    def make(cls, u: int, p: int, top: int) -> _RankBuffers:
        above, tied, before = np.zeros((3, p), dtype=np.int64)
        return cls(above, tied, before, np.zeros(u, dtype=np.int64), np.full((u, top), NO_KEY))


def rank_lists(
    lists: InputLists,
    truth: HeldOutItems,
    definition: Definition,
    train: UserItems | None = None,
    *,
    mask_train: bool = True,
    top: int = 0,
    user_numbers: Ints | None = None,
) -> RankedLists:
    """Rank the truth items in users' lists.

    With `candidates=rated` only truth items stay in the lists.

    Args:
        lists: lists or scores for u users.
        truth: their held-out items.
        definition: the evaluation definition.
        train: the users' training items; counted, and with `mask_train` dropped from the lists.
        mask_train: whether training items leave the lists.
        top: also return the first `top` items in each list, for coverage, novelty and export.
        user_numbers: (u,) whole numbers for `ties=hashed`; None: 0 to u - 1.

    Raises:
        DataError: NaN or infinite scores, ranks below 1, or duplicates under `duplicates=error`.
    """
    cost = _cost(lists)
    # Between the held-out items alone (`candidates=rated`) there are no places.
    keeps_gaps = lists.rank is not None and definition.gaps == "keep" and definition.candidates != "rated"
    if keeps_gaps:
        _refuse_far_ranks(cost, int(np.diff(lists.offsets).max(initial=0)))
    truth, dropped = _distinct(truth, definition)
    work = _RankBuffers.make(len(truth.offsets) - 1, len(truth.keys), top)
    for users in _blocks(lists.offsets):
        block = _ListBlock.make(lists, cost, users, definition, work)
        block.keeps_gaps = keeps_gaps
        block.remove_train(train, mask_train, work)
        if definition.candidates == "rated":
            block.keep_only(truth)
        block.place(truth, block.best_first(definition, user_numbers), work)
    rankings = Rankings(truth.offsets, truth.relevance, work.above, work.tied, work.before, work.length)
    best = _as_items(work, top) if top else None
    return RankedLists(rankings, truth.keys, work.duplicates, dropped, work.train_items, best)


@dataclass
class _ListBlock:
    """Some users' lists, sorted by key within a row.

    A removed entry costs infinity.

    Attributes:
        given_bl: costs including repeated rows.
        masked_bl: costs of masked rows, else infinity.
    """

    users: Ints
    keys_bl: Ints
    cost_bl: Floats
    given_bl: Floats
    masked_bl: Floats | None = None
    keeps_gaps: bool = False

    @classmethod
    def make(
        cls, lists: InputLists, cost: Floats, users: Ints, definition: Definition, work: _RankBuffers
    ) -> _ListBlock:
        start, count = lists.offsets[users], np.diff(lists.offsets)[users]
        place = np.arange(max(int(count.max()), 1))
        inside = place < count[:, None]
        entry = (start[:, None] + place)[inside]
        keys_bl = np.full(inside.shape, NO_KEY)
        cost_bl = np.full(inside.shape, np.inf)
        keys_bl[inside], cost_bl[inside] = lists.keys[entry], cost[entry]
        order = np.argsort(keys_bl, axis=1)
        cost_bl = _take(cost_bl, order)
        block = cls(users, _take(keys_bl, order), cost_bl, cost_bl)
        block._remove_duplicates(definition, work)
        return block

    def _remove_duplicates(self, definition: Definition, work: _RankBuffers) -> None:
        again = (self.keys_bl[:, 1:] == self.keys_bl[:, :-1]) & (self.keys_bl[:, 1:] != NO_KEY)
        count = int(again.sum())
        if not count:
            return
        _refuse_duplicates(count, "the lists", definition)
        rows = np.flatnonzero(again.any(axis=1))
        order = np.lexsort((self.cost_bl[rows], self.keys_bl[rows]), axis=1)
        self.cost_bl[rows] = _take(self.cost_bl[rows], order)
        self.given_bl = self.cost_bl.copy()
        self.cost_bl[:, 1:][again] = np.inf
        work.duplicates += count

    def find(self, items: UserItems) -> tuple[Ints, Ints, Ints]:
        """Return (index into items, row, place) for these users' items.

        Place -1: not listed.
        """
        count = np.diff(items.offsets)[self.users]
        row = np.repeat(np.arange(len(count)), count)
        shift = np.repeat(items.offsets[self.users] - np.cumsum(count) + count, count)
        index = np.arange(len(row)) + shift
        key = items.keys[index]
        low, width = np.zeros_like(row), self.keys_bl.shape[1]
        # Binary search in all rows at once: the first place whose key is not smaller.
        step = 1 << (width.bit_length() - 1)
        while step:
            probe = low + step - 1
            smaller = (probe < width) & (self.keys_bl[row, np.minimum(probe, width - 1)] < key)
            low += np.where(smaller, step, 0)
            step >>= 1
        place = np.minimum(low, width - 1)
        listed = (self.keys_bl[row, place] == key) & np.isfinite(self.cost_bl[row, place])
        return index, row, np.where(listed, place, -1)

    def remove_train(self, train: UserItems | None, mask: bool, work: _RankBuffers) -> None:
        if train is None:
            return
        _, row, place = self.find(train)
        hit = np.zeros(self.keys_bl.shape, dtype=bool)
        hit[row[place >= 0], place[place >= 0]] = True
        work.train_items += int(hit.sum())
        if mask and hit.any():
            self.masked_bl = np.where(_repeat_first(hit, self.keys_bl), self.given_bl, np.inf)
            self.cost_bl[hit] = np.inf

    def keep_only(self, items: UserItems) -> None:
        _, row, place = self.find(items)
        allowed = np.zeros(self.keys_bl.shape, dtype=bool)
        allowed[row[place >= 0], place[place >= 0]] = True
        self.cost_bl[~allowed] = np.inf

    def best_first(self, definition: Definition, user_numbers: Ints | None) -> Ints:
        """Return the entries' order by cost.

        Equal costs are ordered by key, or by a hash of user and key.
        """
        if definition.ties != "hashed":
            # A stable sort keeps equal costs in key order.
            return np.argsort(self.cost_bl, axis=1, kind="stable")
        numbers = self.users if user_numbers is None else user_numbers[self.users]
        hashes = hash_pairs(definition.tie_seed, numbers[:, None], self.keys_bl)
        return np.lexsort((-hashes, self.cost_bl), axis=1)

    def place(self, truth: HeldOutItems, order: Ints, work: _RankBuffers) -> None:
        """Write the truth items' counts, and the first items."""
        cost_bl = _take(self.cost_bl, order)
        position = np.empty_like(order)
        np.put_along_axis(position, order, np.arange(order.shape[1])[None, :], axis=1)
        first, last = _runs(cost_bl)
        gaps = self._count_gaps(cost_bl, first) if self.keeps_gaps else None
        index, row, place = self.find(truth)
        work.above[index] = -1
        index, row, place = index[place >= 0], row[place >= 0], place[place >= 0]
        at = position[row, place]
        work.above[index] = first[row, at]
        work.tied[index] = last[row, at] - first[row, at]
        work.before[index] = at - first[row, at]
        work.length[self.users] = np.isfinite(cost_bl).sum(axis=1)
        if gaps is None or not gaps.any():
            self._write_top(order, cost_bl, work)
            return
        work.above[index] += gaps[row, at]
        work.length[self.users] += gaps[:, -1]
        self._write_places(order, cost_bl, gaps, work)

    def _count_gaps(self, cost_bl: Floats, first: Ints) -> Ints:
        """Count places without a row before each sorted rank.

        Masked rows leave no gap.
        """
        masked = 0 if self.masked_bl is None else _count_below(np.sort(self.masked_bl, axis=1), cost_bl)
        missing = np.where(np.isfinite(cost_bl), cost_bl - 1 - masked - first, 0.0)
        gaps: Ints = np.maximum.accumulate(np.maximum(missing, 0.0), axis=1).astype(np.int64)
        return gaps

    def _write_places(self, order: Ints, cost_bl: Floats, gaps: Ints, work: _RankBuffers) -> None:
        """Write items at the first places; gaps keep NO_KEY."""
        at = np.arange(order.shape[1]) + gaps
        row, place = np.nonzero(np.isfinite(cost_bl) & (at < work.top.shape[1]))
        work.top[self.users[row], at[row, place]] = _take(self.keys_bl, order)[row, place]

    def _write_top(self, order: Ints, cost_bl: Floats, work: _RankBuffers) -> None:
        width = min(work.top.shape[1], order.shape[1])
        best = _take(self.keys_bl, order[:, :width])
        listed = np.isfinite(cost_bl[:, :width])
        work.top[self.users, :width] = np.where(listed, best, NO_KEY)


def _cost(lists: InputLists) -> Floats:
    """Return the lists' sort key: rank, else minus score.

    Lower comes first.
    """
    if lists.rank is not None:
        if (lists.rank < 1).any():
            raise DataError(
                f"{int((lists.rank < 1).sum())} ranks are below 1",
                "ranks count from 1; leave the rank column out to rank by score",
            )
        if (lists.rank >= EXACT).any():
            raise DataError(
                f"{int((lists.rank >= EXACT).sum())} ranks are 2^53 or more, where float64 merges ranks",
                "ranks count from 1; leave the rank column out to rank by score",
            )
        return lists.rank.astype(np.float64)
    if lists.score is None:
        raise DataError("lists have neither rank nor score", "give one of the two columns")
    wrong = ~np.isfinite(lists.score)
    if wrong.any():
        raise DataError(
            f"{int(wrong.sum())} of {len(wrong)} scores are NaN or infinite",
            "drop these rows, or give them the lowest finite score",
        )
    return -lists.score


def _refuse_far_ranks(cost: Floats, longest: int) -> None:
    """Refuse ranks too far down to be places.

    Raises:
        DataError: naming the rank.
    """
    if cost.max(initial=0.0) > max(LAST_PLACE, longest):
        raise DataError(
            f"rank {cost.max():.0f} is no place in a list",
            "where ranks only order a list, set definition.gaps=close",
        )


def _distinct(truth: HeldOutItems, definition: Definition) -> tuple[HeldOutItems, int]:
    """Sort truth by key within users, without repeated keys.

    The best relevance stays. Also returns the number of dropped rows.
    """
    wrong = ~np.isfinite(truth.relevance)
    if wrong.any():
        raise DataError(
            f"{int(wrong.sum())} truth rows have no relevance, or an infinite one",
            "give every truth row a finite number",
        )
    user = np.repeat(np.arange(len(truth.offsets) - 1), np.diff(truth.offsets))
    if _follows(user, truth.keys).all():
        return HeldOutItems(truth.offsets.astype(np.int64), truth.keys, truth.relevance), 0
    order = np.lexsort((-truth.relevance, truth.keys, user))
    user, keys = user[order], truth.keys[order]
    new = np.append(True, _follows(user, keys))[: len(user)]
    dropped = int((~new).sum())
    if dropped:
        _refuse_duplicates(dropped, "the truth", definition)
    count = np.bincount(user[new], minlength=len(truth.offsets) - 1)
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return HeldOutItems(offsets, keys[new], truth.relevance[order][new]), dropped


def _follows(user: Ints, keys: Ints) -> Bools:
    """Mark rows with another user or a larger key.

    The first row has no mark.
    """
    follows: Bools = (user[1:] != user[:-1]) | (keys[1:] > keys[:-1])
    return follows


def _refuse_duplicates(count: int, where: str, definition: Definition) -> None:
    if definition.duplicates == "error":
        raise DataError(
            f"{count} (user, item) pairs occur more than once in {where}",
            "drop them, or set definition.duplicates=drop to keep the best of each",
        )


def _blocks(offsets: Ints) -> Iterator[Ints]:
    """Yield users with similarly long lists, so padding stays small."""
    count = np.diff(offsets)
    users = np.argsort(count, kind="stable")
    start = 0
    while start < len(users):
        # A block's longest list is its last; the first guess only bounds the search.
        stop = min(len(users), start + max(1, CELLS // max(1, int(count[users[start]]))))
        while stop - start > 1 and (stop - start) * count[users[stop - 1]] > CELLS:
            stop = start + (stop - start) // 2
        yield users[start:stop]
        start = stop


def _runs(cost_bl: Floats) -> tuple[Ints, Ints]:
    """Return each run's first and last place, for equal sorted costs."""
    place = np.broadcast_to(np.arange(cost_bl.shape[1]), cost_bl.shape)
    step = cost_bl[:, 1:] != cost_bl[:, :-1]
    first, last = place.copy(), place.copy()
    if step.all():
        return first, last
    first[:, 1:][~step] = 0
    last[:, :-1][~step] = cost_bl.shape[1]
    first = np.maximum.accumulate(first, axis=1)
    return first, np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]


def _repeat_first(marked: Bools, keys_bl: Ints) -> Bools:
    """Let each key's first entry decide for the whole key.

    Rows are sorted by key.
    """
    place = np.broadcast_to(np.arange(keys_bl.shape[1]), keys_bl.shape).copy()
    place[:, 1:][keys_bl[:, 1:] == keys_bl[:, :-1]] = 0
    repeated: Bools = np.take_along_axis(marked, np.maximum.accumulate(place, axis=1), axis=1)
    return repeated


def _count_below(sorted_bm: Floats, value_bl: Floats) -> Ints:
    """Count smaller values in the same row, (b, l).

    `sorted_bm` has the counted values, `value_bl` the limits.
    """
    both = np.concatenate([value_bl, sorted_bm], axis=1)
    order = np.argsort(both, axis=1, kind="stable")
    below = np.cumsum(order >= value_bl.shape[1], axis=1)
    count = np.empty_like(order)
    np.put_along_axis(count, order, below, axis=1)
    return count[:, : value_bl.shape[1]]


def _take(value_bl: npt.NDArray[Scalar], order_bl: Ints) -> npt.NDArray[Scalar]:
    return np.take_along_axis(value_bl, order_bl, axis=1)


def _as_items(work: _RankBuffers, top: int) -> UserItems:
    count = np.where(work.top == NO_KEY, 0, np.arange(1, top + 1)).max(axis=1)
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return UserItems(offsets, work.top[np.arange(top) < count[:, None]])
