"""Simpson's paradox: by hand, against plain numpy, in the report."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date
from fractions import Fraction
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from recbench_spark.analyses.comparisons import flips, paradoxes
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.flips import ModelPair
from recbench_spark.config import Benchmark, Bootstrap, parse
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import poisson_weights
from recbench_spark.errors import ConfigError
from recbench_spark.metrics import accuracy
from recbench_spark.night.paradoxes import find_paradoxes
from recbench_spark.night.run_night import run_night
from recbench_spark.reports import make_disagreements
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import FLIPS, PARADOXES, RANKINGS
from recbench_spark.storage.blocks import Rows, reduce_rows
from recbench_spark.storage.table_sql import query_files
from tests.nights import DATE, RANKED, SMALL, Ran, answer, read_pandas, small
from tests.oracles import smallest_flip
from tests.table_rows import make_table, open_table

RUNS_ = tuple(ComparedRun(name, name, date(2026, 1, 1)) for name in ("a", "b"))
KIDNEYS = {"small": {"a": (81, 87), "b": (234, 270)}, "large": {"a": (192, 263), "b": (55, 80)}}
CLEAR = {"easy": {"a": (20, 20), "b": (144, 180)}, "hard": {"a": (72, 180), "b": (2, 20)}}
"""Successes and patients by stratum and treatment; of the clear one chance explains nothing."""


def patients(part: str, strata: dict[str, dict[str, tuple[int, int]]]) -> list[tuple]:
    """A patient is a user with one truth item; the other treatment gives no list, `users=output`."""
    rows = []
    for label, treated in strata.items():
        for treatment, (successes, n) in treated.items():
            for patient in range(n):
                user = f"{label}-{treatment}-{patient}"
                key = int(np.random.default_rng([ord(c) for c in user]).integers(1 << 62))
                for run_ in "ab":
                    above = -1 if run_ != treatment else 0 if patient < successes else 5
                    values = {
                        "run_id": run_, "user_id": user, "part": part, "user_key": key,
                        "item_ids": [f"item {user}"], "relevance": [1.0], "above": [above], "tied": [0],
                        "before": [0], "length": 10 * (run_ == treatment),
                        "slices": {"group": [label], "unasked": ["x"]},
                    }  # fmt: skip
                    rows.append(tuple(values.get(name) for name in RANKINGS.names))
    return rows


BY_OUTPUT = Definition(users="output")
PLAN = paradoxes.ParadoxPlan(
    RUNS_,
    accuracy.MetricPlan(("recall",), (1, 3), BY_OUTPUT, Bootstrap(replicates=300, seed=1)),
    (1,),
    ("group", "absent"),
    ("test", "open_loop"),
)


@pytest.fixture(scope="module")
def hospital() -> pa.Table:
    return make_table(patients("test", KIDNEYS) + patients("open_loop", CLEAR), RANKINGS)


def compare_treatments(rows: Rows, tasks: int = 2) -> pd.DataFrame:
    pairs = reduce_rows({"pairs": paradoxes.disagreement_measure(PLAN)}, rows, tasks)["pairs"]
    return pairs.to_pandas().set_index("part").sort_index()


@pytest.fixture(scope="module")
def treatments(hospital: pa.Table) -> pd.DataFrame:
    return compare_treatments(open_table(hospital))


def test_kidney_stones(treatments: pd.DataFrame) -> None:
    """A is better for small and for large stones, and worse in the whole: by hand, in fractions."""
    assert len(treatments) == 2
    row = treatments.loc["test"]
    assert (row.model, row.other, row.kind, row.k, row.slice_key) == ("b", "a", "full", 1, "group")
    whole = Fraction(289, 350) - Fraction(273, 350)
    assert (row.difference, row.users) == (pytest.approx(float(whole), abs=1e-15), 350)
    assert list(row.labels) == ["large", "small"] and list(row.sizes) == [343, 357]
    strata = [Fraction(55, 80) - Fraction(192, 263), Fraction(234, 270) - Fraction(81, 87)]
    assert list(row.differences) == pytest.approx([float(d) for d in strata], abs=1e-15)
    assert list(row.stratum_users) == [80, 270]
    stratified = (343 * strata[0] + 357 * strata[1]) / 700
    assert row.stratified_difference == pytest.approx(float(stratified), abs=1e-15)
    assert [round(row.stratified_value, 4), round(row.other_stratified_value, 4)] == [0.7789, 0.8325]
    assert row.opposed_share == 1 and not row.certain, "350 patients do not tell these rates apart"


def test_a_full_reversal_that_is_certain(treatments: pd.DataFrame) -> None:
    row = treatments.loc["open_loop"]
    assert (row.model, row.kind, bool(row.certain)) == ("b", "full", True)
    assert row.difference == pytest.approx(146 / 200 - 92 / 200)
    assert row.stratified_difference == pytest.approx(0.45 - 0.7)
    assert row.ci_low > 0 > row.stratified_high
    for low, middle, high in zip(row.lows, row.differences, row.highs, strict=True):
        assert low < middle < high


TURNED = (ModelPair("items", "test", 0, 0, 1), ModelPair("users", "test", 0, 1, 0))


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_patients_who_turn_the_verdict(hospital: pa.Table, tasks: int) -> None:
    """B leads by 16 successes, one a patient: without 17 of its successes A leads."""
    plan = flips.FlipPlan(RUNS_, ("recall",), (1, 3), BY_OUTPUT, TURNED)
    verdicts = flips.find_smallest_flips(open_table(hospital, 2 * tasks), plan, tasks)
    assert [verdict.sign for verdict in verdicts] == [-1, 1]
    for verdict, kind in zip(verdicts, ("item ", ""), strict=True):
        flip = verdict.flip
        assert flip is not None and (verdict.n_candidates, verdict.total) == (700, 16.0)
        assert (flip.count, flip.threshold, flip.at_threshold, flip.removed) == (17, 1.0, 17, 17.0)
        cured = sorted(f"{kind}{s}-b-{n}" for s in KIDNEYS for n in range(KIDNEYS[s]["b"][0]))
        assert list(verdict.ids) == cured[:17] and set(verdict.contributions) == {1.0}


# ------------------------------------------------------------------------------- a night


ASKED = {"metrics": ["ndcg", "auc"], "k": [5, None], "replicates": 30, "flips": ["items", "users"]}
ByRun = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def night(small_night: Ran) -> Ran:
    """The small night again, asked for paradoxes: its runs are there, and are only compared."""
    benchmark = small(paradoxes=ASKED)
    outcome = run_night(small_night.store, benchmark, DATE, Journal())
    assert outcome.run_ids == {}
    return Ran(small_night.store, benchmark, outcome, "", small_night.log)


@pytest.fixture(scope="module")
def pairs(night: Ran) -> pd.DataFrame:
    return read_pandas(night.store, PARADOXES, logical_date=DATE)


@pytest.fixture(scope="module")
def rankings(night: Ran, pairs: pd.DataFrame) -> ByRun:
    """The rows of each model and part, by user."""
    models = {**dict(zip(pairs.run_id, pairs.model, strict=True)),
              **dict(zip(pairs.other_run_id, pairs.other, strict=True))}  # fmt: skip
    rows = night.store.rows(RANKINGS, [("run_id", "in", list(models))])
    rows_by_run: ByRun = defaultdict(list)
    for row in sorted(rows, key=itemgetter("user_id")):
        rows_by_run[models[row["run_id"]], row["part"]].append(row)
    return rows_by_run


def gains(row: dict[str, Any], kept: list[bool], k: float) -> dict[str, float] | None:
    """Return what each remaining truth item adds to a user's NDCG@k; None without a relevant item."""
    truth = zip(row["item_ids"], row["relevance"], row["above"], row["before"], kept, strict=True)
    rank = {item: above + before + 1 for item, grade, above, before, keep in truth if keep and grade >= 4}
    if not rank:
        return None
    ideal = sum(1 / math.log2(n + 1) for n in range(1, int(min(k, len(rank))) + 1))
    listed = row["length"] > 0
    return {i: 1 / math.log2(r + 1) / ideal if listed and 0 < r <= k else 0.0 for i, r in rank.items()}


