"""Folding in: by hand, against the equations written with dense matrices, and as a minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.one_fold_in import fold_in_explicit, fold_in_implicit


def test_one_factor_by_hand() -> None:
    """Items 1 and 2, rated 2 and 3, lambda 1/2: (1*2 + 2*3) / (1 + 4 + 2 * 1/2) = 8/6."""
    factors = np.array([[1.0], [2.0], [5.0]])
    result = fold_in_explicit(np.array([0, 2]), np.array([0, 1]), np.array([2.0, 3.0]), factors, 0.5)
    assert result[0, 0] == pytest.approx(8 / 6)
    # alpha 10, strength 1: c = 11; left 30 + 10 (1 + 4) + 2/2 = 81, right 11 (1 + 2) = 33.
    result = fold_in_implicit(np.array([0, 2]), np.array([0, 1]), np.ones(2), factors, 0.5, alpha=10.0)
    assert result[0, 0] == pytest.approx(33 / 81)


def test_a_user_without_items_gets_zeros() -> None:
    factors = np.ones((3, 2))
    offsets, items, ratings = np.array([0, 0, 1]), np.array([2]), np.array([4.0])
    for result in (
        fold_in_explicit(offsets, items, ratings, factors, 0.1),
        fold_in_implicit(offsets, items, ratings, factors, 0.1, alpha=1),
    ):
        assert not result[0].any()
        assert result[1].any()


def test_a_singular_system_gets_the_shortest_solution() -> None:
    """One rating, two factors, no ridge: x = r y / |y|^2."""
    result = fold_in_explicit(
        np.array([0, 1]), np.array([0]), np.array([10.0]), np.array([[1.0, 2.0]]), 0.0
    )
    assert result[0] == pytest.approx([2.0, 4.0])


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 8), st.floats(0.01, 3), st.floats(0, 40)
)
def test_equations_with_dense_matrices(seed: int, d: int, n_items: int, ridge: float, alpha: float) -> None:
    draw = np.random.default_rng(seed)
    factors = draw.normal(size=(n_items, d))
    rows = [draw.choice(n_items, draw.integers(0, n_items + 1), replace=False) for _ in range(4)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    items = np.concatenate(rows).astype(np.int64)
    ratings = draw.normal(size=len(items))
    of_explicit = fold_in_explicit(offsets, items, ratings, factors, ridge)
    of_implicit = fold_in_implicit(offsets, items, ratings, factors, ridge, alpha=alpha)
    for u, row in enumerate(rows):
        r = np.zeros(n_items)
        r[row] = ratings[offsets[u] : offsets[u + 1]]
        rated = np.isin(np.arange(n_items), row)
        if not len(row):
            continue
        y = factors[rated]
        left = y.T @ y + ridge * len(row) * np.eye(d)
        assert of_explicit[u] == pytest.approx(np.linalg.solve(left, y.T @ r[rated]))
        confidence, preference = np.diag(1 + alpha * np.abs(r)), (r > 0).astype(float)
        left = factors.T @ confidence @ factors + ridge * preference.sum() * np.eye(d)
        if np.linalg.matrix_rank(left) == d:
            wanted = np.linalg.solve(left, factors.T @ confidence @ preference)
            assert of_implicit[u] == pytest.approx(wanted, rel=1e-6, abs=1e-9)
