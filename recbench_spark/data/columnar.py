"""A log in Parquet or Delta that tasks of Python read and deal out in blocks, without a row in Java.

Only what needs no second look: ids that are whole numbers or text, finite ratings, a time in each row.
Anything else (a missing value, another type, a folder by partition) is left to `readers`, which read
everything and say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import RDD
from pyspark.sql import SparkSession

from recbench_spark.data.times import LATEST, MICROS_PER_UNIT, coarser_unit, describe_misread_times
from recbench_spark.errors import FallbackToSpark
from recbench_spark.inputs import find_version
from recbench_spark.storage.blocks import MIN_BUFFER_ROWS, Block, buffer_rows, chunks, partition_rows
from recbench_spark.storage.delta_tables import list_files, open_table

if TYPE_CHECKING:  # workers import this module, and need no settings
    from recbench_spark.config import Dataset

ROWS_PER_READER = 1 << 23
"""Rows that a task reads and deals out, at most: what is done again where it fails."""

COLUMNAR_READERS = ("parquet", "delta")
"""Readers of files by column."""

COLUMNS = ("user_id", "item_id", "rating", "event_time")

INSTANTS = (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"))


class RowGroup(NamedTuple):
    """A row group: file, number within it, rows."""

    path: str
    number: int
    rows: int


@dataclass(frozen=True)
class ColumnarLog:
    """The row groups of a log, and how a task finds our columns in them.

    Attributes:
        groups: a few values each, held by the driver and sent to all tasks.
        theirs: our names to theirs, of the columns that are there.
        micros: microseconds of the unit of time.
        whole: the names of id columns that are whole numbers.
    """

    groups: tuple[RowGroup, ...]
    theirs: Mapping[str, str]
    micros: int
    whole: frozenset[str]

    @property
    def n(self) -> int:
        """Rows of the log."""
        return sum(group.rows for group in self.groups)

    def dealt(self, spark: SparkSession, owner: str, tasks: int) -> RDD[Block]:
        """The log in blocks, all rows of an owner in the same partition: the one shuffle.

        A task deals out `rows_dealt` rows at a time; PySpark collects up to 10 blocks for each task of the
        other side, or half of spark.python.worker.memory, before it hands them on.

        Args:
            spark: the session.
            owner: `user_id` or `item_id`.
            tasks: number of partitions.

        Raises:
            PythonException: of a FallbackToSpark, when it is run.
        """
        readers = min(len(self.groups), _count_readers(spark, self.n))
        read = partial(_read_blocks, files=self, readers=readers, owner=owner, tasks=tasks)
        dealt = spark.sparkContext.parallelize(range(readers), readers).mapPartitions(read)
        return dealt.partitionBy(tasks, int)


def _count_readers(spark: SparkSession, n: int) -> int:
    """Whole rounds of all cores. A task holds little whatever it reads, and each takes time to begin."""
    cores = spark.sparkContext.defaultParallelism
    return int(cores * -(-n // (cores * ROWS_PER_READER)))


def open_columnar_log(dataset: Dataset) -> ColumnarLog | None:
    """The row groups of a log; None where `readers` must read it. Reads the footers of all files."""
    theirs = {name: dataset.columns.get(name, name) for name in COLUMNS}
    paths, names = _list_parquet_files(dataset)
    footers = _read_footers(paths)
    schemas = [schema for schema, _ in footers]
    # A column that the table has and a file has not is NULL there.
    if names is not None and any(set(schema.names) != names for schema in schemas):
        return None
    types = _common_types(schemas, theirs)
    if not set(dataset.columns) <= types.keys() or not _is_plain(types, dataset.time_unit):
        return None
    groups = (
        RowGroup(path, number, rows)
        for path, (_, sizes) in zip(paths, footers, strict=True)
        for number, rows in enumerate(sizes)
    )
    present = {name: theirs[name] for name in types}
    micros = MICROS_PER_UNIT.get(dataset.time_unit, 1)
    whole = frozenset(name for name in ("user_id", "item_id") if pa.types.is_integer(types[name]))
    files = ColumnarLog(tuple(groups), present, micros, whole)
    return files if files.n else None


def _list_parquet_files(dataset: Dataset) -> tuple[list[str], set[str] | None]:
    """The Parquet files of a log and, of Delta, the table's columns; none where `readers` must read it."""
    more = dataset.attributes or dataset.options or dataset.until or dataset.bad_rows == "reject"
    path = Path(str(dataset.path)).absolute()  # workers may stand elsewhere
    if more or not path.exists() or dataset.reader not in COLUMNAR_READERS:
        return [], None
    is_delta = (path / "_delta_log").is_dir()
    if is_delta != (dataset.reader == "delta"):
        return [], None
    return _list_table_files(path) if is_delta else (_list_folder_files(path), None)


