"""Run sponsored-search auctions: scores, two blocks, second prices.

Source: Varian 2007, "Position auctions"; Edelman, Ostrovsky and Schwarz 2007, "Internet advertising and the
generalized second-price auction". Axes: a auctions, r participants; those in one auction are contiguous, in
the order of their ad ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import ConfigError

NOT_SHOWN = -1
"""Slot for a participant that the auction does not show."""


@dataclass(frozen=True, order=True)
class OperatingPoint:
    """Settings of the mechanism which a replay varies.

    Attributes:
        exponent: power of the predicted probability in the score.
        main_floor: smallest score for an ad on the main line.
        main_slots: most ads on the main line.
        reserve: smallest score for an ad in the sidebar.
        side_slots: most ads in the sidebar.
    """

    exponent: float = 1.0
    main_floor: float = 0.0
    main_slots: int = 1
    reserve: float = 0.0
    side_slots: int = 0

    def describe(self) -> str:
        """Return the settings as text: the point's name in tables."""
        return (
            f"exponent={self.exponent:g},main_floor={self.main_floor:g},main_slots={self.main_slots},"
            f"reserve={self.reserve:g},side_slots={self.side_slots}"
        )


@dataclass(frozen=True)
class SlotCounts:
    """Slots in the log, on main line and sidebar.

    Numbers of sidebar slots come after those of main-line slots.
    """

    main: int
    side: int

    def __len__(self) -> int:
        """Return how many slots there are in all."""
        return self.main + self.side

    def check(self, point: OperatingPoint) -> None:
        """Refuse a point with slots which the log never filled.

        Nothing is known about such a slot.

        Raises:
            ConfigError: the point has more slots in a block than the log.
        """
        for block, wanted, known in (
            ("main_slots", point.main_slots, self.main),
            ("side_slots", point.side_slots, self.side),
        ):
            if wanted > known:
                raise ConfigError(
                    f"{block}={wanted}: the log shows ads at {known} of these slots",
                    f"at most {known}: nothing is known about clicks at a slot without impressions",
                )


@dataclass(frozen=True)
class AuctionOrder:
    """Participants by falling score, for one model and exponent.

    Attributes:
        starts_a: (a + 1,) each auction's first participant.
        order_r: (r,) participants by falling score within their auction; ties by the smaller ad id.
        score_r: (r,) scores.
        weight_r: (r,) factor between a bid and its score.
    """

    starts_a: Ints
    order_r: Ints32
    score_r: Floats
    weight_r: Floats

    @classmethod
    def from_scores(
        cls, starts_a: Ints, bid_r: Floats, probability_r: Floats, quality_r: Floats, exponent: float
    ) -> AuctionOrder:
        """Compute bid x probability^exponent x quality, and sort auctions.

        One order serves all points.

        Args:
            starts_a: (a + 1,) each auction's first participant, then the number of participants.
            bid_r, probability_r, quality_r: (r,) inputs to the score; 1 for an unknown one.
            exponent: power of the probability.
        """
        weight_r = np.empty(len(bid_r))
        score_r = np.empty(len(bid_r))
        order_r = np.empty(len(bid_r), dtype=np.int32)
        _fill_scores(bid_r, probability_r, quality_r, exponent, weight_r, score_r)
        _sort_auctions(starts_a, score_r, order_r)
        return cls(starts_a, order_r, score_r, weight_r)

    def run(self, point: OperatingPoint, slots: SlotCounts) -> tuple[Ints32, Floats]:
        """Return each participant's slot and click price, (r,) each.

        Losers have NOT_SHOWN and a price of 0. A price is the next score in the block (the block's floor
        for its last ad), divided by the participant's own factor, so it is at most the own bid.
        """
        slot_r = np.full(len(self.score_r), NOT_SHOWN, dtype=np.int32)
        price_r = np.zeros(len(self.score_r))
        main = (float(point.main_floor), int(point.main_slots), 0)
        side = (float(point.reserve), int(point.side_slots), slots.main)
        _fill_blocks(self.starts_a, self.order_r, self.score_r, self.weight_r, main, side, slot_r, price_r)
        return slot_r, price_r


@compile_kernel
def _fill_scores(
    bid_r: Floats,
    probability_r: Floats,
    quality_r: Floats,
    exponent: float,
    weight_r: Floats,
    score_r: Floats,
) -> None:
    """Fill in factor and score; power 1 changes no bit."""
    for r in range(len(bid_r)):
        power = probability_r[r] if exponent == 1.0 else probability_r[r] ** exponent
        weight_r[r] = power * quality_r[r]
        score_r[r] = bid_r[r] * weight_r[r]


@compile_kernel
def _sort_auctions(starts_a: Ints, score_r: Floats, order_r: Ints32) -> None:
    """Sort each auction by insertion.

    Ten participants are few, and equal scores keep their order.
    """
    for a in range(len(starts_a) - 1):
        for r in range(starts_a[a], starts_a[a + 1]):
            place = r
            while place > starts_a[a] and score_r[order_r[place - 1]] < score_r[r]:
                order_r[place] = order_r[place - 1]
                place -= 1
            order_r[place] = r


@compile_kernel
def _fill_blocks(
    starts_a: Ints,
    order_r: Ints32,
    score_r: Floats,
    weight_r: Floats,
    main: tuple[float, int, int],
    side: tuple[float, int, int],
    slot_r: Ints32,
    price_r: Floats,
) -> None:
    """Fill each auction's two blocks, from the best participant on."""
    for a in range(len(starts_a) - 1):
        place, end = starts_a[a], starts_a[a + 1]
        for floor, size, first in (main, side):
            begin = place
            while place < end and place - begin < size and score_r[order_r[place]] >= floor:
                slot_r[order_r[place]] = first + place - begin
                place += 1
            for rank in range(begin, place):
                row = order_r[rank]
                following = score_r[order_r[rank + 1]] if rank + 1 < place else floor
                # A score of 0 is shown where the floor is 0, and its click costs nothing.
                price_r[row] = following / weight_r[row] if weight_r[row] > 0 else 0.0
