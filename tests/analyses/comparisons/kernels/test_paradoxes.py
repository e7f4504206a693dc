"""Simpson's paradox: the two worked examples, and the smallest set that turns a verdict."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.analyses.comparisons.kernels import paradoxes
from recbench_spark.analyses.comparisons.kernels.paradoxes import KINDS, Crossing
from tests.oracles import smallest_flip

VALUES = st.lists(st.integers(-12, 12), min_size=1, max_size=9)


def kind(whole: float, stratified: float, strata: list[float]) -> str:
    result = paradoxes.kinds(np.array([whole]), np.array([stratified]), np.array([strata]))
    return KINDS[int(result[0])]


def test_kidney_stones() -> None:
    """A wins among small and among large stones, and loses in the whole."""
    hits_a, rows_a = np.array([81, 192]), np.array([87, 263])
    hits_b, rows_b = np.array([234, 55]), np.array([270, 80])
    sizes = rows_a + rows_b
    a, b = (np.average(rates, weights=sizes) for rates in (hits_a / rows_a, hits_b / rows_b))
    assert round(a, 4) == 0.8325 and round(b, 4) == 0.7789
    whole = hits_a.sum() / rows_a.sum() - hits_b.sum() / rows_b.sum()
    assert whole == pytest.approx(273 / 350 - 289 / 350)
    assert kind(whole, a - b, list(hits_a / rows_a - hits_b / rows_b)) == "full"
    rounded = [
        np.average([0.93, 0.73], weights=[0.51, 0.49]),
        np.average([0.87, 0.69], weights=[0.51, 0.49]),
    ]
    assert [round(rate, 3) for rate in rounded] == [0.832, 0.782]


def test_recommenders() -> None:
    """BPR leads in the whole and in Q2; WMF in Q1, which holds 99 % of the feedback."""
    weight = np.array([0.99, 0.01])
    bpr, wmf = np.array([0.339, 0.695]), np.array([0.350, 0.418])
    values = [np.average(rates, weights=weight) for rates in (bpr, wmf)]
    assert [round(value, 3) for value in values] == [0.343, 0.351]
    assert kind(0.3720 - 0.3711, values[0] - values[1], list(bpr - wmf)) == "reversal"
    share = paradoxes.opposing_share(np.array([0.1]), (bpr - wmf)[None], weight[None])
    assert share[0] == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("whole", "stratified", "strata", "expected"),
    [
        (1, 1, [1, 2], "none"),
        (1, 1, [1, -2], "partial"),
        (1, -1, [1, -2], "reversal"),
        (-1, 1, [2, 2], "full"),
        (1, -1, [-1, math.nan], "full"),
        (1, 1, [math.nan, math.nan], "none"),
        (0, 1, [1, -1], "none"),
        (1, 0, [0, 1], "none"),
    ],
)
def test_kinds(whole: float, stratified: float, strata: list[float], expected: str) -> None:
    assert kind(whole, stratified, strata) == expected
    assert kind(-whole, -stratified, [-s for s in strata]) == expected


def test_certain_needs_both_intervals_on_opposite_sides() -> None:
    low, high = np.array([0.1, 0.1, -0.1, -0.3]), np.array([0.2, 0.2, 0.2, -0.1])
    result = paradoxes.intervals_oppose(
        low, high, np.array([-0.3, -0.3, -0.3, 0.1]), np.array([-0.1, 0.1, -0.1, 0.2])
    )
    assert result.tolist() == [True, False, False, True]


@settings(max_examples=300)
@given(VALUES)
def test_the_smallest_flip_equals_a_search_over_all_sets(values: list[int]) -> None:
    total, result = sum(values), smallest_flip(np.array(values) / 8)
    sizes = [
        len(gone)
        for n in range(len(values) + 1)
        for gone in itertools.combinations(range(len(values)), n)
        if total * (total - sum(values[i] for i in gone)) < 0
    ]
    assert (result.count if result else None) == (min(sizes) if sizes else None)
    if result:
        sign = int(np.sign(total))
        above = [v * sign / 8 for v in values if v * sign / 8 > result.threshold]
        assert len(above) + result.at_threshold == result.count
        assert sum(above) + result.at_threshold * result.threshold == result.removed
        assert result.removed > result.total == abs(total) / 8


def distribute(contribution: Any) -> Any:
    """The passes that a cluster would run, with groups made by a dictionary."""
    value = paradoxes.to_fixed_point(contribution)
    goal = int(value.sum())
    directed = value * np.sign(goal)
    inside, result = directed[directed > 0], None
    for before, shift in zip((None, *paradoxes.SHIFTS[:-1]), paradoxes.SHIFTS, strict=True):
        if result is not None:
            inside = inside[paradoxes.buckets(inside, before) == result.bucket]
        groups: Any = defaultdict(lambda: [0, 0])
        for v, b in zip(inside.tolist(), paradoxes.buckets(inside, shift).tolist(), strict=True):
            groups[b][0] += 1
            groups[b][1] += v
        assert len(groups) <= 1 << 14
        counts, sums = ([g[i] for g in groups.values()] for i in range(2))
        result = paradoxes.crossing(np.array(list(groups)), counts, sums, abs(goal), result)
        if result is None:
            return None
    return paradoxes.resolve(result, abs(goal))


@settings(max_examples=100)
@given(st.lists(st.integers(-40, 50), min_size=1, max_size=60), st.sampled_from([1.0, 1 / 3, 1e-4, 777.7]))
def test_passes_over_buckets_find_the_same_set(values: list[int], unit: float) -> None:
    contribution = np.array(values) * unit
    if paradoxes.to_fixed_point(contribution).sum():
        assert distribute(contribution) == smallest_flip(contribution)


def test_a_long_list_in_four_passes() -> None:
    contribution = np.random.default_rng(0).standard_t(2, 20_000) + 0.05
    flip = smallest_flip(contribution)
    assert flip is not None and distribute(contribution) == flip and flip.count < 200


def test_nothing_to_turn() -> None:
    assert smallest_flip(np.array([1.0, -1.0])) is None
    assert smallest_flip(np.array([0.5, 0.25])) is None
    assert paradoxes.crossing(np.array([3]), [1], [5], 5) is None
    assert paradoxes.crossing(np.array([3, 4]), [1, 2], [5, 9], 10) == Crossing(3, 2, 9)
