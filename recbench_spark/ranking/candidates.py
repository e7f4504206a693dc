"""Candidates for each user: given rows, or drawn items.

Runs without Spark.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.ranking.kernels.moments import count_candidates, mark_available
from recbench_spark.ranking.kernels.positives import ItemLists, make_positives
from recbench_spark.ranking.moments import ItemMoments
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.shared_arrays import bound_lists, flatten_lists


class CandidateRule(NamedTuple):
    """Meaning of the rows with candidates.

    Attributes:
        with_truth: truth items are candidates too, even if the rows do not list them.
        drawn: how items are drawn, one of SAMPLED; None: given rows.
        n_items: catalogue size, for draws.
        moments: users have moments, and items that did not exist then are no candidates.
        draw: draws each row's items where no rows have them.
    """

    with_truth: bool = False
    drawn: str | None = None
    n_items: int = 0
    moments: ItemMoments | None = None
    draw: Change | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in the rows."""
        return ("user_id", "candidates") if self.drawn is None else ("user_id", "part", "items")


class Candidates(NamedTuple):
    """Items among which each user's truth is ranked.

    Attributes:
        rows: user_id, candidates (item indices); for draws user_id, part, items from
            `negatives.draw_candidates`. None: tasks draw them.
        rule: what these rows are.
    """

    rows: Rows | None
    rule: CandidateRule


def add_candidates(users: pa.Table, rows: pa.Table | None, rule: CandidateRule) -> pa.Table:
    """Add `candidates`, for uniform draws also `drawn` and `pool`.

    Users without own candidates have NULL in `candidates` and `drawn`.

    Args:
        users: rows from `part_users.select_part_users`.
        rows: candidates for these users; None: they have none.
        rule: what these rows are.
    """
    truth, kind = users.column("items"), pa.list_(pa.int32())
    lists = pa.nulls(len(users), kind)
    if rows is not None:
        place_n = pc.index_in(_key_users(users, rule), _key_users(rows, rule))
        lists = rows.column(rule.columns[-1]).cast(kind).take(place_n).combine_chunks()
    elif rule.draw is not None:
        lists = rule.draw(users).column("items").combine_chunks()
    if rule.moments is not None and rule.draw is None:
        lists = _keep_available(lists, users, rule.moments)
    if rule.drawn is None and not rule.with_truth:
        return users.append_column("candidates", lists)
    added = _remove_items(lists, truth) if rule.drawn is None else lists
    users = users.append_column("candidates", _join_lists(truth, added, pc.is_null(lists)))
    # A correction for popularity draws would need the popularity at every rank.
    if rule.drawn != "uniform":
        return users
    pool_n = _count_pool(users, _join_lists(truth, users.column("masked")), rule)
    users = users.append_column("drawn", pc.list_value_length(lists))
    return users.append_column("pool", pa.array(pool_n, pa.int64()))


def _keep_available(lists: pa.Array, users: pa.Table, moments: ItemMoments) -> pa.ListArray:
    """Remove items that did not exist at their user's moment."""
    opened, (row_e, item_e) = moments.open(), _number_pairs(lists)
    is_kept = mark_available(opened.periods, item_e, opened.at(users).moment_u[row_e])
    return _make_lists(row_e[is_kept], item_e[is_kept], len(lists), pc.is_null(lists))


def _count_pool(users: pa.Table, known: pa.ListArray, rule: CandidateRule) -> Ints:
    """Count the items from which each row's are drawn, (n,)."""
    if rule.moments is None:
        return rule.n_items - _count_distinct(known)
    scored_i, (offsets, items) = np.ones(rule.n_items, np.bool_), flatten_lists(known)
    masked = ItemLists(offsets, items.astype(np.int64))
    plan = make_positives(scored_i, ItemLists.empty(masked.users), masked)
    return count_candidates(scored_i, rule.moments.open().at(users), plan)


def _key_users(rows: pa.Table, rule: CandidateRule) -> pa.Array:
    """Return each row's user id; for draws with the part."""
    ids = rows.column("user_id").combine_chunks()
    if rule.drawn is None:
        return ids
    return pc.binary_join_element_wise(ids, rows.column("part").combine_chunks(), "\0")


def _number_pairs(lists: pa.Array) -> tuple[Ints, Ints]:
    """Return row and item for each list entry, (e,) each."""
    offsets, items = flatten_lists(lists)
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), items.astype(np.int64)


def _join_lists(first: pa.Array, second: pa.Array, mask: pa.Array | None = None) -> pa.ListArray:
    """Concatenate each row's two lists; NULL where masked."""
    rows, items = zip(_number_pairs(first), _number_pairs(second), strict=True)
    row_e, item_e = np.concatenate(rows), np.concatenate(items)
    return _make_lists(row_e, item_e, len(first), mask)


def _remove_items(lists: pa.Array, others: pa.Array) -> pa.ListArray:
    """Remove each second list's items from the first list."""
    (row_e, item_e), (row_o, item_o) = _number_pairs(lists), _number_pairs(others)
    is_kept = ~np.isin((row_e << 32) + item_e, (row_o << 32) + item_o)
    return _make_lists(row_e[is_kept], item_e[is_kept], len(lists))


def _make_lists(row_e: Ints, item_e: Ints, n: int, mask: pa.Array | None = None) -> pa.ListArray:
    order = np.argsort(row_e, kind="stable")
    items = pa.array(item_e[order], pa.int32())
    return pa.ListArray.from_arrays(bound_lists(row_e[order], n), items, mask=mask)


def _count_distinct(lists: pa.ListArray) -> Ints:
    """Count distinct items in each list, (n,)."""
    row_e, item_e = _number_pairs(lists)
    return np.bincount(np.unique((row_e << 32) + item_e) >> 32, minlength=len(lists))