def oracle(rows: list[dict[str, Any]], label: str | None, k: float) -> tuple[Any, ...]:
    """Mean, replicates' means, truth items and replicates' truth items of a stratum (None: the whole)."""
    keys = np.array([row["user_key"] for row in rows])
    weights = poisson_weights(keys, 30, Bootstrap().seed).astype(float)
    kept = [[label in (None, own) for own in row["slices"]["popularity"]] for row in rows]
    users = [gains(row, keep, k) for row, keep in zip(rows, kept, strict=True)]
    values = np.array([np.nan if user is None else sum(user.values()) for user in users])
    sizes = np.array([sum(keep) for keep in kept])
    there = ~np.isnan(values)
    drawn = weights[there].T @ values[there] / weights[there].sum(axis=0)
    return values[there].mean(), drawn, sizes.sum(), weights.T @ sizes


@pytest.mark.full
@pytest.mark.parametrize(("part", "k"), [("test", 5), ("open_loop", None)])
def test_differences_and_intervals_against_numpy(
    pairs: pd.DataFrame, rankings: ByRun, part: str, k: int | None
) -> None:
    table = pairs[(pairs.part == part) & (pairs.metric == "ndcg")]
    table = table[table.k.isna() if k is None else table.k == k]
    named = {frozenset(pair) for pair in zip(table.model, table.other, strict=True)}
    assert named == set(map(frozenset, combinations(RANKED, 2))) and len(table) == 10
    labels = sorted({x for user in rankings["truth", part] for x in user["slices"]["popularity"]})
    at = math.inf if k is None else k
    expected = {
        model: {label: oracle(rankings[model, part], label, at) for label in (None, *labels)}
        for model in RANKED
    }
    for row in table.itertuples():
        ours, theirs = expected[row.model], expected[row.other]
        means = {label: ours[label][0] - theirs[label][0] for label in ours}
        drawn = {label: ours[label][1] - theirs[label][1] for label in ours}
        sizes = [ours[label][2] for label in labels]
        assert row.difference == pytest.approx(means[None], abs=1e-12) and row.difference >= 0
        assert (list(row.labels), list(row.sizes)) == (labels, sizes)
        assert list(row.differences) == pytest.approx([means[x] for x in labels], abs=1e-12)
        stratified = sum(size * means[x] for size, x in zip(sizes, labels, strict=True)) / sum(sizes)
        assert row.stratified_difference == pytest.approx(stratified, abs=1e-12)
        resized = [ours[x][3] for x in labels]
        combined = sum(s * drawn[x] for s, x in zip(resized, labels, strict=True)) / sum(resized)
        ends = [*np.quantile(drawn[None], [0.025, 0.975]), *np.quantile(combined, [0.025, 0.975])]
        interval_ends = [row.ci_low, row.ci_high, row.stratified_low, row.stratified_high]
        # Replicates add up values rounded to 2^-30.
        assert interval_ends == pytest.approx(ends, abs=1e-8)
        opposed = sum(difference < 0 for difference in row.differences)
        wanted = "full" if opposed == len(labels) else "reversal" if stratified < 0 else "partial"
        assert row.kind == (wanted if opposed else "none")


