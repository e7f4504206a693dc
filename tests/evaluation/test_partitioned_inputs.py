"""Frames of Spark whose rows are dealt out by user: however many tasks, the bits of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap
from recbench_spark.errors import DataError
from recbench_spark.evaluation.evaluation import evaluate
from recbench_spark.sources.text_layouts import TEXT_NOTES
from tests.evaluation.test_engines import answer, frames

PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def partitions(spark: Any, n: int) -> Iterator[None]:
    """Rows are dealt out to so many tasks."""
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, n)
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def world(kind: str) -> dict[str, Any]:
    """A truth with pairs twice and users without any, training users and listed items nobody else has."""
    draws = np.random.default_rng(3)

    def pairs(users: int, items: int, n: int) -> dict[str, Any]:
        return {"user_id": draws.integers(0, users, n), "item_id": draws.integers(0, items, n)}

    truth = pairs(20, 25, 70)
    truth["item_id"] = pa.array(truth["item_id"], mask=draws.random(70) < 0.1)
    truth = {name: pa.concat_arrays([pa.array(column), last]) for (name, column), last in zip(
        truth.items(), (pa.array([99]), pa.nulls(1, pa.int64())), strict=True)}  # fmt: skip
    tables = {"truth": pa.table({**truth, "relevance": draws.integers(0, 4, 71) / 1.0})}
    tables["train"] = pa.table(pairs(30, 25, 90))
    if kind != "embeddings":
        return {**tables, kind: pa.table({**pairs(25, 40, 300), "score": draws.integers(0, 9, 300) / 4})}
    sides = [
        pa.table({name: np.arange(n), "vector": draws.integers(-2, 3, (n, 2)).astype(float).tolist()})
        for name, n in (("user_id", 18), ("item_id", 30))
    ]
    return {**tables, kind: tuple(sides)}


@pytest.mark.parametrize(("kind", "tasks"), [("lists", (3, 17)), ("scores", (3,)), ("embeddings", (3,))])
def test_tasks_and_partitions_change_no_bit(spark: Any, kind: str, tasks: tuple[int, ...]) -> None:
    tables = world(kind)
    options: Any = {"k": (1, 5), "metrics": ("ndcg", "coverage"), "bootstrap": Bootstrap(replicates=20)}
    here = answer(evaluate, **tables, **options)
    assert len(here["rankings"]) == 21
    for n in tasks:
        given = {
            name: tuple(side.repartition(n) for side in frame)
            if isinstance(frame, tuple)
            else frame.repartition(n)
            for name, frame in frames(spark, tables).items()
        }
        with partitions(spark, n):
            assert here == answer(evaluate, **given, **options), n


@pytest.mark.parametrize(("name", "part"), [("truth", "test"), ("train", "train"), ("lists", "list rows")])
def test_duplicates_are_refused_by_the_table_they_stand_in(spark: Any, name: str, part: str) -> None:
    rows = {"user_id": [1, 1, 2], "item_id": [1, 2, 1]}
    tables = {"truth": rows, "train": rows, "lists": {**rows, "rank": [1, 2, 1]}}
    twice = tables[name]
    tables[name] = {column: [*values, values[0]] for column, values in twice.items()}
    given = frames(spark, {one: pa.table(table) for one, table in tables.items()})
    with pytest.raises(DataError, match=rf"{part}.*\b1\b"):
        evaluate(**given, definition={"duplicates": "error"}, metrics=("hit",))


@pytest.mark.parametrize("name", ["user_id", "item_id"])
def test_ids_of_lists_that_do_not_meet_are_told_with_both_types(spark: Any, name: str) -> None:
    rows = {"user_id": [7, 8], "item_id": [1, 2]}
    lists = {**rows, "rank": [1, 1], name: ["x7", "x8"]}
    given = frames(spark, {"truth": pa.table(rows), "lists": pa.table(lists)})
    with pytest.raises(
        DataError, match=r"no id in common(.|\n)*\(string\): 'x7', 'x8'(.|\n)*\(bigint\): '\d'"
    ):
        evaluate(**given, metrics=("hit",))


@pytest.mark.parametrize(("items", "first"), [(["9", "10"], "9"), (["9", "10", "a"], "10")])
def test_ids_of_text_files_are_ordered_as_numbers_where_all_are(
    spark: Any, items: list[str], first: str
) -> None:
    n = len(items)
    table = spark.createDataFrame(pa.table({"user_id": ["u"] * n, "item_id": items, "score": [1.0] * n}))
    noted = table.withColumn("item_id", F.col("item_id").alias("item_id", metadata=TEXT_NOTES))
    result = evaluate(noted.drop("score"), lists=noted, metrics=("coverage",), k=(1,))
    assert result.rankings is not None
    assert result.rankings.collect()[0].top_items[0] == first
    result.release()
