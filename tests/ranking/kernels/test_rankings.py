"""Grades against a threshold, in the types that columns have."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings, correction_weights
from recbench_spark.ranking.kernels.rankings import list_roundings, mark_relevant


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 3.5, -0.7, 1e-3, 0.123456789])
def test_a_threshold_is_compared_in_the_type_of_the_grades(kind: type, threshold: float) -> None:
    rng = np.random.default_rng(1)
    near = kind(threshold) + np.arange(-3, 4) * np.spacing(kind(threshold), dtype=kind)
    grades = np.concatenate([near, rng.integers(0, 50, 200) / 10]).astype(kind)
    expected = grades >= kind(threshold)
    assert mark_relevant(grades.astype(np.float64), threshold).tolist() == expected.tolist()


def test_what_float32_rounds_down_is_the_smaller_fraction() -> None:
    assert Fraction(float(np.float32(0.7))) < Fraction(7, 10) < Fraction(float(np.float16(0.7)))
    assert list_roundings(0.7) == [float(np.float32(0.7))]
    assert list_roundings(4.0) == list_roundings(0.5) == []
    assert mark_relevant(np.array([0.69999999, 0.6999999]), 0.7).tolist() == [False, False]


def test_a_weight_of_a_float32_chance_is_no_larger_than_its_bound() -> None:
    weight = 1.0 / np.array([np.float32(0.01), 0.01, 0.0099], np.float64)
    assert weight[0] > 100
    kept = correction_weights("switch_dr", weight, EstimatorSettings(switch=100.0))
    assert (kept > 0).tolist() == [True, True, False]
