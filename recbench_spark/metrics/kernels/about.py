"""Facts about metrics: best end, place in reports, range.

A metric declares them once, where its function is registered. They are read by reports, comparisons, range
checks on published figures and `tests/test_sql_files.py`, which compares the views with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from recbench_spark.core.definitions import Definition
from recbench_spark.core.metric_names import read_family, split_figure
from recbench_spark.errors import ConfigError, nearest

Best = Literal["large", "small", "near 0", "none"]
"""The best values; `none`: a fact to read beside others, such as a base rate."""

Function = TypeVar("Function")

SHARE = (0.0, 1.0)
NOT_NEGATIVE = (0.0, math.inf)
ANY = (-math.inf, math.inf)

FAMILIES = {
    "accuracy": "Whether relevant items stand high in lists.",
    "coverage": "How much of the catalogue lists show, and how evenly.",
    "popularity": "Whether lists prefer what many have already.",
    "diversity": "Whether a list has items of different kinds.",
    "groups": "Whether groups of items, or of users, are served alike.",
    "calibration": "Whether lists have the shares of a user's history.",
    "serendipity": "Whether relevant items are unexpected.",
}
"""Families of ranking metrics, with what each is for."""

NEEDS = frozenset({"train", "features", "item_groups", "uncut"})
"""Inputs that some metrics need: training rows, tables of items, ranks of the whole list."""

NO_RELEVANT = "A user without relevant items is left out and counted, or counts 0 (`empty_users: zero`)."
NO_LIST = "A user with relevant items and no list counts 0 (`users` says who counts)."
EDGE = f"{NO_RELEVANT} {NO_LIST}"
"""Edge rules shared by all rank metrics."""

NO_ROWS = "No value without a list."
NO_POSITIVES, NO_NEGATIVES = "No value without positives.", "No value without negatives."
NO_BINARY = "No value for outcomes other than 0 and 1, nor where all outcomes are equal."
ROC = "Hanley and McNeil 1982, The meaning and use of the area under a ROC curve"
YI = "Yi, Chen, Li, Sett and Yan 2013, Predictive model performance: offline and online evaluations"


@dataclass(frozen=True)
class About:
    """One metric's direction, place in reports and bounds.

    Attributes:
        best: the best end of its values.
        place: in reports, ascending; without one it comes last, by name. Tens, so another one fits between.
        bounds: smallest and largest value, under every definition not named in `wider`.
        wider: definition axes, a value for each, and the bounds under it.
        wide: the view `metrics_wide` has columns for it.
        title: the full name, for people who read the number; so are the next three.
        formula: how a value is computed, under the default definition.
        edges: what happens where the formula has no value.
        source: the publication, if there is one.
        family: the bundle that it belongs to, in FAMILIES; empty for metrics of predictions.
        needs: inputs without which a bundle leaves it out, in NEEDS.
        depends_on_base_rate: the mean outcome sets its scale: do not compare data with different means.
    """

    best: Best = "large"
    place: int | None = None
    bounds: tuple[float, float] = SHARE
    wide: bool = False
    depends_on_base_rate: bool = False
    wider: tuple[tuple[str, str, tuple[float, float]], ...] = ()
    title: str = ""
    formula: str = ""
    edges: str = ""
    source: str = ""
    family: str = ""
    needs: tuple[str, ...] = ()

    @property
    def on_main_board(self) -> bool:
        """True unless reports show it with its family alone."""
        return self.wide or self.family in ("", "accuracy")

    def bounds_under(self, definition: Definition) -> tuple[float, float]:
        """Return the smallest and largest value under a definition."""
        for axis, value, bounds in self.wider:
            if getattr(definition, axis) == value:
                return bounds
        return self.bounds

    def sort_key(self, value: float) -> float:
        """Return a number, smaller for better values; NaN is worst.

        Without a best end: descending.
        """
        if math.isnan(value):
            return math.inf
        if self.best == "near 0":
            return abs(value)
        return value if self.best == "small" else -value


ABOUT: dict[str, About] = {}
"""Every registered metric by name: complete once `recbench_spark.metrics.kernels` is imported."""


def register(name: str, about: About) -> Callable[[Function], Function]:
    """Register a metric by a decorator; its function stays unchanged."""
    ABOUT[name] = about
    return lambda function: function


def about_metric(name: str) -> About:
    """Return a metric's facts.

    An unregistered metric is best when large and has no bounds.

    >>> about_metric("rmse").best, about_metric("from a paper").best
    ('small', 'large')
    """
    return ABOUT.get(name, About(bounds=ANY))


def best_when(best: Best) -> tuple[str, ...]:
    """Return the metrics with this direction.

    >>> "rmse" in best_when("small"), "rmse" in best_when("large")
    (True, False)
    """
    return tuple(name for name, about in ABOUT.items() if about.best == best)


def place_in_reports(name: str) -> float:
    """Return a sort key for reports; infinite without a place.

    >>> sorted(["pe", "recall", "ndcg"], key=place_in_reports)
    ['ndcg', 'recall', 'pe']
    """
    place = about_metric(name).place
    return math.inf if place is None else place


def list_families() -> dict[str, list[str]]:
    """Return each family's metrics, in order of place."""
    ordered = sorted(ABOUT, key=lambda name: (place_in_reports(name), name))
    families = {family: [name for name in ordered if ABOUT[name].family == family] for family in FAMILIES}
    return {family: names for family, names in families.items() if names}


def expand_families(
    metrics: Iterable[object], given: Collection[str]
) -> tuple[tuple[object, ...], tuple[str, ...]]:
    """Replace bundles by their metrics, and say which are left out.

    >>> expand_families(["gini", {"family": "coverage"}], [])
    (('gini', 'coverage', 'entropy'), ())

    Args:
        metrics: names, and bundles as `{family: NAME}` or `family:NAME`. A metric named by itself keeps its
            place.
        given: inputs that are there, of those in `About.needs`.

    Raises:
        ConfigError: an unknown family; no metric is left.
    """
    listed, families = tuple(metrics), list_families()
    named = {split_figure(one)[0] for one in listed if isinstance(one, str) and read_family(one) is None}
    kept: list[object] = []
    left_out: list[str] = []
    for entry in listed:
        family = read_family(entry)
        if family is not None and family not in families:
            raise ConfigError(f"metrics: unknown family '{family}'", nearest(family, families))
        for name in [] if family is None else families[family]:
            missing = [need for need in ABOUT[name].needs if need not in given]
            left_out += [f"{name} (needs {missing[0]})"] if missing and name not in named else []
            kept += [name] if not missing and name not in named else []
            named.add(name)
        kept += [entry] if family is None else []
    if listed and not kept:
        raise ConfigError(f"metrics: no metric is left: {', '.join(left_out)}", "give what they need")
    return tuple(kept), tuple(left_out)


def figure_range(figure: str) -> tuple[float, float]:
    """Return the range of figures such as `ndcg@10` or `rmse`.

    Unknown metrics have no bounds; `hit` at k goes up to k.

    >>> figure_range("hit@10"), figure_range("ndcg"), figure_range("rmse")
    ((0.0, 10.0), (0.0, 1.0), (0.0, inf))
    """
    metric, _, k = figure.partition("@")
    low, high = about_metric(metric).bounds
    return low, min(high, float(k)) if metric == "hit" and k.isdigit() else high
