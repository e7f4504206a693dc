"""Replay of logs in memory: the logged model, parts, intervals against full re-estimation, the lift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.auctions.auction_log import make_parts, match_probabilities, read_later_rows
from recbench_spark.auctions.auctions import check_auctions
from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.click_estimates import find_column
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.auctions.replay import LOGGED, Replayer, replay_models
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED as LOGGED_POINT
from recbench_spark.auctions.worlds import SLOTS, THETA, make_auctions
from recbench_spark.core.resampling import poisson_weights
from recbench_spark.errors import ConfigError, DataError

WORLD = AuctionWorld(auctions=3000, queries=200, zipf=0.5, seed=3)
POINT = vars(LOGGED_POINT)
OTHER = {**POINT, "main_slots": 2}
SETTINGS = ReplaySettings.model_validate(
    {"points": [POINT, OTHER], "logged": POINT, "bootstrap": {"replicates": 100}}
)


def make_log(world: AuctionWorld = WORLD, parts: int = 1, noise: float = 0.3) -> Any:
    generated = make_auctions(world)
    log = check_auctions(generated.log, AuctionLog(world=world), "log")
    predicted = pa.array(generated.predict(noise, 0))
    table = generated.log.select(["auction_id", "ad_id"]).append_column("probability", predicted)
    models = {"new": match_probabilities(log, table, "model"), LOGGED: log.probability_r}
    return make_parts(log, models, parts)


def values(rows: list[dict[str, Any]], metric: str, **wanted: Any) -> list[dict[str, Any]]:
    wanted = {"other": None, **wanted, "metric": metric}
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def test_the_logged_model_gives_back_the_logged_clicks() -> None:
    rows, checks = replay_models(make_log(), [LOGGED], SETTINGS)
    (check,) = [one for one in checks if one.check.startswith("logged model")]
    assert check.passed and check.observed < 1e-7
    (share,) = values(rows, "share_same_slot", exponent=1.0, main_slots=4)
    assert share["value"] == 1
    logged, replayed = values(rows, "clicks", unseen=None)[0], values(rows, "clicks", main_slots=4)[0]
    assert replayed["value"] == pytest.approx(logged["value"], rel=1e-7)


def test_minimum_and_shrinkage_do_not_make_the_log_look_like_one_of_another_mechanism() -> None:
    """The warning said that another point, exponent or quality made the log."""
    more = SETTINGS.model_copy(update={"minimum": 20, "shrinkage": 20.0})
    _, checks = replay_models(make_log(), ["new"], more)
    (check,) = [one for one in checks if one.check.startswith("logged model")]
    assert check.passed and check.observed < 1e-7


def test_revenue_is_in_the_unit_of_bids() -> None:
    """Two auctions of ads with bids 4 and 2 and probability 1/2; the floor is 1/2, each slot has a click.

    The first ad pays (2 x 1/2) / (1/2) = 2 and the second (1/2) / (1/2) = 1; both have the click rate 1/2.
    """
    rows = [
        {
            "auction_id": auction, "query_id": 1, "ad_id": ad, "bid": bid, "block": "main", "position": ad,
            "clicked": int(auction == ad), "probability": 0.5,
        }
        for auction in (1, 2)
        for ad, bid in ((1, 4.0), (2, 2.0))
    ]  # fmt: skip
    log = check_auctions(pa.Table.from_pylist(rows), AuctionLog(path="log"), "log")
    settings = ReplaySettings.model_validate({"points": [{"main_floor": 0.5, "main_slots": 2}]})
    replayed, _ = replay_models(make_parts(log, {"new": log.probability_r}, 1), ["new"], settings)
    assert [row["value"] for row in values(replayed, "revenue")] == [2 * 0.5 * 2 + 2 * 0.5 * 1]


def test_another_mechanism_does_not_give_them_back() -> None:
    wrong = SETTINGS.model_copy(update={"logged": SETTINGS.points[1]})
    _, checks = replay_models(make_log(), ["new"], wrong)
    (check,) = [one for one in checks if one.check.startswith("logged model")]
    assert not check.passed


@pytest.mark.parametrize("curve", ["conditional", "plain"])
def test_parts_change_no_bit(curve: str) -> None:
    settings = SETTINGS.model_copy(update={"curve": curve, "shrinkage": 2.0, "minimum": 3})
    first, *others = (replay_models(make_log(parts=parts), ["new"], settings)[0] for parts in (1, 3, 17))
    assert len(first) > 60 and all(rows == first for rows in others)


def test_a_replicate_is_near_its_full_re_estimation() -> None:
    """Each replicate's curve is fitted anew from re-weighed counts, and all estimates are made with it."""
    log = make_log(AuctionWorld(auctions=6000, queries=60, zipf=0.3, seed=5))
    replayer = Replayer.from_log(log, SETTINGS)
    (part,) = log.parts
    point = SETTINGS.list_points()[1]
    (replayed,) = replayer.replay("new", [point])
    quick = replayed.values("reference")["clicks"][1]
    order = part.auctions.rank(part.probabilities["new"], 1.0)
    auctions, boot = part.auctions, SETTINGS.bootstrap
    weights_qb = poisson_weights(auctions.key_q, 20, boot.seed).astype(np.int64)
    slow, set_s = [], replayer.clicks.set_s
    for weight_q in weights_qb.T:
        weight_g = np.repeat(weight_q, np.diff(auctions.pair_starts_q))[:, None]
        counts = ImpressionCounts(
            (auctions.counts.shown_gs * weight_g).astype(np.int32),
            (auctions.counts.clicks_gs * weight_g).astype(np.int32),
        )
        own = replace(auctions, counts=counts)
        theta = np.exp(
            position_curve.fit_curve(lambda curve, one=own: one.derive_curve(set_s, curve), set_s)
        )
        model = replace(replayer.clicks, theta_s=theta)
        rows = auctions.replay(order, part.probabilities["new"], point, model, log.facts.slots) / UNIT
        sums = (rows * weight_q[:, None]).sum(axis=0)
        unseen = sums[find_column("unseen", 8)] * own.count_slots().reference_s
        known = sums[find_column("same_clicks", 8)] + sums[find_column("other_clicks", 8)]
        slow.append(float(known[0] + unseen.sum()))
    error = np.abs(quick[:20] - slow)
    assert error.max() < 0.05 * quick.std(), "a Newton step is near the whole way"
    assert error.max() > 0, "and it is one step"


