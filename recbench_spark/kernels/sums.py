"""Sums of float64 numbers at any scale, the same bits in any order and partitioning.

A number is cut, at fixed places of its binary digits, into whole numbers of 40 bits ("limbs"): value =
sum over q of limb_q 2^(40 q - 26). Whole numbers add up in any order, and none is too small or too
large to have a limb: sums of 1e-300 are as exact as sums of 1e300. Two limbs hold most numbers.

Axes: l limbs, u users (or rows), c columns, b bootstrap replicates. NaN counts nothing.

Source: Kulisch 2011, "Very fast and exact accumulation of products" (a fixed-point register as long as
the range of the numbers), cut into limbs of which only those in use are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.errors import DataError
from recbench_spark.kernels.resampling import BLOCK, poisson_weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LIMB_BITS = 40
"""A block of 256 users with weights up to 20 adds up to less than 2^53, which float64 holds exactly."""

SHIFT = 26
"""Limbs part at 2^-26 and 2^14: what users have, to 41 digits, seldom needs more than two."""

DROPPED_BITS = 12
"""The bootstrap adds up values to 53 - 12 = 41 binary digits: a relative error of 2.3e-13 at most."""

ROWS = 1 << 17
"""Rows added up before limbs are carried: 2^17 rows x weight 20 x 2^40 stays below 2^62."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Exact sums: low, the place q of the first limb; limbs, int64 (l, ...), lowest first.

    Equal totals may be held in different limbs: compare `floats` or `fractions`.
    """

    low: int
    limbs: Ints

    def __add__(self, other: Sums) -> Sums:
        """Sums over both."""
        low = min(self.low, other.low)
        high = max(self.low + len(self.limbs), other.low + len(other.limbs))
        total = np.zeros((high - low, *self.limbs.shape[1:]), dtype=np.int64)
        for one in (self, other):
            total[one.low - low : one.low - low + len(one.limbs)] += one.limbs
        return Sums(low, _carried(total))

    def floats(self) -> Floats:
        """The sums as float64, with a relative error of a few 2^-53, 0 where they cancel: (...)."""
        total: Floats = np.zeros(self.limbs.shape[1:])
        # From the top: where signs differ the first steps cancel exactly.
        for place in range(len(self.limbs) - 1, -1, -1):
            total += _times_power(self.limbs[place].astype(np.float64), _unit(self.low + place))
        return total

    def fractions(self) -> list[Fraction]:
        """The sums themselves, flat."""
        unit = Fraction(2) ** _unit(self.low)
        flat = self.limbs.reshape(len(self.limbs), -1).T.tolist()
        return [unit * sum(limb << (LIMB_BITS * i) for i, limb in enumerate(limbs)) for limbs in flat]

    def nearest(self) -> Floats:
        """The float64 nearest to each sum: (...). One by one, for few of them."""
        found = np.array([float(total) for total in self.fractions()], dtype=np.float64)
        return found.reshape(self.limbs.shape[1:])

    def numbers(self) -> Ints:
        """One flat row of whole numbers, for `from_numbers`."""
        return np.concatenate([[self.low], self.limbs.ravel()]).astype(np.int64)


def from_numbers(numbers: Ints, shape: tuple[int, ...]) -> Sums:
    """What `Sums.numbers` wrote, of sums of this shape."""
    return Sums(int(numbers[0]), numbers[1:].reshape(-1, *shape))


def total_of(rows: Iterable[Any], shape: tuple[int, ...]) -> Sums:
    """Sums over all tasks, from what each wrote by `Sums.numbers`, as rows of an Arrow column."""
    return _added([from_numbers(row.values.to_numpy(), shape) for row in rows])


def exact_sums(values_uc: Floats) -> Sums:
    """The sums of each column, (c,), without any error; add them up in any order.

    Raises DataError for infinite values.
    """
    return _total(
        values_uc, lambda low, limbs, rows: Sums(low, _carried(limbs.astype(np.int64).sum(axis=1)))
    )


def bootstrap_sums(keys: npt.NDArray[Any], values_uc: Floats, replicates: int, seed: int) -> Sums:
    """Weighted sums of each replicate, (b, c), by the weights of `resampling.poisson_weights`.

    Values are rounded to 41 binary digits first; the sums of what is left are exact. Raises DataError
    for infinite values.
    """

    def weighted(low: int, limbs: Floats, rows: slice) -> Sums:
        return Sums(low, _weighted(keys[rows], limbs, replicates, seed))

    return _total(rounded(values_uc), weighted)


def rounded(values: Floats) -> Floats:
    """The values to 41 binary digits, halves away from 0."""
    half, mask = np.int64(1 << (DROPPED_BITS - 1)), np.int64(-1 << DROPPED_BITS)
    bits = np.ascontiguousarray(values).view(np.int64)
    return ((bits + half) & mask).view(np.float64)


def grouped(index_n: Ints, values_nc: Floats, count: int) -> Sums:
    """Exact sums of the rows of each index, (count, c): a user's rows may lie in several batches."""

    def added(low: int, limbs: Floats, rows: slice) -> Sums:
        total = np.zeros((len(limbs), count, limbs.shape[2]), dtype=np.int64)
        for place, limb in enumerate(limbs.astype(np.int64)):
            np.add.at(total[place], index_n[rows], limb)
        return Sums(low, _carried(total))

    return _total(values_nc, added)


