"""Novelty, popularity, coverage and Gini of lists: by hand, and against slow oracles."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recbench_spark.config import Bootstrap
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import RATIO_SHIFT
from recbench_spark.engine.measures import list_results, reduce_pieces
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.evaluation.run_measures import make_measures, map_user_values
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan, check_names
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.group_rows import finish_groups
from recbench_spark.metrics.kernels.item_groups import GroupCounts, popularity_reo
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.metrics.questions import Owners
from recbench_spark.ranking.known_items import order_popularity
from recbench_spark.schemas import METRICS, RANKINGS, arrow_rows
from tests.oracles import gini_from_counts

NAMES = ("novelty", "mean_popularity", "coverage", "gini")
N_TRAIN = {"a": 8, "b": 4, "c": 2, "d": 0, "e": 8}


def row(user: str, items: list[str] | None, part: str = "test", **more: Any) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "run_id": "r", "user_id": user, "part": part, "user_key": random.Random(user).getrandbits(63),
        "item_ids": ["a", "b"], "relevance": [1.0, 0.0], "above": [0, 1], "tied": [0, 0], "before": [0, 0],
        "length": len(items or []), "top_items": items, "slices": {}, "drawn": None, "pool": None,
        "propensity": None, "query_id": None,
    }  # fmt: skip
    return tuple({**values, **more}[name] for name in RANKINGS.names)


def plan(*names: str, ks: tuple[int, ...] = (1, 3), replicates: int = 20, **axes: Any) -> MetricPlan:
    return MetricPlan(names, ks, Definition(**axes), Bootstrap(replicates=replicates))


class Counted:
    """A catalogue of items with their numbers of training rows."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.ids, self.counts = pa.array([*counts]), np.array([*counts.values(), 0])

    def find(self, ids: pa.Array) -> tuple[Any, Any]:
        places = pc.index_in(ids, self.ids).fill_null(-1).to_numpy().astype(np.int64)
        return places, self.counts[places]

    def popularity(self) -> Any:
        return order_popularity(self.counts[:-1])


FIVE = ListedCatalogue(Counted(N_TRAIN), 5, Facts(8, None))
"""Five items, eight training users."""


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    records = [{**dict(zip(RANKINGS.names, row, strict=True)), "slices": []} for row in rows]
    return pa.RecordBatch.from_pylist(records, schema=RANKINGS.arrow_schema)


LISTS = batch(
    [
        row("u", ["a", "b", "d", "e"]),
        row("v", ["b"]),
        row("w", []),
        row("x", None),
        row("u", ["c", "?"], part="open_loop"),
    ]
)


def measure(batches: list[pa.RecordBatch], wanted: MetricPlan, catalogue: ListedCatalogue = FIVE) -> Any:
    measures = make_measures(wanted, catalogue)
    results = reduce_pieces(measures, [batches])
    rows = pa.concat_tables(
        [arrow_rows(rows, METRICS) for rows in list_results(measures, results, METRICS)]
    )
    return [SimpleNamespace(**row) for row in rows.to_pylist()]


def test_overall_by_hand() -> None:
    """p: a 1, b 1/2, c 1/4, d none (counts 1/8 in novelty), e 1; `?` is outside of the catalogue."""
    values = measure([LISTS], plan(*NAMES))
    value = {(r.part, r.metric, r.k): (r.value, r.n) for r in values}
    assert len(values) == len(value) == 16
    of = {key[1:]: pair for key, pair in value.items() if key[0] == "test"}
    u_bits, u_share = (0 + 1 + 3) / 3, (1 + 1 / 2 + 0) / 3
    expected = {
        ("novelty", 1): (0 + 1) / 2, ("novelty", 3): (u_bits + 1) / 2,
        ("mean_popularity", 1): (1 + 1 / 2) / 2, ("mean_popularity", 3): (u_share + 1 / 2) / 2,
        ("coverage", 1): 2 / 5, ("coverage", 3): 3 / 5,
        ("gini", 1): gini_from_counts(np.array([1, 1, 0, 0, 0])),
        ("gini", 3): gini_from_counts(np.array([1, 2, 0, 1, 0])),
    }  # fmt: skip
    assert {key: pair[0] for key, pair in of.items()} == pytest.approx(expected, abs=1e-12)
    assert {pair[1] for pair in of.values()} == {2}, "users with a list"
    assert value["open_loop", "novelty", 3] == (pytest.approx((2 + 3) / 2), 1)
    assert value["open_loop", "coverage", 3] == (pytest.approx(1 / 5), 1)
    intervals = [r for r in values if r.metric == "novelty" and r.part == "test"]
    assert all(r.ci_low <= r.value <= r.ci_high and r.stderr is not None for r in intervals)
    assert {(r.definition, r.estimator) for r in values} == {("v1", "holdout")}


