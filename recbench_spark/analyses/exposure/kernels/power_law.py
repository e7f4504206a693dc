"""Power law for item counts, fitted to their histogram.

P(n) = n^-alpha / zeta(alpha, xmin) for n >= xmin. The state is a histogram, (count, items), so the work
grows with the number of different counts: a log with 10^9 interactions has at most 45,000.

Axes: x different counts, ascending; t tails, one for each xmin tried; b points in a tail.

Source: Clauset, Shalizi and Newman 2009, "Power-law distributions in empirical data", sections 3 to 5 and
appendices B and D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import DataError

Method = Literal["approximate", "exact"]

DIRECT = 12
"""Terms of zeta before Euler and Maclaurin's series starts."""

BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)
"""B_2j / (2 j)!, j = 1, 2, ..."""

STEPS = 40
"""Most steps in Newton's method; it takes about six."""

COARSE = 64
"""Points at which every tail is measured first; only promising tails are then measured in full."""

SMALLEST_TAIL = 50
"""Items in the smallest tail: smaller ones give unreliable estimates (Clauset et al. 2009, section 3.5)."""

STEEPEST = 10.0
"""Larger exponents are accepted only if no thinner tail is as likely; published ones lie in 1.5..7."""

SURE = 1.645
"""Vuong's statistic above which the power law counts as more likely: one-sided 5 %."""

TABLE = 1 << 14
"""Counts of a simulated tail drawn together; the few beyond are drawn one by one."""


