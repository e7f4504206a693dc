"""Metrics of rankings by hand and against the oracle; `tests/engine/test_law.py` cuts rows in pieces."""

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
from recbench_spark.engine.measures import Measures, reduce_pieces
from recbench_spark.metrics.accuracy import MetricPlan, rank_measure, user_value_batches
from recbench_spark.metrics.beyond_accuracy import Facts
from recbench_spark.metrics.listed import ListedCatalogue, list_measures
from recbench_spark.ranking.batch_schemas import LISTED_USERS
from recbench_spark.ranking.given import rank_batches
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.schemas import RANKINGS
from tests import oracles

KEY = ["part", "slice_key", "slice_value", "metric", "k"]
NAMES = ("ndcg", "recall", "map", "hit", "auc")


def ranking(user: str, above: list[int], length: int = 20, **more: Any) -> tuple[Any, ...]:
    """One user whose truth items stand behind so many candidates; all of relevance 1."""
    values: dict[str, Any] = {
        "run_id": "r", "user_id": user, "part": "test", "user_key": hash_user(user),
        "item_ids": [f"i{n}" for n in range(len(above))], "relevance": [1.0] * len(above),
        "above": above, "tied": [0] * len(above), "before": [0] * len(above), "length": length,
        "top_items": None, "slices": {}, "drawn": None, "pool": None, "propensity": None, "query_id": None,
    }  # fmt: skip
    return tuple({**values, **more}[name] for name in RANKINGS.names)


def hash_user(user: str) -> int:
    return random.Random(user).getrandbits(63)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    records = [dict(zip(RANKINGS.names, row, strict=True)) for row in rows]
    records = [{**record, "slices": list(record["slices"].items())} for record in records]
    return pa.RecordBatch.from_pylist(records, schema=RANKINGS.arrow_schema)


class Items:
    """A catalogue of items with one training row each."""

    def __init__(self, *ids: str) -> None:
        self.ids = pa.array(ids)

    def find(self, ids: pa.Array) -> tuple[Any, Any]:
        places = pc.index_in(ids, self.ids).fill_null(-1).to_numpy().astype(np.int64)
        return places, (places >= 0).astype(np.int64)


def plan(*names: str, ks: tuple[int, ...] = (1, 3), replicates: int = 20, **axes: Any) -> MetricPlan:
    return MetricPlan(names, ks, Definition(**axes), Bootstrap(replicates=replicates))


def table(batches: list[pa.RecordBatch], measures: Measures) -> dict[tuple[Any, ...], Any]:
    (result,) = reduce_pieces(measures, [batches]).values()
    rows = [SimpleNamespace(**row) for row in result.to_pylist()]
    assert len(rows) == len({tuple(getattr(row, name) for name in KEY) for row in rows})
    return {tuple(getattr(row, name) for name in KEY): row for row in rows}


def measure(rows: list[tuple[Any, ...]], wanted: MetricPlan) -> dict[tuple[Any, ...], Any]:
    return table([batch(rows)], {"ranks": rank_measure(wanted)})


def test_by_hand() -> None:
    """u has hits at ranks 1 and 4 of 2 relevant; v at rank 2 of 1; w gets no list."""
    rows = [ranking("u", [0, 3]), ranking("v", [1]), ranking("w", [-1], length=0)]
    computed = measure(rows, plan("recall", "hit", "mrr"))
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


def test_masked_items_leave_lists_before_they_are_measured() -> None:
    """u lists 7, 5, 9 by score and wants 5 and 1, with 7 to be dropped; v wants 4 and has no list."""
    common = {"part": "test", "relevance": [1.0], "slices": [], "masked": []}
    rows = [
        {**common, "user_id": "u", "user_key": 1, "item_ids": ["1", "5"], "items": [1, 5],
         "relevance": [1.0, 1.0], "masked": [7], "list_items": [5, 7, 9], "list_ids": ["5", "7", "9"],
         "list_scores": [2.0, 3.0, 1.0]},
        {**common, "user_id": "v", "user_key": 2, "item_ids": ["4"], "items": [4]},
    ]  # fmt: skip
    schema = pa.schema([field for field in LISTED_USERS if field.name != "list_ranks"])
    users, wanted = pa.RecordBatch.from_pylist(rows, schema=schema), plan("recall", "mrr")
    for mask, recall_1 in ((False, 0), (True, 1 / 4)):
        listed = users if mask else users.drop_columns(["masked"])
        ranked = list(rank_batches(RankingRequest(wanted.definition), iter([listed])))
        values = table(ranked, {"ranks": rank_measure(wanted)})
        value = {key[3:]: row.value for key, row in values.items()}
        assert value["recall", 1] == recall_1 and value["recall", 3] == 1 / 4
        assert value["mrr", 3] == (1 / 2 if mask else 1 / 4) and {row.n for row in values.values()} == {2}


