"""Areas under the ROC curve: AUC, partial AUC, users' means.

Axes: u users, n rows. AUC counts pairs in whole numbers, summed over sorted chunks, each with its own range
of predictions. Weights are whole numbers too (`whole_weights`), so weighted pairs add up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.about import About, register
from recbench_spark.metrics.kernels.chunk import divide
from recbench_spark.metrics.kernels.predictions import check_finite


class Moments(NamedTuple):
    """Rows with one outcome: number, sum of w^2, sum of w^2 x."""

    rows: int
    squared: int
    products: int


NO_ROWS = Moments(0, 0, 0)


@dataclass(frozen=True)
class PairCounts:
    """Whole-number AUC parts for one chunk of rows, or several.

    Each positive has x = 2 #{negatives below} + #{negatives tied}; each negative has z = 2 #{positives
    above} + #{positives tied}. Weights are counted instead of rows where rows have them. Python integers:
    squares over 10^9 rows need 90 bits.
    """

    positives: int
    negatives: int
    wins: int
    """Sum of w x, equal to the sum of w z."""
    squares_x: int
    """Sum of w^2 x^2; w is 1 where rows have no weights."""
    squares_z: int
    x: Moments = NO_ROWS
    z: Moments = NO_ROWS


EXACT_INT = 2.0**62
"""Bound for products and sums of whole weights in int64."""


def whole_weights(w: Floats, unit: int) -> Ints:
    """Return weights as whole numbers, in units of 2^unit.

    These are int64 where products and sums fit, else Python integers.

    Args:
        w: (n,) weights above 0.
        unit: at most `lowest_digit` of all weights that meet.
    """
    fraction, exponent = np.frexp(w)
    digits = (fraction * 2.0**53).astype(np.int64).astype(object)
    # A digit below 2^0 is 0, so no shift loses one.
    shift = exponent - 53 - unit
    whole = np.where(shift < 0, digits >> np.maximum(-shift, 0), digits << np.maximum(shift, 0))
    small = len(w) == 0 or float(whole.max()) * float(whole.sum()) < EXACT_INT
    weights: Ints = whole.astype(np.int64) if small else whole
    return weights


def lowest_digit(w: Floats) -> int:
    """Return the largest power of two dividing all weights.

    w: (n,) above 0; the result is 0 without any.
    """
    fraction, exponent = np.frexp(w)
    digits = (fraction * 2.0**53).astype(np.int64)
    zeros = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return int((exponent - 53 + zeros).min()) if len(w) else 0


def pair_counts(p: Floats, y: Floats, w: Ints | None = None) -> PairCounts:
    """Count ordered pairs within a chunk, in any order.

    p (n,), y (n,) in {0, 1}, w (n,) whole numbers. If chunks are combined, rows with equal p must be in one
    chunk.
    """
    check_finite(p, "predictions")
    _check_binary(y)
    _, run = np.unique(p, return_inverse=True)
    positives, negatives = _sum_runs(run, y, w)
    below = np.cumsum(negatives) - negatives
    above = positives.sum() - np.cumsum(positives)
    x, z = 2 * below + negatives, 2 * above + positives
    wins, ones = _exact_weighted_sum(positives, x), int(y.sum())
    squared_x, squared_z = (positives, negatives) if w is None else _sum_runs(run, y, w * w)
    return PairCounts(
        int(positives.sum()),
        int(negatives.sum()),
        wins,
        _exact_weighted_sum(squared_x, x, x),
        _exact_weighted_sum(squared_z, z, z),
        Moments(ones, int(squared_x.sum()), _exact_weighted_sum(squared_x, x)),
        Moments(len(y) - ones, int(squared_z.sum()), _exact_weighted_sum(squared_z, z)),
    )


def _sum_runs(run: Ints, y: Floats, w: Ints | None) -> tuple[Ints, Ints]:
    """Count each run's positives and negatives, or add their weights."""
    if w is None:
        positives = np.bincount(run, weights=y).astype(np.int64)
        return positives, np.bincount(run).astype(np.int64) - positives
    sums = np.zeros((2, run.max(initial=-1) + 1), w.dtype)
    np.add.at(sums, ((y == 0).astype(np.int64), run), w)
    return sums[0], sums[1]


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
            every.squares_x + chunk.squares_x + 2 * n * chunk.x.products + n * n * chunk.x.squared,
            every.squares_z + 2 * p * every.z.products + p * p * every.z.squared + chunk.squares_z,
            _join(every.x, chunk.x, n * chunk.x.squared),
            _join(every.z, chunk.z, p * every.z.squared),
        )
    return every


def _join(one: Moments, other: Moments, more: int) -> Moments:
    products = one.products + other.products + more
    return Moments(one.rows + other.rows, one.squared + other.squared, products)


def auc(counts: PairCounts) -> float:
    """Chance that a positive is predicted above a negative.

    Ties count one half; NaN without pairs. Constant predictions give 1/2. Blind to calibration, to the
    operating range, and to unequal costs of errors; easy negatives raise it.
    """
    pairs = 2 * counts.positives * counts.negatives
    return counts.wins / pairs if pairs else math.nan


