"""User blocks: the labelled log as one row per user, by hand."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F

from recbench_spark.evaluation.ranking.user_blocks import build_user_blocks

ITEMS = [("a", 0, 5, "head"), ("b", 1, 2, "torso"), ("c", 2, 1, "tail"), ("d", 3, 0, "cold")]
ROWS = [
    ("u", "c", 3.0, "train", {"page": "1"}),
    ("u", "a", 5.0, "train", {"page": "2"}),
    ("u", "d", 4.0, "test", {"page": "1"}),
    ("u", "b", 2.0, "test", None),
    ("u", "e", 1.0, "other", None),
    ("v", "b", 1.0, "test", {"page": "3"}),
    ("v", "a", 2.0, "open_loop", {"page": "4"}),
    ("w", "a", 2.0, "train", None),
]
PARTS = ("valid", "test", "open_loop")


@pytest.fixture(scope="module")
def blocks(spark):
    items = spark.createDataFrame(ITEMS, "item_id string, item_index int, n_train long, popularity string")
    labels = {"popularity": F.col("popularity"), "cold_user": None, "page": F.col("attributes")["page"]}

    def make(rows):
        schema = "user_id string, item_id string, rating double, part string, attributes map<string,string>"
        collected = build_user_blocks(spark.createDataFrame(rows, schema), items, PARTS, labels).collect()
        return {row.user_id: row.asDict(recursive=True) for row in collected}

    return make


def test_arrays_by_hand(blocks) -> None:
    by_user = blocks(ROWS)
    assert sorted(by_user) == ["u", "v", "w"]
    u = by_user["u"]
    assert (u["train_items"], u["train_ratings"]) == ([0, 2], [5.0, 3.0])
    assert u["held_out"] == {
        "test": {
            "item_ids": ["b", "d"],
            "items": [1, 3],
            "relevance": [2.0, 4.0],
            "slices": {
                "popularity": ["torso", "cold"],
                "cold_user": ["warm", "warm"],
                "page": [None, "1"],
            },
        }
    }
    v = by_user["v"]
    assert (v["train_items"], v["train_ratings"]) == ([], [])
    assert sorted(v["held_out"]) == ["open_loop", "test"]
    assert v["held_out"]["test"]["slices"]["cold_user"] == ["cold"]
    assert v["held_out"]["open_loop"]["slices"]["page"] == ["4"]
    assert by_user["w"]["held_out"] == {}


def test_the_key_is_the_hash_of_the_user(spark, blocks) -> None:
    (row,) = spark.range(1).select(F.xxhash64(F.lit("u")).alias("key")).collect()
    assert blocks(ROWS)["u"]["user_key"] == row.key


def test_the_order_of_rows_does_not_matter(blocks) -> None:
    rows = list(ROWS)
    random.Random(5).shuffle(rows)
    assert blocks(rows) == blocks(ROWS)


def test_without_slices_there_are_none(spark) -> None:
    items = spark.createDataFrame(ITEMS, "item_id string, item_index int, n_train long, popularity string")
    log = spark.createDataFrame(
        [("u", "a", 1.0, "test")], "user_id string, item_id string, rating double, part string"
    )
    (row,) = build_user_blocks(log, items, PARTS, {}).collect()
    assert row.held_out["test"].slices == {}
