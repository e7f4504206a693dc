"""Turn sums over queries into clicks, yields and revenue.

Each bootstrap replicate has its values, too. A replicate re-weighs the reference rates exactly and the
position curve by one Newton step from the whole log's curve, so that intervals hold both errors.
Axes: s slots, b replicates; `...` is nothing for the log itself and b for its replicates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.auction_parts import LogColumns
from recbench_spark.auctions.kernels.click_estimates import BY_SLOT, find_column
from recbench_spark.auctions.kernels.counts import UNIT, click_rates
from recbench_spark.core.arrays import Floats, Ints

UNSEEN = ("reference", "zero", "probability")
"""Clicks on a pair that the log never showed: at the slot's reference rate, none, or as predicted."""


@dataclass(frozen=True, eq=False)
class LoggedPolicy:
    """The log's sums, and what they say about slots.

    Attributes:
        columns: sums over queries.
        views: (...) page views: the denominator of yields.
        reference: (..., s) reference click rates.
        curve_shift: (..., s) the replicate's log theta minus the log's.
        main: number of slots on the main line.
    """

    columns: LogColumns
    views: Floats
    reference: Floats
    curve_shift: Floats
    main: int

    @classmethod
    def from_sums(
        cls, sums: Ints, set_s: Ints, views_per_auction: float, main: int, plain: Floats | None = None
    ) -> LoggedPolicy:
        """Make it from the sums of `AuctionPart.log_columns`.

        Args:
            sums: (..., c) multiples of 2^-30.
            set_s: (s,) first slot in each slot's connected set.
            views_per_auction: page views for each auction, at least 1.
            main: number of slots on the main line.
            plain: the whole log's log theta, if the curve is the plain one; None: the conditional one.
        """
        columns = LogColumns.from_sums(sums / UNIT, len(set_s))
        reference = click_rates(columns.clicks, columns.shown)
        if plain is None:
            shift = position_curve.solve_step(columns.gradient, columns.information, set_s)
        else:
            shift = position_curve.plain_curve(reference) - plain
        return cls(columns, columns.auctions * views_per_auction, reference, shift, main)

    def measure(self) -> dict[str, Floats]:
        """Return the logged policy's metrics, (...) each."""
        clicks, shown = self.columns.clicks, self.columns.shown
        total = clicks.sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                "clicks": total,
                "click_yield": total / self.views,
                "main_line_yield": clicks[..., : self.main].sum(axis=-1) / self.views,
                "multi_slot_yield": self.columns.multi_slot_clicks / self.views,
                "ads_per_view": shown.sum(axis=-1) / self.views,
            }


@dataclass(frozen=True, eq=False)
class ReplayedPolicy:
    """A model's sums at one operating point, beside the log's.

    The sums are (..., c) multiples of 2^-30.
    """

    sums: Ints
    logged: LoggedPolicy

    def column(self, name: str) -> Floats:
        """Return a column, (...), or all slots' columns, (..., s)."""
        slots = self.logged.reference.shape[-1]
        values: Floats = self.sums[..., find_column(name, slots)] / UNIT
        return values if name in BY_SLOT else values[..., 0]

    def measure(self, unseen: str, largest_bid: float) -> dict[str, Floats]:
        """Return the metrics, (...) each.

        Args:
            unseen: one of UNSEEN.
            largest_bid: the unit in which revenue was added.
        """
        clicks = self._count_clicks(unseen, "slope", "unseen_probability", slice(None))
        clicks = clicks + self.column("same_clicks") + self.column("other_clicks")
        main = slice(0, self.logged.main)
        main_clicks = self._count_clicks(unseen, "main_slope", "main_unseen_probability", main)
        main_clicks = main_clicks + self.column("main_clicks")
        views = self.logged.views
        with np.errstate(divide="ignore", invalid="ignore"):
            metrics = {
                "clicks": clicks,
                "click_yield": clicks / views,
                "main_line_yield": main_clicks / views,
            }
            if unseen != UNSEEN[0]:
                return metrics
            revenue = self._add_up("revenue", "revenue_slope", "reference_revenue") * largest_bid
            several = self._add_up("multi_slot_clicks", "multi_slot_slope", "multi_slot_reference")
            return metrics | {
                "multi_slot_yield": several / views,
                "ads_per_view": self.column("shown") / views,
                "revenue": revenue,
                "revenue_per_view": revenue / views,
            }

    def _count_clicks(self, unseen: str, slope: str, predicted: str, slots: slice) -> Floats:
        """Return clicks on unseen pairs, and the others' change.

        The curve's shift causes that change.
        """
        clicks: Floats = (self.column(slope) * self.logged.curve_shift).sum(axis=-1)
        borrowed = self.column("borrowed") * self.logged.reference
        clicks = clicks + borrowed[..., slots].sum(axis=-1)
        if unseen == "probability":
            return clicks + self.column(predicted)
        if unseen == "zero":
            return clicks
        reference = self.column("unseen") * self.logged.reference
        total: Floats = clicks + reference[..., slots].sum(axis=-1)
        return total

    def _add_up(self, known: str, slope: str, at_reference: str) -> Floats:
        """Return a sum for known pairs with the curve's shift, and for others.

        A pair without a known rate counts at the reference rate.
        """
        shifted = (self.column(slope) * self.logged.curve_shift).sum(axis=-1)
        others = (self.column(at_reference) * self.logged.reference).sum(axis=-1)
        total: Floats = self.column(known) + shifted + others
        return total
