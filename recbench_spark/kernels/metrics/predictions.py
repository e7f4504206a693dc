"""Value metrics: distances of predictions p from outcomes y, from sums that add up in any order.

Axes: u users, n rows, s sums (see SUMS). The terms of a user's rows are added as whole numbers, 72 binary
digits from the user's largest term down, so that sums are right to float64 at any scale and do not
depend on the order of rows; totals of users add up exactly by `sums.exact_sums`, and a bootstrap
reweights users by `sums.bootstrap_sums`. AUC counts pairs in whole numbers; its parts come from
sorted, range-partitioned chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.errors import DataError
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.compiling import compile_with_python_errors
from recbench_spark.kernels.metrics.about import ANY, NOT_NEGATIVE, About, register

SUMS = ("n", "p", "y", "squared", "absolute", "logloss", "unfit")
"""Rows, predictions, outcomes, (p - y)^2, |p - y|, log-loss, rows where log-loss is undefined."""

CLIP = float(np.finfo(np.float64).eps)
"""Probabilities are clipped to [CLIP, 1 - CLIP] in the log-loss, as in scikit-learn: 2^-52, 2.2e-16.

2^-52 is the smallest clip that float64 can subtract from 1, so that a certain prediction that is
wrong costs the same on both sides, 52 ln 2 = 36.04 nats.
"""

LARGEST = 2.0**500
"""Largest prediction or outcome: larger squares leave float64 (and those below 1e-146 become inexact)."""

HALF_BITS = 36
"""A term is high 2^-36 + low 2^-72 of the user's largest: both add up below 2^62 over MOST_ROWS rows."""

MOST_ROWS = 1 << 26
"""Largest number of rows of one user."""


def user_sums(offsets: Ints, p: Floats, y: Floats, names: Sequence[str] = SUMS) -> Floats:
    """Return the additive sums of each user: float64 (u, s), columns `names`, equal in any order of rows.

    offsets: (u + 1,), the rows of user u are `offsets[u]:offsets[u + 1]`; p, y: (n,)
    Sums of terms of one sign are right to a few 2^-53 of their value, at any scale; others to as much of
    their largest term. Raises DataError for predictions or outcomes that are NaN or infinite,
    above LARGEST and for users of more than MOST_ROWS rows.
    """
    _check_finite(p, "predictions")
    _check_finite(y, "outcomes")
    most = max(np.abs(p).max(initial=0.0), np.abs(y).max(initial=0.0))
    if most > LARGEST or np.diff(offsets).max(initial=0) > MOST_ROWS:
        raise DataError("outcomes are too large to add up exactly", "rescale them, e.g. to 0..5")
    sums = np.empty((len(offsets) - 1, len(names)))
    for s, name in enumerate(names):
        _add_rows(offsets, np.ascontiguousarray(TERMS[name](p, y), dtype=np.float64), sums[:, s])
    return sums


@compile_with_python_errors
def _add_rows(offsets: Ints, term_n: Floats, sum_u: Floats) -> None:
    """Add each user's terms, with the same bits in any order of them."""
    one = 2.0**HALF_BITS
    for u in range(len(offsets) - 1):
        largest = 0.0
        for n in range(offsets[u], offsets[u + 1]):
            largest = max(largest, abs(term_n[n]))
        sum_u[u] = 0.0
        if largest == 0.0:
            continue
        # In two steps: a single power of two for the smallest and the largest numbers exceeds float64.
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
    """Return true if the log-loss of a row is defined."""
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
"""A row's term of each of SUMS."""


@dataclass(frozen=True)
class ValueMetric:
    """A metric of summed totals: `function` maps the sums by name, any shape, to values."""

    function: Callable[[dict[str, Floats]], Floats]
    binary: bool


VALUE_METRICS: dict[str, ValueMetric] = {}
"""Every metric that follows from SUMS; `binary` ones need y in {0, 1} and p in [0, 1]."""


def value_metric(name: str, about: About, *, binary: bool = False) -> Callable[[Any], Any]:
    """Register a function of the totals; `about`: its direction, its place in reports, its bounds."""

    def keep(function: Callable[[dict[str, Floats]], Floats]) -> Any:
        VALUE_METRICS[name] = ValueMetric(function, binary)
        return register(name, about)(function)

    return keep


