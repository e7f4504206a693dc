"""Means, standard errors and bootstrap intervals over users.

They are the same in any order of users. Floating-point sums depend on the order of their terms; sums of
integers do not. So values are rounded once to a fixed point and only integers are added: any partitioning,
batch size or device gives the same bits. Axes: u users, c columns (metric x cut-off), b bootstrap
replicates. NaN marks a user left out of a column.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors, readonly
from recbench_spark.core.hashing import GAMMA, mix, stream
from recbench_spark.core.threads import one_thread_products
from recbench_spark.errors import DataError

HIGH_BITS, LOW_BITS = 20, 32
"""A value is high 2^-20 + low 2^-52 with 0 <= low <= 2^32: sums of 2^30 values fit in int64."""

LARGEST = 2.0**23
"""Largest allowed value; no sum may exceed 2^43, e.g. 10^9 users of 8,000 each."""

BOOTSTRAP_BITS = 30
"""Resolution of values in the bootstrap's sums: 2^-30, far below the bootstrap's own error."""

BLOCK = 256
"""Number of users weighted at once: 2 MB of weights at 1,000 replicates stay in cache."""

FEW_COLUMNS = 512
"""Columns whose products take one thread of the BLAS library: more threads spin longer than they work. For
4,096 users and 1,000 replicates on two busy cores, 512 columns took 0.17 seconds of CPU time by one thread,
and 0.33 by two; 65 columns took 0.03 and 0.25."""


RARE = 8
"""Columns where at most one row of so many is not 0 are added up one by one. For 256 users and 60 columns a
product of matrices takes .52 ms, and one by one 2, 10 and 30 % take .11, .29 and .90."""


def exact_sums(values_uc: Floats) -> Ints:
    """Return fixed-point column sums; NaN counts as nothing.

    The sums are int64 (c, 2), high and low part. Add them in any order and partitioning, then `from_sums`.
    Each value is rounded to a multiple of 2^-52 (error at most 2^-53). Raises DataError for values above
    2^23 and infinite ones.
    """
    return _sum_fixed(values_uc)[..., 1:3].copy()


def _sum_fixed(values_uc: Floats) -> Ints:
    """Return counted numbers and fixed-point sums, int64 (c, 3).

    Errors as `exact_sums`.
    """
    sums = np.zeros((*values_uc.shape[1:], 3), np.int64)
    columns = int(np.prod(values_uc.shape[1:]))
    values = np.ascontiguousarray(values_uc, np.float64).reshape(len(values_uc), columns)
    if not _add_fixed(readonly(values), sums.reshape(columns, 3)):
        raise DataError(
            f"a value of {np.nanmax(np.abs(values))} is too large for an exact sum",
            f"rescale the values to at most {LARGEST:,.0f}",
        )
    return sums


def from_sums(sums_c2: Ints) -> Floats:
    """Return the sums as float64, correctly rounded: (c, 2) -> (c,)."""
    return np.array([float(total) for total in _fractions(sums_c2)])


def moments(values_uc: Floats) -> Ints:
    """Return moments for mean and standard error.

    Moments are int64 (c, 5), to be added in any order. Columns: users counted, sum (high, low), sum of
    squares (high, low). Values up to 2,896.
    """
    return np.concatenate([_sum_fixed(values_uc), exact_sums(values_uc * values_uc)], axis=1)


def mean_and_error(moments_c5: Ints) -> tuple[Floats, Floats, Ints]:
    """Return mean, its standard error and n, each (c,).

    The variance divides by n - 1. NaN without users; the standard error is NaN below two users. The
    arithmetic is in exact fractions, so nothing cancels if all users have nearly one value.
    """
    counts = moments_c5[:, 0]
    sums, squares = _fractions(moments_c5[:, 1:3]), _fractions(moments_c5[:, 3:5])
    pairs = [_mean_and_error(int(n), s, q) for n, s, q in zip(counts, sums, squares, strict=True)]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1], counts


RATIO_SHIFT = 2.0**-10
"""Factor for users' sums and counts: their squares, of users with up to 2.9 million rows, are summable."""


def ratio_moments(sums_uc: Floats, counts_uc: Floats) -> Ints:
    """Return moments for a mean over rows, with dependent rows per user.

    Moments are int64 (c, 7), to be added in any order. Columns: users with a counted row; sums over users
    of s^2, s n and n^2 (high, low) for a user's sum s and counted rows n, both times RATIO_SHIFT.
    """
    users = (counts_uc > 0).sum(axis=0).astype(np.int64)
    s, n = sums_uc * RATIO_SHIFT, counts_uc * RATIO_SHIFT
    return np.concatenate([users[:, None], *(exact_sums(part) for part in (s * s, s * n, n * n))], axis=1)


