"""Clicks of replayed auctions: three cases in fractions, against plain Python, and derivatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recbench_spark.auctions.kernels.auction_parts import bootstrap_columns, split_rows
from recbench_spark.auctions.kernels.click_estimates import (
    ClickModel,
    EstimateRules,
    PairTotals,
    estimate_clicks,
    find_column,
)
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts
from tests.auctions.kernels.oracle import estimate
from tests.auctions.kernels.worlds import make_log, make_part, split_log, with_model

POINT = OperatingPoint(main_floor=0.125, main_slots=2, reserve=0.0625, side_slots=1)
OTHER = OperatingPoint(main_floor=0.0625, main_slots=1, reserve=0.03125, side_slots=1)
SLOTS = SlotCounts(2, 1)
MODEL = ClickModel(np.array([1, 0.5, 0.25]), np.zeros(3, np.int64), 2, EstimateRules())
COUNTS = ImpressionCounts(
    np.array([[4, 0, 8], [0, 0, 0], [2, 0, 0]], np.int32),
    np.array([[2, 0, 1], [0, 0, 0], [1, 0, 0]], np.int32),
)
"""Pair 0: CTR 1/2 and 1/8, K = 3, mass 4 + 8/4 = 6. Pair 1 was never shown. Pair 2: one slot."""


def one_ad(pair: int, slot: int, model: ClickModel = MODEL) -> dict[str, float]:
    first, place = np.zeros(1, np.int64), np.array([slot], np.int32)
    rows = (first, np.array([pair]), place, np.array([0.5]), np.array([0.25]))
    sums = estimate_clicks(rows, PairTotals.from_counts(COUNTS, model), 1)[0] / UNIT
    names = (
        "same_clicks",
        "other_clicks",
        "main_clicks",
        "unseen_probability",
        "revenue",
        "multi_slot_shown",
    )
    named = {name: sums[find_column(name, 3)][0] for name in names}
    columns = {name: sums[find_column(name, 3)].tolist() for name in ("unseen", "borrowed", "slope")}
    return {name: value for name, value in (named | columns).items() if np.any(value)}


def test_the_same_slot_has_the_own_rate() -> None:
    assert one_ad(0, 0) == {"same_clicks": 0.5, "main_clicks": 0.5, "revenue": 0.25, "multi_slot_shown": 1}


def test_another_slot_is_moved_along_the_curve() -> None:
    """theta_2 K / mass = 1/2 x 3/6 = 1/4; slopes: -1/4 x 4/6, + 1/4, -1/4 x 2/6."""
    rows = one_ad(0, 1)
    slope = rows.pop("slope")
    assert rows == {"other_clicks": 0.25, "main_clicks": 0.25, "revenue": 0.125, "multi_slot_shown": 1}
    assert slope == pytest.approx([-1 / 6, 1 / 4, -1 / 12], abs=1e-9)


def test_an_unseen_pair_takes_the_reference_of_its_slot() -> None:
    assert one_ad(1, 2) == {"unseen": [0, 0, 1], "unseen_probability": 0.25}


def test_a_set_that_does_not_meet_counts_as_unseen() -> None:
    apart = replace(MODEL, set_s=np.array([0, 0, 2]))
    assert one_ad(2, 2, apart) == {"unseen": [0, 0, 1], "unseen_probability": 0.25}
    assert one_ad(2, 1, apart)["other_clicks"] == 0.25


def test_a_minimum_count_falls_back_step_by_step() -> None:
    """Pair 0 has 4 impressions at slot 0 and 12 in all: 3 clicks over the mass 6."""
    assert one_ad(0, 0, replace(MODEL, rules=EstimateRules(minimum=5)))["other_clicks"] == 0.5
    assert "unseen" in one_ad(0, 0, replace(MODEL, rules=EstimateRules(minimum=13)))


def test_shrinkage_borrows_from_the_reference() -> None:
    """4 own impressions and 12 borrowed: a quarter of 1/2, and 3/4 of the reference rate."""
    rows = one_ad(0, 0, replace(MODEL, rules=EstimateRules(shrinkage=12)))
    assert rows["same_clicks"] == 0.125 and rows["borrowed"] == [0.75, 0, 0] and "unseen" not in rows


@pytest.mark.parametrize("sets", [[0, 0, 0], [0, 0, 2]])
@pytest.mark.parametrize("point", [POINT, OTHER])
def test_a_replay_gives_the_sums_of_plain_python(point: OperatingPoint, sets: list[int]) -> None:
    log = with_model(make_log(11, 200, POINT, 2, queries=40), 4)
    part, probability = make_part(log, 3)
    model = replace(MODEL, set_s=np.array(sets))
    rows = part.replay(part.rank(probability, point.exponent), probability, point, model, SLOTS)
    sums = rows.sum(axis=0) / UNIT
    expected = estimate(log, point, [1, 0.5, 0.25], 2, sets)
    totals = part.count_slots()
    unseen = sums[find_column("unseen", 3)]
    clicks = {
        "same_clicks": sums[find_column("same_clicks", 3)][0],
        "other_clicks": sums[find_column("other_clicks", 3)][0],
        "unseen_clicks": (unseen * totals.reference_s).sum(),
        "unseen_ads": unseen.sum(),
    }
    assert clicks["unseen_ads"] > 0 and clicks["other_clicks"] > 0
    revenue = sums[find_column("revenue", 3)][0]
    revenue += (sums[find_column("reference_revenue", 3)] * totals.reference_s).sum()
    multi = sums[find_column("multi_slot_clicks", 3)][0]
    multi += (sums[find_column("multi_slot_reference", 3)] * totals.reference_s).sum()
    for name, value in (clicks | {"revenue": revenue, "multi_slot_clicks": multi}).items():
        assert value == pytest.approx(float(expected[name]), abs=1e-6), name


@pytest.mark.parametrize("parts", [3, 17])
def test_parts_add_up_to_the_same_bits(parts: int) -> None:
    log = with_model(make_log(2, 300, POINT, 2, queries=40), 4)

    def total(piece):
        part, probability = make_part(piece, 3)
        rows = part.replay(part.rank(probability, 1.0), probability, OTHER, MODEL, SLOTS)
        return rows.sum(axis=0), bootstrap_columns(part.key_q, rows, 20, 7)

    whole, pieces = total(log), [total(piece) for piece in split_log(log, parts)]
    for n in (0, 1):
        assert (whole[n] == sum(piece[n] for piece in pieces)).all()


def test_a_large_query_is_bootstrapped_in_pieces() -> None:
    keys, rows = np.array([3, 4]), np.array([[1 << 50, 5], [7, -3]])
    more, pieces = split_rows(keys, rows)
    assert len(more) > 2 and set(more) == {3, 4} and (pieces.sum(axis=0) == rows.sum(axis=0)).all()
    weighted = bootstrap_columns(keys, rows, 8, 1)
    assert (
        weighted[:, 0] >> 50 == bootstrap_columns(keys[:1], np.array([[1 << 30]]), 8, 1)[:, 0] >> 30
    ).all()