@dataclass(frozen=True)
class Alternative:
    """Another law for the same tail.

    ratio: ln of the power law's likelihood minus that of this law; z: Vuong's statistic, ratio over its
    standard deviation: positive if the power law is more likely, NaN if both are the same.
    """

    name: str
    ratio: float
    z: float


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law, with its errors and comparisons.

    Attributes:
        alpha, error: the exponent and its standard error for this xmin.
        xmin: smallest count in the tail.
        tail, items: items in the tail and in all.
        distance: Kolmogorov and Smirnov's, between the tail and the law.
        method: estimator for alpha (see `exponents`).
        against: comparisons with other laws (see `alternatives`), if requested.
    """

    alpha: float
    error: float
    xmin: int
    tail: int
    items: int
    distance: float
    method: Method
    against: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Tails:
    """A histogram's tails, smallest xmin first.

    Each tail has its number of items and its sum of ln(count), (x,).
    """

    count: Ints
    items: Ints
    tail: Ints
    log_sum: Floats


def fit(count_x: npt.NDArray[Any], items_x: npt.NDArray[Any], method: Method = "approximate") -> PowerLaw:
    """Fit the law: its xmin gives the least distance.

    The largest count is not an xmin; ties: smallest. A tail has at least 50 items, or all if there are
    fewer. The result is exact, although only a few tails are measured in full: the distance at some points
    of a tail is a lower bound for its distance.

    Args:
        count_x: counts in any order; items with count 0 are ignored.
        items_x: items with each count.
        method: `approximate` (Clauset's eq. 3.7) or `exact` (the zeta likelihood).

    Raises:
        DataError: fewer than two different positive counts.
    """
    tails = _tails(count_x, items_x)
    enough = int((tails.tail[:-1] >= min(SMALLEST_TAIL, tails.tail[0])).sum())
    alpha_t = exponents(tails, method, enough)
    bound_t = _bounds(tails, alpha_t)
    best, least = 0, np.inf
    for t in np.argsort(bound_t, kind="stable"):
        if bound_t[t] > least:
            break
        distance = _distance(tails, int(t), alpha_t[t])
        if (distance, t) < (least, best):
            best, least = int(t), distance
    return _law(tails, best, float(alpha_t[best]), least, method)


def exponents(tails: Tails, method: Method, tried: int) -> Floats:
    """Return alpha for each of the first `tried` xmin, (t,).

    The largest count is no xmin. approximate: 1 + m / sum ln(n / (xmin - 1/2)), good for xmin about 6 and
    more; exact: the maximum of -m ln zeta(alpha, xmin) - alpha sum ln n.
    """
    xmin = tails.count[:tried].astype(np.float64)
    tail, log_sum = tails.tail[:tried], tails.log_sum[:tried]
    start = 1.0 + tail / (log_sum - tail * np.log(xmin - 0.5))
    return start if method == "approximate" else _exact(start, xmin, log_sum / tail)


def log_zeta(alpha: npt.ArrayLike, q: npt.ArrayLike) -> Floats:
    """Return ln sum_{k >= 0} (q + k)^-alpha.

    For alpha > 1, q >= 1: Euler and Maclaurin, about 1e-14. Scaled by q^-alpha within, so large exponents
    do not underflow.
    """
    a, q = np.broadcast_arrays(np.asarray(alpha, dtype=np.float64), np.asarray(q, dtype=np.float64))
    total = np.ones(a.shape)
    for k in range(1, DIRECT):
        total += np.exp(-a * np.log1p(k / q))
    end = q + DIRECT
    scale = np.exp(-a * np.log1p(DIRECT / q))
    series = end / (a - 1) + 0.5
    rising = a / end
    for j, coefficient in enumerate(BERNOULLI):
        series = series + coefficient * rising
        rising = rising * (a + 2 * j + 1) * (a + 2 * j + 2) / end**2
    return np.asarray(np.log(total + scale * series) - a * np.log(q))


def goodness(
    count_x: npt.NDArray[Any], items_x: npt.NDArray[Any], law: PowerLaw, replicates: int, seed: int
) -> float:
    """Return the share of simulated histograms with a worse fit.

    Each histogram is compared with its own fit; a small share means no power law. Semi-parametric: an item
    is in the tail with the same chance as here and then follows the law, else it follows the counts below
    xmin; xmin and alpha are fitted anew. The share has the +1 for a randomisation test. Clauset et al.
    2009, section 4.1; 2,500 replicates give two digits.
    """
    rng = np.random.default_rng(seed)
    count, items = np.asarray(count_x, dtype=np.int64), np.asarray(items_x, dtype=np.int64)
    body = (count > 0) & (count < law.xmin)
    farther = 0
    for _ in range(replicates):
        simulated = _simulate(count[body], items[body], law, rng)
        farther += fit(*simulated, method=law.method).distance >= law.distance
    return (1 + farther) / (1 + replicates)


def alternatives(
    count_x: npt.NDArray[Any], items_x: npt.NDArray[Any], law: PowerLaw
) -> tuple[Alternative, ...]:
    """Compare the law with a geometric and a lognormal one.

    Likelihoods are compared on the same tail. Both are laws for whole numbers from xmin on, at their own
    most likely parameters. Vuong 1989, "Likelihood ratio tests for model selection"; Clauset et al. 2009,
    section 5.
    """
    keep = np.asarray(count_x) >= law.xmin
    count = np.asarray(count_x, dtype=np.float64)[keep]
    items = np.asarray(items_x, dtype=np.float64)[keep]
    own = -law.alpha * np.log(count) - float(log_zeta(law.alpha, law.xmin))
    n, compared = float(items.sum()), []
    for name, likelihoods in (("geometric", _geometric), ("lognormal", _lognormal)):
        gap_x = own - likelihoods(count, items, law.xmin)
        ratio = float(items @ gap_x)
        variance = float(items @ (gap_x - ratio / n) ** 2) / n
        z = ratio / (n * variance) ** 0.5 if variance > 0 else float("nan")
        compared.append(Alternative(name, ratio, z))
    return tuple(compared)


def _geometric(count_x: Floats, items_x: Floats, xmin: int) -> Floats:
    """Return a geometric law's log-likelihoods.

    The law is (1 - q) q^(n - xmin), with q from the mean.
    """
    excess = float(items_x @ (count_x - xmin)) / float(items_x.sum())
    stay = excess / (1.0 + excess)
    return np.asarray(np.log1p(-stay) + (count_x - xmin) * np.log(stay))


def _lognormal(count_x: Floats, items_x: Floats, xmin: int) -> Floats:
    """Return log-likelihoods for a lognormal number rounded to n.

    The number is at least xmin - 1/2.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 (half a second that few need)
    from scipy.special import log_ndtr  # noqa: PLC0415

    logs = np.log(count_x)
    mean = float(items_x @ logs) / float(items_x.sum())
    spread = (float(items_x @ (logs - mean) ** 2) / float(items_x.sum())) ** 0.5
    edges = np.log(np.array([count_x - 0.5, count_x + 0.5]))

    def likelihoods(at: Floats) -> Floats:
        scale = np.exp(at[1])
        upper = log_ndtr(-(edges - at[0]) / scale)
        start = float(log_ndtr(-(np.log(xmin - 0.5) - at[0]) / scale))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_mass = upper[0] + np.log(-np.expm1(upper[1] - upper[0])) - start
        return np.asarray(np.nan_to_num(log_mass, nan=-1e300, neginf=-1e300))

    best = minimize(
        lambda at: -float(items_x @ likelihoods(at)) / float(items_x.sum()),
        np.array([mean, np.log(spread)]),
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000},
    )
    return likelihoods(best.x)


