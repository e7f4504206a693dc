"""Generate auction logs whose true click rates are known.

Queries follow Zipf's law. A click on an ad at a slot has the probability attractiveness x theta_slot. The
logging policy ranks by bid x a noisy view of attractiveness; bids vary from auction to auction, so that an
ad is shown at several slots. One process makes the whole log in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recbench_spark.auctions.kernels.mechanism import AuctionOrder, OperatingPoint, SlotCounts
from recbench_spark.auctions.settings import AuctionWorld
from recbench_spark.core.arrays import Floats, Ints

THETA = np.array([1, 0.72, 0.55, 0.45, 0.16, 0.12, 0.09, 0.07])
"""True click rates at four slots on the main line and four in the sidebar, as shares of the first one."""

SLOTS = SlotCounts(4, 4)
LOGGED = OperatingPoint(exponent=1.0, main_floor=0.03, main_slots=4, reserve=0.005, side_slots=4)
"""The operating point at which worlds are logged."""

LOGGING_NOISE, BID_SPREAD = 1.0, 0.6
"""Spread of the logarithms of the logging policy's errors, and of bids."""

FIRST_TIME, STEP = 1_767_225_600_000_000, 1_000_000
"""Time of the first auction (2026-01-01) and time between two auctions, in microseconds (since 1970)."""


@dataclass(frozen=True, eq=False)
class GeneratedAuctions:
    """A generated log and its truth.

    Attributes:
        log: the log as a table.
        rates: true click rate of each row's ad at the first slot, (r,).
        starts_a: (a + 1,) each auction's first row.
        pair_r: (r,) each row's pair (query, ad); pairs: number of pairs; seed: the world's seed.
    """

    log: pa.Table
    rates: Floats
    starts_a: Ints
    pair_r: Ints
    seed: int
    pairs: int

    def predict(self, noise: float, number: int) -> Floats:
        """Return a model's probabilities with logarithms off by `noise`.

        `number`: which model.
        """
        draw = np.random.default_rng([abs(self.seed), 2, number])
        errors = draw.normal(size=self.pairs)[self.pair_r]
        return np.minimum(self.rates * np.exp(noise * errors - noise * noise / 2), 1.0)

    def true_clicks(self, probability: Floats, point: OperatingPoint) -> float:
        """Return a model's expected clicks at an operating point."""
        bid = self.log.column("bid").to_numpy()
        order = AuctionOrder.from_scores(self.starts_a, bid, probability, np.ones(len(bid)), point.exponent)
        slot_r, _ = order.run(point, SLOTS)
        return float((self.rates * np.append(THETA, 0.0)[slot_r]).sum())


def make_auctions(world: AuctionWorld) -> GeneratedAuctions:
    """Generate a log.

    Memory: some 150 bytes for each participant.
    """
    draw = np.random.default_rng([abs(world.seed), 1])
    share = np.arange(1, world.queries + 1) ** -float(world.zipf)
    query_a = draw.choice(world.queries, size=world.auctions, p=share / share.sum())
    each = min(world.participants, world.ads)
    ad_ax = np.sort(np.argsort(draw.random((world.auctions, world.ads)), axis=1)[:, :each], axis=1)
    pair_r = (query_a[:, None] * world.ads + ad_ax).ravel().astype(np.int64)
    rate_g = np.minimum(0.06 * np.exp(0.7 * draw.normal(size=world.queries * world.ads)), 0.6)
    seen_g = rate_g * np.exp(LOGGING_NOISE * draw.normal(size=len(rate_g)) - LOGGING_NOISE**2 / 2)
    bid_r = np.exp(BID_SPREAD * draw.normal(size=len(pair_r)))
    probability_r = np.minimum(seen_g[pair_r], 1.0)
    starts_a = np.arange(world.auctions + 1, dtype=np.int64) * each
    order = AuctionOrder.from_scores(starts_a, bid_r, probability_r, np.ones(len(bid_r)), LOGGED.exponent)
    slot_r, _ = order.run(LOGGED, SLOTS)
    chance_r = rate_g[pair_r] * np.append(THETA, 0.0)[slot_r]
    clicked_r = draw.random(len(pair_r)) < chance_r
    auction_r, is_main, lost_r = np.repeat(np.arange(world.auctions), each), slot_r < SLOTS.main, slot_r < 0
    position_r = np.where(is_main, slot_r, slot_r - SLOTS.main) + 1
    log = {
        "auction_id": auction_r,
        "query_id": pair_r // world.ads,
        "ad_id": pair_r % world.ads,
        "event_time": FIRST_TIME + STEP * auction_r,
        "bid": bid_r,
        "block": pa.array(np.where(is_main, "main", "side"), mask=lost_r),
        "position": pa.array(position_r.astype(np.int32), mask=lost_r),
        "clicked": clicked_r.astype(np.int32),
        "probability": probability_r,
    }
    return GeneratedAuctions(pa.table(log), rate_g[pair_r], starts_a, pair_r, world.seed, len(rate_g))
