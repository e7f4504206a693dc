"""Falls in slices: by hand, against scipy, and how often a night without a fall names one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from recbench_spark.analyses.comparisons.changes import ChangeRows
from recbench_spark.analyses.comparisons.differences import ComparedRun, ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.kernels.significance import holm
from recbench_spark.analyses.comparisons.slice_falls import MOST_NAMED, compare_groups, compare_slices
from recbench_spark.config import Benchmark, Bootstrap, Regression, parse
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError
from recbench_spark.night.result_files import NightRecord
from recbench_spark.night.run_night import NightOutcome
from recbench_spark.schemas import RANKINGS, SLICE_COMPARISONS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import Engine, Rows
from tests.night.test_verdicts import ITEMS, suite, write_lists, write_log
from tests.nights import run
from tests.table_rows import make_table, open_table

DAYS = [date(2026, 1, day) for day in (1, 2)]
RUNS = (
    ComparedRun("a1", "alice", DAYS[1]),
    ComparedRun("b1", "bob", DAYS[1]),
    ComparedRun("a0", "alice", DAYS[0]),
)
GROUPS = (ComparisonGroup("pair", (0, 1)), ComparisonGroup("previous", (0, 2)))
LABELS = {"DE": 60, "FR": 45, "AT": 12, "LI": 9, "MT": 20}
"""Users by country; three countries have too few."""


def plan(*rules: dict[str, Any]) -> ComparisonPlan:
    watched = tuple(Regression(metric="ndcg", k=10, drop=0.01, **rule) for rule in rules)
    return ComparisonPlan(
        RUNS, GROUPS, ("ndcg", "recall"), (5, 10), {("test", "ndcg", 10): 1}, Bootstrap(), rules=watched
    )


PLAN = plan({"slice": "country"}, {"slice": "country", "against": "model", "least_users": 10}, {})


def draw_users() -> dict[str, str]:
    labels = [label for label, users in LABELS.items() for _ in range(users)]
    return {f"u{n}": label for n, label in enumerate(labels)}


def draw_values() -> dict[str, dict[str, float | None]]:
    """Values by run and user; bob has some users less, and alice falls in FR."""
    rng, users = np.random.default_rng(5), draw_users()
    easy = {user: rng.random() for user in users}
    values: dict[str, dict[str, float | None]] = {}
    for one in RUNS:
        fall = {"FR": 0.3 if one.run_id == "a1" else 0.0}
        values[one.run_id] = {
            user: max(0.0, min(1.0, easy[user] + 0.2 * rng.standard_normal() - fall.get(label, 0.0)))
            for user, label in users.items()
        }
    values["b1"] |= dict.fromkeys([f"u{n}" for n in range(0, 40, 4)])
    return values


def make_rows(
    values: Mapping[str, Mapping[str, float | None]], labels: Mapping[str, str | None]
) -> list[pa.Table]:
    """Rows of `user_metrics`, with the cut-offs 5 and 10, and of `rankings`."""
    measured, ranked = [], []
    for run_id, own in values.items():
        for user, value in own.items():
            facts = {"run_id": run_id, "user_id": user, "part": "test"}
            numbers = {"metric": "ndcg", "definition": "v1", "estimator": "holdout", "ks": [5, 10]}
            numbers |= {"values": [1.0, value], "n_relevant": 1}
            measured.append(facts | numbers)
            label = labels[user]
            cut = {"popularity": ["head", "tail"]} | ({} if label is None else {"country": [label] * 2})
            lists = {"item_ids": ["i", "j"], "relevance": [1.0, 1.0], "above": [0, 1], "tied": [0, 0]}
            ranked.append(facts | lists | {"user_key": 0, "before": [0, 0], "length": 5, "slices": cut})
    return [
        make_table([tuple(row.get(name) for name in table.names) for row in rows], table)
        for table, rows in ((USER_METRICS, measured), (RANKINGS, ranked))
    ]


def draw_rows() -> list[pa.Table]:
    return make_rows(draw_values(), draw_users())


def compare(engine: Engine, rows: Sequence[Rows], tasks: int) -> pa.Table:
    return compare_slices(engine, ChangeRows(*rows), PLAN, tasks)


def compare_here(rows: Sequence[pa.Table], asked: ComparisonPlan = PLAN) -> pd.DataFrame:
    engine = LocalEngine(tempfile.gettempdir())
    opened = ChangeRows(*map(open_table, rows))
    return compare_slices(engine, opened, asked, 3).to_pandas()


def oracle(before: str, least: int) -> dict[str, tuple[Any, ...]]:
    """Users, means and p by value, the pooled ones under "few", from a loop over users."""
    values, groups = draw_values(), {}
    for user, label in draw_users().items():
        if values["a1"][user] is not None and values[before][user] is not None:
            groups.setdefault(label, []).append((values["a1"][user], values[before][user]))
    few = [label for label in groups if len(groups[label]) < least]
    groups["few"] = [pair for label in few for pair in groups.pop(label)]
    numbers = {}
    for label, pairs in groups.items():
        if pairs:
            now, then = np.array(pairs, dtype=float).T
            p = stats.ttest_rel(now, then).pvalue if len(pairs) >= least else np.nan
            numbers[label] = (len(pairs), now.mean(), then.mean(), p)
    return numbers


def test_every_value_as_a_slow_oracle_has_it() -> None:
    results = compare_here(draw_rows())
    assert set(results.metric) == {"ndcg"} and set(results.k) == {10}
    for kind, before, least in (("previous", "a0", 30), ("pair", "b1", 10)):
        own = results[results.kind == kind].copy()
        own["name"] = own.slice_value.fillna("few")
        wanted = oracle(before, least)
        assert set(own.name) == set(wanted) and set(own.other_run_id) == {before}
        adjusted = holm(np.array([wanted[name][3] for name in own.name]))
        for row, p in zip(own.itertuples(), adjusted, strict=True):
            users, now, then, p_t = wanted[row.name]
            numbers = (row.value, row.other_value, row.difference, row.p_t, row.p_holm)
            assert row.users == users
            assert numbers == pytest.approx((now, then, now - then, p_t, p), abs=1e-8, nan_ok=True)
            assert row.regressed == bool(now - then < -0.01 and p < 0.05)
    assert results[results.regressed & (results.kind == "previous")].slice_value.tolist() == ["FR"]


def test_small_values_are_judged_together_by_hand() -> None:
    """AT, LI and MT have 41 users in all; nine fall from 1 to 0, so the mean falls by 9 / 41."""
    users = draw_users()
    values = {one.run_id: dict.fromkeys(users, 1.0) for one in RUNS}
    values["a1"] |= {user: 0.0 for user, label in users.items() if label == "LI"}
    rows = compare_here(make_rows(values, users))
    pooled = rows[(rows.kind == "previous") & rows.pooled.notna()].iloc[0]
    assert (pooled.slice_value, pooled.pooled, list(pooled.pooled_values)) == (None, 3, ["AT", "LI", "MT"])
    assert pooled.users == 41 and pooled.difference == pytest.approx(-9 / 41)
    assert pooled.family == 3 and pooled.p_holm == pytest.approx(3 * pooled.p_t) and pooled.regressed
    still = rows[(rows.kind == "previous") & rows.pooled.isna()]
    assert still.p_t.tolist() == [1.0, 1.0] and not still.regressed.any()


def test_users_that_all_fall_alike_and_users_without_label() -> None:
    users: dict[str, str | None] = {f"u{n}": None if n % 2 else "DE" for n in range(80)}
    values = {one.run_id: dict.fromkeys(users, 0.75) for one in RUNS}
    values["a1"] |= {user: 0.25 for user, label in users.items() if label is None}
    rows = compare_here(make_rows(values, users), plan({"slice": "country"}))
    assert rows.slice_value.tolist() == ["DE", "unknown"]
    assert rows.p_t.tolist() == [1.0, 2.0**-39] and rows.regressed.tolist() == [False, True]


def test_a_night_without_rows_has_no_values() -> None:
    rows = make_rows({"a1": {"u1": 1.0}}, {"u1": "DE"})
    assert not len(compare_here(rows)) and not len(compare_here([one.slice(0, 0) for one in rows]))


def test_too_few_users_in_all_are_not_judged() -> None:
    users: dict[str, str | None] = {f"u{n}": f"c{n:02}" for n in range(25)}
    values = {one.run_id: dict.fromkeys(users, 1.0) for one in RUNS}
    values["a1"] = dict.fromkeys(users, 0.0)
    (row,) = compare_here(make_rows(values, users), plan({"slice": "country"})).itertuples()
    assert (row.pooled, len(row.pooled_values), row.family) == (25, MOST_NAMED, 0)
    assert np.isnan(row.p_t) and not row.regressed


@pytest.mark.parametrize("planted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_how_often_a_value_is_named(planted: bool) -> None:
    """Nights of 20 values: without a fall at most 5 % alarm; a fall in one value is named."""
    nights, values, users, named = 30 if planted else 400, 20, 40, []
    labels: dict[str, str | None] = {f"u{n}": f"c{n % values:02}" for n in range(values * users)}
    for night in range(nights):
        rng = np.random.default_rng(night)
        before = np.where(rng.random(len(labels)) < 0.6, 0.0, rng.random(len(labels)))
        again = np.where(rng.random(len(labels)) < 0.7, before, rng.permutation(before))
        if planted:
            again[7::values] *= 0.1
        drawn = {"a0": before, "a1": again}
        rows = make_rows(
            {one: dict(zip(labels, own.tolist(), strict=True)) for one, own in drawn.items()}, labels
        )
        fallen = compare_here(rows, plan({"slice": "country"}))
        named.append(set(fallen[fallen.regressed].slice_value))
    if planted:
        assert np.mean(["c07" in one for one in named]) > 0.8
    assert sum(bool(one - {"c07"}) for one in named) <= 0.05 * len(named)


# ------------------------------------------------------------------------------- in a night


def watch(folder: Path, **rule: Any) -> Benchmark:
    pd.DataFrame(
        [(f"u{n}", "north" if n < 30 else "south") for n in range(60)], columns=["user_id", "region"]
    ).to_csv(folder / "users.csv", index=False)
    content = suite(folder).model_dump(mode="json")
    content["evaluation"]["slices"] = [
        {"key": "region", "of": "users", "column": "region", "path": str(folder / "users.csv")},
        {"key": "popularity", "of": "popularity"},
    ]
    content["regressions"] = [{"metric": "ndcg", "k": 10, "drop": 0.01, **rule}]
    return parse(Benchmark, content, "tests/analyses/comparisons/test_slice_falls.py")


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArrowStore, list[NightOutcome]]:
    """Two nights: on the second one the users of the south get lists without what is tested."""
    folder = tmp_path_factory.mktemp("slices")
    truth = write_log(folder)
    benchmark = watch(folder, slice="region", model="ours")
    write_lists(
        folder / f"lists-{DAYS[0]}.csv",
        {user: items[: 1 + int(user[1:]) % 2] for user, items in truth.items()},
    )
    write_lists(
        folder / f"lists-{DAYS[1]}.csv",
        {
            user: items[: 1 + int(user[1:]) % 2] if int(user[1:]) < 30 else []
            for user, items in truth.items()
        },
    )
    store = ArrowStore(str(folder / "warehouse"))
    return store, [run(store, benchmark, day).outcome for day in DAYS]


def test_a_night_names_the_values_that_fell(nights: tuple[ArrowStore, list[NightOutcome]]) -> None:
    store, ran = nights
    assert ran[0].regressions == () and ran[0].exit_code == 0
    (sentence,) = ran[1].regressions
    assert sentence.startswith("ours: ndcg@10 of test, region south is ")
    assert "by Holm over 2 tests" in sentence and ran[1].exit_code == 4
    rows = store.rows(SLICE_COMPARISONS, [("logical_date", "=", DAYS[1])])
    assert sorted(row["slice_value"] for row in rows) == ["north", "south"]
    text = (Path(store.root) / "results" / f"night-judged-{DAYS[1]}.json").read_text()
    (fallen,) = NightRecord.model_validate_json(text).fallen_slices
    assert (fallen.slice_key, fallen.slice_value, fallen.model) == ("region", "south", "ours")
    page = (Path(store.root) / "reports" / f"judged-{DAYS[1]}.html").read_text()
    assert "on test, region south, 30 users" in page and "Do not ship ours" in page


def test_rules_that_cannot_be_watched_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no slice 'regoin'.*\n.*did you mean 'region'"):
        watch(tmp_path, slice="regoin")
    with pytest.raises(ConfigError, match="falls of one night"):
        watch(tmp_path, slice="region", sequential=True)
    assert ITEMS and watch(tmp_path, slice="region").regression_slices == ("region",)


# ------------------------------------------------------------------------------- groups of items


def number(run_id: str, value: float, group: str, **more: Any) -> dict[str, Any]:
    row = {"run_id": run_id, "part": "test", "metric": "ndcg", "definition": "v1", "k": 10, "n": 50}
    row |= {"estimator": "holdout", "slice_key": "country", "slice_value": group, "stderr": 0.01}
    return row | {"value": value, **more}


def test_groups_of_items_by_hand() -> None:
    """A fall of .08 over the errors .01 + .01 is 4 standard errors; of two tests Holm doubles its p."""
    rows = [number("a0", 0.5, "head"), number("a1", 0.42, "head"), number("a0", 0.2, "tail")]
    rows += [number("a1", 0.19, "tail"), number("a1", 0.3, "new"), number("a0", 0.9, "few", n=29)]
    rows += [number("a1", 0.1, "few"), number("a1", 0.0, "head", k=5), number("a0", 0.7, "head", k=5)]
    results = compare_groups(rows, plan({"slice": "country"})).to_pandas().set_index("slice_value")
    assert results.index.tolist() == ["head", "tail"] and results.regressed.tolist() == [True, False]
    head = results.loc["head"]
    assert (head.users, head.value, head.other_value) == (50, 0.42, 0.5)
    assert head.p_t == pytest.approx(2 * stats.norm.sf(4)) and head.p_holm == pytest.approx(2 * head.p_t)
    assert (head.ci_low, head.ci_high) == pytest.approx((-0.08 - 0.0391993, -0.08 + 0.0391993))


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_nights_without_a_fall_name_no_group(correlation: float) -> None:
    """However the two nights' errors depend: at most 5 % of 400 nights of ten groups alarm."""
    rng, alarms = np.random.default_rng(8), 0
    spread = 0.01 * np.array([[1, correlation], [correlation, 1]]) * 0.01
    for _ in range(400):
        pairs = rng.multivariate_normal([0.3, 0.3], spread, 10)
        rows = [
            number(run, pairs[g, at], f"g{g}") for g in range(10) for at, run in enumerate(("a0", "a1"))
        ]
        alarms += compare_groups(rows, plan({"slice": "country"})).to_pandas().regressed.any()
    assert alarms / 400 <= 0.05


def test_a_night_names_the_groups_of_items_that_fell(tmp_path: Path) -> None:
    truth = write_log(tmp_path)
    benchmark = watch(tmp_path, slice="popularity", model="ours")
    for day, kept in zip(DAYS, (2, 0), strict=True):
        write_lists(tmp_path / f"lists-{day}.csv", {user: items[:kept] for user, items in truth.items()})
    store = ArrowStore(str(tmp_path / "warehouse"))
    ran = [run(store, benchmark, day).outcome for day in DAYS]
    assert [one.exit_code for one in ran] == [0, 4]
    assert all("popularity" in sentence for sentence in ran[1].regressions)
