"""Agreement with a true order of models, by Kendall's tau-b.

It has tests, intervals and noise. Steiger's test takes models as independent, although sizes of one family
are nearly one model, and tau as Pearson's r; `swap_orders` needs only the first. Two bootstraps stand
beside it: one draws model families, the other draws users. A true order is measured on few users;
`halve_users` says how well two halves of them agree.

Axes: m models, f families, u users, r replicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.comparisons.kernels import significance
from recbench_spark.analyses.comparisons.kernels.significance import kendall_tau_b
from recbench_spark.analyses.exposure.kernels.exposure import divide_sums
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import percentile_interval

ROUNDING = 1e-12
"""Rounding can make two leads differ by so much."""

STEPS = 60
"""Halvings of an interval with length 1: its end is exact to 2^-60."""


class Lead(NamedTuple):
    """One method's agreement with the truth beside another's.

    Attributes:
        tau: tau-b between the method and the truth.
        other: tau-b between the other method and the truth.
        between: tau-b between both methods.
        t: Williams' t for `tau - other`, with tau in place of r (Steiger 1980); NaN below 10 models.
        p: one-tailed; small where the method agrees better.
        models: how many models all three have.
    """

    tau: float
    other: float
    between: float
    t: float
    p: float
    models: int


def compare_with_truth(own_m: Floats, other_m: Floats, truth_m: Floats) -> Lead:
    """Compare how well two methods agree with the truth.

    Only models with all three numbers count.
    """
    table = np.stack([own_m, other_m, truth_m])
    own, other, truth = table[:, np.isfinite(table).all(axis=0)]
    if len(own) < 2:
        return Lead(np.nan, np.nan, np.nan, np.nan, np.nan, len(own))
    taus = kendall_tau_b(truth, own), kendall_tau_b(truth, other), kendall_tau_b(own, other)
    return Lead(*taus, *significance.dependent_correlations(*taus, len(own)), len(own))


EXACT_SWAPS = 12
"""Most models with all 2^m swaps counted; for more, as many are drawn."""


def swap_orders(own_m: Floats, other_m: Floats, truth_m: Floats, seed: int = 42) -> float:
    """Return the one-tailed p of a tau-b lead, by swaps.

    If both methods are equally good, the places they give to a model could be exchanged. So p is the share
    of all ways to exchange them, model by model, in which the lead is at least as large (a paired
    permutation test: Good 2005, section 3.6). All 2^m ways for up to 12 models, else 2^12 drawn ones. NaN
    below two models, and where the methods or the truth tie all models.
    """
    table = np.stack([own_m, other_m, truth_m])
    own, other, truth = table[:, np.isfinite(table).all(axis=0)]
    m = len(own)
    if m < 2:
        return math.nan
    places = np.stack([_mean_places(own), _mean_places(other)])
    if m <= EXACT_SWAPS:
        swapped_rm = np.arange(2**m)[:, None] >> np.arange(m) & 1 == 1
    else:
        swapped_rm = np.random.default_rng(seed).random((2**EXACT_SWAPS, m)) < 0.5
        swapped_rm[0] = False
    kept, exchanged = np.where(swapped_rm, places[::-1, None], places[:, None])
    leads = compare_orders(kept, truth) - compare_orders(exchanged, truth)
    # If a swap ties all models, it has no tau and shows no lead.
    return float((leads >= leads[0] - ROUNDING).mean()) if np.isfinite(leads[0]) else math.nan


def _mean_places(value_m: Floats) -> Floats:
    """Return each value's place in ascending order.

    Equal values share their mean place.
    """
    signs = np.sign(np.subtract.outer(value_m, value_m))
    places: Floats = signs.sum(axis=1) / 2
    return places


def find_visible_lead(other: float, between: float, models: int, level: float = 0.05) -> float:
    """Return the smallest significant lead over the tau `other`.

    The lead's one-tailed p is at most `level`; NaN if no lead is significant.

    Args:
        other: tau-b between the other method and the truth.
        between: tau-b between both methods; large where they order models alike.
        models: number of models.
        level: largest p.
    """

    def is_visible(lead: float) -> bool:
        return significance.dependent_correlations(other + lead, other, between, models)[1] <= level

    # Three correlations are possible together only if the first one is at most this.
    reach = other * between + np.sqrt((1 - other**2) * (1 - between**2)) - other
    low, high = 0.0, float(reach)
    if not is_visible(high):
        return np.nan
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_visible(middle) else (middle, high)
    return high


# ------------------------------------------------------------------------------- families of models


def draw_families(family_m: Sequence[str], replicates: int, seed: int) -> Ints:
    """Draw families with replacement; count each model's draws, (r, m).

    As many families are drawn as there are. A family's models are drawn together, so the replicates spread
    as families do (a cluster bootstrap: Davison and Hinkley 1997, section 3.8).
    """
    names, family_of_m = np.unique(np.asarray(family_m), return_inverse=True)
    draws = np.random.default_rng(seed).integers(len(names), size=(replicates, len(names)))
    counts_rf = (draws[:, :, None] == np.arange(len(names))).sum(axis=1)
    drawn_rm: Ints = counts_rf[:, family_of_m].astype(np.int64)
    return drawn_rm


def compute_weighted_tau(x_m: Floats, y_m: Floats, weight_rm: npt.NDArray[Any]) -> Floats:
    """Return tau-b with models occurring several times, (r,).

    NaN if all drawn ones are tied. A model's copies tie with each other in both orders and count in no
    pair. Sums are whole numbers below 2^53, so float64 holds them.
    """
    weights = weight_rm.astype(np.float64)
    sign_x, sign_y = (np.sign(np.subtract.outer(v, v)) for v in (x_m, y_m))
    # Every pair is there twice, in the sums above and below the line.
    agreeing = _sum_pairs(sign_x * sign_y, weights)
    untied = [_sum_pairs(np.abs(sign), weights) for sign in (sign_x, sign_y)]
    return divide_sums(agreeing, np.sqrt(untied[0] * untied[1]))


def _sum_pairs(value_mm: Floats, weight_rm: Floats) -> Floats:
    total: Floats = ((weight_rm @ value_mm) * weight_rm).sum(axis=1)
    return total


# ------------------------------------------------------------------------------- users


def average_draws(value_um: Floats, weight_ru: npt.NDArray[Any]) -> Floats:
    """Average each model over the drawn users, (r, m).

    NaN: a user does not count there.
    """
    valid = ~np.isnan(value_um)
    weights = weight_ru.astype(np.float64)
    return divide_sums(weights @ np.where(valid, value_um, 0.0), weights @ valid.astype(np.float64))


def compare_orders(x_rm: Floats, y_m: Floats) -> Floats:
    """Return each order's tau-b with one order, (r,)."""
    return np.array([kendall_tau_b(x_m, y_m) for x_m in x_rm])


