"""Spreads of values over users: by hand as fractions, and against slow oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from recbench_spark.analyses.comparisons.kernels import spreads as kernel


def count(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    value_v, users_v = np.unique(np.asarray(values, dtype=float), return_counts=True)
    return value_v, users_v


def test_percentiles_and_their_intervals_by_hand() -> None:
    """In 1 .. 20, 5 % is the first; binomial ends of the median at 95 % are the 6th and the 15th."""
    places, low, high = kernel.find_percentiles(*count(range(1, 21)), 0.95)
    assert places.tolist() == [1, 2, 5, 10, 15, 18, 19]
    assert (low[3], high[3]) == (6, 15)
    assert math.isnan(low[0]) and math.isnan(high[-1])


@pytest.mark.parametrize("n", [1, 2, 9, 64, 501])
def test_percentiles_as_a_sorted_list_has_them(n: int) -> None:
    values = np.sort(np.random.default_rng(n).integers(0, 12, n) / 8)
    places, low, high = kernel.find_percentiles(*count(values), 0.9)
    for at, percent in enumerate(kernel.PERCENTS):
        share = Fraction(percent, 100)
        assert places[at] == next(v for i, v in enumerate(values, 1) if Fraction(i, n) >= share)
        ends = stats.binom.ppf([0.05, 0.95], n, percent / 100) + np.array([0, 1])
        for end, mine in zip(ends, (low[at], high[at]), strict=True):
            assert math.isnan(mine) if not 1 <= end <= n else mine == values[int(end) - 1]


def test_intervals_of_percentiles_hold_the_truth() -> None:
    rng, held, worlds = np.random.default_rng(3), np.zeros(len(kernel.PERCENTS)), 400
    truth = stats.expon.ppf(np.array(kernel.PERCENTS) / 100)
    for _ in range(worlds):
        _, low, high = kernel.find_percentiles(*count(rng.exponential(size=300)), 0.95)
        held += (low <= truth) & (truth <= high)
    assert (held / worlds).min() > 0.93


def test_the_worst_tenth_by_hand() -> None:
    """A tenth of 25 users is 2.5 users: 1, 2 and half of 3."""
    worst, low, _ = kernel.average_worst(*count(range(1, 26)), 0.95)
    assert worst == pytest.approx((1 + 2 + 1.5) / 2.5) and math.isnan(low)


def test_the_interval_of_the_worst_tenth_holds_the_truth() -> None:
    """The lowest tenth of an exponential has the mean 1 - .9 / .1 (-ln .9)."""
    rng, truth, held = np.random.default_rng(4), 1 - 9 * -math.log(0.9), 0
    for _ in range(400):
        _, low, high = kernel.average_worst(*count(rng.exponential(size=600)), 0.95)
        held += low <= truth <= high
    assert held / 400 > 0.93


def test_lorenz_and_gini_by_hand() -> None:
    """Three of four users have nothing: the curve is 0 up to 75 %, and Gini's index is 3 / 4."""
    curve = kernel.trace_lorenz(*count([0, 0, 0, 2]))
    assert curve[:8] == pytest.approx([0] * 8) and curve[8:] == pytest.approx([0.2, 0.6, 1.0])
    assert kernel.measure_gini(*count([0, 0, 0, 2])) == pytest.approx(3 / 4)
    assert np.isnan(kernel.trace_lorenz(*count([-1, 2]))).all() and math.isnan(
        kernel.measure_gini(*count([0]))
    )


def test_gini_is_the_mean_difference_over_twice_the_mean() -> None:
    values = np.random.default_rng(5).integers(0, 20, 60)
    slow = np.abs(values[:, None] - values).mean() / 2 / values.mean()
    assert kernel.measure_gini(*count(values)) == pytest.approx(slow)


def test_shares_have_the_interval_of_wilson() -> None:
    for losers, n in ((0, 4), (3, 10), (10, 10), (400, 999)):
        wanted = stats.binomtest(losers, n).proportion_ci(0.9, "wilson")
        assert kernel.bound_share(losers, n, 0.9) == pytest.approx((wanted.low, wanted.high))


def test_equal_rankings_prefer_none() -> None:
    places = np.array([1.0, 4.0, math.inf])
    assert kernel.compare_places(places, places, np.array([0, 2, 3])).tolist() == [[0, 0, 0]] * 2
    none = np.empty(0)
    assert np.isnan(kernel.compare_places(none, none, np.array([0, 0]))).all()


def test_preferences_by_hand_and_by_a_loop() -> None:
    """Places 1, 9 against 2, 3: first better, last worse, one each; nothing ranked is equal to nothing."""
    infinite = math.inf
    own, other = np.array([1, 9, 4, infinite, infinite]), np.array([2, 3, 4, 7, infinite])
    bounds = np.array([0, 2, 2, 5])
    values = kernel.compare_places(own, other, bounds)
    assert values[0].tolist() == [1, -1, 0] and np.isnan(values[1]).all()
    assert values[2].tolist() == [-1, -1, pytest.approx(-1 / 3)]
    rng = np.random.default_rng(7)
    bounds = np.concatenate([[0], np.cumsum(rng.integers(1, 6, 200))])
    sides = [
        np.concatenate([np.sort(rng.integers(1, 9, b - a)) for a, b in pairwise(bounds)]) for _ in range(2)
    ]
    values = kernel.compare_places(*map(np.asarray, sides), bounds)
    for u, (start, stop) in enumerate(pairwise(bounds)):
        signs = [
            (one < two) - (one > two)
            for one, two in zip(*(s[start:stop].tolist() for s in sides), strict=True)
        ]
        known = [sign for sign in signs if sign] or [0]
        assert values[u].tolist() == [known[0], known[-1], pytest.approx(sum(signs) / len(signs))]
