"""The generated world as frames of Spark: a task makes the rows of a piece of `worlds`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from recbench_spark.config import WorldSettings
from recbench_spark.data import worlds
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.kernels.streams import Batches
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.storage.blocks import run_pieces


def read_world(spark: SparkSession, world: WorldSettings) -> DataFrame:
    """Return the log (`worlds.read_piece`). A small job per period counts the feedback; rows are lazy."""
    read = partial(
        worlds.read_piece, world=world, loop=worlds.simulate_loop(world, run_pieces(SparkEngine(spark)))
    )
    return _open_pieces(spark, worlds.list_pieces(world), read, INTERACTIONS)


def true_factors(spark: SparkSession, world: WorldSettings) -> tuple[DataFrame, DataFrame]:
    """Return the true factors of users and of items (`worlds.read_factors`)."""
    items_in_pieces = worlds.cut_range(world.items, 1 + world.items // 100_000)
    pieces = {"user": worlds.list_pieces(world), "item": items_in_pieces}
    users, items = (
        _open_pieces(spark, pieces[side], partial(worlds.read_factors, world=world, side=side), schema)
        for side, schema in worlds.SIDES.items()
    )
    return users, items


def _open_pieces(
    spark: SparkSession, pieces: Sequence[range], read: Callable[[range], Batches], schema: pa.Schema
) -> DataFrame:
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    return numbers.mapInArrow(partial(_read_pieces, pieces=pieces, read=read), from_arrow_schema(schema))


def _read_pieces(batches: Batches, pieces: Sequence[range], read: Callable[[range], Batches]) -> Batches:
    numbers = (number for batch in batches for number in batch.column(0).to_pylist())
    return chain.from_iterable(read(pieces[number]) for number in numbers)
