"""Strata by hand, over random histograms, and those of Coat and MovieLens."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from recbench_spark.analyses.exposure.kernels import propensities
from recbench_spark.analyses.exposure.kernels.power_law import fit
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.errors import ConfigError, DataError

KINDS: Any = ("equal_width", "equal_mass", "equal_count")
ITEMS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=2, max_size=40)


def test_three_kinds_by_hand() -> None:
    """Propensities 1, 2, 3, 9 of 4, 3, 2, 1 items with 4, 6, 6, 16 interactions."""
    rows = (np.array([1, 2, 3, 9]), np.array([4, 3, 2, 1]), np.array([4, 6, 6, 16]))
    width = strata.cut("equal_width", 2, *rows)
    assert width.edges.tolist() == [5] and width.items.tolist() == [9, 1]
    mass = strata.cut("equal_mass", 2, *rows)
    assert mass.edges.tolist() == [3] and mass.interactions.tolist() == [16, 16]
    count = strata.cut("equal_count", 2, *rows)
    assert count.edges.tolist() == [1] and count.items.tolist() == [4, 6]
    assert count.assign(np.array([1, 2, 9])).tolist() == [0, 1, 1] and count.labels == ["Q1", "Q2"]


@settings(max_examples=200)
@given(ITEMS, st.integers(2, 10), st.sampled_from(KINDS))
def test_a_histogram_gives_the_strata_of_its_items(items: list[Any], n_strata: int, kind: Any) -> None:
    value, mass = (np.array(column) for column in zip(*items, strict=True))
    if len(set(value.tolist())) < 2:
        return
    one = np.ones_like(value)
    result = strata.cut(kind, n_strata, value / 7, one, mass)
    known, back = np.unique(value / 7, return_inverse=True)
    grouped = strata.cut(kind, n_strata, known, np.bincount(back), np.bincount(back, weights=mass))
    assert (result.edges == grouped.edges).all() and (np.diff(result.edges) > 0).all()
    stratum = result.assign(value / 7)
    size = len(result.edges) + 1
    assert np.bincount(stratum, minlength=size).tolist() == result.items.tolist()
    assert np.bincount(stratum, weights=mass, minlength=size).tolist() == result.interactions.tolist()
    assert size <= n_strata and (kind != "equal_width" or size == n_strata)
    assert kind == "equal_width" or (result.items > 0).all()


def test_equal_count_and_mass_are_equal_where_items_are_many() -> None:
    value = np.random.default_rng(0).random(5000)
    mass = np.random.default_rng(1).integers(1, 5, 5000)
    count = strata.cut("equal_count", 10, value, np.ones(5000), mass)
    assert (count.items == 500).all()
    by_mass = strata.cut("equal_mass", 10, value, np.ones(5000), mass)
    assert np.abs(by_mass.interactions / mass.sum() - 0.1).max() < 0.001


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=30), st.floats(1e-12, 1e12))
def test_rounding_up_keeps_order_and_sides_of_an_edge(values: list[float], edge: float) -> None:
    value = np.sort(np.array(values))
    result = strata.round_propensities(value)
    assert (np.diff(result) >= 0).all() and (result >= value).all()
    assert (result <= value * (1 + 2.0**-10)).all() and (strata.round_propensities(result) == result).all()
    edges = strata.round_propensities(np.array([edge]))
    assert (strata.assign(value, edges) == strata.assign(result, edges)).all()


def test_rounding_up_by_hand() -> None:
    """Ten bits after the first one: 1, 1 + 1/1024, 1 + 2/1024 stand; what lies between goes up."""
    step = 2.0**-10
    value = np.array([1.0, 1 + step, 1 + step / 2, 1 + step / 1024, 2 - step / 2, 3 + step])
    assert strata.round_propensities(value).tolist() == [
        1.0,
        1 + step,
        1 + step,
        1 + step,
        2.0,
        3 + 2 * step,
    ]
    assert strata.round_propensities(np.array([1.25, 1.3]), 2).tolist() == [1.25, 1.5]


def test_two_to_ten_strata_of_at_least_two_propensities() -> None:
    rows = (np.arange(1.0, 21.0), np.ones(20), np.ones(20))
    assert [len(strata.cut("equal_count", n, *rows).items) for n in (2, 10)] == [2, 10]
    for n in (1, 11):
        with pytest.raises(ConfigError, match=f"{n} strata.*ask for 2 to 10|{n} strata"):
            strata.cut("equal_count", n, *rows)
    two = strata.cut("equal_mass", 2, np.array([1.0, 2.0]), np.ones(2), np.ones(2))
    assert two.edges.tolist() == [1.0]
    with pytest.raises(DataError):
        strata.cut("equal_mass", 2, np.array([1.0, np.inf]), np.ones(2), np.ones(2))


def test_an_interval_that_ends_at_0_agrees() -> None:
    assert strata.propose([2, 3], [0.0], [0.1]) == 2 == strata.propose([2, 3], [-0.1], [0.0])
    assert strata.propose([2, 3], [0.1], [1.5]) is None and strata.propose([2, 3], [-0.5], [-0.1]) is None


def test_the_proposed_number_is_the_first_that_agrees_with_the_next_two() -> None:
    low, high = [0.1, -0.1, 0.2, -0.1, -0.1, 0.3], [0.2, 0.1, 0.3, 0.1, 0.1, 0.4]
    assert strata.propose(range(2, 9), low, high) == 5
    assert strata.propose([2, 3], [-0.1], [0.1]) == 2
    assert strata.propose([2, 3], [0.1], [0.2]) is None


def test_wrong_numbers_and_equal_propensities_are_refused() -> None:
    with pytest.raises(ConfigError, match="11 strata"):
        strata.cut("equal_mass", 11, np.arange(3), np.ones(3), np.ones(3))
    with pytest.raises(DataError, match="alike"):
        strata.cut("equal_mass", 2, np.ones(3), np.ones(3), np.ones(3))


@pytest.mark.data
def test_coat_and_movielens_as_published(shared_data: Path) -> None:
    coat = (np.loadtxt(shared_data / "coat" / "train.ascii") > 0).sum(axis=0)
    with gzip.open(shared_data / "ml-1m" / "ratings.tsv.gz", "rt") as file:
        movies = np.bincount(np.loadtxt(file, skiprows=1, usecols=1, dtype=np.int64))
    upper = {}
    for counts, name in ((coat, "coat"), (movies, "ml")):
        count, items = np.unique(counts[counts > 0], return_counts=True)
        law = fit(count, items)
        for method in ("power_above_xmin", "power_law"):
            value = propensities.POWERS[method](count, law)
            cut = strata.cut("equal_width", 2, value, items, items * count)
            upper[name, method] = cut.items[1], cut.interactions.tolist()
        value = propensities.power_above_xmin(counts, law)
        cut = strata.cut(
            "equal_width", 2, value[counts > 0], counts[counts > 0] * 0 + 1, counts[counts > 0]
        )
        members = np.flatnonzero(cut.assign(value) == 1).tolist()
    assert members == [260, 1196, 1210, 2858]
    assert [n for n, _ in upper.values()] == [5, 8, 4, 10]
    assert upper["coat", "power_above_xmin"][1] == [6554, 406]
    assert upper["ml", "power_above_xmin"][1] == [987917, 12292]
