"""What is known of a metric beside its value: which end is best, where a report shows it, what it can be.

A metric says so once, where its function is registered; reports, comparisons, the ranges of published
figures and `tests/test_sql_files.py`, which holds the views against it, look it up here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Best = Literal["large", "small", "near 0", "none"]
"""Which values are best; `none`: a fact to be read beside others, such as a base rate."""

Function = TypeVar("Function")

SHARE = (0.0, 1.0)
NOT_NEGATIVE = (0.0, math.inf)
ANY = (-math.inf, math.inf)


@dataclass(frozen=True)
class About:
    """What a metric says of itself.

    place: in reports, ascending; without one it comes last, by name. Tens, so that another fits between.
    bounds: the least and the largest value under any definition.
    wide: whether the view `metrics_wide` has columns of it.
    of_base_rate: whether its scale is set by the mean outcome, so that data of another one do not compare.
    """

    best: Best = "large"
    place: int | None = None
    bounds: tuple[float, float] = SHARE
    wide: bool = False
    depends_on_base_rate: bool = False

    def sort_key(self, value: float) -> float:
        """A number that is smaller for the better value; NaN is worst. Without a best end: descending."""
        if math.isnan(value):
            return math.inf
        if self.best == "near 0":
            return abs(value)
        return value if self.best == "small" else -value


ABOUT: dict[str, About] = {}
"""Every registered metric by name: complete once `recbench_spark.kernels.metrics` is imported."""


def register(name: str, about: About) -> Callable[[Function], Function]:
    """Let a metric be known; returns a decorator that leaves its function as it is."""
    ABOUT[name] = about
    return lambda function: function


def about_metric(name: str) -> About:
    """What a metric says of itself; one that nobody registered is best when large, and can be anything.

    >>> about_metric("rmse").best, about_metric("from a paper").best
    ('small', 'large')
    """
    return ABOUT.get(name, About(bounds=ANY))


def best_when(best: Best) -> tuple[str, ...]:
    """The metrics with this direction.

    >>> best_when("near 0")
    ('pe',)
    """
    return tuple(name for name, about in ABOUT.items() if about.best == best)


def place_in_reports(name: str) -> float:
    """Ascending in the order of reports; infinite for a metric without a place.

    >>> sorted(["pe", "recall", "ndcg"], key=place_in_reports)
    ['ndcg', 'recall', 'pe']
    """
    place = about_metric(name).place
    return math.inf if place is None else place


def figure_range(figure: str) -> tuple[float, float]:
    """The values that `ndcg@10` or `rmse` can take; unknown metrics: any; `hit` at k: up to k.

    >>> range_of("hit@10"), range_of("ndcg"), range_of("rmse")
    ((0.0, 10.0), (0.0, 1.0), (0.0, inf))
    """
    metric, _, k = figure.partition("@")
    low, high = about_metric(metric).bounds
    return low, min(high, float(k)) if metric == "hit" and k.isdigit() else high
