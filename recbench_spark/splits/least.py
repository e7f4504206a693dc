"""Leave out users and items with few rows: the k-core of papers.

Rows are counted in tasks. Users' rows are together there, and items' counts are exchanged; the driver holds
the items that are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Least
from recbench_spark.core.arrays import Bools
from recbench_spark.errors import DataError
from recbench_spark.sources import columnar
from recbench_spark.sources.dealt_ids import apply_both, deal_table
from recbench_spark.sources.opened_logs import OpenedLog
from recbench_spark.splits.audit import deal_users
from recbench_spark.splits.labels import HISTORY
from recbench_spark.splits.positions import encode_ids, id_column, id_numbers, name_parts
from recbench_spark.storage.blocks import Engine, TaskRows
from recbench_spark.storage.dealt_rows import DealtRows


class LeastRule(NamedTuple):
    """Least rows of users and items, as plain numbers.

    Attributes:
        user, item: the least rows of each.
        in_history: true if training and given rows count; otherwise all rows.
        until_stable: true if rows are counted again until nothing is left out.
        dropped: items that are left out, as text.
    """

    user: int
    item: int
    in_history: bool
    until_stable: bool
    dropped: pa.Array

    def mark(self, rows: pa.Table) -> tuple[Bools, Bools]:
        """Return rows that stay, and those that count for their items, (r,) each.

        Args:
            rows: all rows of some users, ids as in `encode_ids`.
        """
        items, user_r = id_column(rows, "item_id"), id_numbers(rows, "user_id")
        is_left = pc.invert(pc.is_in(items.dictionary, self.dropped)).to_numpy(zero_copy_only=False)
        item_stays_r = is_left[id_numbers(rows, "item_id")] if len(rows) else np.zeros(0, np.bool_)
        counts_r = np.ones(len(rows), np.bool_)
        if self.in_history:
            names, part_r = name_parts(rows)
            counts_r = np.isin(names, HISTORY)[part_r]
        of_user_r = counts_r & item_stays_r if self.until_stable else counts_r
        n_u = np.bincount(user_r[of_user_r], minlength=len(id_column(rows, "user_id").dictionary))
        stays_r = item_stays_r & (n_u >= self.user)[user_r]
        return stays_r, counts_r & (stays_r if self.until_stable else True)


class LeastCounts(NamedTuple):
    """Rows before and after; users and items that stay; the final rule."""

    before: int
    rows: int
    users: int
    items: int
    rule: LeastRule

    def describe(self) -> str:
        """Return the counts in words."""
        rule, share = self.rule, self.rows / max(self.before, 1)
        where = "training" if rule.in_history else "the whole log"
        again = "until nothing changes" if rule.until_stable else "counted once"
        return (
            f"of users with fewer than {rule.user} rows or items with fewer than {rule.item} in {where}, "
            f"{again}; {self.users:,} users, {self.items:,} items, {share:.1%} of the rows stay"
        )


def make_least_rule(least: Least) -> LeastRule:
    """Return the settings for tasks."""
    none = pa.array([], pa.string())
    return LeastRule(least.user, least.item, least.on == "train", least.until_stable, none)


@contextmanager
def keep_frequent(
    log: OpenedLog, least: Least | None, engine: Engine
) -> Iterator[tuple[OpenedLog, LeastCounts | None]]:
    """Leave out a log's rows of rare users and items, where they are counted in the whole log.

    Raises:
        DataError: no row stays.
    """
    if least is None or least.on != "log":
        yield log, None
        return
    tasks = engine.count_tasks(log.n)
    deal = partial(columnar.deal_owners, owner="user_id", tasks=tasks)
    with log.rows.deal(log.columns, deal, tasks).keep() as rows:
        counts = count_frequent(rows, make_least_rule(least), tasks)
        left = rows.then(partial(prune, rule=counts.rule), log.columns)
        yield replace(log, rows=DealtRows(left), n=counts.rows), counts


def prune_labelled(
    rows: TaskRows, least: Least | None, n: int, engine: Engine
) -> tuple[TaskRows, LeastCounts | None]:
    """Leave out labelled rows of users and items with few training rows, in all parts.

    Args:
        rows: labelled rows, whole by user.
        least: the least numbers.
        n: number of rows, about.
        engine: the runner.

    Raises:
        DataError: no row stays.
    """
    if least is None or least.on != "train":
        return rows, None
    names, tasks = ("user_id", "item_id", "part"), engine.count_tasks(n)
    slim = rows.then(partial(_select, change=rows.change, names=names), names)
    with slim.deal(partial(deal_users, tasks=tasks), tasks).keep() as kept:
        counts = count_frequent(kept, make_least_rule(least), tasks)
    return rows.then(partial(apply_both, rows.change, partial(prune, rule=counts.rule)), rows.names), counts


def count_frequent(rows: TaskRows, rule: LeastRule, tasks: int) -> LeastCounts:
    """Find the items that are left out, and count what stays.

    Args:
        rows: rows as they were dealt, whole by user.
        rule: the least numbers, before an item is left out.
        tasks: number of tasks that count items.
    """
    counted = ("item_id", "n")
    while True:
        counts = rows.then(partial(_count_items, rule=rule, every=not rule.until_stable), counted)
        dealt = counts.deal(partial(deal_table, name="item_id", tasks=tasks), tasks)
        rare = [ids for ids in dealt.each(partial(_find_rare, least=rule.item)) if len(ids)]
        rule = rule._replace(dropped=pa.concat_arrays([rule.dropped, *rare]))
        if not rare or not rule.until_stable:
            break
    counts = rows.then(partial(_count_items, rule=rule, every=False), counted)
    items = sum(counts.deal(partial(deal_table, name="item_id", tasks=tasks), tasks).each(_count_ids))
    before, left, users = np.sum(rows.each(partial(_count_left, rule=rule)), axis=0).tolist()
    if not left:
        message = f"dataset.least: no row stays: user {rule.user}, item {rule.item}"
        raise DataError(message, "smaller numbers, or until_stable: false")
    return LeastCounts(before, left, users, items, rule)


def prune(rows: pa.Table, rule: LeastRule) -> pa.Table:
    """Return the rows that stay, of all rows of some users."""
    rows = encode_ids(rows)
    stays_r, _ = rule.mark(rows)
    return rows if stays_r.all() else rows.filter(pa.array(stays_r))


def _count_items(rows: pa.Table, rule: LeastRule, every: bool) -> pa.Table:
    """Count the rows of each item that stays, or of every one; 0 where only other parts have it."""
    rows = encode_ids(rows)
    stays_r, counts_r = rule.mark(rows)
    items, item_r = id_column(rows, "item_id"), id_numbers(rows, "item_id")
    there_x = np.bincount(item_r[stays_r | every], minlength=len(items.dictionary)) > 0
    n_x = np.bincount(item_r[counts_r], minlength=len(items.dictionary))
    table = pa.table({"item_id": items.dictionary, "n": pa.array(n_x.astype(np.int64))})
    return table.filter(pa.array(there_x))


def _sum_items(counts: pa.Table) -> pa.Table:
    return counts.group_by("item_id").aggregate([("n", "sum")])


def _find_rare(counts: pa.Table, least: int) -> pa.Array:
    items = _sum_items(counts)
    ids = items.column("item_id").filter(pc.less(items.column("n_sum"), least))
    return ids.cast(pa.string()).combine_chunks()


def _count_ids(counts: pa.Table) -> int:
    return len(_sum_items(counts))


def _count_left(rows: pa.Table, rule: LeastRule) -> tuple[int, int, int]:
    """Count rows, those that stay, and their users."""
    rows = encode_ids(rows)
    stays_r, _ = rule.mark(rows)
    return len(rows), int(stays_r.sum()), len(np.unique(id_numbers(rows, "user_id")[stays_r]))


def _select(rows: pa.Table, change: Callable[[pa.Table], pa.Table], names: Sequence[str]) -> pa.Table:
    return change(rows).select(list(names))
