"""Results from Spark's tasks: lazy frames; Spark caches the rankings."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.engine.measures import Measures
from recbench_spark.engine.versions import make_frame
from recbench_spark.evaluation.measured import Measured
from recbench_spark.metrics.predictions import BATCH_USERS
from recbench_spark.metrics.result import Result
from recbench_spark.ranking.batch_schemas import PROFILES, USER_VALUES, to_ddl
from recbench_spark.schemas import METRICS, USER_METRICS, Table
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.frame_blocks import FrameRows, make_frame_rows, reduce_frame
from recbench_spark.storage.spark_types import conform, spark_columns


class FrameOutputs:
    """A session's rankings, cached by Spark."""

    def __init__(self, spark: SparkSession, rankings: TaskRows, schema: pa.Schema) -> None:
        self.spark = spark
        self.ranked = make_frame_rows(spark, rankings, spark_columns(schema)).cache()
        self.rows = FrameRows(self.ranked, BATCH_USERS)

    def reduce(self, measures: Measures) -> dict[str, pa.Table]:
        """Reduce the rankings by measures."""
        return reduce_frame(measures, self.ranked)

    def finish(self, measured: Measured) -> Result:
        """Return the result, as `outputs.Outputs`.

        Spark computes user values when they are read.
        """
        rankings = self.ranked.select(*measured.columns)
        per_user = conform_result(rankings.mapInArrow(measured.values, to_ddl(USER_VALUES)), USER_METRICS)
        numbers = conform_result(make_frame(self.spark, measured.metrics), METRICS)
        ranked = self.ranked.drop(*PROFILES.names)
        return Result(numbers, per_user, ranked, measured.checks, (self.ranked,))


def conform_result(frame: DataFrame, table: Table) -> DataFrame:
    """Conform a frame to a result table without run column.

    Only a warehouse has this column.
    """
    return conform(frame.withColumn("run_id", F.lit("")), table).drop("run_id")
