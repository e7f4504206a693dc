"""Dense row numbers, computed on the cluster."""

from __future__ import annotations

from itertools import accumulate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.runtime.session import cache_frame


def add_dense_index(frame: DataFrame, order: Column, name: str) -> DataFrame:
    """Add a column with 0, 1, 2 ... in the given order.

    Rows stay spread over partitions: they are sorted by range, so partition p holds smaller keys than p +
    1.
    """
    return add_row_index(frame.orderBy(order), name)


def add_row_index(frame: DataFrame, name: str) -> DataFrame:
    """Number the rows from 0 in their present order.

    This order may be that of the lines of a file. A row's number is its place in its partition plus all
    rows in the partitions before. The driver collects one count per partition. The rows are cached while
    they are counted.
    """
    sorted_rows = cache_frame(frame.withColumn("_place", F.monotonically_increasing_id()))
    partition = F.shiftright(F.col("_place"), 33).alias("_partition")
    counts = sorted_rows.groupBy(partition).count().orderBy("_partition").collect()
    starts = [0, *accumulate(row["count"] for row in counts)]
    pairs = (F.lit(value) for row, start in zip(counts, starts, strict=False) for value in (row[0], start))
    part = F.shiftright(F.col("_place"), 33)
    offset = F.element_at(F.create_map(*pairs), part) if counts else F.lit(None)
    within = F.col("_place").bitwiseAND(F.lit((1 << 33) - 1))
    index = (offset + within).cast("int")
    return sorted_rows.withColumn(name, index).drop("_place")
