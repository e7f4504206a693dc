"""Edge lists and tables of ids that Python tasks read piece by piece: Parquet, Delta, CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recbench_spark.errors import ConfigError, DataError, SchemaError, nearest

ROWS_A_CHUNK = 1 << 21
"""Rows that a task holds at once, some 100 MB."""

BYTES_A_CSV_BLOCK = 1 << 25

FORMATS = ("csv", "parquet", "delta")


class Piece(NamedTuple):
    """What one task may read by itself: a row group, or a whole CSV file (number -1).

    Attributes:
        path: of the file.
        number: row group.
        rows: known rows; -1 of CSV.
        size: bytes of the file that are its.
    """

    path: str
    number: int
    rows: int
    size: int


@dataclass(frozen=True)
class Rows:
    """Rows of some columns, in pieces.

    Attributes:
        pieces: a few values each, held by the driver and sent to all tasks.
        columns: names to read, in order.
        where: column -> the one text kept.
        numeric: by column, whether ids are whole numbers; other columns are left as they are.
        header: whether a CSV file names its columns in its first line.
        delimiter: of CSV.
    """

    pieces: tuple[Piece, ...]
    columns: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    numeric: tuple[tuple[str, bool], ...] = ()
    header: tuple[str, ...] = ()
    delimiter: str = ","

    @property
    def n(self) -> int:
        """Rows, of CSV an estimate by its bytes."""
        return sum(piece.rows if piece.rows >= 0 else piece.size // 16 for piece in self.pieces)

    def part(self, number: int, of: int) -> tuple[Piece, ...]:
        """The pieces of one of so many tasks."""
        return self.pieces[number::of]

    def chunks(self, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
        """The rows of some pieces, ROWS_A_CHUNK or fewer at a time."""
        for piece in pieces:
            for batch in _batches(self, piece):
                table = pa.Table.from_batches([batch])
                for column, value in self.where:
                    table = table.filter(pc.equal(table.column(column).cast(pa.string()), value))
                if table.num_rows:
                    yield table.select(list(self.columns))


def open_rows(
    path: str,
    columns: Sequence[str],
    what: str,
    *,
    fmt: str | None = None,
    ids: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    partitions: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
) -> Rows:
    """Rows of a file, a folder of files or a Delta table. Reads footers and, of CSV, the first lines.

    Args:
        path: CSV, Parquet or Delta.
        columns: names that must be there.
        what: how errors name it.
        fmt: csv, parquet or delta; by the files' names where it is not given.
        ids: columns of ids -> auto, numeric or text.
        where: column -> the one text kept.
        partitions: of a Delta table, column -> value.
        optional: names read where they are there.

    Raises:
        DataError: nothing there, or it cannot be read. SchemaError: a column is missing.
    """
    place = Path(path).absolute()
    if not place.exists():
        raise DataError(f"{what}: nothing at {path}", "a file, a folder of files or a Delta table")
    fmt = fmt or format_of(place)
    files = _delta_files(place, partitions or {}, what) if fmt == "delta" else _files(place, what)
    if fmt == "csv":
        return _csv_rows(files, columns, optional, ids or {}, where or {}, what)
    return _parquet_rows(files, columns, optional, ids or {}, where or {}, what)


def format_of(place: Path) -> str:
    """What a path holds, by its name or those of its files."""
    if (place / "_delta_log").is_dir():
        return "delta"
    names = [place.name, *(entry.name for entry in place.iterdir())] if place.is_dir() else [place.name]
    text = (".csv", ".tsv", ".txt", ".edges", ".csv.gz", ".tsv.gz")
    return "csv" if any(name.lower().endswith(text) for name in names) else "parquet"


def _files(place: Path, what: str) -> list[str]:
    if place.is_file():
        return [str(place)]
    found = sorted(str(entry) for entry in place.iterdir() if entry.is_file() and entry.name[0] not in "._")
    if not found:
        raise DataError(f"{what}: no files in {place}", "files of a partitioned folder: give a Delta table")
    return found


def _delta_files(place: Path, partitions: Mapping[str, str], what: str) -> list[str]:
    # Here: workers import this module and need none of it.
    from deltalake import DeltaTable  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = DeltaTable(place)
        if table.protocol().min_reader_version > 1:
            raise DataError(f"{what}: {place} uses Delta features that are not read here", "export Parquet")
        filters = [(name, "=", value) for name, value in partitions.items()] or None
        found = sorted(map(unquote, table.file_uris(partition_filters=filters)))
    except DeltaError as error:
        raise DataError(f"{what}: cannot read {place}: {error}", "is it a Delta table?") from None
    if not found:
        raise DataError(
            f"{what}: {place} has no rows of {dict(partitions) or 'any kind'}", "check its name"
        )
    return [file.removeprefix("file://") for file in found]


def _parquet_rows(
    files: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str],
    ids: Mapping[str, str],
    where: Mapping[str, str],
    what: str,
) -> Rows:
    with ThreadPoolExecutor(max_workers=16) as pool:
        footers = list(pool.map(partial(_footer, what=what), files))
    first = footers[0][0]
    for path, (schema, _) in zip(files, footers, strict=True):
        _require(schema.names, [*columns, *where], f"{what} {path}")
    wanted = [*columns, *(name for name in optional if name in first.names)]
    numeric = {
        name: _is_numeric(first.field(name).type, ids[name], name, what) for name in ids if name in wanted
    }
    pieces = tuple(
        Piece(path, number, rows, size)
        for path, (_, groups) in zip(files, footers, strict=True)
        for number, (rows, size) in enumerate(groups)
    )
    return Rows(pieces, tuple(wanted), tuple(where.items()), tuple(numeric.items()))


def _footer(path: str, what: str) -> tuple[pa.Schema, list[tuple[int, int]]]:
    try:
        found = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{what} {path}: {error}", "Parquet, Delta or CSV; see --format") from None
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    return found.schema.to_arrow_schema(), [(group.num_rows, group.total_byte_size) for group in groups]


def _require(names: Sequence[str], columns: Sequence[str], what: str) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(names)}",
            f"name it in columns (--columns ours=theirs); {nearest(missing[0], names)}",
        )


def _is_numeric(found: pa.DataType, asked: str, name: str, what: str) -> bool:
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        found = found.value_type
    whole = pa.types.is_integer(found) and found != pa.uint64()
    text = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_dictionary(found)
    if not (whole or text or pa.types.is_null(found)):
        raise SchemaError(f"{what}: column {name} is of type {found}", "ids are whole numbers or texts")
    if asked == "numeric" and not whole:
        raise SchemaError(f"{what}: column {name} is of type {found}, and ids: numeric", "ids: text")
    return bool(whole) and asked != "text"


def _csv_rows(
    files: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str],
    ids: Mapping[str, str],
    where: Mapping[str, str],
    what: str,
) -> Rows:
    """A CSV file whose first line holds a number has no header: its columns are ours, in order."""
    with pa.input_stream(files[0]) as stream:
        line = stream.read(1 << 16).decode("utf-8", "replace").splitlines()
    if not line:
        raise DataError(f"{what}: {files[0]} is empty", "a line an edge: src,dst[,weight]")
    delimiter = next((mark for mark in ("\t", ",", ";", " ") if mark in line[0]), ",")
    fields = [field.strip().strip('"') for field in line[0].split(delimiter)]
    known = [*columns, *optional]
    header: tuple[str, ...] = ()
    if any(_is_number(field) for field in fields) and not set(columns) <= set(fields):
        header = tuple([*known, *(f"column_{n}" for n in range(len(known), len(fields)))][: len(fields)])
    names = header or fields
    _require(names, [*columns, *where], f"{what} {files[0]}")
    wanted = [*columns, *(name for name in optional if name in names)]
    pieces = tuple(Piece(path, -1, -1, Path(path).stat().st_size) for path in files)
    rows = Rows(pieces, tuple(wanted), tuple(where.items()), (), header, delimiter)
    asked = {name: ids[name] for name in ids if name in wanted}
    if any(kind == "auto" for kind in asked.values()):
        first = next(_csv_batches(rows, pieces[0]), None)
        types = {} if first is None else {name: first.schema.field(name).type for name in asked}
        asked = {
            name: kind if kind != "auto" else "numeric" if types.get(name) == pa.int64() else "text"
            for name, kind in asked.items()
        }
    numeric = tuple((name, kind == "numeric") for name, kind in asked.items())
    return Rows(pieces, rows.columns, rows.where, numeric, header, delimiter)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _batches(rows: Rows, piece: Piece) -> Iterator[pa.RecordBatch]:
    if piece.number < 0:
        yield from _csv_batches(rows, piece)
        return
    columns = list(dict.fromkeys([*rows.columns, *(name for name, _ in rows.where)]))
    try:
        file = pq.ParquetFile(piece.path, memory_map=True)
        yield from file.iter_batches(ROWS_A_CHUNK, [piece.number], columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{piece.path}: cannot be read: {error}", "has it changed?") from None


def _csv_batches(rows: Rows, piece: Piece) -> Iterator[pa.RecordBatch]:
    types = {name: pa.int64() if numeric else pa.string() for name, numeric in rows.numeric}
    include = list(dict.fromkeys([*rows.columns, *(name for name, _ in rows.where)]))
    read = pacsv.ReadOptions(
        use_threads=False, block_size=BYTES_A_CSV_BLOCK, column_names=list(rows.header) or None
    )
    parse = pacsv.ParseOptions(delimiter=rows.delimiter)
    convert = pacsv.ConvertOptions(column_types=types, include_columns=include, strings_can_be_null=True)
    try:
        yield from pacsv.open_csv(piece.path, read, parse, convert)
    except (OSError, pa.ArrowException) as error:
        hint = "ids that are not all whole numbers: ids: text (--ids text)"
        raise DataError(f"{piece.path}: {error}", hint) from None


def id_array(column: pa.ChunkedArray | pa.Array, numeric: bool) -> pa.Array:
    """Ids as int64 or as texts, in one chunk."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.int64() if numeric else pa.string())


