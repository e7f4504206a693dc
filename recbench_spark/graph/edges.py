"""Read edge lists and tables of ids piece by piece in Python tasks: Parquet, Delta and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, SchemaError, nearest
from recbench_spark.graph.csv_pieces import (
    COMPRESSED_ENDINGS,
    detect_id_kind,
    read_csv_tables,
    read_head,
    split_ranges,
)
from recbench_spark.graph.edge_values import to_id_array
from recbench_spark.kernels.ids import as_ids
from recbench_spark.storage.local_files import has_delta_log, list_folder
from recbench_spark.storage.objects import holds_files, stat_visible
from recbench_spark.storage.publish import local_path
from recbench_spark.storage.table_scans import (
    Piece,
    list_delta_files,
    list_row_groups,
    read_footers,
    read_row_group,
)
from recbench_spark.storage.uris import LOG, is_object_storage, is_remote, join_uri

ROWS_A_CHUNK = 1 << 21
"""Rows that a task holds at once: some 100 MB."""


CSV_SAMPLE = 1 << 22
"""Bytes of a CSV file that determine the types of its columns. Later rows of another type are refused."""


@dataclass(frozen=True)
class RowSource:
    """RowSource reads some columns of files, in pieces.

    Attributes:
        pieces: a few values each, held by the driver and sent to all tasks.
        columns: names to read, in order.
        where: column -> the text that a row must have there.
        numeric: by column, true if ids are whole numbers; other columns are not converted.
        header: names of a CSV file's columns, in its order; () for other files.
        delimiter: delimiter of a CSV file.
        floats: columns of a CSV file whose whole numbers are written as floats (`10.0`).
        what: name of the rows in errors.
        others: names of the file's columns that are not read.
    """

    pieces: tuple[Piece, ...]
    columns: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    numeric: tuple[tuple[str, bool], ...] = ()
    header: tuple[str, ...] = ()
    delimiter: str = ","
    floats: frozenset[str] = frozenset()
    what: str = "edges"
    others: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Return the number of rows. For CSV it is an estimate by bytes."""
        return sum(piece.rows if piece.rows >= 0 else piece.size // 16 for piece in self.pieces)

    def part(self, number: int, tasks: int) -> tuple[Piece, ...]:
        """Return the pieces of task `number` of `tasks`."""
        return self.pieces[number::tasks]

    def chunks(self, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
        """Yield the rows of some pieces, at most ROWS_A_CHUNK at a time."""
        for piece in pieces:
            for whole in _read_batches(self, piece):
                table = whole
                for column, value in self.where:
                    table = table.filter(pc.equal(table.column(column).cast(pa.string()), value))
                if table.num_rows:
                    yield table.select(list(self.columns))

    def ids(self, table: pa.Table, column: str, name: str | None = None) -> pa.Array:
        """Return a column of ids as int64 or as texts, in one chunk; NULL where there is none.

        Args:
            table: rows.
            column: name of the column in `table`.
            name: name of the column among `columns`, if that is another one.

        Raises:
            DataError: a value is no id (`kernels.ids`), or no whole number where ids are numeric.
        """
        name = name or column
        what, values = f"{self.what}: column {name}", table.column(column)
        return to_id_array(values, dict(self.numeric)[name], what, floats=name in self.floats)


def open_rows(
    path: str,
    columns: Sequence[str],
    what: str,
    *,
    fmt: str | None = None,
    ids: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    partitions: Mapping[str, str] | None = None,
) -> RowSource:
    """Open a file, a folder of files or a Delta table. Footers are read, and the first lines of CSV.

    Args:
        path: CSV, Parquet or Delta on a disk; Parquet or Delta on an object storage.
        columns: names that must exist.
        what: name of the rows in errors.
        fmt: csv, parquet or delta; None: by the names of the files.
        ids: columns of ids -> auto, numeric or text.
        where: column -> the text that a row must have there.
        partitions: partitions of a Delta table, column -> value.

    Raises:
        DataError: the path does not exist or cannot be read. SchemaError: a column is missing.
    """
    if is_remote(path):
        fmt, files = _list_remote_files(path, fmt, partitions or {}, what)
    else:
        fmt, files = _list_local_files(local_path(path).absolute(), fmt, partitions or {}, what)
    rows = _open_csv if fmt == "csv" else _open_parquet
    return rows(files, columns, ids or {}, where or {}, what)


Files = tuple[str, list[str]]
"""Format and places of the files of some rows."""


def _list_local_files(place: Path, fmt: str | None, partitions: Mapping[str, str], what: str) -> Files:
    if not place.exists():
        raise DataError(f"{what}: nothing at {place}", "give a file, a folder of files or a Delta table")
    kind = fmt or detect_format(place)
    if kind == "delta":
        return kind, _list_table_files(place, partitions, what)
    return kind, _list_plain_files(place, what)


def _list_remote_files(path: str, fmt: str | None, partitions: Mapping[str, str], what: str) -> Files:
    if not is_object_storage(path) or fmt == "csv":
        raise _refuse_remote(path, what)
    if fmt == "delta" or (fmt is None and holds_files(join_uri(path, LOG))):
        return "delta", _list_table_files(path, partitions, what)
    files = stat_visible(path)
    if not files:
        raise DataError(f"{what}: no files at {path}", "files whose names begin with _ or . are ignored")
    if any("/" in entry.name for entry in files.values()):
        raise DataError(f"{what}: {path} holds folders", "give one folder of files, or a Delta table")
    if any(place.lower().endswith((*TEXT_ENDINGS, *COMPRESSED_ENDINGS)) for place in files):
        raise _refuse_remote(path, what)
    return "parquet", list(files)


def _refuse_remote(path: str, what: str) -> DataError:
    return DataError(
        f"{what}: {path} is not on a disk",
        "of s3://, gs://, abfss:// and hdfs:// Parquet and Delta are read: write it so, or copy it",
    )


def detect_format(place: Path) -> str:
    """Return the format of a path by its name or the names of its files."""
    if has_delta_log(place):
        return "delta"
    names = [place.name, *(entry.name for entry in place.iterdir())] if place.is_dir() else [place.name]
    bare = [name.lower() for name in names]
    for ending in COMPRESSED_ENDINGS:
        bare = [name.removesuffix(ending) for name in bare]
    return "csv" if any(name.endswith(TEXT_ENDINGS) for name in bare) else "parquet"


TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".edges")
"""Endings of text files. One of COMPRESSED_ENDINGS may follow."""


def _list_plain_files(place: Path, what: str) -> list[str]:
    if place.is_file():
        return [str(place)]
    files, folders = list_folder(place)
    if folders:
        raise DataError(
            f"{what}: {place} holds a folder, {folders[0].name}",
            "give one folder of files, or a Delta table",
        )
    if not files:
        raise DataError(f"{what}: no files in {place}", "files whose names begin with _ or . are ignored")
    return [str(file) for file in files]


def _list_table_files(place: Path | str, partitions: Mapping[str, str], what: str) -> list[str]:
    try:
        files = list_delta_files(place, partitions).files
    except FallbackToSpark as error:
        raise DataError(f"{what}: {error.message}", error.hint) from None
    if not files:
        raise DataError(
            f"{what}: {place} has no rows of {dict(partitions) or 'any kind'}", "check its name"
        )
    return files


def _open_parquet(
    files: Sequence[str],
    columns: Sequence[str],
    ids: Mapping[str, str],
    where: Mapping[str, str],
    what: str,
) -> RowSource:
    try:
        footers = read_footers(
            files, f"{what} {files[0] if len(files) == 1 else files[0].rpartition('/')[0]}"
        )
    except DataError as error:
        raise DataError(error.message, f"{error.hint}; see --format") from None
    schemas = [footer.schema.to_arrow_schema() for footer in footers]
    first = schemas[0]
    for path, schema in zip(files, schemas, strict=True):
        _require_columns(schema.names, [*columns, *where], f"{what} {path}")
        for name in columns:
            if not _are_alike(schema.field(name).type, first.field(name).type):
                kinds = f"{schema.field(name).type} in {path}, {first.field(name).type} in {files[0]}"
                raise SchemaError(f"{what}: column {name} is of type {kinds}", "write files of one type")
    numeric = {name: _is_numeric(first.field(name).type, ids[name], name, what) for name in ids}
    pieces = list_row_groups(files, footers)
    others = tuple(name for name in first.names if name not in columns)
    return RowSource(
        pieces, tuple(columns), tuple(where.items()), tuple(numeric.items()), what=what, others=others
    )


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether values of two types are read alike: the types are equal, or both are numbers."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return one == other or all(any(test(kind) for test in tests) for kind in (one, other))


def _require_columns(names: Sequence[str], columns: Sequence[str], what: str) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(names)}",
            f"{_name_hint(what, missing, names)}; {nearest(missing[0], names)}",
        )


