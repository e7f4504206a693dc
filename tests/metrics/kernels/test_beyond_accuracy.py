"""Novelty, popularity, diversity and Gini: by hand, and against loops over entries and pairs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.metrics.kernels import beyond_accuracy
from tests.oracles import gini_from_counts

LISTS = st.lists(st.lists(st.integers(0, 5), max_size=6, unique=True), min_size=1, max_size=5)
KS = (1, 2, 3, 10)
COUNTS = np.array([8, 4, 2, 1, 0, 7])
VECTORS = np.array([[1.0, 0], [0, 2], [3, 3], [-1, 0], [0, 0], [1, 2]])


def make_lists(lists: list[list[int]]) -> Any:
    offsets = np.cumsum([0, *map(len, lists)])
    return offsets, np.array([item for items in lists for item in items], dtype=np.int64)


def count(offsets: Any, items: Any, head: int = 4) -> beyond_accuracy.ListedCounts:
    return beyond_accuracy.ListedCounts(offsets, COUNTS[items], 8, head)


def test_novelty_and_popularity_by_hand() -> None:
    """Items 0 to 3 belong to 8, 4, 2 and 1 of 8 users, item 4 to nobody."""
    offsets, items = make_lists([[0, 1, 4], [], [3]])
    result = beyond_accuracy.novelty(count(offsets, items), (1, 2, 3, 9))
    np.testing.assert_allclose(result, [[0, 1 / 2, 4 / 3, 4 / 3], [np.nan] * 4, [3] * 4])
    result = beyond_accuracy.mean_popularity(count(offsets, items), (1, 2, 3, 9))
    np.testing.assert_allclose(result, [[1, 3 / 4, 1 / 2, 1 / 2], [np.nan] * 4, [1 / 8] * 4])


def test_diversity_by_hand() -> None:
    """Items 0 and 1 at a right angle, 2 at 45 degrees to both; 3 opposite to 0; 4 has no vector."""
    offsets, items = make_lists([[0, 1, 2], [0, 3], [0], [4, 0], [0, -1]])
    result = beyond_accuracy.intra_list_diversity(offsets, items, VECTORS, (1, 2, 3))
    nan, half = math.nan, math.sqrt(0.5)
    expected = [[nan, 1, 1 - 2 * half / 3], [nan, 2, 2], [nan] * 3, [nan, 1, 1], [nan, 1, 1]]
    np.testing.assert_allclose(result, expected)


def test_an_empty_place_needs_no_vectors_beside_one() -> None:
    offsets, items = make_lists([[-2, -2, 0]])
    assert np.isnan(beyond_accuracy.intra_list_diversity(offsets, items, VECTORS[:1], (3,))).all()


def cosine(a: int, b: int) -> float:
    x, y = VECTORS[a], VECTORS[b]
    return float(x @ y / math.sqrt((x @ x) * (y @ y))) if (x @ x) * (y @ y) else 0.0


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@pytest.mark.parametrize("cells", [1, 7, 1 << 20])
@settings(max_examples=60)
@given(lists=LISTS)
def test_loops_agree_whatever_the_batch(cells: int, lists: list[list[int]]) -> None:
    offsets, items = make_lists(lists)
    bits = {i: -math.log2(max(int(COUNTS[i]), 1) / 8) for i in range(6)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beyond_accuracy, "CELLS", cells)
        result = {
            "novelty": beyond_accuracy.novelty(count(offsets, items), KS),
            "popularity": beyond_accuracy.mean_popularity(count(offsets, items), KS),
            "cosine": beyond_accuracy.intra_list_diversity(offsets, items, VECTORS, KS),
        }
    expected = {
        "novelty": [[mean([bits[i] for i in entries[:k]]) for k in KS] for entries in lists],
        "popularity": [[mean([COUNTS[i] / 8 for i in entries[:k]]) for k in KS] for entries in lists],
        "cosine": [[1 - mean(pairs(cosine, entries[:k])) for k in KS] for entries in lists],
    }
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, atol=1e-14, err_msg=name)


def pairs(similarity: Any, entries: list[int]) -> list[float]:
    return [similarity(a, b) for a, b in itertools.combinations(entries, 2)]


@given(LISTS)
def test_a_user_has_the_same_bits_in_any_company(lists: list[list[int]]) -> None:
    offsets, items = make_lists(lists)
    together = beyond_accuracy.novelty(count(offsets, items), KS)
    alone = [beyond_accuracy.novelty(count(*make_lists([entries])), KS)[0] for entries in lists]
    assert together.tobytes() == np.array(alone).tobytes()


def test_gini_by_hand() -> None:
    """1, 2, 3: sum of |differences| 8 over ordered pairs / (2 x 9 x mean 2) = 2/9."""
    assert gini_from_counts(np.array([3, 1, 2])) == pytest.approx(2 / 9)
    assert beyond_accuracy.gini([1, 2, 3], [1, 1, 1], 3) == pytest.approx(2 / 9)
    assert beyond_accuracy.gini([5], [4], 4) == 0.0, "all equally often"
    assert beyond_accuracy.gini([7], [1], 10) == pytest.approx(9 / 10), "one item has it all"
    assert math.isnan(beyond_accuracy.gini([], [], 10)) and math.isnan(beyond_accuracy.gini([0], [3], 3))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.randoms(), st.booleans())
def test_gini_is_half_the_mean_difference_over_the_mean(times: list[int], random: Any, zeros: bool) -> None:
    """G = sum_ab |t_a - t_b| / (2 n sum t); items never listed may be counted or left to n."""
    result = gini_from_counts(np.array(random.sample(times, len(times))))
    if not sum(times):
        assert math.isnan(result)
        return
    differences = sum(abs(a - b) for a in times for b in times)
    assert result == pytest.approx(float(Fraction(differences, 2 * len(times) * sum(times))), abs=1e-15)
    kept = [t for t in times if t or zeros]
    assert beyond_accuracy.gini(kept, [1] * len(kept), len(times)) == result
    assert 0 <= result <= 1 - 1 / len(times) + 1e-15


def test_gini_of_huge_counts_does_not_overflow() -> None:
    result = beyond_accuracy.gini([10**12, 1], [10**6, 10**9], 10**9 + 10**6)
    assert result == pytest.approx(10**9 / (10**9 + 10**6), rel=1e-8)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.randoms())
def test_entropy_is_that_of_a_drawn_entry(times: list[int], random: Any) -> None:
    """Each entry says log(total / its item's times)."""
    entries = [t for t in times for _ in range(t)]
    result = beyond_accuracy.entropy(times, [1] * len(times), len(times))
    assert result == pytest.approx(mean([math.log(len(entries) / t) for t in entries]), nan_ok=True)
    mixed = random.sample(times, len(times))
    assert beyond_accuracy.entropy(mixed, [1] * len(mixed), 99) == pytest.approx(result, abs=0, nan_ok=True)
