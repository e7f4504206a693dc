"""Short head and long tail: by hand as fractions, and against loops over entries."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.core.resampling import RATIO_SHIFT
from recbench_spark.metrics.kernels import item_groups as kernel
from recbench_spark.metrics.kernels.beyond_accuracy import ListedCounts
from recbench_spark.metrics.kernels.user_lists import CountedItems, HeadAndTail, UserLists
from recbench_spark.splits.popularity import find_head

COUNTS = [9, 5, 5, 2, 1, 0]
"""Training users of items 0 to 5: 22 rows, of which the head passes 17.6: items 0 to 2."""
KS = (1, 2, 5)


def test_the_head_by_hand() -> None:
    """9 + 5 + 5 = 19 > 17.6; both items of 5 stand together, also where one would do."""
    assert find_head(Counter(filter(None, COUNTS)), kernel.HEAD_SHARE) == 5
    assert find_head(Counter([9, 5, 5, 2, 1]), Fraction(1, 2)) == 5
    assert find_head(Counter([9, 5, 5, 2, 1]), Fraction(9, 22)) == 5, "more than the share, not as much"
    assert find_head(Counter([9, 5, 5, 2, 1]), Fraction(8, 22)) == 9
    assert find_head(Counter(), kernel.HEAD_SHARE) == 1


def count_lists(lists: list[list[int]], head: int = 5) -> ListedCounts:
    offsets = np.cumsum([0, *map(len, lists)])
    counts = [COUNTS[i] if i >= 0 else -1 for items in lists for i in items]
    return ListedCounts(offsets, np.array(counts, dtype=np.int64), 10, head)


def test_shares_of_the_tail_by_hand() -> None:
    lists = count_lists([[0, 3, 5], [], [4], [-1, 3]])
    nan = math.nan
    np.testing.assert_allclose(
        kernel.long_tail_share(lists, KS), [[0, 1 / 2, 2 / 3], [nan] * 3, [1] * 3, [nan, 1, 1]]
    )
    np.testing.assert_allclose(
        kernel.count_long_tail(lists, KS), [[0, 1, 2], [nan] * 3, [1] * 3, [nan, 1, 1]]
    )


def test_recall_of_head_and_tail_by_hand() -> None:
    """Head: 1 of 2 hits, tail: 1 of 3: the spread of 1/2 and 1/3 is (1/12) / (5/12)."""
    counts = kernel.GroupCounts(np.array([3.0, 2]), np.array([4.0, 4]), np.array([1.0, 1]))
    assert kernel.popularity_reo(counts) == pytest.approx(float(Fraction(-1, 5)), abs=1e-15)
    none = kernel.GroupCounts(np.array([3.0, 0]), np.array([4.0, 4]), np.array([1.0, 0]))
    assert math.isnan(kernel.popularity_reo(none)), "no relevant item of the head"
    missed = kernel.GroupCounts(np.array([3.0, 2]), np.array([4.0, 4]), np.array([0.0, 0]))
    assert math.isnan(kernel.popularity_reo(missed)), "nothing was found"
    alone = kernel.GroupCounts(np.array([3.0, 2]), np.array([4.0, 4]), np.array([0.0, 1]))
    assert kernel.popularity_reo(alone) == -1, "nothing of the tail"


WORLDS = st.lists(
    st.tuples(st.lists(st.integers(-1, 5), max_size=6, unique=True), st.sets(st.integers(0, 5))),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=200)
@given(WORLDS, st.integers(1, 10))
def test_loops_count_the_same(world: list[tuple[list[int], set[int]]], head: int) -> None:
    lists = count_lists([items for items, _ in world], head)
    hits = np.array([i in truth for items, truth in world for i in items], dtype=bool)
    bounds = np.cumsum([0, *(len(truth) for _, truth in world)])
    truth_counts = np.array([COUNTS[i] for _, truth in world for i in truth], dtype=np.int64)
    listed = CountedItems(lists.offsets, np.zeros_like(lists.count_n), lists.count_n)
    given_lists = UserLists(
        listed,
        hits,
        CountedItems(bounds, np.zeros_like(truth_counts), truth_counts),
        None,
        None,
        None,
        10,
        head,
    )
    kinds = ("relevant", "listed", "hits")
    result = kernel.count_groups(given_lists, HeadAndTail(head), kinds, KS)
    expected: Any = {kind: np.zeros((len(world), len(KS), 2)) for kind in kinds}
    for u, (items, truth) in enumerate(world):
        for c, k in enumerate(KS):
            for i in truth:
                expected["relevant"][u, c, int(COUNTS[i] >= head)] += 1
            for i in items[:k]:
                if i >= 0:
                    expected["listed"][u, c, int(COUNTS[i] >= head)] += 1
                    expected["hits"][u, c, int(COUNTS[i] >= head)] += i in truth
    for kind, counts in expected.items():
        whole = np.broadcast_to(result[kind], counts.shape)
        np.testing.assert_array_equal(whole / RATIO_SHIFT, counts)
