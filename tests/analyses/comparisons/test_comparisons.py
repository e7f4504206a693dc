"""Comparisons of runs: against scipy, by hand, whatever the partitioning and the runner."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from recbench_spark.analyses.comparisons.comparisons import compare, metric_scales
from recbench_spark.analyses.comparisons.counted import WHOLE_RANKING, CountedNumber, gather_rows
from recbench_spark.analyses.comparisons.differences import ComparedRun, ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.kernels import significance as kernel
from recbench_spark.analyses.comparisons.kernels.significance import (
    benjamini_hochberg,
    holm,
    sequence_interval,
)
from recbench_spark.config import Benchmark, Bootstrap, Regression, parse
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.night.changes import explain_changes
from recbench_spark.night.comparisons import (
    compare_night,
    describe_regressions,
    find_previous_run,
    list_metrics_beyond_one,
    visible_runs,
)
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.night.result_files import read_differences
from recbench_spark.query.answers import make_query_runner
from recbench_spark.query.local_engine import find_names
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHANGES, COMPARISONS, METRICS, RUNS, USER_METRICS, Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.commits import commit
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_sql import query_files
from tests.nights import SMALL, models, small
from tests.table_rows import make_table, open_table

NIGHTS = [date(2026, 1, day) for day in (1, 2, 3)]
KS = (5, 10, None)
N = 90


def draw_values(model: int, night: int) -> np.ndarray:
    """ndcg of 90 users at three cut-offs; the third model knows only the first 70."""
    rng = np.random.default_rng(100 * night + model)
    easy = np.random.default_rng(night).random((N, 1))
    values = np.clip(0.6 * easy + 0.3 * rng.random((N, 3)) + 0.03 * model, 0, 1)
    values[rng.random((N, 3)) < 0.2] = 0.0
    if model == 2:
        values[70:] = np.nan
    return values


def user_rows(run_id: str, values: np.ndarray, metric: str = "ndcg") -> list[tuple]:
    """Rows of `user_metrics`, with the cut-offs in an order of their own."""
    order = [2, 0, 1]
    return [
        (run_id, f"u{u}", "test", metric, "v1", "holdout", [KS[c] for c in order],
         [None if np.isnan(values[u, c]) else float(values[u, c]) for c in order], 1)
        for u in range(len(values))
    ]  # fmt: skip


def at(results: pd.DataFrame, k: int | None, **wanted: str) -> pd.Series:
    rows = results[results.k.isna() if k is None else results.k == k]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1, (k, wanted, len(rows))
    return rows.iloc[0]


# ------------------------------------------------------------------------- the stage


RUNS_ = tuple(
    ComparedRun(f"{name}{night}", name, NIGHTS[night])
    for night in (1, 0)
    for name in ("alice", "bob", "carol")
)
PLAN = ComparisonPlan(
    RUNS_,
    (ComparisonGroup("pair", (0, 1, 2)), *(ComparisonGroup("previous", (m, 3 + m)) for m in range(3))),
    ("ndcg",),
    KS,
    {("test", "ndcg", k): 0 for k in KS},
    Bootstrap(replicates=200, seed=4),
    min_users=0.05,
    planned_looks=100,
    rules=(Regression(metric="ndcg", k=10, drop=0.001),),
)


def draw_rows() -> pa.Table:
    rows = [
        row
        for place, run in enumerate(RUNS_)
        for row in user_rows(run.run_id, draw_values(place % 3, 1 - place // 3))
    ]
    return make_table(rows, USER_METRICS)


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return compare(open_table(draw_rows()), PLAN, {}, 2).to_pandas()


def test_every_pair_and_every_model_with_its_past_is_there_once(results: pd.DataFrame) -> None:
    pairs = {(r.kind, r.model, r.other) for r in results.itertuples()}
    assert pairs == {
        ("pair", "bob", "alice"), ("pair", "carol", "alice"), ("pair", "bob", "carol"),
        *(("previous", name, name) for name in ("alice", "bob", "carol")),
    }  # fmt: skip
    assert len(results) == 6 * len(KS)
    assert set(results[results.with_baseline & (results.kind == "pair")].other) == {"alice"}


@pytest.mark.parametrize("c", range(3))
def test_tests_agree_with_scipy(results: pd.DataFrame, c: int) -> None:
    night = [draw_values(m, 1)[:, c] for m in range(3)]
    for a, b, names in ((1, 0, ("bob", "alice")), (2, 0, ("carol", "alice"))):
        row = at(results, KS[c], kind="pair", model=names[0], other=names[1])
        both = ~np.isnan(night[a]) & ~np.isnan(night[b])
        x, y = night[a][both], night[b][both]
        test = stats.ttest_rel(x, y)
        assert (row.users, row.value) == (both.sum(), pytest.approx(x.mean(), abs=1e-8))
        assert row.difference == pytest.approx((x - y).mean(), abs=1e-8)
        assert row.stderr == pytest.approx(stats.sem(x - y), rel=1e-6)
        assert row.p_t == pytest.approx(test.pvalue, rel=1e-6)
        assert row.effect == pytest.approx((x - y).mean() / (x - y).std(ddof=1), rel=1e-6)
        steps = np.rint((x - y) * 2**16)
        assert row.p_wilcoxon == pytest.approx(stats.wilcoxon(steps, method="approx").pvalue, rel=1e-9)
    bob = at(results, KS[c], kind="pair", model="bob", other="alice")
    assert bob.ci_low < bob.difference < bob.ci_high
    assert abs(bob.p_randomisation - bob.p_t) < 0.06 and abs(bob.p_bootstrap - bob.p_t) < 0.06
    width = bob.ci_high - bob.ci_low
    assert width == pytest.approx(2 * 1.96 * bob.stderr, rel=0.25)
    # Carol is averaged over other users: no paired bootstrap, Student's interval in its place.
    carol = at(results, KS[c], kind="pair", model="carol", other="alice")
    assert np.isnan(carol.p_randomisation) and np.isnan(carol.p_bootstrap)
    reach = stats.t.ppf(0.975, 69) * carol.stderr
    assert carol.ci_high == pytest.approx(carol.difference + reach, rel=1e-9)


def test_a_model_is_compared_with_its_past_on_the_users_of_both(results: pd.DataFrame) -> None:
    for place, name in enumerate(("alice", "bob", "carol")):
        row = at(results, 10, kind="previous", model=name)
        now, then = draw_values(place, 1)[:, 1], draw_values(place, 0)[:, 1]
        assert row.users == (70 if name == "carol" else 90)
        assert row.difference == pytest.approx(np.nanmean(now - then), abs=1e-8)
        assert (row.logical_date, row.other_date) == (NIGHTS[1], NIGHTS[0])
        assert row.p_randomisation > 0 and np.isnan(row.sequence_low)
        assert (row.allowed_drop, row.regressed) == (0.001, row.difference < -0.001)
    assert results[results.kind == "previous"].regressed.any()
    assert not results[(results.kind == "pair") | (results.k != 10)].regressed.any()


def test_families_and_verdicts(results: pd.DataFrame) -> None:
    pairs = results[results.kind == "pair"]
    held = pairs[pairs.with_baseline]
    assert set(held.family) == {6} and set(pairs[~pairs.with_baseline].family) == {9}
    np.testing.assert_allclose(held.p_holm, holm(held.p_t.to_numpy()))
    np.testing.assert_allclose(held.p_bh, benjamini_hochberg(held.p_t.to_numpy()))
    others = ~pairs.with_baseline
    np.testing.assert_allclose(pairs[others].p_holm, holm(pairs.p_t.to_numpy())[others])
    for row in results.itertuples():
        low, high = row.ci_low, row.ci_high
        wanted = "better" if low > 0.05 else "worse" if high < -0.05 else "unclear"
        assert row.verdict == ("equivalent" if low >= -0.05 and high <= 0.05 else wanted)


def test_signed_values_far_below_zero_are_compared() -> None:
    """Values of -40 to 1 exceed what is added up exactly; scaled by a power of two they do not."""
    values = [1 - 41 * np.random.default_rng(seed).random((N, 3)) ** 8 for seed in (1, 2)]
    runs, rows = RUNS_[:2], []
    for run, values_uc in zip(runs, values, strict=True):
        rows += user_rows(run.run_id, values_uc)
    frame = open_table(make_table(rows, USER_METRICS))
    signed = Definition(gain="linear", negative_grades="signed", grade_origin=3.0)
    scales = metric_scales(frame, list_metrics_beyond_one(["ndcg"], signed))
    plan = replace(PLAN, runs=runs, groups=(ComparisonGroup("pair", (0, 1)),), rules=(), scales=scales)
    row = at(compare(frame, plan, {}, 2).to_pandas(), 10)
    place = [run.model for run in runs].index(row.model)
    x, y = values[place][:, 1], values[1 - place][:, 1]
    assert np.abs(x).max() > 16
    assert row.difference == pytest.approx((x - y).mean(), abs=1e-6)
    assert row.stderr == pytest.approx(stats.sem(x - y), rel=1e-6)
    assert row.p_t == pytest.approx(stats.ttest_rel(x, y).pvalue, rel=1e-6)


# ------------------------------------------------------------------------- the step


ASKED = {
    "comparisons": {"replicates": 50, "baseline": "popular", "baseline_night": "2026-01-01"},
    "regressions": [{"metric": "ndcg", "k": 10, "drop": 0.05}, {"metric": "ndcg", "drop": 0.5,
                    "against": "baseline"}],
    "models": models("popular", "random"),
    "evaluation": {**SMALL["evaluation"], "metrics": ["ndcg"], "k": [10], "parts": ["test"]},
}  # fmt: skip


def run_row(run_id: str, model: str, night: date, **more: object) -> tuple:
    values = {
        "run_id": run_id, "run_key": "key", "attempt": 1, "suite": "small", "model": model,
        "model_kind": model, "status": "succeeded", "logical_date": night, "source": "own",
        "dataset": "small_world",
        "finished_at": datetime(2026, 1, 9, tzinfo=UTC), "split_id": f"split{NIGHTS.index(night)}", **more,
    }  # fmt: skip
    return tuple(values.get(name) for name in RUNS.names)


def test_nights_are_compared_once_and_looks_add_up(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path / "warehouse"))
    benchmark = small(**ASKED)
    users, metrics, runs = [], [], []
    level = {(0, "popular"): 0.5, (0, "random"): 0.2, (1, "popular"): 0.4, (1, "random"): 0.2}
    for (night, model), base in level.items():
        run_id = f"{model}-{night}"
        values = np.clip(base + 0.1 * np.random.default_rng(night).random((40, 3)), 0, 1)
        values += 0.05 * np.random.default_rng(len(model)).random((40, 3))
        users += user_rows(run_id, values)
        metrics.append((run_id, "test", "ndcg", "v1", 10, "holdout", None, None,
                        float(values[:, 1].mean()), None, None, None, 40))  # fmt: skip
        runs.append(run_row(run_id, model, NIGHTS[night]))
    # An attempt that failed and another suite's run take no part.
    runs += [run_row("f", "popular", NIGHTS[1], status="failed", attempt=2),
             run_row("s", "popular", NIGHTS[1], suite="other")]  # fmt: skip
    append_tuples(store, (users, USER_METRICS), (metrics, METRICS), (runs, RUNS))
    said = {}
    for night in (0, 1, 1):
        place = BenchmarkNight(store, benchmark, Definition(), f"split{night}", {}, NIGHTS[night])
        compared = compare_night(place, Journal())
        commit(store, *compared.additions)
        said[night] = compared.comparison_id, describe_regressions(place, compared.comparison_id)
    comparisons = store.read_rows(COMPARISONS).to_pandas()
    assert comparisons.comparison_id.nunique() == 2
    pairs = comparisons[(comparisons.kind == "pair") & (comparisons.k == 10)].sort_values("logical_date")
    assert list(zip(pairs.model, pairs.other, pairs.looks, pairs.sequence_users, strict=True)) == [
        ("random", "popular", 1, 40),
        ("random", "popular", 2, 80),
    ]
    differences = np.concatenate([pair_difference(users, f"random-{n}", f"popular-{n}") for n in (0, 1)])
    wanted = sequence_interval(differences.mean(), differences.std(ddof=1), 80, 10_000)
    assert tuple(pairs.iloc[1][["sequence_low", "sequence_high"]]) == pytest.approx(wanted, abs=1e-7)
    assert said[0][1] == ()
    for night in (0, 1):  # each night has its own rows, whichever comparison is the newest
        name = str(said[night][0])
        own = comparisons[comparisons.comparison_id == name]
        assert len(read_differences(store.rows, name)) == len(own) > 0
        assert set(own.logical_date) == {NIGHTS[night]}
    (sentence,) = said[1][1]
    assert sentence.startswith("popular: ndcg@10 of test is 0.") and "2026-01-01: -0." in sentence
    assert {(r.kind, r.model) for r in comparisons.itertuples() if r.kind != "pair"} == {
        (kind, name) for kind in ("previous", "baseline") for name in ("popular", "random")
    }
    ask, questions = make_query_runner(store), query_files()
    (row,) = ask("SELECT kind, model, k, allowed_drop FROM regressions").to_numpy().tolist()
    assert row == ["previous", "popular", 10, 0.05]
    assert set(ask(questions["which_models_fell_behind"]).model) == {"popular"}
    held = ask(questions["which_differences_hold"])
    assert [(r.model, r.verdict) for r in held[held.k == 10].itertuples()] == [("random", "worse")]
    last = "kind = 'pair' AND k = 10 AND logical_date = '2026-01-02'"
    both = ask(f"SELECT * FROM current_comparisons WHERE {last}")
    found_both = {r.model: (r.difference, r.verdict) for r in both.itertuples()}
    assert found_both["popular"][0] == -found_both["random"][0] > 0
    assert (found_both["popular"][1], found_both["random"][1]) == ("better", "worse")


def append_tuples(store: ArrowStore, *pairs: tuple[list[tuple], Table]) -> None:
    for rows, table in pairs:
        store.append(make_table(rows, table), table)


def pair_difference(rows: list[tuple], ours: str, theirs: str) -> np.ndarray:
    """Differences at k = 10, user by user."""
    value = {(r[0], r[1]): r[7][r[6].index(10)] for r in rows}
    return np.array([value[ours, f"u{u}"] - value[theirs, f"u{u}"] for u in range(40)])


def number_row(run_id: str, metric: str, definition: str = "v1", k: int = 10) -> dict[str, object]:
    facts = {"part": "test", "estimator": "holdout", "value": 0.5, "n": 4}
    return {"run_id": run_id, "metric": metric, "definition": definition, "k": k, **facts}


OF_THE_RULE = (
    # run, model, night, minute, more; its numbers
    ("als0", "als", 0, 1, {}, [("ndcg", "v1")]),
    ("als0-preset", "als", 0, 2, {}, [("ndcg", "v1;gain=linear")]),
    ("als0-other", "als", 0, 3, {"dataset": "other", "split_id": "other"}, [("ndcg", "v1")]),
    ("als1", "als", 1, 1, {}, [("ndcg", "v1")]),
    ("als1-again", "als", 1, 2, {}, [("ndcg", "v1")]),
    ("als1-recall", "als", 1, 3, {}, [("recall", "v1")]),
    ("pop1", "popular", 1, 1, {}, [("ndcg", "v1")]),
    ("pop1-split", "popular", 1, 2, {"split_id": "elsewhere"}, [("ndcg", "v1")]),
    ("pop1-failed", "popular", 1, 3, {"status": "failed"}, [("ndcg", "v1")]),
)


def test_runs_of_other_metrics_definitions_or_data_hide_none_that_is_compared(
    spark: Any, tmp_path: Path
) -> None:
    store = Store(spark, str(tmp_path / "warehouse"))
    for run_id, model, night, minute, more, numbers in OF_THE_RULE:
        values = run_row(run_id, model, NIGHTS[night], model_kind="als",
                         finished_at=datetime(2026, 1, 9, 0, minute, tzinfo=UTC), **more)  # fmt: skip
        store.append([dict(zip(RUNS.names, values, strict=True))], RUNS)
        store.append([number_row(run_id, *number) for number in numbers], METRICS)
    night = BenchmarkNight(store, small(**ASKED), Definition(), "split1", {}, NIGHTS[1])
    runs = visible_runs(night)
    assert {(run.run_id, run.model) for run in runs} == {
        ("als0", "als"), ("als1-again", "als"), ("pop1", "popular"),
    }  # fmt: skip
    (before,) = {find_previous_run(run, runs, None) for run in runs if run.run_id == "als1-again"}
    assert before is not None and before.run_id == "als0"
    assert night.data.earlier_splits("als") == ["split0"]  # not the one of the other dataset
    question = "SELECT run_id, age FROM metrics_by_age WHERE age > 1"
    store.install_views(find_names(question))
    assert [tuple(row) for row in spark.sql(question).collect()] == [("als1", 2)]
    by_duckdb = make_query_runner(store)(question)
    assert by_duckdb.to_numpy().tolist() == [["als1", 2]]


SHARED = {
    **ASKED, "regressions": [],
    "comparisons": {"replicates": 50, "metrics": ["ndcg", "recall"], "k": [5, 10, None]},
    "evaluation": {**ASKED["evaluation"], "metrics": ["ndcg", "recall"], "k": [5, 10]},
}  # fmt: skip


def write_pieces(folder: Path, pieces: dict[str, list[tuple[str, tuple[int | None, ...]]]]) -> Any:
    """Comparisons and changes of two models' two nights.

    Args:
        folder: of the warehouse.
        pieces: what each run of `popular` measures, by the end of its name, the newest last; the older of
            two runs with the same number has another value.
    """
    store, benchmark = ArrowStore(str(folder)), small(**SHARED)
    users, metrics, runs = [], [], []
    for night in (0, 1):
        for model in ("popular", "random"):
            whole = {"": [(metric, KS) for metric in ("ndcg", "recall")]}
            known = pieces if model == "popular" else whole
            newest = {(m, k): name for name, some in known.items() for m, ks in some for k in ks}
            for minute, (name, some) in enumerate(known.items()):
                run_id = f"{model}-{night}{name}"
                finished = datetime(2026, 1, 9, 0, minute, tzinfo=UTC)
                runs.append(run_row(run_id, model, NIGHTS[night], finished_at=finished))
                for metric, ks in some:
                    values = draw_values(len(metric) + len(model), night)[:40]
                    counts = [newest[metric, k] == name for k in ks]
                    columns = np.column_stack(
                        [values[:, KS.index(k)] / (1 if c else 3) for k, c in zip(ks, counts, strict=True)]
                    )
                    # A number that does not count also has a user whom the newer one leaves out.
                    columns[0, np.array(counts)] = np.nan
                    users += [
                        (run_id, f"u{u}", "test", metric, "v1", "holdout", list(ks),
                         [None if np.isnan(x) else float(x) for x in columns[u]], 1) for u in range(40)
                    ]  # fmt: skip
                    metrics += [
                        (run_id, "test", metric, "v1", k, "holdout", None, None, float(np.nanmean(x)), None,
                         None, None, 40) for k, x in zip(ks, columns.T, strict=True)
                    ]  # fmt: skip
    append_tuples(store, (users, USER_METRICS), (metrics, METRICS), (runs, RUNS))
    night = BenchmarkNight(store, benchmark, Definition(), "split1", {}, NIGHTS[1])
    for _ in range(2):  # the second time nothing is done again
        commit(store, *compare_night(night, Journal()).additions)
        commit(store, *explain_changes(night, Journal()))
    return [
        store.read_rows(table)
        .to_pandas()
        .drop(columns=[name, at])
        .sort_values(order)
        .reset_index(drop=True)
        for table, name, at, order in (
            (COMPARISONS, "comparison_id", "compared_at", ["kind", "model", "metric", "k"]),
            (CHANGES, "change_id", "explained_at", ["model", "metric", "k", "group_key", "group_value"]),
        )
    ]


def test_numbers_of_several_runs_are_compared_as_if_one_run_had_them(tmp_path: Path) -> None:
    whole = write_pieces(tmp_path / "one", {"": [("ndcg", KS), ("recall", KS)]})
    pieces = {"-all": [("ndcg", KS)], "-recall": [("recall", (None, 10, 5))], "-five": [("ndcg", (5,))]}
    parts = write_pieces(tmp_path / "several", pieces)
    for one, several in zip(whole, parts, strict=True):
        ids = ["run_id", "other_run_id"]
        assert len(one) and set(one.metric) == {"ndcg", "recall"}
        pd.testing.assert_frame_equal(several.drop(columns=ids), one.drop(columns=ids))
        for row in several.itertuples():
            owner = "-recall" if row.metric == "recall" else "-five" if row.k == 5 else "-all"
            for model, run_id in (
                (row.model, row.run_id),
                (getattr(row, "other", row.model), row.other_run_id),
            ):
                assert run_id[len(model) + 2 :] == (owner if model == "popular" else "")


# ------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": {"baseline": "nobody"}}, "no model 'nobody'"),
        ({"comparisons": {"metrics": ["rmse"]}}, "rmse not in evaluation.metrics"),
        ({"regressions": [{"metric": "ndcg", "k": 7, "drop": 0}]}, "ndcg@7 of test is not compared"),
        ({"regressions": [{"metric": "ndcg", "drop": 0, "part": "valid"}]}, "of valid is not compared"),
        ({"regressions": [{"metric": "ndcg", "drop": 0, "against": "baseline"}]}, "baseline_night"),
        ({"comparisons": {}, "evaluation": {"user_metrics": False}}, "user_metrics: true"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Benchmark, {**SMALL, **change}, "file")


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, ["novelty"]),
        ({"hit": "count"}, ["hit", "novelty"]),
        ({"negative_grades": "signed", "gain": "linear"}, ["ndcg", "novelty"]),
    ],
)
def test_metrics_that_leave_minus_one_to_one_are_scaled(axes: dict[str, str], expected: list[str]) -> None:
    metrics = ["ndcg", "hit", "recall", "novelty"]
    beyond = list_metrics_beyond_one(metrics, Definition(**axes))  # type: ignore[arg-type]
    assert sorted(beyond) == sorted(expected)


def test_shared_numbers_keep_the_types_of_a_catalog() -> None:
    """Spark's columns may forbid NULL; rows under another run have the same schema."""
    lists = {
        "ks": pa.list_(pa.field("element", pa.int32())),
        "values": pa.list_(pa.field("element", pa.float64(), False)),
    }
    names = ("run_id", "part", "metric", "definition")
    schema = pa.schema([*(pa.field(name, pa.string(), False) for name in names), *lists.items()])
    row = {"part": "test", "metric": "ndcg", "definition": "d", "ks": [1, None], "values": [0.5, 0.25]}
    rows = pa.Table.from_pylist([{"run_id": "old", **row}, {"run_id": "other", **row}], schema)
    gathered = gather_rows(rows, [CountedNumber("new", "old", "test", "ndcg", "d", WHOLE_RANKING)])
    assert gathered.schema.equals(schema)
    assert gathered.to_pylist() == [
        {"run_id": "other", **row},
        {"run_id": "new", **row, "ks": [None], "values": [0.25]},
    ]


def test_many_models_are_finished_by_more_tasks() -> None:
    """A cell of 300 models and 1,000 replicates has 8 x 300 x (9 x 300 + 3 x 1,000) bytes of each task."""
    models = tuple(range(300))
    runs = tuple(ComparedRun(f"r{n}", f"m{n}", NIGHTS[0]) for n in models)
    plan = replace(
        PLAN, runs=runs, groups=(ComparisonGroup("pair", models),), bootstrap=Bootstrap(replicates=1000)
    )
    assert 8 * 300 * (kernel.PLANES * 300 + 3 * 1000) * 78 < 2**30 < 13_680_000 * 79
    assert plan.tasks(100) == 78
    assert plan.finishing_tasks(78) == 78, "six cells of a GiB at most"
    assert replace(plan, metrics=tuple("abcdefghijklmnopqrst")).finishing_tasks(78) == 120
    assert PLAN.finishing_tasks(2) == 2
