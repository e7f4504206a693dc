"""A shuffle of blocks instead of rows: Arrow tables of some ten thousand rows, packed as one value each.

Spark writes, sorts, compresses and reads every row of a shuffle by itself; where Python looks at the rows
anyway, it deals them to the tasks on both sides, and Spark moves a few hundred values in all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

ROWS_A_TASK = 1 << 20
"""Rows held together, some 100 MB: a log is spread over as many tasks as this needs."""

ROWS_DEALT = 1 << 18
"""Rows that a task holds while it deals them out."""


def tasks_for(log: DataFrame, n: int | None = None) -> int:
    """As many tasks as give each ROWS_A_TASK rows on average. Counts the log where n is not known."""
    fewest = int(log.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(fewest, -(-(log.count() if n is None else n) // ROWS_A_TASK))


def in_blocks(rows: DataFrame, key: Column, tasks: int) -> DataFrame:
    """The rows in blocks, those with the same key in the same partition: for `mapInArrow`.

    Args:
        rows: any columns.
        key: a 64-bit hash.
        tasks: number of partitions; more than one key falls into each.
    """
    dealt = rows.withColumn("_task", F.pmod(key, F.lit(tasks)).cast("int"))
    return dealt.mapInArrow(_deal, "task INT, rows BINARY").repartitionById(tasks, F.col("task"))


def rows_of(batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """All rows of a partition's blocks; None where it has none."""
    blocks = [block for batch in batches for block in batch.column("rows")]
    if not blocks:
        return None
    tables = [pa.ipc.open_stream(block.as_buffer()).read_all() for block in blocks]
    return pa.concat_tables(tables).combine_chunks()


def _deal(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in _chunks(batches):
        task_r = table.column("_task").to_numpy()
        order_r = np.argsort(task_r, kind="stable")
        rows = table.drop_columns(["_task"]).take(pa.array(order_r))
        ends = np.append(np.flatnonzero(np.diff(task_r[order_r])), len(order_r) - 1) + 1
        starts = np.insert(ends[:-1], 0, 0)
        blocks = [_packed(rows.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
        tasks = pa.array(task_r[order_r[starts]], pa.int32())
        yield pa.RecordBatch.from_arrays([tasks, pa.array(blocks, pa.binary())], ["task", "rows"])


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            n += batch.num_rows
        if n >= ROWS_DEALT:
            yield pa.Table.from_batches(held).combine_chunks()
            held, n = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
