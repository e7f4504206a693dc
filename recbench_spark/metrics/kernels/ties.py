"""Expected values over all orders of a tie.

They concern its first hit, and its hits where a cut-off goes through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints


def first_in_tie(
    above: Ints, size: Ints, relevant: Floats, ks: Sequence[int], depth: int
) -> tuple[Floats, Floats]:
    """Return P(hit by k) and E(1 / first rank), (t, c + 1).

    The first hit lies in a tie; a first rank beyond k counts 0. S_j, the chance of no hit among the first
    j in the tie, is prod_{i<=j} 1 - R / (m - i + 1); the first hit is at j with chance S_{j-1} R / (m - j +
    1).
    """
    start, chance = _chances(size, relevant, 0, depth)
    survival = np.column_stack([start, start[:, -1] * (1 - chance[:, -1])])
    at_rank = start * chance / (above[:, None] + np.arange(1.0, depth + 1))
    reciprocal = np.column_stack([np.zeros(len(above)), np.cumsum(at_rank, axis=1)])
    shown = np.clip(np.minimum(ks, depth) - above[:, None], 0, size[:, None])
    hit_chance = 1.0 - np.take_along_axis(survival, shown, axis=1)
    at_k = np.take_along_axis(reciprocal, shown, axis=1)
    uncut = _first_reciprocal(above, size, relevant)
    return np.column_stack([hit_chance, np.ones(len(above))]), np.column_stack([at_k, uncut])


def _chances(size: Ints, relevant: Floats, first: int, count: int) -> tuple[Floats, Floats]:
    """Return S_{j-1} / S_first and R / (m - j + 1).

    For places j = first + 1 .. first + count in a tie.
    """
    remaining = size[:, None] - np.arange(first, first + count)
    chance = np.clip(relevant[:, None] / np.maximum(remaining, 1), 0.0, 1.0)
    chance[remaining < 1] = 1.0
    start = np.cumprod(np.column_stack([np.ones(len(size)), 1 - chance[:, :-1]]), axis=1)
    return start, chance


def _first_reciprocal(above: Ints, size: Ints, relevant: Floats) -> Floats:
    """Return E(1 / first relevant item's rank) over all orders.

    Ties are given by (a, m, R).
    """
    ties = np.column_stack([above, size, relevant.astype(np.int64)])
    distinct, back = np.unique(ties, axis=0, return_inverse=True)
    a, m, r = distinct[:, 0], distinct[:, 1], distinct[:, 2]
    value = np.where(m == 1, 1.0 / (a + 1.0), (harmonic(a + m) - harmonic(a)) / m)
    many = np.flatnonzero(r > 1)
    value[many] = 0.0
    survival = np.ones(len(many))
    block = 256
    for first in range(0, int(m[many].max(initial=0)), block):
        start, chance = _chances(m[many], r[many].astype(np.float64), first, block)
        rank = a[many, None] + np.arange(first + 1.0, first + block + 1)
        value[many] += survival * (start * chance / rank).sum(axis=1)
        survival = survival * start[:, -1] * (1 - chance[:, -1])
    return value[back.reshape(-1)]


@dataclass(frozen=True)
class CutTie:
    """Ties cut by a cut-off, one value per tie, (t,).

    Attributes:
        above: ranks above the tie.
        shown: places in the tie above the cut-off.
        size: items in the tie.
        relevant: relevant ones among them.
        prior: relevant items above the tie.
        earlier: sum of precisions at relevant items above the tie.
    """

    above: Ints
    shown: Ints
    size: Ints
    relevant: Floats
    prior: Floats
    earlier: Floats


def average_precision_over_orders(tie: CutTie) -> Floats:
    """Return the mean precision at hits, over all orders.

    An order without hits counts 0. The shown places hold h relevant items with a hypergeometric chance.
    Each place at j = 1 .. n is then relevant with chance h / n, after (h - 1) (j - 1) / (n - 1) others in
    the tie: precision (C + 1 + (h - 1) (j - 1) / (n - 1)) / (a + j). The sum over j needs H(a + n) - H(a)
    alone. The chances have an error about 1e-13 times the logarithm of the number of orders.
    """
    n, a, prior = tie.shown, tie.above, tie.prior
    reciprocals = harmonic(a + n) - harmonic(a)
    later = (n - (a + 1) * reciprocals) / np.maximum(n - 1, 1)
    value = np.zeros(len(n))
    for h in range(int(np.minimum(tie.relevant, n).max(initial=0)) + 1):
        precisions = h / n * ((prior + 1) * reciprocals + (h - 1) * later)
        hits = np.maximum(prior + h, 1)
        value += _hit_chance(tie, h) * (tie.earlier + precisions) / hits
    return value


def _hit_chance(tie: CutTie, h: int) -> Floats:
    """Return the chance for h relevant shown items, (t,)."""
    others = tie.size - tie.relevant
    possible = (h <= tie.relevant) & (h <= tie.shown) & (tie.shown - h <= others)
    logarithm = (
        _log_choices(tie.relevant, np.where(possible, h, 0))
        + _log_choices(others, np.where(possible, tie.shown - h, 0))
        - _log_choices(tie.size, tie.shown)
    )
    return np.where(possible, np.exp(logarithm), 0.0)


def _log_choices(n: npt.NDArray[Any], k: npt.NDArray[Any]) -> Floats:
    """Return log(n! / (k! (n - k)!))."""
    from scipy.special import gammaln  # noqa: PLC0415 (half a second that few need)

    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0), dtype=np.float64)


def harmonic(n: npt.NDArray[Any]) -> Floats:
    """Return H(n) = 1 + 1/2 + ... + 1/n."""
    from scipy.special import digamma  # noqa: PLC0415 (half a second that few need)

    return np.asarray(digamma(n + 1.0) + np.euler_gamma, dtype=np.float64)
