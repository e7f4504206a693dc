"""Models beyond means: spreads, preferences, gaps and fronts by slow oracles, and in nights."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from datetime import date
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from recbench_spark.analyses.comparisons.comparisons import compare_beside
from recbench_spark.analyses.comparisons.differences import ComparedRun, ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.fronts import (
    describe_front,
    list_fronts,
    list_gaps,
    measure_volume,
)
from recbench_spark.analyses.comparisons.preferences import PreferencePlan, compare_preferences
from recbench_spark.analyses.comparisons.spreads import spread_measure
from recbench_spark.config import Benchmark, Bootstrap, parse
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError
from recbench_spark.query.answers import make_query_runner
from recbench_spark.schemas import (
    FRONTS,
    GROUP_GAPS,
    PREFERENCES,
    RANKINGS,
    USER_METRICS,
    USER_SPREADS,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import Engine, Rows
from recbench_spark.storage.table_sql import query_files
from tests.analyses.comparisons.test_slice_falls import watch
from tests.night.test_verdicts import write_lists, write_log
from tests.nights import run
from tests.table_rows import make_table, open_table

DAY = date(2026, 1, 2)
RUNS = tuple(ComparedRun(name[0], name, DAY) for name in ("alice", "bob", "carol"))
PLAN = ComparisonPlan(
    RUNS,
    (ComparisonGroup("pair", (0, 1, 2)),),
    ("ndcg", "rank"),
    (5, 10),
    {("test", metric, k): 1 for metric in ("ndcg", "rank") for k in (5, 10)},
    Bootstrap(replicates=20),
    lower=("rank",),
)
PREFERRED = PreferencePlan(PLAN, ("ndcg", 10), None)
STEP = 2.0**-16
FIRST, STOP = map(int, os.environ.get("RECBENCH_SPREAD_SEEDS", "0,3").split(","))
SEEDS = range(FIRST, STOP)


def draw_values(seed: int = 0) -> dict[tuple[str, str, str, int], float | None]:
    """Values in whole steps, by run, metric, user and cut-off; some users have none."""
    rng = np.random.default_rng(11 + 2 * seed)
    return {
        (run.run_id, metric, f"u{n}", k): None if rng.random() < 0.1 else rng.integers(-3, 30) / 32
        for run, metric, n, k in product(RUNS, ("ndcg", "rank"), range(120), (5, 10))
    }


def draw_rows(seed: int = 0) -> list[pa.Table]:
    """Rows of `user_metrics`, and of `rankings`; a user in three has two questions."""
    values, rng, ranked = draw_values(seed), np.random.default_rng(12 + 2 * seed), []
    measures = [
        {"run_id": run.run_id, "user_id": f"u{n}", "part": "test", "metric": metric, "definition": "v1",
         "estimator": "holdout", "ks": [5, 10], "n_relevant": 1,
         "values": [values[run.run_id, metric, f"u{n}", k] for k in (5, 10)]}
        for run, metric, n in product(RUNS, ("ndcg", "rank"), range(120))
    ]  # fmt: skip
    questions = [(n, query) for n in range(120) for query in range(2 if n % 3 == 0 else 1)]
    for n, question in questions:
        relevance = [float(rng.integers(0, 3)) for _ in range(int(rng.integers(1, 6)))]
        for one in RUNS if n % 7 else RUNS[:2]:
            facts = {"run_id": one.run_id, "user_id": f"u{n}", "part": "test", "user_key": n, "length": 9}
            facts |= {"query_id": str(question) if n % 3 == 0 else None, "relevance": relevance}
            places = rng.permutation(9)[: len(relevance)].tolist()
            facts |= {"above": [-1 if place > 6 else place for place in places]}
            facts |= {name: [0] * len(relevance) for name in ("tied", "before")}
            ranked.append(facts | {"item_ids": ["i"] * len(relevance)})
    return [
        make_table([tuple(row.get(name) for name in table.names) for row in rows], table)
        for table, rows in ((USER_METRICS, measures), (RANKINGS, ranked))
    ]


def measure(_: Engine, rows: Sequence[Rows], tasks: int) -> list[pa.Table]:
    """Both analyses that read users."""
    _, beside = compare_beside(rows[0], PLAN, {}, tasks, {"spreads": spread_measure(PLAN)})
    return [beside["spreads"], compare_preferences(rows[1], PREFERRED, tasks)]


def measure_here(seed: int) -> list[pd.DataFrame]:
    """Both tables from 1, 3 and 17 pieces and tasks, whose bits are equal."""
    engine, rows = LocalEngine(tempfile.gettempdir()), draw_rows(seed)
    results = []
    for pieces in (1, 3, 17):
        opened = [open_table(one, pieces) for one in rows]
        results.append([sorted(map(repr, one.to_pylist())) for one in measure(engine, opened, pieces)])
    assert results[0] == results[1] == results[2]
    return [one.to_pandas() for one in measure(engine, list(map(open_table, rows)), 3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_have_the_numbers_of_loops(seed: int) -> None:
    tables = measure_here(seed)
    check_spreads(tables, draw_values(seed))
    check_preferences(tables, draw_rows(seed)[1].to_pandas())


def check_spreads(
    tables: list[pd.DataFrame], values: dict[tuple[str, str, str, int], float | None]
) -> None:
    """Compare spreads with a loop over users."""
    spreads = tables[0].set_index(["run_id", "metric", "k"])
    assert len(spreads) == 3 * 2 * 2
    for (run_id, metric, k), row in spreads.iterrows():
        users = [f"u{n}" for n in range(120)]
        own = {user: values[run_id, metric, user, k] for user in users}
        known = sorted(value for value in own.values() if value is not None)
        assert row.users == len(known) and row.zeros == known.count(0.0)
        assert row.percentiles[3] == known[-(-len(known) // 2) - 1]
        worst = known[::-1] if metric == "rank" else known
        assert row.worst_tenth == pytest.approx(sum(take_tenth(worst)), abs=1e-12)
        if run_id == "b":
            assert row.other is None
            continue
        sign = -1 if metric == "rank" else 1
        pairs = [(own[user], values["b", metric, user, k]) for user in users]
        gains = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
        losses = [-gain for gain in gains if gain < 0]
        assert (row.other, row.both) == ("bob", len(gains))
        assert (row.winners, row.losers) == (sum(gain > 0 for gain in gains), len(losses))
        assert row.mean_loss == pytest.approx(float(np.mean(losses)), abs=STEP)
        assert row.losing_low < row.losing_share == len(losses) / len(gains) < row.losing_high


def take_tenth(values: Sequence[float]) -> list[float]:
    """Each of the first values by its part in the tenth's mean."""
    share = Fraction(len(values), 10)
    return [
        value * float(min(Fraction(1), max(share - n, Fraction(0))) / share)
        for n, value in enumerate(values)
    ]


