"""Item strata by propensity, and how many to use.

The state is a histogram: each different propensity has its items and interactions. Propensities from counts
have few different values; others are first rounded up (`round_propensities`). This does not change their
order, so equal mass and equal count, cut at rounded values, hold for the values themselves too. Axes: x
different propensities, ascending; s strata, stratum 0 the least shown; n items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import ConfigError, DataError

Kind = Literal["equal_width", "equal_mass", "equal_count"]

FEWEST, MOST = 2, 10
"""Fewest and most strata."""


@dataclass(frozen=True)
class StratumEdges:
    """Edges: stratum s holds edges[s - 1] < propensity <= edges[s].

    Attributes:
        edges: (s - 1,).
        items, interactions: (s,), their numbers in each stratum.
        kind: the equal quantity.
        requested: number of strata; a few large values can leave fewer.
    """

    kind: Kind
    requested: int
    edges: Floats
    items: Ints
    interactions: Ints

    def assign(self, propensity_n: npt.NDArray[Any]) -> Ints:
        """Return each propensity's stratum, (n,)."""
        return assign(propensity_n, self.edges)

    @property
    def labels(self) -> list[str]:
        """Return Q1, Q2, ..., the most shown last."""
        return [f"Q{s + 1}" for s in range(len(self.items))]


def assign(propensity_n: npt.NDArray[Any], edges: npt.NDArray[Any]) -> Ints:
    """Count the edges below each propensity, int64 (n,)."""
    return np.searchsorted(edges, propensity_n, side="left").astype(np.int64)


def cut(
    kind: Kind,
    n_strata: int,
    propensity_x: npt.NDArray[Any],
    items_x: npt.NDArray[Any],
    interactions_x: npt.NDArray[Any],
) -> StratumEdges:
    """Make strata with equal width, mass or count.

    Width is that of propensities, mass counts interactions, count counts items. The code by Jadidinejad et
    al. 2021 has equal width; nearly all items lie in its first stratum, and a stratum may be empty. Equal
    mass and count cut where the running total is nearest to j / s of the whole (ties: lower); items with
    one propensity stay together.
    """
    if not FEWEST <= n_strata <= MOST:
        raise ConfigError(f"{n_strata} strata", f"ask for {FEWEST} to {MOST}")
    value, items, mass = _histogram(propensity_x, items_x, interactions_x)
    if kind == "equal_width":
        edges = np.linspace(value[0], value[-1], n_strata + 1)[1:-1]
    else:
        edges = value[_nearest_cuts(items if kind == "equal_count" else mass, n_strata)]
    totals = np.zeros((2, len(edges) + 1), dtype=np.int64)
    for total, amount_x in zip(totals, (items, mass), strict=True):
        np.add.at(total, assign(value, edges), amount_x)
    return StratumEdges(kind, n_strata, edges, *totals)


def round_propensities(propensity_n: npt.NDArray[Any], bits: int = 10) -> Floats:
    """Round positive propensities up to `bits` bits of mantissa.

    The relative change is below 2^-bits. The order does not change: p <= q gives rounded(p) <= rounded(q),
    and p <= e exactly if rounded(p) <= e for each rounded e. At most 2^bits different values between two
    powers of two.
    """
    low = np.int64((1 << (52 - bits)) - 1)
    whole = np.asarray(propensity_n, dtype=np.float64).view(np.int64)
    return ((whole + low) & ~low).view(np.float64)


def propose(strata_k: Sequence[int], low_k: Sequence[float], high_k: Sequence[float]) -> int | None:
    """Propose the smallest number of strata with stable values.

    After it, two more steps make no visible change. For each k in strata_k, ascending, low and high are the
    interval of V(next k) - V(k), from one paired bootstrap. k is proposed if this interval and the next one
    contain 0 (at the end, this one); None: no k is proposed.
    """
    agree = [low <= 0 <= high for low, high in zip(low_k, high_k, strict=True)]
    for place, k in enumerate(strata_k[: len(agree)]):
        if all(agree[place : place + 2]):
            return k
    return None


def _histogram(
    propensity_x: npt.NDArray[Any], items_x: npt.NDArray[Any], interactions_x: npt.NDArray[Any]
) -> tuple[Floats, Ints, Ints]:
    value, back = np.unique(np.asarray(propensity_x, dtype=np.float64), return_inverse=True)
    if len(value) < 2 or not np.isfinite(value).all():
        raise DataError(
            f"strata need two different finite propensities, found {len(value)}",
            "all items are shown alike: there is nothing to stratify",
        )
    items, mass = np.zeros((2, len(value)), dtype=np.int64)
    np.add.at(items, back, np.asarray(items_x, dtype=np.int64))
    np.add.at(mass, back, np.asarray(interactions_x, dtype=np.int64))
    return value, items, mass


def _nearest_cuts(amount_x: Ints, n_strata: int) -> Ints:
    """Return each stratum's last value, without the highest stratum.

    Cuts at the same value become one.
    """
    running = np.cumsum(amount_x)[:-1] * n_strata
    wanted = np.arange(1, n_strata) * int(amount_x.sum())
    places = [int(np.argmin(np.abs(running - goal))) for goal in wanted]
    return np.unique(np.array(places, dtype=np.int64))
