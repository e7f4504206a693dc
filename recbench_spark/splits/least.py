"""Leave out users and items with few rows: the k-core of papers.

Users' rows are together in tasks, and items' counts are exchanged: tasks that count an item answer those
that have it. In tasks ids are numbers, and the driver holds numbers of rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Least
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.core.streams import serialize_table
from recbench_spark.errors import DataError
from recbench_spark.sources import columnar
from recbench_spark.sources.dealt_ids import deal_table
from recbench_spark.sources.opened_logs import OpenedLog
from recbench_spark.splits.labels import HISTORY
from recbench_spark.splits.positions import encode_ids, id_column, id_numbers, name_parts, rank_ids
from recbench_spark.storage.blocks import NUMBER_KEY, Engine, Sides, TaskRows
from recbench_spark.storage.dealt_rows import DealtRows
from recbench_spark.storage.packed_blocks import Block, Change, partition_rows, unpack_blocks

ROWS, NUMBERS, DROPPED, TEXTS = range(4)
"""Sides of a task: its users' rows, the numbers of their items, those left out; items that it counts."""


class LeastRule(NamedTuple):
    """Least rows of users and items, as plain numbers.

    Attributes:
        user, item: the least rows of each.
        in_history: true if training and given rows count; otherwise all rows.
        until_stable: true if rows are counted again until nothing is left out.
    """

    user: int
    item: int
    in_history: bool
    until_stable: bool

    def number(self, rows: pa.Table) -> NumberedRows:
        """Return a task's rows as numbers, whatever their order.

        Args:
            rows: all rows of some users, ids as in `encode_ids`.
        """
        counts_r = np.ones(len(rows), np.bool_)
        if self.in_history:
            names, part_r = name_parts(rows)
            counts_r = np.isin(names, HISTORY)[part_r]
        return NumberedRows(id_numbers(rows, "user_id"), rank_ids(rows, "item_id", numeric=False), counts_r)

    def mark(self, rows: NumberedRows, dropped: Ints) -> tuple[Bools, Bools]:
        """Return rows that stay, and those that count for their items, (r,) each.

        Args:
            rows: all rows of some users.
            dropped: their items that are left out.
        """
        is_left = np.ones(rows.item_r.max(initial=-1) + 1, np.bool_)
        is_left[dropped] = False
        item_stays_r = is_left[rows.item_r]
        of_user_r = rows.counts_r & item_stays_r if self.until_stable else rows.counts_r
        n_u = np.bincount(rows.user_r[of_user_r], minlength=rows.user_r.max(initial=-1) + 1)
        stays_r = item_stays_r & (n_u >= self.user)[rows.user_r]
        return stays_r, rows.counts_r & (stays_r if self.until_stable else True)


class NumberedRows(NamedTuple):
    """A task's rows, (r,): numbers of user and item there, and whether a row counts."""

    user_r: Ints
    item_r: Ints
    counts_r: Bools


class LeastCounts(NamedTuple):
    """Rows before and after; users and items that stay; the rule."""

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
    return LeastRule(least.user, least.item, least.on == "train", least.until_stable)


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
    rows = log.rows.deal(log.columns, deal, tasks).then(encode_ids, log.columns)
    with _leave_out(rows, make_least_rule(least), tasks) as (left, counts):
        yield replace(log, rows=DealtRows(left), n=counts.rows), counts


@contextmanager
def prune_labelled(
    rows: TaskRows, least: Least | None, n: int, engine: Engine
) -> Iterator[tuple[TaskRows, LeastCounts | None]]:
    """Leave out labelled rows of users and items with few training rows, in all parts.

    Args:
        rows: labelled rows, whole by user.
        least: the least numbers.
        n: number of rows, as when they were dealt to tasks.
        engine: the runner.

    Raises:
        DataError: no row stays.
    """
    if least is None or least.on != "train":
        yield rows, None
        return
    with _leave_out(rows, make_least_rule(least), engine.count_tasks(n)) as left:
        yield left


@contextmanager
def _leave_out(rows: TaskRows, rule: LeastRule, tasks: int) -> Iterator[tuple[TaskRows, LeastCounts]]:
    """Return the rows that stay, and the counts.

    A shuffle brings their numbers, and the numbers of items that are left out, to the tasks with the rows.

    Args:
        rows: rows as they were dealt, whole by user, ids as in `encode_ids`.
        rule: the least numbers.
        tasks: number of tasks with rows; as many count items.
    """
    with ExitStack() as stack:
        rows = stack.enter_context(rows.keep())
        dropped, counts = _count_frequent(rows, rule, tasks, stack)
        prune = partial(_prune, change=rows.change, rule=rule)
        yield rows.beside(dropped, tasks).then(prune, rows.names), counts


def _count_frequent(
    rows: TaskRows, rule: LeastRule, tasks: int, stack: ExitStack
) -> tuple[list[TaskRows], LeastCounts]:
    """Find the items of each task that are left out, round by round, and count what stays."""
    sent = stack.enter_context(rows.deal_from(partial(_deal_numbers, rule=rule, tasks=tasks), tasks).keep())
    numbers = sent.beside([], tasks).deal_from(partial(_answer_numbers, tasks=tasks), tasks)
    known, dropped = [stack.enter_context(numbers.keep())], list[TaskRows]()
    count = partial(_deal_counts, rule=rule, tasks=tasks)
    while True:
        state = sent.beside([*known, *dropped], tasks)
        if dropped and not rule.until_stable:
            break
        counted = state.deal_from(partial(count, every=not rule.until_stable), tasks)
        rare = counted.deal(partial(_answer_rare, least=rule.item, tasks=tasks), tasks)
        rare = stack.enter_context(rare.keep())
        if not sum(rare.each(len)):
            break
        dropped.append(rare)
    counted = state.deal_from(partial(count, every=False), tasks)
    before, left, users = np.sum(state.each(partial(_count_left, rule=rule)), axis=0).tolist()
    if not left:
        message = f"dataset.least: no row stays: user {rule.user}, item {rule.item}"
        raise DataError(message, "smaller numbers, or until_stable: false")
    return dropped, LeastCounts(before, left, users, sum(counted.each(_count_items)), rule)