def compare_draws(x_rm: Floats, y_rm: Floats) -> Floats:
    """Return tau-b between two orders in each replicate, (r,)."""
    return np.array([kendall_tau_b(x_m, y_m) for x_m, y_m in zip(x_rm, y_rm, strict=True)])


def halve_users(value_um: Floats, draws: int, seed: int) -> Floats:
    """Return tau-b between two halves of the users, (r,).

    Each draw orders the models on both halves. Their tau measures the truth's noise. It is no upper limit:
    an order without noise agrees better with the order on all users.
    """
    counted_um = value_um[~np.isnan(value_um).all(axis=1)]
    rng = np.random.default_rng(seed)
    taus = []
    for _ in range(draws):
        order = rng.permutation(len(counted_um))
        halves = np.array_split(order, 2)
        taus.append(kendall_tau_b(*(np.nanmean(counted_um[half], axis=0) for half in halves)))
    return np.array(taus)


# ------------------------------------------------------------------------------- replicates


class Spread(NamedTuple):
    """A difference's replicates in summary.

    Attributes:
        below: share of replicates at or below 0, with the +1 for a randomisation test.
        low, high: percentile interval, 95 %.
        error: standard deviation.
        visible: true difference shown with a chance of 80 % at a level of 5 %.
    """

    below: float
    low: float
    high: float
    error: float
    visible: float


def summarise_spread(difference_r: Floats) -> Spread:
    """Describe replicates with a value; NaN for fewer than two."""
    known = difference_r[np.isfinite(difference_r)]
    if len(known) < 2:
        return Spread(*[float("nan")] * 5)
    low, high = percentile_interval(known[:, None])
    error = float(np.std(known, ddof=1))
    below = (1 + int((known <= 0).sum())) / (1 + len(known))
    return Spread(below, float(low[0]), float(high[0]), error, significance.minimum_detectable(error))