@pytest.mark.full
def test_flips_equal_a_sort_of_all_contributions(night: Ran, rankings: ByRun) -> None:
    table = read_pandas(night.store, FLIPS, logical_date=DATE)
    # Four models against the best one, two cut-offs and parts, items, users; AUC is not a sum over items.
    assert set(table.metric) == {"ndcg"} and len(table) == 4 * 2 * 2 * 2
    assert set(table.removed_are) == {"items", "users"} and set(table.model) == {"truth"}
    for row in table.itertuples():
        at = math.inf if math.isnan(row.k) else row.k
        sums: dict[str, int] = defaultdict(int)
        for model, sign in ((row.model, 1), (row.other, -1)):
            for user in rankings[model, row.part]:
                user_gains = gains(user, [True] * len(user["item_ids"]), at) or {}
                for item in user["item_ids"]:
                    name = item if row.removed_are == "items" else user["user_id"]
                    sums[name] += sign * int(np.rint(user_gains.get(item, 0.0) * 2.0**30))
        flip = smallest_flip(np.array(list(sums.values())) * 2.0**-30)
        assert row.out_of == len(sums) and row.total == sum(sums.values()) * 2.0**-30 > 0
        if flip is None:
            assert math.isnan(row.removed) and row.ids is None
            continue
        assert (row.removed, row.threshold, row.at_threshold, row.removed_total) == (
            flip.count, flip.threshold, flip.at_threshold, flip.removed,
        )  # fmt: skip
        largest = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[: min(20, flip.count)]
        assert list(row.ids) == [name for name, _ in largest]
        assert list(row.contributions) == [value * 2.0**-30 for _, value in largest]


