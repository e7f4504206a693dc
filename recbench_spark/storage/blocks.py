"""Rows in pieces, and rows dealt to tasks.

A block is an Arrow table with some thousand rows, as one value (`packed_blocks`). `frame_blocks` has the
same two classes for frames of Spark. One shuffle deals several tables by user (`deal_sides`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import pyarrow as pa

from recbench_spark.core.streams import gather_tables, serialize_table
from recbench_spark.engine.measures import (
    CELLS,
    PIECE_ROWS,
    Measures,
    deal_sums,
    finish_sums,
    read_results,
    sum_rows,
)
from recbench_spark.engine.pipes import unite_tasks
from recbench_spark.storage.packed_blocks import (
    Block,
    Change,
    Read,
    Result,
    deal_tables,
    decode_dictionaries,
    finish_tables,
    partition_rows,
    read_blocks,
)

if TYPE_CHECKING:
    from recbench_spark.engine.local import LocalEngine
    from recbench_spark.engine.sessions import SparkEngine

Deal = Callable[[Iterable[pa.Table]], Iterator[Block]]
"""Partitions some tables into blocks, each with its task's number."""

DealFrom = Callable[[int, Iterable[Any]], Iterator[Block]]
"""The same, by a function that first takes the number of its own task."""

OpenPieces = Callable[..., Iterable[pa.Table]]
"""Reads columns (`columns`) of some pieces."""


Engine: TypeAlias = "LocalEngine | SparkEngine"
"""A runner of tasks, with the same methods on this machine and by Spark."""


class TaskRows(Protocol):
    """Rows held by tasks, after a shuffle or from files."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of the result."""

    @property
    def whole(self) -> str:
        """Column of ids with all rows together, or empty."""

    @property
    def change(self) -> Change:
        """Function from a task's rows to its result."""

    def each(self, finish: Callable[[pa.Table], Result]) -> list[Result]:
        """Apply `finish` to each task's result; the driver holds them."""

    def then(self, change: Change, names: tuple[str, ...]) -> TaskRows:
        """Return the same rows with another function."""

    def deal(self, deal: Deal, tasks: int) -> TaskRows:
        """Send blocks of the results to tasks: another shuffle."""

    def deal_from(self, deal: DealFrom, tasks: int) -> TaskRows:
        """Send blocks as `deal`; the function also takes its task's number."""

    def beside(self, others: Sequence[TaskRows], tasks: int) -> TaskRows:
        """Bring blocks of other shuffles, with their side's number, to the same tasks.

        All are kept, and were sent to so many tasks. A task reads `Sides`; these rows are side 0.
        """

    def keep(self) -> AbstractContextManager[TaskRows]:
        """Keep the rows of tasks, for several readings."""


class Rows(Protocol):
    """Unordered rows in pieces, read when a method asks."""

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return `sums` of each task's tables; the driver holds them."""

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> TaskRows:
        """Send blocks to tasks; this is the only shuffle.

        A sending task holds at least `tasks` blocks.
        """


class StoredRows(Rows, Protocol):
    """Rows as stored: a table's, or a frame's."""

    def open(self, columns: Sequence[str], change: Change, names: tuple[str, ...]) -> TaskRows:
        """Let tasks change the tables they read, without a shuffle."""

    def rename(self, names: Mapping[str, str]) -> StoredRows:
        """Return the rows with new column names (new -> old)."""

    def unite(self, other: PieceRows, columns: Sequence[str]) -> StoredRows:
        """Return some columns of these rows and others."""


