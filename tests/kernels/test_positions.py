"""Places in an order: against Python's sort, with keys that fill 64 bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.kernels.positions import positions_from_end, repeated

KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**62, 2**62 + 1]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), KEYS), max_size=40), st.integers(0, 2**32 - 1))
def test_places_are_those_of_a_sorted_list(rows: list[tuple[int, int]], seed: int) -> None:
    ties = np.random.default_rng(seed).permutation(len(rows))
    groups = np.array([group for group, _ in rows], np.int64)
    keys = np.array([key for _, key in rows], np.int64)
    position, n = positions_from_end(groups, keys, ties)
    sizes = Counter(groups.tolist())
    for row, (group, key) in enumerate(rows):
        after = sum(
            (g, k, t) > (group, key, ties[row]) and g == group for (g, k), t in zip(rows, ties, strict=True)
        )
        assert position[row] == after + 1
        assert n[row] == sizes[group]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_repeated_pairs(pairs: list[tuple[int, int]]) -> None:
    counts = Counter(pairs)
    groups, values = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    assert repeated(groups, values).tolist() == [counts[pair] > 1 for pair in pairs]
