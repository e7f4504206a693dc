"""The decomposition of a moved mean: cases by hand, and the parts always add up."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from recbench_spark.analyses.comparisons.kernels.decomposition import UNIT, split, whole_number
from recbench_spark.core.resampling import exact_sums
from recbench_spark.errors import DataError

GROUP = st.tuples(st.integers(0, 50), st.integers(0, 2**60)).map(lambda g: g if g[0] else (0, 0))
NIGHT = st.dictionaries(st.sampled_from("abcde"), GROUP, min_size=1).filter(
    lambda night: any(n for n, _ in night.values())
)


def night(**groups: tuple[int, Fraction]) -> Any:
    return {name: (n, int(mean * n / UNIT)) for name, (n, mean) in groups.items()}


def test_by_hand() -> None:
    """Heads .5 and tails .25 of 3 and 1 users; then 2 and 2 users with heads .5 and tails .375."""
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    before = night(head=(3, half), tail=(1, quarter))
    after = night(head=(2, half), tail=(2, Fraction(3, 8)))
    head, tail = split(before, after)
    centre = (Fraction(7, 16) + Fraction(7, 16)) / 2
    assert (head.within, tail.within) == (0, Fraction(1, 8) * Fraction(3, 8))
    assert head.mix == -quarter * (half - centre)
    assert tail.mix == quarter * (Fraction(5, 16) - centre)
    assert head.mix + tail.mix + tail.within == 0


@given(NIGHT, NIGHT)
def test_parts_add_up_exactly(before: Any, after: Any) -> None:
    changes = split(before, after)
    means = [
        Fraction(sum(s for _, s in n.values())) * UNIT / sum(u for u, _ in n.values())
        for n in (before, after)
    ]
    assert sum(c.mix + c.within for c in changes) == means[1] - means[0]
    assert sum(c.share_before for c in changes) == sum(c.share_after for c in changes) == 1
    mirrored = split(after, before)
    assert [(c.mix, c.within) for c in mirrored] == [(-c.mix, -c.within) for c in changes]


@given(NIGHT)
def test_nothing_changed_nothing_moved(same: Any) -> None:
    assert all(c.mix == c.within == 0 for c in split(same, same))


def test_same_means_change_by_mix_alone_and_same_shares_within_alone() -> None:
    quarter = Fraction(1, 4)
    mixed = split(night(a=(1, quarter), b=(3, 2 * quarter)), night(a=(3, quarter), b=(1, 2 * quarter)))
    assert sum(c.within for c in mixed) == 0 and sum(c.mix for c in mixed) == -Fraction(1, 8)
    better = split(night(a=(1, quarter), b=(1, quarter)), night(a=(2, 2 * quarter), b=(2, quarter)))
    assert sum(c.mix for c in better) == 0 and sum(c.within for c in better) == Fraction(1, 8)


def test_a_new_group_changes_the_mix() -> None:
    old, new = split(night(a=(2, Fraction(1, 4))), night(a=(2, Fraction(1, 4)), b=(2, Fraction(3, 4))))
    assert new.mean_before is None and new.within == old.within == 0
    assert old.mix + new.mix == Fraction(1, 4)


def test_sums_come_from_exact_sums() -> None:
    values = np.random.default_rng(0).random((50, 1))
    high, low = exact_sums(values)[0]
    total = whole_number(high, low) * UNIT
    assert float(total) == pytest.approx(values.sum(), rel=1e-15)
    with pytest.raises(DataError, match="no users"):
        split({"a": (1, 0)}, {"a": (0, 0)})
