"""Call of each kernel for auctions, to compile it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recbench_spark.auctions.kernels.auction_parts import AuctionPart, AuctionRows
from recbench_spark.auctions.kernels.click_estimates import ClickModel, EstimateRules, PairTotals
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts


def warm() -> None:
    """Replay two auctions with two ads each, by query and by user."""
    numbers, halves = np.array([0, 0, 1, 1]), np.full(4, 0.5)
    slots, clicks = np.array([0, 1, 1, 0], np.int32), np.array([1, 0, 1, 0], np.int32)
    rows = AuctionRows(
        np.zeros(4, np.int64), numbers, np.array([0, 1, 0, 1]), halves, halves, slots, clicks
    )
    part = AuctionPart.from_rows(rows, np.array([1]), 2)
    set_s = np.zeros(2, np.int64)
    model = ClickModel(np.ones(2), set_s, 2, EstimateRules())
    point, places = OperatingPoint(main_slots=2), SlotCounts(2, 0)
    order = part.rank(halves, 1.0)
    part.replay(order, halves, point, model, places)
    part.log_columns(set_s, np.zeros(2))
    users = replace(part, user_key_r=numbers).users
    users.add_log(part.counts, set_s, np.ones(2))
    users.add_model(PairTotals.from_counts(part.counts, model), *part.run(order, point, places), halves)