def _name_hint(what: str, missing: Sequence[str], names: Sequence[str]) -> str:
    """Return a hint on how to give a column another name."""
    if what.startswith("features"):
        return "the vectors' column is called vector, that of ids as in features.id_column"
    if what.startswith("nodes"):
        return "the ids' column is called as in graph.node_column"
    headless = "" if len(missing) < 2 else f", or write {','.join(missing)} into a first line of names"
    return f"name it in columns (--columns NAME=COLUMN){headless}"


def _is_numeric(kind: pa.DataType, requested: str, name: str, what: str) -> bool:
    """Tell whether ids of a type are read as whole numbers.

    Texts are read as numbers if the ids of the graph are numbers; each text must then be one.
    """
    if is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        as_ids(pa.chunked_array([], kind), f"{what}: column {name}")
    except pa.ArrowNotImplementedError:
        raise SchemaError(
            f"{what}: column {name} is {kind}, which holds no ids", "ids are whole numbers or texts"
        ) from None
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return requested == "numeric" or (requested == "auto" and any(test(kind) for test in tests))


# --------------------------------------------------------------------------------- CSV


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _open_csv(
    files: Sequence[str],
    columns: Sequence[str],
    ids: Mapping[str, str],
    where: Mapping[str, str],
    what: str,
) -> RowSource:
    """Open CSV files, with or without a header."""
    heads = [read_head(path, columns, what) for path in files]
    for path, head in zip(files, heads, strict=True):
        _require_columns(head.names, [*columns, *where], f"{what} {path}")
        if head.delimiter != heads[0].delimiter:
            message = (
                f"{what}: {path} is separated by {head.delimiter!r}, {files[0]} by {heads[0].delimiter!r}"
            )
            raise SchemaError(message, "use one separator in all files")
        if head[:2] != heads[0][:2]:
            message = f"{what}: {path} has columns {', '.join(head.names)}"
            raise SchemaError(
                f"{message}, {files[0]} has {', '.join(heads[0].names)}",
                "use one order of columns in all files",
            )
    pieces = tuple(
        piece for path, head in zip(files, heads, strict=True) for piece in split_ranges(path, head.first)
    )
    names, delimiter, _ = heads[0]
    others = tuple(name for name in names if name not in columns)
    rows = RowSource(
        pieces, tuple(columns), tuple(where.items()), (), names, delimiter, what=what, others=others
    )
    if not ids:
        return rows
    wanted = list(dict.fromkeys([*columns, *where]))
    sample = next(read_csv_tables(pieces[0], wanted, names, delimiter, CSV_SAMPLE), None)
    kinds = {name: detect_id_kind(sample, name, kind, what) for name, kind in ids.items()}
    numeric = tuple((name, kind != "text") for name, kind in kinds.items())
    floats = frozenset(name for name, kind in kinds.items() if kind == "floats")
    return replace(rows, numeric=numeric, floats=floats)


