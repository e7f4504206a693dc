"""The value of a policy from logged rounds: by hand, over all actions, coverage, real rounds."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.analyses.exposure.kernels import bandit_feedback
from recbench_spark.analyses.exposure.kernels.bandit_feedback import Rounds, contributions
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings, diagnostics
from recbench_spark.errors import ConfigError, DataError
from tests.oracles import value_and_error

SETTINGS = EstimatorSettings(clip=2.0, switch=2.0, shrink=4.0)
ALL = bandit_feedback.ESTIMATORS


def test_every_estimator_by_hand() -> None:
    rounds = Rounds(
        np.array([1.0, 0, 1]), np.array([4.0, 1, 0.5]), np.array([0.5, 0.5, 0.2]), np.array([0.3] * 3)
    )
    value, _, n = value_and_error(*contributions(rounds, ALL, SETTINGS))
    w = {"dr": (4, 1, 0.5), "switch_dr": (0, 1, 0.5), "dros": (16 / 20, 4 / 5, 2 / 4.25)}
    expected = {"ips": 4.5 / 3, "clipped_ips": 2.5 / 3, "snips": 4.5 / 5.5, "dm": 0.3}
    for name, (a, b, c) in w.items():
        expected[name] = 0.3 + (a * 0.5 + b * -0.5 + c * 0.8) / 3
    np.testing.assert_allclose(value, [expected[name] for name in ALL], rtol=1e-13)
    assert n.tolist() == [3] * 7


def test_over_all_actions_ips_and_dr_are_the_truth() -> None:
    """Three actions: logged 1/2, 1/3, 1/6, in question 1/6, 1/6, 2/3; rewards 1/4, 1/2, 3/4."""
    logged, requests = [np.array([3, 2, 1]) / 6, np.array([1, 1, 4]) / 6]
    reward, model = np.array([0.25, 0.5, 0.75]), np.array([0.9, 0.1, 0.4])
    rounds = Rounds(reward, requests / logged, model, np.full(3, requests @ model))
    numerator, denominator = contributions(rounds, ALL, SETTINGS)
    mean = dict(zip(ALL, (logged @ numerator) / (logged @ denominator), strict=True))
    truth = float(Fraction(1, 24) + Fraction(1, 12) + Fraction(1, 2))
    for name in ("ips", "snips", "dr"):
        assert mean[name] == pytest.approx(truth, rel=1e-14)
    assert all(abs(mean[name] - truth) > 0.01 for name in ("clipped_ips", "dm", "switch_dr", "dros"))


def test_intervals_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    logged, requests = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    chance, model, names = np.array([0.1, 0.3, 0.5]), np.array([0.2, 0.2, 0.6]), ("ips", "snips", "dr")
    covered = np.zeros(3)
    for _ in range(300):
        action = rng.choice(3, 2000, p=logged)
        reward = (rng.random(2000) < chance[action]).astype(float)
        rounds = Rounds(reward, (requests / logged)[action], model[action], np.full(2000, requests @ model))
        value, error, _ = value_and_error(*contributions(rounds, names, SETTINGS))
        covered += np.abs(value - requests @ chance) < 1.96 * error
    assert (covered > 0.91 * 300).all() and (covered < 0.99 * 300).all()


def test_without_a_model_and_with_wrong_rounds() -> None:
    rounds = Rounds(np.ones(2), np.ones(2))
    value, _, n = value_and_error(*contributions(rounds, ALL, SETTINGS))
    assert value[:3].tolist() == [1, 1, 1] and np.isnan(value[3:]).all() and n[3] == 0
    for weight in (np.nan, np.inf, -1.0):
        with pytest.raises(DataError, match="1 of 2 rounds"):
            contributions(Rounds(np.ones(2), np.array([1, weight])), ["ips"], SETTINGS)
    with pytest.raises(ConfigError, match="unknown estimator"):
        contributions(rounds, ["ipw"], SETTINGS)


def test_huge_weights_keep_their_digits() -> None:
    weight = np.array([1e9, 1.0, 3e6, 2.0])
    value, error, _ = value_and_error(*contributions(Rounds(np.ones(4), weight), ["ips"], SETTINGS))
    assert value[0] == pytest.approx(weight.mean(), rel=1e-14)
    assert error[0] == pytest.approx(weight.std(ddof=1) / 2, rel=1e-12)


@pytest.mark.data
def test_open_bandit_rounds(shared_data: Path) -> None:
    """The log of Thompson sampling estimates the random policy (80 items), whose log has its value."""
    rows: dict[str, Any] = {}
    for policy in ("bts", "random"):
        with (shared_data / "obd-sample" / policy / "all.csv").open() as file:
            rows[policy] = np.array(
                [(r["click"], r["propensity_score"]) for r in csv.DictReader(file)], float
            )
    clicks, propensity = rows["bts"].T
    weight = 1 / 80 / propensity
    value, error, n = value_and_error(
        *contributions(Rounds(clicks, weight), ["ips", "snips"], EstimatorSettings(clip=100.0))
    )
    truth = rows["random"][:, 0].mean()
    assert truth == 0.0038 and clicks.sum() == 42 and n.tolist() == [10_000, 10_000]
    assert (np.abs(value - truth) < 3 * error).all()
    result = diagnostics(weight, np.ones(len(weight)))
    assert (
        result.effective == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
        and result.effective < 10_000
    )