def from_totals(totals: Floats) -> dict[str, Floats]:
    """Return every metric of VALUE_METRICS from totals (..., s): (...), NaN if it is undefined."""
    t = _by_name(totals)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: metric.function(t) for name, metric in VALUE_METRICS.items()}
    fit = t["unfit"] == 0
    return {
        name: np.where(np.isfinite(value) & (fit | (not VALUE_METRICS[name].binary)), value, np.nan)
        for name, value in values.items()
    }


def reasons(totals: Floats) -> dict[str, str]:
    """Return the reasons why metrics of these totals (s,) are NaN; metrics with a value are absent."""
    t = dict(zip(SUMS, totals.tolist(), strict=True))
    missing = [name for name, value in from_totals(totals).items() if np.isnan(value)]
    return {name: _reason(t, VALUE_METRICS[name].binary) for name in missing}


def _reason(t: dict[str, float], binary: bool) -> str:
    if t["n"] == 0:
        return "no rows"
    if binary and t["unfit"]:
        return f"{t['unfit']:.0f} rows have an outcome outside {{0, 1}} or prediction outside [0, 1]"
    return "the outcomes do not vary" if binary else "the mean outcome is 0"


@value_metric("mse", About("small", place=190, bounds=NOT_NEGATIVE, wide=True))
def mse(t: dict[str, Floats]) -> Floats:
    """Mean of (p - y)^2. Blind to the order of items, and to which users bear the error."""
    return t["squared"] / t["n"]


@value_metric("rmse", About("small", place=170, bounds=NOT_NEGATIVE, wide=True))
def rmse(t: dict[str, Floats]) -> Floats:
    """Square root of MSE, in units of the outcome. A low RMSE says nothing of the top of a list."""
    return np.sqrt(t["squared"] / t["n"])


@value_metric("mae", About("small", place=180, bounds=NOT_NEGATIVE, wide=True))
def mae(t: dict[str, Floats]) -> Floats:
    """Mean of |p - y|. Best at the median: for rare outcomes always predicting 0 looks good."""
    return t["absolute"] / t["n"]


@value_metric(
    "nmse",
    About("small", place=200, bounds=NOT_NEGATIVE, wide=True, depends_on_base_rate=True),
    binary=True,
)
def nmse(t: dict[str, Floats]) -> Floats:
    """MSE / (g (1 - g)), g = mean y; 1: no better than predicting g. Blind to the order."""
    g = t["y"] / t["n"]
    return (t["squared"] / t["n"]) / (g * (1 - g))


@value_metric(
    "pe", About("near 0", place=230, bounds=(-1.0, math.inf), wide=True, depends_on_base_rate=True)
)
def pe(t: dict[str, Floats]) -> Floats:
    """mean(p) / g - 1, over- or under-estimation. Blind to all but the mean: constants can be 0."""
    return t["p"] / t["y"] - 1


@value_metric("mean_prediction", About("none", bounds=ANY))
def mean_prediction(t: dict[str, Floats]) -> Floats:
    """mean(p), to be read beside mean(y). Says nothing of any single prediction."""
    return t["p"] / t["n"]


@value_metric("mean_outcome", About("none", bounds=ANY))
def mean_outcome(t: dict[str, Floats]) -> Floats:
    """g = mean(y), the base rate: a fact of the data, not of the model."""
    return t["y"] / t["n"]


@value_metric(
    "logloss",
    About("small", place=210, bounds=NOT_NEGATIVE, wide=True, depends_on_base_rate=True),
    binary=True,
)
def logloss(t: dict[str, Floats]) -> Floats:
    """Mean of -y ln p - (1 - y) ln(1 - p). Its scale is set by g: not comparable across data.

    Probabilities are clipped to CLIP .. 1 - CLIP: a certain prediction that is wrong costs 36.04.
    """
    return t["logloss"] / t["n"]


@value_metric(
    "rig", About(place=220, bounds=(-math.inf, 1.0), wide=True, depends_on_base_rate=True), binary=True
)
def rig(t: dict[str, Floats]) -> Floats:
    """1 - logloss / H(g), H the entropy. Blind to a change of base rate: falls as g rises."""
    g = t["y"] / t["n"]
    entropy = -(g * np.log(g) + (1 - g) * np.log1p(-g))
    return 1 - (t["logloss"] / t["n"]) / entropy


# ------------------------------------------------------------------------------ by the prediction

RATES = ("tpr", "fnr", "tnr", "fpr")
"""Rates of `threshold_rates`: right and wrong ones of the positives and of the negatives."""


