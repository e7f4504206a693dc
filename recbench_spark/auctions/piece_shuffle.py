"""Shuffle a table's rows, read in pieces, without Spark.

A task reads its pieces, cuts each batch into blocks by the part that the rows go to, and the runner moves
one value for each block. A value that begins with PROBLEM is a problem instead of rows; the driver reports
the first one in piece order, as a reader of the whole table would.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, itemgetter
from typing import Any

import pyarrow as pa

from recbench_spark.auctions.auctions import make_reach_error
from recbench_spark.core.ids import WrongIds, find_wrong_ids
from recbench_spark.errors import DataError, FallbackToSpark, RecbenchError, SchemaError
from recbench_spark.sources.formats import TablePiece
from recbench_spark.sources.text_lines import make_lines_error
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.packed_blocks import Block, unpack_blocks

PROBLEM = b"problem"

MakeBlocks = Callable[[pa.Table, int], Iterable[Block]]
"""Function from rows, and the first row's place in the table, to blocks."""

PLACES_OF_A_PIECE = 1 << 36
"""Places that a piece has for its rows, so that places rise through the table."""


@dataclass(frozen=True, order=True)
class PieceProblem:
    """Something that a task cannot use, in a piece.

    Attributes:
        piece: the piece's number.
        lines: lines with another layout than `layout`; `text` is the first; 0: another problem.
        kind: name of the error class.
        text, hint: the error's message.
    """

    piece: int
    lines: int
    text: str
    kind: str = ""
    hint: str = ""
    layout: str = ""


def send_rows(
    engine: Engine,
    pieces: Sequence[TablePiece],
    columns: Sequence[str],
    make_blocks: MakeBlocks,
    tasks: int,
) -> Any:
    """Return all pieces' blocks, partitioned by part number.

    A reading task holds one batch at once.

    Args:
        engine: the runner.
        pieces: the table's pieces.
        columns: columns to read.
        make_blocks: cuts rows into blocks.
        tasks: number of partitions.
    """
    read = partial(_read_pieces, pieces=tuple(pieces), columns=tuple(columns), make_blocks=make_blocks)
    return spread_pieces(engine, len(pieces)).mapPartitions(read).partitionBy(tasks, int)


def spread_pieces(engine: Engine, pieces: int) -> Any:
    """Spread piece numbers over tasks, a few per core."""
    return engine.parallelize(range(pieces), max(1, min(pieces, 4 * engine.cores)))


def _read_pieces(
    numbers: Iterable[int], pieces: Sequence[TablePiece], columns: Sequence[str], make_blocks: MakeBlocks
) -> Iterator[Block]:
    for number in numbers:
        place = number * PLACES_OF_A_PIECE
        for item in read_piece(pieces[number], number, columns):
            if isinstance(item, PieceProblem):
                yield _pack_problem(item)
                continue
            try:
                yield from make_blocks(item, place)
            except RecbenchError as error:
                yield _pack_problem(describe_problem(number, error))
                break
            place += item.num_rows


def read_piece(piece: TablePiece, number: int, columns: Sequence[str]) -> Iterator[pa.Table | PieceProblem]:
    """Yield a piece's rows in batches, and problems."""
    try:
        for stored in piece.read(columns):
            if stored.bad_lines:
                lines = len(stored.bad_lines)
                yield PieceProblem(number, lines, stored.bad_lines[0], layout=stored.line)
            if stored.table.num_rows:
                yield stored.table
    except RecbenchError as error:
        yield describe_problem(number, error)


def describe_problem(number: int, error: RecbenchError) -> PieceProblem:
    """Return an error as a piece's problem."""
    return PieceProblem(number, 0, error.message, type(error).__name__, error.hint)


def _pack_problem(problem: PieceProblem) -> Block:
    return 0, PROBLEM + pickle.dumps(problem)


def receive_rows(blocks: Iterable[Block]) -> tuple[pa.Table | None, list[PieceProblem]]:
    """Return a partition's rows, or None, and its problems."""
    problems: list[PieceProblem] = []

    def keep_rows() -> Iterator[bytes]:
        for _, content in blocks:
            if content.startswith(PROBLEM):
                problems.append(pickle.loads(content[len(PROBLEM) :]))
            else:
                yield content

    rows = unpack_blocks(keep_rows())
    return rows, problems


def refuse_wrong_ids(
    engine: Engine, pieces: Sequence[TablePiece], names: Mapping[str, str], where: str
) -> None:
    """Raise what a reader of the whole table would raise.

    The error is about ids that are none, and counts all rows in the first such column. All pieces are read
    again; a task sends a few values.

    Args:
        engine: the runner.
        pieces: the table's pieces.
        names: each id column's name in the file, in the order in which they are read.
        where: the table's name in errors.
    """
    count = partial(_count_wrong_ids, pieces=tuple(pieces), names=dict(names), where=where)
    each = spread_pieces(engine, len(pieces)).flatMap(count).collect()
    for name in names:
        wrong = [one for _, column, one in sorted(each, key=itemgetter(0)) if column == name]
        if wrong:
            raise reduce(add, wrong).make_error()


def _count_wrong_ids(
    number: int, pieces: Sequence[TablePiece], names: Mapping[str, str], where: str
) -> list[tuple[int, str, WrongIds]]:
    """Return wrong ids, with piece number and column."""
    wrong: dict[str, WrongIds] = {}
    for item in read_piece(pieces[number], number, tuple(dict.fromkeys(names.values()))):
        if isinstance(item, PieceProblem):
            continue
        for name, own in names.items():
            if one := find_wrong_ids(item.column(own), f"{where}: {name}"):
                wrong[name] = wrong[name] + one if name in wrong else one
    return [(number, name, one) for name, one in wrong.items()]


def refuse_problems(problems: Iterable[PieceProblem], where: str) -> None:
    """Raise what a reader of the whole table would raise.

    The error is the reader's first one, or is about all bad lines.
    """
    ordered = sorted(problems)
    errors = [problem for problem in ordered if not problem.lines]
    if errors:
        first = errors[0]
        if first.kind == FallbackToSpark.__name__:
            raise make_reach_error(where, FallbackToSpark(first.text))
        kinds = {one.__name__: one for one in (DataError, SchemaError)}
        raise kinds.get(first.kind, DataError)(first.text, first.hint)
    if ordered:
        lines = sum(problem.lines for problem in ordered)
        raise make_lines_error(where, lines, ordered[0].text, ordered[0].layout)
