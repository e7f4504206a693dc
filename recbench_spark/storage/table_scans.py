"""Open the files of a table for reading without Spark: a file, a folder of files, or a Delta table.

Edges of graphs (`graph.edges`), logs (`data.columnar`) and tables of other systems (`data.arrow_files`) are
listed, opened and refused here. Callers decide what a file must hold, and who reads what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from recbench_spark.errors import DataError, FallbackToSpark, StoreError
from recbench_spark.inputs import find_version
from recbench_spark.storage import objects
from recbench_spark.storage.delta_tables import list_features, list_table_files, open_table, read_dataset
from recbench_spark.storage.local_files import data_files, has_delta_log, parquet_error, refuse_case
from recbench_spark.storage.objects import holds_files
from recbench_spark.storage.uris import LOG, is_object_storage, join_uri


class Piece(NamedTuple):
    """Piece is the unit of reading of a task: a row group, or the lines of a CSV file in a range of bytes.

    Attributes:
        path: path of the file.
        number: row group; for CSV -1 if the range begins with a line, -2 if it may begin within one.
        rows: number of rows; -1 for CSV.
        size: bytes of the piece.
        first: for CSV, first byte of the range.
    """

    path: str
    number: int
    rows: int
    size: int
    first: int = 0


class DeltaFiles(NamedTuple):
    """Data files of a version of a Delta table, and its columns; `is_partitioned`: folders hold columns."""

    files: list[str]
    columns: frozenset[str]
    is_partitioned: bool


# ---------------------------------------------------------------------------------------- Delta


def list_delta_files(place: str | Path, partitions: Mapping[str, str] | None = None) -> DeltaFiles:
    """List the files of the version whose identity was recorded, or of the latest; rows are in them alone.

    Args:
        place: folder of the table on this machine, or a URI of an object storage.
        partitions: column -> value of the wanted files; None: all files.

    Raises:
        FallbackToSpark: there is no such table or partition, or its rows need more than its files.
    """
    # Imported here, because workers import this module and do not need it.
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = open_table(place, find_version(str(place)))
        if table.protocol().min_reader_version > 1:
            named = ", ".join(list_features(table)) or "those of newer readers"
            raise FallbackToSpark(f"{place} uses Delta features that are not read here: {named}", EXPORT)
        files = sorted(list_table_files(table, place, partitions))
    except (DeltaError, StoreError) as error:
        raise FallbackToSpark(f"cannot read {place}: {error}", "is it a Delta table?") from None
    columns = frozenset(field.name for field in table.schema().fields)
    return DeltaFiles(files, columns, bool(table.metadata().partition_columns))


def open_delta(path: str, version: int | None = None) -> ds.Dataset:
    """Open the rows of a Delta table or of a partition.

    `version`: None: the one that was recorded, or the latest.

    Raises:
        FallbackToSpark: only Spark supports its features.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    partition = find_partition(path)
    try:
        version = find_version(path) if version is None else version
        if partition is None:
            return read_dataset(path, version)
        rows = read_dataset(partition.table, version)
        wanted = {
            name: read_folder_value(text, rows.schema.field(name).type).as_py()
            for name, text in partition.values.items()
        }
        keys = {one: ds.get_partition_keys(one.partition_expression) for one in rows.get_fragments()}
        kept = [one for one, own in keys.items() if wanted.items() <= own.items()]
        return ds.FileSystemDataset(kept, rows.schema, rows.format, rows.filesystem)
    except (DeltaError, OSError, ValueError) as error:
        raise FallbackToSpark(f"{path}: {str(error).splitlines()[0][:200]}") from None


