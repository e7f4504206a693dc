"""Evidence for differences and falls: user by user, over nights, and as sequential rules find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recbench_spark.analyses.comparisons.comparisons import compare, sum_looks
from recbench_spark.analyses.comparisons.kernels.betting import adjust_evidence
from recbench_spark.config import Regression
from recbench_spark.schemas import USER_METRICS
from tests.analyses.comparisons.test_comparisons import (
    NIGHTS,
    PLAN,
    RUNS_,
    N,
    at,
    draw_rows,
    draw_values,
    user_rows,
)
from tests.table_rows import make_table, open_table

RULES = (
    Regression(metric="ndcg", k=10, drop=0.01, sequential=True),
    Regression(metric="ndcg", k=10, drop=0.02, against="model", sequential=True, model="bob"),
)


def weigh_users(gains: np.ndarray, bound: float, stakes: np.ndarray) -> float:
    """The mean wealth of all bets, user by user."""
    steps = np.rint(gains[~np.isnan(gains)] * 2**16) / 2**16 - 2.0**-17
    return float(np.mean([np.prod(1 + stake * (steps - bound)) for stake in stakes]))


def test_evidence_is_the_weigh_users_bets_on_users_and_grows_over_nights() -> None:
    pair = {"model": "alice", "other": "bob", "part": "test", "metric": "ndcg", "definition": "v1", "k": 10}
    night = {**pair, "users": 4, "difference": 0.1, "stderr": 0.1}
    seen = np.arange(10) / 100, np.arange(5) / 50
    one = {**night, "bet_gains": seen[0], "fall_gains": seen[1]}
    turned = {**one, "model": "bob", "other": "alice"}
    plan = replace(PLAN, rules=RULES)
    rows = open_table(draw_rows())
    results = compare(rows, plan, sum_looks([one, turned, {**night, "bet_gains": None}]), 2).to_pandas()
    values = [draw_values(m, 1)[:, 1] for m in range(3)]
    stakes = np.minimum(3.5 * 2.0 ** np.arange(5) / 10, 0.5)
    bob, carol = (at(results, 10, kind="pair", model=name, other="alice") for name in ("bob", "carol"))
    gains = [
        weigh_users(sign * (values[2] - values[0]), 0, np.array([s])) for sign in (1, -1) for s in stakes
    ]
    assert carol.e_value == pytest.approx(np.mean(gains), rel=1e-9)
    np.testing.assert_allclose(np.exp(carol.bet_gains), gains, rtol=1e-9)
    # Of the night before: once as it was written, once the other way round.
    before = seen[0] + np.roll(seen[0], 5)
    assert bob.e_value == pytest.approx(np.exp(bob.bet_gains + before).mean(), rel=1e-9)
    held = results[(results.kind == "pair") & results.with_baseline]
    np.testing.assert_allclose(held.e_bh, adjust_evidence(held.e_value.to_numpy()))
    assert results[(results.kind == "pair") & ~results.with_baseline].e_value.isna().all()
    # Falls: of bob behind alice by all looks, of each model behind its night before by one, over 30 nights.
    capped = [np.minimum(stakes, 1 / (2 + 2 * rule.drop)) for rule in RULES]
    falls = [np.exp(bob.fall_gains + seen[1]).mean()]
    assert np.exp(bob.fall_gains).mean() == pytest.approx(
        weigh_users(values[0] - values[1], 0.02, capped[1]), rel=1e-9
    )
    then = [draw_values(m, 0)[:, 1] for m in range(3)]
    falls += [weigh_users(then[m] - values[m], 0.01, capped[0]) / 30 for m in range(3)]
    kept = [bob, *(at(results, 10, kind="previous", model=name) for name in ("alice", "bob", "carol"))]
    np.testing.assert_allclose([row.e_fall for row in kept], adjust_evidence(np.array(falls)), rtol=1e-9)
    assert results.e_fall.notna().sum() == 4
    assert [row.regressed for row in kept] == [row.e_fall >= 20 for row in kept]


def test_a_sequential_rule_alarms_where_the_fall_is_plain_and_a_rise_is_told() -> None:
    plan = replace(
        PLAN,
        rules=(replace_rule(drop=0.001, sequential=True), replace_rule(rise=0.05, k=5)),
        nights=1,
        planned_looks=1000,
    )
    runs = {run.run_id: run for run in RUNS_}
    level = {("alice", 1): 0.2, ("alice", 0): 0.7, ("bob", 1): 0.3, ("bob", 0): 0.3, ("carol", 1): 0.9}
    rows = []
    for name, run in runs.items():
        base = level.get((run.model, NIGHTS.index(run.logical_date)), 0.5)
        draws = np.random.default_rng(len(rows)).random((N, 3)) * 0.1
        rows += user_rows(name, base + draws)
    results = compare(open_table(make_table(rows, USER_METRICS)), plan, {}, 3).to_pandas()
    of_nights = results[results.kind == "previous"]
    assert set(of_nights[of_nights.regressed].model) == {"alice"}
    assert set(of_nights[of_nights.rose][["model", "k"]].itertuples(index=False, name=None)) == {
        ("carol", 5)
    }
    assert set(of_nights[of_nights.allowed_rise.notna()].k) == {5}


def replace_rule(**more: Any) -> Regression:
    return Regression.model_validate({"metric": "ndcg", "k": 10, **more})