def _read_batches(rows: RowSource, piece: Piece) -> Iterator[pa.Table]:
    columns = list(dict.fromkeys([*rows.columns, *(name for name, _ in rows.where)]))
    if piece.number < 0:
        yield from read_csv_tables(piece, columns, rows.header, rows.delimiter)
        return
    for batch in read_row_group(piece, columns, ROWS_A_CHUNK):
        yield pa.Table.from_batches([batch])


# --------------------------------------------------------------------------------- values


def expand_lists(table: pa.Table, node: str, neighbours: str, weights: str | None) -> pa.Table:
    """Turn nodes with lists of neighbours into edges: src is the neighbour, dst the node.

    Raises:
        DataError: a node has more or fewer weights than neighbours. SchemaError: a column holds no lists.
    """
    for name in (neighbours, *([] if weights is None else [weights])):
        if not is_list(table.column(name).type):
            raise SchemaError(
                f"column {name} is of type {table.column(name).type}, and lists are expected",
                "one edge per row is read without lists (--lists)",
            )
    lists = table.column(neighbours).combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    owner = table.column(node).combine_chunks().take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    columns: dict[str, Any] = {"src": lists.flatten(), "dst": owner}
    if weights is not None:
        weight_lists = table.column(weights).combine_chunks()
        if not np.array_equal(pc.fill_null(pc.list_value_length(weight_lists), 0).to_numpy(), counts):
            raise DataError(
                "a node has more or fewer weights than neighbours", "give one weight per neighbour"
            )
        columns["weight"] = weight_lists.flatten()
    return pa.table(columns)


def require_one_kind(rows: RowSource, names: Sequence[str], what: str) -> None:
    """Raise ConfigError if ids of one side are numbers in one column and texts in another."""
    kinds = dict(rows.numeric)
    if len({kinds[name] for name in names}) > 1:
        raise ConfigError(
            f"{what}: {names[0]} and {names[1]} are whole numbers and texts, and one node may be in both",
            "take all as texts: ids: text (--ids text), or name two sides (--sides a,b)",
        )


def count_tasks(rows: RowSource, cores: int) -> int:
    """Return the number of reading tasks: one for each piece, or full rounds of the cores for many rows."""
    return max(1, min(len(rows.pieces), cores * max(1, -(-rows.n // (cores * 4 * ROWS_A_CHUNK)))))
