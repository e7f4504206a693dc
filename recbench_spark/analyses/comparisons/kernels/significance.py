"""Significance of differences between models, from sums over users.

All pairs are tested. Users are never moved. A user batch adds to a small array (m models): `pair_sums` for
means and t-tests of all pairs, `resampling.bootstrap_sums` for the paired bootstrap, `sign_sums` for the
randomisation test (one draw of weights or signs serves every pair), a histogram of differences for
Wilcoxon's test. All are whole numbers: any order and partitioning gives the same bits. Axes: u users, m
models (pairs a, b: a minus b), r replicates, d different differences, t looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.compiling import compile_with_python_errors
from recbench_spark.core.hashing import GAMMA, mix, stream
from recbench_spark.core.resampling import BLOCK, BOOTSTRAP_BITS, MASK, percentile_interval
from recbench_spark.errors import DataError

PLANES = 9
"""Number of (m, m) arrays in `pair_sums`."""

HALF_BITS = 15
"""A value is high 2^-15 + low 2^-30: products of halves add up exactly in float64."""

UNIT = 2.0 ** (-2 * HALF_BITS)
"""Values are rounded to multiples of this unit."""

LARGEST = 16.0
"""Largest allowed value: sums over 33 million users then fit in int64 (values up to 1: 8 billion)."""

SIGNS_SALT = 0x5369676E73
"""Makes the signs in the randomisation test independent from the bootstrap weights."""

EXACT_USERS = 50
"""Most users with an exact Wilcoxon p: 2^50 sign patterns, which float64 counts exactly."""

DIFFERENCE_BITS = 16
"""Differences are rounded to 2^-16 before they are counted for Wilcoxon's test."""


def pair_sums(values_um: Floats) -> Ints:
    """Return sums behind all paired t-tests: int64 (9, m, m).

    Add them over batches. NaN: the user is left out for that model; pairs use the users of both models.
    Cost u m^2 products. Values are rounded to 2^-30. Tests do not change if all models' values are divided
    by one number.

    Raises:
        DataError: a value above 16.
    """
    m = values_um.shape[1]
    total = np.zeros((PLANES, m, m), dtype=np.int64)
    for start in range(0, len(values_um), BLOCK):
        block = values_um[start : start + BLOCK]
        # Most definitions leave a user out for all models or for none.
        total += _block_sums(block[~np.isnan(block).all(axis=1)])
    return total


def _block_sums(values_um: Floats) -> Ints:
    valid = (~np.isnan(values_um)).astype(np.float64)
    values = np.where(valid > 0, values_um, 0.0)
    largest = np.abs(values).max(initial=0.0)
    if largest > LARGEST:
        raise DataError(f"a value of {largest:g} is too large to compare exactly", "rescale it")
    fixed = np.rint(values / UNIT)
    high = np.rint(fixed * 2.0**-HALF_BITS)
    low = fixed - high * 2.0**HALF_BITS
    left = (valid, high, low, high * high, high * low, low * low)
    planes = [_sum_over_valid(part, valid) for part in left]
    planes += [_exact_product(high, high), _exact_product(high, low), _exact_product(low, low)]
    return np.stack(planes)


def _sum_over_valid(part_um: Floats, valid_um: Floats) -> Ints:
    if not valid_um.all():
        return _exact_product(part_um, valid_um)
    # These sums need no product. They are in int64, since many users' squares may exceed 2^53.
    total = part_um.astype(np.int64).sum(axis=0)
    return np.repeat(total[:, None], part_um.shape[1], axis=1)


def _exact_product(left_um: Floats, right_um: Floats) -> Ints:
    """Return left' right in whole numbers.

    Slices keep their sums below 2^53.
    """
    largest = max(np.abs(left_um).max(initial=1.0) * np.abs(right_um).max(initial=1.0), 1.0)
    step = max(1, int(2.0**53 / largest))
    total = np.zeros((left_um.shape[1], right_um.shape[1]), dtype=np.int64)
    for start in range(0, len(left_um), step):
        part = left_um[start : start + step].T @ right_um[start : start + step]
        total += part.astype(np.int64)
    return total