def check_preferences(tables: list[pd.DataFrame], rows: pd.DataFrame) -> None:
    """Compare preferences with a loop over questions."""
    places: dict[tuple[str, str, str], list[float]] = {}
    for row in rows.itertuples():
        kept = [above for above, grade in zip(row.above, row.relevance, strict=True) if grade > 0]
        ranked = sorted(math.inf if above < 0 else above for above in kept)
        places[row.run_id, row.user_id, row.query_id or ""] = ranked
    for run_id, measure_number in product("ac", range(3)):
        means: dict[str, list[float]] = {}
        for (owner, user, query), own in places.items():
            other = places.get(("b", user, query))
            if owner == run_id and other is not None and own:
                signs = [int(a < b) - int(a > b) for a, b in zip(own, other, strict=True)]
                known = [sign for sign in signs if sign] or [0]
                value = (known[0], known[-1], sum(signs) / len(signs))[measure_number]
                means.setdefault(user, []).append(value)
        user_means = [sum(one) / len(one) for one in means.values()]
        name = ("lexiprecision", "lexirecall", "recall_paired")[measure_number]
        (row,) = tables[1].query(f"run_id == '{run_id}' and measure == '{name}'").itertuples()
        assert (row.users, row.other) == (len(user_means), "bob")
        assert (row.preferred, row.against) == (
            sum(m > 0 for m in user_means),
            sum(m < 0 for m in user_means),
        )
        assert row.value == pytest.approx(np.mean(user_means), abs=1e-9)
        assert row.stderr == pytest.approx(
            np.std(user_means, ddof=1) / math.sqrt(len(user_means)), abs=1e-8
        )
        assert row.ci_low < row.value < row.ci_high


