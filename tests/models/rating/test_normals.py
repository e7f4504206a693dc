"""Counter-based draws: distribution, independence of order, no draw twice."""

from __future__ import annotations

import numpy as np
from scipy import stats

from recbench_spark.models.rating.draws import as_unsigned, draw_state, normal_table, uniform


def test_normals_are_normal() -> None:
    drawn = normal_table((4000, 25), 2.0, seed=3, what=1, dtype=np.float64)
    assert stats.kstest(drawn.ravel() / 2, "norm").pvalue > 0.001
    correlations = np.corrcoef(drawn.T)[np.triu_indices(25, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 5 / np.sqrt(4000)


def test_a_row_is_the_same_whatever_the_table() -> None:
    small, large = normal_table((3, 5), 1.0, 7, 2), normal_table((50, 5), 1.0, 7, 2)
    assert (small == large[:3]).all()
    assert len(np.unique(large)) == large.size


def test_seed_purpose_step_and_row_each_change_a_draw() -> None:
    keys = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0), (-1, 0, 0, 0)]
    drawn = {uniform(np.uint64(draw_state(as_unsigned(seed), *rest)), 0) for seed, *rest in keys}
    assert len(drawn) == len(keys)
    assert all(0 < u < 1 for u in drawn)
