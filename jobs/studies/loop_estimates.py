"""Estimate one model under exposure bias, from its ranks.

Estimates are holdout, IPS, SNIPS and 1 to 10 strata. Values and strata are a night's: users are added by
the same whole numbers. `simpson.py` uses it.

Axes: u users, p tested pairs, i items, c columns (metric and cut-off), s strata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recbench_spark.analyses.exposure.kernels import exposure, power_law, propensities
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.core.revisions import select_revisions
from recbench_spark.metrics.kernels.accuracy import cutoffs, measure
from recbench_spark.ranking.kernels.rankings import Rankings

HOLDOUT = "holdout"
PUBLISHED, OURS = "published", "ours"
MISKEYED = "as keyed by the code"
ONE = "stratified 1"
MOST_STRATA = 10
WEIGHTED = ("ips", "snips_user")
UNCLIPPED = EstimatorSettings(clip=np.inf, switch=np.inf, shrink=np.inf, chances=True)
"""Propensities known up to a factor.

The values depend on it, but no model order does.
"""


class Column(NamedTuple):
    """A metric at a cut-off; None: the whole list."""

    metric: str
    k: int | None

    def __str__(self) -> str:
        """Return a name such as ndcg@10."""
        return self.metric if self.k is None else f"{self.metric}@{self.k}"


@dataclass(frozen=True)
class ItemStrata:
    """Items in strata by propensity.

    Attributes:
        stratum_i: (i,) each item's stratum.
        items: number of items in each stratum.
    """

    stratum_i: Ints
    items: tuple[int, ...]


@dataclass(frozen=True)
class EstimatePlan:
    """Everything all models' estimates share.

    Attributes:
        definition: definition for all metrics.
        metrics, ks: metrics and cut-offs.
        propensities: (i,) item propensities by name.
        strata: strata by name; the first one has two strata and is kept by user.
    """

    definition: Definition
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    propensities: Mapping[str, Floats]
    strata: Mapping[str, ItemStrata]

    @property
    def columns(self) -> list[Column]:
        """All columns, in every array's order."""
        return [Column(metric, k) for metric in self.metrics for k in cutoffs(metric, self.ks)]

    def digest(self) -> str:
        """Hash all the estimates depend on, beside the ranks."""
        content = hashlib.sha256(repr((self.definition, self.metrics, self.ks)).encode())
        for name, propensity_i in self.propensities.items():
            content.update(name.encode() + propensity_i.tobytes())
        for name, cut in self.strata.items():
            content.update(name.encode() + cut.stratum_i.tobytes() + repr(cut.items).encode())
        content.update(repr(select_revisions("metrics", "exposure", "propensities")).encode())
        return content.hexdigest()

    @property
    def user_strata(self) -> str:
        """Name of the strata with values kept by user."""
        return next(iter(self.strata))


class ModelEstimates(NamedTuple):
    """A model's estimates, and what they were made from.

    Attributes:
        estimates: (c,) by the estimator's name.
        holdout_uc: each user's plain values.
        stratum_usc: each user's values in each kept stratum.
        sizes_us: each user's tested pairs there.
    """

    estimates: dict[str, Floats]
    holdout_uc: Floats
    stratum_usc: Floats
    sizes_us: Ints


# ------------------------------------------------------------------------------- propensities, strata


Formula = Callable[[Ints, power_law.PowerLaw], Floats]


def fit_formula(formula: Formula, count_i: Ints) -> Floats:
    """Fit a law to items' rows, and return a formula's propensities.

    Items without a row get the others' smallest one, as in a night.
    """
    propensity_i = formula(count_i, power_law.fit(*np.unique(count_i, return_counts=True)))
    return np.where(propensity_i > 0, propensity_i, propensity_i[propensity_i > 0].min())


def miskey(propensity_i: Floats, item_r: Ints, seed: int) -> Floats:
    """Return the propensities the published code looks up.

    That code uses an item's number in place of its id. The library numbers items as they first appear in
    its training rows, whose order is random; the code takes this number for an id. So item n in that
    numbering gets the n-th id's propensity.

    Args:
        propensity_i: right propensities, by id.
        item_r: (r,) items of the training rows.
        seed: seed for the order of these rows.
    """
    order = np.random.default_rng(seed).permutation(len(item_r))
    items, first = np.unique(item_r[order], return_index=True)
    numbered = items[np.argsort(first, kind="stable")]
    wrong = propensity_i.copy()
    wrong[numbered] = propensity_i[: len(numbered)]
    return wrong


def cut_items(kind: strata.Kind, n: int, propensity_i: Floats, mass_i: Ints) -> ItemStrata:
    """Cut items into strata as a night does.

    One stratum holds all items.

    Args:
        kind: the equal quantity.
        n: number of strata.
        propensity_i: propensities.
        mass_i: each item's interactions, for strata with equal mass.
    """
    if n == 1:
        return ItemStrata(np.zeros(len(propensity_i), np.int64), (len(propensity_i),))
    edges = _cut_edges(kind, n, propensity_i, mass_i)
    return ItemStrata(edges.assign(propensity_i), tuple(edges.items.tolist()))


