"""Ratios of sums: by hand, as a mean, and how often their intervals hold."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest

from recbench_spark.core.ratios import (
    exact_moments,
    exact_ratio_and_error,
    ratio_and_error,
    ratio_moments,
    scaling,
)


def test_by_hand() -> None:
    """N = 1, 2, 3 and D = 1, 1, 2: v = 3/2, residuals -1/2, 1/2, 0: variance 3/2 x 1/2 / 16."""
    value, error, n = ratio_and_error(
        ratio_moments(np.array([[1.0], [2], [3]]), np.array([[1.0], [1], [2]]))
    )
    assert value[0] == 1.5 and n[0] == 3 and error[0] == pytest.approx((3 / 64) ** 0.5, rel=1e-15)


def test_a_denominator_of_one_gives_the_mean() -> None:
    x = np.random.default_rng(0).random((500, 2))
    x[::3, 1] = math.nan
    value, error, n = ratio_and_error(ratio_moments(x, np.ones_like(x)))
    assert n.tolist() == [500, 333]
    np.testing.assert_allclose(value, np.nanmean(x, axis=0), rtol=1e-14)
    np.testing.assert_allclose(error, np.nanstd(x, axis=0, ddof=1) / n**0.5, rtol=1e-12)


def test_any_order_and_partitioning_gives_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    n, d, order = rng.normal(size=(300, 2)), rng.random((300, 2)), rng.permutation(300)
    parts = [ratio_moments(n[part], d[part]) for part in np.array_split(order, 7)]
    assert (np.sum(parts, axis=0) == ratio_moments(n, d)).all()


def test_undefined_ratios_are_nan() -> None:
    one, zero = np.ones((1, 1)), np.zeros((3, 1))
    assert math.isnan(ratio_and_error(ratio_moments(np.ones((3, 1)), zero))[0][0])
    value, error, _ = ratio_and_error(ratio_moments(one, one * 4))
    assert value[0] == 0.25 and math.isnan(error[0])
    assert math.isnan(ratio_and_error(ratio_moments(one * math.nan, one))[0][0])


def test_constant_ratios_have_no_error() -> None:
    d = np.random.default_rng(2).integers(1, 9, (50, 1)).astype(float)
    assert ratio_and_error(ratio_moments(d * 0.25, d))[1][0] == 0.0


@pytest.mark.parametrize("largest", [1e-12, 0.7, 1.0, 3e5, 1e15])
def test_scaling_keeps_the_digits_of_weights_of_any_size(largest: float) -> None:
    rng = np.random.default_rng(3)
    n, d = rng.random((100, 1)) * largest, rng.random((100, 1))
    factor = scaling(float(n.max()))
    assert 512 <= n.max() * factor <= 1024 and math.log2(factor) % 1 == 0
    value, error, _ = ratio_and_error(ratio_moments(n * factor, d))
    assert value[0] / factor == pytest.approx(n.sum() / d.sum(), rel=1e-13)
    residual = n - n.sum() / d.sum() * d
    assert error[0] / factor == pytest.approx((100 / 99 * (residual**2).sum()) ** 0.5 / d.sum(), rel=1e-9)


def exact_error(n: list[float], d: list[float]) -> tuple[Fraction, Fraction]:
    """The ratio and the square of its standard error, in fractions."""
    ns, ds = [Fraction(x) for x in n], [Fraction(x) for x in d]
    value = sum(ns) / sum(ds)
    spread = sum((x - value * y) ** 2 for x, y in zip(ns, ds, strict=True))
    return value, spread * len(ns) / (len(ns) - 1) / sum(ds) ** 2


@pytest.mark.parametrize("decades", [0, 3, 8, 16])
@pytest.mark.parametrize("spread", [1.0, 1e-7])
def test_weights_from_tiny_to_huge_and_ratios_that_nearly_agree(decades: int, spread: float) -> None:
    """Weights of 10^-8 beside 10^8, and numerators that differ in the eighth digit: against fractions."""
    rng = np.random.default_rng(decades)
    d = 10.0 ** rng.uniform(-decades / 2, decades / 2, (200, 1))
    n = d * (0.3 + spread * rng.random((200, 1)))
    f, g = scaling(float(n.max())), scaling(float(d.max()))
    value, error, count = exact_ratio_and_error(exact_moments(n * f, d * g))
    known, variance = exact_error(n[:, 0].tolist(), d[:, 0].tolist())
    assert abs(Fraction(value[0]) * Fraction(g) / Fraction(f) - known) <= known / 10**15 and count[0] == 200
    assert abs((Fraction(error[0]) * Fraction(g) / Fraction(f)) ** 2 / variance - 1) < Fraction(1, 10**12)


def test_exact_moments_in_any_order_and_partitioning_and_without_left_out_parts() -> None:
    rng = np.random.default_rng(5)
    n, d = rng.normal(size=(90, 2)), rng.lognormal(0, 9, (90, 2)) * 2.0**-40
    n[::7, 1] = math.nan
    order = rng.permutation(90)
    whole = exact_ratio_and_error(exact_moments(n, d))
    torn = reduce(add, [exact_moments(n[part], d[part]) for part in np.array_split(order, 6)])
    for one, other in zip(whole, exact_ratio_and_error(torn), strict=True):
        assert one.tobytes() == other.tobytes()
    assert whole[2].tolist() == [90, 77]


def test_the_smallest_numbers_have_a_scaling() -> None:
    assert scaling(1e-320) == 2.0**1000


def test_intervals_cover_the_ratio_as_often_as_they_say() -> None:
    rng = np.random.default_rng(4)
    d = rng.exponential(size=(300, 400))
    n = d * 0.4 + rng.normal(size=d.shape) * 0.3
    value, error, _ = ratio_and_error(ratio_moments(n, d))
    assert 0.91 < (np.abs(value - 0.4) < 1.96 * error).mean() < 0.98
