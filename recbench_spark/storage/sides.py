"""Several tables, dealt to tasks by user in one shuffle: a task gets all rows of its users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import pyarrow as pa

from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.storage.blocks import (
    Blocks,
    Deal,
    Engine,
    PieceRows,
    Rows,
    TaskRows,
    return_rows,
)
from recbench_spark.storage.packed_blocks import Block, Change, Result, decode_dictionaries, partition_rows

BUFFER_BYTES = 1 << 26
"""Bytes of rows that a task holds while it deals them."""

NUMBER_KEY = b"recbench.side"
"""Metadata of a block: the number of its side."""

Sides = dict[int, list[Any]]
"""The blocks that a task gets, by the number of their side."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows that tasks change, some at a time, when they read them.

    Attributes:
        rows: the rows.
        columns: columns that `change` reads.
        change: function from some rows to others; it is sent to the tasks.
        names: columns of the others.
        most: rows that are changed at once.
    """

    rows: Rows
    columns: Sequence[str]
    change: Change
    names: tuple[str, ...]
    most: int = PIECE_ROWS

    def each(self, columns: Sequence[str], sums: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
        """Return what `sums` makes of the tables of each task, as `Rows.each`."""
        return self.rows.each(self.columns, partial(_apply, work=sums, changes=self.list_changes(columns)))

    def deal(self, columns: Sequence[str], deal: Deal, tasks: int) -> TaskRows:
        """Send blocks to tasks, as `Rows.deal`."""
        work = partial(_apply, work=deal, changes=self.list_changes(columns))
        return self.rows.deal(self.columns, work, tasks)

    def list_changes(self, columns: Sequence[str]) -> Callable[[Iterable[pa.Table]], Iterator[pa.Table]]:
        """Return the function that tasks apply to the tables that they read."""
        return partial(_change_slices, change=self.change, most=self.most, columns=tuple(columns))


class NamedRows(Rows, Protocol):
    """Rows that know their columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""


class Side(NamedTuple):
    """Rows with a column `user_id`; the number is chosen by the caller, and is not that of another side."""

    number: int
    rows: Rows
    columns: Sequence[str]


class DealtSide(NamedTuple):
    """Rows as they are stored, and what a task makes of them, such as blocks."""

    rows: PieceRows | SideRows
    columns: Sequence[str]
    deal: Callable[[Iterable[pa.Table]], Iterator[Any]]


class SideRows(Protocol):
    """Rows that only their runner opens, and can deal beside others."""

    def deal_sides(self, sides: Sequence[DealtSide], tasks: int) -> TaskRows:
        """Deal several sides in one shuffle."""


def deal_sides(engine: Engine, sides: Sequence[Side], tasks: int) -> TaskRows:
    """Deal all sides by user in one shuffle; a task reads one value, of the type `Sides`.

    Tasks open pieces by themselves. Where Spark must read one of the sides, all are dealt by frames.
    """
    opened = [_open_side(side, tasks) for side in sides]
    for side in opened:
        if not isinstance(side.rows, PieceRows):
            return side.rows.deal_sides(opened, tasks)
    pieces = [(place, piece) for place, side in enumerate(opened) for piece in _list_pieces(side)]
    deals = [cut_pieces(side) for side in opened]
    dealt = engine.parallelize(pieces, max(1, min(len(pieces), max(tasks, engine.cores))))
    sent = dealt.mapPartitions(partial(_deal_pieces, deals=deals)).partitionBy(tasks, int).values()
    return Blocks(sent, return_rows, read=read_sides)


def _open_side(side: Side, tasks: int) -> DealtSide:
    return flatten_changes(side.rows, side.columns, partial(_deal_side, number=side.number, tasks=tasks))


def flatten_changes(rows: Rows, columns: Sequence[str], work: Callable[..., Any]) -> DealtSide:
    """Return rows as they are stored, and the function that changes them before `work`."""
    while isinstance(rows, ChangedRows):
        work = partial(_apply, work=work, changes=rows.list_changes(columns))
        columns, rows = rows.columns, rows.rows
    return DealtSide(cast("PieceRows | SideRows", rows), tuple(columns), work)


def _list_pieces(side: DealtSide) -> Sequence[Any]:
    assert isinstance(side.rows, PieceRows)
    return side.rows.pieces


def cut_pieces(side: DealtSide) -> Callable[[Any], Iterator[Any]]:
    """Return the function that opens a piece, for a task that makes something of it; it pickles."""
    assert isinstance(side.rows, PieceRows)
    return partial(_deal_piece, read=side.rows.read, columns=side.columns, deal=side.deal)


def read_sides(blocks: Iterable[bytes | pa.Buffer]) -> Iterator[Sides]:
    """Yield the blocks that a task gets by their side; nothing without a block."""
    sides: Sides = {}
    for block in blocks:
        metadata = pa.ipc.open_stream(block).schema.metadata or {}
        sides.setdefault(int(metadata[NUMBER_KEY]), []).append(block)
    if sides:
        yield sides


# ------------------------------------------------------------------------- what tasks do


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
    """Partition the rows of a side by user, many at a time, so that blocks are large."""
    from recbench_spark.kernels.hashed_ids import hash_encoded  # noqa: PLC0415

    for table in gather_tables(tables):
        ids = table.column("user_id").combine_chunks()
        hashes_r = hash_encoded(ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode())
        rows = decode_dictionaries(table).combine_chunks()
        rows = rows.replace_schema_metadata({NUMBER_KEY: str(number)})
        yield from partition_rows(rows, (hashes_r % tasks).astype("int32"))


def gather_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about BUFFER_BYTES; none without rows."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held += [table] if len(table) else []
        size += table.nbytes
        if held and size >= BUFFER_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
