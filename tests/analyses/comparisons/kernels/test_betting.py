"""Bets on users: by hand as fractions, against a loop over users, and how often they err."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.analyses.comparisons.kernels.betting import (
    BETS,
    adjust_evidence,
    bet_on_users,
    choose_bets,
    measure_evidence,
)

STEPS = st.lists(st.integers(-(2**16), 2**16), min_size=1, max_size=30)


def count_steps(steps: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(np.array(steps), return_counts=True)


def test_wealth_by_hand() -> None:
    """Stakes of 7/20, then 1/2 at most; three users, half a step below what they gained."""
    gained = [Fraction(1, 2), Fraction(-1, 4), Fraction(1, 2)]
    stakes = [Fraction(7, 20), *[Fraction(1, 2)] * 4]
    half = Fraction(1, 2**17)
    wealth = [
        np.prod([1 + float(stake * (gain - half)) for gain in gained]) for stake in stakes
    ]  # fmt: skip
    logs = bet_on_users(*count_steps([2**15, -(2**14), 2**15]), 0.0, 100)
    np.testing.assert_allclose(np.exp(logs), wealth, rtol=1e-12)
    assert measure_evidence(logs) == pytest.approx(np.mean(wealth), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.floats(0, 1), st.integers(2, 10**9))
def test_wealth_is_that_of_a_loop_over_users_and_never_gone(
    steps: list[int], bound: float, planned: int
) -> None:
    logs = bet_on_users(*count_steps(steps), bound, planned)
    for log, stake in zip(logs, choose_bets(planned, bound), strict=True):
        wealth = 0.0
        for step in steps:
            wealth += np.log(1 + stake * ((step - 0.5) / 2**16 - bound))
        assert np.isfinite(log) and log == pytest.approx(wealth, rel=1e-9, abs=1e-9)


def test_evidence_does_not_overflow() -> None:
    assert np.isfinite(measure_evidence(np.full(BETS, 1e6)))
    assert measure_evidence(np.full(BETS, -1e6)) == 0.0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=12), st.sampled_from([0.01, 0.05, 0.5]))
def test_found_are_those_of_the_definition(e: list[float], alpha: float) -> None:
    """e-BH: the k largest are found, for the largest k whose k-th is at least n / (k alpha)."""
    ordered = sorted(e, reverse=True)
    enough = [k for k in range(1, len(e) + 1) if ordered[k - 1] * k / len(e) >= 1 / alpha]
    named = adjust_evidence(np.array([*e, np.nan])) >= 1 / alpha
    assert named[:-1].tolist() == [bool(enough) and one >= ordered[max(enough) - 1] for one in e]


def test_errors_are_rarer_than_stated_and_falls_are_found() -> None:
    """2,000 sequences of 20 nights with 300 users: 1 in 20 may ever alarm; a fall is seen."""
    rng = np.random.default_rng(5)
    steps = np.array([-1, 0, 1]) * 2**15
    for mean, least, most in ((0.0, 0.0, 0.05), (0.03, 0.95, 1.0)):
        share = np.array([0.1 - mean, 0.8, 0.1 + mean])
        alarms = 0
        for _ in range(2000):
            nights = bet_on_users(steps, rng.multinomial(300, share, 20), 0.0, 6000)
            alarms += measure_evidence(np.cumsum(nights, axis=0)).max() >= 20
        assert least <= alarms / 2000 <= most
