"""The catalogue: dense positions in tie order, popularity classes of equal weight."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F

from recbench_spark.indexing import add_dense_index
from recbench_spark.protocol.catalogue import build_catalogue


@pytest.fixture
def spread(spark):
    """Seventeen partitions after every shuffle."""
    settings = {"spark.sql.shuffle.partitions": "17", "spark.sql.adaptive.enabled": "false"}
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)


def make_log(spark, trained: dict[str, int], others: dict[str, str] | None = None):
    """This number of training rows of each item, and one row in another part."""
    rows = [(f"u{n}", item, "train") for item, times in trained.items() for n in range(times)]
    rows += [("v", item, part) for item, part in (others or {}).items()]
    return spark.createDataFrame(rows, "user_id string, item_id string, part string")


def classes(items) -> dict[str, str]:
    return {row.item_id: row.popularity for row in items.collect()}


@pytest.mark.parametrize("numeric", [True, False])
def test_positions_are_dense_and_in_tie_order_over_many_partitions(spread, numeric: bool) -> None:
    ids = [str(n) for n in random.Random(3).sample(range(-500, 5000), 400)]
    rows = build_catalogue(make_log(spread, {}, dict.fromkeys(ids, "test")), numeric).collect()
    ordered = sorted(ids, key=int) if numeric else sorted(ids, key=str.encode)
    assert [row.item_id for row in sorted(rows, key=lambda row: row.item_index)] == ordered
    assert sorted(row.item_index for row in rows) == list(range(400))


def test_the_index_crosses_partitions(spread) -> None:
    """Guard of the test above: the rows are in several partitions."""
    frame = spread.range(1000).withColumn("key", F.hash("id"))
    indexed = add_dense_index(frame, F.col("key"), "n")
    assert indexed.select(F.spark_partition_id()).distinct().count() > 5
    rows = indexed.orderBy("key").select("n").collect()
    assert [row.n for row in rows] == list(range(1000))


def test_an_index_of_nothing_is_empty(spark) -> None:
    assert add_dense_index(spark.range(0), F.col("id"), "n").collect() == []


def test_popularity_by_hand(spark) -> None:
    """12 rows, rarest item first: middles of their rows at .5, 2, 4.5 and 9; cuts at 4 and 8."""
    log = make_log(spark, {"a": 1, "b": 2, "c": 3, "d": 6}, {"x": "test", "a": "open_loop"})
    assert classes(build_catalogue(log, False)) == {
        "a": "tail",
        "b": "tail",
        "c": "torso",
        "d": "head",
        "x": "cold",
    }
    counts = {row.item_id: row.n_train for row in build_catalogue(log, False).collect()}
    assert counts == {"a": 1, "b": 2, "c": 3, "d": 6, "x": 0}


def test_classes_hold_about_a_third_of_the_training_rows_each(spark) -> None:
    trained = {f"i{n}": 1 + 300 // (n + 3) for n in range(80)}
    items = build_catalogue(make_log(spark, trained), False).collect()
    total = sum(trained.values())
    for name in ("tail", "torso", "head"):
        rows = sum(row.n_train for row in items if row.popularity == name)
        assert rows / total == pytest.approx(1 / 3, abs=0.08), name
    least = {name: min(r.n_train for r in items if r.popularity == name) for name in ("torso", "head")}
    most = {name: max(r.n_train for r in items if r.popularity == name) for name in ("tail", "torso")}
    assert most["tail"] < least["torso"] and most["torso"] < least["head"]


def test_items_of_equal_count_share_a_class(spark) -> None:
    assert set(classes(build_catalogue(make_log(spark, {"a": 2, "b": 2, "c": 2}), False)).values()) == {
        "torso"
    }


def test_without_training_rows_every_item_is_cold(spark) -> None:
    assert set(classes(build_catalogue(make_log(spark, {}, {"a": "test"}), False)).values()) == {"cold"}
