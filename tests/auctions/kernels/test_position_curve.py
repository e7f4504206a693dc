"""The position curve: by hand, against the fixed-point equation, its sets, and its truth."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from recbench_spark.auctions.auction_log import add_sums
from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.counts import ImpressionCounts
from recbench_spark.auctions.kernels.mechanism import OperatingPoint
from tests.auctions.kernels.oracle import count, step_curve
from tests.auctions.kernels.worlds import make_log, make_part, split_log

POINT = OperatingPoint(main_slots=2, side_slots=1)


def pairs(shown: list[list[int]], clicks: list[list[int]]) -> ImpressionCounts:
    return ImpressionCounts(np.array(shown, np.int32), np.array(clicks, np.int32))


def fit(counts: ImpressionCounts) -> tuple[list[float], list[int]]:
    sets = position_curve.find_connected_sets(position_curve.find_links(counts))
    whole = np.array([0, len(counts.shown_gs)])

    def derive(log_theta):
        parts = position_curve.compute_derivatives(counts, whole, sets, log_theta)
        return position_curve.CurveDerivatives(parts.gradient[0], parts.information[0])

    return np.exp(position_curve.fit_curve(derive, sets)).tolist(), sets.tolist()


def test_one_pair_by_hand() -> None:
    """Rates 6 of 10 and 3 of 20: theta_2 = (3 / 20) / (6 / 10) = 1/4."""
    theta, _ = fit(pairs([[10, 20]], [[6, 3]]))
    assert theta == pytest.approx([1, 0.25], abs=1e-9)


def test_attractiveness_cancels() -> None:
    """The better ad stands above: plain rates give 18/1000 over 90/1000; both pairs say 1/2."""
    theta, _ = fit(pairs([[900, 100], [100, 900]], [[90, 5], [4, 18]]))
    assert theta == pytest.approx([1, 0.5], abs=1e-7)
    plain = position_curve.plain_curve(np.array([94 / 1000, 23 / 1000]))
    assert np.exp(plain)[1] == pytest.approx(23 / 94)


def test_expected_clicks_give_back_the_truth() -> None:
    truth = np.array([1, 0.75, 0.5, 0.125])
    shown = np.array([[64, 128, 8, 16], [8, 0, 256, 32], [80, 80, 80, 0], [0, 0, 0, 64]]) * 8
    clicks = shown * truth * np.array([0.5, 0.25, 0.5, 0.125])[:, None]
    assert (clicks == clicks.astype(int)).all()
    theta, _ = fit(pairs(shown.tolist(), clicks.astype(int).tolist()))
    assert theta == pytest.approx(truth.tolist(), abs=1e-9)


def test_the_curve_solves_the_fixed_point_equation() -> None:
    log = make_log(5, 800, POINT, 2)
    part, _ = make_part(log, 3)
    theta, sets = fit(part.counts)
    assert sets == [0, 0, 0]
    shown, clicks = count(log, 3)
    stepped = step_curve(shown, clicks, theta, [0, 1, 2])
    assert stepped == pytest.approx(theta, rel=1e-7)
    slow = [1.0, 1.0, 1.0]
    for _ in range(2000):
        slow = step_curve(shown, clicks, slow, [0, 1, 2])
    assert slow == pytest.approx(theta, rel=1e-6)


def test_sets_that_do_not_meet_have_each_their_own_first_slot() -> None:
    counts = pairs([[10, 10, 0, 0], [0, 0, 10, 30]], [[4, 2, 0, 0], [0, 0, 2, 3]])
    theta, sets = fit(counts)
    assert sets == [0, 0, 2, 2]
    assert theta == pytest.approx([1, 0.5, 1, 0.5])


def test_a_slot_without_clicks_is_a_set_of_its_own() -> None:
    """Its value would be 0: minus infinity in logarithms."""
    theta, sets = fit(pairs([[10, 10]], [[4, 0]]))
    assert sets == [0, 1] and theta == [1, 1]


def test_one_slot_only_has_the_value_one() -> None:
    assert fit(pairs([[10], [5]], [[4], [0]])) == ([1.0], [0])


@pytest.mark.parametrize("parts", [3, 17])
def test_parts_add_up_to_the_same_bits(parts: int) -> None:
    log, sets = make_log(5, 400, POINT, 2, queries=40), np.array([0, 0, 0])
    curve = np.log([1, 0.6, 0.3])
    whole = make_part(log, 3)[0].derive_curve(sets, curve)
    each = (make_part(one, 3)[0].derive_curve(sets, curve) for one in split_log(log, parts))
    gradient, information = reduce(add_sums, each)
    assert (whole.gradient == gradient).all() and (whole.information == information).all()


def test_the_curve_has_no_bias_where_three_of_ten_are_clicked() -> None:
    """The equation is linear in clicks, so that its expected value is 0 at the truth at any click rate.

    Sixty logs of 1,500 pairs with better ads above; the likelihood itself is right for rare clicks alone.
    """
    truth, draw, curves = np.array([1, 0.72, 0.55, 0.45]), np.random.default_rng(4), []
    for _ in range(60):
        rate = np.minimum(0.3 * np.exp(0.7 * draw.normal(size=1500) - 0.245), 0.95)
        order = np.argsort(np.argsort(-rate * np.exp(0.6 * draw.normal(size=1500)))) // 375
        near = np.abs(np.arange(4) - order[:, None]) <= 1
        shown = draw.poisson(1.5 + 4 * near).astype(np.int32)
        clicks = draw.binomial(shown, rate[:, None] * truth).astype(np.int32)
        curves.append(fit(ImpressionCounts(shown, clicks))[0])
    mean, error = np.mean(curves, axis=0), np.std(curves, axis=0) / np.sqrt(60)
    assert (np.abs(mean - truth) <= 3 * error).all() and error.max() < 0.004
