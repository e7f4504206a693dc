"""Simpson's paradox: parts and whole disagree about two models.

Which one is better? Two questions: do the strata oppose the whole (`kinds`)? And, without chosen strata,
how few items or users decide the verdict (`Flip`)? Axes: x comparisons, s strata, n items or users, b
buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints

KINDS = ("none", "partial", "reversal", "full")
"""No stratum opposes the whole and the stratified estimate agrees; some stratum opposes it; the
stratified estimate does; all strata do. The last true one counts; a difference of 0 opposes nothing."""

BITS = 30
"""Contributions are rounded to multiples of 2^-30 and so add up exactly."""

SHIFTS = (40, 28, 14, 0)
"""Bits dropped in each pass of the distributed search: at most 2^14 buckets a pass."""


def kinds(whole_x: Floats, stratified_x: Floats, strata_xs: Floats) -> Ints:
    """Return each comparison's index into KINDS, int64 (x,).

    Arguments are differences between two models. whole_x: over everyone; stratified_x: the stratified
    estimate; strata_xs: in each stratum, NaN where the stratum is empty.
    """
    sign = np.sign(whole_x)
    known = ~np.isnan(strata_xs)
    opposed = known & (np.sign(np.where(known, strata_xs, 0.0)) == -sign[:, None]) & (sign[:, None] != 0)
    full = opposed.sum(axis=1) == np.maximum(known.sum(axis=1), 1)
    reversal = (np.sign(stratified_x) == -sign) & (sign != 0)
    return np.select([full, reversal, opposed.any(axis=1)], [3, 2, 1], default=0).astype(np.int64)


def intervals_oppose(
    whole_low_x: Floats, whole_high_x: Floats, other_low_x: Floats, other_high_x: Floats
) -> npt.NDArray[np.bool_]:
    """Tell whether both intervals exclude 0, on opposite sides."""
    up_down = (whole_low_x > 0) & (other_high_x < 0)
    down_up = (whole_high_x < 0) & (other_low_x > 0)
    return np.asarray(up_down | down_up)


def opposing_share(whole_x: Floats, strata_xs: Floats, size_xs: npt.NDArray[Any]) -> Floats:
    """Return the interactions' share in strata opposing the whole, (x,)."""
    size = np.asarray(size_xs, dtype=np.float64)
    against = (np.sign(strata_xs) * np.sign(whole_x)[:, None]) < 0
    share: Floats = (size * against).sum(axis=1) / size.sum(axis=1)
    return share


@dataclass(frozen=True)
class Flip:
    """The smallest set whose removal changes a sum's sign.

    The set has the largest contributions to the sum.

    Attributes:
        count: how many members to remove.
        threshold, at_threshold: all members with a value above `threshold` are removed, and `at_threshold`
            members equal to it (which of them does not matter: smaller id first).
        removed, total: the removed sum and the whole sum, in the verdict's direction.

    Contributions must be additive: the difference between two models is their sum, or their sum divided by
    a number. Removal must not change this number (hits, DCG, or quotients with fixed denominators) or must
    keep it positive (a mean over users). They are rounded to 2^-30 and added as whole numbers. Taking the
    largest first is optimal: no other equally large set removes more.
    """

    count: int
    threshold: float
    at_threshold: int
    removed: float
    total: float


def to_fixed_point(contribution_n: Floats) -> Ints:
    """Convert contributions to multiples of 2^-30, int64 (n,).

    The sums of these multiples are exact.
    """
    return np.rint(np.asarray(contribution_n, dtype=np.float64) * 2.0**BITS).astype(np.int64)


def buckets(value_n: Ints, shift: int) -> Ints:
    """Return each contribution's bucket: its bits above `shift`.

    Contributions are directed.
    """
    return value_n >> shift


@dataclass(frozen=True)
class Crossing:
    """The bucket where a pass's running sum exceeds the goal.

    Above it lie `count` members with the sum `removed`.
    """

    bucket: int
    count: int
    removed: int


def crossing(
    bucket_b: npt.NDArray[Any],
    count_b: npt.NDArray[Any],
    sum_b: npt.NDArray[Any],
    goal: int,
    above: Crossing | None = None,
) -> Crossing | None:
    """Return the positive bucket that crosses the goal.

    This is one pass of the search. Pass j groups directed (`to_fixed_point` times the verdict's sign)
    positive contributions inside the earlier bucket by `buckets(., SHIFTS[j])` and returns each group's
    number and sum, at most 2^14 rows. After the last pass, call `resolve`. None: the sum of all
    contributions does not exceed the goal.

    Args:
        bucket_b, count_b, sum_b: buckets in any order, their members and exact sums.
        goal: the whole sum, in the verdict's direction.
        above: members and sum from earlier passes.
    """
    order = np.argsort(-np.asarray(bucket_b, dtype=np.int64), kind="stable")
    count, removed = (above.count, above.removed) if above else (0, 0)
    for b in order.tolist():
        if removed + int(sum_b[b]) > goal:
            return Crossing(int(bucket_b[b]), count, removed)
        count, removed = count + int(count_b[b]), removed + int(sum_b[b])
    return None


def resolve(last: Crossing, goal: int) -> Flip:
    """Return the answer after the last pass.

    The bucket now holds one value.
    """
    at = (goal - last.removed) // last.bucket + 1
    removed = last.removed + at * last.bucket
    return Flip(last.count + at, last.bucket * 2.0**-BITS, at, removed * 2.0**-BITS, goal * 2.0**-BITS)