@dataclass(frozen=True)
class Blocks:
    """Rows dealt to tasks, and a function to apply there.

    Attributes:
        tasks: each task's blocks or files, with the words of Spark's RDDs.
        change: function from all rows of a task to its result; it is sent to the tasks.
        names: columns of the result.
        whole: column of ids with all rows in one task (files: `packed_blocks.are_whole`); empty: none.
        read: function from a task's items to tables.
    """

    tasks: Any
    change: Change
    names: tuple[str, ...] = ()
    whole: str = ""
    read: Read = read_blocks

    def each(self, finish: Callable[[pa.Table], Result]) -> list[Result]:
        """Apply `finish` to each task's result; the driver holds all."""
        run = partial(finish_tables, read=self.read, change=self.change, finish=finish)
        return list(self.tasks.mapPartitions(run).collect())

    def then(self, change: Change, names: tuple[str, ...]) -> Blocks:
        """Return the same rows with another function."""
        return replace(self, change=change, names=names)

    def deal(self, deal: Deal, tasks: int) -> Blocks:
        """Send blocks of the results to tasks: another shuffle."""
        run = partial(deal_tables, read=self.read, change=self.change, deal=deal)
        return Blocks(self.tasks.mapPartitions(run).partitionBy(tasks, int).values(), return_rows)

    def deal_from(self, deal: DealFrom, tasks: int) -> Blocks:
        """Send blocks as `deal`; the function also takes its task's number."""
        run = partial(_deal_numbered, read=self.read, change=self.change, deal=deal)
        return Blocks(self.tasks.mapPartitionsWithIndex(run).partitionBy(tasks, int).values(), return_rows)

    def beside(self, others: Sequence[TaskRows], tasks: int) -> Blocks:
        """Bring blocks of other shuffles to the same tasks, which read `Sides`."""
        sides = [self.tasks, *(cast(Blocks, one).tasks for one in others)]
        return replace(self, tasks=unite_tasks(sides, tasks), change=return_rows, read=read_sides)

    @contextmanager
    def keep(self) -> Iterator[Blocks]:
        """Keep the rows of tasks, for several readings."""
        hold = getattr(self.tasks, "hold", None)  # RDDs keep their rows anyway
        with hold() if hold else nullcontext(self.tasks) as tasks:
            yield replace(self, tasks=tasks)

    def pack(self) -> Any:
        """Return all tasks' results as blocks of task 0."""
        finish = partial(_pack_rows, names=self.names)
        return self.tasks.mapPartitions(
            partial(finish_tables, read=self.read, change=self.change, finish=finish)
        )


def _deal_numbered(
    task: int, items: Iterable[Any], read: Read, change: Change, deal: DealFrom
) -> Iterator[Block]:
    return deal_tables(items, read, change, partial(deal, task))


def _pack_rows(rows: pa.Table, names: Sequence[str]) -> Block:
    return 0, serialize_table(rows.select(names))


@dataclass(frozen=True)
class PieceRows:
    """Rows which tasks open piece by piece, without the driver.

    Attributes:
        engine: the runner.
        pieces: files, row groups, or whatever `read` opens; a task gets one.
        read: function from pieces and columns to tables.
    """

    engine: Engine
    pieces: Sequence[Any]
    read: OpenPieces

    @property
    def files(self) -> tuple[str, ...]:
        """The pieces' files: alone, or before their partition's values."""
        return tuple(piece if isinstance(piece, str) else piece[0] for piece in self.pieces)

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return `sums` of each task's tables; the driver holds them."""
        return list(self._open(columns, partial(_sum_one, sums=sums)).collect())

    def reduce(
        self,
        columns: Sequence[str],
        sums: Callable[[Iterable[pa.Table]], Result],
        add: Callable[[Result, Result], Result],
    ) -> Result:
        """Add up `sums` of tasks' tables, two at a time."""
        total: Result = self._open(columns, partial(_sum_one, sums=sums)).treeReduce(add)
        return total

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> Blocks:
        """Send blocks to tasks: the only shuffle."""
        return Blocks(self._open(columns, deal).partitionBy(tasks, int).values(), return_rows)

    def open(self, columns: Sequence[str], change: Change, names: tuple[str, ...]) -> Blocks:
        """Let each task change its piece's tables, without a shuffle."""
        return Blocks(self._start(), change, names, read=partial(self.read, columns=tuple(columns)))

    def rename(self, names: Mapping[str, str]) -> PieceRows:
        """Return the rows with new column names (new -> old)."""
        return replace(self, read=partial(_read_renamed, read=self.read, names=names))

    def unite(self, other: PieceRows, columns: Sequence[str]) -> PieceRows:
        """Return some columns of these rows and others."""
        pieces = [(rows.read, piece) for rows in (self, other) for piece in rows.pieces]
        return PieceRows(self.engine, pieces, _read_each)

    def _start(self) -> Any:
        return self.engine.parallelize(self.pieces, max(len(self.pieces), 1))

    def _open(self, columns: Sequence[str], work: Callable[[Iterable[pa.Table]], Iterable[Any]]) -> Any:
        return self._start().mapPartitions(partial(self.read, columns=tuple(columns))).mapPartitions(work)


