"""Intervals of few users: none of width 0, no certain disagreement, and a note beside the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import recbench_spark
from recbench_spark.analyses.comparisons.paradoxes import StratumMeans, compare_pairs
from recbench_spark.core.resampling import hide_points
from recbench_spark.metrics.predictions import number_row

METRICS = ("hit", "ndcg", "coverage", "novelty")


def evaluate(users: int, hits: int) -> pd.DataFrame:
    """The first users hit their item, the others miss it."""
    truth = pd.DataFrame({"user_id": np.arange(users), "item_id": 1})
    lists = truth.assign(item_id=np.where(np.arange(users) < hits, 1, 2), rank=1)
    result = recbench_spark.evaluate(
        truth, lists=lists, train=truth.assign(item_id=3), metrics=METRICS, k=1, bootstrap=200, uncut=False
    )
    few = [check.observed for check in result.checks if "fewer than 30 users" in check.check]
    assert few == ([users] if users < 30 else [])
    return result.to_pandas().set_index("metric")


@pytest.mark.parametrize("users", [1, 2, 5, 6, 40])
def test_equal_users_have_no_interval_below_six(users: int) -> None:
    made = evaluate(users, users)
    for metric in ("hit", "ndcg", "novelty"):
        low, high = made.ci_low[metric], made.ci_high[metric]
        assert made.n[metric] == users
        if users < 6:
            assert pd.isna(low) and pd.isna(high)
        else:
            assert low == high == pytest.approx(made.value[metric])


def test_different_users_keep_their_interval() -> None:
    row = evaluate(5, 2).loc["hit"]
    assert row.ci_low < row.value == 0.4 < row.ci_high


@pytest.mark.parametrize("users", [1, 5, 6])
def test_predictions_of_few_users(users: int) -> None:
    """Ten rows a user, all wrong by one half: what counts is users, not rows."""
    rows = pd.DataFrame({"user_id": np.arange(users).repeat(10), "item_id": list(range(10)) * users})
    rows = rows.assign(prediction=0.5, outcome=np.arange(len(rows)) % 2)
    made = recbench_spark.evaluate_predictions(rows, bootstrap=100).to_pandas().set_index("metric")
    assert made.value["rmse"] == 0.5 and made.n["rmse"] == 10 * users
    assert bool(pd.isna(made.ci_low["rmse"])) == (users < 6)


def test_bounds_by_hand() -> None:
    low, high = hide_points(np.array([0.5, 0.2, 0.5]), np.array([0.5, 0.4, 0.5]), np.array([5, 5, 6]))
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [True, False, False]
    assert np.isnan(hide_points(np.ones(1), np.ones(1), np.array([7]), 0.99)[0]).all()
    assert number_row("value", (0.5, 0.0, 0.5, 0.5), 5)["ci_low"] is None
    assert number_row("value", (0.5, 0.0, 0.5, 0.5), 6)["ci_low"] == 0.5


def compare_strata(users: int) -> dict[str, Any]:
    """Model 0 leads in the whole by 1/4, model 1 in each of two strata, by every replicate."""
    means = np.array([[0.75, 0.5], [0.25, 0.5], [0.5, 0.75]])
    strata = StratumMeans(
        ["x", "y"], means, np.full((3, 2), users), np.repeat(means[:, :, None], 50, axis=2),
        np.ones(2), np.ones((50, 2)),
    )  # fmt: skip
    return compare_pairs(strata, np.array([0]), np.array([1]), 0.95)


@pytest.mark.parametrize("users", [1, 5, 6])
def test_few_users_make_no_certain_paradox(users: int) -> None:
    made = compare_strata(users)
    assert made["difference"].tolist() == [0.25] and made["differences"].tolist() == [[-0.25], [-0.25]]
    assert made["certain"].tolist() == [users >= 6]
    for name in ("ci_low", "ci_high", "lows", "highs", "stratified_low", "stratified_high"):
        assert np.isnan(made[name]).all() == (users < 6), name