def _cut_edges(kind: strata.Kind, n: int, propensity_i: Floats, mass_i: Ints) -> StratumEdges:
    value_x, place_i = np.unique(strata.round_propensities(propensity_i), return_inverse=True)
    items_x = np.bincount(place_i)
    mass_x = np.bincount(place_i, weights=mass_i).astype(np.int64)
    if kind == "equal_width":
        value_x[0], value_x[-1] = propensity_i.min(), propensity_i.max()
    return strata.cut(kind, n, value_x, items_x, mass_x)


def name_strata(propensity: str, kind: str, n: int) -> str:
    """Name a stratified estimate."""
    return f"stratified {propensity} {kind} {n}"


# ------------------------------------------------------------------------------- values


def measure_users(rankings: Rankings, plan: EstimatePlan) -> Floats:
    """Measure each user in every column, (u, c).

    NaN: the user does not count.
    """
    values = measure(rankings, plan.metrics, plan.ks, plan.definition)
    return np.concatenate([values[name] for name in plan.metrics], axis=1)


def average(value_uc: Floats) -> Floats:
    """Average over users, (c,), by whole numbers like a night."""
    return resampling.mean_and_error(resampling.moments(value_uc))[0]


def estimate_model(rankings: Rankings, item_p: Ints, plan: EstimatePlan) -> ModelEstimates:
    """Make all estimates of a model.

    Args:
        rankings: ranks of the tested pairs.
        item_p: (p,) their items.
        plan: propensities, strata, metrics.
    """
    holdout_uc = measure_users(rankings, plan)
    estimates = {HOLDOUT: average(holdout_uc), **dict(_weigh(rankings, item_p, plan))}
    kept: tuple[Floats, Ints] | None = None
    for name, cut in plan.strata.items():
        stratum_usc, sizes_us = measure_strata(rankings, cut.stratum_i[item_p], len(cut.items), plan)
        mean_sc = average(stratum_usc.reshape(len(stratum_usc), -1)).reshape(len(cut.items), -1)
        estimates[name] = exposure.combine_strata(mean_sc, sizes_us.sum(axis=0))[0]
        if kept is None:
            kept = stratum_usc, sizes_us
        if len(cut.items) == 2:
            estimates |= {f"Q{s + 1} of {name}": mean_sc[s] for s in range(2)}
    assert kept is not None
    return ModelEstimates(estimates, holdout_uc, *kept)


def measure_strata(rankings: Rankings, stratum_p: Ints, n: int, plan: EstimatePlan) -> tuple[Floats, Ints]:
    """Measure each user within each stratum, (u, s, c).

    The tested pairs there, (u, s), come along.
    """
    values, sizes_us = exposure.measure_by_stratum(
        rankings, stratum_p, n, plan.metrics, plan.ks, definition=plan.definition
    )
    return np.concatenate([values[name] for name in plan.metrics], axis=2), sizes_us


def _weigh(rankings: Rankings, item_p: Ints, plan: EstimatePlan) -> Iterator[tuple[str, Floats]]:
    """Yield IPS and SNIPS by each kind of propensity.

    Metrics that are no sum over items get NaN.
    """
    for name, propensity_i in plan.propensities.items():
        chance_p, how = propensity_i[item_p] / propensity_i.max(), (plan.metrics, plan.ks, plan.definition)
        parts = exposure.contributions(rankings, chance_p, *how, estimators=WEIGHTED, settings=UNCLIPPED)
        for estimator in WEIGHTED:
            yield f"{estimator} {name}", _join_columns(parts, estimator, plan)


def _join_columns(
    parts: Mapping[tuple[str, str], exposure.Parts], estimator: str, plan: EstimatePlan
) -> Floats:
    values = [
        parts[estimator, metric].estimate()
        if (estimator, metric) in parts
        else np.full(len(cutoffs(metric, plan.ks)), np.nan)
        for metric in plan.metrics
    ]
    return np.concatenate(values)


def fit_chances(closed_i: Ints, train_i: Ints, train_r: Ints, seed: int) -> dict[str, Floats]:
    """Fit item propensities, up to a factor, by name.

    Published are n^alpha above xmin, else n, as in the code of Jadidinejad et al. 2021; ours are
    n^((gamma + 1) / 2), as in their paper, and in Yang et al. 2018.

    Args:
        closed_i: each item's rows in the closed loop, training and test, as the published code counts.
        train_i: each item's rows in training, as we count them.
        train_r: items of the training rows.
        seed: seed for the order in which the wrong numbering meets them.
    """
    published = fit_formula(propensities.power_above_xmin, closed_i)
    wrong, own = miskey(published, train_r, seed), fit_formula(propensities.power_law, train_i)
    return {PUBLISHED: published, f"{PUBLISHED}, {MISKEYED}": wrong, OURS: own}


def cut_all_strata(
    chances: Mapping[str, Floats], closed_i: Ints, train_i: Ints, most: int = MOST_STRATA
) -> dict[str, ItemStrata]:
    """Cut 2 to `most` strata of each kind, by name.

    One stratum with all items is added.
    """
    kinds: tuple[tuple[str, strata.Kind, Ints], ...] = (
        (PUBLISHED, "equal_width", closed_i),
        (OURS, "equal_mass", train_i),
        (OURS, "equal_count", train_i),
    )
    cuts = {
        name_strata(name, kind, n): cut_items(kind, n, chances[name], mass_i)
        for name, kind, mass_i in kinds
        for n in range(2, most + 1)
    }
    return {**cuts, ONE: cut_items("equal_width", 1, chances[PUBLISHED], closed_i)}