def split_groups(dataset: ds.Dataset) -> list[ds.ParquetFileFragment]:
    """Return the row groups of a Delta table, as tasks get them; footers are read side by side."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        groups = [*pool.map(lambda one: one.split_by_row_group(), dataset.get_fragments())]
    return [_drop_bounds(group) for file in groups for group in file]


def _drop_bounds(group: ds.ParquetFileFragment) -> ds.ParquetFileFragment:
    """Return a row group without the bounds of its columns, which the log gives: they are kilobytes."""
    values = ds.get_partition_keys(group.partition_expression).items()
    facts = [
        ds.field(name).is_null() if value is None else ds.field(name) == value for name, value in values
    ]
    number, whole = group.row_groups[0].id, reduce(and_, facts, ds.scalar(True))
    fragment: ds.ParquetFileFragment = group.format.make_fragment(
        group.path, group.filesystem, whole, row_groups=[number]
    )
    return fragment


def query_delta(path: str) -> pa.RecordBatchReader:
    """Read the rows of a Delta table once, by an engine that knows deleted rows and renamed columns.

    Raises:
        DataError: it does not know the table's features; the message names them.
    """
    from deltalake import QueryBuilder  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = open_table(path)
        # The engine looks for names alone: columns of files that have only the ids would be NULL.
        if BY_ID in list_features(table):
            raise DataError(f"{path} has a feature of Delta that only Spark reads: {BY_ID}", EXPORT)
        rows = QueryBuilder().register("log", table).execute("SELECT * FROM log")
        return pa.RecordBatchReader.from_stream(rows)
    except (DeltaError, OSError, ValueError) as error:
        message = f"{path}: only Spark reads this table of Delta: {str(error).splitlines()[0][:200]}"
        raise DataError(message, EXPORT) from None


BY_ID = "columnMapping by id"

EXPORT = "write its rows, or a part of them, as Parquet with Spark"


# -------------------------------------------------------------------------------------- Parquet


def open_parquet(path: str) -> ds.Dataset:
    """Open the rows of a Parquet file, or of a folder of files with the same columns.

    Raises:
        DataError: a file is not Parquet. SchemaError: names of columns differ in case alone.
        FallbackToSpark: there are no files, or they have different columns.
    """
    files = [str(file) for file in data_files(Path(path))] if Path(path).is_dir() else [path]
    if not files:
        raise FallbackToSpark(f"{path} has no files")
    schemas = read_schemas(files, path)
    refuse_case(schemas[0].names, path)
    if any(schema != schemas[0] for schema in schemas):
        raise FallbackToSpark(f"{path}: its files have different columns")
    return ds.dataset(files, format="parquet")


def read_footers(files: Sequence[str], where: str) -> list[pq.FileMetaData]:
    """Read the footers of Parquet files with some threads. The caller holds them.

    Args:
        files: paths of this machine, or URIs of an object storage.
        where: name of the files in errors.

    Raises:
        DataError: a file is not Parquet.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(partial(_read_footer, where=where), files))


def _read_footer(file: str, where: str) -> pq.FileMetaData:
    try:
        with objects.open_parquet(file, **CHECKED) as opened:
            return opened.metadata
    except (pa.ArrowException, OSError) as error:
        raise parquet_error(where, file, error) from None


CHECKED: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""Options by which Parquet is opened."""


def read_schemas(files: Sequence[str], where: str) -> list[pa.Schema]:
    """Return the schemas of Parquet files as Spark reads them; arguments and errors as `read_footers`."""
    return [spark_schema(footer.schema) for footer in read_footers(files, where)]


def spark_schema(stored: pq.ParquetSchema) -> pa.Schema:
    """Return the columns; INT96, which Spark writes for its instants, become timestamps."""
    schema = stored.to_arrow_schema()
    for number in range(len(stored)):
        one = stored.column(number)
        if one.physical_type == "INT96" and one.path in schema.names:
            place = schema.get_field_index(one.path)
            schema = schema.set(place, pa.field(one.path, pa.timestamp("us", "UTC")))
    return schema


def list_row_groups(files: Sequence[str], footers: Sequence[pq.FileMetaData]) -> tuple[Piece, ...]:
    """Return the row groups of Parquet files: a few values each."""
    return tuple(
        Piece(path, number, group.num_rows, group.total_byte_size)
        for path, footer in zip(files, footers, strict=True)
        for number, group in enumerate(map(footer.row_group, range(footer.num_row_groups)))
    )


def read_row_group(piece: Piece, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield a row group in batches of at most `most` rows. A task holds one batch.

    Raises:
        DataError: the file cannot be read, or is not the one whose footer was read.
    """
    try:
        file = objects.open_parquet(piece.path, **CHECKED)
        groups = file.metadata
        if piece.number >= groups.num_row_groups or groups.row_group(piece.number).num_rows != piece.rows:
            raise DataError(f"{piece.path} has changed since its footer was read", "run again")
        yield from file.iter_batches(most, [piece.number], list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{piece.path}: cannot be read: {error}", "has it changed?") from None


# ---------------------------------------- partitions by path: `embeddings/model_id=ID`

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What a folder NAME=VALUE has for NULL."""

PARTITION = re.compile(r"(.+?)((?:/\w+=[^/=]+)+)/?")


class TablePartition(NamedTuple):
    """TablePartition names the rows of a table that have these values in its partition columns."""

    table: str
    values: dict[str, str]


def read_folder_value(text: str, kind: pa.DataType) -> pa.Scalar[Any]:
    """Return the value that a folder NAME=VALUE spells, in the type of the column."""
    if text == NULL_FOLDER:
        return pa.scalar(None, kind)
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind  # in UTC, without a zone
    return pa.scalar(text).cast(plain).cast(kind)


def find_partition(path: str) -> TablePartition | None:
    """Return the partition that a path names; None for a path that is no part of a Delta table."""
    match = PARTITION.fullmatch(path)
    if match is None or not is_delta_table(match[1]):
        return None
    pairs = (folder.split("=") for folder in match[2].strip("/").split("/"))
    return TablePartition(match[1], {unquote(name): unquote(value) for name, value in pairs})


def is_delta_table(place: str) -> bool:
    """Tell whether a path of this machine, or a URI of object storage, is the folder of a Delta table."""
    if is_object_storage(place):
        return holds_files(join_uri(place, LOG))
    return has_delta_log(place)
