"""Count each pair's impressions and clicks at each slot.

A pair is a query and an ad. Axes: g pairs, s slots, q groups (a query, or a piece of a large one); pairs in
a group are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel

UNIT = 2.0**30
"""Estimates are added as whole multiples of 2^-30, the unit of `resampling.bootstrap_sums`: the same bits
in any order, with an error below 5e-10 clicks for each ad shown.
"""


@dataclass(frozen=True)
class ImpressionCounts:
    """Pairs' impressions and clicks by slot, int32 (g, s) each."""

    shown_gs: Ints32
    clicks_gs: Ints32

    @classmethod
    def from_rows(
        cls, pair_r: Ints, slot_r: Ints32, click_r: Ints32, pairs: int, slots: int
    ) -> ImpressionCounts:
        """Count a log's rows; negative slots were not shown."""
        shown_gs = np.zeros((pairs, slots), dtype=np.int32)
        clicks_gs = np.zeros((pairs, slots), dtype=np.int32)
        _count_rows(pair_r, slot_r, click_r, shown_gs, clicks_gs)
        return cls(shown_gs, clicks_gs)


@dataclass(frozen=True)
class SlotTotals:
    """Slots' impressions and clicks over all pairs, int64 (s,) each."""

    shown_s: Ints
    clicks_s: Ints

    @property
    def reference_s(self) -> Floats:
        """Slots' reference click rates; 0 without impressions."""
        return click_rates(self.clicks_s, self.shown_s)


def click_rates(clicks: Ints | Floats, shown: Ints | Floats) -> Floats:
    """Return slots' click rates, (..., s); 0 without impressions."""
    rates: Floats = np.divide(clicks, shown, out=np.zeros(shown.shape), where=shown > 0)
    return rates


@compile_kernel
def _count_rows(pair_r: Ints, slot_r: Ints32, click_r: Ints32, shown_gs: Ints32, clicks_gs: Ints32) -> None:
    for r in range(len(pair_r)):
        if slot_r[r] >= 0:
            shown_gs[pair_r[r], slot_r[r]] += 1
            clicks_gs[pair_r[r], slot_r[r]] += click_r[r]
