"""Sums that do not depend on order, standard errors, and the bootstrap over users."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from recbench_spark.core import hashing, resampling
from recbench_spark.core.resampling import (
    FEW_COLUMNS,
    bootstrap_sums,
    exact_sums,
    from_sums,
    interval,
    mean_and_error,
    moments,
    percentile_interval,
    poisson_weights,
    replicate_means,
    replicate_ratios,
)
from recbench_spark.errors import DataError
from tests.core.draws import GAMMA, mix, stream

VALUES = st.lists(st.floats(-1000, 1000) | st.just(math.nan), min_size=1, max_size=20)


@given(VALUES, st.integers(0, 20))
def test_exact_sums_are_right_and_add_up_over_any_split(values: list[float], cut: int) -> None:
    column = np.array(values)[:, None]
    whole = exact_sums(column)
    assert (exact_sums(column[:cut]) + exact_sums(column[cut:]) == whole).all()
    assert (exact_sums(column[::-1]) == whole).all()
    rounded = sum(Fraction(round(Fraction(v) * 2**52), 2**52) for v in values if not math.isnan(v))
    assert from_sums(whole)[0] == float(rounded)


def test_sums_of_a_billion_users_fit() -> None:
    one = exact_sums(np.full((1024, 1), 1000.9))
    billion = one * 2**20
    assert (np.abs(billion.astype(float) - one.astype(float) * 2**20) == 0).all()
    assert from_sums(billion)[0] == pytest.approx(1000.9 * 2**30, rel=1e-15)


def test_mean_and_error_equal_numpy_and_skip_users_left_out() -> None:
    values = np.random.default_rng(0).random((1000, 3))
    values[::7, 1] = math.nan
    values[1:, 2] = math.nan
    mean, error, n = mean_and_error(moments(values))
    assert n.tolist() == [1000, 857, 1]
    kept = values[~np.isnan(values[:, 1]), 1]
    np.testing.assert_allclose(mean, [values[:, 0].mean(), kept.mean(), values[0, 2]], rtol=1e-14)
    expected = [values[:, 0].std(ddof=1) / 1000**0.5, kept.std(ddof=1) / 857**0.5, math.nan]
    np.testing.assert_allclose(error, expected, rtol=1e-12)


def test_no_users_have_no_mean_and_equal_users_no_error() -> None:
    mean, error, _ = mean_and_error(moments(np.column_stack([np.full(5, math.nan), np.full(5, 0.1)])))
    assert math.isnan(mean[0]) and mean[1] == pytest.approx(0.1, rel=1e-15)
    assert error[1] == pytest.approx(0.0, abs=1e-8)


def test_too_large_values_are_refused() -> None:
    with pytest.raises(DataError, match="too large"):
        exact_sums(np.array([[1e9]]))
    with pytest.raises(DataError, match="too large"):
        exact_sums(np.array([[math.inf]]))
    with pytest.raises(DataError, match="too large"):
        bootstrap_sums(np.arange(1), np.array([[1e9]]), 2, 0)


def test_mixing_equals_the_published_outputs_of_splitmix64() -> None:
    """First outputs for the seed 1234567."""
    gamma, state, outputs = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        state = (state + gamma) % 2**64
        outputs.append(int(hashing.mix(np.uint64(state))))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_thresholds_are_the_poisson_distribution() -> None:
    expected = stats.poisson.cdf(np.arange(20), 1)
    np.testing.assert_allclose(resampling.THRESHOLDS / 2.0**64, expected, rtol=1e-15)
    assert (np.diff(resampling.THRESHOLDS.astype(object)) >= 0).all()


def test_weights_are_poisson_and_independent() -> None:
    weights = poisson_weights(np.arange(2000), 500, 7).astype(float)
    observed = np.bincount(weights.astype(int).ravel(), minlength=7)
    expected = stats.poisson.pmf(np.arange(7), 1) * weights.size
    observed, expected = (
        np.append(observed[:6], observed[6:].sum()),
        np.append(expected[:6], weights.size - expected[:6].sum()),
    )
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    for table in (weights, weights.T):
        correlation = np.corrcoef(table[:300])[np.triu_indices(300, 1)]
        assert abs(correlation.mean()) < 0.001
        assert correlation.std() == pytest.approx(table.shape[1] ** -0.5, rel=0.05)


def test_weights_count_the_thresholds_a_draw_reaches() -> None:
    """Against Python's whole numbers, large weights included."""
    keys, seed = np.arange(-150, 150), 11
    thresholds = resampling.THRESHOLDS.tolist()
    result = poisson_weights(keys, 200, seed)
    for row, key in zip(result.tolist(), keys.tolist(), strict=True):
        state = stream(seed, key)
        draws = [mix((state + b * GAMMA) % 2**64) for b in range(1, 201)]
        assert row == [bisect.bisect_right(thresholds, draw) for draw in draws]
    assert result.max() >= 7