@pytest.mark.full
def test_nothing_is_done_twice_and_the_report_tells(night: Ran, pairs: pd.DataFrame) -> None:
    assert find_paradoxes(night.night, Journal()) == []
    store = night.store
    assert len(store.rows(PARADOXES, [("logical_date", "=", DATE)])) == len(pairs) == 60
    answers = pd.DataFrame(answer(store, query_files()["where_do_parts_and_whole_disagree"]))
    assert len(answers) == (pairs.kind != "none").sum() > 0 and answers.certain.is_monotonic_decreasing
    few = pd.DataFrame(answer(store, query_files()["how_few_items_decide"]))
    turned = few.dropna(subset=["removed"])
    assert len(turned) > 0 and (turned.removed <= turned.out_of).all()
    page = Path(night.outcome.report_path or "").read_text(encoding="utf-8")
    assert "Where parts and whole disagree" in page and "Of 60 comparisons" in page
    assert "How few items decide" in page
    first = answers.iloc[0]
    assert f"{first.model} <span" in page and f"over {first.other}" in page
    assert f"{first.difference:+.4f}" in page and f"{first.stratified_difference:+.4f}" in page


# ------------------------------------------------------------------------------- without a JVM


def test_a_report_counts_what_was_compared() -> None:
    row = {
        "part": "test", "metric": "ndcg", "k": float("nan"), "definition": "v1", "slice_key": "stratum",
        "model": "bpr", "other": "wmf", "kind": "reversal", "certain": False, "users": 9,
        "difference": 0.01, "ci_low": -0.1, "ci_high": 0.2, "stratified_difference": -0.008,
        "stratified_low": None, "stratified_high": None, "labels": ["Q1", "Q2"], "sizes": [99, 1],
        "stratum_users": [9, 0], "differences": [-0.011, None], "lows": [-0.1, None], "highs": [0.1, None],
    }  # fmt: skip
    counts = pd.DataFrame(
        [("none", False, 5), ("reversal", False, 1), ("partial", True, 2), ("partial", False, 3)],
        columns=["kind", "certain", "count"],
    )
    report = make_disagreements(pd.DataFrame([row]), counts)
    assert report is not None and report.compared == 11
    assert report.counts == (("reversal", 1, 0), ("partial", 5, 2))
    (facts,) = report.rows
    assert facts.measure.label == "ndcg" and facts.stratified.interval is None
    assert [(label, share) for label, share, _ in facts.strata] == [("Q1", 0.99), ("Q2", 0.01)]
    assert math.isnan(facts.strata[1][2].value)
    assert make_disagreements(pd.DataFrame(columns=list(row)), counts) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": ["colour"]}, "by: colour not in"),
        ({"metrics": ["rmse"]}, "metrics: rmse not in"),
        ({"k": [5, 7]}, "k: 7 not in"),
        ({"parts": ["valid"]}, "parts: valid not in"),
        ({"flips_against": "baseline"}, "need comparisons.baseline"),
        ({"flips": ["lists"]}, "flips"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Benchmark, {**SMALL, "paradoxes": change}, "file")
