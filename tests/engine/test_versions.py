"""Calls of Spark's versions: both ways of each give the same rows, on the Spark that is installed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from recbench_spark.engine import versions

ROWS = pa.table(
    {"key": [0, 1, 2, 0, 1, 0], "value": [1.5, 2.0, None, 4.0, 8.0, 16.0], "word": list("abcdef")}
)


def test_tables_of_arrow_cross_both_ways(spark, monkeypatch) -> None:
    new = versions.collect_arrow(versions.make_frame(spark, ROWS))
    monkeypatch.setattr(versions, "is_old", lambda: True)
    monkeypatch.setattr(
        versions, "has_call", lambda owner, name: name != "toArrow" and hasattr(owner, name)
    )
    old = versions.collect_arrow(versions.make_frame(spark, ROWS))
    assert new.to_pylist() == old.to_pylist() == ROWS.to_pylist()
    assert new.schema.types == old.schema.types
    empty = versions.make_frame(spark, ROWS).where("key > 9")
    assert versions.collect_arrow(empty).schema == old.schema


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 64])
def test_numbers_stand_for_the_partitions_of_sparks_hash(spark, tasks) -> None:
    keys = versions.find_partition_keys(tasks)
    frame = spark.createDataFrame([(key,) for key in keys], "key INT")
    places = frame.select(F.expr(f"pmod(hash(key), {tasks})").alias("place")).collect()
    assert [row.place for row in places] == list(range(tasks))


def test_rows_go_to_the_partition_of_their_number(spark, monkeypatch) -> None:
    frame = spark.range(100).select("id", (F.col("id") % 7).cast("int").alias("task"))
    for lacks in (False, True):
        if lacks:
            monkeypatch.setattr(versions, "has_call", lambda *_: False)
        sent = versions.send_to_tasks(frame, 7, F.col("task")).withColumn("part", F.spark_partition_id())
        assert sent.where("part <> task").count() == 0
        assert sent.count() == 100