# ------------------------------------------------------------------------------- rows of metrics


def number(run_id: str, metric: str, value: float, **more: Any) -> dict[str, Any]:
    row = {"run_id": run_id, "part": "test", "metric": metric, "definition": "v1", "k": 10}
    row |= {"estimator": "holdout", "slice_key": None, "slice_value": None, "stderr": 0.01, "n": 50}
    return row | {"value": value, **more}


def test_gaps_leave_out_few_users_and_stand_beside_the_baseline() -> None:
    rows = [
        number(run_id, "ndcg", value, slice_key="country", slice_value=country, n=users)
        for run_id, values in (("a", (0.5, 0.2, 0.9)), ("b", (0.4, 0.3, 0.0)))
        for country, value, users in zip(("DE", "FR", "LI"), values, (40, 30, 29), strict=True)
    ]
    mine, other = list_gaps([*rows, number("a", "ndcg", 0.4)], PLAN, ("country",))
    assert (mine["model"], mine["groups"], mine["few"]) == ("alice", 2, 1)
    assert mine["mad"] == mine["gap"] == pytest.approx(0.3)
    assert (mine["worst_group"], mine["worst_value"], mine["best_group"]) == ("FR", 0.2, "DE")
    assert mine["gap_low"] < 0.3 < mine["gap_high"] and mine["gap_low"] > 0
    assert (mine["other"], mine["other_worst"]) == ("bob", 0.3)
    assert mine["other_gap"] == pytest.approx(0.1) and "other" not in other
    assert "gap" not in list_gaps(rows[1:3], PLAN, ("country",))[0]


def test_a_front_by_hand() -> None:
    """Points (1, 3), (2, 1) and (1, 1), which both dominate: boxes of 3 and 2 with 1 in common."""
    facts = describe_front([[1.0, 3.0], [2.0, 1.0], [1.0, 1.0]], ["ndcg", "entropy"])
    assert [fact["on_front"] for fact in facts] == [True, True, False]
    assert facts[2]["dominated_by"] == [0, 1] and {fact["hypervolume"] for fact in facts} == {4.0}
    assert [fact["contribution"] for fact in facts] == [2.0, 1.0, 0.0]


def test_small_values_that_are_best_count_from_the_worst_end() -> None:
    facts = describe_front([[0.5, 0.25], [0.25, 0.75]], ["ndcg", "mean_popularity"])
    assert facts[0]["reference"] == [0.0, 1.0] and facts[0]["dominated_by"] == []
    assert facts[1]["dominated_by"] == [0] and facts[0]["hypervolume"] == pytest.approx(0.5 * 0.75)


@pytest.mark.parametrize("figures", [1, 2, 3, 4])
def test_volumes_as_a_grid_counts_them(figures: int) -> None:
    rng = np.random.default_rng(figures)
    points = rng.integers(0, 5, (6, figures)).astype(float)
    cells = sum(
        any(all(cell[f] < point[f] for f in range(figures)) for point in points)
        for cell in product(range(5), repeat=figures)
    )
    assert measure_volume(points) == cells


