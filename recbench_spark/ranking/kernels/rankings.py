"""Truth ranks as the few whole numbers behind every metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Rankings:
    """Truth items' ranks among candidates, for u users.

    Attributes:
        offsets: int64 (u + 1,); user u has the truth items `offsets[u]:offsets[u + 1]`.
        relevance: float64 (p,), each truth item's grade, relevant or not.
        above: int64 (p,), candidates with a strictly higher score; -1: the item is not ranked.
        tied: int64 (p,), other candidates with exactly the same score, truth items included.
        before: int64 (p,), tied candidates coming first by item id, or by hash under `ties=hashed`.
        length: int64 (u,), ranked candidates; 0: the system gave this user no output.
    """

    offsets: Ints
    relevance: Floats
    above: Ints
    tied: Ints
    before: Ints
    length: Ints

    def users(self, start: int, stop: int) -> Rankings:
        """Return the rankings for users start..stop - 1."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return Rankings(
            self.offsets[start : stop + 1] - first,
            self.relevance[first:last],
            self.above[first:last],
            self.tied[first:last],
            self.before[first:last],
            self.length[start:stop],
        )


def mark_relevant(grades: Floats, threshold: float | None) -> Bools:
    """Mark grades at or above the threshold.

    Without a threshold, grades above 0 are marked.
    """
    return grades > 0 if threshold is None else raise_to_bounds(grades, [threshold]) >= threshold


def raise_to_bounds(values: Floats, bounds: Iterable[float]) -> Floats:
    """Raise rounded values to the bounds they stand for.

    A float32 column holds .7 as .69999999. So a value equal to a bound rounded down to float32 or float16
    becomes the bound itself.
    """
    raised = values
    for bound in bounds:
        for rounded in list_roundings(bound):
            raised = np.where(raised == rounded, bound, raised)
    return raised


def list_roundings(bound: float) -> list[float]:
    """Return the bound in float32 and float16, where rounded down.

    >>> list_roundings(0.7), list_roundings(0.5)
    ([0.699999988079071], [])
    """
    with np.errstate(over="ignore"):
        stored = (float(np.float32(bound)), float(np.float16(bound)))
    return [number for number in dict.fromkeys(stored) if -np.inf < number < bound]
