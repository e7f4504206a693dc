"""Places in an order: against Python's sort, with keys that fill 64 bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.splits.kernels.positions import last_per_group, mark_repeats, positions_from_end

KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**62, 2**62 + 1]),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 9), KEYS), max_size=40), st.integers(0, 2**32 - 1))
def test_places_are_those_of_a_sorted_list(rows: list[tuple[int, int]], seed: int) -> None:
    ties = np.random.default_rng(seed).permutation(len(rows))
    groups = np.array([group for group, _ in rows], np.int64)
    keys = np.array([key for _, key in rows], np.int64)
    order, position, n = positions_from_end(groups, keys, ties)
    sizes = Counter(groups.tolist())
    for place, row in enumerate(order):
        group, key = rows[row]
        after = sum(
            (g, k, t) > (group, key, ties[row]) and g == group for (g, k), t in zip(rows, ties, strict=True)
        )
        assert position[place] == after + 1
        assert n[place] == sizes[group]
    assert [(groups[r], keys[r], ties[r]) for r in order] == sorted(zip(groups, keys, ties, strict=True))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_repeated_pairs(pairs: list[tuple[int, int]]) -> None:
    counts = Counter(pairs)
    groups, values = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    assert mark_repeats(groups, values).tolist() == [counts[pair] > 1 for pair in pairs]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1)), max_size=20))
def test_the_last_of_each_group_and_those_that_share_that_place(rows: list[tuple[int, int]]) -> None:
    groups, keys = (np.array([row[n] for row in rows], np.int64) for n in range(2))
    best, equal = last_per_group(groups, keys)
    largest = {group: max(row for row in rows if row[0] == group) for group, _ in rows}
    assert [rows[place] for place in best] == [largest[group] for group in sorted(largest)]
    counts = Counter(rows)
    shared = [n for n, row in enumerate(rows) if row == largest[row[0]] and counts[row] > 1]
    assert sorted(equal.tolist()) == shared


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(0, 2)), max_size=30))
def test_rows_with_equal_keys_share_one_place(rows: list[tuple[int, int, int]]) -> None:
    groups, keys, ties = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    order, position, n = positions_from_end(groups, keys, ties, once=True)
    for place, row in enumerate(order):
        alike = {other for other in rows if other[0] == rows[row][0]}
        assert position[place] == 1 + sum(other > rows[row] for other in alike)
        assert n[place] == len(alike)
