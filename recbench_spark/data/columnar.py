"""Read a log in Parquet or Delta by Python tasks and partition it in blocks, without a row in Java.

The module reads only clean logs: ids that are whole numbers or text, finite ratings, a time in each row.
Everything else (a missing value, another type, a folder with partitions) is left to `readers`, which
read all logs and report what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.data.times import LATEST, MICROS_PER_UNIT, coarser_unit, describe_misread_times
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.kernels.ids import drop_empty
from recbench_spark.kernels.streams import chunks
from recbench_spark.schemas import IDS
from recbench_spark.storage.local_files import has_delta_log, list_folder
from recbench_spark.storage.packed_blocks import MIN_BUFFER_ROWS, Block, buffer_rows, partition_rows
from recbench_spark.storage.table_scans import (
    Piece,
    list_delta_files,
    list_row_groups,
    read_footers,
    read_row_group,
)

if TYPE_CHECKING:  # workers import this module and need no settings
    from recbench_spark.config import Dataset

COLUMNAR_READERS = ("parquet", "delta")
"""Readers of columnar file formats."""

COLUMNS = ("user_id", "item_id", "rating", "event_time")

INSTANTS = (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"))


@dataclass(frozen=True)
class ColumnarLog:
    """The row groups of a log, and the rules by which a task converts their columns.

    Attributes:
        groups: the row groups; the driver sends them to all tasks.
        theirs: canonical column names to the log's own names, for the columns that it has.
        micros: microseconds per unit of time.
        whole: the names of id columns that are whole numbers.
    """

    groups: tuple[Piece, ...]
    theirs: Mapping[str, str]
    micros: int
    whole: frozenset[str]

    @property
    def n(self) -> int:
        """Number of rows of the log."""
        return sum(group.rows for group in self.groups)


def open_columnar_log(dataset: Dataset) -> ColumnarLog | None:
    """Read the footers of a log's files into row groups; None where `readers` must read the log."""
    source_names = {name: dataset.columns.get(name, name) for name in COLUMNS}
    if dataset.attributes or dataset.until or dataset.bad_rows == "reject":
        return None
    try:
        groups, schema = list_groups(dataset)
    except FallbackToSpark:
        return None
    types = _find_types(schema, source_names)
    if not set(dataset.columns) <= types.keys() or not _is_plain(types, dataset.time_unit):
        return None
    present = {name: source_names[name] for name in types}
    micros = MICROS_PER_UNIT.get(dataset.time_unit, 1)
    whole = frozenset(name for name in ("user_id", "item_id") if pa.types.is_integer(types[name]))
    files = ColumnarLog(groups, present, micros, whole)
    return files if files.n else None


def list_groups(dataset: Dataset) -> tuple[tuple[Piece, ...], pa.Schema]:
    """List the row groups of a log whose files have one schema, and this schema.

    Raises:
        FallbackToSpark: Spark must read the log.
    """
    paths, names = _list_parquet_files(dataset)
    try:
        footers = read_footers(paths, str(dataset.path))
    except DataError as error:  # a file that is not Parquet
        raise FallbackToSpark(error.message) from None
    schemas = [footer.schema.to_arrow_schema() for footer in footers]
    # A column of the table is NULL in the rows of a file that lacks it.
    if names is not None and any(set(schema.names) != names for schema in schemas):
        raise FallbackToSpark("a file lacks a column of the table")
    wanted = {name.lower() for name in (*dataset.source_names.values(), *dataset.attributes)}
    if len({_list_types(schema, wanted) for schema in schemas}) != 1:
        raise FallbackToSpark(f"{dataset.path} has no Parquet files of one schema")
    return list_row_groups(paths, footers), schemas[0]


def _list_types(schema: pa.Schema, wanted: Collection[str]) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple(sorted(((one.name, one.type) for one in schema if one.name.lower() in wanted), key=str))


def _list_parquet_files(dataset: Dataset) -> tuple[list[str], frozenset[str] | None]:
    """List the Parquet files of a log, and for Delta the table's columns.

    The list is empty where `readers` must read the log.
    """
    path = Path(str(dataset.path)).absolute()  # workers may have another directory
    if dataset.options or not path.exists() or dataset.reader not in COLUMNAR_READERS:
        return [], None
    is_delta = has_delta_log(path)
    if is_delta != (dataset.reader == "delta"):
        return [], None
    return _list_table_files(path) if is_delta else (_list_folder_files(path), None)


def _list_table_files(path: Path) -> tuple[list[str], frozenset[str] | None]:
    """List the files of a Delta table; empty where the files alone do not hold the table."""
    try:
        table = list_delta_files(path)
    except FallbackToSpark:
        return [], None
    return ([], None) if table.is_partitioned else (table.files, table.columns)


