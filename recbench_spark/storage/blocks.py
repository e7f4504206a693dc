"""A shuffle of blocks instead of rows: a block is an Arrow table of some thousand rows, as one value.

Spark writes, sorts, compresses and reads every row of a shuffle by itself. Where Python processes the rows
anyway, it partitions them into blocks before the shuffle and unpacks them after it, and Spark moves one
value per thousand rows or more.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.engine.tasks import Tasks
from recbench_spark.engine.versions import count_shuffle_tasks, is_frame, send_to_tasks
from recbench_spark.storage.packed_blocks import (
    BLOCK_SCHEMA,
    RESULT_SCHEMA,
    Block,
    Change,
    Read,
    Result,
    buffer_rows,
    change_tables,
    finish_blocks,
    partition_batches,
    pickle_results,
    read_blocks,
    read_files,
)

if TYPE_CHECKING:
    from pyspark import RDD

ROWS_PER_TASK = 1 << 20
"""Rows that a task holds at once, some 100 MB; a log is spread over as many tasks as this needs."""


@dataclass(frozen=True)
class Blocks:
    """Rows for each task, by a shuffle in blocks or as a file, and the function that it applies to them.

    Attributes:
        packed: blocks (BLOCK_SCHEMA), those of one task in one partition. For a log that Python reads it is
            an RDD, which is neither planned nor compiled: a second less in a session's first job. From
            `open_files` it is the number of each task's file.
        change: function from all rows of a task to its result; it is sent to the tasks.
        schema: schema of the result; a dictionary column is returned as its values.
        whole: the column of ids whose rows are all in one task; files that tasks write say so in their
            names (`packed_blocks.are_whole`). Empty: none.
        read: function from a task's rows of `packed` to tables.
    """

    packed: DataFrame | RDD[Block]
    change: Change
    schema: T.StructType
    whole: str = ""
    read: Read = read_blocks

    def rows(self) -> DataFrame:
        """Return the results of all tasks as rows of Spark."""
        names = tuple(self.schema.names)
        work = partial(change_tables, read=self.read, change=self.change, names=names)
        return self._block_frame().mapInArrow(work, self.schema)

    def each(self, finish: Callable[[pa.Table], Result]) -> list[Result]:
        """Apply `finish` to the result of each task; its values must be small: the driver holds them."""
        if is_frame(self.packed):
            work = partial(pickle_results, read=self.read, change=self.change, finish=finish)
            results = self.packed.mapInArrow(work, RESULT_SCHEMA).collect()
            return [pickle.loads(row["found"]) for row in results]
        run, pairs = partial(finish_blocks, change=self.change, finish=finish), cast(Any, self.packed)
        return list(pairs.values().mapPartitions(run).collect())

    def _block_frame(self) -> DataFrame:
        if is_frame(self.packed):
            return self.packed
        if isinstance(self.packed, Tasks):
            return self.packed.blocks()
        return SparkSession.active().createDataFrame(cast(Any, self.packed), BLOCK_SCHEMA)


def open_files(
    spark: SparkSession, files: Sequence[str], columns: Sequence[str], change: Change, schema: T.StructType
) -> Blocks:
    """Let each task open a file and change its rows: none of them passes through Spark, nor a shuffle.

    Args:
        spark: the session.
        files: Parquet files that all tasks see; a task holds the rows of one.
        columns: the columns to read.
        change: function from these rows to a result.
        schema: schema of the result.
    """
    read = partial(read_files, files=tuple(files), columns=tuple(columns))
    return Blocks(spark.range(0, len(files), 1, len(files)), change, schema, read=read)


def count_tasks(spark: SparkSession, n: int) -> int:
    """Return a number of tasks that gives each of them ROWS_PER_TASK of n rows on average, or fewer."""
    minimum = count_shuffle_tasks(spark)
    return max(minimum, -(-n // ROWS_PER_TASK))


def shuffle_blocks(rows: DataFrame, key: Column, tasks: int) -> DataFrame:
    """Return the rows in blocks, those with the same key in the same partition.

    Args:
        rows: any columns.
        key: a 64-bit hash.
        tasks: number of partitions; each of them gets several keys.
    """
    with_task = rows.withColumn("_task", F.pmod(key, F.lit(tasks)).cast("int"))
    packed = with_task.mapInArrow(partial(partition_batches, rows=buffer_rows(tasks)), BLOCK_SCHEMA)
    return send_to_tasks(packed, tasks, F.col("task"))