def reduce_rows(measures: Measures, rows: Rows, tasks: int = 1) -> dict[str, pa.Table]:
    """Reduce rows by all measures in one pass.

    A measure without sums has no result. Tasks' sums are shuffled by cell. The driver holds the results.

    Args:
        measures: measures by name.
        rows: all columns needed by the measures.
        tasks: number of tasks to finish cells.
    """
    columns = tuple(dict.fromkeys(name for measure in measures.values() for name in measure.needs))
    sums = rows.deal(columns, partial(_deal_cells, measures=measures, tasks=tasks), tasks)
    return read_results(measures, finish_dealt(measures, sums))


def reduce_tasks(measures: Measures, rows: TaskRows, tasks: int = 1) -> dict[str, pa.Table]:
    """Reduce tasks' rows; a measure gets a whole task."""
    deal = partial(_deal_cells, measures=measures, tasks=tasks, most=None)
    return read_results(measures, finish_dealt(measures, rows.deal(deal, tasks)))


def finish_dealt(measures: Measures, sums: TaskRows) -> pa.Table:
    """Finish all cells dealt by `pack_sums`: rows of `CELLS`."""
    return pa.concat_tables([CELLS.empty_table(), *sums.each(partial(finish_sums, measures))])


def _deal_cells(
    tables: Iterable[pa.Table], measures: Measures, tasks: int, most: int | None = PIECE_ROWS
) -> Iterator[Block]:
    return pack_sums(sum_rows(measures, tables, most), measures, tasks)


def pack_sums(sums: Iterable[pa.RecordBatch], measures: Measures, tasks: int) -> Iterator[Block]:
    """Pack rows of `CELLS` in blocks for tasks to finish."""
    for task, cells in deal_sums(sums, measures, tasks):
        yield task, serialize_table(pa.Table.from_batches([cells]))


def run_pieces(engine: Engine) -> Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]:
    """Return a function which runs work on pieces as tasks."""
    return lambda work, pieces: list(engine.parallelize(pieces, len(pieces)).map(work).collect())


def mark_whole(rows: TaskRows, column: str) -> TaskRows:
    """Mark a column: each id's rows lie in one task."""
    marked: TaskRows = replace(rows, whole=column)  # type: ignore[type-var]
    return marked


def count_table_rows(tables: Iterable[pa.Table]) -> int:
    """Count a task's rows."""
    return sum(map(len, tables))


def return_rows(rows: pa.Table) -> pa.Table:
    """Return a task's rows as they are."""
    return rows


def rename_results(rows: TaskRows, names: Mapping[str, str]) -> TaskRows:
    """Return tasks' results with new column names (new -> old)."""
    old = {was: name for name, was in names.items()}
    renamed = tuple(old.get(name, name) for name in rows.names)
    return rows.then(partial(_rename, change=rows.change, names=old), renamed)


def _rename(rows: pa.Table, change: Change, names: Mapping[str, str]) -> pa.Table:
    changed = change(rows)
    return changed.rename_columns([names.get(name, name) for name in changed.column_names])


def _read_renamed(
    pieces: Iterable[Any], columns: Sequence[str], read: OpenPieces, names: Mapping[str, str]
) -> Iterator[pa.Table]:
    for rows in read(pieces, columns=[names.get(name, name) for name in columns]):
        yield rows.rename_columns(list(columns))


def _read_each(pieces: Iterable[tuple[OpenPieces, Any]], columns: Sequence[str]) -> Iterator[pa.Table]:
    for read, piece in pieces:
        yield from read([piece], columns=columns)


def _sum_one(tables: Iterable[pa.Table], sums: Callable[[Iterable[pa.Table]], Result]) -> Iterator[Result]:
    yield sums(tables)


# ---------------------------------------- several sides by user, and changed rows

NUMBER_KEY = b"recbench.side"
"""Metadata of a block: its side's number."""

Sides = dict[int, list[Any]]
"""A task's blocks, by their side's number."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows which tasks change in slices while they read them.

    Attributes:
        rows: the rows.
        columns: columns for `change` to read.
        change: function from some rows to others; it is sent to the tasks.
        names: columns of the others.
        most: rows changed at once.
    """

    rows: Rows
    columns: Sequence[str]
    change: Change
    names: tuple[str, ...]
    most: int = PIECE_ROWS

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return `sums` of each task's tables, as `Rows.each`."""
        return self.rows.each(self.columns, partial(_apply, work=sums, changes=self.list_changes(columns)))

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> TaskRows:
        """Send blocks to tasks, as `Rows.deal`."""
        work = partial(_apply, work=deal, changes=self.list_changes(columns))
        return self.rows.deal(self.columns, work, tasks)

    def list_changes(self, columns: Sequence[str]) -> Callable[[Iterable[pa.Table]], Iterator[pa.Table]]:
        """Return the function for tasks to change their tables."""
        return partial(_change_slices, change=self.change, most=self.most, columns=tuple(columns))


