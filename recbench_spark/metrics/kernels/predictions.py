"""Distances between predictions p and outcomes y, by order-free sums.

Axes: u users, n rows, s sums (see SUMS). The terms in a user's rows are added as whole numbers, 72 binary
digits from the user's largest term down: sums are right to float64 at any scale and do not depend on the
row order. User totals add up exactly by `sums.exact_sums`, and a bootstrap reweights users by
`sums.bootstrap_sums`. `roc` has areas under the ROC curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels import about as words
from recbench_spark.metrics.kernels.about import NO_BINARY, NO_NEGATIVES, NO_POSITIVES, YI, About, register
from recbench_spark.metrics.kernels.chunk import divide

SUMS = ("n", "p", "y", "squared", "absolute", "logloss", "unfit")
"""Rows, predictions, outcomes, (p - y)^2, |p - y|, log-loss, rows where log-loss is undefined."""

CLIP = float(np.finfo(np.float64).eps)
"""Probabilities are clipped to [CLIP, 1 - CLIP] in the log-loss, as in scikit-learn: 2^-52, 2.2e-16.

2^-52 is the smallest clip that float64 can subtract from 1. A certain but wrong prediction then costs the
same on both sides, 52 ln 2 = 36.04 nats.
"""

LARGEST = 2.0**500
"""Largest prediction or outcome: larger squares leave float64 (and those below 1e-146 become inexact)."""

HALF_BITS = 36
"""A term is high 2^-36 + low 2^-72 of the user's largest: both add up below 2^62 over MOST_ROWS rows."""

MOST_ROWS = 1 << 26
"""Most rows per user."""


def user_sums(
    offsets: Ints, p: Floats, y: Floats, names: Sequence[str] = SUMS, *, w: Floats | None = None
) -> Floats:
    """Return each user's additive sums: float64 (u, s).

    Equal in any row order. Sums of terms with one sign are right to a few 2^-53 of their value, at any
    scale; others to as much of their largest term.

    Args:
        offsets: (u + 1,), user u has the rows `offsets[u]:offsets[u + 1]`.
        p, y: (n,) predictions and outcomes.
        names: the columns.
        w: (n,) weights above 0 of the rows, by which all terms but `unfit` are multiplied.

    Raises:
        DataError: a prediction or outcome is NaN, infinite or above LARGEST, or a user has more than
            MOST_ROWS rows.
    """
    check_finite(p, "predictions")
    check_finite(y, "outcomes")
    most = max(np.abs(p).max(initial=0.0), np.abs(y).max(initial=0.0))
    most *= 1.0 if w is None else math.sqrt(w.max(initial=1.0))
    if most > LARGEST or np.diff(offsets).max(initial=0) > MOST_ROWS:
        raise DataError("outcomes are too large to add up exactly", "rescale them, e.g. to 0..5")
    sums = np.empty((len(offsets) - 1, len(names)))
    for s, name in enumerate(names):
        terms = np.ascontiguousarray(TERMS[name](p, y), dtype=np.float64)
        _add_rows(offsets, terms if w is None or name == "unfit" else terms * w, sums[:, s])
    return sums


