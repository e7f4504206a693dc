"""Ratios of two sums, with their standard errors.

The sums are over users or rounds. A self-normalised estimate is sum(N) / sum(D), and its D varies from
sample to sample as N does. With D = 1 it is a mean. State: whole numbers to add up in any order
(`resampling.exact_sums`).

Axes: u users or rounds, c columns. A row with NaN in either part is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors
from recbench_spark.core.resampling import exact_sums
from recbench_spark.core.sums import Sums
from recbench_spark.core.sums import exact_sums as exact_sums_of

BITS = 10
"""Scaled parts lie below 2^10, so that their squares fit into an exact sum."""

HALVES = 2.0**27 + 1.0
"""Cuts a float64 into its upper 26 binary digits and the rest (Veltkamp)."""


def scaling(largest: float) -> float:
    """Return the power of two to scale parts by.

    The power brings parts of at most this size to 2^9..2^10; it is 1 for 0. Weights may range over many
    orders of magnitude. Multiplying by a power of two loses nothing, and the later rounding to 2^-52
    changes less than 2^-61 of the largest part. With scalings f and g, a ratio of parts is g / f times the
    scaled one.

    >>> scaling(1.0), scaling(3e6)
    (1024.0, 0.000244140625)
    """
    # Powers of two beyond 2^1023 are not float64; parts below 2^-1000 stay below 2^9.
    return 2.0 ** min(BITS - math.ceil(math.log2(largest)), 1000) if largest > 0 else 1.0


def ratio_moments(numerator_uc: Floats, denominator_uc: Floats) -> Ints:
    """Return moments for a ratio and its standard error.

    Moments are int64 (c, 11), to be added in any order. Columns: parts counted, then (high, low) of the
    sums of N, D, N^2, N D and D^2.
    """
    n, d = np.broadcast_arrays(numerator_uc, denominator_uc)
    left_out = np.isnan(n) | np.isnan(d)
    n, d = np.where(left_out, np.nan, n), np.where(left_out, np.nan, d)
    counted = (~left_out).sum(axis=0).astype(np.int64)[:, None]
    return np.concatenate([counted, *(exact_sums(part) for part in (n, d, n * n, n * d, d * d))], axis=1)


def ratio_and_error(moments_c11: Ints) -> tuple[Floats, Floats, Ints]:
    """Return sum(N) / sum(D), its standard error, and counts.

    Each is (c,). The error is by the delta method: variance n / (n - 1) sum (N - v D)^2 / (sum D)^2, which
    for D = 1 is a mean's. NaN if sum(D) = 0, the error also below two parts. Cochran 1977, "Sampling
    techniques", 2.11.
    """
    fractions = [
        [Fraction((h << 32) + low, 1 << 52) for h, low in zip(row[1::2], row[2::2], strict=True)]
        for row in moments_c11.tolist()
    ]
    counts = moments_c11[:, 0]
    pairs = [_ratio_and_error(int(n), parts) for n, parts in zip(counts, fractions, strict=True)]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1], counts


def exact_moments(numerator_uc: Floats, denominator_uc: Floats) -> Sums:
    """Return the moments without any rounding: sums (6, c).

    Parts may have every size. The columns are parts counted, N, D, N^2, N D and D^2. Parts should be scaled
    (`scaling`), so that the products' rounding errors, which are added too, stay within float64.
    """
    n, d = np.broadcast_arrays(numerator_uc, denominator_uc)
    parts = np.zeros((len(n), 9, n.shape[1]))
    _fill_parts(np.ascontiguousarray(n), np.ascontiguousarray(d), parts)
    sums = exact_sums_of(parts.reshape(len(n), -1))
    limbs = sums.limbs.reshape(len(sums.limbs), 9, -1)
    limbs[:, 3:6] += limbs[:, 6:]
    return Sums(sums.low, np.ascontiguousarray(limbs[:, :6]))


@compile_with_python_errors
def _fill_parts(numerator_uc: Floats, denominator_uc: Floats, parts: Floats) -> None:
    """Fill in 1, N, D, N^2, N D and D^2.

    The three products' rounding errors follow.
    """
    for u in range(len(numerator_uc)):
        for c in range(numerator_uc.shape[1]):
            n, d = numerator_uc[u, c], denominator_uc[u, c]
            if np.isnan(n) or np.isnan(d):
                continue
            parts[u, 0, c], parts[u, 1, c], parts[u, 2, c] = 1.0, n, d
            parts[u, 3, c], parts[u, 4, c], parts[u, 5, c] = n * n, n * d, d * d
            parts[u, 6, c] = _product_error(n, n)
            parts[u, 7, c] = _product_error(n, d)
            parts[u, 8, c] = _product_error(d, d)


@compile_with_python_errors
def _product_error(x: float, y: float) -> float:
    """Return x y minus the float64 product, exactly.

    Source: Dekker 1971, "A floating-point technique", 5.
    """
    far_x, far_y = x * HALVES, y * HALVES
    x_high, y_high = far_x - (far_x - x), far_y - (far_y - y)
    x_low, y_low = x - x_high, y - y_high
    return x_low * y_low - (((x * y - x_high * y_high) - x_low * y_high) - x_high * y_low)


def exact_ratio_and_error(moments: Sums) -> tuple[Floats, Floats, Ints]:
    """Return ratio, standard error and parts counted, from `exact_moments`."""
    columns = np.array(moments.fractions(), dtype=object).reshape(6, -1).T.tolist()
    pairs = [_ratio_and_error(int(column[0]), column[1:]) for column in columns]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1], np.array([int(column[0]) for column in columns], dtype=np.int64)


def _ratio_and_error(count: int, moments: Sequence[Fraction]) -> tuple[float, float]:
    n, d, nn, nd, dd = moments
    if count == 0 or d == 0:
        return math.nan, math.nan
    value = n / d
    if count == 1:
        return float(value), math.nan
    # Rounded squares can give slightly less than 0 if all ratios agree.
    spread = max(nn - 2 * value * nd + value * value * dd, Fraction(0))
    return float(value), float(spread * count / (count - 1) / d**2) ** 0.5
