"""Compare the ids of two tables in tasks, without Spark.

Each id is dealt to one task, which counts it on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.checks import Check
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.ids import CANONICAL_INTEGER, IdArray, IdOverlap, respell
from recbench_spark.sources.arrow_rows import distinct_ids
from recbench_spark.sources.input_rules import report_common_ids
from recbench_spark.storage.blocks import ChangedRows, Engine, Rows, Side, Sides, TaskRows, deal_sides
from recbench_spark.storage.packed_blocks import Block, Change, partition_rows, unpack_blocks

EXAMPLES = 3
"""Ids from each side to show in messages."""


def deal_ids(engine: Engine, sides: Sequence[tuple[Rows, str]], tasks: int) -> TaskRows:
    """Deal ids from some rows to tasks, each id once.

    The column `id` holds them; `0`, `1` ... say which sides have them.

    Args:
        engine: the runner.
        sides: rows, and their id column (text; NULL is ignored).
        tasks: number of tasks.
    """
    opened = [
        Side(number, ChangedRows(rows, (name,), partial(_list_ids, name=name), ("user_id",)), ("user_id",))
        for number, (rows, name) in enumerate(sides)
    ]
    names = ("id", *map(str, range(len(sides))))
    return deal_sides(engine, opened, tasks).then(partial(_join_sides, sides=len(sides)), names)


def _list_ids(rows: pa.Table, name: str) -> pa.Table:
    return pa.table({"user_id": distinct_ids([rows.column(name)])})


def _join_sides(blocks: Sides, sides: int) -> pa.Table:
    tables = {number: unpack_blocks(blocks.get(number, [])) for number in range(sides)}
    ids = {number: distinct_ids([t.column("user_id")]) for number, t in tables.items() if t is not None}
    every = distinct_ids(list(ids.values()))
    flags = {
        str(n): pc.is_in(every, value_set=ids[n]) if n in ids else pa.repeat(False, len(every))
        for n in range(sides)
    }
    return pa.table({"id": every, **flags})


@dataclass(frozen=True)
class DealtIds:
    """Ids from two sides, as `core.ids.IdSides`.

    Attributes:
        rows: `id`, each once, and columns which tell which side has it: booleans, or counts.
        sides: columns for each side; an id is there if any of them counts it.
        name: user_id or item_id.
        sources: both tables' names in messages, then the types in which their ids were stored.
        tasks: number of tasks for ids in another spelling.
    """

    rows: TaskRows
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    name: str
    sources: tuple[str, str, str, str]
    tasks: int = 1

    def count_common(self) -> IdOverlap:
        """Count ids on both sides, and those in common."""
        return add_overlaps(self.rows.each(partial(count_overlap, sides=self.sides)))

    def count_respelled(self, changes: Sequence[str]) -> IdOverlap:
        """Count ids in common after changes by `SPELLINGS`.

        The changed ids are dealt again.
        """
        names = ("id", "left", "right")
        spelt = self._change(partial(_respell, sides=self.sides, changes=tuple(changes)), names)
        dealt = spelt.rows.deal(partial(deal_table, name="id", tasks=self.tasks), self.tasks)
        return add_overlaps(dealt.each(partial(_count_merged, sides=(("left",), ("right",)))))

    def drop_common(self) -> DealtIds:
        """Return each side's ids which the other side lacks."""
        return self._change(partial(_drop_common, sides=self.sides), self.rows.names)

    def read_examples(self) -> tuple[IdArray, IdArray]:
        """Return the smallest three ids from each side."""
        smallest = self.rows.each(partial(_list_smallest, sides=self.sides))

        def show(side: int) -> IdArray:
            first = sorted((one for task in smallest for one in task[side]), key=str.encode)[:EXAMPLES]
            return IdArray(f"{self.name} of {self.sources[side]}", self.sources[side + 2], first)

        return show(0), show(1)

    def _change(self, change: Change, names: tuple[str, ...]) -> DealtIds:
        return replace(self, rows=self.rows.then(partial(apply_both, self.rows.change, change), names))