def row_mean_and_error(moments_c12: Ints) -> tuple[Floats, Floats, Ints, Ints]:
    """Return means over rows, standard errors, rows and users, (c,) each.

    moments_c12: from `moments` over rows, then `ratio_moments`. Users are independent, their rows are not:
    the error is the linearised one of a ratio of sums over users, with U / (U - 1). Source: Cochran 1977,
    Sampling Techniques, section 6.3. Where no user has two rows it is the error of `mean_and_error`.
    """
    rows, users = moments_c12[:, 0], moments_c12[:, 5]
    if (rows == users).all():
        return (*mean_and_error(moments_c12[:, :5]), users)
    totals = _fractions(moments_c12[:, 1:3])
    squares_c3 = list(zip(*(_fractions(moments_c12[:, at : at + 2]) for at in (6, 8, 10)), strict=True))
    pairs = [
        _ratio_and_error(*one)
        for one in zip(rows.tolist(), users.tolist(), totals, squares_c3, strict=True)
    ]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1], rows, users


def poisson_weights(keys: npt.NDArray[Any], replicates: int, seed: int) -> npt.NDArray[np.int8]:
    """Draw users' bootstrap weights: int8 (u, b), Poisson(1).

    A weight is a function of (key, replicate, seed). keys: int64 or uint64 (u,), one per user, the same
    whatever the run, model or partition. The same weights for two models make a bootstrap of their
    difference paired. Source: Chamandy et al. 2012, "Estimating uncertainty for massive data streams",
    section 2.
    """
    weights = np.empty((len(keys), replicates), dtype=np.int8)
    _fill_weights(_as_unsigned(keys), np.uint64(seed & MASK), THRESHOLDS, weights)
    return weights


def bootstrap_sums(
    keys: npt.NDArray[Any], values_uc: Floats, replicates: int, seed: int
) -> tuple[Ints, Ints]:
    """Return each replicate's weighted sums and total weights.

    Sums and weights are int64 (b, c). Sums are multiples of 2^-30 (see `replicate_means`); both may be
    added over any partitioning of the users. Users with NaN in a column enter neither.
    """
    columns = values_uc.shape[1]
    fixed, counts_c2 = np.empty(values_uc.shape), np.zeros((columns, 2), np.int64)
    largest = _fix_values(readonly(np.ascontiguousarray(values_uc, np.float64)), fixed, counts_c2)
    patterns, pattern_c = _distinct_columns(values_uc, counts_c2[:, 0])
    is_rare = counts_c2[:, 1] * RARE <= len(keys)
    rare, dense = np.flatnonzero(is_rare), np.flatnonzero(~is_rare)
    dense_uc = np.concatenate([fixed[:, dense], patterns], axis=1)
    dense = np.concatenate([dense, columns + np.arange(patterns.shape[1])])
    sums, step = np.zeros((columns + patterns.shape[1], replicates), np.int64), _exact_rows(largest)
    with one_thread_products() if len(dense) <= FEW_COLUMNS else nullcontext():
        for start in range(0, len(keys), step):
            parts = np.zeros((len(dense), replicates)), np.zeros((len(rare), replicates))
            for first in range(start, min(start + step, len(keys)), BLOCK):
                block = slice(first, min(first + BLOCK, start + step))
                weights = poisson_weights(keys[block], replicates, seed)
                # Exact in any order of summation: all terms and partial sums are whole numbers below 2^53
                # (see _exact_rows), which float64 holds and adds without rounding.
                parts[0][:] += dense_uc[block].T @ weights.astype(np.float64)
                _add_rare(fixed[block], rare, weights, parts[1])
            for own, part in zip((dense, rare), parts, strict=True):
                sums[own] += part.astype(np.int64)
    sums = sums.T
    return np.ascontiguousarray(sums[:, :columns]), np.ascontiguousarray(sums[:, columns:][:, pattern_c])


def replicate_means(sums_bc: Ints, totals_bc: Ints) -> Floats:
    """Return each replicate's column means, (b, c).

    NaN: the replicate drew no user.
    """
    means: Floats = np.full(sums_bc.shape, np.nan)
    np.divide(sums_bc * 2.0**-BOOTSTRAP_BITS, totals_bc, out=means, where=totals_bc > 0)
    return means


def replicate_ratios(numerator_bc: Ints, denominator_bc: Ints) -> Floats:
    """Return each replicate's sum(numerator) / sum(denominator), (b, c).

    Numerator and denominator are fixed-point sums.
    """
    ratios: Floats = np.full(numerator_bc.shape, np.nan)
    np.divide(numerator_bc, denominator_bc, out=ratios, where=denominator_bc != 0)
    return ratios


