"""Readers without Spark for a table's files.

A table is a file, a folder of files, or a Delta table. `sources.table_pieces` opens tables of other
systems, logs and edges with them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from recbench_spark.core.inputs import find_version
from recbench_spark.errors import DataError, FallbackToSpark, nearest
from recbench_spark.storage import objects
from recbench_spark.storage.delta_tables import list_features, open_table, read_dataset
from recbench_spark.storage.local_files import has_delta_log
from recbench_spark.storage.objects import holds_files
from recbench_spark.storage.uris import LOG, is_object_storage, join_uri


class Piece(NamedTuple):
    """A task's unit of reading: one Parquet row group.

    Attributes:
        path: the file.
        number: number of the row group.
        rows: its rows.
    """

    path: str
    number: int
    rows: int


# ---------------------------------------------------------------------------------------- Delta


def open_delta(
    path: str, version: int | None = None, partitions: Mapping[str, str] | None = None
) -> ds.Dataset:
    """Open the rows of a Delta table or a partition.

    Args:
        path: path of the table, or of a partition.
        version: None: the recorded version, or the latest.
        partitions: values of partition columns; None: those in the path.

    Raises:
        FallbackToSpark: only Spark supports its features.
        DataError: the table has no such partition.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    partition = TablePartition(path, dict(partitions)) if partitions else find_partition(path)
    try:
        version = find_version(path) if version is None else version
        if partition is None:
            return read_dataset(path, version)
        rows = read_dataset(partition.table, version)
        _require_partition(partition)
        wanted = {
            name: read_folder_value(text, rows.schema.field(name).type).as_py()
            for name, text in partition.values.items()
        }
        keys = {one: ds.get_partition_keys(one.partition_expression) for one in rows.get_fragments()}
        kept = [one for one, own in keys.items() if wanted.items() <= own.items()]
        if partitions and not kept:
            raise DataError(f"{path} has no rows of {partition.values}", "check its name")
        return ds.FileSystemDataset(kept, rows.schema, rows.format, rows.filesystem)
    except (DeltaError, OSError, ValueError) as error:
        raise FallbackToSpark(f"{path}: {str(error).splitlines()[0][:200]}") from None


def _require_partition(partition: TablePartition) -> None:
    known = open_table(partition.table).metadata().partition_columns
    odd = partition.values.keys() - {*known}
    if odd:
        raise DataError(f"{partition.table} is not partitioned by {min(odd)}", nearest(min(odd), known))


def split_groups(dataset: ds.Dataset) -> list[ds.ParquetFileFragment]:
    """Return a Delta table's row groups, as tasks get them.

    Footers are read side by side.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        groups = [*pool.map(lambda one: one.split_by_row_group(), dataset.get_fragments())]
    return [_drop_bounds(group) for file in groups for group in file]


def _drop_bounds(group: ds.ParquetFileFragment) -> ds.ParquetFileFragment:
    """Return a row group without the bounds of its columns.

    The log gives them, and they are kilobytes.
    """
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
    """Read a Delta table's rows once, by its own engine.

    The engine knows deleted rows and renamed columns.

    Raises:
        DataError: the engine does not know the table's features; the message names them.
    """
    from deltalake import QueryBuilder  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = open_table(path)
        # The engine looks for names alone: columns would be NULL in files with ids alone.
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


def read_footers(files: Sequence[str]) -> list[pq.FileMetaData]:
    """Read the footers of Parquet files with some threads.

    The caller holds them.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(read_footer, files))


def read_footer(file: str) -> pq.FileMetaData:
    """Return the footer of a Parquet file."""
    with objects.open_parquet(file, **CHECKED) as opened:
        return opened.metadata


CHECKED: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""Options to open Parquet with."""


def spark_schema(stored: pq.ParquetSchema) -> pa.Schema:
    """Return the columns; INT96 becomes a timestamp.

    Spark writes INT96 for its instants.
    """
    schema = stored.to_arrow_schema()
    for number in range(len(stored)):
        one = stored.column(number)
        if one.physical_type == "INT96" and one.path in schema.names:
            place = schema.get_field_index(one.path)
            schema = schema.set(place, pa.field(one.path, pa.timestamp("us", "UTC")))
    return schema


def list_row_groups(files: Sequence[str], footers: Sequence[pq.FileMetaData]) -> tuple[Piece, ...]:
    """Return Parquet files' row groups, a few values each."""
    return tuple(
        Piece(path, number, group.num_rows)
        for path, footer in zip(files, footers, strict=True)
        for number, group in enumerate(map(footer.row_group, range(footer.num_row_groups)))
    )


def read_row_group(
    piece: Piece, columns: Sequence[str], most: int, encoded: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield a row group in batches; a task holds one.

    A batch has at most `most` rows. `encoded`: texts to read as dictionaries.

    Raises:
        DataError: the file cannot be read, or differs from the one whose footer was read.
    """
    try:
        file = objects.open_parquet(piece.path, read_dictionary=[*encoded], **CHECKED)
        groups = file.metadata
        if piece.number >= groups.num_row_groups or groups.row_group(piece.number).num_rows != piece.rows:
            raise DataError(f"{piece.path} has changed since its footer was read", "run again")
        yield from file.iter_batches(most, [piece.number], list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{piece.path}: cannot be read: {error}", "has it changed?") from None


# ---------------------------------------- partitions by path: `embeddings/model_id=ID`

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""NULL in the name of a folder NAME=VALUE."""

PARTITION = re.compile(r"(.+?)((?:/\w+=[^/=]+)+)/?")


class TablePartition(NamedTuple):
    """One partition of a Delta table, by its columns' values."""

    table: str
    values: dict[str, str]


def read_folder_value(text: str, kind: pa.DataType) -> pa.Scalar[Any]:
    """Return a folder NAME=VALUE's value in its column's type."""
    if text == NULL_FOLDER:
        return pa.scalar(None, kind)
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind  # in UTC, without a zone
    return pa.scalar(text).cast(plain).cast(kind)


def find_partition(path: str) -> TablePartition | None:
    """Return the partition in a path, else None.

    None means a path outside any Delta table.
    """
    match = PARTITION.fullmatch(path)
    if match is None or not is_delta_table(match[1]):
        return None
    pairs = (folder.split("=") for folder in match[2].strip("/").split("/"))
    return TablePartition(match[1], {unquote(name): unquote(value) for name, value in pairs})


def is_delta_table(place: str) -> bool:
    """Check whether a place is a Delta table's folder.

    The place is a path of this machine, or a URI of object storage.
    """
    if is_object_storage(place):
        return holds_files(join_uri(place, LOG))
    return has_delta_log(place)
