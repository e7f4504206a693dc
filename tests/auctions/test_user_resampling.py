"""A bootstrap over users: replicates against full re-estimation, parts, its number of users, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.auctions.auction_log import make_parts, match_probabilities
from recbench_spark.auctions.auctions import check_auctions
from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.click_estimates import PairTotals, estimate_clicks, find_column
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.auctions.replay import Replayer, replay_models
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED as LOGGED_POINT
from recbench_spark.auctions.worlds import SLOTS, make_auctions
from recbench_spark.core.resampling import poisson_weights
from recbench_spark.errors import ConfigError, DataError

OTHER = {**vars(LOGGED_POINT), "main_slots": 2}
SETTINGS = ReplaySettings.model_validate(
    {"points": [OTHER], "resample": "user", "bootstrap": {"replicates": 60}}
)


def make_log(world: AuctionWorld, users: int, parts: int = 1) -> Any:
    """A generated log in which each auction has one of some users by chance."""
    generated = make_auctions(world)
    auctions = generated.log.column("auction_id").to_numpy()
    user_a = np.random.default_rng(6).integers(users, size=world.auctions)
    table = generated.log.append_column("user_id", pa.array(user_a[auctions].astype(str)))
    log = check_auctions(table, AuctionLog(world=world), "log")
    predicted = pa.array(generated.predict(0.3, 0))
    model = table.select(["auction_id", "ad_id"]).append_column("probability", predicted)
    return make_parts(log, {"new": match_probabilities(log, model, "model")}, parts)


SMALL = AuctionWorld(auctions=1500, queries=100, zipf=0.5, seed=3)


def test_a_replicate_is_near_its_full_re_estimation() -> None:
    """Counts, curve and reference rates of each replicate are made anew from the drawn users' auctions.

    This is what exact derivatives approach; corrected ones have other replicates with a larger variance.
    """
    log = make_log(AuctionWorld(auctions=8000, queries=2, zipf=0.2, seed=5), 300)
    (part,) = log.parts
    auctions = part.auctions
    vars(auctions)["users"] = replace(auctions.users, corrected=False)
    replayer = Replayer.from_log(log, SETTINGS)
    (replayed,) = replayer.replay("new", SETTINGS.list_points())
    quick = replayed.values("reference")["click_yield"][1]
    boot, set_s = SETTINGS.bootstrap, replayer.clicks.set_s
    order = auctions.rank(part.probabilities["new"], 1.0)
    slow = []
    for weight_u in poisson_weights(auctions.users.key_u, 15, boot.seed).astype(np.int64).T:
        weight_r = weight_u[auctions.users.impressions[0]]
        shown_gs, clicks_gs = np.zeros((2, *auctions.counts.shown_gs.shape), np.int32)
        shown = auctions.slot_r >= 0
        places = (auctions.pair_r[shown], auctions.slot_r[shown])
        np.add.at(shown_gs, places, weight_r[shown].astype(np.int32))
        np.add.at(clicks_gs, places, (weight_r * auctions.click_r)[shown].astype(np.int32))
        counts = ImpressionCounts(shown_gs, clicks_gs)
        own = replace(auctions, counts=counts)
        theta = np.exp(
            position_curve.fit_curve(lambda curve, one=own: one.derive_curve(set_s, curve), set_s)
        )
        rows = estimate_rows(own, order, part.probabilities["new"], replace(replayer.clicks, theta_s=theta))
        sums = (rows / UNIT * weight_r[:, None]).sum(axis=0)
        unseen = sums[find_column("unseen", 8)] * own.count_slots().reference_s
        known = sums[find_column("same_clicks", 8)] + sums[find_column("other_clicks", 8)]
        slow.append(float(known[0] + unseen.sum()) / weight_r[auctions.starts_a[:-1]].sum())
    error = quick[:15] - slow
    assert np.abs(error).mean() < 0.15 * quick.std(), "the sums are linear, the estimates nearly so"
    assert np.corrcoef(quick[:15], slow)[0, 1] > 0.97


def estimate_rows(part: Any, order: Any, probability_r: Any, model: Any) -> Any:
    """Each participant is a group of its own."""
    slot_r, price_r = order.run(SETTINGS.list_points()[0], SLOTS)
    rows = (np.arange(len(slot_r)), part.pair_r, slot_r, price_r, probability_r)
    return estimate_clicks(rows, PairTotals.from_counts(part.counts, model), len(slot_r))


def test_parts_change_no_bit_and_users_are_counted_over_all_of_them() -> None:
    first, *others = (replay_models(make_log(SMALL, 90, parts), ["new"], SETTINGS) for parts in (1, 3, 17))
    assert all(rows == first[0] for rows, _ in others)
    (check,) = [one for one in first[1] if one.check == "effective users"]
    assert 60 < check.observed < 90 and {row["effective_queries"] for row in first[0]} == {check.observed}
    assert all("resample=user" in row["definition"] for row in first[0])
    assert any(row.get("ci_low") is not None for row in first[0])


def test_values_are_those_of_a_bootstrap_over_queries_and_intervals_are_not() -> None:
    log = make_log(SMALL, 90)
    by_user = replay_models(log, ["new"], SETTINGS)[0]
    by_query = replay_models(log, ["new"], SETTINGS.model_copy(update={"resample": "query"}))[0]
    assert [row["value"] for row in by_user] == [row["value"] for row in by_query]
    assert [row.get("stderr") for row in by_user] != [row.get("stderr") for row in by_query]


def test_few_users_have_no_interval() -> None:
    rows, checks = replay_models(make_log(SMALL, 20), ["new"], SETTINGS)
    assert all(row.get("ci_low") is None for row in rows)
    (check,) = [one for one in checks if one.check == "effective users"]
    assert "too few users" in check.detail


@pytest.mark.parametrize(
    ("users", "error", "words"),
    [
        (None, ConfigError, "the log has no column user_id"),
        (["a", None, "b", "b"], DataError, "1 rows of the log have no user_id"),
        (["a", "c", "b", "b"], DataError, "1 rows of the log have another user_id than the first row"),
    ],
)
def test_logs_without_users_are_refused(users: Any, error: type[Exception], words: str) -> None:
    rows = {
        "auction_id": [1, 1, 2, 2], "query_id": [1] * 4, "ad_id": [1, 2, 1, 2], "position": [1, 2, 1, 2],
        "clicked": [1, 0, 0, 1], **({"user_id": users} if users else {}),
    }  # fmt: skip
    log = check_auctions(pa.table(rows), AuctionLog(path="log"), "log")
    parts = make_parts(log, {"new": np.full(4, 0.5)}, 1)
    settings = ReplaySettings.model_validate({"points": [{"main_slots": 1}], "resample": "user"})
    with pytest.raises(error, match=words):
        replay_models(parts, ["new"], settings)
