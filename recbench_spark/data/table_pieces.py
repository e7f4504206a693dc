"""Read tables of this machine in pieces, as `arrow_files.open_path` reads them whole.

A piece is a row group of Parquet or Delta, or the lines of a text file that begin in a range of bytes. The
rows of all pieces in their order are the rows of the table. A task holds MOST_ROWS rows, or the lines of
BYTES_AT_ONCE bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.data.arrow_files import detect_kind, open_dataset
from recbench_spark.data.text_layouts import TEXT_NOTES
from recbench_spark.data.text_lines import StoredTable, cut_lines, open_bytes, split_header
from recbench_spark.errors import DataError
from recbench_spark.storage.local_files import COMPRESSED, DAMAGED

MOST_ROWS = 1 << 18
BYTES_AT_ONCE = 1 << 24
BYTES_OF_A_PIECE = 1 << 26
"""Bytes of a text file that are one piece; a compressed file is one piece, read as a stream."""


class TablePiece(Protocol):
    """Some rows of a table."""

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield some columns of the rows, in order."""


@dataclass(frozen=True)
class TablePieces:
    """A table in pieces.

    Attributes:
        pieces: in the order of the rows; each is a few values that are sent to a task.
        schema: names and types of all columns.
    """

    pieces: tuple[TablePiece, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class RowGroupPiece:
    """A row group; the fragment knows its file, its number and the columns that its folder gives."""

    fragment: ds.Fragment
    schema: pa.Schema
    path: str

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows in batches."""
        scanner = self.fragment.scanner(
            schema=self.schema, columns=list(columns), batch_size=MOST_ROWS, use_threads=False
        )
        try:
            for batch in scanner.to_batches():
                yield StoredTable(pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as error:
            message = str(error).strip().splitlines()[0]
            raise DataError(f"{self.path}: cannot be read: {message[:300]}", DAMAGED) from None


@dataclass(frozen=True)
class TextPiece:
    """Lines of a text file that begin from `first` to before `last`; `begins`: a line begins at `first`."""

    path: str
    names: tuple[str, ...]
    separator: str
    first: int
    last: int
    begins: bool

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows, as text."""
        try:
            for lines in self._read_lines():
                stored = cut_lines(lines, list(self.names), self.separator, self.path)
                table = stored.table.select(list(columns))
                fields = [pa.field(one.name, one.type, metadata=TEXT_NOTES) for one in table.schema]
                yield StoredTable(table.cast(pa.schema(fields)), stored.line, stored.bad_lines)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{self.path}: cannot be read: {error}", DAMAGED) from None

    def _read_lines(self) -> Iterator[bytes]:
        with open_bytes(self.path) as stream:
            stream.seek(self.first if self.begins else self.first - 1)
            if not self.begins:
                stream.readline()
            while (left := self.last - stream.tell()) > 0:
                lines = stream.read(min(BYTES_AT_ONCE, left))
                if not lines:
                    return
                yield lines if lines.endswith(b"\n") else lines + stream.readline()


def open_pieces(path: str) -> TablePieces:
    """Open a table in pieces; footers and the header of a text file are read.

    Raises:
        FallbackToSpark, DataError, SchemaError, MissingError: as `arrow_files.open_path`.
    """
    kind = detect_kind(path)
    if kind == "text":
        return _open_text(path)
    dataset = open_dataset(path, kind)
    pieces = [
        RowGroupPiece(group, dataset.schema, path)
        for fragment in dataset.get_fragments()
        for group in fragment.split_by_row_group()
    ]
    return TablePieces(tuple(pieces), dataset.schema)


def _open_text(path: str) -> TablePieces:
    with open_bytes(path) as stream:
        names, separator = split_header(stream, path)
        first = stream.tell()
    fields = [pa.field(name, pa.string(), metadata=TEXT_NOTES) for name in names]
    packed = path.endswith(COMPRESSED)
    last, step = (1 << 62, 1 << 62) if packed else (Path(path).stat().st_size, BYTES_OF_A_PIECE)
    pieces = [
        TextPiece(path, tuple(names), separator, at, min(at + step, last), at == first)
        for at in range(first, last, step)
    ]
    return TablePieces(tuple(pieces), pa.schema(fields))
