"""Propensities by hand, their scale and clipping."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recbench_spark.analyses.exposure.kernels import propensities
from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw
from recbench_spark.errors import ConfigError, DataError

LAW = PowerLaw(3.0, 0.1, 10, 5, 50, 0.05, "approximate")
COUNT = np.array([1, 10, 20])


def test_powers_by_hand() -> None:
    assert propensities.power_law(COUNT, LAW).tolist() == [1, 100, 400]
    assert propensities.power_above_xmin(COUNT, LAW).tolist() == [1, 10, 8000]
    np.testing.assert_allclose(propensities.steck(COUNT, LAW), [1, 10**0.75, 20**0.75])
    assert propensities.relative_frequency(COUNT, 40).tolist() == [0.025, 0.25, 0.5]
    with pytest.raises(DataError, match="empty"):
        propensities.relative_frequency(COUNT, 0)


@pytest.mark.parametrize("name", propensities.POWERS)
def test_powers_keep_the_order_of_counts_and_do_not_overflow(name: str) -> None:
    value = propensities.POWERS[name](np.arange(0, 10**9, 10**6), LAW)
    assert (np.diff(value) > 0).all() and np.isfinite(value).all()


def test_naive_bayes_by_hand_and_recovers_known_chances() -> None:
    """20 logged of 100 cells, 5 of which with rating 1, where half of a sample of 8 has it."""
    result = propensities.naive_bayes(np.array([5, 15, 0]), np.array([4, 2, 2]), 100)
    np.testing.assert_allclose(result, [5 / 100 / (4 / 8), 15 / 100 / (2 / 8), 0.0])
    assert math.isnan(propensities.naive_bayes(np.array([1, 1]), np.array([3, 0]), 9)[1])
    rng = np.random.default_rng(0)
    rating, true = rng.integers(0, 3, 10**6), np.array([0.02, 0.05, 0.2])
    logged = np.bincount(rating[rng.random(10**6) < true[rating]])
    sample = np.bincount(rng.choice(rating, 10**5))
    np.testing.assert_allclose(propensities.naive_bayes(logged, sample, 10**6), true, rtol=0.03)
    with pytest.raises(DataError, match="open loop"):
        propensities.naive_bayes(np.array([1]), np.array([0]), 9)


def test_scales_by_hand() -> None:
    value, items = np.array([1.0, 4.0]), np.array([6, 1])
    assert propensities.scale(value, items, "as_is") == 1.0
    assert propensities.scale(value, items, "largest") == 0.25
    factor = propensities.scale(value, items, "interactions", per_user=2.0)
    assert (value * factor) @ items == pytest.approx(2.0)


def test_relative_frequencies_already_sum_to_the_interactions_of_a_mean_user() -> None:
    items = np.array([5, 3, 1])
    chance = propensities.relative_frequency(COUNT, 40)
    per_user = float(COUNT @ items) / 40
    assert propensities.scale(chance, items, "interactions", per_user) == pytest.approx(1.0)


def test_clipping_counts_what_it_changes() -> None:
    result = propensities.clip(np.array([0.0, 0.05, 0.5, 3.0]), np.array([1, 2, 4, 8]), 0.1)
    assert result.propensity.tolist() == [0.1, 0.1, 0.5, 1.0] and (result.raised, result.lowered) == (3, 8)
    with pytest.raises(ConfigError, match="clipped"):
        propensities.clip(np.array([0.5]), np.array([1]), 0.0)
    for wrong in (math.nan, math.inf, -1.0, 0.0):
        with pytest.raises(DataError, match="not positive"):
            propensities.check(np.array([0.5, wrong]))