def flat_lists(table: pa.Table, node: str, neighbours: str, weights: str | None) -> pa.Table:
    """Rows of a node with its neighbours as edges: src the neighbour, dst the node.

    Raises:
        DataError: a node has more weights than neighbours, or fewer.
    """
    lists = table.column(neighbours).combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    owner = table.column(node).combine_chunks().take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    columns: dict[str, Any] = {"src": lists.flatten(), "dst": owner}
    if weights is not None:
        given = table.column(weights).combine_chunks()
        if not np.array_equal(pc.fill_null(pc.list_value_length(given), 0).to_numpy(), counts):
            raise DataError("a node has not as many weights as neighbours", "one weight a neighbour")
        columns["weight"] = given.flatten()
    return pa.table(columns)


def require_one_kind(rows: Rows, names: Sequence[str], what: str) -> None:
    """ConfigError where ids of one side are numbers in one column and texts in another."""
    kinds = dict(rows.numeric)
    if len({kinds[name] for name in names}) > 1:
        raise ConfigError(
            f"{what}: {names[0]} and {names[1]} are not of one type", "ids: text (--ids text)"
        )


def task_count(rows: Rows, cores: int) -> int:
    """Tasks that read: as many as pieces, in whole rounds of the cores where there are more."""
    return max(1, min(len(rows.pieces), cores * max(1, -(-rows.n // (cores * 4 * ROWS_A_CHUNK)))))
