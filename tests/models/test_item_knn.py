"""Item-kNN similarities: by hand as fractions, and against a slow oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.models.item_knn import binary_matrix, cosine_neighbours

Histories = list[set[int]]


def neighbours(histories: Histories, n_items: int, k: int, block: range | None = None):
    """Rows (item, neighbour, weight) as the model finds them."""
    indptr = np.cumsum([0, *map(len, histories)])
    indices = np.array([item for history in histories for item in sorted(history)], np.int32)
    items_of_u = binary_matrix(indptr, indices, n_items)
    users_of_i = items_of_u.T.tocsr()
    n_i = np.diff(users_of_i.indptr)
    found = cosine_neighbours(users_of_i, items_of_u, n_i, block or range(n_items), k)
    return list(zip(found.items.tolist(), found.neighbours.tolist(), found.weights.tolist(), strict=True))


def oracle(histories: Histories, n_items: int, k: int):
    users = [{u for u, history in enumerate(histories) if i in history} for i in range(n_items)]
    rows = []
    for i in range(n_items):
        weights = {
            j: len(users[i] & users[j]) / math.sqrt(len(users[i]) * len(users[j]))
            for j in range(n_items)
            if j != i and users[i] & users[j]
        }
        best = sorted(weights, key=lambda j: (-weights[j], j))[:k]
        rows += [(i, j, weights[j]) for j in best]
    return rows


def test_by_hand() -> None:
    """Users {0, 1}, {0, 1, 2}, {0}: item 0 has 3 users, 1 has 2, 2 has 1."""
    found = neighbours([{0, 1}, {0, 1, 2}, {0}], 3, k=5)
    assert [(i, j) for i, j, _ in found] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 1), (2, 0)]
    weights = {(i, j): w for i, j, w in found}
    assert weights[0, 1] == weights[1, 0] == pytest.approx(2 / math.sqrt(3 * 2), rel=1e-15)
    assert weights[0, 2] == pytest.approx(1 / math.sqrt(3 * 1), rel=1e-15)
    assert weights[1, 2] == pytest.approx(1 / math.sqrt(2 * 1), rel=1e-15)


def test_equal_similarities_go_to_the_smaller_item() -> None:
    """Item 0 is together with 1, 2 and 3 once each; they are alike, so 1 is kept, then 2."""
    assert [j for i, j, _ in neighbours([{0, 1, 2, 3}], 4, k=2) if i == 0] == [1, 2]
    assert [j for i, j, _ in neighbours([{0, 1, 2, 3}], 4, k=2) if i == 1] == [0, 2]


def test_nothing_comes_of_nothing() -> None:
    assert neighbours([], 3, k=2) == []
    assert neighbours([{0}, {1}], 3, k=2) == []


@given(
    st.lists(st.sets(st.integers(0, 8)), max_size=12),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_equals_the_oracle_whatever_the_blocks(histories: Histories, k: int, step: int) -> None:
    wanted = oracle(histories, 9, k)
    blocks = (range(start, min(start + step, 9)) for start in range(0, 9, step))
    found = [row for block in blocks for row in neighbours(histories, 9, k, block)]
    assert [row[:2] for row in found] == [row[:2] for row in wanted]
    assert [row[2] for row in found] == pytest.approx([row[2] for row in wanted], rel=1e-15)
