"""Sums by user: those of queries where each query has one user, and derivatives against plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recbench_spark.auctions.kernels.auction_parts import AuctionPart
from recbench_spark.auctions.kernels.click_estimates import (
    ClickModel,
    EstimateRules,
    PairTotals,
    find_column,
)
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts
from recbench_spark.auctions.kernels.user_bootstrap import UserRows
from tests.auctions.kernels.worlds import make_log, make_part, with_model

POINT = OperatingPoint(main_floor=0.125, main_slots=2, reserve=0.0625, side_slots=1)
OTHER = OperatingPoint(main_floor=0.0625, main_slots=1, reserve=0.03125, side_slots=1)
SLOTS = SlotCounts(2, 1)
THETA, ONE_SET = np.array([1, 0.5, 0.25]), np.zeros(3, np.int64)
RULES = [EstimateRules(), EstimateRules(minimum=3, shrinkage=4.0)]


def add_users(part: AuctionPart, user_r: Any) -> AuctionPart:
    return replace(part, user_key_r=np.asarray(user_r, np.int64))


def replay(part: AuctionPart, probability: Any, model: ClickModel, by_user: bool) -> Any:
    order = part.rank(probability, 1.0)
    if not by_user:
        return part.replay(order, probability, OTHER, model, SLOTS) / UNIT
    slot_r, price_r = order.run(OTHER, SLOTS)
    users = replace(part.users, corrected=False)
    return users.add_model(PairTotals.from_counts(part.counts, model), slot_r, price_r, probability) / UNIT


@pytest.mark.parametrize("rules", RULES)
def test_a_user_for_each_query_has_the_sums_of_the_query(rules: EstimateRules) -> None:
    part, probability = make_part(with_model(make_log(7, 300, POINT, 2, queries=20), 3), 3)
    part = add_users(part, part.query_r)
    model = ClickModel(THETA, ONE_SET, 2, rules)
    by_user, by_query = (replay(part, probability, model, by_user) for by_user in (True, False))
    slots = {name: find_column(name, 3) for name in ("borrowed", "reference_revenue", "other_clicks")}
    slots |= {"same_clicks": find_column("same_clicks", 3), "revenue": find_column("revenue", 3)}
    if rules.shrinkage == 0:
        np.testing.assert_allclose(by_user, by_query, atol=1e-6)
    else:
        # With shrinkage an estimate is not linear in the weight of its query: own and borrowed change.
        changed = np.zeros(by_user.shape[1], bool)
        for place in slots.values():
            changed[place] = True
        for name in ("main_clicks", "multi_slot_clicks", "multi_slot_reference"):
            changed[find_column(name, 3)] = True
        np.testing.assert_allclose(by_user[:, ~changed], by_query[:, ~changed], atol=1e-6)
    log_by_user = replace(part.users, corrected=False).add_log(part.counts, ONE_SET, THETA)
    log = part.log_columns(ONE_SET, np.log(THETA))
    np.testing.assert_allclose(log_by_user / UNIT, log / UNIT, atol=1e-6)


def estimate(part: AuctionPart, shown_r: Any, weight_r: Any, rules: EstimateRules) -> dict[str, float]:
    """Clicks and borrowed weight from weighed rows, in plain Python; cases are those of whole counts."""
    n: Mapping[Any, Any] = defaultdict(lambda: np.zeros(3))
    k: Mapping[Any, Any] = defaultdict(lambda: np.zeros(3))
    for r, weight in enumerate(weight_r):
        if part.slot_r[r] >= 0:
            n[part.pair_r[r]][part.slot_r[r]] += weight
            k[part.pair_r[r]][part.slot_r[r]] += weight * part.click_r[r]
    totals: dict[str, float] = defaultdict(float)
    for r, weight in enumerate(weight_r):
        slot, pair = shown_r[r], part.pair_r[r]
        if slot < 0:
            continue
        whole = part.counts.shown_gs[pair]
        in_several = (whole > 0).sum() > 1
        if whole[slot] >= rules.minimum:
            trials, rate = n[pair][slot], k[pair][slot] / n[pair][slot]
        elif whole.sum() >= rules.minimum:
            trials, rate = n[pair].sum(), THETA[slot] * k[pair].sum() / (n[pair] * THETA).sum()
        else:
            totals["multi_slot_reference"] += weight if in_several else 0
            continue
        own = trials / (trials + rules.shrinkage)
        totals["multi_slot_reference"] += weight * (1 - own) if in_several else 0
        totals["clicks"] += weight * own * rate
        totals["main_clicks"] += weight * own * rate if slot < 2 else 0
        totals["multi_slot_clicks"] += weight * own * rate if in_several else 0
        totals["borrowed"] += weight * (1 - own)
    return totals


SUMS = ("main_clicks", "multi_slot_clicks", "multi_slot_reference", "borrowed")


@pytest.mark.parametrize("rules", RULES)
def test_a_user_adds_the_derivative_by_its_weight(rules: EstimateRules) -> None:
    part, probability = make_part(with_model(make_log(5, 120, POINT, 2, queries=9), 3), 3)
    user_a = np.random.default_rng(2).integers(15, size=len(part.starts_a) - 1)
    user_r = np.repeat(user_a, np.diff(part.starts_a))
    part = add_users(part, user_r)
    rows = replay(part, probability, ClickModel(THETA, ONE_SET, 2, rules), True)
    shown_r, _ = part.rank(probability, 1.0).run(OTHER, SLOTS)
    columns = {name: rows[:, find_column(name, 3)].sum(axis=1) for name in SUMS}
    columns["clicks"] = sum(rows[:, find_column(f"{name}_clicks", 3)][:, 0] for name in ("same", "other"))
    step = 1e-5
    for user in range(15):
        up, down = (estimate(part, shown_r, 1 + sign * step * (user_r == user), rules) for sign in (1, -1))
        for name, column in columns.items():
            slope = (up[name] - down[name]) / (2 * step)
            assert column[user] == pytest.approx(slope, abs=1e-5), (name, user)
    assert np.abs(columns["clicks"]).max() > 0.1
    assert np.abs(columns["clicks"] - columns["multi_slot_clicks"]).max() > 0, "some pairs have one slot"


def test_a_user_adds_the_derivative_of_the_curve() -> None:
    """The gradient of the likelihood by weighed counts, at any curve, by central differences."""
    part, _ = make_part(make_log(5, 150, POINT, 2, queries=3), 3)
    user_a = np.random.default_rng(4).integers(10, size=len(part.starts_a) - 1)
    user_r = np.repeat(user_a, np.diff(part.starts_a))
    part = add_users(part, user_r)
    rows = replace(part.users, corrected=False).add_log(part.counts, ONE_SET, THETA) / UNIT

    def gradient(weight_r: Any) -> Any:
        n, k = np.zeros((2, len(part.counts.shown_gs), 3))
        shown = part.slot_r >= 0
        np.add.at(n, (part.pair_r[shown], part.slot_r[shown]), weight_r[shown])
        np.add.at(k, (part.pair_r[shown], part.slot_r[shown]), (weight_r * part.click_r)[shown])
        share = n * THETA / np.maximum((n * THETA).sum(axis=1), 1e-300)[:, None]
        return (k - k.sum(axis=1)[:, None] * share).sum(axis=0)

    for user in range(10):
        up, down = (gradient(1 + sign * 1e-5 * (user_r == user)) for sign in (1, -1))
        np.testing.assert_allclose(rows[user, 8:11], (up - down) / 2e-5, atol=1e-5)


def test_corrected_sums_have_the_variance_of_the_estimate_where_cells_are_thin() -> None:
    """A pair stood twice at slot 1 and 38 times at slot 2, for a user each; the model shows it at slot 1.

    The rate there has the variance p (1 - p) / 2 of two impressions; exact derivatives give half of it.
    """
    draw, sums = np.random.default_rng(1), {True: [], False: []}
    rate = 0.3 * THETA[:2]
    shown = np.array([[2, 38, 0]], np.int32)
    slot_r = np.repeat([0, 1], [2, 38]).astype(np.int32)
    zeros = np.zeros(40, np.int64)
    for _ in range(400):
        click_r = (draw.random(40) < rate[slot_r]).astype(np.int32)
        clicks = np.array([[click_r[:2].sum(), click_r[2:].sum(), 0]], np.int32)
        users = UserRows(np.arange(40), (np.arange(40), zeros, slot_r, click_r), np.ones(40, np.int64))
        replayed = np.where(np.arange(40) == 39, 0, -1).astype(np.int32)
        model = ClickModel(THETA, ONE_SET, 2, EstimateRules())
        for corrected in (True, False):
            rows = replace(users, corrected=corrected).add_model(
                PairTotals.from_counts(ImpressionCounts(shown, clicks), model),
                *(replayed, np.zeros(40), np.zeros(40)),
            )
            own = rows[:39, find_column("same_clicks", 3)][:, 0] / UNIT
            sums[corrected].append(float((own**2).sum()))
    variance = 0.3 * 0.7 / 2
    assert np.mean(sums[True]) == pytest.approx(variance, rel=0.1)
    assert np.mean(sums[False]) == pytest.approx(variance / 2, rel=0.15)
