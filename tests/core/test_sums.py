"""Sums at any scale: against fractions, in any order and partitioning, and the bootstrap over them."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.core import sums
from recbench_spark.core.resampling import poisson_weights
from recbench_spark.core.sums import bootstrap_sums, exact_sums
from recbench_spark.errors import DataError

FLOATS = st.lists(st.floats(-1e300, 1e300), max_size=30)


def column(values: list[float]) -> Any:
    return np.array(values, dtype=np.float64).reshape(-1, 1)


@settings(max_examples=300)
@given(FLOATS)
def test_sums_are_those_of_fractions(values: list[float]) -> None:
    result, known = exact_sums(column(values)), sum(map(Fraction, values), Fraction(0))
    assert result.fractions() == [known]
    assert result.nearest()[0] == float(known)
    assert result.floats()[0] == pytest.approx(float(known), rel=4 * 2.0**-53, abs=0.0)
    assert result.nearest()[0] == math.fsum(values)


@settings(max_examples=200)
@given(FLOATS, st.integers(1, 5), st.randoms())
def test_order_and_partitioning_change_no_bit(values: list[float], parts: int, random: Any) -> None:
    whole = exact_sums(column(values))
    shuffled = column(random.sample(values, len(values)))
    torn = [exact_sums(part) for part in np.array_split(shuffled, parts)]
    sent = [sums.from_numbers(part.numbers(), (1,)) for part in torn]
    for result in (reduce(add, sent), reduce(add, sent[::-1])):
        assert result.floats().tobytes() == whole.floats().tobytes()
        assert result.nearest().tobytes() == whole.nearest().tobytes()


def test_sums_that_cancel_leave_what_is_left() -> None:
    for left in (0.0, 1e-300, -1e-300, 5e-324, -3.0):
        result = exact_sums(column([1e300, left, -1e300, 7.0, -7.0]))
        assert result.nearest().tolist() == result.floats().tolist() == [left]


def test_sums_of_a_billion_users_fit() -> None:
    one = exact_sums(column([1e5, 0.1] * 512))
    for _ in range(20):
        one = one + one
    assert one.fractions() == [(Fraction(1e5) + Fraction(0.1)) * 2**29]


def test_nan_counts_nothing_and_infinity_is_refused() -> None:
    result = exact_sums(np.array([[1.0, math.nan], [2.0, math.nan], [math.nan, 4.0]]))
    assert result.nearest().tolist() == [3.0, 4.0]
    assert exact_sums(np.zeros((0, 2))).nearest().tolist() == [0.0, 0.0]
    with pytest.raises(DataError, match="infinite"):
        exact_sums(column([math.inf]))


def test_no_replicates_are_sent_and_added_too() -> None:
    none = bootstrap_sums(np.arange(3), np.ones((3, 2)), 0, 1)
    sent = sums.from_numbers(none.numbers(), (0, 2))
    assert (sent + sent).floats().shape == (0, 2)


def test_values_are_rounded_to_41_digits() -> None:
    for value in (1 / 3, -math.pi * 1e-200, 1e250, 2.0**41 - 1, 5e-324, 0.0):
        result = float(sums.round_binary(np.array([value]))[0])
        assert abs(Fraction(result) - Fraction(value)) <= abs(Fraction(value)) / 2**42 or value == 5e-324
    assert sums.round_binary(np.array([2.0**41 - 1])).tolist() == [2.0**41 - 1], "counts stay what they are"


@pytest.mark.parametrize("scale", [1e-300, 1e-13, 1e-9, 1.0, 1e12, 1e280])
def test_the_bootstrap_is_right_at_any_scale(scale: float) -> None:
    """Against weighted sums in fractions: each replicate to 1e-12, and so its standard error."""
    rng = np.random.default_rng(1)
    keys, values = rng.integers(-(2**62), 2**62, 700), rng.lognormal(0, 3, (700, 2)) * scale
    values[:, 1] = np.where(np.arange(700) % 3, 1.0, math.nan)
    result = bootstrap_sums(keys, values, 12, 5).floats()
    weights = poisson_weights(keys, 12, 5)
    for b in range(12):
        known = sum(int(w) * Fraction(x) for w, x in zip(weights[:, b], values[:, 0].tolist(), strict=True))
        assert abs(Fraction(result[b, 0]) - known) < known * Fraction(1, 10**12)
        assert result[b, 1] == weights[np.arange(700) % 3 > 0, b].sum()


@settings(max_examples=60)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20), st.integers(1, 4), st.randoms())
def test_batches_of_users_change_no_bit_of_a_replicate(
    values: list[float], parts: int, random: Any
) -> None:
    keys, rows = np.arange(len(values)) * 7919, column(values)
    whole = bootstrap_sums(keys, rows, 5, 3)
    order = np.array(random.sample(range(len(values)), len(values)))
    torn = [bootstrap_sums(keys[part], rows[part], 5, 3) for part in np.array_split(order, parts)]
    assert reduce(add, torn).floats().tobytes() == whole.floats().tobytes()


def test_users_torn_over_batches_are_drawn_as_one() -> None:
    rng = np.random.default_rng(2)
    user, values = (
        rng.integers(0, 40, 900),
        rng.normal(size=(900, 3)) * 10.0 ** rng.integers(-20, 20, (900, 1)),
    )
    values = sums.round_binary(values)
    by_user = sums.group_sums(user, values, 40)
    known = [sum(map(Fraction, values[user == u, 1].tolist()), Fraction(0)) for u in range(40)]
    assert by_user.fractions()[1::3] == known
    whole = sums.bootstrap_groups(np.arange(40), by_user, 6, 1)
    halves = []
    for part in np.array_split(rng.permutation(900), 4):
        users, index = np.unique(user[part], return_inverse=True)
        halves.append(sums.bootstrap_groups(users, sums.group_sums(index, values[part], len(users)), 6, 1))
    assert reduce(add, halves).floats().tobytes() == whole.floats().tobytes()
    weights = poisson_weights(np.arange(40), 6, 1).astype(int)
    assert whole.fractions()[1] == sum(int(w) * x for w, x in zip(weights[:, 0], known, strict=True))


def test_more_rows_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    keys, values = np.arange(500), rng.lognormal(0, 9, (500, 2))
    whole = exact_sums(values).floats(), bootstrap_sums(keys, values, 4, 0).floats()
    monkeypatch.setattr(sums, "ROWS", 64)
    assert exact_sums(values).floats().tobytes() == whole[0].tobytes()
    assert bootstrap_sums(keys, values, 4, 0).floats().tobytes() == whole[1].tobytes()
