"""Normal-Wishart and Gamma draws: moments in closed form, the update against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recbench_spark.models.rating.draws import as_unsigned, draw_state
from recbench_spark.models.rating.gibbs import (
    NormalWishart,
    draw_gamma,
    draw_normal_wishart,
    row_sums,
    update_prior,
)

SCALE = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])
GIVEN = NormalWishart(np.array([1.0, -2.0, 0.5]), 4.0, np.linalg.inv(SCALE), 9.0)


def states(count: int):
    return (np.uint64(draw_state(as_unsigned(5), 1, n, 0)) for n in range(count))


@pytest.mark.parametrize(("shape", "rate"), [(0.5, 0.5), (1.0, 2.0), (7.5, 0.1), (5000.0, 3.0)])
def test_gamma(shape: float, rate: float) -> None:
    drawn = [draw_gamma(shape, rate, state) for state in states(4000)]
    assert stats.kstest(drawn, stats.gamma(shape, scale=1 / rate).cdf).pvalue > 0.001


def test_moments_of_normal_wishart() -> None:
    """E[L] = n W; var of L_ij = n (W_ij^2 + W_ii W_jj); E[m] = mean; cov m = W^-1 / (b (n - k - 1))."""
    count, n = 8000, GIVEN.degrees
    means, precisions = (np.array(x) for x in zip(*(draw_normal_wishart(GIVEN, s) for s in states(count))))  # noqa: B905
    diagonal = np.diag(SCALE)
    sd = np.sqrt(n * (SCALE**2 + np.outer(diagonal, diagonal)) / count)
    assert (np.abs(precisions.mean(axis=0) - n * SCALE) < 5 * sd).all()
    assert np.allclose(precisions.std(axis=0) / np.sqrt(count), sd, rtol=0.1)
    wanted = GIVEN.inverse_scale / (GIVEN.strength * (n - 3 - 1))
    assert (np.abs(means.mean(axis=0) - GIVEN.mean) < 5 * np.sqrt(np.diag(wanted) / count)).all()
    assert np.allclose(np.cov(means.T), wanted, atol=0.1 * np.diag(wanted).max())


def test_the_update_by_hand() -> None:
    """Rows 1 and 3, prior mean 0 worth 2 rows, W0 = 1: mean 4 / 4, W^-1 = 1 + 2 + (2 * 2 / 4) 4."""
    prior = NormalWishart(np.zeros(1), 2.0, np.eye(1), 1.0)
    sums, products = row_sums(np.zeros((2, 0)), np.array([1.0, 3.0]), np.arange(2), 0)
    result = update_prior(prior, 2, sums, products)
    assert (result.mean[0], result.strength, result.inverse_scale[0, 0], result.degrees) == (
        1,
        4,
        1 + 2 + 4,
        3,
    )
    nothing = update_prior(prior, 0, np.zeros(1), np.zeros((1, 1)))
    assert all(np.array_equal(a, b) for a, b in zip(nothing, prior, strict=True))
