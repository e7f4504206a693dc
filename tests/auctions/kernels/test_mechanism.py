"""Slots and prices: by hand, and against plain Python."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from recbench_spark.auctions.kernels.mechanism import AuctionOrder, OperatingPoint, SlotCounts
from recbench_spark.errors import ConfigError
from tests.auctions.kernels.oracle import group, run_auction
from tests.auctions.kernels.worlds import make_log, make_part

POINT = OperatingPoint(main_floor=0.25, main_slots=2, reserve=0.0625, side_slots=2)


def run(
    bids: list[float], probabilities: list[float], point: OperatingPoint
) -> tuple[list[int], list[float]]:
    numbers = (np.array(bids), np.array(probabilities), np.ones(len(bids)))
    order = AuctionOrder.from_scores(np.array([0, len(bids)]), *numbers, point.exponent)
    slots, prices = order.run(point, SlotCounts(2, 2))
    return slots.tolist(), prices.tolist()


def test_prices_by_hand() -> None:
    """Scores 1/2, 3/8, 5/16, 1/16, 1/32: two on the main line, two in the sidebar, one below the reserve.

    The first pays 3/8 over 1/4; the second, last of its block, the floor 1/4 over 3/4; in the sidebar
    1/16 over 5/8, and 1/16 (the reserve) over 1/2.
    """
    slots, prices = run([2, 0.5, 0.5, 0.125, 0.25], [0.25, 0.75, 0.625, 0.5, 0.125], POINT)
    assert slots == [0, 1, 2, 3, -1]
    expected = [Fraction(3, 2), Fraction(1, 3), Fraction(1, 10), Fraction(1, 8), Fraction(0)]
    assert prices == [float(price) for price in expected]


def test_an_ad_below_the_floor_of_the_main_line_goes_to_the_sidebar() -> None:
    slots, prices = run([1, 1], [0.5, 0.125], POINT)
    assert slots == [0, 2] and prices == [0.5, 0.5]


def test_ties_go_to_the_smaller_ad_id_and_the_exponent_decides() -> None:
    assert run([1, 1, 1], [0.5, 0.5, 0.5], POINT)[0] == [0, 1, 2]
    assert run([1, 2], [0.5, 0.25], POINT)[0] == [0, 1]
    assert run([1, 2], [0.5, 0.25], replace(POINT, exponent=0))[0] == [1, 0]
    assert run([1, 2], [0.5, 0.25], replace(POINT, exponent=2))[0] == [0, 2]


def test_nobody_above_the_reserve() -> None:
    assert run([1, 1], [0.03125, 0.03125], POINT) == ([-1, -1], [0.0, 0.0])


def test_a_probability_of_zero_is_shown_without_a_floor_and_costs_nothing() -> None:
    assert run([1], [0.0], OperatingPoint()) == ([0], [0.0])


@pytest.mark.parametrize("exponent", [0, 1, 2])
def test_slots_and_prices_are_those_of_plain_python(exponent: int) -> None:
    point = replace(POINT, exponent=exponent)
    log = make_log(3, 300, POINT, 2)
    part, probability = make_part(log, 4)
    order = part.rank(probability, point.exponent)
    for one in (point, replace(point, main_slots=1), replace(point, main_floor=0.5, side_slots=1)):
        slots, prices = order.run(one, SlotCounts(2, 2))
        rows = sorted(log, key=lambda ad: (ad.query, ad.auction, ad.ad))
        outcomes = {auction: run_auction(ads, one, 2) for auction, ads in group(log).items()}
        expected = [outcomes[row.auction].get(row.ad, (-1, Fraction(0))) for row in rows]
        assert slots.tolist() == [slot for slot, _ in expected]
        np.testing.assert_allclose(prices, [float(price) for _, price in expected], rtol=1e-15)
        assert (prices <= part.bid_r * (1 + 1e-15)).all()


def test_a_slot_that_the_log_never_filled_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"main_slots=3: the log shows ads at 2"):
        SlotCounts(2, 2).check(replace(POINT, main_slots=3))