# --------------------------------------------------------------------------------- in a task


def _deal_numbers(task: int, tables: Iterable[pa.Table], rule: LeastRule, tasks: int) -> Iterator[Block]:
    """Keep a task's rows there as numbers; send its items' texts to the tasks that count them."""
    for table in tables:
        user_r, item_r, counts_r = rule.number(table)
        numbers = {"user": user_r.astype(np.int32), "item": item_r.astype(np.int32), "counts": counts_r}
        yield task, serialize_table(_mark_side(numbers, ROWS))
        texts = id_column(table, "item_id").dictionary
        item_x = np.flatnonzero(np.bincount(item_r, minlength=len(texts))).astype(np.int32)
        texts = texts.take(pc.sort_indices(texts)).take(pa.array(item_x))
        source_x = np.full(len(item_x), task, np.int32)
        items = _mark_side({"item_id": texts, "item": item_x, "source": source_x}, TEXTS)
        yield from deal_table([items], "item_id", tasks)


def _answer_numbers(task: int, sides: Iterable[Sides], tasks: int) -> Iterator[Block]:
    """Tell each task the numbers of its items, of which this task counts those with its remainder."""
    for one in sides:
        items = _read_side(one, TEXTS)
        if items is not None:
            number_x = (
                encode_texts(items.column("item_id")).indices.to_numpy().astype(np.int64) * tasks + task
            )
            answer = _mark_side({"item": items.column("item"), "number": number_x}, NUMBERS)
            yield from partition_rows(answer, items.column("source").to_numpy())


def _deal_counts(
    task: int, sides: Iterable[Sides], rule: LeastRule, tasks: int, *, every: bool
) -> Iterator[Block]:
    """Count the rows of each item that stays, or of every one; 0 where only other parts have it."""
    for rows, dropped, number_x in map(_read_state, sides):
        if not len(number_x):
            continue
        stays_r, counts_r = rule.mark(rows, dropped)
        there = np.flatnonzero(np.bincount(rows.item_r[stays_r | every], minlength=len(number_x)))
        n_x = np.bincount(rows.item_r[counts_r], minlength=len(number_x))
        source_x = np.full(len(there), task, np.int32)
        counts = {"number": number_x[there], "item": there, "n": n_x[there], "source": source_x}
        if len(there):
            yield from partition_rows(pa.table(counts), (number_x[there] % tasks).astype(np.int32))


def _answer_rare(tables: Iterable[pa.Table], least: int, tasks: int) -> Iterator[Block]:
    """Tell each task which of its items have too few rows."""
    for counts in tables:
        number_x, n_x = (counts.column(name).to_numpy() for name in ("number", "n"))
        rare_x = np.bincount(number_x // tasks, n_x)[number_x // tasks] < least
        source_x = counts.column("source").to_numpy()[rare_x]
        if len(source_x):
            item_x = counts.column("item").to_numpy()[rare_x]
            yield from partition_rows(_mark_side({"item": item_x}, DROPPED), source_x)


def _count_left(sides: Sides, rule: LeastRule) -> tuple[int, int, int]:
    """Count rows, those that stay, and their users."""
    rows, dropped, _ = _read_state(sides)
    stays_r, _ = rule.mark(rows, dropped)
    return len(stays_r), int(stays_r.sum()), len(np.unique(rows.user_r[stays_r]))


def _count_items(counts: pa.Table) -> int:
    return len(np.unique(counts.column("number").to_numpy()))


def _prune(sides: Sides, change: Change, rule: LeastRule) -> pa.Table:
    """Return the rows that stay, of all rows of some users."""
    rows = change(_read_side(sides, ROWS))
    stays_r, _ = rule.mark(rule.number(rows), _read_dropped(sides))
    return rows if stays_r.all() else rows.filter(pa.array(stays_r))


def _read_state(sides: Sides) -> tuple[NumberedRows, Ints, Ints]:
    """Return a task's rows, its items that are left out, and all items' numbers."""
    rows, items = _read_side(sides, ROWS), _read_side(sides, NUMBERS)
    if rows is None or items is None:  # no users are here, but items to count
        none = np.empty(0, np.int64)
        return NumberedRows(none, none, none.astype(np.bool_)), none, none
    user_r, item_r = (rows.column(name).to_numpy() for name in ("user", "item"))
    counts_r = rows.column("counts").to_numpy(zero_copy_only=False)
    item_x, answer_x = (items.column(name).to_numpy() for name in ("item", "number"))
    number_x = np.empty(item_x.max() + 1, np.int64)
    number_x[item_x] = answer_x
    return NumberedRows(user_r, item_r, counts_r), _read_dropped(sides), number_x


def _read_dropped(sides: Sides) -> Ints:
    dropped = _read_side(sides, DROPPED)
    return np.empty(0, np.int64) if dropped is None else dropped.column("item").to_numpy()


def _read_side(sides: Sides, number: int) -> pa.Table | None:
    return unpack_blocks(sides.get(number, []))


def _mark_side(columns: dict[str, Any], number: int) -> pa.Table:
    return pa.table(columns).combine_chunks().replace_schema_metadata({NUMBER_KEY: str(number)})