def interval(sums_bc: Ints, totals_bc: Ints, n_c: Ints, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return percentile intervals of column means: low and high, (c,).

    A column has n users.
    """
    return hide_points(*percentile_interval(replicate_means(sums_bc, totals_bc), level), n_c, level)


def percentile_interval(estimates_bc: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the middle `level` of the replicates' estimates.

    Source: Efron and Tibshirani 1993, section 13.3.
    """
    low, high = np.full((2, estimates_bc.shape[1]), np.nan)
    valid = (~np.isnan(estimates_bc)).any(axis=0)
    tails = [(1 - level) / 2, (1 + level) / 2]
    if valid.any():
        low[valid], high[valid] = np.nanquantile(estimates_bc[:, valid], tails, axis=0)
    return low, high


FEW_USERS = 30
"""Users below which bootstrap intervals are marked. For differences in NDCG, 60 % of them 0, intervals of
95 % hold the mean in 37 % of 600 worlds with 2 users, 76 % with 6, 85 % with 10, 92 % with 30 and 95 % with
100."""


def count_fewest_users(level: float = 0.95) -> int:
    """Return the fewest users for a difference at a level.

    All n differences have one sign by chance in 2^(1-n) of all cases, two-sided: with fewer users no test
    based on users alone reaches 1 - level.

    >>> count_fewest_users(0.95), count_fewest_users(0.99)
    (6, 8)
    """
    return 1 + math.ceil(-math.log2(1 - level))


def hide_points(
    low_c: Floats, high_c: Floats, n_c: npt.NDArray[Any], level: float = 0.95
) -> tuple[Floats, Floats]:
    """Return the bounds; NaN hides points from too few users.

    An interval of width 0 from too few users means nothing.
    """
    hidden = (n_c < count_fewest_users(level)) & ~(low_c < high_c)
    return np.where(hidden, np.nan, low_c), np.where(hidden, np.nan, high_c)


def _poisson_thresholds() -> npt.NDArray[np.uint64]:
    """Return 2^64 P(X <= j) for X ~ Poisson(1).

    j = 0, 1, ..., up to where it rounds to 2^64.
    """
    # 1 / e as a fraction, from its alternating series: 26 terms are right to 2^-88.
    factorial, e_inverse = 1, Fraction(1)
    for n in range(1, 27):
        factorial *= n
        e_inverse += Fraction((-1) ** n, factorial)
    total, term, thresholds = Fraction(0), e_inverse, []
    for j in range(20):
        total += term
        term /= j + 1
        thresholds.append(min(int(total * 2**64), MASK))
    return np.array(thresholds, dtype=np.uint64)


MASK = 2**64 - 1
THRESHOLDS = _poisson_thresholds()
NO_VARIANCE = Fraction(1, 1 << 50)
LARGEST_WEIGHT = len(THRESHOLDS)


@compile_with_python_errors
def _fill_weights(
    keys: npt.NDArray[np.uint64],
    seed: np.uint64,
    thresholds: npt.NDArray[np.uint64],
    weights: npt.NDArray[np.int8],
) -> None:
    """Set each weight by comparing its hash with the thresholds.

    The weight is the number of thresholds at or below the hash of (key, replicate, seed). The first six
    comparisons have no branch, so that they run on many replicates at a time; one draw in 1,700 needs more.
    """
    t0, t1, t2, t3, t4, t5 = thresholds[:6]
    for u in range(len(keys)):
        state, row = stream(seed, keys[u]), weights[u]
        for b in range(len(row)):
            draw = mix(state + np.uint64(b + 1) * GAMMA)
            low = np.int8(draw >= t0) + np.int8(draw >= t1) + np.int8(draw >= t2)
            row[b] = low + np.int8(draw >= t3) + np.int8(draw >= t4) + np.int8(draw >= t5)
        for b in range(len(row)):
            if row[b] == 6:
                draw = mix(state + np.uint64(b + 1) * GAMMA)
                while row[b] < len(thresholds) and draw >= thresholds[row[b]]:
                    row[b] += 1


@compile_with_python_errors
def _add_fixed(values_uc: Floats, sums_c3: Ints) -> bool:
    """Add numbers and their fixed-point sums, high and low; False at a value above LARGEST."""
    for u in range(values_uc.shape[0]):
        for c in range(values_uc.shape[1]):
            value = values_uc[u, c]
            if np.isnan(value):
                continue
            if abs(value) > LARGEST:
                return False
            scaled = value * 2.0**HIGH_BITS
            high = np.floor(scaled)
            sums_c3[c, 0] += 1
            sums_c3[c, 1] += np.int64(high)
            sums_c3[c, 2] += np.int64(np.rint((scaled - high) * 2.0**LOW_BITS))
    return True


@compile_with_python_errors
def _fix_values(values_uc: Floats, fixed_uc: Floats, counts_c2: Ints) -> float:
    """Round values to fixed point, NaN to 0, and return the largest size.

    counts_c2: each column's numbers, and those other than 0.
    """
    largest = 1.0
    for u in range(values_uc.shape[0]):
        for c in range(values_uc.shape[1]):
            value = values_uc[u, c]
            if np.isnan(value):
                fixed_uc[u, c] = 0.0
                continue
            fixed_uc[u, c] = np.rint(value * 2.0**BOOTSTRAP_BITS)
            largest = max(largest, abs(fixed_uc[u, c]))
            counts_c2[c, 0] += 1
            counts_c2[c, 1] += fixed_uc[u, c] != 0
    return largest


@compile_with_python_errors
def _add_rare(fixed_uc: Floats, rare: Ints, weights_ub: npt.NDArray[np.int8], sums_rb: Floats) -> None:
    """Add the weighted values of some columns, without those that are 0."""
    for u in range(fixed_uc.shape[0]):
        weights = weights_ub[u]
        for r in range(len(rare)):
            value = fixed_uc[u, rare[r]]
            if value != 0:
                sums = sums_rb[r]
                for b in range(len(weights)):
                    sums[b] += value * weights[b]


def _as_unsigned(keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    if keys.dtype not in (np.int64, np.uint64):
        raise DataError(
            f"bootstrap keys are {keys.dtype}, not int64 or uint64", "hash the user ids to int64"
        )
    return keys.view(np.uint64)


def _distinct_columns(values_uc: Floats, numbers_c: Ints) -> tuple[Floats, list[int]]:
    """Return the distinct columns of marked numbers, and each column's index among them.

    A metric's cut-offs agree. numbers_c: the numbers in each column.
    """
    index: dict[bytes, int] = {}
    marks: list[Floats] = []
    pattern_c: list[int] = []
    for values, numbers in zip(values_uc.T, numbers_c.tolist(), strict=True):
        full = numbers == len(values)
        marked = np.ones(0) if full else ~np.isnan(values)
        pattern_c.append(index.setdefault(marked.tobytes(), len(index)))
        if len(marks) < len(index):
            marks.append(np.ones(len(values)) if full else marked.astype(np.float64))
    return np.stack(marks, axis=1) if marks else np.zeros((len(values_uc), 0)), pattern_c


def _exact_rows(largest: float) -> int:
    """Return how many users' weighted sum stays below 2^53.

    A weighted sum is at most rows x largest weight x largest value in fixed point.
    """
    rows = int(2.0**53 / (LARGEST_WEIGHT * largest))
    if rows < 1 or not np.isfinite(largest):
        raise DataError(
            f"a value of {largest * 2.0**-BOOTSTRAP_BITS:g} is too large for an exact bootstrap",
            "rescale the values below 400,000",
        )
    return rows


def _fractions(sums_c2: Ints) -> list[Fraction]:
    return [
        Fraction((int(high) << LOW_BITS) + int(low), 1 << (HIGH_BITS + LOW_BITS)) for high, low in sums_c2
    ]


def _mean_and_error(n: int, total: Fraction, squares: Fraction) -> tuple[float, float]:
    if n == 0:
        return float("nan"), float("nan")
    if n == 1:
        return float(total), float("nan")
    # Squares are rounded to 2^-52: with a smaller variance all values agree.
    variance = (squares - total * total / n) / (n - 1)
    variance = variance if variance > NO_VARIANCE else Fraction(0)
    return float(total / n), float(variance / n) ** 0.5


def _ratio_and_error(
    rows: int, users: int, total: Fraction, squares: tuple[Fraction, ...]
) -> tuple[float, float]:
    if users < 2:
        return (float(total / rows) if rows else float("nan")), float("nan")
    mean, (ss, sn, nn) = total / rows, squares
    residuals = (ss - 2 * mean * sn + mean * mean * nn) / Fraction(RATIO_SHIFT) ** 2
    variance = residuals * users / (users - 1)
    # Products are rounded to 2^-52 before they are scaled back.
    variance = variance if variance > NO_VARIANCE * users / Fraction(RATIO_SHIFT) ** 2 else Fraction(0)
    return float(mean), float(variance / rows**2) ** 0.5
