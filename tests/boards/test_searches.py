"""Expected best of n: by hand as fractions, against enumeration, its limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from recbench_spark.boards.searches import SearchTrials, expected_best, late_gain
from recbench_spark.errors import DataError


def search(values, **more) -> SearchTrials:
    trials = [{"settings": {"rate": n}, "value": value} for n, value in enumerate(values)]
    return SearchTrials(space={"rate": (0, len(values) - 1)}, trials=trials, **more)


def test_by_hand() -> None:
    """Values 1, 2, 4: one draw 7/3; of two draws the best is 1 with 5/9, 2 with 3/9, 4 with 1/9: 15/9."""
    result = expected_best(search([2, 4, 1]))
    assert result.budget_n.tolist() == [1, 2, 3]
    assert result.expected_n[:2].tolist() == pytest.approx([7 / 3, 15 / 9], rel=1e-14)
    assert result.low_n.tolist() == [1, 1, 1] and result.high_n.tolist() == [4, 4, 2]


@pytest.mark.parametrize("lower", [True, False])
def test_equals_enumeration(lower: bool) -> None:
    values = [0.9, 0.7, 0.75, 0.7, 1.2]
    result, best = expected_best(search(values, lower_is_better=lower), 0.8), min if lower else max
    for n in range(1, 5):
        drawn = sorted(best(draw) for draw in itertools.product(values, repeat=n))
        assert result.expected_n[n - 1] == pytest.approx(np.mean(drawn), rel=1e-12)
        ends = np.quantile(drawn, [0.1, 0.9], method="inverted_cdf" if lower else "higher")
        assert [result.low_n[n - 1], result.high_n[n - 1]] == pytest.approx(ends)


def test_the_best_only_gets_better_and_is_bounded() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.8, 0.02, 40)
    expected = expected_best(search(values)).expected_n
    assert (np.diff(expected) < 0).all() and expected[-1] >= values.min()
    assert expected[0] == pytest.approx(values.mean())


def test_what_the_last_doubling_brought() -> None:
    assert late_gain(search([1, 2])) == pytest.approx(3 / 2 - 5 / 4)
    assert late_gain(search([3, 3, 3, 3])) == 0
    assert np.isnan(late_gain(search([1])))


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="level 1"):
        expected_best(search([1, 2]), 1)
    with pytest.raises(ValueError, match="a trial sets"):
        SearchTrials(space={"reg": (0, 1)}, trials=[{"settings": {"rate": 1}, "value": 1}])
