"""Means over the points of learning curves: by hand as fractions, and against straight lines."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.metrics.kernels.learning_curves import (
    average_draws,
    average_points,
    point_weights,
    summarise_points,
)

NAN = math.nan


@settings(max_examples=80)
@given(st.sets(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_weights_are_sums_over_straight_lines(points: set[int], seed: int) -> None:
    ordered = sorted(points)
    values = np.random.default_rng(seed).normal(size=len(ordered))
    every = np.arange(ordered[0], ordered[-1] + 1)
    expected = np.interp(every, ordered, values).sum()
    assert point_weights(ordered) @ values == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_mean_over_points_by_hand() -> None:
    """Points 1, 2 and 4 have the weights 1, 3/2 and 3/2; a user who leaves after 2 has weights of 1."""
    values = np.array([[0.5, 0.25, 1.0], [0.5, 0.25, NAN], [NAN, 0.25, 1.0], [NAN, NAN, NAN]])
    means = average_points(values, [1, 2, 4], np.array([3, 2, 3, 0]))
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    whole = (half + quarter * Fraction(3, 2) + Fraction(3, 2)) / 4
    expected = [whole, (half + quarter) / 2, (quarter * Fraction(3, 2) + Fraction(3, 2)) / 3]
    np.testing.assert_allclose(means[:3], [float(value) for value in expected], rtol=1e-15)
    assert math.isnan(means[3])


def test_points_without_gaps_have_the_plain_mean() -> None:
    values = np.random.default_rng(1).normal(size=(5, 7))
    values[2, 4:] = NAN
    expected = [np.nanmean(row) for row in values]
    np.testing.assert_allclose(average_points(values, range(1, 8)), expected, rtol=1e-14)


def test_draws_without_a_value_are_left_out() -> None:
    values = np.array([[[1.0, NAN, 3.0]], [[2.0, NAN, NAN]]])
    np.testing.assert_array_equal(average_draws(values), [[1.5, NAN, 3.0]])


def test_points_by_hand_and_the_fewest_users() -> None:
    """Ten users with 0 and 1 in turns, and nine users."""
    values = np.column_stack([np.arange(10) % 2, np.arange(10) % 2]).astype(np.float64)
    values[0, 1] = NAN
    points = summarise_points(np.arange(10), values, 200)
    assert points.n_l.tolist() == [10, 9]
    assert points.value_l[0] == 0.5 and points.stderr_l[0] == pytest.approx(math.sqrt(Fraction(1, 36)))
    assert points.low_l[0] < 0.5 < points.high_l[0]
    assert all(math.isnan(column[1]) for column in points[:4])
    order = np.random.default_rng(0).permutation(10)
    again = summarise_points(np.arange(10)[order], values[order], 200)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(points, again, strict=True))
