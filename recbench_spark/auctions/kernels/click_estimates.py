"""Estimate clicks on ads which a replayed auction shows.

The log's counts decide.

Three cases: the pair (query, ad) was shown at this slot: its own click rate; it was shown at another slot
in the connected set: theta_s K_g / sum_t n_gt theta_t; it was never shown there: the slot's reference click
rate. Sums are whole multiples of 2^-30 for each group of queries, so they add up in any order. Axes: r
participants, g pairs, s slots, q groups, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel

FIXED = (
    "shown", "same", "other", "same_clicks", "other_clicks", "main_clicks", "unseen_probability",
    "main_unseen_probability", "revenue", "multi_slot_shown", "multi_slot_clicks",
)  # fmt: skip
"""Columns without slots: ads shown, ads in the first two cases, their clicks (all, main line); predicted
clicks on unseen pairs; revenue in the first two cases; ads and clicks of pairs seen at several slots.
"""

BY_SLOT = (
    "unseen", "borrowed", "reference_revenue", "slope", "main_slope", "revenue_slope",
    "multi_slot_reference", "multi_slot_slope",
)  # fmt: skip
"""Columns with slots: unseen pairs; the reference rate's weight in estimates for seen pairs; both times the
price; derivatives by log theta of the clicks in the second case: all, main line, times the price; the
reference rate's weight, and derivatives, for pairs seen at several slots alone.
"""

NEVER_SHOWN, SAME_SLOT, OTHER_SLOT = 0, 1, 2
"""Cases of an estimate; the last two are also their places in FIXED."""

Rows = tuple[Ints, Ints, Ints32, Floats, Floats]
"""Arrays with a value for each participant, (r,): group, pair, slot in the replay (negative: not shown),
price of a click as a share of the largest bid, predicted probability.
"""

Log = tuple[Ints32, Ints32, Floats, Ints]
"""Pairs' impressions and clicks (g, s), position curve and first slots in connected sets (s,)."""

Totals = tuple[Ints32, Ints32, Floats, Ints32, Ints]
"""Pairs' clicks, impressions and mass on the curve in each connected set (g, k); slots at which pairs were
shown (g,); each slot's connected set (s,).
"""


@dataclass(frozen=True)
class EstimateRules:
    """Rules for trusting a pair's own click rate.

    Attributes:
        minimum: impressions below which a pair's click rate is not used.
        shrinkage: impressions at the reference rate that are added to a pair's own; 0: none.
    """

    minimum: int = 1
    shrinkage: float = 0.0


@dataclass(frozen=True)
class ClickModel:
    """A log's position curve, with rules for estimates.

    Attributes:
        theta_s: (s,) position curve, within each connected set.
        set_s: (s,) first slot in each slot's connected set.
        main: number of slots on the main line.
        rules: minimum and shrinkage.
    """

    theta_s: Floats
    set_s: Ints
    main: int
    rules: EstimateRules


def count_columns(slots: int) -> int:
    """Return the number of columns in `estimate_clicks`."""
    return len(FIXED) + len(BY_SLOT) * slots


def find_column(name: str, slots: int) -> slice:
    """Return a column's place, or all slots' columns'."""
    if name in FIXED:
        at = FIXED.index(name)
        return slice(at, at + 1)
    first = len(FIXED) + BY_SLOT.index(name) * slots
    return slice(first, first + slots)


@dataclass(frozen=True, eq=False)
class PairTotals:
    """A log's counts and totals by pair, for estimates.

    Totals are over each connected slot set.

    Attributes:
        log: impressions and clicks by slot, position curve, connected sets.
        totals: each pair's totals in each connected set.
        model: position curve and rules.
    """

    log: Log
    totals: Totals
    model: ClickModel

    @classmethod
    def from_counts(cls, counts: ImpressionCounts, model: ClickModel) -> PairTotals:
        """Add up pair counts, for all points and models.

        Args:
            counts: pairs' impressions and clicks.
            model: position curve and rules.
        """
        log = (counts.shown_gs, counts.clicks_gs, model.theta_s, model.set_s)
        _, set_index_s = np.unique(model.set_s, return_inverse=True)
        shape = (len(counts.shown_gs), int(set_index_s.max(initial=0)) + 1)
        clicks_gk, seen_gk = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        mass_gk, places_g = np.zeros(shape), np.zeros(shape[0], dtype=np.int32)
        totals = (clicks_gk, seen_gk, mass_gk, places_g, set_index_s.astype(np.int64))
        _fill_totals(log, totals)
        return cls(log, totals, model)


