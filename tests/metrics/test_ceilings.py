"""Ceilings: by hand as fractions, against all orders of small pools, and in nights whose pool shrinks."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from recbench_spark.config import Benchmark, Bootstrap, parse
from recbench_spark.core.definitions import Definition
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.ceilings import ceiling_measure, measure_best
from recbench_spark.metrics.kernels.about import best_when
from recbench_spark.metrics.kernels.accuracy import METRICS, measure
from recbench_spark.night.run_rows import check_reach
from recbench_spark.query.answers import make_query_runner
from recbench_spark.ranking.batch_schemas import RANKED_USERS
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.schemas import CEILINGS, CHECKS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.table_sql import query_files
from tests.night.test_verdicts import suite, write_lists, write_log
from tests.nights import run


def make_rankings(places: list[list[int]], grades: list[list[float]], length: int) -> Rankings:
    """Truth items at these places (from 0; -1: not ranked), without ties."""
    above = np.array([place for user in places for place in user])
    offsets = np.cumsum([0, *map(len, places)])
    relevance = np.array([grade for user in grades for grade in user], dtype=float)
    zeros = np.zeros_like(above)
    return Rankings(offsets, relevance, above, zeros, zeros, np.full(len(places), length))


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"threshold": 3.0},
        {"threshold": 3.0, "gain": "linear"},
        {"grade_origin": 3.0, "gain": "linear", "negative_grades": "signed"},
        {"grade_origin": 3.0, "gain": "exponential", "negative_grades": "worst", "threshold": 4.0},
        {"ties": "expected", "recall_by": "min_k_relevant"},
        {"gain": "exponential_above", "threshold": 2.0, "ap": "mean_precision"},
    ],
    ids=str,
)
def test_no_order_of_a_small_pool_is_better(axes: dict[str, Any]) -> None:
    """Six candidates, of which up to three are truth; one more item of the truth is no candidate."""
    definition, draw, pool = Definition(**axes), np.random.default_rng(3), 6
    plan = MetricPlan(tuple(METRICS), (1, 2, 4), definition, Bootstrap())
    for _ in range(12):
        n = int(draw.integers(1, 4))
        grades = [float(grade) for grade in draw.integers(1, 6, n + 1)]
        orders = [[*places, -1] for places in permutations(range(pool), n)]
        every = make_rankings(orders, [grades] * len(orders), pool)
        values = measure(every, plan.metrics, plan.ks, definition)
        best = measure_best(plan, every.users(0, 1))
        for name, own in values.items():
            limit = own.min(axis=0) if name in best_when("small") else own.max(axis=0)
            assert best[name][0] == pytest.approx(limit, nan_ok=True), name


def make_batch(users: list[tuple[list[int], int]]) -> pa.RecordBatch:
    """Users by the places of their truth and the length of their pool."""
    rows = [
        {
            **{"user_id": f"u{n}", "part": "test", "user_key": n, "length": length, "slices": []},
            **{"item_ids": [f"i{p}" for p in range(len(places))], "relevance": [1.0] * len(places)},
            **{"above": places, "tied": [0] * len(places), "before": [0] * len(places)},
        }
        for n, (places, length) in enumerate(users)
    ]
    return pa.RecordBatch.from_pylist(rows, RANKED_USERS)


def test_three_users_by_hand() -> None:
    """Half, all and none of the truth is in the pool: the ceilings of recall are 1/2, 1 and 0."""
    plan = MetricPlan(("recall", "precision", "mrr"), (1, 2), Definition(), Bootstrap(replicates=10))
    batch = make_batch([([2, -1], 4), ([3, 0], 4), ([-1], 4)])
    rows = reduce_pieces({"ceilings": ceiling_measure(plan)}, [[batch]])["ceilings"].to_pylist()
    by_figure = {(row["metric"], row["k"]): row for row in rows}
    wanted = {
        ("recall", 1): ([Fraction(1, 2), Fraction(1, 2), 0], [0, Fraction(1, 2), 0]),
        ("recall", 2): ([Fraction(1, 2), 1, 0], [0, Fraction(1, 2), 0]),
        ("precision", 2): ([Fraction(1, 2), 1, 0], [0, Fraction(1, 2), 0]),
        ("mrr", None): ([1, 1, 0], [Fraction(1, 3), 1, 0]),
    }
    for key, (best, own) in wanted.items():
        row, lost = by_figure[key], [float(b - o) for b, o in zip(best, own, strict=True)]
        assert (row["ceiling"], row["n"]) == (float(Fraction(sum(best), 3)), 3)
        assert row["lost"] == pytest.approx(np.mean(lost))
        assert row["lost_stderr"] == pytest.approx(stats.sem(lost))
        half = stats.t.ppf(0.975, 2) * stats.sem(lost)
        assert (row["lost_low"], row["lost_high"]) == pytest.approx(
            (np.mean(lost) - half, np.mean(lost) + half)
        )
        assert row["reach"] == pytest.approx((1 / 2 + 1 + 0) / 3)


# ------------------------------------------------------------------------------- in nights

DAYS = [date(2026, 1, day) for day in (1, 2, 3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArrowStore:
    """Three nights: the truth of every user is given; the same again; of half of the users it is not."""
    folder = tmp_path_factory.mktemp("pools")
    truth = write_log(folder)
    content = suite(folder, comparisons=None, regressions=[]).model_dump(mode="json")
    content["evaluation"]["definition"] |= {"candidates": "given"}
    content["evaluation"]["candidates_path"] = str(folder / "pool-{logical_date}.csv")
    store = ArrowStore(str(folder / "warehouse"))
    for day in DAYS:
        pool = [
            (user, item)
            for user, items in truth.items()
            for item in [*(items if day < DAYS[2] or int(user[1:]) % 2 else []), "i0", "i1", "i2"]
        ]
        pd.DataFrame(pool, columns=["user_id", "item_id"]).drop_duplicates().to_csv(
            folder / f"pool-{day}.csv", index=False
        )
        write_lists(folder / f"lists-{day}.csv", {user: items[:1] for user, items in truth.items()})
        run(store, parse(Benchmark, content, "tests/metrics/test_ceilings.py"), day)
    return store


def test_a_pool_bounds_what_its_ranker_reaches(store: ArrowStore) -> None:
    runs = {row["run_id"]: (row["model"], row["logical_date"]) for row in store.rows(RUNS)}
    rows = [row for row in store.rows(CEILINGS) if (row["metric"], row["k"]) == ("ndcg", 10)]
    by_run = {runs[row["run_id"]]: row for row in rows}
    assert len(by_run) == 6 and all(row["lost"] >= 0 for row in rows)
    popular = [by_run["popular", day] for day in DAYS]
    assert [row["ceiling"] for row in popular[:2]] == [1.0, 1.0] and popular[2]["ceiling"] < 0.7
    assert popular[0]["reach"] == 1.0 and popular[0]["lost_low"] > 0
    answer = make_query_runner(store)(query_files()["what_could_the_candidates_reach"])
    assert set(answer.model) == {"popular", "ours"}
    assert answer.ceiling.to_numpy() == pytest.approx((answer.value + answer.lost).to_numpy())


def test_reach_is_compared_with_the_last_run_of_the_night_before() -> None:
    """The night before has two runs, and the newer one counts."""
    ages = {"a": (DAYS[0], 1, 1.0), "b": (DAYS[1], 1, 1.0), "c": (DAYS[1], 2, 0.5), "d": (DAYS[2], 1, 1.0)}
    runs = [
        {"run_id": name, "logical_date": day, "attempt": attempt, "finished_at": attempt}
        for name, (day, attempt, _) in ages.items()
    ]
    errors = {"part": "test", "definition": "v1", "reach_stderr": 0.01}

    def rows(table: Any, filters: Any, names: Any) -> list[dict[str, Any]]:
        if table is RUNS:
            assert ("dataset", "=", "log") in filters
            return runs
        ((_, _, run_ids),) = filters
        return [errors | {"reach": ages[name][2]} for name in run_ids]

    store = SimpleNamespace(exists=lambda name: True, rows=rows)
    benchmark = SimpleNamespace(name="judged", dataset=SimpleNamespace(name="log"))
    night: Any = SimpleNamespace(store=store, benchmark=benchmark, logical_date=DAYS[2])
    for reach, warned in ((0.48, False), (0.5, False), (0.4, True)):
        checks = check_reach(night, "ours", [pa.Table.from_pylist([errors | {"reach": reach}])])
        assert [check.detail[:20] for check in checks] == ["0.5000 on 2026-01-02"] * warned


def test_a_pool_that_lost_truth_is_a_warning(store: ArrowStore) -> None:
    days = {row["run_id"]: row["logical_date"] for row in store.rows(RUNS) if row["model"] == "popular"}
    name = "test: fall of the truth among candidates"
    checks = [row for row in store.rows(CHECKS) if row["check"] == name and row["run_id"] in days]
    assert [(days[row["run_id"]], row["passed"], row["severity"]) for row in checks] == [
        (DAYS[2], False, "warning")
    ]
    assert checks[0]["detail"].startswith("1.0000 on 2026-01-02") and checks[0]["observed"] > 0.3
