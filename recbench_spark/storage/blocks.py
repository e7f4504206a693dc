"""A shuffle of blocks instead of rows: a block is an Arrow table of some thousand rows, as one value.

Spark writes, sorts, compresses and reads every row of a shuffle by itself. Where Python processes the rows
anyway, it partitions them into blocks before the shuffle and unpacks them after it, and Spark moves one
value per thousand rows or more.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.engine.tasks import Tasks
from recbench_spark.engine.versions import count_shuffle_tasks, send_to_tasks
from recbench_spark.kernels.streams import Batches

if TYPE_CHECKING:
    from pyspark import RDD

Change = Callable[[pa.Table], pa.Table]

ROWS_PER_TASK = 1 << 20
"""Rows that a task holds at once, some 100 MB; a log is spread over as many tasks as this needs."""

MIN_BUFFER_ROWS, ROWS_PER_BLOCK, MAX_BUFFER_ROWS = 1 << 19, 1 << 10, 1 << 22
"""Rows that a task holds while it partitions them: more for many tasks, so that blocks stay large."""

BLOCK_SCHEMA = "task INT, rows BINARY"
"""The task that a block is sent to, and its rows."""

Block = tuple[int, bytes]
"""The same columns in an RDD."""

Result = TypeVar("Result")

SCALE_KEY = b"recbench.was"
"""Metadata of a field that was packed in 32 of its 64 bits: the divisor of its values."""


@dataclass(frozen=True)
class Blocks:
    """A shuffle in blocks, and the function that each task applies to its rows.

    Attributes:
        packed: blocks (BLOCK_SCHEMA), those of one task in one partition. For a log that Python reads it is
            an RDD, which is neither planned nor compiled: a second less in a session's first job.
        change: function from all rows of a task to its result; it is sent to the tasks.
        schema: schema of the result; a dictionary column is returned as its values.
    """

    packed: DataFrame | RDD[Block]
    change: Change
    schema: T.StructType

    def rows(self) -> DataFrame:
        """Return the results of all tasks as rows of Spark."""
        names = tuple(self.schema.names)
        return self._block_frame().mapInArrow(
            partial(_change_batches, change=self.change, names=names), self.schema
        )

    def each(self, finish: Callable[[pa.Table], Result]) -> list[Result]:
        """Apply `finish` to the result of each task; its values must be small: the driver holds them."""
        if isinstance(self.packed, DataFrame):
            run_batches = partial(_finish_batches, change=self.change, finish=finish)
            rows = self.packed.mapInArrow(run_batches, "found BINARY").collect()
            return [pickle.loads(row["found"]) for row in rows]
        run = partial(_finish_blocks, change=self.change, finish=finish)
        return self.packed.values().mapPartitions(run).collect()

    def _block_frame(self) -> DataFrame:
        if isinstance(self.packed, DataFrame):
            return self.packed
        if isinstance(self.packed, Tasks):
            return self.packed.blocks()
        return SparkSession.active().createDataFrame(self.packed, BLOCK_SCHEMA)


def count_tasks(spark: SparkSession, n: int) -> int:
    """Return a number of tasks that gives each of them ROWS_PER_TASK of n rows on average, or fewer."""
    minimum = count_shuffle_tasks(spark)
    return max(minimum, -(-n // ROWS_PER_TASK))


def buffer_rows(tasks: int) -> int:
    """Return the number of rows that a task holds while it partitions them for so many tasks."""
    return min(max(MIN_BUFFER_ROWS, ROWS_PER_BLOCK * tasks), MAX_BUFFER_ROWS)


def shuffle_blocks(rows: DataFrame, key: Column, tasks: int) -> DataFrame:
    """Return the rows in blocks, those with the same key in the same partition.

    Args:
        rows: any columns.
        key: a 64-bit hash.
        tasks: number of partitions; each of them gets several keys.
    """
    with_task = rows.withColumn("_task", F.pmod(key, F.lit(tasks)).cast("int"))
    packed = with_task.mapInArrow(partial(_partition_batches, rows=buffer_rows(tasks)), BLOCK_SCHEMA)
    return send_to_tasks(packed, tasks, F.col("task"))


def unpack_batches(batches: Batches) -> pa.Table | None:
    """Return all rows of the blocks of a partition; None if it has no block."""
    return unpack_blocks(_blocks(batches))


def _blocks(batches: Batches) -> Iterator[pa.Buffer]:
    return (block.as_buffer() for batch in batches for block in batch.column("rows"))


def unpack_blocks(blocks: Iterable[bytes | pa.Buffer]) -> pa.Table | None:
    """Return all rows of some blocks; None if there is no block."""
    tables = [_decode_block(block) for block in blocks]
    return pa.concat_tables(tables).combine_chunks() if tables else None


def partition_rows(rows: pa.Table, task_r: npt.NDArray[np.integer]) -> Iterator[Block]:
    """Yield the rows in blocks, one for each task that gets rows.

    Args:
        rows: a table in one chunk.
        task_r: the task of each row.
    """
    # The smallest type makes the sort fast: numbers of 16 bits are sorted in two passes.
    order_r = np.argsort(task_r.astype(np.min_scalar_type(task_r.max())), kind="stable")
    rows, sorted_r = rows.take(pa.array(order_r)), task_r[order_r]
    ends = np.append(np.flatnonzero(np.diff(sorted_r)), len(sorted_r) - 1) + 1
    starts = np.insert(ends[:-1], 0, 0)
    for start, end in zip(starts, ends, strict=True):
        yield int(sorted_r[start]), _encode_block(rows.slice(start, end - start))


def pack_batch(rows: pa.Table, task_r: npt.NDArray[np.integer]) -> pa.RecordBatch:
    """Return the blocks of `partition_rows` as rows of BLOCK_SCHEMA."""
    tasks, packed = zip(*partition_rows(rows, task_r), strict=True)
    columns = [pa.array(tasks, pa.int32()), pa.array(packed, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["task", "rows"])


def _change_batches(batches: Batches, change: Change, names: tuple[str, ...]) -> Batches:
    table = unpack_batches(batches)
    if table is not None:
        changed = change(table)
        for batch in changed.select(names).to_batches(max_chunksize=1 << 16):
            yield pa.RecordBatch.from_arrays(
                [_decode_dictionary(column) for column in batch.columns], names
            )


def _finish_blocks(
    blocks: Iterable[bytes | pa.Buffer], change: Change, finish: Callable[[pa.Table], Result]
) -> Iterator[Result]:
    table = unpack_blocks(blocks)
    if table is not None:
        yield finish(change(table))


def _finish_batches(batches: Batches, change: Change, finish: Callable[[pa.Table], Result]) -> Batches:
    for result in _finish_blocks(_blocks(batches), change, finish):
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["found"])


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _partition_batches(batches: Batches, rows: int) -> Batches:
    for table in chunks(batches, rows):
        yield pack_batch(table.drop_columns(["_task"]), table.column("_task").to_numpy())


def chunks(batches: Batches, rows: int) -> Iterator[pa.Table]:
    """Yield batches merged into tables of `rows` rows or more, one chunk each; the last may be smaller."""
    buffer: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        if batch.num_rows:
            buffer.append(batch)
            n += batch.num_rows
        if n >= rows:
            yield pa.Table.from_batches(buffer).combine_chunks()
            buffer, n = [], 0
    if buffer:
        yield pa.Table.from_batches(buffer).combine_chunks()


# ------------------------------------------------------------------------- a block as one value


def _encode_block(rows: pa.Table) -> bytes:
    """Return the rows as bytes; numbers take half their width if that loses nothing."""
    for place, field in enumerate(rows.schema):
        narrow = _narrow_column(rows.column(place))
        if narrow is not None:
            column, scale = narrow
            rows = rows.set_column(
                place, pa.field(field.name, column.type, metadata={SCALE_KEY: scale}), column
            )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _narrow_column(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str] | None:
    """Return the column in 32 bits, and the factor that restores it; None if it does not fit."""
    if column.type == pa.float64() and _fits_float32(column):
        return column.cast(pa.float32(), safe=False), "1"
    if column.type != pa.int64():
        return None
    # Times in whole seconds, stored as microseconds, fit after a division.
    for factor in (1, 1_000_000):
        smaller = column if factor == 1 else pc.divide(column, factor)
        if _fits_int32(smaller) and (factor == 1 or pc.multiply(smaller, factor).equals(column)):
            return smaller.cast(pa.int32()), str(factor)
    return None


def _fits_int32(column: pa.ChunkedArray) -> bool:
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or bool(bounds["min"] >= -(2**31) and bounds["max"] < 2**31)


def _fits_float32(column: pa.ChunkedArray) -> bool:
    values = column.drop_null().to_numpy()
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float32) == values).all())


def _decode_block(block: bytes | pa.Buffer) -> pa.Table:
    rows = pa.ipc.open_stream(block).read_all()
    for place, field in enumerate(rows.schema):
        if field.metadata and SCALE_KEY in field.metadata:
            rows = rows.set_column(
                place, field.name, _widen_column(rows.column(place), int(field.metadata[SCALE_KEY]))
            )
    return rows


def _widen_column(column: pa.ChunkedArray, factor: int) -> pa.ChunkedArray:
    wide = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
    return wide if factor == 1 else pc.multiply(wide, factor)