@dataclass(frozen=True)
class PairedTests:
    """Student's paired test for all pairs, (m, m) each.

    Users, mean of a - b, its standard error, t, two-sided p, effect. effect: Cohen's d_z, the mean
    difference over its standard deviation. t, p and effect are NaN below two users, and if all users have
    the same difference.
    """

    users: Ints
    mean: Floats
    error: Floats
    t: Floats
    p: Floats
    effect: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Return Student's interval for the mean difference."""

        reach = stdtrit(np.maximum(self.users - 1, 1), (1 + level) / 2) * self.error
        return self.mean - reach, self.mean + reach


def student_half_width(values: Sequence[float], level: float = 0.95) -> float:
    """Return half of Student's interval for a mean.

    Meant for a few values, such as seeds; NaN below two.
    """
    n = len(values)
    return float(stdtrit(n - 1, (1 + level) / 2) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def paired_t(sums: Ints) -> PairedTests:
    """Compute Student's paired t-test for every pair from `pair_sums`."""
    n, total, squares = sums[0].astype(np.float64), _totals(sums), _squares(sums)
    # Python's whole numbers: n sum d^2 - (sum d)^2 is exactly 0 if all users have the same difference.
    spread = (sums[0].astype(object) * squares - total * total).astype(np.float64) * UNIT**2
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total.astype(np.float64) * UNIT / n
        variance = np.where(n > 1, spread / (n * (n - 1)), np.nan)
        error = np.sqrt(variance / n)
        effect = np.where(variance > 0, mean / np.sqrt(variance), np.nan)
        t = effect * np.sqrt(n)
    return PairedTests(sums[0], mean, error, t, 2 * stdtr(np.maximum(n - 1, 1), -np.abs(t)), effect)


def _totals(sums: Ints) -> npt.NDArray[Any]:
    """Return the sum of a - b in units of 2^-30."""
    high, low = ((part - part.T).astype(object) for part in (sums[1], sums[2]))
    total: npt.NDArray[Any] = high * 2**HALF_BITS + low
    return total


def _squares(sums: Ints) -> npt.NDArray[Any]:
    """Return the sum of (a - b)^2 in units of 2^-60."""
    high, low = (own + own.T - 2 * both for own, both in ((sums[3], sums[6]), (sums[5], sums[8])))
    cross = 2 * (sums[4] + sums[4].T - sums[7] - sums[7].T)
    parts = [part.astype(object) for part in (high, cross, low)]
    squares: npt.NDArray[Any] = (parts[0] * 2**HALF_BITS + parts[1]) * 2**HALF_BITS + parts[2]
    return squares


def same_users(sums: Ints) -> Bools:
    """Mark pairs averaged over the same users, (m, m).

    Other pairs have no paired bootstrap.
    """
    own = np.diagonal(sums[0])
    return np.asarray((sums[0] == own) & (sums[0] == own[:, None]))


def bootstrap_pairs(
    sums_rm: Ints, totals_rm: Ints, mean_m: Floats, level: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return bootstrap intervals and two-sided p, (m, m) each.

    Intervals are percentile intervals for all pairs, from `bootstrap_sums`. The p-value is how often |d* -
    d| >= |d|, with the +1 (Efron and Tibshirani 1993, section 16.4; Davison and Hinkley 1997, section 4.2).
    NaN for pairs with different total weights: they were averaged over different users. Holds (r, m)
    numbers at a time.
    """
    m = sums_rm.shape[1]
    low, high, p = np.full((3, m, m), np.nan)
    estimate_rm: Floats = np.full(sums_rm.shape, np.nan)
    np.divide(sums_rm * 2.0**-BOOTSTRAP_BITS, totals_rm, out=estimate_rm, where=totals_rm > 0)
    for a in range(m):
        same = (totals_rm == totals_rm[:, a : a + 1]).all(axis=0)
        difference = estimate_rm[:, a : a + 1] - estimate_rm[:, same]
        observed = mean_m[a] - mean_m[same]
        low[a, same], high[a, same] = percentile_interval(difference, level)
        farther = np.abs(difference - observed) >= np.abs(observed)
        p[a, same] = (1 + farther.sum(axis=0)) / (1 + len(difference))
    return low, high, p


def random_signs(keys: npt.NDArray[Any], replicates: int, seed: int) -> npt.NDArray[np.int8]:
    """Draw users' signs -1 or 1: int8 (u, r).

    A sign is a function of (key, replicate, seed).
    """
    if keys.dtype not in (np.int64, np.uint64):
        raise DataError(f"keys are {keys.dtype}, not int64 or uint64", "hash the user ids to int64")
    signs = np.empty((len(keys), replicates), dtype=np.int8)
    _fill_signs(keys.view(np.uint64), np.uint64((seed ^ SIGNS_SALT) & MASK), signs)
    return signs


@compile_with_python_errors
def _fill_signs(keys: npt.NDArray[np.uint64], seed: np.uint64, signs: npt.NDArray[np.int8]) -> None:
    """Take 64 replicates from each hash, one per bit."""
    for u in range(len(keys)):
        state = stream(seed, keys[u])
        bits = np.uint64(0)
        for r in range(signs.shape[1]):
            if r % 64 == 0:
                state += GAMMA
                bits = mix(state)
            signs[u, r] = 1 if (bits >> np.uint64(r % 64)) & np.uint64(1) else -1


def sign_sums(keys: npt.NDArray[Any], values_um: Floats, replicates: int, seed: int) -> Ints:
    """Sum sign x value: int64 (r + 1, m) in 2^-30 units.

    Add these over batches; row 0 has all signs 1. One user has one sign for all models, so the sum of sign
    x (a - b) is the difference between two columns. NaN counts as 0.
    """
    fixed = np.rint(np.where(np.isnan(values_um), 0.0, values_um) * 2.0**BOOTSTRAP_BITS)
    sums = np.zeros((replicates + 1, values_um.shape[1]), dtype=np.int64)
    step = max(1, min(BLOCK, int(2.0**53 / max(np.abs(fixed).max(initial=1.0), 1.0))))
    for start in range(0, len(keys), step):
        part = fixed[start : start + step]
        signs = random_signs(keys[start : start + step], replicates, seed).astype(np.float64)
        sums[0] += part.sum(axis=0).astype(np.int64)
        sums[1:] += (signs.T @ part).astype(np.int64)
    return sums


def randomisation_p(sums_rm: Ints, same_ab: Bools | None = None) -> Floats:
    """Return every pair's two-sided p, (m, m), from `sign_sums`.

    p is (1 + #{|T*| >= |T|}) / (1 + r). Exact comparison of whole numbers. same_ab: from `same_users`;
    other pairs are NaN. Source: Fisher 1935; the +1: Phipson and Smyth 2010, "Permutation p-values should
    never be zero".
    """
    m = sums_rm.shape[1]
    p = np.empty((m, m))
    for a in range(m):
        statistic = np.abs(sums_rm[:, a : a + 1] - sums_rm)
        p[a] = (1 + (statistic[1:] >= statistic[0]).sum(axis=0)) / len(statistic)
    return p if same_ab is None else np.where(same_ab, p, np.nan)


@dataclass(frozen=True)
class Wilcoxon:
    """Signed-rank test, from the ranks of positive differences.

    The fields are the ranks' sum, z (NaN if p is exact), two-sided p, and the number of ranked users.
    """

    positive: float
    z: float
    p: float
    users: int


def difference_steps(difference_u: Floats) -> Ints:
    """Return differences as multiples of 2^-16, int64 (u,).

    `wilcoxon` takes their histogram.
    """
    return np.rint(np.asarray(difference_u, dtype=np.float64) * 2.0**DIFFERENCE_BITS).astype(np.int64)


def wilcoxon(
    difference_d: npt.NDArray[Any],
    users_d: npt.NDArray[Any],
    zeros: Literal["wilcox", "pratt"] = "wilcox",
) -> Wilcoxon:
    """Compute the signed-rank test from each difference's users.

    Differences may have any unit and order. Ties share their mean rank. wilcox: zeros are left out; pratt:
    they are ranked, then left out. The p-value is exact up to 50 ranked users, given the ties: the share of
    all 2^n sign patterns at least as extreme, twice the smaller tail. scipy counts them so up to 13 users
    with ties or zeros and up to 50 without; from 14 to 50 with ties its default is the normal
    approximation, and p here is still exact. Beyond 50 users it is normal with the tie correction and
    without a correction for continuity, as in scipy. p is 1 if all differences are 0.
    """
    size, back = np.unique(np.abs(difference_d), return_inverse=True)
    users = np.asarray(users_d, dtype=np.float64)
    count: Floats = np.bincount(back, weights=users, minlength=len(size)).astype(np.float64)
    up = np.bincount(back, weights=users * (np.asarray(difference_d) > 0), minlength=len(size))
    zero = float(count[size == 0].sum())
    if zeros == "wilcox":
        size, count, up = size[size > 0], count[size > 0], up[size > 0]
    rank = np.cumsum(count) - (count - 1) / 2
    counted = size > 0
    n = float(count[counted].sum())
    positive = float((rank * up)[counted].sum())
    if n == 0:
        return Wilcoxon(0.0, 0.0, 1.0, 0)
    if count.sum() <= EXACT_USERS:
        ranks = np.repeat(2 * rank[counted], count[counted].astype(np.int64)).astype(np.int64)
        return Wilcoxon(positive, math.nan, _exact_wilcoxon(int(2 * positive), ranks), int(n))
    dropped = zero if zeros == "pratt" else 0.0
    return _normal_wilcoxon(positive, count, counted, dropped)


def _normal_wilcoxon(positive: float, count_d: Floats, counted_d: Bools, zero: float) -> Wilcoxon:
    """Use the normal distribution.

    `zero` ranks are zeros (Pratt 1959), ties by Cureton 1967.
    """
    every = float(count_d.sum())
    mean = (every * (every + 1) - zero * (zero + 1)) / 4
    tied = count_d[counted_d]
    full = every * (every + 1) * (2 * every + 1) - zero * (zero + 1) * (2 * zero + 1)
    variance = (full - float((tied**3 - tied).sum()) / 2) / 24
    z = (positive - mean) / math.sqrt(variance)
    return Wilcoxon(positive, z, float(2 * ndtr(-abs(z))), int(every - zero))


def _exact_wilcoxon(positive: int, rank_n: Ints) -> float:
    """Return 2 min(P(T <= t), P(T >= t)), by counting rank subsets.

    Subsets are counted by their sum. positive, rank_n: doubled: mean ranks of ties are then whole numbers.
    """
    ways = np.zeros(int(rank_n.sum()) + 1)
    ways[0] = 1.0
    for rank in rank_n.tolist():
        ways[rank:] = ways[rank:] + ways[:-rank]
    tail = min(ways[: positive + 1].sum(), ways[positive:].sum()) / 2.0 ** len(rank_n)
    return float(min(1.0, 2 * tail))


def holm(p_x: Floats) -> Floats:
    """Adjust p-values to bound the chance of any false finding.

    NaN stays out. Source: Holm 1979.
    """
    return _adjust_p(p_x, lambda p: np.maximum.accumulate(p * np.arange(len(p), 0, -1)))


def benjamini_hochberg(p_x: Floats) -> Floats:
    """Adjust p-values to bound the share of false findings.

    NaN stays out. Source: Benjamini and Hochberg 1995.
    """

    def step_up(p: Floats) -> Floats:
        scaled = p * len(p) / np.arange(1, len(p) + 1)
        return np.asarray(np.minimum.accumulate(scaled[::-1])[::-1])

    return _adjust_p(p_x, step_up)


def _adjust_p(p_x: Floats, function: Any) -> Floats:
    """Apply `function` to ascending p-values, put back, at most 1."""
    flat = np.asarray(p_x, dtype=np.float64).reshape(-1)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    out = np.full(flat.shape, np.nan)
    out[order] = np.minimum(function(flat[order]), 1.0)
    return out.reshape(np.shape(p_x))


def practical_verdict(low: float, high: float, minimum: float) -> str:
    """Compare a difference's interval with the smallest relevant difference.

    better, worse: the interval lies wholly beyond +-minimum; equivalent: wholly within; else unclear.
    """
    if low > minimum or high < -minimum:
        return "better" if low > minimum else "worse"
    return "equivalent" if -minimum <= low and high <= minimum else "unclear"


def minimum_detectable(error: float, level: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest true difference shown by such a test.

    error: the test's standard error; power: the chance to show it.
    """
    return float(ndtri((1 + level) / 2) + ndtri(power)) * error


def kendall_tau_b(x_m: npt.NDArray[Any], y_m: npt.NDArray[Any]) -> float:
    """Return the tau-b agreement between two rankings of m models.

    NaN if all are tied. The arithmetic is in whole numbers until the division; m^2 comparisons. Source:
    Kendall 1945.
    """
    upper = np.triu_indices(len(x_m), 1)
    sign_x, sign_y = (np.sign(np.subtract.outer(v, v))[upper].astype(np.int64) for v in (x_m, y_m))
    untied = int((sign_x != 0).sum()) * int((sign_y != 0).sum())
    return int((sign_x * sign_y).sum()) / math.sqrt(untied) if untied else math.nan


FEWEST_MODELS = 10
"""Fewest models for Williams' test with tau. With fewer it errs: where two methods are equally good it says
p <= .05 in 17 % of 4,000 draws with 6 models and in 8 % with 8, and in at most 5 % from 10 on."""


def dependent_correlations(r_xy: float, r_xz: float, r_yz: float, n: int) -> tuple[float, float]:
    """Return Williams' t for r_xy - r_xz, and one-tailed p.

    t has n - 3 degrees of freedom (Steiger 1980, eq. 7). x is the reference for both y and z (the open
    loop), n the number of models; a small p: y agrees better with x than z does. Callers give tau in place
    of Pearson's r, an approximation; for few models there is `agreement.swap_orders`. NaN for n <
    FEWEST_MODELS and for impossible correlations.
    """
    determinant = 1 - r_xy**2 - r_xz**2 - r_yz**2 + 2 * r_xy * r_xz * r_yz
    mean = (r_xy + r_xz) / 2
    if n < FEWEST_MODELS:
        return math.nan, math.nan
    below = 2 * (n - 1) / (n - 3) * determinant + mean**2 * (1 - r_yz) ** 3
    if not below > 0:
        return math.nan, math.nan
    t = (r_xy - r_xz) * math.sqrt((n - 1) * (1 + r_yz) / below)
    return t, float(stdtr(n - 3, -t))


def sequence_interval(
    mean: float, deviation: float, n: int, planned: int, level: float = 0.95
) -> tuple[float, float]:
    """Return an asymptotic confidence sequence, valid at all looks.

    For all looks together, however many, it is mean -+ deviation sqrt(2 (n rho^2 + 1) / (n^2 rho^2)
    ln(sqrt(n rho^2 + 1) / (1 - level))), narrowest near `planned`. Source: Waudby-Smith, Arbour, Sinha,
    Kennedy and Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence sequences",
    section 2 (Robbins' mixture).

    Args:
        mean, deviation: of the paired differences for all users seen so far, over all nights.
        n: number of these differences; a user seen again on the same data adds nothing new.
        planned: number at which the interval should be narrowest; must not depend on the data.
        level: the interval's level.
    """
    alpha = 1 - level
    rho = sequence_rho(planned, alpha)
    spread = n * rho**2 + 1
    reach = deviation * math.sqrt(2 * spread / (n * rho) ** 2 * math.log(math.sqrt(spread) / alpha))
    return mean - reach, mean + reach


def sequence_rho(planned: int, alpha: float) -> float:
    """Return the rho for the narrowest interval near n = planned.

    rho is sqrt((-2 ln a + ln(1 - 2 ln a)) / n).
    """
    return math.sqrt((-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / planned)