def _list_folder_files(path: Path) -> list[str]:
    """List the files that Spark reads in a folder; empty where subfolders may stand for partitions."""
    if path.is_file():
        return [str(path)]
    files, folders = list_folder(path)
    return [] if folders else [str(file) for file in files]


def _find_types(schema: pa.Schema, source_names: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the types of the log's columns; empty where a name is ambiguous, or rows have a part."""
    lower = [name.lower() for name in schema.names]
    if len(set(lower)) < len(lower) or "part" in lower:
        return {}
    present = {name: source for name, source in source_names.items() if source.lower() in lower}
    if any(source not in schema.names or "." in source for source in present.values()):
        return {}
    return {name: schema.field(source).type for name, source in present.items()}


def _is_plain(types: Mapping[str, pa.DataType], unit: str) -> bool:
    """Check that the ids are there, and that all columns have types with the same meaning in Spark."""
    allowed: dict[str, Callable[[pa.DataType], bool]] = {
        "user_id": lambda kind: _is_whole(kind) or pa.types.is_string(kind),
        "item_id": lambda kind: _is_whole(kind) or pa.types.is_string(kind),
        "rating": lambda kind: _is_whole(kind) or kind in (pa.float32(), pa.float64()),
        "event_time": lambda kind: kind in INSTANTS or (_is_whole(kind) and unit in MICROS_PER_UNIT),
    }
    return {"user_id", "item_id"} <= types.keys() and all(allowed[name](types[name]) for name in types)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and kind != pa.uint64())


# --------------------------------------------------------------------------------- in a task


def read_log(
    numbers: Iterable[int], columns: Sequence[str], files: ColumnarLog, readers: int
) -> Iterator[pa.Table]:
    """Yield the rows of every `readers`th row group from each of some numbers.

    Raises:
        FallbackToSpark: a value that needs a second look.
    """
    wanted = replace(files, theirs={name: own for name, own in files.theirs.items() if name in columns})
    names = list(dict.fromkeys(wanted.theirs.values()))
    for number in numbers:
        for rows in _read_batches(files.groups[number::readers], names):
            yield pa.Table.from_batches([_convert_batch(rows, wanted)])


def deal_owners(tables: Iterable[pa.Table], owner: str, tasks: int) -> Iterator[Block]:
    """Partition rows in blocks by a hash of the owner; a task writes `buffer_rows` rows at a time."""
    batches = (batch for table in tables for batch in table.to_batches())
    for log in chunks(batches, buffer_rows(tasks)):
        yield from partition_rows(log, _assign_tasks(log.column(owner), tasks))


def _read_batches(groups: Sequence[Piece], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        try:
            yield from read_row_group(group, columns, MIN_BUFFER_ROWS)
        except DataError as error:
            raise FallbackToSpark(error.message) from None


def _convert_batch(rows: pa.RecordBatch, files: ColumnarLog) -> pa.RecordBatch:
    if any(column.null_count for column in rows.columns):
        raise FallbackToSpark("a value is missing")
    columns = {name: rows.column(source) for name, source in files.theirs.items()}
    ids = {name: _convert_ids(columns[name]) for name in IDS if name in columns}
    ratings = _convert_ratings(columns.get("rating"), rows.num_rows)
    if not np.isfinite(ratings.to_numpy()).all():
        raise FallbackToSpark("a rating is not finite")
    times = (
        _convert_times(columns["event_time"], files.micros)
        if "event_time" in columns
        else pa.nulls(rows.num_rows)
    )
    return pa.RecordBatch.from_pydict({**ids, "rating": ratings, "event_time": times.cast(pa.int64())})


def _convert_ratings(column: pa.Array | None, n: int) -> pa.Array:
    return pa.array(np.ones(n)) if column is None else column.cast(pa.float64(), safe=False)


def _convert_ids(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise FallbackToSpark("an id is not UTF-8") from None
    if drop_empty(column).null_count:
        raise FallbackToSpark("a text without a letter is no id")
    return column


def _convert_times(column: pa.Array, micros: int) -> pa.Array:
    """Convert times to microseconds since 1970."""
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
    """Raise FallbackToSpark where timestamps may be of another unit, since Spark checks all rows."""
    ends = pc.min_max(times)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and describe_misread_times("", "", (low, high)):
        raise FallbackToSpark("the times may have been made in another unit")


def _refuse_finer(column: pa.Array, micros: int) -> None:
    """Raise FallbackToSpark where all numbers fit a coarser unit, since Spark checks all rows."""
    ends = pc.min_max(column)
    unit = next(name for name, factor in MICROS_PER_UNIT.items() if factor == micros)
    if coarser_unit(ends["min"].as_py(), ends["max"].as_py(), unit):
        raise FallbackToSpark("the times may be of another unit")


def _assign_tasks(owners: pa.ChunkedArray, tasks: int) -> npt.NDArray[np.int32]:
    """Assign each row a task by a hash of its owner, so that all rows of an owner have the same task."""
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
