"""Metrics of rankings: by hand, against the oracle, and the same bits for any partitioning."""

from __future__ import annotations

import math
import random
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap
from recbench_spark.definitions import Definition
from recbench_spark.evaluation.metrics.accuracy import (
    MetricPlan,
)
from recbench_spark.evaluation.metrics.measuring import (
    compute_all_metrics,
    compute_metrics,
    compute_user_metrics,
    rank_and_measure_lists,
)
from recbench_spark.evaluation.metrics.top_lists import SplitCatalogue
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.schemas import RANKINGS
from recbench_spark.storage.spark_types import spark_schema
from tests import oracles

KEY = ["part", "slice_key", "slice_value", "metric", "k"]
NAMES = ("ndcg", "recall", "map", "hit", "auc")


def ranking(user: str, above: list[int], length: int = 20, **more: Any) -> tuple[Any, ...]:
    """One user whose truth items stand behind so many candidates; all of relevance 1."""
    values: dict[str, Any] = {
        "run_id": "r", "user_id": user, "part": "test", "user_key": hash_user(user),
        "item_ids": [f"i{n}" for n in range(len(above))], "relevance": [1.0] * len(above),
        "above": above, "tied": [0] * len(above), "before": [0] * len(above), "length": length,
        "top_items": None, "slices": {}, "drawn": None, "pool": None, "propensity": None,
    }  # fmt: skip
    return tuple({**values, **more}[name] for name in RANKINGS.names)


def hash_user(user: str) -> int:
    return random.Random(user).getrandbits(63)


def frame(spark, rows: list[tuple[Any, ...]]):
    return spark.createDataFrame(rows, spark_schema(RANKINGS))


def items(spark, *ids: str) -> SplitCatalogue:
    rows = [(item, 1) for item in ids]
    users = spark.range(1).selectExpr("'u' AS user_id")
    return SplitCatalogue(spark.createDataFrame(rows, "item_id string, n_train long"), users)


def plan(*names: str, ks: tuple[int, ...] = (1, 3), replicates: int = 20, **axes: Any) -> MetricPlan:
    return MetricPlan(names, ks, Definition(**axes), Bootstrap(replicates=replicates))


def table(result) -> dict[tuple[Any, ...], Any]:
    rows = result.collect()
    assert len(rows) == len({tuple(row[name] for name in KEY) for row in rows})
    return {tuple(row[name] for name in KEY): row for row in rows}


def test_by_hand(spark) -> None:
    """u has hits at ranks 1 and 4 of 2 relevant; v at rank 2 of 1; w gets no list."""
    rows = [ranking("u", [0, 3]), ranking("v", [1]), ranking("w", [-1], length=0)]
    computed = table(compute_metrics(frame(spark, rows), plan("recall", "hit", "mrr")))
    value = {key[3:]: row.value for key, row in computed.items()}
    assert value["recall", 1] == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert value["recall", 3] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert value["hit", 1] == pytest.approx(1 / 3)
    assert value["hit", 3] == pytest.approx(2 / 3)
    assert value["mrr", 3] == pytest.approx((1 + 1 / 2 + 0) / 3)
    row = computed["test", None, None, "recall", 3]
    mean, values = 1 / 2, (1 / 2, 1, 0)
    assert row.n == 3
    assert row.stderr == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in values) / 2 / 3))
    assert row.ci_low <= row.value <= row.ci_high
    assert (row.definition, row.estimator) == ("v1", "holdout")


def test_of_lists_in_one_pass(spark) -> None:
    """u lists 7, 5, 9 by score and wants 5 and 1, with 7 to be dropped; v wants 4 and has no list."""
    schema = (
        "user_id string, part string, user_key long, item_ids array<string>, items array<int>, relevance "
        "array<double>, slices map<string,array<string>>, masked array<int>, history array<int>, "
        "list_items array<long>, list_ids array<string>, list_scores array<double>"
    )
    rows = [
        ("u", "test", 1, ["1", "5"], [1, 5], [1.0, 1.0], {}, [7], [],
         [5, 7, 9], ["5", "7", "9"], [2.0, 3.0, 1.0]),
        ("v", "test", 2, ["4"], [4], [1.0], {}, [], [], None, None, None),
    ]  # fmt: skip
    users, wanted = spark.createDataFrame(rows, schema), plan("recall", "mrr")
    for mask, recall_1 in ((False, 0), (True, 1 / 4)):
        values = table(rank_and_measure_lists(users, RankingRequest(wanted.definition), wanted, mask))
        value = {key[3:]: row.value for key, row in values.items()}
        assert value["recall", 1] == recall_1 and value["recall", 3] == 1 / 4
        assert value["mrr", 3] == (1 / 2 if mask else 1 / 4) and {row.n for row in values.values()} == {2}


def test_slices_keep_the_rank_and_restrict_the_truth(spark) -> None:
    """u: head item at rank 1, tail item at rank 4; v: tail item at rank 2. The tail has two users."""
    rows = [
        ranking("u", [0, 3], slices={"popularity": ["head", "tail"]}),
        ranking("v", [1], slices={"popularity": ["tail"]}),
        ranking("w", [0], slices={"popularity": [None]}),
    ]
    values = table(compute_metrics(frame(spark, rows), plan("recall")))
    of = {(key[2], key[4]): (row.value, row.n) for key, row in values.items() if key[1]}
    assert of == {("head", 1): (1, 1), ("head", 3): (1, 1), ("tail", 1): (0, 2), ("tail", 3): (0.5, 2)}


