"""Clicks, yields and revenue from sums: by hand, alike for the log and for its replicates."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.auctions.kernels.auction_parts import LogColumns
from recbench_spark.auctions.kernels.click_estimates import BY_SLOT, FIXED, find_column
from recbench_spark.auctions.kernels.counts import UNIT
from recbench_spark.auctions.kernels.yields import LoggedPolicy, ReplayedPolicy

VIEWS = 8.0
SUMS = {
    "shown": 24, "same_clicks": 4, "other_clicks": 2, "main_clicks": 3, "unseen_probability": 1,
    "main_unseen_probability": 0.5, "revenue": 0.25, "multi_slot_clicks": 2,
    "unseen": [2, 4, 8], "borrowed": [4, 0, 8], "reference_revenue": [1, 1, 2],
    "slope": [1, -1, 2], "main_slope": [1, -1, 0], "revenue_slope": [0.5, 0, 0.5],
    "multi_slot_reference": [1, 0, 4], "multi_slot_slope": [1, 0, 1],
}  # fmt: skip
REFERENCE, SHIFT = np.array([0.5, 0.25, 0.125]), np.array([0.5, 0.0, -0.25])
LOGGED = {"clicks": 7, "click_yield": 7 / 8, "main_line_yield": 6 / 8, "multi_slot_yield": 3 / 8,
          "ads_per_view": 20 / 8}  # fmt: skip


def make_logged(shape: tuple[int, ...] = ()) -> LoggedPolicy:
    """Three slots, two of them on the main line, with the same numbers in every replicate."""

    def repeat(values: object) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, float), (*shape, *np.shape(values))).copy()

    columns = LogColumns(
        repeat(4), repeat([8, 8, 4]), repeat([4, 2, 1]), repeat(3), repeat([0, 0, 0]), repeat(np.eye(3))
    )
    return LoggedPolicy(columns, repeat(VIEWS), repeat(REFERENCE), repeat(SHIFT), main=2)


def make_replayed(shape: tuple[int, ...] = ()) -> ReplayedPolicy:
    sums = np.zeros((*shape, len(FIXED) + len(BY_SLOT) * 3), np.int64)
    for name, values in SUMS.items():
        sums[..., find_column(name, 3)] = np.asarray(values) * UNIT
    return ReplayedPolicy(sums, make_logged(shape))


@pytest.mark.parametrize("shape", [(), (2,), (2, 5)])
def test_the_log_by_hand(shape: tuple[int, ...]) -> None:
    metrics = make_logged(shape).measure()
    assert {name: np.unique(values).tolist() for name, values in metrics.items()} == {
        name: [value] for name, value in LOGGED.items()
    }
    assert {values.shape for values in metrics.values()} == {shape}


@pytest.mark.parametrize("shape", [(), (2,), (2, 5)])
@pytest.mark.parametrize(
    ("unseen", "clicks", "main"),
    [
        # The curve moves 1/2 - 1/2 = 0 clicks, 1/2 of them on the main line; borrowed are 2 + 0 + 1.
        ("zero", 4 + 2 + 3, 3 + 1 / 2 + 2),
        ("probability", 4 + 2 + 3 + 1, 3 + 1 / 2 + 2 + 1 / 2),
        ("reference", 4 + 2 + 3 + (1 + 1 + 1), 3 + 1 / 2 + 2 + (1 + 1)),
    ],
)
def test_a_replayed_policy_by_hand(shape: tuple[int, ...], unseen: str, clicks: float, main: float) -> None:
    metrics = make_replayed(shape).measure(unseen, largest_bid=4.0)
    wanted = {"clicks": clicks, "click_yield": clicks / VIEWS, "main_line_yield": main / VIEWS}
    if unseen == "reference":
        # Revenue: 1/4 by itself, 1/4 - 1/8 by the curve, 1/2 + 1/4 + 1/4 of unseen pairs; times the bid.
        revenue = 4 * (1 / 4 + 1 / 8 + 1)
        wanted |= {"revenue": revenue, "revenue_per_view": revenue / VIEWS}
        # 2 known clicks, 1/2 + 1/2 at the reference rate, 1/2 - 1/4 by the curve.
        wanted |= {"multi_slot_yield": (2 + 1 + 1 / 4) / VIEWS, "ads_per_view": 24 / VIEWS}
    assert {name: np.unique(values).tolist() for name, values in metrics.items()} == {
        name: [value] for name, value in wanted.items()
    }
    assert {values.shape for values in metrics.values()} == {shape}
