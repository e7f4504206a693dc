"""The columns of a log of interactions, as Spark has them."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas import INTERACTIONS
from recbench_spark.storage.spark_types import spark_type

LOG_SCHEMA = T.StructType(
    [T.StructField(one.name, spark_type(one.type), one.nullable) for one in INTERACTIONS]
)
