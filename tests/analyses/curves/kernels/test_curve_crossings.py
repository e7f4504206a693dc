"""Crossings of curves: by hand, against every place tried, and on planted worlds with a known crossing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.studies.curves import CROSSING, make_world, try_world
from recbench_spark.analyses.curves.kernels.crossings import (
    CurveCrossing,
    SwitchPoint,
    adjust_shares,
    bootstrap_crossing,
    choose_switch,
    find_switch,
    switch_values,
)
from recbench_spark.metrics.kernels.learning_curves import point_weights


def test_a_crossing_by_hand() -> None:
    """A leads at the first point, B at the two others; and the other way round."""
    a, b = np.array([0.3, 0.3, 0.3]), np.array([0.1, 0.4, 0.5])
    assert find_switch(a, b, [1, 2, 3]) == SwitchPoint(False, 1, 1, pytest.approx(1.2 / 3))
    assert find_switch(b, a, [1, 2, 3]) == SwitchPoint(True, 1, 1, pytest.approx(1.2 / 3))
    # Weights 1, 3/2, 3/2 of the points 1, 2, 4.
    assert find_switch(a, b, [1, 2, 4]).value == pytest.approx((0.3 + 1.5 * 0.4 + 1.5 * 0.5) / 4)


def test_without_a_crossing_the_better_system_is_used_throughout() -> None:
    a, b = np.array([0.5, 0.5]), np.array([0.25, 0.25])
    assert find_switch(a, b, [1, 2]) == SwitchPoint(False, 2, 2, 0.5)
    assert find_switch(b, a, [1, 2]) == SwitchPoint(False, 0, 0, 0.5)
    assert find_switch(a, a, [1, 2]) == SwitchPoint(False, 0, 0, 0.5)


CURVES = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=1, max_size=6)


@settings(max_examples=100)
@given(CURVES, CURVES, st.booleans())
def test_the_switch_is_the_best_of_all_places_and_orders(first, second, gaps) -> None:  # type: ignore[no-untyped-def]
    length = min(len(first), len(second))
    a, b = np.array(first[:length]), np.array(second[:length])
    points = [2**at if gaps else at + 1 for at in range(length)]
    weights = point_weights(points)
    best = find_switch(a, b, points)
    tried = {
        (swapped, place): weights @ np.append(x[:place], y[place:]) / weights.sum()
        for swapped, x, y in ((False, a, b), (True, b, a))
        for place in range(length + 1)
    }
    assert best.value == pytest.approx(max(tried.values()), abs=1e-12)
    assert best.value == pytest.approx(tried[best.swapped, best.place], abs=1e-12)
    smaller = [value for (swapped, place), value in tried.items()
               if swapped == best.swapped and place < best.place]  # fmt: skip
    assert all(value < best.value for value in smaller)


def test_values_of_the_switching_system() -> None:
    a, b = np.array([[1.0, 2.0, 3.0]]), np.array([[4.0, 5.0, 6.0]])
    assert switch_values(a, b, SwitchPoint(False, 1, 1, 0.0)).tolist() == [[1.0, 5.0, 6.0]]
    assert switch_values(a, b, SwitchPoint(True, 1, 1, 0.0)).tolist() == [[4.0, 2.0, 3.0]]
    assert switch_values(a, b, SwitchPoint(False, 0, 0, 0.0)).tolist() == b.tolist()


def test_the_order_of_users_changes_no_bit_and_missing_values_leave_both_curves() -> None:
    world = make_world(3, lambda point: 0.005 * (7.5 - point))
    keys, first, second = world.keys_u[:200], world.first_ul[:200].copy(), world.second_ul[:200].copy()
    first[5, 3] = math.nan
    crossing = bootstrap_crossing(keys, first, second, range(1, 21), replicates=100, seed=7)
    order = np.random.default_rng(0).permutation(200)
    assert (
        bootstrap_crossing(keys[order], first[order], second[order], range(1, 21), replicates=100, seed=7)
        == crossing
    )
    second[5, 3] = 1e4
    assert bootstrap_crossing(keys, first, second, range(1, 21), replicates=100, seed=7) == crossing


def test_one_system_that_is_better_everywhere_shows_no_crossing() -> None:
    users = 50
    keys, noise = np.arange(users), np.random.default_rng(0).normal(size=(users, 5)) / 100
    crossing = bootstrap_crossing(keys, noise + 1, noise, range(1, 6), replicates=200)
    assert crossing.share_at_ends == 1.0 and crossing.sign_changes == 0
    assert (crossing.switch.place, crossing.low, crossing.high) == (5, 5, 5)
    assert crossing.describe() == "no crossing shown"


def test_shares_of_many_pairs_are_adjusted() -> None:
    switch = SwitchPoint(False, 1, 1, 0.5)
    crossings = [CurveCrossing(switch, 1, 2, 1, share) for share in (0.02, 0.001, 0.2)]
    assert [crossing.shown for crossing in crossings] == [True, True, False]
    np.testing.assert_allclose(adjust_shares(crossings), [0.04, 0.003, 0.2])
    assert crossings[0].describe() == "switch after 1 given ratings (interval 1 to 2)"


def test_the_best_pair_is_chosen_in_its_order() -> None:
    curves = {"flat": [0.5, 0.5, 0.5], "late": [0.1, 0.6, 0.9], "weak": [0.4, 0.4, 0.4]}
    values = {name: np.tile(curve, (4, 1)) for name, curve in curves.items()}
    first, then, switch = choose_switch(values, [1, 2, 3])
    assert (first, then, switch.place, switch.swapped) == ("flat", "late", 1, False)
    assert switch.value == pytest.approx(2.0 / 3)
    backwards = dict(reversed(values.items()))
    assert choose_switch(backwards, [1, 2, 3]) == (first, then, switch)
    switched = switch_values(values[first], values[then], switch)
    assert switched[0].tolist() == [0.5, 0.6, 0.9]


def test_planted_crossings_are_found_and_a_constant_lead_is_none() -> None:
    """Twelve seeds here; `jobs/studies/curves.py planted` tries 200 against the same bounds."""
    trials = [try_world(seed, replicates=200) for seed in range(12)]
    assert CROSSING == 7
    assert sum(trial.holds for trial in trials) >= 11
    assert np.mean([trial.width for trial in trials]) <= 5
    assert sum(trial.beats_both for trial in trials) >= 11
    assert sum(trial.refuses_none for trial in trials) >= 11
