"""The generated world as frames of Spark: a task makes the rows of a piece of `worlds`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from recbench_spark.config import WorldSettings
from recbench_spark.data import worlds
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.kernels.streams import Batches
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.storage.blocks import return_rows, run_pieces
from recbench_spark.storage.frame_blocks import open_pieces
from recbench_spark.storage.spark_types import spark_columns


def read_world(spark: SparkSession, world: WorldSettings) -> DataFrame:
    """Return the log (`worlds.read_piece`). A small job per period counts the feedback; rows are lazy."""
    read = partial(
        worlds.read_piece, world=world, loop=worlds.simulate_loop(world, run_pieces(SparkEngine(spark)))
    )
    return _open_pieces(spark, worlds.list_pieces(world), read, INTERACTIONS)


def _open_pieces(
    spark: SparkSession, pieces: Sequence[range], read: Callable[[range], Batches], schema: pa.Schema
) -> DataFrame:
    read_all = partial(_read_pieces, read=read)
    return open_pieces(spark, pieces, read_all, return_rows, spark_columns(schema)).rows()


def _read_pieces(pieces: Iterable[range], read: Callable[[range], Batches]) -> Iterator[pa.Table]:
    for batch in chain.from_iterable(map(read, pieces)):
        yield pa.Table.from_batches([batch])
