"""Explanations of changed numbers: by hand, against pandas, and without remainder."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from recbench_spark.analyses.comparisons.changes import (
    ChangePlan,
    ChangeRows,
    compute_changes,
    label_activity,
)
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import mean_and_error, moments
from recbench_spark.engine.local import LocalEngine
from recbench_spark.night.changes import explain_changes
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.night.report import make_report
from recbench_spark.query.answers import make_query_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHANGES, METRICS, RANKINGS, RUNS, USER_METRICS, Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.commits import commit
from recbench_spark.storage.table_sql import query_files
from tests.nights import SMALL, models, small
from tests.table_rows import make_table, open_table

NIGHTS = [date(2026, 1, day) for day in (1, 2, 3)]
Users = dict[str, tuple[float | None, int, str]]
"""User -> ndcg@10, relevant items, whether training knows the user."""

BEFORE: Users = {"a": (1 / 2, 1, "warm"), "b": (1 / 4, 2, "warm"), "c": (1.0, 1, "cold"),
                 "e": (None, 1, "warm")}  # fmt: skip
AFTER: Users = {"a": (1 / 2, 1, "warm"), "b": (3 / 4, 3, "warm"), "d": (0.0, 5, "cold"),
                "f": (None, 9, "warm")}  # fmt: skip


def row(table: Table, **values: Any) -> tuple:
    return tuple(values.get(name) for name in table.names)


def user_rows(run_id: str, users: Users, metric: str = "ndcg") -> list[tuple]:
    """Rows of `user_metrics`; the value over the whole ranking is half of that at 10."""
    return [
        row(USER_METRICS, run_id=run_id, user_id=user, part="test", metric=metric, definition="v1",
            estimator="holdout", ks=[None, 10], values=[None if v is None else v / 2, v], n_relevant=n)
        for user, (v, n, _) in users.items()
    ]  # fmt: skip


def ranking_rows(run_id: str, users: Users) -> list[tuple]:
    return [
        row(RANKINGS, run_id=run_id, user_id=user, part="test", user_key=0, item_ids=["i", "j"],
            relevance=[1.0, 1.0], above=[0, 1], tied=[0, 0], before=[0, 0], length=5,
            slices={"popularity": ["head", "tail"], "cold_user": [cold, cold]})
        for user, (_, _, cold) in users.items()
    ]  # fmt: skip


def test_activity_in_ranges_that_double() -> None:
    names, codes = label_activity(np.array([0, 1, 2, 3, 4, 7, 8, 2**31 - 1]))
    assert [names[code] for code in codes] == [
        "0",
        "1",
        "2-3",
        "2-3",
        "4-7",
        "4-7",
        "8-15",
        "1073741824-2147483647",
    ]


# ------------------------------------------------------------------------- the stage


PAIRS = tuple((ComparedRun(f"{m}0", m, NIGHTS[0]), ComparedRun(f"{m}1", m, NIGHTS[1])) for m in "xy")
PLAN = ChangePlan(PAIRS, ("ndcg",), (10, None), ("cold_user", "absent"))


def draw_nights() -> tuple[dict[tuple[str, int], Users], pa.Table, pa.Table]:
    """Two models, 150 users per night of whom 100 stay; in the second definition nobody was before."""
    rng = np.random.default_rng(0)
    tables, rows = {}, []
    for model in "xy":
        for night in (0, 1):
            users: Users = {
                f"u{n}": (
                    None if rng.random() < 0.1 else float(rng.random()),
                    int(rng.integers(1, 9)),
                    "cold" if n % 3 else "warm",
                )
                for n in range(50 * night, 50 * night + 150)
            }
            tables[model, night] = users
            rows += user_rows(f"{model}{night}", users)
    rows += [row(USER_METRICS, run_id="x1", user_id="u1", part="test", metric="ndcg", definition="v2",
                 estimator="holdout", ks=[10], values=[1.0], n_relevant=1)]  # fmt: skip
    ranked = [one for (m, n), users in tables.items() for one in ranking_rows(f"{m}{n}", users)]
    return tables, make_table(rows, USER_METRICS), make_table(ranked, RANKINGS)


def test_without_a_rest_and_against_pandas() -> None:
    tables, values, labels = draw_nights()
    changes = explain(open_table(values), open_table(labels), 2).to_pandas()
    assert set(changes[changes.group_key == "absent"].group_value) == {"unknown"}
    changes = changes[changes.group_key != "absent"]
    assert set(changes.definition) == {"v1"} and set(changes.model) == {"x", "y"}
    for (model, k, key), groups in changes.fillna({"k": 0}).groupby(["model", "k", "group_key"]):
        values = [np.array([[math.nan if v is None else v] for v, _, _ in tables[model, n].values()])
                  for n in (0, 1)]  # fmt: skip
        means = [float(mean_and_error(moments(v * (1 if k else 0.5)))[0][0]) for v in values]
        assert set(groups.other_value) == {means[0]} and set(groups.value) == {means[1]}
        both = math.fsum([*groups.mix_change, *groups.within_change])
        assert both == pytest.approx(means[1] - means[0], abs=1e-15)
        wanted = by_pandas(tables[model, 0], tables[model, 1], str(key), 1.0 if k else 0.5)
        for group in groups.itertuples():
            mean, users = wanted[group.group_value]
            assert (group.users_before, group.users_after) == users
            for night, value in enumerate((group.mean_before, group.mean_after)):
                assert value == pytest.approx(mean[night], nan_ok=True)
        assert len(groups) == len(wanted)


def test_a_run_may_be_in_several_pairs() -> None:
    """A night made again is compared with the run that it replaced, and with the night before."""
    _, values, labels = draw_nights()
    rows, other = ChangeRows(open_table(values), open_table(labels)), (PAIRS[1][0], PAIRS[0][1])
    engine = LocalEngine(tempfile.gettempdir())
    both = compute_changes(engine, rows, replace(PLAN, pairs=(PAIRS[0], other)), 2)
    alone = [compute_changes(engine, rows, replace(PLAN, pairs=(one,)), 2) for one in (PAIRS[0], other)]
    order = [
        (name, "ascending") for name in ("other_run_id", "definition", "k", "group_key", "group_value")
    ]
    assert both.sort_by(order).equals(pa.concat_tables(alone).sort_by(order)) and len(alone[1])


def explain(values: Rows, labels: Rows, tasks: int) -> pa.Table:
    engine = LocalEngine(tempfile.gettempdir())
    return compute_changes(engine, ChangeRows(values, labels), PLAN, tasks)


def by_pandas(before: Users, after: Users, key: str, factor: float) -> dict[str, Any]:
    """Mean and users of each group on both nights."""
    nights = []
    for mine, other, name in ((before, after, "left"), (after, before, "joined")):
        table = pd.DataFrame.from_dict(mine, orient="index", columns=["v", "n", "c"]).dropna()
        known = {user for user, (v, _, _) in other.items() if v is not None}
        if key == "users":
            table["g"] = ["stayed" if user in known else name for user in table.index]
        elif key == "cold_user":
            table["g"] = table.c
        else:
            table["g"] = [{1: "1", 2: "2-3", 3: "2-3", 8: "8-15"}.get(n, "4-7") for n in table.n]
        nights.append((table.v * factor).groupby(table.g).agg(["mean", "size"]))
    groups = {*nights[0].index, *nights[1].index}
    return {
        g: (
            [night["mean"].get(g, math.nan) for night in nights],
            tuple(night["size"].get(g, 0) for night in nights),
        )
        for g in groups
    }


# ------------------------------------------------------------------------- the step


def test_a_night_by_hand_in_table_view_question_and_report(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path / "warehouse"))
    benchmark = small(
        comparisons={"replicates": 10}, models=models("popular", "random"), headline="ndcg@10",
        evaluation={**SMALL["evaluation"], "metrics": ["ndcg", "coverage"], "k": [10], "parts": ["test"]},
    )  # fmt: skip
    of_runs = {"m0": BEFORE, "m1": AFTER}
    values = {"m0": float(Fraction(7, 12)), "m1": float(Fraction(5, 12)), "new": 0.5}
    runs = [
        row(RUNS, run_id=run_id, run_key="key", attempt=1, suite="small", model="popular",
            model_kind="popular", status="succeeded", logical_date=NIGHTS[n], source="own",
            dataset="small_world", split="s",
            split_id=f"split{n}", finished_at=datetime(2026, 1, 9, tzinfo=UTC))
        for n, run_id in enumerate(of_runs)
    ]  # fmt: skip
    new = dict(zip(RUNS.names, runs[1], strict=True)) | {"run_id": "new", "model": "random"}
    metrics = [
        row(METRICS, run_id=run_id, part="test", metric="ndcg", definition="v1", k=10,
            estimator="holdout", value=value, n=3)
        for run_id, value in values.items()
    ]  # fmt: skip
    users = [one for run_id, table in of_runs.items() for one in user_rows(run_id, table)]
    ranked = [one for run_id, table in of_runs.items() for one in ranking_rows(run_id, table)]
    for rows, table in (([*runs, row(RUNS, **new)], RUNS), (metrics, METRICS), (users, USER_METRICS),
                        (ranked, RANKINGS)):  # fmt: skip
        store.append(make_table(rows, table), table)
    for night in (0, 1, 1):
        place = BenchmarkNight(store, benchmark, Definition(), f"split{night}", {}, NIGHTS[night])
        commit(store, *explain_changes(place, Journal()))
    changes = store.read_rows(CHANGES).to_pandas()
    assert len(changes) == 2 * (3 + 3 + 2) and set(changes.other_run_id) == {"m0"}
    _check_by_hand(changes[changes.k == 10].set_index(["group_key", "group_value"]))

    report = make_report(store, benchmark, NIGHTS[1], "split1")
    (moved,) = {(facts.model, facts.measure, facts.other_date) for facts in report.changes}
    assert moved == ("popular", "ndcg@10", "2026-01-01")
    assert {facts.key for facts in report.changes} == {"users", "n_relevant", "cold_user"}
    for facts in report.changes:
        assert facts.mix + facts.within == pytest.approx(-1 / 6)
    answers = make_query_runner(store)(query_files()["why_did_the_number_move"])
    at_ten = answers[(answers.k == 10) & (answers.group_key == "cold_user")]
    assert set(at_ten.group_value) == {"warm", "cold"}


def _check_by_hand(rows: pd.DataFrame) -> None:
    """Means 7/12 and 5/12, whose centre is 1/2; each night three users count."""
    wanted = {
        # share and mean before, after; mix; within
        ("users", "stayed"): (2 / 3, 3 / 8, 2 / 3, 5 / 8, 0, 1 / 4 * 2 / 3),
        ("users", "left"): (1 / 3, 1, 0, None, -1 / 3 * 1 / 2, 0),
        ("users", "joined"): (0, None, 1 / 3, 0, 1 / 3 * -1 / 2, 0),
        ("n_relevant", "1"): (2 / 3, 3 / 4, 1 / 3, 1 / 2, -1 / 3 * 1 / 8, -1 / 4 * 1 / 2),
        ("n_relevant", "2-3"): (1 / 3, 1 / 4, 1 / 3, 3 / 4, 0, 1 / 2 * 1 / 3),
        ("n_relevant", "4-7"): (0, None, 1 / 3, 0, 1 / 3 * -1 / 2, 0),
        ("cold_user", "warm"): (2 / 3, 3 / 8, 2 / 3, 5 / 8, 0, 1 / 4 * 2 / 3),
        ("cold_user", "cold"): (1 / 3, 1, 1 / 3, 0, 0, -1 * 1 / 3),
    }
    assert set(rows.index) == set(wanted)
    names = ["share_before", "mean_before", "share_after", "mean_after", "mix_change", "within_change"]
    for group, numbers in wanted.items():
        expected = [math.nan if number is None else number for number in numbers]
        assert rows.loc[group, names].astype(float).tolist() == pytest.approx(expected, nan_ok=True), group
    assert set(rows.value) == {5 / 12} and set(rows.other_value) == {7 / 12}
    for _, groups in rows.groupby(level=0):
        assert groups.difference.sum() == pytest.approx(-1 / 6, abs=1e-15)