def test_list_metrics_of_each_user_by_hand() -> None:
    metric_plan = plan("ndcg", "novelty", "mean_popularity", "gini")
    values = map_user_values(metric_plan, FIVE, iter([LISTS]))
    rows = [SimpleNamespace(**row) for values_of in values for row in values_of.to_pylist()]
    assert {r.metric for r in rows} == {"ndcg", "novelty", "mean_popularity"}
    novelty = {(r.user_id, r.part): r for r in rows if r.metric == "novelty"}
    assert set(novelty) == {("u", "test"), ("v", "test"), ("u", "open_loop")}
    assert novelty["u", "test"].values == pytest.approx([0, 4 / 3])
    assert (novelty["u", "test"].ks, novelty["u", "test"].n_relevant) == ([1, 3], 1)
    assert sum(r.metric == "ndcg" for r in rows) == 5


def test_rows_fit_the_tables_and_stand_beside_other_metrics() -> None:
    metric_plan = plan("ndcg", *NAMES, candidates="all")
    rows = measure([LISTS], metric_plan)
    assert {r.metric for r in rows} == {"ndcg", *NAMES}
    assert {r.definition for r in rows} == {"v1;candidates=all"}
    assert {r.k for r in rows if r.metric in NAMES} == {1, 3}
    assert {r.k for r in rows if r.metric == "ndcg"} == {1, 3, None}


def test_random_lists_against_slow_oracles() -> None:
    draw = random.Random(3)
    ids = [f"i{n}" for n in range(40)]
    train = {item: draw.randint(0, 50) for item in ids}
    lists = [draw.sample(ids, draw.randint(0, 12)) for _ in range(120)]
    rows = [row(f"u{n}", items) for n, items in enumerate(lists)]
    world = ListedCatalogue(Counted(train), 40, Facts(50, None))
    values = measure([batch(rows[:50]), batch(rows[50:])], plan(*NAMES, ks=(2, 5, 20)), world)
    value = {(r.metric, r.k): r.value for r in values}
    for k in (2, 5, 20):
        shown = [i for items in lists for i in items[:k]]
        assert value["coverage", k] == len(set(shown)) / 40
        assert value["gini", k] == gini_from_counts(np.array([shown.count(i) for i in ids]))
        bits = [[-math.log2(max(train[i], 1) / 50) for i in items[:k]] for items in lists if items]
        assert value["novelty", k] == pytest.approx(np.mean([np.mean(b) for b in bits]), abs=1e-12)


def test_from_python_lists_and_training_rows(spark) -> None:
    """Two training users have a, one has b: the novelty of [c, a] is (1 + 0) / 2 bits."""
    lists = spark.createDataFrame(
        [("u", "c", 1), ("u", "a", 2)], "user_id string, item_id string, rank int"
    )
    truth = spark.createDataFrame([("u", "a")], "user_id string, item_id string")
    train = spark.createDataFrame([("x", "a"), ("y", "a"), ("y", "b")], "user_id string, item_id string")
    vectors = [("a", [1.0, 0.0]), ("b", [0.0, 1.0]), ("c", [1.0, 1.0])]
    features = spark.createDataFrame(vectors, "item_id string, vector array<double>")
    result = evaluate(
        truth, lists=lists, train=train, features=features, k=(1, 2), metrics=("hit", "diversity", *NAMES)
    )
    rows = result.metrics.where("slice_key IS NULL").collect()
    values = {(r.metric, r.k): r.value for r in rows}
    result.release()
    assert {r.definition for r in rows if r.metric == "diversity"} == {"v1;features=given"}
    assert values == pytest.approx({
        ("hit", 1): 0, ("hit", 2): 1, ("novelty", 1): 1, ("novelty", 2): 1 / 2,
        ("diversity", 1): None, ("diversity", 2): 1 - 1 / math.sqrt(2),
        ("mean_popularity", 1): 0, ("mean_popularity", 2): 1 / 2,
        ("coverage", 1): 1 / 3, ("coverage", 2): 2 / 3, ("gini", 1): 2 / 3, ("gini", 2): 1 / 3,
    })  # fmt: skip
    with pytest.raises(ConfigError, match="novelty needs the training rows"):
        evaluate(truth, lists=lists, metrics=("hit", "novelty"))
    with pytest.raises(ConfigError, match="diversity needs vectors"):
        evaluate(truth, lists=lists, metrics=("hit", "diversity"))