def auc_error(counts: PairCounts) -> float:
    """Standard error of the AUC, for independent rows.

    Rows of one user are not independent: prefer the bootstrap over users where users matter. A row with a
    weight is one row: with w times as many rows the error would be smaller. Source: DeLong, DeLong and
    Clarke-Pearson 1988; with weights, the mean squared distance of placements is that of a weighted mean,
    m / (m - 1) sum w^2 (x - mean x)^2 / (sum w)^2.
    """
    if counts.x.rows < 2 or counts.z.rows < 2:
        return math.nan
    both = 4 * (counts.positives * counts.negatives) ** 2
    sides = ((counts.positives, counts.squares_x, counts.x), (counts.negatives, counts.squares_z, counts.z))
    return math.sqrt(sum(_spread(counts.wins, *side, both) for side in sides))


def _spread(wins: int, weight: int, squares: int, side: Moments, both: int) -> float:
    """Return one outcome's part of the AUC's variance."""
    # In whole numbers until the division, since the terms nearly cancel.
    spread = weight * weight * squares - 2 * weight * wins * side.products + wins * wins * side.squared
    return side.rows * spread / ((side.rows - 1) * weight * weight * both)


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
    p: Floats, y: Floats, above: tuple[int, int], within: tuple[float, float], w: Ints | None = None
) -> tuple[int, float]:
    """Area under the ROC curve for one range of predictions.

    The area counts (positive, negative) pairs. Rows with equal p form a line on the curve, from (N, P) to
    (N + m, P + h), N negatives and P positives being predicted above: its area is m P + m h / 2, in part a
    P + a^2 h / (2 m).

    Args:
        p, y: (n,) rows in the range, in any order; rows with equal p are in one range.
        above: positives and negatives predicted above the range.
        within: area bounds, in negatives from the top.
        w: (n,) whole weights, which are counted instead of rows.

    Returns:
        Twice the area under lines within the bounds, a whole number; and the area under lines cut by a
        bound.
    """
    h, m = _sum_runs(np.unique(-p, return_inverse=True)[1], y, w)
    p_above, start = above[0] + np.cumsum(h) - h, above[1] + np.cumsum(m) - m
    low, high = within
    whole = (start >= low) & (start + m <= high)
    cut = ~whole & (start + m > low) & (start < high)
    first, up, right, height = (each[cut].astype(np.float64) for each in (start, h, m, p_above))
    a, b = (np.clip(bound - first, 0, right) for bound in within)
    area = height * (b - a) + up * (b - a) * (b + a) / (2 * right)
    return _exact_weighted_sum(m[whole], (2 * p_above + h)[whole]), math.fsum(area)


def area_share(twice: int, cut: Sequence[float], pairs: int, rates: tuple[float, float]) -> float:
    """Return the partial AUC from all ranges' areas (`roc_area`).

    NaN without pairs.
    """
    return (twice / 2 + math.fsum(cut)) / (pairs * (rates[1] - rates[0])) if pairs else math.nan


def user_aucs(offsets: Ints, p: Floats, y: Floats, w: Floats | None = None) -> tuple[Floats, Floats]:
    """Return each user's AUC and positives: (u,), (u,).

    NaN without positives or negatives. With weights w (n,), above 0, pairs and positives are weighted.
    """
    check_finite(p, "predictions")
    _check_binary(y)
    user = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    # Equal predictions are added in order of outcome and weight, so no order of the rows changes a bit.
    order = np.lexsort((p, user) if w is None else (w, y, p, user))
    weights = np.ones(len(p)) if w is None else w[order]
    wins, positives, negatives = _count_user_pairs(offsets, p[order], y[order], weights)
    return divide(wins, 2 * positives * negatives, np.nan), positives


@compile_with_python_errors
def _count_user_pairs(offsets: Ints, p: Floats, y: Floats, w: Floats) -> Floats:
    """Add each user's wins, positives and negatives: (3, u).

    Rows are in order of prediction.
    """
    sums = np.zeros((3, len(offsets) - 1))
    for u in range(len(offsets) - 1):
        n = offsets[u]
        while n < offsets[u + 1]:
            first, positives, negatives = p[n], 0.0, 0.0
            while n < offsets[u + 1] and p[n] == first:
                if y[n] == 1:
                    positives += w[n]
                else:
                    negatives += w[n]
                n += 1
            sums[0, u] += positives * (2 * sums[2, u] + negatives)
            sums[1, u] += positives
            sums[2, u] += negatives
    return sums


def gauc_parts(offsets: Ints, p: Floats, y: Floats, w: Floats | None = None) -> Floats:
    """Return each user's AUC_u P_u and P_u, (u, 2).

    NaN for users without an AUC. With weights P_u is the weight of the positives.
    """
    value, positives = user_aucs(offsets, p, y, w)
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