@compile_with_python_errors
def _add_rows(offsets: Ints, term_n: Floats, sum_u: Floats) -> None:
    """Add each user's terms, with equal bits in any order."""
    one = 2.0**HALF_BITS
    for u in range(len(offsets) - 1):
        largest = 0.0
        for n in range(offsets[u], offsets[u + 1]):
            largest = max(largest, abs(term_n[n]))
        sum_u[u] = 0.0
        if largest == 0.0:
            continue
        # In two steps: a single power of two for the smallest and largest numbers exceeds float64.
        power = HALF_BITS - math.frexp(largest)[1]
        first, second = 2.0 ** (power // 2), 2.0 ** (power - power // 2)
        high, low = np.int64(0), np.int64(0)
        for n in range(offsets[u], offsets[u + 1]):
            scaled = term_n[n] * first * second
            whole = np.floor(scaled)
            high += np.int64(whole)
            low += np.int64(np.rint((scaled - whole) * one))
        carried = low >> HALF_BITS
        rest = low - (carried << HALF_BITS)
        sum_u[u] = ((high + carried) + rest / one) / first / second


def _has_logloss(p: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Tell whether a row's log-loss is defined."""
    return np.asarray(((y == 0) | (y == 1)) & (p >= 0) & (p <= 1))


def _logloss(p: Floats, y: Floats) -> Floats:
    """Return -y ln p - (1 - y) ln(1 - p), 0 where it is undefined."""
    q = np.clip(p, CLIP, 1 - CLIP)
    loss: Floats = np.where(_has_logloss(p, y), -np.where(y == 1, np.log(q), np.log1p(-q)), 0.0)
    return loss


TERMS: dict[str, Callable[[Floats, Floats], npt.NDArray[Any]]] = {
    "n": lambda p, y: np.ones_like(p),
    "p": lambda p, y: p,
    "y": lambda p, y: y,
    "squared": lambda p, y: (p - y) ** 2,
    "absolute": lambda p, y: np.abs(p - y),
    "logloss": _logloss,
    "unfit": lambda p, y: ~_has_logloss(p, y),
}
"""A row's term for each of SUMS."""


@dataclass(frozen=True)
class ValueMetric:
    """A metric on totals: `function` maps named sums, any shape."""

    function: Callable[[dict[str, Floats]], Floats]
    binary: bool


VALUE_METRICS: dict[str, ValueMetric] = {}
"""Every metric computed from SUMS; `binary` ones need y in {0, 1} and p in [0, 1]."""


def value_metric(name: str, about: About, *, binary: bool = False) -> Callable[[Any], Any]:
    """Register a function of the totals.

    `about`: its direction, place in reports, and bounds.
    """

    def keep(function: Callable[[dict[str, Floats]], Floats]) -> Any:
        VALUE_METRICS[name] = ValueMetric(function, binary)
        return register(name, about)(function)

    return keep


def from_totals(totals: Floats) -> dict[str, Floats]:
    """Compute every metric in VALUE_METRICS from totals (..., s).

    Returns (...) each, NaN if undefined.
    """
    t = _by_name(totals)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: metric.function(t) for name, metric in VALUE_METRICS.items()}
    fit = t["unfit"] == 0
    return {
        name: np.where(np.isfinite(value) & (fit | (not VALUE_METRICS[name].binary)), value, np.nan)
        for name, value in values.items()
    }


def reasons(totals: Floats) -> dict[str, str]:
    """Explain NaN metrics for totals (s,).

    Metrics with a value are absent.
    """
    t = dict(zip(SUMS, totals.tolist(), strict=True))
    missing = [name for name, value in from_totals(totals).items() if np.isnan(value)]
    return {name: _reason(t, VALUE_METRICS[name].binary) for name in missing}


def _reason(t: dict[str, float], binary: bool) -> str:
    if t["n"] == 0:
        return "no rows"
    if binary and t["unfit"]:
        return f"{t['unfit']:.0f} rows have an outcome outside {{0, 1}} or prediction outside [0, 1]"
    return "the outcomes do not vary" if binary else "the mean outcome is 0"


about_error = partial(About, "small", bounds=words.NOT_NEGATIVE, wide=True)
"""Make the facts about an error metric: small is best, without an upper bound."""


@value_metric(
    "mse",
    about_error(
        place=190,
        title="mean squared error (MSE)",
        formula="Mean of (prediction - outcome)^2.",
        edges="No value without rows.",
    ),
)
def mse(t: dict[str, Floats]) -> Floats:
    """Mean (p - y)^2.

    Blind to the order of items, and to which users bear the error.
    """
    return t["squared"] / t["n"]


@value_metric(
    "rmse",
    about_error(
        place=170,
        title="root mean squared error (RMSE)",
        formula="Square root of mean (prediction - outcome)^2.",
        edges="No value without rows.",
    ),
)
def rmse(t: dict[str, Floats]) -> Floats:
    """Root of MSE, in the outcome's units.

    A low RMSE says nothing about a list's top.
    """
    return np.sqrt(t["squared"] / t["n"])


@value_metric(
    "mae",
    about_error(
        place=180,
        title="mean absolute error (MAE)",
        formula="Mean of |prediction - outcome|.",
        edges="No value without rows.",
    ),
)
def mae(t: dict[str, Floats]) -> Floats:
    """Mean |p - y|.

    Best at the median: for rare outcomes always predicting 0 looks good.
    """
    return t["absolute"] / t["n"]


@value_metric(
    "nmse",
    about_error(
        place=200,
        depends_on_base_rate=True,
        title="normalised mean squared error (NMSE)",
        formula="MSE / (g (1 - g)), g = mean outcome; 1 is no better than always predicting g.",
        edges=NO_BINARY,
    ),
    binary=True,
)
def nmse(t: dict[str, Floats]) -> Floats:
    """MSE / (g (1 - g)), g = mean y.

    1: no better than predicting g. Blind to the order.
    """
    g = t["y"] / t["n"]
    return (t["squared"] / t["n"]) / (g * (1 - g))


@value_metric(
    "pe",
    About(
        "near 0",
        place=230,
        bounds=(-1.0, math.inf),
        wide=True,
        depends_on_base_rate=True,
        title="prediction error (PE)",
        formula="mean prediction / mean outcome - 1: 0 is best, above it predictions are too high.",
        edges="No value if all outcomes are 0.",
        source=YI,
    ),
)
def pe(t: dict[str, Floats]) -> Floats:
    """mean(p) / g - 1, over- or under-estimation.

    Blind to all but the mean: constants can be 0.
    """
    return t["p"] / t["y"] - 1


@value_metric(
    "mean_prediction",
    About(
        "none",
        bounds=words.ANY,
        title="mean prediction",
        formula="Mean of the predictions, to be read beside the mean outcome.",
        edges="No value without rows.",
    ),
)
def mean_prediction(t: dict[str, Floats]) -> Floats:
    """mean(p), to be read beside mean(y).

    Says nothing about any single prediction.
    """
    return t["p"] / t["n"]


@value_metric(
    "mean_outcome",
    About(
        "none",
        bounds=words.ANY,
        title="mean outcome, the base rate",
        formula="Mean outcome: a fact about the data.",
        edges="No value without rows.",
    ),
)
def mean_outcome(t: dict[str, Floats]) -> Floats:
    """g = mean(y), the base rate: a fact about data."""
    return t["y"] / t["n"]


@value_metric(
    "logloss",
    about_error(
        place=210,
        depends_on_base_rate=True,
        title="logarithmic loss (log-loss)",
        formula="Mean of -y ln p - (1 - y) ln(1 - p).",
        edges="Probabilities are clipped to 2^-52 .. 1 - 2^-52. No value for outcomes other than 0 and 1.",
    ),
    binary=True,
)
def logloss(t: dict[str, Floats]) -> Floats:
    """Mean of -y ln p - (1 - y) ln(1 - p).

    The scale is set by g: not comparable across data. Probabilities are clipped to CLIP .. 1 - CLIP: a
    certain but wrong prediction costs 36.04.
    """
    return t["logloss"] / t["n"]


@value_metric(
    "rig",
    About(
        place=220,
        bounds=(-math.inf, 1.0),
        wide=True,
        depends_on_base_rate=True,
        title="relative information gain (RIG)",
        formula="1 - log-loss / H(g), H the entropy of the mean outcome g; 0: no better than always"
        " predicting g.",
        edges=NO_BINARY,
        source=YI,
    ),
    binary=True,
)
def rig(t: dict[str, Floats]) -> Floats:
    """1 - logloss / H(g), H the entropy.

    Blind to a change in base rate: falls as g rises.
    """
    g = t["y"] / t["n"]
    entropy = -(g * np.log(g) + (1 - g) * np.log1p(-g))
    return 1 - (t["logloss"] / t["n"]) / entropy


# ------------------------------------------------------------------------------ by the prediction

RATES = ("tpr", "fnr", "tnr", "fpr")
"""Rates in `threshold_rates`: right and wrong ones among positives and negatives."""


def equal_mass_edges(p: Floats, bins: int) -> Floats:
    """Inner edges of at most `bins` bins, nearly equal.

    Bins have nearly equal numbers of rows. Ascending, at most (bins - 1,). Rows with equal p share a bin,
    so there may be fewer bins; an edge belongs to the bin above it.
    """
    check_finite(p, "predictions")
    ordered = np.sort(p)
    edges = np.unique(ordered[len(p) * np.arange(1, bins) // bins]) if len(p) else ordered
    return edges[edges > ordered[0]] if len(p) else edges


def bin_sums(edges: Floats, p: Floats, y: Floats) -> Floats:
    """Sum the rows in each bin: float64 (edges + 1, s).

    Columns are SUMS. Bin b holds the rows with exactly b edges <= p. Users' bins add up as their totals do
    (`sums`). `from_totals` on bins shows where predictions are wrong: a PE of 0 can hide a low range
    estimated too high and a high range too low. A bin's RIG is against its own base rate: it ignores the
    order between bins, is near 0 even for perfect predictions, and does not average to the RIG over all
    rows. Source: Yi et al. 2013, "Predictive model performance: offline and online evaluations".

    Raises:
        DataError: a prediction or outcome is NaN or infinite.
    """
    sums: Floats = user_bin_sums(np.array([0, len(p)]), edges, p, y)[0]
    return sums


def user_bin_sums(
    offsets: Ints,
    edges: Floats,
    p: Floats,
    y: Floats,
    names: Sequence[str] = SUMS,
    *,
    w: Floats | None = None,
) -> Floats:
    """Return each user's `bin_sums`, float64 (u, edges + 1, s).

    Other arguments as in `user_sums`.
    """
    check_finite(p, "predictions")
    users, bins = len(offsets) - 1, len(edges) + 1
    cell_n = np.repeat(np.arange(users), np.diff(offsets)) * bins + np.searchsorted(edges, p, side="right")
    order = np.argsort(cell_n, kind="stable")
    count = np.bincount(cell_n, minlength=users * bins)
    bounds = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    weights = None if w is None else w[order]
    sums: Floats = user_sums(bounds, p[order], y[order], names, w=weights)
    return sums.reshape(users, bins, len(names))


@register(
    "calibration_error",
    About(
        "small",
        place=260,
        title="expected calibration error (ECE)",
        formula="Sum over equal-mass bins: (rows in the bin / rows) |mean prediction - mean outcome|.",
        edges="No value without rows, nor for outcomes other than 0 and 1. Rows with equal predictions"
        " share a bin: among n sorted predictions those at places n b / bins (rounded down, from 0) are"
        " edges. An edge belongs to the bin above it, and equal edges are one, so there may be fewer"
        " bins.",
        source="Naeini, Cooper and Hauskrecht 2015, Obtaining well calibrated probabilities",
    ),
)
def calibration_error(sums_bs: Floats) -> Floats:
    """ECE: sum_b (n_b / n) |mean p - mean y|, from bins (..., b, s).

    This equals sum_b |sum p - sum y| / n. Use bins with equal mass (`equal_mass_edges`). Blind to the order
    of items: predicting the base rate for all has no error. Blind to opposite errors within a bin, so more
    bins show more, also more noise: about sqrt(2 g (1 - g) b / (pi n)) where predictions are perfect. NaN
    without rows, and for outcomes outside {0, 1}. Source: Naeini, Cooper and Hauskrecht 2015, "Obtaining
    well calibrated probabilities using Bayesian binning", section "Experiments".
    """
    t = _by_name(sums_bs)
    n, unfit = t["n"].sum(axis=-1), t["unfit"].sum(axis=-1)
    gap = np.abs(t["p"] - t["y"]).sum(axis=-1)
    return divide(gap, np.where(unfit == 0, n, 0.0), np.nan)


@register(
    "tpr",
    About(
        title="true-positive rate (TPR)",
        formula="Positives predicted at or above a threshold / positives.",
        edges=NO_POSITIVES,
    ),
)
@register("fnr", About("small", title="false-negative rate (FNR)", formula="1 - TPR.", edges=NO_POSITIVES))
@register("tnr", About(title="true-negative rate (TNR)", formula="1 - FPR.", edges=NO_NEGATIVES))
@register(
    "fpr",
    About(
        "small",
        title="false-positive rate (FPR)",
        formula="Negatives predicted at or above a threshold / negatives.",
        edges=NO_NEGATIVES,
    ),
)
def threshold_rates(sums_bs: Floats) -> dict[str, Floats]:
    """TPR, FNR, TNR and FPR for calling p >= t positive.

    (..., t) each, from bins whose edges are t. tpr = share of positives at or above t, fnr = 1 - tpr; fpr =
    share of negatives at or above t, tnr = 1 - fpr. NaN without positives (without negatives). Each is
    blind to the other class, and so to the base rate: at one tpr and fpr most calls can be right or wrong.
    All are blind to what an error costs, and to p except on which side of t it lies.
    """
    t = _by_name(sums_bs)
    fit = t["unfit"].sum(axis=-1, keepdims=True) == 0
    rates = []
    for amount in (t["y"], t["n"] - t["y"]):
        from_bin = np.cumsum(amount[..., ::-1], axis=-1)[..., ::-1]
        total = np.broadcast_to(from_bin[..., :1], from_bin[..., 1:].shape)
        rates.append(divide(from_bin[..., 1:], np.where(fit, total, 0.0), np.nan))
    tpr, fpr = rates
    return dict(zip(RATES, (tpr, 1 - tpr, 1 - fpr, fpr), strict=True))


def _by_name(sums: Floats) -> dict[str, Floats]:
    return {name: np.asarray(sums[..., s], dtype=np.float64) for s, name in enumerate(SUMS)}


def check_finite(values: Floats, what: str) -> None:
    """Refuse NaN and infinity; `what` names the numbers.

    Raises:
        DataError: there is such a number.
    """
    wrong = int((~np.isfinite(values)).sum())
    if wrong:
        raise DataError(f"{wrong} of {len(values)} {what} are NaN or infinite", "drop or repair these rows")