def _list_table_files(path: Path) -> tuple[list[str], set[str] | None]:
    """Of a Delta table's pinned version, else the present one.

    None where its files do not say all, or hold deleted rows.
    """
    # Here: workers import this module and need none of it.
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        version = find_version(str(path))  # the one that was identified
        table = open_table(path, version)
    except DeltaError:
        return [], None
    if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return [], None
    return sorted(list_files(path, version=table.version())), {
        field.name for field in table.schema().fields
    }


def _list_folder_files(path: Path) -> list[str]:
    """The files that Spark reads; none where there are folders, whose names may stand for values."""
    if path.is_file():
        return [str(path)]
    entries = sorted(path.iterdir())
    if any(entry.is_dir() and (entry.name[0] not in "_." or "=" in entry.name) for entry in entries):
        return []
    return [str(entry) for entry in entries if entry.is_file() and entry.name[0] not in "_."]


def _read_footers(paths: Sequence[str]) -> list[tuple[pa.Schema, list[int]]]:
    """The schema of each file and the rows of its groups; none where one is not Parquet."""
    try:
        with ThreadPoolExecutor(max_workers=16) as pool:
            return list(pool.map(_read_footer, paths))
    except (pa.ArrowException, OSError):
        return []


def _read_footer(path: str) -> tuple[pa.Schema, list[int]]:
    found = pq.read_metadata(path)
    sizes = [found.row_group(number).num_rows for number in range(found.num_row_groups)]
    return found.schema.to_arrow_schema(), sizes