def equal_mass_edges(p: Floats, bins: int) -> Floats:
    """Inner edges of at most `bins` bins of nearly as many rows each: ascending, at most (bins - 1,).

    Rows of equal p share a bin, so there may be fewer bins; an edge belongs to the bin above it.
    """
    _check_finite(p, "predictions")
    ordered = np.sort(p)
    edges = np.unique(ordered[len(p) * np.arange(1, bins) // bins]) if len(p) else ordered
    return edges[edges > ordered[0]] if len(p) else edges


def bin_sums(edges: Floats, p: Floats, y: Floats) -> Floats:
    """The sums of the rows in each bin of the prediction: float64 (edges + 1, s), columns SUMS.

    Bin b holds the rows with exactly b edges <= p. Bins of users add up as their totals do (`sums`).
    `from_totals` of bins shows where predictions are wrong: a PE of 0 can hide a low range
    estimated too high and a high range too low. The RIG of a bin is against the bin's own base rate:
    it ignores the order between bins, is near 0 even for perfect predictions, and does not average to
    the RIG of all rows. Source: Yi et al. 2013, "Predictive model performance: offline
    and online evaluations". Raises DataError for predictions or outcomes that are NaN or infinite.
    """
    sums: Floats = user_bin_sums(np.array([0, len(p)]), edges, p, y)[0]
    return sums


def user_bin_sums(
    offsets: Ints, edges: Floats, p: Floats, y: Floats, names: Sequence[str] = SUMS
) -> Floats:
    """Return `bin_sums` of each user, float64 (u, edges + 1, s); other arguments as in `user_sums`."""
    _check_finite(p, "predictions")
    users, bins = len(offsets) - 1, len(edges) + 1
    cell_n = np.repeat(np.arange(users), np.diff(offsets)) * bins + np.searchsorted(edges, p, side="right")
    order = np.argsort(cell_n, kind="stable")
    count = np.bincount(cell_n, minlength=users * bins)
    bounds = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    sums: Floats = user_sums(bounds, p[order], y[order], names).reshape(users, bins, len(names))
    return sums


@register("calibration_error", About("small", place=260))
def calibration_error(sums_bs: Floats) -> Floats:
    """ECE: sum_b (n_b / n) |mean p - mean y| = sum_b |sum p - sum y| / n, from bins (..., b, s).

    With bins of equal mass (`equal_mass_edges`). Blind to the order of items: predicting the base rate
    for all has no error; and to errors of both signs within a bin, so more bins show more, of noise
    too: about sqrt(2 g (1 - g) b / (pi n)) where predictions are perfect. NaN without rows, and for
    outcomes outside {0, 1}. Source: Naeini, Cooper and Hauskrecht 2015, "Obtaining well calibrated
    probabilities using Bayesian binning", section "Experiments".
    """
    t = _by_name(sums_bs)
    n, unfit = t["n"].sum(axis=-1), t["unfit"].sum(axis=-1)
    gap = np.abs(t["p"] - t["y"]).sum(axis=-1)
    return _divide(gap, np.where(unfit == 0, n, 0.0))


@register("tpr", About())
@register("fnr", About("small"))
@register("tnr", About())
@register("fpr", About("small"))
def threshold_rates(sums_bs: Floats) -> dict[str, Floats]:
    """TPR, FNR, TNR and FPR of calling p >= t positive: (..., t) each, from bins whose edges are t.

    tpr = share of the positives at or above t, fnr = 1 - tpr; fpr = share of the negatives at or above
    t, tnr = 1 - fpr. NaN where there are no positives (no negatives). Each is blind to the other
    class, and so to the base rate: at one tpr and fpr most calls can be right or wrong. All are blind
    to what an error costs, and to p except on which side of t it lies.
    """
    t = _by_name(sums_bs)
    fit = t["unfit"].sum(axis=-1, keepdims=True) == 0
    rates = []
    for amount in (t["y"], t["n"] - t["y"]):
        from_bin = np.cumsum(amount[..., ::-1], axis=-1)[..., ::-1]
        total = np.broadcast_to(from_bin[..., :1], from_bin[..., 1:].shape)
        rates.append(_divide(from_bin[..., 1:], np.where(fit, total, 0.0)))
    tpr, fpr = rates
    return dict(zip(RATES, (tpr, 1 - tpr, 1 - fpr, fpr), strict=True))


def _by_name(sums: Floats) -> dict[str, Floats]:
    return {name: np.asarray(sums[..., s], dtype=np.float64) for s, name in enumerate(SUMS)}


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, NaN where the denominator is not positive."""
    out: Floats = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)


# ------------------------------------------------------------------------------------------ AUC


@dataclass(frozen=True)
class PairCounts:
    """Whole-number parts of the AUC of one chunk of rows, or of several combined.

    Of each positive, x = 2 #{negatives below} + #{negatives tied}; of each negative, z = 2
    #{positives above} + #{positives tied}. Python integers: squares of 10^9 rows need 90 bits.
    """

    positives: int
    negatives: int
    wins: int
    """Sum of x, which is the sum of z."""
    squares_x: int
    squares_z: int


def pair_counts(p: Floats, y: Floats) -> PairCounts:
    """Count the ordered pairs within a chunk of rows, in any order: p (n,), y (n,) in {0, 1}.

    If chunks are combined, rows of equal p must be in one chunk.
    """
    _check_finite(p, "predictions")
    _check_binary(y)
    _, run = np.unique(p, return_inverse=True)
    positives = np.bincount(run, weights=y).astype(np.int64)
    negatives = np.bincount(run).astype(np.int64) - positives
    below = np.cumsum(negatives) - negatives
    above = positives.sum() - np.cumsum(positives)
    x, z = 2 * below + negatives, 2 * above + positives
    return PairCounts(
        int(positives.sum()),
        int(negatives.sum()),
        _exact_weighted_sum(positives, x),
        _exact_weighted_sum(positives, x, x),
        _exact_weighted_sum(negatives, z, z),
    )


def combine(chunks: Sequence[PairCounts]) -> PairCounts:
    """Combine the counts of chunks, in ascending order of prediction, into those of all rows.

    With N negatives in lower chunks each x grows by 2 N; with P positives in higher ones each z
    grows by 2 P: sum (x + 2N)^2 = sum x^2 + 4 N sum x + 4 N^2 positives.
    """
    every = PairCounts(0, 0, 0, 0, 0)
    for chunk in chunks:
        n, p = 2 * every.negatives, 2 * chunk.positives
        every = PairCounts(
            every.positives + chunk.positives,
            every.negatives + chunk.negatives,
            every.wins + chunk.wins + n * chunk.positives,
            every.squares_x + chunk.squares_x + 2 * n * chunk.wins + n * n * chunk.positives,
            every.squares_z + 2 * p * every.wins + p * p * every.negatives + chunk.squares_z,
        )
    return every


def auc(counts: PairCounts) -> float:
    """Chance that a positive is predicted above a negative, ties one half; NaN without pairs.

    Constant predictions give 1/2. Blind to calibration, to the operating range, to unequal costs of
    errors; easy negatives raise it.
    """
    pairs = 2 * counts.positives * counts.negatives
    return counts.wins / pairs if pairs else math.nan


def auc_error(counts: PairCounts) -> float:
    """Standard error of the AUC (DeLong, DeLong and Clarke-Pearson 1988); rows independent.

    Rows of one user are not independent: prefer the bootstrap over users where users matter.
    """
    m, n = counts.positives, counts.negatives
    if m < 2 or n < 2:
        return math.nan
    # In whole numbers until the division, since the two terms nearly cancel.
    spread_x = (m * counts.squares_x - counts.wins**2) / (m * m * (m - 1) * 4 * n * n)
    spread_z = (n * counts.squares_z - counts.wins**2) / (n * n * (n - 1) * 4 * m * m)
    return math.sqrt(spread_x + spread_z)


@register("pauc", About(place=250))
def partial_auc(p: Floats, y: Floats, low: float, high: float) -> float:
    """Area under the ROC curve over false-positive rates low..high, divided by high - low.

    Straight lines between thresholds; NaN without positives or negatives. Blind to all that happens
    outside of its range. Source: McClish 1989, "Analyzing a portion of the ROC curve", without her
    rescaling: random predictions give (low + high) / 2.
    """
    _check_finite(p, "predictions")
    _check_binary(y)
    positives = int(y.sum())
    negatives = len(y) - positives
    twice, cut = roc_area(p, y, (0, 0), (low * negatives, high * negatives))
    return area_share(twice, [cut], positives * negatives, (low, high))


def roc_area(
    p: Floats, y: Floats, above: tuple[int, int], within: tuple[float, float]
) -> tuple[int, float]:
    """Area under the ROC curve in (positive, negative) pairs, of one range of predictions.

    Rows of equal p form a line of the curve, from (N, P) to (N + m, P + h), N negatives and P
    positives being predicted above: its area is m P + m h / 2, in part a P + a^2 h / (2 m).

    Args:
        p, y: (n,) rows of the range, in any order; rows of equal p are in one range.
        above: positives and negatives predicted above the range.
        within: bounds of the area, in negatives from the top.

    Returns:
        twice the area of the lines that lie within the bounds, a whole number; and the area of the
        lines that a bound cuts.
    """
    _, run = np.unique(-p, return_inverse=True)
    h = np.bincount(run, weights=y).astype(np.int64)
    m = np.bincount(run).astype(np.int64) - h
    p_above, start = above[0] + np.cumsum(h) - h, above[1] + np.cumsum(m) - m
    low, high = within
    whole = (start >= low) & (start + m <= high)
    cut = ~whole & (start + m > low) & (start < high)
    a, b = (np.clip(bound - start[cut], 0, m[cut]) for bound in within)
    area = p_above[cut] * (b - a) + h[cut] * (b - a) * (b + a) / (2 * m[cut])
    return _exact_weighted_sum(m[whole], (2 * p_above + h)[whole]), math.fsum(area)


def area_share(twice: int, cut: Sequence[float], pairs: int, rates: tuple[float, float]) -> float:
    """Return the partial AUC from the areas of all ranges (`roc_area`); NaN without pairs."""
    return (twice / 2 + math.fsum(cut)) / (pairs * (rates[1] - rates[0])) if pairs else math.nan


def user_aucs(offsets: Ints, p: Floats, y: Floats) -> tuple[Floats, Ints]:
    """Return AUC and number of positives of each user: (u,), (u,); NaN without positives or negatives.

    By mid-ranks: AUC_u = (sum of the positives' ranks - P (P + 1) / 2) / (P N).
    """
    _check_finite(p, "predictions")
    _check_binary(y)
    u = len(offsets) - 1
    count = np.diff(offsets)
    user = np.repeat(np.arange(u), count)
    order = np.lexsort((p, user))
    user, p, y = user[order], p[order], y[order]
    new = np.ones(len(p), dtype=bool)
    new[1:] = (user[1:] != user[:-1]) | (p[1:] != p[:-1])
    start = np.flatnonzero(new)
    end = np.append(start[1:], len(p))
    # Twice the mid-rank: first + last rank of the run.
    twice = np.repeat(start + end + 1, end - start) - 2 * offsets[user]
    positives = np.bincount(user, weights=y, minlength=u).astype(np.int64)
    ranks = np.bincount(user, weights=y * twice, minlength=u)
    negatives = count - positives
    value: Floats = np.full(u, np.nan)
    pairs = 2 * positives * negatives
    np.divide(ranks - positives * (positives + 1), pairs, out=value, where=pairs > 0)
    return value, positives


def gauc_parts(offsets: Ints, p: Floats, y: Floats) -> Floats:
    """Return AUC_u P_u and P_u of each user, (u, 2), NaN for users without an AUC."""
    value, positives = user_aucs(offsets, p, y)
    weight = np.where(np.isnan(value), np.nan, positives)
    return np.column_stack([value * weight, weight])


@register("gauc", About(place=240, wide=True))
def gauc(sums: Floats) -> float:
    """sum(AUC_u P_u) / sum(P_u) from the summed `gauc_parts`, (2,); NaN without any user.

    Users are weighted by their positives P_u: Zhu et al. 2017, "Optimized cost per click in Taobao
    display advertising", section 5, allow clicks or impressions; others weigh all users alike.
    Blind to all differences between users, and to users with one kind of outcome only.
    """
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def _exact_weighted_sum(*factors: Ints) -> int:
    """Return the sum of products of whole numbers >= 0, exact: Python integers if int64 could overflow."""
    bound = math.prod(float(factor.max(initial=0)) for factor in factors) * len(factors[0])
    if bound < 2.0**62:
        return int(np.prod(np.stack(factors), axis=0).sum())
    return sum(math.prod(parts) for parts in zip(*(f.tolist() for f in factors), strict=True))


def _check_finite(values: Floats, what: str) -> None:
    wrong = int((~np.isfinite(values)).sum())
    if wrong:
        raise DataError(f"{wrong} of {len(values)} {what} are NaN or infinite", "drop or repair these rows")


def _check_binary(y: Floats) -> None:
    if not ((y == 0) | (y == 1)).all():
        raise DataError("AUC needs outcomes of 0 and 1", "set a threshold to turn ratings into outcomes")