def test_names_are_known_and_say_whether_lists_are_needed() -> None:
    check_names(("ndcg", *NAMES))
    with pytest.raises(ConfigError, match=r"unknown metric 'noveltie'(.|\n)*did you mean 'novelty'"):
        check_names(("ndcg", "noveltie"))
    assert plan("ndcg", "auc").request().top == 0
    assert plan("ndcg", "auc").request(lists=True).top == 3
    assert all(plan("ndcg", name).request().top == 3 for name in (*NAMES, "diversity"))


def test_recall_of_head_and_tail_over_all_users() -> None:
    """Head: a, b and e. Up to 3, 2 of its 3 relevant ones are hits, and 1 of 2 of the tail."""
    rows = [
        row("u", ["a", "c", "e"], item_ids=["a", "c"], relevance=[1.0, 1.0]),
        row("v", ["b", "?"], item_ids=["b", "d", "?"], relevance=[1.0, 1.0, 0.0]),
        row("w", ["c"], item_ids=["e"], relevance=[1.0]),
        row("x", [], item_ids=["a"], relevance=[1.0]),
    ]
    facts = ListedCatalogue(Counted(N_TRAIN), 5, Facts(8, None, 4))
    one, three = measure([batch(rows)], plan("popularity_reo"), facts)
    assert (one.value, one.n) == (1.0, 3) and one.k == 1, "nothing of the tail in the first place"
    assert three.value == pytest.approx((2 / 3 - 1 / 2) / (2 / 3 + 1 / 2), abs=1e-12)
    assert three.definition == "v1;head=0.8"


def test_recall_of_groups_by_a_loop_with_an_interval_that_resamples_users() -> None:
    draw = random.Random(7)
    rows = [
        row(
            f"u{u}",
            draw.sample("abcde", 3),
            item_ids=[*"abcde"],
            relevance=[float(draw.random() < 0.4) for _ in "abcde"],
        )
        for u in range(200)
    ]
    facts = ListedCatalogue(Counted(N_TRAIN), 5, Facts(8, None, 4))
    (value,) = measure([batch(rows)], plan("popularity_reo", ks=(3,), replicates=200), facts)
    hits, relevant = {False: 0, True: 0}, {False: 0, True: 0}
    for values in (dict(zip(RANKINGS.names, one, strict=True)) for one in rows):
        for item, grade in zip(values["item_ids"], values["relevance"], strict=True):
            relevant[N_TRAIN[item] >= 4] += grade > 0
            hits[N_TRAIN[item] >= 4] += grade > 0 and item in values["top_items"]
    head, tail = (hits[side] / relevant[side] for side in (True, False))
    assert value.value == pytest.approx(abs(head - tail) / (head + tail), abs=1e-12)
    assert value.ci_low < value.value < value.ci_high and 0 < value.stderr < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("head", "tail"), [(0.3, 0.3), (0.3, 0.25), (0.3, 0.1), (0.3, 0.05)])
def test_intervals_of_recall_of_groups_hold_the_spread(head: float, tail: float) -> None:
    """400 worlds of 500 users, also where both groups are found alike. With 6 hits of the tail: .928."""
    rng = np.random.default_rng(11)

    def count(users: int) -> Any:
        chance = np.exp(rng.normal(0, 0.5, users))
        relevant = np.stack([rng.poisson(0.6, users), rng.poisson(2.5, users)], axis=1)
        own = [rng.binomial(relevant[:, g], np.minimum(p * chance, 1)) for g, p in enumerate((tail, head))]
        return np.concatenate([relevant, np.stack(own, axis=1)], axis=1) * RATIO_SHIFT

    metric_plan = plan("popularity_reo", ks=(3,), replicates=400)
    relevant, hits = np.split(count(2_000_000).sum(axis=0), 2)
    spread = popularity_reo(GroupCounts(relevant=relevant, hits=hits))
    held = 0
    for _ in range(400):
        keys = rng.integers(0, 1 << 62, 500)
        sums = accuracy.sum_users({"groups": count(500)}, Owners(keys), metric_plan.bootstrap)
        table = pa.Table.from_batches([accuracy.totals_batch(("test", None, None), sums)])
        (row,) = finish_groups(metric_plan, metric_plan.metrics, table).to_pylist()
        held += row["ci_low"] <= abs(spread) + 0.003 and row["ci_high"] >= abs(spread) - 0.003
    assert held >= 0.93 * 400