def _common_types(schemas: Sequence[pa.Schema], theirs: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Of our columns that are there; none where files differ, or a name may mean another column."""
    found: list[dict[str, pa.DataType]] = []
    for schema in schemas:
        lower = [name.lower() for name in schema.names]
        if len(set(lower)) < len(lower) or "part" in lower:
            return {}
        known = {name: their for name, their in theirs.items() if their.lower() in lower}
        if any(their not in schema.names or "." in their for their in known.values()):
            return {}
        found.append({name: schema.field(their).type for name, their in known.items()})
    return found[0] if found and all(types == found[0] for types in found) else {}


def _is_plain(types: Mapping[str, pa.DataType], unit: str) -> bool:
    """Whether the ids are there, and all columns of types that mean here what they mean to Spark."""
    allowed: dict[str, Callable[[pa.DataType], bool]] = {
        "user_id": lambda found: _is_whole(found) or pa.types.is_string(found),
        "item_id": lambda found: _is_whole(found) or pa.types.is_string(found),
        "rating": lambda found: _is_whole(found) or found in (pa.float32(), pa.float64()),
        "event_time": lambda found: found in INSTANTS or (_is_whole(found) and unit in MICROS_PER_UNIT),
    }
    return {"user_id", "item_id"} <= types.keys() and all(allowed[name](types[name]) for name in types)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and kind != pa.uint64())


# --------------------------------------------------------------------------------- in a task


def _read_blocks(
    numbers: Iterator[int], files: ColumnarLog, readers: int, owner: str, tasks: int
) -> Iterator[Block]:
    columns = list(dict.fromkeys(files.theirs.values()))
    for number in numbers:
        ours = (
            _convert_batch(rows, files) for rows in _read_batches(files.groups[number::readers], columns)
        )
        for log in chunks(ours, buffer_rows(tasks)):
            yield from partition_rows(log, _assign_tasks(log.column(owner), tasks))


def _read_batches(groups: Sequence[RowGroup], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for path, number, wanted in groups:
        try:
            file = pq.ParquetFile(path, memory_map=True)
            if number >= file.num_row_groups or file.metadata.row_group(number).num_rows != wanted:
                raise FallbackToSpark(f"{path} has changed since its footer was read")
            yield from file.iter_batches(MIN_BUFFER_ROWS, [number], columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise FallbackToSpark(f"{path}: cannot be read: {error}") from None


def _convert_batch(rows: pa.RecordBatch, files: ColumnarLog) -> pa.RecordBatch:
    if any(column.null_count for column in rows.columns):
        raise FallbackToSpark("a value is missing")
    found = {name: rows.column(their) for name, their in files.theirs.items()}
    ratings = _convert_ratings(found.get("rating"), rows.num_rows)
    if not np.isfinite(ratings.to_numpy()).all():
        raise FallbackToSpark("a rating is not finite")
    times = (
        _convert_times(found["event_time"], files.micros)
        if "event_time" in found
        else pa.nulls(rows.num_rows)
    )
    return pa.RecordBatch.from_pydict(
        {
            "user_id": _convert_ids(found["user_id"]),
            "item_id": _convert_ids(found["item_id"]),
            "rating": ratings,
            "event_time": times.cast(pa.int64()),
        }
    )


def _convert_ratings(column: pa.Array | None, n: int) -> pa.Array:
    return pa.array(np.ones(n)) if column is None else column.cast(pa.float64(), safe=False)


def _convert_ids(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise FallbackToSpark("an id is not UTF-8") from None
    return column


def _convert_times(column: pa.Array, micros: int) -> pa.Array:
    """Microseconds since 1970."""
    try:
        if pa.types.is_timestamp(column.type):
            times = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            _refuse_misread(times)
        else:
            times = pc.multiply_checked(column.cast(pa.int64()), micros)
            _refuse_finer(column, micros)
    except pa.ArrowInvalid:
        raise FallbackToSpark("a time is out of range") from None
    if len(times) and pc.max(times).as_py() >= LATEST:
        raise FallbackToSpark("a time is beyond the years that a log can have")
    return times


def _refuse_misread(times: pa.Array) -> None:
    """FallbackToSpark where timestamps may have been made in another unit: Spark looks at all of them."""
    ends = pc.min_max(times)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and describe_misread_times("", "", (low, high)):
        raise FallbackToSpark("the times may have been made in another unit")


def _refuse_finer(column: pa.Array, micros: int) -> None:
    """FallbackToSpark where all numbers fit a coarser unit: Spark's reader looks at the whole column."""
    ends = pc.min_max(column)
    unit = next(name for name, factor in MICROS_PER_UNIT.items() if factor == micros)
    if coarser_unit(ends["min"].as_py(), ends["max"].as_py(), unit):
        raise FallbackToSpark("the times may be of another unit")


def _assign_tasks(owners: pa.ChunkedArray, tasks: int) -> npt.NDArray[np.int32]:
    """The task of each row: a hash of its owner, who is in one task whatever the files."""
    if pa.types.is_integer(owners.type):
        # Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4), high bits folded in.
        id_r = owners.to_numpy().view(np.uint64)
        mixed = ((id_r ^ (id_r >> np.uint64(32))) * np.uint64(2654435761)) >> np.uint64(16)
        numbers: npt.NDArray[np.int32] = (mixed % np.uint64(tasks)).astype(np.int32)
        return numbers
    encoded = owners.combine_chunks().dictionary_encode()
    hashes = [crc32(owner) % tasks for owner in encoded.dictionary.cast(pa.binary()).to_pylist()]
    hashed: npt.NDArray[np.int32] = np.array(hashes, np.int32)[encoded.indices.to_numpy()]
    return hashed
