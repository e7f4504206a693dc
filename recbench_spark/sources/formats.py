"""Cut typed files into pieces: Parquet, and other packages' formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import decode_dictionary
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.readers import PARQUET, FileReader, find_name, find_readers
from recbench_spark.sources.arrow_rows import as_double
from recbench_spark.sources.list_columns import is_list
from recbench_spark.sources.text_layouts import FOLDER_NOTES
from recbench_spark.sources.text_lines import StoredTable
from recbench_spark.storage import table_scans
from recbench_spark.storage.local_files import formats_error, parquet_error, refuse_case

MOST_ROWS = 1 << 18

Folders = Mapping[str, str | None]
"""Columns which come from a file's folders, with their values."""


class TablePiece(Protocol):
    """Some rows of a table, which a task can read."""

    @property
    def file(self) -> str:
        """The file with these rows."""

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield some columns of the rows, in order."""


@dataclass(frozen=True)
class TablePieces:
    """A table in pieces, for tasks to read.

    Attributes:
        pieces: in row order; each is a few values to send to a task.
        schema: names and types of all columns.
        n: number of rows; 0 where only its lines tell.
        line: the layouts of a text line; empty: rows have types.
        size: bytes of text.
        notes: metadata from the first Parquet file.
    """

    pieces: tuple[TablePiece, ...]
    schema: pa.Schema
    n: int = 0
    line: str = ""
    size: int = 0
    notes: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class FilePiece:
    """Some rows of a file with typed columns.

    Attributes:
        file: the file.
        part: what the reader needs to find them, such as a number.
        reader: the reader for this format.
        own: columns in the file.
        schema: the table's schema.
        folders: as in `Folders`.
        kept: columns which keep their file's types.
    """

    file: str
    part: Any
    reader: FileReader
    own: frozenset[str]
    schema: pa.Schema
    folders: Folders = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    def read(self, columns: Sequence[str]) -> Iterator[StoredTable]:
        """Yield the rows in batches."""
        stored = [name for name in columns if name in self.own and name not in self.folders]
        kept = self.kept.intersection(stored)
        try:
            for batch in self.reader.read(self.file, self.part, stored):
                fields = [(batch if name in kept else self).schema.field(name) for name in columns]
                yield StoredTable(fit_columns(batch, columns, pa.schema(fields), self.folders))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.file}: cannot be read: {error}", "has it changed?") from None


class ParquetFiles:
    """Reader for row groups of Parquet; `encoded`: texts to read as dictionaries."""

    name = "Parquet"
    endings: tuple[str, ...] = (PARQUET,)

    def __init__(self, encoded: tuple[str, ...] = ()) -> None:
        self.encoded = encoded

    def look(self, path: str) -> tuple[pa.Schema, list[tuple[table_scans.Piece, int]]]:
        """Read a file's footer."""
        footer = table_scans.read_footer(path)
        groups = table_scans.list_row_groups([path], [footer])
        return table_scans.spark_schema(footer.schema), [(one, one.rows) for one in groups]

    def read(self, path: str, piece: table_scans.Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield a row group in batches."""
        return table_scans.read_row_group(piece, columns, MOST_ROWS, self.encoded)


READERS: Mapping[str, FileReader] = {"parquet": ParquetFiles()}
"""This package's readers; `find_readers` has those from others."""


def encode_texts(piece: TablePiece, names: Sequence[str]) -> TablePiece:
    """Read some texts as dictionaries, where the format has them."""
    if not isinstance(piece, FilePiece) or not isinstance(piece.reader, ParquetFiles):
        return piece
    stored = tuple(name for name in names if name in piece.own and name not in piece.folders)
    return replace(piece, reader=ParquetFiles(stored), kept=piece.kept | {*stored})


def get_reader(name: str) -> FileReader:
    """Return a known reader, from this package or another."""
    return READERS.get(name) or find_readers()[name]


def choose_reader(path: str, files: Iterable[str]) -> FileReader:
    """Choose a reader by file names; Parquet's if none fits.

    Raises:
        SchemaError: files have two formats.
    """
    names = {find_name(file): file for file in files}
    if len(names) > 1:
        raise formats_error(path, names.values())
    return get_reader(next(iter(names), None) or "parquet")


def fit_columns(
    rows: pa.Table | pa.RecordBatch, columns: Sequence[str], schema: pa.Schema, folders: Folders
) -> pa.Table:
    """Return columns of a file in its table's types."""
    fitted = []
    for name in columns:
        kind = schema.field(name).type
        if name in folders or name not in rows.schema.names:
            fitted.append(pa.repeat(pa.scalar(folders.get(name), kind), rows.num_rows))
        else:
            fitted.append(_fit(rows.column(name), kind))
    return pa.table(fitted, schema=pa.schema([schema.field(name) for name in columns]))


def _fit(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = decode_dictionary(column)
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # a cast rounds towards zero
        column = pc.floor_temporal(column, unit="microsecond")
    if pa.types.is_floating(kind) and not pa.types.is_floating(column.type):
        number = as_double(column, "number")
        return pc.if_else(pc.less(pc.abs(number), 2.0**53), number, np.inf)
    return column.cast(kind, safe=False)


def require_files(files: Collection[str], path: str) -> None:
    """Refuse a place without files to read. Raises DataError."""
    if not files:
        hint = "files whose names begin with _ or . are ignored, those that pathGlobFilter leaves out, "
        hint += "those in folders that are not called NAME=VALUE, and those without a line"
        what = "it has no lines" if Path(path).is_file() else "it has no files"
        raise DataError(f"{path}: cannot be read: {what}", hint)


def open_files(
    path: str,
    files: Mapping[str, Folders],
    reader: FileReader,
    wanted: Collection[str],
    *,
    any_case: bool = False,
) -> TablePieces:
    """Open files in one format, as `table_pieces.open_pieces` does.

    Arguments and errors are the same. `any_case`: unwanted columns may have names that differ in case
    alone.
    """
    require_files(files, path)
    with ThreadPoolExecutor(max_workers=16) as pool:
        looked = [*pool.map(partial(_look, path=path, reader=reader), files)]
    for schema, _ in [] if any_case else looked:
        refuse_case(schema.names, path)
    schemas = {file: schema for file, (schema, _) in zip(files, looked, strict=True)}
    fields = _unite(path, schemas, wanted)
    folders = dict.fromkeys(name for values in files.values() for name in values)
    fields |= {name: pa.field(name, pa.string(), metadata=FOLDER_NOTES) for name in folders}
    union = pa.schema(list(fields.values()))
    own = {file: frozenset(schema.names) & {*union.names} for file, schema in schemas.items()}
    pieces = [
        FilePiece(file, part, reader, own[file], union, files[file])
        for file, (_, parts) in zip(files, looked, strict=True)
        for part, _ in parts
    ]
    n = sum(rows for _, parts in looked for _, rows in parts)
    return TablePieces(tuple(pieces), union, n, notes=looked[0][0].metadata or {})


def _look(file: str, path: str, reader: FileReader) -> tuple[pa.Schema, list[tuple[Any, int]]]:
    try:
        schema, parts = reader.look(file)
        return schema, [*parts]
    except (pa.ArrowException, OSError) as error:
        raise parquet_error(path, file, error, reader.name) from None


def _unite(path: str, schemas: Mapping[str, pa.Schema], wanted: Collection[str]) -> dict[str, pa.Field]:
    """Return the columns of all files in common types.

    Columns without a common type are left out.

    Raises:
        SchemaError: such a column is wanted, or names in two files differ only in case.
    """
    fields: dict[str, pa.Field] = {}
    first: dict[str, tuple[str, pa.Field]] = {}
    clashes: set[str] = set()
    for file, schema in schemas.items():
        for one in schema:
            place, known = first.setdefault(one.name.lower(), (file, one))
            if known.name != one.name and {known.name, one.name} & {*wanted}:
                names = f"column {known.name} in {cut_name(place)} and {one.name} in {cut_name(file)}"
                raise SchemaError(f"{path}: {names} differ in case alone", "one spelling in all files")
            own = one.type
            if pa.types.is_timestamp(own) and own.unit == "ns":
                own = pa.timestamp("us", own.tz)
            before = fields.setdefault(one.name, one.with_type(own))
            kind = _common_type(before.type, own)
            if kind is not None:
                fields[one.name] = before.with_type(kind)
            elif one.name in wanted:
                names = f"{known.type} in {cut_name(place)}, {one.type} in {cut_name(file)}"
                message = f"{path}: column {one.name} is of type {names}"
                raise SchemaError(message, "write files of one type")
            else:
                clashes.add(one.name)
            if pa.types.is_null(known.type):
                first[one.name.lower()] = (file, one)
    return {name: one for name, one in fields.items() if name not in clashes}


def cut_name(file: str) -> str:
    """Return the last part of a path or URI."""
    return file.rsplit("/", 1)[-1]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return one type for all types with the same values."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return pa.list_(plain_type(kind.value_type)) if is_list(kind) else kind


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type for both kinds of values, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    if is_list(one) and is_list(other):
        inner = _common_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not all(any(test(kind) for test in tests) for kind in (one, other)):
        return None
    is_whole = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (one, other))
    return pa.int64() if is_whole else pa.float64()
