"""Gaps between groups: by hand, and bounds that hold the truth."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from recbench_spark.metrics import group_gaps as kernel


def test_gaps_by_hand() -> None:
    """Means .1, .3, .6: differences .2, .5, .3; the errors are so small that all are certain."""
    gaps = kernel.measure_gaps([0.3, 0.1, 0.6], [1e-6] * 3, 0.95, 1.0)
    assert gaps.mad[0] == pytest.approx(1 / 3) and gaps.gap[0] == pytest.approx(0.5)
    assert (gaps.worst, gaps.best) == (1, 2)
    turned = kernel.measure_gaps([0.3, 0.1, 0.6], [1e-6] * 3, 0.95, -1.0)
    assert (turned.worst, turned.best) == (2, 1) and turned.gap == gaps.gap


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_bounds_of_gaps_hold_the_truth(spread: float) -> None:
    """Also where no two groups differ: then the lower bounds are 0 in 95 % of the worlds."""
    rng, held, truth_g = np.random.default_rng(6), 0, spread * np.arange(5)
    size = [abs(one - other) for one, other in combinations(truth_g, 2)]
    for _ in range(600):
        gaps = kernel.measure_gaps(truth_g + 0.01 * rng.standard_normal(5), [0.01] * 5, 0.95, 1.0)
        sides = ((gaps.mad, np.mean(size)), (gaps.gap, np.max(size)))
        held += all(low <= truth <= high for (_, low, high), truth in sides)
    assert held / 600 > 0.93