def bootstrap_grouped(keys: npt.NDArray[Any], sums: Sums, replicates: int, seed: int) -> Sums:
    """As `bootstrap_sums`, of users (u, c) who are exact sums already (see `grouped`)."""
    limbs = sums.limbs.astype(np.float64)
    starts = range(0, len(keys), ROWS)
    parts = [slice(start, start + ROWS) for start in starts]
    found = [Sums(sums.low, _weighted(keys[rows], limbs[:, rows], replicates, seed)) for rows in parts]
    return _added(found)


def _total(values_uc: Floats, add: Callable[[int, Floats, slice], Sums]) -> Sums:
    """`add` of the limbs of some rows at a time."""
    starts = range(0, max(len(values_uc), 1), ROWS)
    parts = [slice(start, start + ROWS) for start in starts]
    return _added([add(*cut(values_uc[rows]), rows) for rows in parts])


def _added(parts: list[Sums]) -> Sums:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def cut(values_uc: Floats) -> tuple[int, Floats]:
    """Place of the first limb, and whole numbers below 2^40, float64 (l, u, c), of every value."""
    rest = np.where(np.isnan(values_uc), 0.0, values_uc)
    size = np.abs(rest)
    if not np.isfinite(size).all():
        raise DataError("an infinite value cannot be added up", "drop or repair these rows")
    low, high = _places(size)
    limbs = np.zeros((high - low + 1, *rest.shape))
    for place in range(high, low - 1, -1):
        limb = np.trunc(_times_power(rest, -_unit(place)))
        limbs[place - low] = limb
        rest -= _times_power(limb, _unit(place))
    return low, limbs


def _places(size: Floats) -> tuple[int, int]:
    """The lowest and the highest limb that these sizes need; one limb where all are 0."""
    positive = size[size > 0]
    if not positive.size:
        return 0, 0
    (_, least), (_, most) = np.frexp(positive.min()), np.frexp(positive.max())
    smallest_digit = max(int(least) - 53, -1074)
    return (smallest_digit + SHIFT) // LIMB_BITS, -(-(int(most) + SHIFT) // LIMB_BITS) - 1


def _unit(place: int) -> int:
    """The power of two that a limb counts."""
    return LIMB_BITS * place - SHIFT


def _times_power(values: Floats, power: int) -> Floats:
    """values x 2^power, where 2^power alone may be beyond float64."""
    return values * 2.0**power if abs(power) < 1000 else np.ldexp(values, power)


def _weighted(keys: npt.NDArray[Any], limbs_luc: Floats, replicates: int, seed: int) -> Ints:
    """Weighted sums of limbs, int64 (l, b, c), carried; columns of zeros are not multiplied."""
    used_lc = limbs_luc.any(axis=1)
    columns = np.ascontiguousarray(np.moveaxis(limbs_luc, 1, 0)[:, used_lc])
    sums = np.zeros((replicates, columns.shape[1]), dtype=np.int64)
    for start in range(0, len(keys), BLOCK):
        weights = poisson_weights(keys[start : start + BLOCK], replicates, seed)
        # Exact in any order of summation: whole numbers below 2^53 (see LIMB_BITS).
        sums += (weights.astype(np.float64).T @ columns[start : start + BLOCK]).astype(np.int64)
    total = np.zeros((len(limbs_luc), replicates, limbs_luc.shape[2]), dtype=np.int64)
    total[np.nonzero(used_lc)[0], :, np.nonzero(used_lc)[1]] = sums.T
    return _carried(total)


def _carried(limbs: Ints) -> Ints:
    """The same sums, all limbs but the top one in 0 .. 2^40 - 1, the top one below 2^40 in size."""
    limbs = limbs.copy()
    for place in range(len(limbs) - 1):
        over = limbs[place] >> LIMB_BITS
        limbs[place] -= over << LIMB_BITS
        limbs[place + 1] += over
    if len(limbs) and (np.abs(limbs[-1]) >> LIMB_BITS).any():
        return _carried(np.concatenate([limbs, np.zeros_like(limbs[-1:])]))
    return limbs
