"""Rows of tables in memory, in pieces, for functions that take `Rows`: tasks of this process read them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from recbench_spark.engine.local import LocalEngine
from recbench_spark.schemas import Table, arrow_rows
from recbench_spark.storage.blocks import PieceRows


def make_table(rows: Iterable[Sequence[Any]], table: Table) -> pa.Table:
    """Rows whose values stand in the order of a table's columns."""
    return arrow_rows([dict(zip(table.names, row, strict=True)) for row in rows], table)


def open_table(rows: pa.Table, pieces: int = 3) -> PieceRows:
    """A table cut into pieces, of which some may be empty."""
    size = -(-len(rows) // pieces)
    cut = [rows.slice(n * size, size) for n in range(pieces)]
    return PieceRows(LocalEngine(tempfile.gettempdir()), cut, _read)


def _read(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    return (piece.select(list(columns)) for piece in pieces)