def test_parts_are_kept_apart(spark) -> None:
    rows = [ranking("u", [0]), ranking("u", [9], part="open_loop"), ranking("v", [9], part="open_loop")]
    values = table(compute_metrics(frame(spark, rows), plan("hit")))
    assert {key[0]: (row.value, row.n) for key, row in values.items() if key[4] == 3} == {
        "test": (1, 1),
        "open_loop": (0, 2),
    }


def test_users_without_relevant_items_are_left_out_or_count_zero(spark) -> None:
    rows = frame(spark, [ranking("u", [0]), ranking("v", [0], relevance=[2.0])])
    for empty, wanted in (("leave_out", (1.0, 1)), ("zero", (0.5, 2))):
        metric_plan = plan("hit", ks=(1,), threshold=3.0, empty_users=empty)
        liked = rows.withColumn("relevance", F.expr("transform(relevance, r -> if(user_id = 'u', 5D, r))"))
        (row,) = compute_metrics(liked, metric_plan).collect()
        assert (row.value, row.n) == wanted
        per_user = {
            r.user_id: (r["values"], r.n_relevant)
            for r in compute_user_metrics(liked, metric_plan).collect()
        }
        assert per_user == {"u": ([1.0], 1), "v": ([0.0] if empty == "zero" else [None], 0)}


def test_a_slice_in_which_nobody_has_a_relevant_item_has_no_value(spark) -> None:
    rows = [
        ranking("u", [0], relevance=[5.0], slices={"s": ["good"]}),
        ranking("v", [0], relevance=[1.0], slices={"s": ["bad"]}),
    ]
    values = table(compute_metrics(frame(spark, rows), plan("hit", ks=(1,), threshold=4.0)))
    of = {key[2]: (row.value, row.ci_low, row.n) for key, row in values.items()}
    # One user has a value and no interval.
    assert of == {None: (1.0, None, 1), "good": (1.0, None, 1), "bad": (None, None, 0)}


def test_coverage_by_hand(spark) -> None:
    """The catalogue has 10 items: a and b are first in a list; a, b, c, d are among the first three."""
    rows = [
        ranking("u", [0], top_items=["a", "c", "b"]),
        ranking("v", [0], top_items=["b", "a", "d", "e"]),
        ranking("w", [-1], top_items=[], length=0),
        ranking("u", [0], top_items=["z"], part="open_loop"),
    ]
    shown = compute_all_metrics(frame(spark, rows), plan("coverage"), items(spark, *"abcdefghiz"))
    values = table(shown.withColumns({"slice_key": F.lit(None), "slice_value": F.lit(None)}))
    assert {(key[0], key[4]): (row.value, row.n) for key, row in values.items()} == {
        ("test", 1): (0.2, 2), ("test", 3): (0.4, 2),
        ("open_loop", 1): (0.1, 1), ("open_loop", 3): (0.1, 1),
    }  # fmt: skip


# -------------------------------------------------------------------------- against the oracle


def random_users(seed: int, users: int = 80):
    """Users as (scores of candidates with ties, truth), and the same as rows of `rankings`."""
    draw = random.Random(seed)
    given, rows = [], []
    for n in range(users):
        candidates = draw.sample(range(60), draw.randint(1, 12)) if draw.random() > 0.1 else []
        scores = {item: draw.randint(0, 24) / 4 for item in candidates}
        truth = {item: float(draw.randint(1, 5)) for item in draw.sample(range(60), draw.randint(1, 6))}
        given.append((scores, truth))
        rankings = oracles.make_rankings([(scores, truth)])
        counts = {name: getattr(rankings, name).tolist() for name in ("above", "tied", "before")}
        labels = [draw.choice(["x", "y"]) for _ in truth]
        rows.append(
            ranking(f"u{n}", counts.pop("above"), len(scores), relevance=list(truth.values()),
                    item_ids=[str(item) for item in truth], slices={"s": labels}, **counts)
        )  # fmt: skip
    return given, rows


@pytest.mark.parametrize(
    "axes", [{"threshold": 3.0}, {"gain": "linear", "ties": "expected"}, {"users": "output"}], ids=str
)
def test_means_equal_the_oracle(spark, axes: dict[str, Any]) -> None:
    given, rows = random_users(seed=1)
    metric_plan = plan(*NAMES, ks=(2, 5), replicates=0, **axes)
    computed = table(compute_metrics(frame(spark, rows), metric_plan))
    overall = {key[3:]: row for key, row in computed.items() if key[1] is None}
    assert len(overall) > len(NAMES)
    for (name, k), row in overall.items():
        values = [oracles.value(name, scores, truth, k, metric_plan.definition) for scores, truth in given]
        kept = [value for value in values if not math.isnan(value)]
        assert row.n == len(kept)
        assert row.value == pytest.approx(math.fsum(kept) / len(kept), abs=1e-12), (name, k)


def test_the_same_bits_for_any_partitioning_batch_size_and_order(spark) -> None:
    _, rows = random_users(seed=2)
    metric_plan = plan(*NAMES, "coverage", ks=(2, 5))
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    tables = []
    for partitions, batch in ((1, 1000), (3, 7), (17, 64)):
        random.Random(partitions).shuffle(rows)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
        spread = frame(spark, rows).withColumn("top_items", F.col("item_ids")).repartition(partitions)
        pdf = compute_all_metrics(spread, metric_plan, items(spark, *map(str, range(60)))).toPandas()
        tables.append(pdf.sort_values(KEY, ignore_index=True))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    pd.testing.assert_frame_equal(tables[0], tables[1], check_exact=True)
    pd.testing.assert_frame_equal(tables[0], tables[2], check_exact=True)
    assert tables[0].ci_low.notna().sum() > 20
