"""The generated world as a frame of Spark: a task makes the rows of a piece of `worlds`."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.config import WorldSettings
from recbench_spark.data import worlds
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.schemas import INTERACTIONS
from recbench_spark.storage.frame_blocks import open_frame
from recbench_spark.storage.spark_types import spark_columns


def read_world(spark: SparkSession, world: WorldSettings) -> DataFrame:
    """Return the log (`worlds.open_rows`); rows are lazy."""
    return open_frame(spark, worlds.open_rows(SparkEngine(spark), world), spark_columns(INTERACTIONS))
