"""Areas under the ROC curve: AUC, partial AUC, users' means.

Axes: u users, n rows. AUC counts pairs in whole numbers, summed over sorted chunks, each with its own range
of predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.about import About, register
from recbench_spark.metrics.kernels.chunk import divide
from recbench_spark.metrics.kernels.predictions import check_finite


@dataclass(frozen=True)
class PairCounts:
    """Whole-number AUC parts for one chunk of rows, or several.

    Each positive has x = 2 #{negatives below} + #{negatives tied}; each negative has z = 2 #{positives
    above} + #{positives tied}. Python integers: squares over 10^9 rows need 90 bits.
    """

    positives: int
    negatives: int
    wins: int
    """Sum of x, equal to the sum of z."""
    squares_x: int
    squares_z: int


def pair_counts(p: Floats, y: Floats) -> PairCounts:
    """Count ordered pairs within a chunk, in any order.

    p (n,), y (n,) in {0, 1}. If chunks are combined, rows with equal p must be in one chunk.
    """
    check_finite(p, "predictions")
    _check_binary(y)
    _, run = np.unique(p, return_inverse=True)
    positives = np.bincount(run, weights=y).astype(np.int64)
    negatives = np.bincount(run).astype(np.int64) - positives
    below = np.cumsum(negatives) - negatives
    above = positives.sum() - np.cumsum(positives)
    x, z = 2 * below + negatives, 2 * above + positives
    squares = _exact_weighted_sum(positives, x, x), _exact_weighted_sum(negatives, z, z)
    wins = _exact_weighted_sum(positives, x)
    return PairCounts(int(positives.sum()), int(negatives.sum()), wins, *squares)


def combine(chunks: Sequence[PairCounts]) -> PairCounts:
    """Combine chunks, in ascending order of prediction, into all rows.

    With N negatives in lower chunks each x grows by 2 N; with P positives in higher ones each z grows by 2
    P: sum (x + 2N)^2 = sum x^2 + 4 N sum x + 4 N^2 positives.
    """
    every = PairCounts(0, 0, 0, 0, 0)
    for chunk in chunks:
        n, p = 2 * every.negatives, 2 * chunk.positives
        every = PairCounts(
            every.positives + chunk.positives,
            every.negatives + chunk.negatives,
            every.wins + chunk.wins + n * chunk.positives,
            every.squares_x + chunk.squares_x + 2 * n * chunk.wins + n * n * chunk.positives,
            every.squares_z + 2 * p * every.wins + p * p * every.negatives + chunk.squares_z,
        )
    return every


def auc(counts: PairCounts) -> float:
    """Chance that a positive is predicted above a negative.

    Ties count one half; NaN without pairs. Constant predictions give 1/2. Blind to calibration, to the
    operating range, and to unequal costs of errors; easy negatives raise it.
    """
    pairs = 2 * counts.positives * counts.negatives
    return counts.wins / pairs if pairs else math.nan


def auc_error(counts: PairCounts) -> float:
    """Standard error of the AUC, for independent rows.

    Rows of one user are not independent: prefer the bootstrap over users where users matter. Source:
    DeLong, DeLong and Clarke-Pearson 1988.
    """
    m, n = counts.positives, counts.negatives
    if m < 2 or n < 2:
        return math.nan
    # In whole numbers until the division, since the two terms nearly cancel.
    spread_x = (m * counts.squares_x - counts.wins**2) / (m * m * (m - 1) * 4 * n * n)
    spread_z = (n * counts.squares_z - counts.wins**2) / (n * n * (n - 1) * 4 * m * m)
    return math.sqrt(spread_x + spread_z)


@register(
    "pauc",
    About(
        place=250,
        title="partial AUC (pAUC)",
        formula="Area under the ROC curve between two false-positive rates, divided by their difference.",
        edges="No value without positives or without negatives.",
        source="McClish 1989, Analyzing a portion of the ROC curve",
    ),
)
def partial_auc(p: Floats, y: Floats, low: float, high: float) -> float:
    """Area under the ROC curve over false-positive rates low..high.

    The area is divided by high - low. Straight lines between thresholds; NaN without positives or
    negatives. Blind to everything outside its range. Source: McClish 1989, "Analyzing a portion of the ROC
    curve", without her rescaling: random predictions give (low + high) / 2.
    """
    check_finite(p, "predictions")
    _check_binary(y)
    positives = int(y.sum())
    negatives = len(y) - positives
    twice, cut = roc_area(p, y, (0, 0), (low * negatives, high * negatives))
    return area_share(twice, [cut], positives * negatives, (low, high))


def roc_area(
    p: Floats, y: Floats, above: tuple[int, int], within: tuple[float, float]
) -> tuple[int, float]:
    """Area under the ROC curve for one range of predictions.

    The area counts (positive, negative) pairs. Rows with equal p form a line on the curve, from (N, P) to
    (N + m, P + h), N negatives and P positives being predicted above: its area is m P + m h / 2, in part a
    P + a^2 h / (2 m).

    Args:
        p, y: (n,) rows in the range, in any order; rows with equal p are in one range.
        above: positives and negatives predicted above the range.
        within: area bounds, in negatives from the top.

    Returns:
        Twice the area under lines within the bounds, a whole number; and the area under lines cut by a
        bound.
    """
    _, run = np.unique(-p, return_inverse=True)
    h = np.bincount(run, weights=y).astype(np.int64)
    m = np.bincount(run).astype(np.int64) - h
    p_above, start = above[0] + np.cumsum(h) - h, above[1] + np.cumsum(m) - m
    low, high = within
    whole = (start >= low) & (start + m <= high)
    cut = ~whole & (start + m > low) & (start < high)
    a, b = (np.clip(bound - start[cut], 0, m[cut]) for bound in within)
    area = p_above[cut] * (b - a) + h[cut] * (b - a) * (b + a) / (2 * m[cut])
    return _exact_weighted_sum(m[whole], (2 * p_above + h)[whole]), math.fsum(area)


def area_share(twice: int, cut: Sequence[float], pairs: int, rates: tuple[float, float]) -> float:
    """Return the partial AUC from all ranges' areas (`roc_area`).

    NaN without pairs.
    """
    return (twice / 2 + math.fsum(cut)) / (pairs * (rates[1] - rates[0])) if pairs else math.nan


def user_aucs(offsets: Ints, p: Floats, y: Floats) -> tuple[Floats, Ints]:
    """Return each user's AUC and positives: (u,), (u,).

    NaN without positives or negatives. By mid-ranks: AUC_u = (sum of the positives' ranks - P (P + 1) / 2)
    / (P N).
    """
    check_finite(p, "predictions")
    _check_binary(y)
    u = len(offsets) - 1
    count = np.diff(offsets)
    user = np.repeat(np.arange(u), count)
    order = np.lexsort((p, user))
    user, p, y = user[order], p[order], y[order]
    new = np.ones(len(p), dtype=bool)
    new[1:] = (user[1:] != user[:-1]) | (p[1:] != p[:-1])
    start = np.flatnonzero(new)
    end = np.append(start[1:], len(p))
    # Twice the mid-rank: first + last rank in the run.
    twice = np.repeat(start + end + 1, end - start) - 2 * offsets[user]
    positives = np.bincount(user, weights=y, minlength=u).astype(np.int64)
    ranks = np.bincount(user, weights=y * twice, minlength=u)
    negatives = count - positives
    return divide(ranks - positives * (positives + 1), 2 * positives * negatives, np.nan), positives


def gauc_parts(offsets: Ints, p: Floats, y: Floats) -> Floats:
    """Return each user's AUC_u P_u and P_u, (u, 2).

    NaN for users without an AUC.
    """
    value, positives = user_aucs(offsets, p, y)
    weight = np.where(np.isnan(value), np.nan, positives)
    return np.column_stack([value * weight, weight])


@register(
    "gauc",
    About(
        place=240,
        wide=True,
        title="group AUC (GAUC): the AUC within users",
        formula="Sum over users of AUC x positives / sum of positives.",
        edges="Users with one kind of outcome are left out.",
        source="Zhu et al. 2017, Optimized cost per click in Taobao display advertising",
    ),
)
def gauc(sums: Floats) -> float:
    """sum(AUC_u P_u) / sum(P_u) from summed `gauc_parts`, (2,).

    NaN without any user. Users are weighted by their positives P_u: Zhu et al. 2017, "Optimized cost per
    click in Taobao display advertising", section 5, allow clicks or impressions; others weigh all users
    alike. Blind to all differences between users, and to users with one kind of outcome only.
    """
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def _exact_weighted_sum(*factors: Ints) -> int:
    """Sum products of whole numbers >= 0, exactly.

    Python integers take over if int64 could overflow.
    """
    bound = math.prod(float(factor.max(initial=0)) for factor in factors) * len(factors[0])
    if bound < 2.0**62:
        return int(np.prod(np.stack(factors), axis=0).sum())
    return sum(math.prod(parts) for parts in zip(*(f.tolist() for f in factors), strict=True))


def _check_binary(y: Floats) -> None:
    if not ((y == 0) | (y == 1)).all():
        raise DataError("AUC needs outcomes of 0 and 1", "set a threshold to turn ratings into outcomes")