def test_weights_depend_on_key_replicate_and_seed_only() -> None:
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 50)
    weights = poisson_weights(keys, 40, 1)
    assert (poisson_weights(keys[::-1], 20, 1)[::-1] == weights[:, :20]).all()
    assert (poisson_weights(keys.view(np.uint64), 40, 1) == weights).all()
    assert (poisson_weights(keys, 40, 2) != weights).any()
    with pytest.raises(DataError, match="int64"):
        poisson_weights(keys.astype(float), 40, 1)


@pytest.mark.parametrize("scale", [1.0, 900.0])
def test_bootstrap_sums_equal_integers_added_one_by_one(scale: float) -> None:
    rng = np.random.default_rng(0)
    keys, values = rng.integers(0, 2**60, 3000), rng.random((3000, 3)) * scale
    values[::5, 1] = math.nan
    sums, totals = bootstrap_sums(keys, values, 20, 3)
    weights = poisson_weights(keys, 20, 3).astype(np.int64)
    valid = ~np.isnan(values)
    fixed = np.rint(np.where(valid, values, 0.0) * 2**30).astype(np.int64)
    assert (sums == weights.T @ fixed).all() and (totals == weights.T @ valid).all()


def test_bootstrap_is_the_same_in_any_order_and_partitioning() -> None:
    rng = np.random.default_rng(1)
    keys, values = rng.integers(0, 2**60, 5000), rng.random((5000, 2))
    sums, totals = bootstrap_sums(keys, values, 30, 0)
    order = rng.permutation(5000)
    parts = [bootstrap_sums(keys[part], values[part], 30, 0) for part in np.array_split(order, 7)]
    assert (sum(s for s, _ in parts) == sums).all() and (sum(t for _, t in parts) == totals).all()


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    worlds, u = 400, 200
    values = rng.exponential(size=(u, worlds)) / 4
    low, high = interval(
        *bootstrap_sums(np.arange(u), values, 400, 5), np.full(values.shape[1], u), level=0.9
    )
    covered = ((low <= 0.25) & (high >= 0.25)).mean()
    assert 0.84 < covered < 0.94
    error = mean_and_error(moments(values))[1]
    assert ((high - low) / (2 * 1.645 * error)).mean() == pytest.approx(1.0, abs=0.05)


def test_ratio_of_sums() -> None:
    rng = np.random.default_rng(3)
    parts = rng.integers(1, 9, (400, 1)) * np.array([[0.5, 1.0]])
    sums, totals = bootstrap_sums(np.arange(400), parts, 50, 0)
    assert (replicate_ratios(sums[:, :1], sums[:, 1:]) == 0.5).all()
    assert replicate_means(sums, totals).mean() == pytest.approx(parts.mean(), rel=0.05)


def test_interval_of_a_column_without_users_is_nan() -> None:
    values: Any = np.column_stack([np.full(10, math.nan), np.full(10, 0.5)])
    low, high = interval(*bootstrap_sums(np.arange(10), values, 20, 0), np.full(1, 10))
    assert math.isnan(low[0]) and math.isnan(high[0]) and low[1] == high[1] == 0.5


def test_percentiles_by_hand() -> None:
    low, high = percentile_interval(np.arange(101.0)[:, None], level=0.9)
    assert low[0] == pytest.approx(5) and high[0] == pytest.approx(95)


def test_no_replicates_no_interval() -> None:
    low, high = interval(*bootstrap_sums(np.arange(10), np.ones((10, 2)), 0, 0), np.full(2, 10))
    assert np.isnan(low).all() and np.isnan(high).all()


@pytest.mark.parametrize("replicates", [1, 33])
def test_few_columns_have_the_sums_of_many(replicates: int) -> None:
    """Few are multiplied in one thread, many in several; all sums are whole numbers."""
    rng = np.random.default_rng(2)
    keys, values = rng.integers(0, 2**60, 1003), rng.random((1003, 5)) * 900.0
    values[::7, 3] = math.nan
    few, weights = bootstrap_sums(keys, values, replicates, 1)
    many, more = bootstrap_sums(keys, np.tile(values, (1, 1 + FEW_COLUMNS // 5)), replicates, 1)
    assert (many == np.tile(few, (1, 1 + FEW_COLUMNS // 5))).all()
    assert (more[:, :5] == weights).all()