def test_models_without_a_figure_are_on_no_front() -> None:
    rows = [number(run_id, "ndcg", 0.5) for run_id in "abc"]
    rows += [number(run_id, "entropy", 1.0, k=10) for run_id in "ab"]
    listed = list_fronts(rows, PLAN, [("ndcg@10", "entropy@10")])
    assert [(row["model"], row["on_front"]) for row in listed] == [("alice", True), ("bob", True)]
    assert {row["front"] for row in listed} == {"ndcg@10, entropy@10"}


# ------------------------------------------------------------------------------- in a night


def ask(folder: Path, **comparisons: Any) -> Benchmark:
    content = watch(folder, slice="region", model="ours").model_dump(mode="json")
    content["evaluation"]["metrics"] = ["ndcg", "recall", "entropy"]
    content["comparisons"] |= comparisons
    return parse(Benchmark, content, "tests/analyses/comparisons/test_beyond_means.py")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ArrowStore:
    """A night where the users of the south get lists without what is tested."""
    folder = tmp_path_factory.mktemp("beyond")
    truth = write_log(folder)
    kept = {user: items if int(user[1:]) < 30 else [] for user, items in truth.items()}
    write_lists(folder / f"lists-{DAY}.csv", kept)
    store = ArrowStore(str(folder / "warehouse"))
    run(store, ask(folder, users=True, fronts=[["ndcg@10", "entropy@10"]]), DAY)
    return store


def test_a_night_fills_the_tables(night: ArrowStore) -> None:
    spreads = pd.DataFrame(night.rows(USER_SPREADS, []))
    ours = spreads.query("model == 'ours' and metric == 'ndcg'").iloc[0]
    assert (ours.other, ours.users, ours.zeros) == ("popular", 60, 30)
    assert ours.percentiles[3] == 0.0 and ours.percentiles[5] == 1.0
    (gap,) = [
        row for row in night.rows(GROUP_GAPS, [("model", "=", "ours"), ("metric", "=", "ndcg")]) if row["k"]
    ]
    assert (gap["worst_group"], gap["best_group"], gap["groups"]) == ("south", "north", 2)
    assert gap["gap"] == pytest.approx(1.0) and gap["other_gap"] < 1.0
    preferred = {row["measure"]: row for row in night.rows(PREFERENCES, [])}
    assert set(preferred) == {"lexiprecision", "lexirecall", "recall_paired"}
    assert preferred["lexirecall"]["users"] == 60 and preferred["lexirecall"]["preferred"] >= 25
    fronts = {row["model"]: row for row in night.rows(FRONTS, [])}
    assert fronts["ours"]["on_front"] and fronts["ours"]["contribution"] > 0


def test_the_report_and_the_questions_show_them(night: ArrowStore) -> None:
    page = (Path(night.root) / "reports" / f"judged-{DAY}.html").read_text()
    assert "Who wins, who loses" in page and "Share of all ndcg@10" in page
    assert "ours, region: south has 0.0000, north 1.0000" in page
    assert "ours by lexirecall: preferred for" in page and "hypervolume" in page
    ask = make_query_runner(night)
    loses, trades = (ask(query_files()[name]) for name in ("who_loses", "which_models_trade_aims"))
    ours = loses[(loses.model == "ours") & (loses.metric == "ndcg") & (loses.k == 10)].iloc[0]
    assert (ours.baseline, ours.users) == ("popular", 60) and ours.losing_share > 0
    assert set(trades.model) == {"ours", "popular"} and trades.on_front.any()


def test_figures_that_are_not_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fronts: novlty@10\n.*known: entropy"):
        ask(tmp_path, fronts=[["ndcg@10", "novlty@10"]])
    with pytest.raises(ConfigError, match=r"7 is not in evaluation\.k"):
        ask(tmp_path, fronts=[["ndcg@10", "entropy@7"]])
    with pytest.raises(ConfigError, match="two to 4 figures, each once"):
        ask(tmp_path, fronts=[["ndcg@10", "ndcg@10"]])