def test_slices_keep_the_rank_and_restrict_the_truth() -> None:
    """u: head item at rank 1, tail item at rank 4; v: tail item at rank 2. The tail has two users."""
    rows = [
        ranking("u", [0, 3], slices={"popularity": ["head", "tail"]}),
        ranking("v", [1], slices={"popularity": ["tail"]}),
        ranking("w", [0], slices={"popularity": [None]}),
    ]
    values = measure(rows, plan("recall"))
    of = {(key[2], key[4]): (row.value, row.n) for key, row in values.items() if key[1]}
    assert of == {("head", 1): (1, 1), ("head", 3): (1, 1), ("tail", 1): (0, 2), ("tail", 3): (0.5, 2)}


def test_parts_are_kept_apart() -> None:
    rows = [ranking("u", [0]), ranking("u", [9], part="open_loop"), ranking("v", [9], part="open_loop")]
    values = measure(rows, plan("hit"))
    assert {key[0]: (row.value, row.n) for key, row in values.items() if key[4] == 3} == {
        "test": (1, 1),
        "open_loop": (0, 2),
    }


def test_users_without_relevant_items_are_left_out_or_count_zero() -> None:
    rows = [ranking("u", [0], relevance=[5.0]), ranking("v", [0], relevance=[2.0])]
    for empty, wanted in (("leave_out", (1.0, 1)), ("zero", (0.5, 2))):
        metric_plan = plan("hit", ks=(1,), threshold=3.0, empty_users=empty)
        (row,) = measure(rows, metric_plan).values()
        assert (row.value, row.n) == wanted
        per_user = {
            row["user_id"]: (row["values"], row["n_relevant"])
            for values in user_value_batches(metric_plan, iter([batch(rows)]))
            for row in values.to_pylist()
        }
        assert per_user == {"u": ([1.0], 1), "v": ([0.0] if empty == "zero" else [None], 0)}


def test_a_slice_in_which_nobody_has_a_relevant_item_has_no_value() -> None:
    rows = [
        ranking("u", [0], relevance=[5.0], slices={"s": ["good"]}),
        ranking("v", [0], relevance=[1.0], slices={"s": ["bad"]}),
    ]
    values = measure(rows, plan("hit", ks=(1,), threshold=4.0))
    of = {key[2]: (row.value, row.ci_low, row.n) for key, row in values.items()}
    # One user has a value and no interval.
    assert of == {None: (1.0, None, 1), "good": (1.0, None, 1), "bad": (None, None, 0)}


def test_coverage_by_hand() -> None:
    """The catalogue has 10 items: a and b are first in a list; a, b, c, d are among the first three."""
    rows = [
        ranking("u", [0], top_items=["a", "c", "b"]),
        ranking("v", [0], top_items=["b", "a", "d", "e"]),
        ranking("w", [-1], top_items=[], length=0),
        ranking("u", [0], top_items=["z"], part="open_loop"),
    ]
    catalogue = ListedCatalogue(Items(*"abcdefghiz"), 10, Facts(1, None))
    values = table([batch(rows)], list_measures(plan("coverage"), catalogue))
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
def test_means_equal_the_oracle(axes: dict[str, Any]) -> None:
    given, rows = random_users(seed=1)
    metric_plan = plan(*NAMES, ks=(2, 5), replicates=0, **axes)
    computed = measure(rows, metric_plan)
    overall = {key[3:]: row for key, row in computed.items() if key[1] is None}
    assert len(overall) > len(NAMES)
    for (name, k), row in overall.items():
        values = [oracles.value(name, scores, truth, k, metric_plan.definition) for scores, truth in given]
        kept = [value for value in values if not math.isnan(value)]
        assert row.n == len(kept)
        assert row.value == pytest.approx(math.fsum(kept) / len(kept), abs=1e-12), (name, k)