def check_common_ids(
    engine: Engine,
    sides: Sequence[tuple[Rows, str]],
    sources: tuple[str, str, str, str],
    *,
    must: bool = True,
) -> list[Check]:
    """Warn if the two sides share hardly any id.

    The distinct ids from both are shuffled.

    Args:
        engine: the runner.
        sides: both sides' rows, and their id column.
        sources: as in `DealtIds`.
        must: whether having no common id is an error. Otherwise it is an error only for ids of two kinds
            (whole numbers and text), which can never be equal.

    Raises:
        DataError: no id is common; the message shows three ids from each side and both types.
    """
    tasks = engine.count_tasks(0)
    with deal_ids(engine, sides, tasks).keep() as dealt:
        both = DealtIds(dealt, (("0",), ("1",)), sides[0][1], sources, tasks)
        return report_common_ids(both.count_common(), both, both.name, sources[:2], must=must)


# ------------------------------------------------------------------------------- what tasks do


def apply_both(first: Change, second: Change, rows: pa.Table) -> pa.Table:
    """Apply one function after the other."""
    return second(first(rows))


def deal_table(tables: Iterable[pa.Table], name: str, tasks: int) -> Iterator[Block]:
    """Partition rows by an id column without NULL."""
    for table in tables:
        if len(table):
            task_r = (hash_ids(table.column(name)) % np.uint64(tasks)).astype(np.int32)
            yield from partition_rows(table.combine_chunks(), task_r)


def mark_side(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Mark rows in which a boolean or count is positive."""
    return pc.greater(reduce(pc.add, (rows.column(name).cast(pa.int64()) for name in names)), 0)


def match_numbers(rows: pa.Table) -> pa.ChunkedArray:
    """Mark ids which are a whole number's only spelling."""
    return pc.match_substring_regex(rows.column("id"), CANONICAL_INTEGER)


def count_overlap(
    rows: pa.Table, sides: Sequence[Sequence[str]], number: pa.ChunkedArray | None = None
) -> tuple[int, ...]:
    """Count ids on each side, common ones, and whole numbers.

    number: the result of `match_numbers`, if known.
    """
    left, right = (mark_side(rows, names) for names in sides)
    number = match_numbers(rows) if number is None else number
    tests = (left, right, pc.and_(left, right), pc.and_(left, number), pc.and_(right, number))
    return tuple(pc.sum(test, min_count=0).as_py() for test in tests)


def add_overlaps(counts: Iterable[tuple[int, ...]]) -> IdOverlap:
    """Add up the counts of `count_overlap` from all tasks."""
    left, right, common, *numbers = map(sum, zip((0,) * 5, *counts, strict=True))
    return IdOverlap((left, right), common, (numbers[0], numbers[1]))


def _respell(rows: pa.Table, sides: Sequence[Sequence[str]], changes: Sequence[str]) -> pa.Table:
    spelt = respell(rows.column("id"), changes)
    return pa.table({"id": spelt, "left": mark_side(rows, sides[0]), "right": mark_side(rows, sides[1])})


def _count_merged(rows: pa.Table, sides: Sequence[Sequence[str]]) -> tuple[int, ...]:
    merged = rows.group_by("id").aggregate([("left", "any"), ("right", "any")])
    return count_overlap(merged.rename_columns(["id", "left", "right"]), sides)


def _drop_common(rows: pa.Table, sides: Sequence[Sequence[str]]) -> pa.Table:
    left, right = (mark_side(rows, names) for names in sides)
    return rows.filter(pc.xor(left, right))


def _list_smallest(rows: pa.Table, sides: Sequence[Sequence[str]]) -> list[list[str]]:
    ids = [rows.column("id").filter(mark_side(rows, names)).combine_chunks() for names in sides]
    return [one.take(pc.array_sort_indices(one)[:EXAMPLES]).to_pylist() for one in ids]