def estimate_clicks(rows: Rows, pairs: PairTotals, groups: int) -> Ints:
    """Add up estimates by group, int64 (q, c).

    Estimates are multiples of 2^-30.

    Args:
        rows: participants.
        pairs: pair counts, and their totals.
        groups: number of groups.
    """
    model = pairs.model
    sums_qc = np.zeros((groups, count_columns(len(model.theta_s))), dtype=np.int64)
    rules = (int(model.rules.minimum), float(model.rules.shrinkage), model.main)
    _add_estimates(rows, pairs.log, pairs.totals, rules, sums_qc)
    return sums_qc


@compile_kernel
def _fill_totals(log: Log, totals: Totals) -> None:
    shown_gs, clicks_gs, theta_s, _ = log
    clicks_gk, seen_gk, mass_gk, places_g, set_index_s = totals
    for g in range(len(shown_gs)):
        for t in range(len(theta_s)):
            if shown_gs[g, t] == 0:
                continue
            k = set_index_s[t]
            places_g[g] += 1
            seen_gk[g, k] += shown_gs[g, t]
            clicks_gk[g, k] += clicks_gs[g, t]
            mass_gk[g, k] += shown_gs[g, t] * theta_s[t]


@compile_kernel
def scale_value(value: float) -> np.int64:
    """Return the multiple of 2^-30 nearest to a value."""
    return np.int64(np.rint(value * UNIT))


@compile_kernel
def _add_estimates(
    rows: Rows, log: Log, totals: Totals, rules: tuple[int, float, int], sums_qc: Ints
) -> None:
    """Add the estimate for each ad shown.

    Columns are in the order of FIXED, then of BY_SLOT. This is one kernel, since calls with tuples of
    arrays cost more than all the rest.
    """
    group_r, pair_r, slot_r, price_r, probability_r = rows
    shown_gs, clicks_gs, theta_s, _ = log
    clicks_gk, seen_gk, mass_gk, places_g, set_index_s = totals
    minimum, shrinkage, main = rules
    slots, one, fixed = len(theta_s), np.int64(UNIT), len(FIXED)
    for r in range(len(pair_r)):
        slot = slot_r[r]
        if slot < 0:
            continue
        pair, q, k = pair_r[r], group_r[r], set_index_s[slot]
        own, seen, mass = shown_gs[pair, slot], seen_gk[pair, k], mass_gk[pair, k]
        case, rate, trials = NEVER_SHOWN, 0.0, 0
        if own > 0 and own >= minimum:
            case, rate, trials = SAME_SLOT, clicks_gs[pair, slot] / own, own
        elif seen >= minimum and mass > 0.0:
            case, rate, trials = OTHER_SLOT, theta_s[slot] * clicks_gk[pair, k] / mass, seen
        share = trials / (trials + shrinkage) if case > 0 else 0.0
        clicks, scaled = share * rate, scale_value(share * rate)
        sums_qc[q, 0] += one
        # The weight of the slot's reference rate: all of an unseen pair, and what shrinkage borrows.
        sums_qc[q, fixed + slot + (slots if case > 0 else 0)] += scale_value(1.0 - share)
        sums_qc[q, fixed + 2 * slots + slot] += scale_value((1.0 - share) * price_r[r])
        if places_g[pair] > 1:
            sums_qc[q, 9] += one
            sums_qc[q, 10] += scaled
            sums_qc[q, fixed + 6 * slots + slot] += scale_value(1.0 - share)
        if case == NEVER_SHOWN:
            predicted = scale_value(probability_r[r])
            sums_qc[q, 6] += predicted
            sums_qc[q, 7] += predicted if slot < main else 0
            continue
        sums_qc[q, case] += one
        sums_qc[q, 2 + case] += scaled
        sums_qc[q, 5] += scaled if slot < main else 0
        sums_qc[q, 8] += scale_value(clicks * price_r[r])
        if case == OTHER_SLOT and clicks > 0.0:
            _add_slopes(sums_qc[q], log, (pair, slot, main, places_g[pair]), (clicks, mass, price_r[r]))


@compile_kernel
def _add_slopes(
    row: Ints, log: Log, place: tuple[int, int, int, int], estimate: tuple[float, float, float]
) -> None:
    """Add a click estimate's derivatives by each log theta.

    The estimate is one in the second case.
    """
    pair, slot, main, places = place
    clicks, mass, price = estimate
    shown_gs, _, theta_s, set_s = log
    slots = len(theta_s)
    for t in range(slots):
        if set_s[t] != set_s[slot]:
            continue
        slope = -clicks * shown_gs[pair, t] * theta_s[t] / mass
        slope += clicks if t == slot else 0.0
        at = len(FIXED) + 3 * slots + t
        row[at] += scale_value(slope)
        row[at + slots] += scale_value(slope) if slot < main else 0
        row[at + 2 * slots] += scale_value(slope * price)
        row[at + 4 * slots] += scale_value(slope) if places > 1 else 0