class NamedRows(Rows, Protocol):
    """Rows with known columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""


class Side(NamedTuple):
    """Rows with a column `user_id`, shuffled beside other sides."""

    number: int  # chosen by the caller, unlike other sides'
    rows: Rows
    columns: Sequence[str]


class DealtSide(NamedTuple):
    """Stored rows, and a task's work on them."""

    rows: PieceRows | SideRows
    columns: Sequence[str]
    deal: Callable[[Iterable[pa.Table]], Iterator[Any]]


class SideRows(Protocol):
    """Rows which only their own runner can open."""

    def deal_sides(self, sides: Sequence[DealtSide], tasks: int) -> TaskRows:
        """Deal several sides in one shuffle."""


def deal_sides(engine: Engine, sides: Sequence[Side], tasks: int) -> TaskRows:
    """Deal all sides by user in one shuffle.

    A task reads one value, of the type `Sides`. Tasks open pieces by themselves. Where Spark must read one
    of the sides, frames deal all.
    """
    opened = [
        flatten_changes(one.rows, one.columns, partial(_deal_side, number=one.number, tasks=tasks))
        for one in sides
    ]
    for side in opened:
        if not isinstance(side.rows, PieceRows):
            return side.rows.deal_sides(opened, tasks)
    sources = [cast(PieceRows, side.rows).pieces for side in opened]
    pieces = [(place, piece) for place, own in enumerate(sources) for piece in own]
    deals = [cut_pieces(side) for side in opened]
    dealt = engine.parallelize(pieces, max(1, min(len(pieces), max(tasks, engine.cores))))
    sent = dealt.mapPartitions(partial(_deal_pieces, deals=deals)).partitionBy(tasks, int).values()
    return Blocks(sent, return_rows, read=read_sides)


def flatten_changes(rows: Rows, columns: Sequence[str], work: Callable[..., Any]) -> DealtSide:
    """Return stored rows, and their changes followed by `work`."""
    while isinstance(rows, ChangedRows):
        work = partial(_apply, work=work, changes=rows.list_changes(columns))
        columns, rows = rows.columns, rows.rows
    return DealtSide(cast("PieceRows | SideRows", rows), tuple(columns), work)


def cut_pieces(side: DealtSide) -> Callable[[Any], Iterator[Any]]:
    """Return a pickling function to open and deal a piece."""
    assert isinstance(side.rows, PieceRows)
    return partial(_deal_piece, read=side.rows.read, columns=side.columns, deal=side.deal)


def read_sides(blocks: Iterable[bytes | pa.Buffer]) -> Iterator[Sides]:
    """Yield a task's blocks by side; without a number it is 0.

    Without a block there is nothing.
    """
    sides: Sides = {}
    for block in blocks:
        metadata = pa.ipc.open_stream(block).schema.metadata or {}
        sides.setdefault(int(metadata.get(NUMBER_KEY, 0)), []).append(block)
    if sides:
        yield sides


def _apply(tables: Iterable[pa.Table], work: Callable[..., Any], changes: Callable[..., Any]) -> Any:
    return work(changes(tables))


def _change_slices(
    tables: Iterable[pa.Table], change: Change, most: int, columns: Sequence[str]
) -> Iterator[pa.Table]:
    for table in tables:
        for start in range(0, len(table), most):
            yield change(table.slice(start, most).combine_chunks()).select(columns)


def _deal_pieces(
    numbered: Iterable[tuple[int, Any]], deals: Sequence[Callable[[Any], Iterator[Block]]]
) -> Iterator[Block]:
    for place, piece in numbered:
        yield from deals[place](piece)


def _deal_piece(piece: Any, read: Any, columns: Sequence[str], deal: Any) -> Any:
    return deal(read([piece], columns=columns))


def _deal_side(tables: Iterable[pa.Table], number: int, tasks: int) -> Iterator[Block]:
    """Partition a side by user, in large blocks."""
    from recbench_spark.core.hashed_ids import hash_encoded  # noqa: PLC0415

    for table in gather_tables(tables):
        ids = table.column("user_id").combine_chunks()
        hashes_r = hash_encoded(ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode())
        rows = decode_dictionaries(table).combine_chunks()
        rows = rows.replace_schema_metadata({NUMBER_KEY: str(number)})
        yield from partition_rows(rows, (hashes_r % tasks).astype("int32"))
