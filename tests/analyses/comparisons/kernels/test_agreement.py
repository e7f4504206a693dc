"""Agreement with a true order: by hand, against loops over pairs, copies and users, and against scipy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.analyses.comparisons.kernels import agreement
from recbench_spark.analyses.comparisons.kernels.significance import dependent_correlations, kendall_tau_b

SCORES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=9
)


def count_tau(x: Any, y: Any) -> float:
    """Tau-b by its definition, pair by pair."""
    pairs = list(itertools.combinations(range(len(x)), 2))
    agreeing = sum(np.sign(x[a] - x[b]) * np.sign(y[a] - y[b]) for a, b in pairs)
    untied = [sum(v[a] != v[b] for a, b in pairs) for v in (x, y)]
    return agreeing / math.sqrt(untied[0] * untied[1]) if untied[0] * untied[1] else math.nan


@settings(max_examples=60)
@given(SCORES)
def test_a_weight_stands_for_copies(rows: list[tuple[int, int, int]]) -> None:
    x, y, weight = (np.array(column, float) for column in zip(*rows, strict=True))
    copies = np.repeat(np.arange(len(x)), weight.astype(int))
    made = agreement.compute_weighted_tau(x, y, np.stack([np.ones_like(weight), weight]))
    assert made[0] == pytest.approx(kendall_tau_b(x, y), abs=0, nan_ok=True)
    assert made[1] == pytest.approx(count_tau(x[copies], y[copies]), abs=1e-12, nan_ok=True)
    if not np.isnan(made[0]):
        assert made[0] == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)


def test_families_are_drawn_whole() -> None:
    family = ["mf", "mf", "popular", "bpr", "bpr", "bpr"]
    drawn = agreement.draw_families(family, 200, 3)
    assert np.array_equal(drawn[:, 0], drawn[:, 1]) and np.array_equal(drawn[:, 3], drawn[:, 5])
    assert (drawn[:, [0, 2, 3]].sum(axis=1) == 3).all()
    # A family is drawn 3 times of 3 with chance 1 / 27.
    assert 1 <= (drawn[:, 2] == 3).sum() <= 20
    assert np.array_equal(drawn, agreement.draw_families(family, 200, 3))


def test_a_lead_by_hand() -> None:
    """Five models; the method orders all as the truth does, the other one swaps the first two."""
    truth, own, other = np.arange(5.0), np.arange(5.0) * 2, np.array([1.0, 0, 2, 3, 4])
    missing = np.array([math.nan])
    lead = agreement.compare_with_truth(
        *(np.concatenate([values, missing]) for values in (own, other)), np.append(truth, 9.0)
    )
    assert (lead.tau, lead.other, lead.between, lead.models) == (1.0, 0.8, 0.8, 5)
    assert math.isnan(lead.t) and math.isnan(lead.p)  # of five models
    many = agreement.compare_with_truth(np.arange(12.0), np.roll(np.arange(12.0), 1), np.arange(12.0))
    assert (many.t, many.p) == dependent_correlations(many.tau, many.other, many.between, 12)
    assert agreement.compare_with_truth(missing, missing, missing).models == 0


def test_swaps_of_places_by_hand() -> None:
    """Three models, and the other method swaps the first two, so the lead is 1 - 1/3.

    To exchange the places of the third changes nothing; of one of the first two: both methods tie them and
    agree alike (lead 0); of both: the lead is -2/3. One of four ways has a lead of 2/3.
    """
    truth, own, other = np.array([1.0, 2, 3]), np.array([10.0, 20, 30]), np.array([2.0, 1, 3])
    assert agreement.swap_orders(own, other, truth) == 1 / 4
    assert agreement.swap_orders(other, own, truth) == 1.0
    gap = np.array([math.nan])
    longer = (np.concatenate([values, gap]) for values in (own, other, truth))
    assert agreement.swap_orders(*longer) == 1 / 4
    assert math.isnan(agreement.swap_orders(own, other, np.ones(3)))


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=2, max_size=6))
def test_swaps_of_places_are_counted_one_by_one(rows: list[tuple[int, int, int]]) -> None:
    own, other, truth = (np.array(column, float) for column in zip(*rows, strict=True))
    ranks = [scipy.stats.rankdata(values) for values in (own, other)]
    leads = []
    for swaps in itertools.product([False, True], repeat=len(rows)):
        sides = [np.where(swaps, ranks[1 - n], ranks[n]) for n in (0, 1)]
        leads.append(count_tau(sides[0], truth) - count_tau(sides[1], truth))
    wanted = math.nan if math.isnan(leads[0]) else float(np.mean(np.array(leads) >= leads[0] - 1e-9))
    assert agreement.swap_orders(own, other, truth) == pytest.approx(wanted, nan_ok=True)


def test_one_swap_among_six_models_says_little_and_tests_of_correlations_are_refused() -> None:
    truth, other = np.arange(6.0), np.array([1.0, 0, 2, 3, 4, 5])
    assert agreement.swap_orders(truth, other, truth) == 1 / 4
    assert math.isnan(agreement.compare_with_truth(truth, other, truth).p)


def test_many_models_are_swapped_by_drawn_ways() -> None:
    rng = np.random.default_rng(5)
    truth = rng.normal(size=30)
    near, far = truth + 0.1 * rng.normal(size=30), truth + 3 * rng.normal(size=30)
    p = agreement.swap_orders(near, far, truth)
    assert p == agreement.swap_orders(near, far, truth) and 1 / 4096 <= p < 0.01
    assert agreement.swap_orders(far, near, truth) > 0.99


@pytest.mark.full
def test_swaps_err_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(400, 3, 8))
    p = [agreement.swap_orders(truth + one, truth + other, truth) for truth, one, other in draws]
    assert 0.02 < float(np.mean(np.array(p) <= 0.05)) < 0.08


@pytest.mark.parametrize(
    ("other", "between", "models"), [(0.2, 0.9, 104), (0.6, 0.5, 104), (-0.1, 0.8, 30)]
)
def test_the_smallest_visible_lead_is_on_the_level(other: float, between: float, models: int) -> None:
    lead = agreement.find_visible_lead(other, between, models)
    assert dependent_correlations(other + lead, other, between, models)[1] == pytest.approx(0.05, abs=1e-6)
    assert dependent_correlations(other + lead * 0.99, other, between, models)[1] > 0.05


def test_no_lead_is_visible_among_four_models() -> None:
    assert math.isnan(agreement.find_visible_lead(0.99, 0.2, 4))


def test_halves_of_users_who_agree_and_of_users_who_do_not() -> None:
    alike = np.tile(np.arange(4.0), (10, 1))
    alike[3] = math.nan  # a user who does not count
    assert agreement.halve_users(alike, 5, 1).tolist() == [1.0] * 5
    two = np.array([[0.0, 1, 2], [2, 1, 0]])
    assert agreement.halve_users(two, 4, 1).tolist() == [-1.0] * 4


def test_halves_equal_a_loop_over_users() -> None:
    values = np.random.default_rng(5).random((9, 6))
    rng = np.random.default_rng(7)
    wanted = []
    for _ in range(3):
        order = rng.permutation(9)
        first, second = (
            [np.mean([values[u, m] for u in half]) for m in range(6)] for half in (order[:5], order[5:])
        )
        wanted.append(count_tau(first, second))
    np.testing.assert_allclose(agreement.halve_users(values, 3, 7), wanted, atol=1e-12)


def test_drawn_users_are_copies() -> None:
    values = np.random.default_rng(1).random((5, 3))
    values[2, 1] = math.nan
    weights = np.array([[1, 1, 1, 1, 1], [2, 0, 3, 0, 1], [0, 0, 4, 0, 0]])
    means = agreement.average_draws(values, weights)
    for row, weight in zip(means, weights, strict=True):
        copies = np.repeat(values, weight, axis=0)
        wanted = [copies[~np.isnan(copies[:, m]), m] for m in range(3)]
        assert row == pytest.approx([w.mean() if len(w) else math.nan for w in wanted], nan_ok=True)
    taus = agreement.compare_draws(means[:2], np.arange(6.0).reshape(2, 3))
    assert taus == pytest.approx([count_tau(row, np.arange(3)) for row in means[:2]])


def test_a_spread_by_hand() -> None:
    spread = agreement.summarise_spread(np.array([-1.0, 0, 1, 2, math.nan]))
    assert spread.below == 3 / 5 and spread.error == pytest.approx(math.sqrt(5 / 3))
    assert (spread.low, spread.high) == pytest.approx((-0.925, 1.925))
    assert spread.visible == pytest.approx((1.959964 + 0.841621) * math.sqrt(5 / 3), rel=1e-6)
    assert math.isnan(agreement.summarise_spread(np.array([1.0])).error)
