"""Exact sums of float64 numbers at any scale.

The bits are the same in any order and partitioning. A number is cut, at fixed places in its binary digits,
into whole numbers of 40 bits ("limbs"): value = sum over q of limb_q 2^(40 q - 26). Whole numbers add up in
any order, and no number is too small or too large to have a limb: sums of 1e-300 are as exact as sums of
1e300. Two limbs hold most numbers.

Axes: l limbs, u users (or rows), c columns, b bootstrap replicates. NaN counts nothing.

Source: Kulisch 2011, "Very fast and exact accumulation of products" (a fixed-point register as long as the
numbers' range), cut into limbs, of which only those in use are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors
from recbench_spark.core.resampling import BLOCK, poisson_weights
from recbench_spark.errors import DataError

LIMB_BITS = 40
"""A block of 256 users with weights up to 20 adds up to less than 2^53, which float64 holds exactly."""

SHIFT = 26
"""Limbs part at 2^-26 and 2^14: values of users, to 41 digits, seldom need more than two."""

DROPPED_BITS = 12
"""The bootstrap adds up values to 53 - 12 = 41 binary digits: a relative error of 2.3e-13 at most."""

ROWS = 1 << 13
"""Rows cut and added before limbs are carried: whole numbers stay below 2^62, and memory small."""

SIZE, INFINITE, LAST = (1 << 63) - 1, 0x7FF << 52, 2046
"""A number's 64 bits: all but its sign, infinity's (NaN is above), the last exponent."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Exact sums as limbs, to be added in any order.

    low: place q of the first limb; limbs: int64 (l, ...), lowest first. Equal totals may be held in
    different limbs: compare `floats` or `fractions`.
    """

    low: int
    limbs: Ints

    def __add__(self, other: Sums) -> Sums:
        """Return the sums over both."""
        low = min(self.low, other.low)
        high = max(self.low + len(self.limbs), other.low + len(other.limbs))
        total = np.zeros((high - low, *self.limbs.shape[1:]), dtype=np.int64)
        for one in (self, other):
            total[one.low - low : one.low - low + len(one.limbs)] += one.limbs
        return Sums(low, _carry(total))

    def floats(self) -> Floats:
        """Return the sums as float64: (...).

        The relative error is a few 2^-53; they are 0 where they cancel.
        """
        total: Floats = np.zeros(self.limbs.shape[1:])
        # From the top: where signs differ the first steps cancel exactly.
        for place in range(len(self.limbs) - 1, -1, -1):
            limb, power = self.limbs[place].astype(np.float64), LIMB_BITS * (self.low + place) - SHIFT
            # 2^power alone may be beyond float64.
            total += limb * 2.0**power if abs(power) < 1000 else np.ldexp(limb, power)
        return total

    def fractions(self) -> list[Fraction]:
        """Return the exact sums, flat."""
        unit = Fraction(2) ** (LIMB_BITS * self.low - SHIFT)
        flat = self.limbs.reshape(len(self.limbs), -1).T.tolist()
        return [unit * sum(limb << (LIMB_BITS * i) for i, limb in enumerate(limbs)) for limbs in flat]

    def nearest(self) -> Floats:
        """Return the float64 nearest to each sum: (...).

        This is slow, and meant for few sums.
        """
        floats = np.array([float(total) for total in self.fractions()], dtype=np.float64)
        return floats.reshape(self.limbs.shape[1:])

    def numbers(self) -> Ints:
        """Return one flat row of whole numbers, for `from_numbers`."""
        return np.concatenate([[self.low], self.limbs.ravel()]).astype(np.int64)


def from_numbers(numbers: Ints, shape: tuple[int, ...]) -> Sums:
    """Restore sums with this shape from `Sums.numbers`."""
    # Without replicates the sums hold no numbers, so their count cannot give the number of limbs.
    limbs = numbers[1:].reshape(-1, *shape) if 0 not in shape else np.zeros((1, *shape), dtype=np.int64)
    return Sums(int(numbers[0]), limbs)


def total_from_rows(rows: Iterable[Any], shape: tuple[int, ...]) -> Sums:
    """Add all tasks' sums, from rows of an Arrow column.

    `Sums.numbers` wrote them.
    """
    return _add_parts([from_numbers(row.values.to_numpy(), shape) for row in rows])


def exact_sums(values_uc: Floats) -> Sums:
    """Return column sums, (c,), without any error.

    Add them up in any order. Raises DataError for infinite values.
    """
    one = group_sums(np.zeros(len(values_uc), dtype=np.int64), values_uc, 1)
    return Sums(one.low, one.limbs[:, 0])


def group_sums(index_n: Ints, values_nc: Floats, count: int) -> Sums:
    """Return exact sums of each index's rows, (count, c).

    A user's rows may lie in several batches.
    """
    low, length = _places(values_nc)
    return _add_parts(
        [
            Sums(low, _carry(_cut(values_nc[rows], index_n[rows], low, (length, count))))
            for rows in _row_blocks(len(values_nc))
        ]
    )


def bootstrap_sums(keys: npt.NDArray[Any], values_uc: Floats, replicates: int, seed: int) -> Sums:
    """Return each replicate's weighted sums, (b, c).

    The weights are those of `resampling.poisson_weights`. Values are rounded to 41 binary digits first; the
    rounded values' sums are exact. Raises DataError for infinite values.
    """
    values = round_binary(values_uc)
    low, length = _places(values)
    parts = []
    for rows in _row_blocks(len(keys)):
        part = values[rows]
        limbs = _cut(part, np.arange(len(part)), low, (length, len(part)))
        parts.append(Sums(low, _weigh_limbs(keys[rows], limbs, replicates, seed)))
    return _add_parts(parts)


def bootstrap_groups(keys: npt.NDArray[Any], sums: Sums, replicates: int, seed: int) -> Sums:
    """Return `bootstrap_sums` of users given as exact sums.

    `group_sums` makes them, (u, c).
    """
    parts = [
        Sums(sums.low, _weigh_limbs(keys[rows], sums.limbs[:, rows], replicates, seed))
        for rows in _row_blocks(len(keys))
    ]
    return _add_parts(parts)


def round_binary(values: Floats) -> Floats:
    """Round values to 41 binary digits, halves away from 0."""
    half, mask = np.int64(1 << (DROPPED_BITS - 1)), np.int64(-1 << DROPPED_BITS)
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    return np.where(np.isfinite(values), ((bits + half) & mask).view(np.float64), values)


def _row_blocks(rows: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, max(rows, 1), ROWS)]


def _add_parts(parts: list[Sums]) -> Sums:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _places(values: Floats) -> tuple[int, int]:
    """Return the values' first limb and number of limbs.

    The number is one limb if all values are 0.
    """
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    least, most = _exponents(bits.reshape(-1))
    if most > LAST:
        raise DataError("an infinite value cannot be added up", "drop or repair these rows")
    if most < 0:
        return 0, 1
    # Exponents of the last and first digit: a number is m 2^(exponent - 1075), m below 2^53.
    low, high = (least - 1075 + SHIFT) // LIMB_BITS, (most - 1075 + 52 + SHIFT) // LIMB_BITS
    return low, high - low + 1


@compile_with_python_errors
def _exponents(bits_n: Ints) -> tuple[int, int]:
    """Return the smallest and largest exponent, without 0 and NaN.

    The result is (2048, -1) if there is no other number.
    """
    least, most = 2048, -1
    for n in range(len(bits_n)):
        size = bits_n[n] & SIZE
        if size == 0 or size > INFINITE:
            continue
        exponent = max(size >> 52, 1)
        least, most = min(least, exponent), max(most, exponent)
    return least, most


def _cut(values_nc: Floats, index_n: Ints, low: int, shape: tuple[int, int]) -> Ints:
    """Return limbs of the values, added by index.

    The limbs are int64 (l, count, c), each below rows x 2^40 in size.
    """
    limbs = np.zeros((*shape, values_nc.shape[1]), dtype=np.int64)
    bits = np.ascontiguousarray(values_nc, dtype=np.float64).view(np.int64)
    _add_limbs(bits, np.ascontiguousarray(index_n), LIMB_BITS * low - SHIFT, limbs)
    return limbs


@compile_with_python_errors
def _add_limbs(bits_nc: Ints, index_n: Ints, first: int, limbs: Ints) -> None:
    """Add the limbs of these bits.

    `first`: the first limb's power of two.
    """
    full = (1 << LIMB_BITS) - 1
    for n in range(bits_nc.shape[0]):
        for c in range(bits_nc.shape[1]):
            size = bits_nc[n, c] & SIZE
            if size == 0 or size > INFINITE:
                continue
            sign = 1 if bits_nc[n, c] >= 0 else -1
            exponent = max(size >> 52, 1)
            digits = size & ((1 << 52) - 1)
            if size >> 52:
                digits |= 1 << 52
            above = exponent - 1075 - first
            place, shift = above // LIMB_BITS, above % LIMB_BITS
            own = LIMB_BITS - shift
            limbs[place, index_n[n], c] += sign * ((digits & ((1 << own) - 1)) << shift)
            digits >>= own
            while digits:
                place += 1
                limbs[place, index_n[n], c] += sign * (digits & full)
                digits >>= LIMB_BITS


def _weigh_limbs(keys: npt.NDArray[Any], limbs_luc: Ints, replicates: int, seed: int) -> Ints:
    """Return weighted sums of limbs, int64 (l, b, c), carried.

    Columns of zeros are not multiplied.
    """
    used_lc = limbs_luc.any(axis=1)
    columns = np.moveaxis(limbs_luc, 1, 0)[:, used_lc].astype(np.float64)
    sums = np.zeros((replicates, columns.shape[1]), dtype=np.int64)
    for start in range(0, len(keys), BLOCK):
        weights = poisson_weights(keys[start : start + BLOCK], replicates, seed)
        # Exact in any order of summation: whole numbers below 2^53 (see LIMB_BITS).
        sums += (weights.astype(np.float64).T @ columns[start : start + BLOCK]).astype(np.int64)
    total = np.zeros((len(limbs_luc), replicates, limbs_luc.shape[2]), dtype=np.int64)
    place, column = np.nonzero(used_lc)
    total[place, :, column] = sums.T
    return _carry(total)


def _carry(limbs: Ints) -> Ints:
    """Return the same sums with limbs in 0 .. 2^40 - 1.

    The top limb is below 2^40 in size.
    """
    limbs = limbs.copy()
    for place in range(len(limbs) - 1):
        over = limbs[place] >> LIMB_BITS
        limbs[place] -= over << LIMB_BITS
        limbs[place + 1] += over
    if len(limbs) and (np.abs(limbs[-1]) >> LIMB_BITS).any():
        return _carry(np.concatenate([limbs, np.zeros_like(limbs[-1:])]))
    return limbs
