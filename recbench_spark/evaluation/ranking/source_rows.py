"""Rows of a model's catalogue, mapped by workers (`sources`), and blocks of users for tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.engine.versions import count_shuffle_tasks
from recbench_spark.evaluation.ranking.part_users import BLOCK_NAMES
from recbench_spark.kernels.streams import chunks
from recbench_spark.schemas import USER_BLOCKS
from recbench_spark.storage.frame_blocks import FrameBlocks, open_pieces
from recbench_spark.storage.objects import open_parquet
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.spark_types import spark_columns
from recbench_spark.storage.warehouse import WarehouseTables


def vector_rows(items: DataFrame, vectors: DataFrame) -> DataFrame:
    """Return the catalogue with each item's vector and bias, NULL where the model has none.

    Args:
        items: item_id, item_index.
        vectors: item_id, vector, bias.
    """
    return items.select("item_id", "item_index").join(
        vectors.select("item_id", "vector", "bias"), "item_id", "left"
    )


BLOCK_USERS = 1 << 12
"""Users that a task changes at once."""


def map_user_blocks(
    store: WarehouseTables, split_id: str, change: Change, schema: pa.Schema, *, joined: bool = False
) -> FrameBlocks:
    """Let tasks change a split's blocks of users, some at a time.

    Tasks open the table's files, unless there are fewer than tasks, or Spark must read them.

    Args:
        store: the warehouse.
        split_id: the split.
        change: function from rows of `user_blocks` to a result.
        schema: schema of the result.
        joined: the result is joined to other rows; then Spark reads, and knows how large it is.
    """
    columns, partition = spark_columns(schema), {"split_id": split_id}
    files = [] if joined else store.list_partition_files(USER_BLOCKS, partition, max_bytes=math.inf)
    if files and len(files) >= count_shuffle_tasks(store.spark):
        return open_pieces(store.spark, files, _read_block_files, change, columns)
    rows = store.read_partition(USER_BLOCKS, "split_id", split_id).select(*BLOCK_NAMES)
    read = partial(chunks, rows=BLOCK_USERS)
    return FrameBlocks(rows, change, tuple(schema.names), schema=columns, read=read)


def _read_block_files(files: Iterable[str]) -> Iterator[pa.Table]:
    for file in files:
        for rows in open_parquet(file).iter_batches(BLOCK_USERS, columns=list(BLOCK_NAMES)):
            yield pa.Table.from_batches([rows])