def check(law: PowerLaw) -> None:
    """Refuse a fit that is no power law.

    A steep law is refused if a thinner tail is at least as likely. Counts close together (every item shown
    to thousands) are fitted by exponents in the hundreds, under which propensities are not numbers. law:
    with its `alternatives`.

    Raises:
        DataError: the fit is no power law.
    """
    likely = [one for one in law.against if not one.z >= SURE]
    if law.alpha > STEEPEST and likely:
        raise no_law(law, f"a {likely[0].name} tail is as likely (z {likely[0].z:.2g})")


def no_law(law: PowerLaw, why: str) -> DataError:
    """Return the error naming the fit."""
    return DataError(
        f"the counts follow no power law: alpha {law.alpha:.6g} from xmin {law.xmin} on, a tail of "
        f"{law.tail} of {law.items} items; {why}",
        "use relative_frequency, or give propensities",
    )


def draw(alpha: float, xmin: int, size: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw `size` counts from the law, as a histogram.

    Returns ascending counts, and how often each occurs.
    """
    end = np.arange(xmin, xmin + TABLE + 1)
    survival = np.exp(log_zeta(alpha, end) - log_zeta(alpha, xmin))
    times = rng.multinomial(size, np.append(-np.diff(survival), survival[-1]))
    far = _beyond(alpha, xmin, survival[-1] * (1.0 - rng.random(times[-1])))
    counts, repeats = np.unique(far, return_counts=True)
    near = np.flatnonzero(times[:-1])
    return np.append(end[near], counts), np.append(times[near], repeats)


def _tails(count_x: npt.NDArray[Any], items_x: npt.NDArray[Any]) -> Tails:
    keep = (np.asarray(count_x) > 0) & (np.asarray(items_x) > 0)
    count, back = np.unique(np.asarray(count_x, dtype=np.int64)[keep], return_inverse=True)
    items = np.bincount(back, weights=np.asarray(items_x)[keep]).astype(np.int64)
    if len(count) < 2:
        raise DataError(
            f"a power law needs two different counts, there are {len(count)}",
            "give propensities, or use relative frequencies",
        )
    logs = items.astype(np.float64) * np.log(count.astype(np.float64))
    log_sum: Floats = np.cumsum(logs[::-1])[::-1]
    return Tails(count, items, np.cumsum(items[::-1])[::-1], log_sum)


def _exact(start_t: Floats, xmin_t: Floats, mean_log_t: Floats) -> Floats:
    """Solve for alpha by Newton's method, in ln(alpha - 1).

    In ln(alpha - 1), the mean of ln n is nearly linear.
    """
    y = np.log(start_t - 1)
    for _ in range(STEPS):
        slope, curve = _log_zeta_slopes(1 + np.exp(y), xmin_t)
        # d/dalpha of the likelihood is -slope - mean ln n, and -slope is the law's mean of ln n; in y
        # the excess over ln(xmin) goes like exp(-y).
        excess, wanted = -slope - np.log(xmin_t), mean_log_t - np.log(xmin_t)
        step = np.log(excess / wanted) * excess / (curve * np.exp(y))
        y = y + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-13:
            break
    return np.asarray(1 + np.exp(y))


def _log_zeta_slopes(alpha: Floats, xmin: Floats) -> tuple[Floats, Floats]:
    """Return first and second derivative of ln zeta by alpha.

    The derivatives are minus the mean, and the variance, of ln n.
    """
    h = 2e-3 * (alpha - 1)
    far, near, mid, up, top = (log_zeta(alpha + j * h, xmin) for j in (-2, -1, 0, 1, 2))
    first = (far - 8 * near + 8 * up - top) / (12 * h)
    second = (-far + 16 * near - 30 * mid + 16 * up - top) / (12 * h * h)
    return first, second


def _distance(tails: Tails, t: int, alpha: float) -> float:
    """Return max |P(X < n) in the tail - P(X < n) by the law|.

    n runs over the tail's counts.
    """
    law = np.exp(log_zeta(alpha, tails.count[t:]) - log_zeta(alpha, tails.count[t]))
    return float(np.abs(law - tails.tail[t:] / tails.tail[t]).max())


def _bounds(tails: Tails, alpha_t: Floats) -> Floats:
    """Return each tail's distance over few counts, (t,).

    At most COARSE counts are used; possible roundings are subtracted.
    """
    t = np.arange(len(alpha_t))
    last = len(tails.count) - 1
    # Dense at a tail's start, where laws and tails differ most.
    place = np.unique(np.geomspace(1, last + 1, COARSE).astype(np.int64)) - 1
    bound = np.zeros(len(t))
    start = log_zeta(alpha_t, tails.count[: len(t)])
    for step in place:
        x = np.minimum(t + step, last)
        law = np.exp(log_zeta(alpha_t, tails.count[x]) - start)
        bound = np.maximum(bound, np.abs(law - tails.tail[x] / tails.tail[t]))
    return np.asarray(bound - 1e-12)


def _law(tails: Tails, t: int, alpha: float, distance: float, method: Method) -> PowerLaw:
    start, tail = int(tails.count[t]), int(tails.tail[t])
    error = (alpha - 1) / tail**0.5
    if method == "exact":
        error = float((tail * _log_zeta_slopes(np.array(alpha), np.array(float(start)))[1]) ** -0.5)
    return PowerLaw(alpha, error, start, tail, int(tails.tail[0]), distance, method)


def _simulate(body_x: Ints, items_x: Ints, law: PowerLaw, rng: np.random.Generator) -> tuple[Ints, Ints]:
    tail = int(rng.binomial(law.items, law.tail / law.items)) if len(body_x) else law.items
    counts, items = draw(law.alpha, law.xmin, tail, rng)
    if not len(body_x):
        return counts, items
    body = rng.multinomial(law.items - tail, items_x / items_x.sum())
    return np.append(body_x, counts), np.append(body, items)


def _beyond(alpha: float, xmin: int, chance_n: Floats) -> Ints:
    """Return the n with P(X > n) < chance <= P(X >= n).

    By doubling and halving, at most 2^53.
    """
    target = np.log(chance_n) + log_zeta(alpha, xmin)
    low = np.full(len(chance_n), xmin, dtype=np.int64)
    step = np.int64(1) << 52
    while step:
        higher = np.minimum(low + step, np.int64(1) << 53)
        low = np.where(log_zeta(alpha, higher) >= target, higher, low)
        step >>= 1
    return low