def test_few_queries_have_no_interval() -> None:
    world = AuctionWorld(auctions=500, queries=20, seed=1)
    rows, checks = replay_models(make_log(world), ["new"], SETTINGS)
    assert all(row.get("ci_low") is None for row in rows)
    (check,) = [one for one in checks if one.check == "effective queries"]
    assert check.observed < 20 and "too few" in check.detail


def test_the_curve_of_a_world_is_near_its_truth() -> None:
    rows, _ = replay_models(
        make_log(AuctionWorld(auctions=40_000, queries=200, zipf=0.5)), ["new"], SETTINGS
    )
    curve = values(rows, "position_curve")
    assert [row["slot"] for row in curve][3:5] == ["main 4", "side 1"]
    inside = sum(row["ci_low"] <= truth <= row["ci_high"] for row, truth in zip(curve, THETA, strict=True))
    assert inside >= 7 and abs(curve[1]["value"] - 0.72) < 0.05


def test_the_lift_of_a_new_model_lies_in_its_interval() -> None:
    """Ten worlds, in most of which the truth lies within a 95 % interval; the study counts 200."""
    inside = 0
    for seed in range(10):
        world = AuctionWorld(auctions=5_000, queries=100, zipf=0.5, seed=seed)
        generated = make_auctions(world)
        truth = generated.true_clicks(generated.predict(0.3, 0), LOGGED_POINT)
        rows, _ = replay_models(make_log(world), ["new"], SETTINGS)
        (row,) = values(rows, "clicks", main_slots=4, unseen="reference", model="new")
        inside += row["ci_low"] <= truth <= row["ci_high"]
        assert abs(row["value"] / truth - 1) < 0.1
    assert inside >= 7


def test_bounds_of_unseen_pairs_are_in_order() -> None:
    rows, _ = replay_models(make_log(), ["new"], SETTINGS)
    by_case = {
        unseen: values(rows, "clicks", main_slots=4, unseen=unseen, model="new")[0]["value"]
        for unseen in ("zero", "reference", "probability")
    }
    (share,) = values(rows, "share_unseen", main_slots=4, model="new")
    assert share["value"] > 0
    assert by_case["zero"] < min(by_case["reference"], by_case["probability"])


def test_page_views_without_participants_are_in_the_denominator() -> None:
    more = SETTINGS.model_copy(update={"page_views": 6000})
    log = make_log()
    (one,) = values(replay_models(log, ["new"], SETTINGS)[0], "click_yield", model=LOGGED)
    (two,) = values(replay_models(log, ["new"], more)[0], "click_yield", model=LOGGED)
    assert two["value"] == pytest.approx(one["value"] / 2) and two["n"] == 6000
    with pytest.raises(ConfigError, match="page_views 5: the log has 3,000 auctions"):
        replay_models(log, ["new"], SETTINGS.model_copy(update={"page_views": 5}))


def test_a_query_of_its_own_and_a_log_without_clicks() -> None:
    generated = make_auctions(AuctionWorld(auctions=1, queries=1))
    bare = generated.log.set_column(7, "clicked", pa.nulls(8, pa.int32()).fill_null(0))
    log = check_auctions(bare, AuctionLog(world=WORLD), "log")
    parts = make_parts(log, {"new": np.full(8, 0.5)}, 1)
    slots = parts.facts.slots
    settings = ReplaySettings.model_validate(
        {"points": [{"main_slots": slots.main, "side_slots": slots.side}], "bootstrap": {"replicates": 10}}
    )
    rows, _ = replay_models(parts, ["new"], settings)
    (row,) = values(rows, "clicks", unseen="reference")
    assert row["value"] == 0


def test_rows_that_models_were_fitted_to_are_left_out() -> None:
    generated = make_auctions(WORLD)
    log = check_auctions(generated.log, AuctionLog(world=WORLD), "log")
    half = int(np.median(log.time_r))
    later = read_later_rows(log, half)
    assert 0 < len(later.click_r) < len(log.click_r) and later.time_r.min() > half
    with pytest.raises(DataError, match="no auction of the log is later"):
        read_later_rows(log, int(log.time_r.max()))
    with pytest.raises(DataError, match="no event_time"):
        read_later_rows(replace(log, time_r=None), half)


def test_slots_are_those_of_the_world() -> None:
    assert make_log().facts.slots == SLOTS
