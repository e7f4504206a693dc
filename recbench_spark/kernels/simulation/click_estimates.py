"""Estimate the clicks of ads that a replayed auction shows, from the counts of the log.

Three cases: the pair (query, ad) was shown at this slot: its own click rate; it was shown at another slot
of the connected set: theta_s K_g / sum_t n_gt theta_t; it was never shown there: the slot's reference
click rate. Sums are whole multiples of 2^-30 for each group of queries, so they add up in any order.
Axes: r participants, g pairs, s slots, q groups, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.kernels.arrays import Floats, Ints, Ints32
from recbench_spark.kernels.compiling import compile_kernel
from recbench_spark.kernels.simulation.counts import UNIT, ImpressionCounts

FIXED = (
    "shown", "same", "other", "same_clicks", "other_clicks", "main_clicks", "unseen_probability",
    "main_unseen_probability", "revenue", "multi_slot_shown", "multi_slot_clicks",
)  # fmt: skip
"""Columns without slots: ads shown, ads of the first two cases, their clicks (all, main line); predicted
clicks of unseen pairs; revenue of the first two cases; ads and clicks of pairs seen in several slots."""

BY_SLOT = ("unseen", "borrowed", "reference_revenue", "slope", "main_slope", "revenue_slope")
"""Columns with slots: unseen pairs; weight of the reference rate in estimates of seen pairs; both times the
price; derivatives by log theta of the clicks of the second case: of all, of the main line, times the price.
"""

NEVER_SHOWN, SAME_SLOT, OTHER_SLOT = 0, 1, 2
"""Cases of an estimate; the last two are also their places in FIXED."""

Rows = tuple[Ints, Ints, Ints32, Floats, Floats]
"""Arrays with a value for each participant, (r,): group, pair, slot in the replay (negative: not shown),
price of a click as a share of the largest bid, predicted probability."""

Log = tuple[Ints32, Ints32, Floats, Ints]
"""Impressions and clicks of pairs (g, s), position curve and first slots of connected sets (s,)."""


@dataclass(frozen=True)
class EstimateRules:
    """Settings of the estimates.

    Attributes:
        minimum: impressions below which the click rate of a pair is not used.
        shrinkage: impressions at the reference rate that are added to those of a pair; 0: none.
    """

    minimum: int = 1
    shrinkage: float = 0.0


@dataclass(frozen=True)
class ClickModel:
    """Knowledge about clicks that a log gives.

    Attributes:
        theta_s: (s,) position curve, within each connected set.
        set_s: (s,) first slot of the connected set of each slot.
        main: number of slots on the main line.
        rules: minimum and shrinkage.
    """

    theta_s: Floats
    set_s: Ints
    main: int
    rules: EstimateRules


def count_columns(slots: int) -> int:
    """Return the number of columns of `estimate_clicks`."""
    return len(FIXED) + len(BY_SLOT) * slots


def find_column(name: str, slots: int) -> slice:
    """Return the place of a column, or of the columns of all slots."""
    if name in FIXED:
        at = FIXED.index(name)
        return slice(at, at + 1)
    first = len(FIXED) + BY_SLOT.index(name) * slots
    return slice(first, first + slots)


def estimate_clicks(
    rows: Rows,
    counts: ImpressionCounts,
    model: ClickModel,
    groups: int,
) -> Ints:
    """Add up estimates by group: int64 (q, c), multiples of 2^-30.

    Args:
        rows: participants.
        counts: impressions and clicks of pairs.
        model: position curve and rules.
        groups: number of groups.
    """
    sums_qc = np.zeros((groups, count_columns(len(model.theta_s))), dtype=np.int64)
    rules = (int(model.rules.minimum), float(model.rules.shrinkage), model.main)
    log = (counts.shown_gs, counts.clicks_gs, model.theta_s, model.set_s)
    _add_estimates(rows, log, rules, sums_qc)
    return sums_qc


@compile_kernel
def _scale(value: float) -> np.int64:
    """Return the multiple of 2^-30 nearest to a value."""
    return np.int64(np.rint(value * UNIT))


@compile_kernel
def _add_estimates(rows: Rows, log: Log, rules: tuple[int, float, int], sums_qc: Ints) -> None:
    """Add the estimate of each ad shown; columns in the order of FIXED, then of BY_SLOT."""
    group_r, pair_r, slot_r, price_r, probability_r = rows
    shrinkage, main = rules[1], rules[2]
    for r in range(len(pair_r)):
        slot = slot_r[r]
        if slot < 0:
            continue
        pair, row = pair_r[r], sums_qc[group_r[r]]
        case, rate, trials, mass, several = _find_rate(pair, slot, log, rules[0])
        own = trials / (trials + shrinkage) if case > 0 else 0.0
        clicks = own * rate
        row[0] += _scale(1.0)
        _add_reference(row, slot, len(log[2]), (case, own, price_r[r]))
        if several:
            row[9] += _scale(1.0)
            row[10] += _scale(clicks)
        if case == 0:
            row[6] += _scale(probability_r[r])
            row[7] += _scale(probability_r[r]) if slot < main else 0
            continue
        row[case] += _scale(1.0)
        row[2 + case] += _scale(clicks)
        row[5] += _scale(clicks) if slot < main else 0
        row[8] += _scale(clicks * price_r[r])
        if case == OTHER_SLOT:
            _add_slopes(row, log, (pair, slot, main), (clicks, mass, price_r[r]))


@compile_kernel
def _find_rate(pair: int, slot: int, log: Log, minimum: int) -> tuple[int, float, int, float, bool]:
    """Return case, click rate, impressions behind it, their mass on the curve, and if slots are several."""
    shown_gs, clicks_gs, theta_s, set_s = log
    clicks, mass, seen, places = 0, 0.0, 0, 0
    for t in range(len(theta_s)):
        if shown_gs[pair, t] == 0:
            continue
        places += 1
        if set_s[t] == set_s[slot]:
            seen += shown_gs[pair, t]
            clicks += clicks_gs[pair, t]
            mass += shown_gs[pair, t] * theta_s[t]
    own = shown_gs[pair, slot]
    if own > 0 and own >= minimum:
        return SAME_SLOT, clicks_gs[pair, slot] / own, own, mass, places > 1
    if seen >= minimum and mass > 0.0:
        return OTHER_SLOT, theta_s[slot] * clicks / mass, seen, mass, places > 1
    return NEVER_SHOWN, 0.0, 0, mass, places > 1


@compile_kernel
def _add_reference(row: Ints, slot: int, slots: int, part: tuple[int, float, float]) -> None:
    """Add the weight of the slot's reference rate in an estimate."""
    case, own, price = part
    place = len(FIXED) + slot + (slots if case > 0 else 0)
    row[place] += _scale(1.0 - own)
    row[len(FIXED) + 2 * slots + slot] += _scale((1.0 - own) * price)


@compile_kernel
def _add_slopes(
    row: Ints, log: Log, place: tuple[int, int, int], estimate: tuple[float, float, float]
) -> None:
    """Add the derivatives of a click estimate of the second case by each log theta."""
    pair, slot, main = place
    clicks, mass, price = estimate
    shown_gs, _, theta_s, set_s = log
    slots = len(theta_s)
    for t in range(slots):
        if set_s[t] != set_s[slot]:
            continue
        slope = -clicks * shown_gs[pair, t] * theta_s[t] / mass
        slope += clicks if t == slot else 0.0
        at = len(FIXED) + 3 * slots + t
        row[at] += _scale(slope)
        row[at + slots] += _scale(slope) if slot < main else 0
        row[at + 2 * slots] += _scale(slope * price)
