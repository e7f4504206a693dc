"""Spread of values over users: percentiles, worst tenth, Lorenz curve.

All follow from a histogram: values, ascending, and the users of each. Axes: v values, q percentiles.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, bdtrik, ndtri, stdtrit

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import FEW_USERS

PERCENTS = (5, 10, 25, 50, 75, 90, 95)
"""Shares of users below a percentile, in hundredths."""

WORST = 10
"""Hundredths of the users who are the worst tenth."""

LORENZ = tuple(range(0, 101, 10))
"""Shares of users on the Lorenz curve, in hundredths."""


def find_percentiles(value_v: Floats, users_v: Ints, level: float) -> tuple[Floats, Floats, Floats]:
    """Find percentiles with intervals by order statistics, (q,) each.

    A percentile is the smallest value that its share of users does not exceed. The interval's ends are
    values of users too, by the binomial law: it holds the percentile of any distribution with at least
    `level`. NaN where no user is so low, or so high.
    """
    before_v, n = np.cumsum(users_v), int(users_v.sum())
    places = [_find_value(value_v, before_v, -(-n * percent // 100)) for percent in PERCENTS]
    tail, ends = (1 - level) / 2, []
    for percent in PERCENTS:
        low, high = _find_count(tail, n, percent), _find_count(1 - tail, n, percent) + 1
        ends.append([_find_value(value_v, before_v, place) for place in (low, high)])
    low_q, high_q = np.array(ends).T
    return np.array(places), low_q, high_q


def _find_count(chance: float, n: int, percent: int) -> int:
    """Invert the binomial law of n draws.

    The smallest count whose chance, with those below it, is at least `chance`.
    """
    count = int(np.ceil(bdtrik(chance, n, percent / 100)))
    return count - 1 if count > 0 and bdtr(count - 1, n, percent / 100) >= chance else count


def _find_value(value_v: Floats, before_v: Ints, place: float) -> float:
    """Return the value of the user at a place from 1 on; NaN beyond them."""
    if not 1 <= place <= before_v[-1]:
        return math.nan
    return float(value_v[np.searchsorted(before_v, place)])


def average_worst(value_v: Floats, users_v: Ints, level: float) -> tuple[float, float, float]:
    """Average the lowest tenth of users, with an interval.

    The value at the tenth's upper bound q counts in part. The standard error is ten times that of the mean
    of (q - x)+ over all users (Chen 2008, Nonparametric estimation of expected shortfall). No interval with
    fewer than FEW_USERS users in the tenth.
    """
    n = int(users_v.sum())
    share = n * WORST / 100
    before_v = np.cumsum(users_v)
    taken_v = np.clip(share - (before_v - users_v), 0, users_v)
    worst = float((value_v * taken_v).sum() / share)
    if share < FEW_USERS:
        return worst, math.nan, math.nan
    short_v = np.clip(value_v[np.searchsorted(before_v, share)] - value_v, 0, None)
    mean = float((short_v * users_v).sum() / n)
    variance = float((users_v * (short_v - mean) ** 2).sum() / (n - 1))
    reach = float(stdtrit(share - 1, (1 + level) / 2)) * math.sqrt(variance / n) * 100 / WORST
    return worst, worst - reach, worst + reach


def trace_lorenz(value_v: Floats, users_v: Ints) -> Floats:
    """Return the share of all value that the lowest users have.

    One number for each share in LORENZ. NaN where a value is below 0 or all are 0. Source: Lorenz 1905,
    Methods of measuring the concentration of wealth.
    """
    total_v = np.cumsum(value_v * users_v)
    if value_v[0] < 0 or total_v[-1] <= 0:
        return np.full(len(LORENZ), np.nan)
    users = np.concatenate([[0.0], np.cumsum(users_v)])
    shares: Floats = np.interp(
        np.array(LORENZ) / 100 * users[-1], users, np.concatenate([[0.0], total_v / total_v[-1]])
    )
    return shares


def measure_gini(value_v: Floats, users_v: Ints) -> float:
    """Return Gini's index of the values: 0 where all users have one value.

    1 - twice the area below the Lorenz curve; NaN as in `trace_lorenz`.
    """
    total_v = np.cumsum(value_v * users_v)
    if value_v[0] < 0 or total_v[-1] <= 0:
        return math.nan
    return float(1 - (users_v * (2 * total_v - value_v * users_v)).sum() / (users_v.sum() * total_v[-1]))


def bound_share(count: int, n: int, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a share.

    >>> [round(end, 4) for end in bound_share(0, 10, 0.95)]
    [0.0, 0.2775]
    """
    z = -float(ndtri((1 - level) / 2))
    middle, reach = count + z * z / 2, z * math.sqrt(count * (n - count) / n + z * z / 4)
    return max(middle - reach, 0.0) / (n + z * z), min(middle + reach, n + z * z) / (n + z * z)


# ------------------------------------------------------------------------------- preferences


def compare_places(place_p: Floats, other_p: Floats, offsets: Ints) -> Floats:
    """Compare two rankings of each user's relevant items, (u, 3).

    Places are ascending for each user; infinite: not ranked. Each number is 1 where the first ranking is
    better, -1 where the other is, 0 where they are equal: by the best place that differs (lexicographic
    precision, Diaz 2023), by the worst place that differs (lexicographic recall, Diaz, Ekstrand and Mitra
    2023), and the mean over places (recall-paired preference, Diaz and Ferraro 2022). Without a relevant
    item: NaN.

    >>> compare_places(np.array([1.0, 9.0]), np.array([2.0, 3.0]), np.array([0, 2]))
    array([[ 1., -1.,  0.]])
    """
    sign_p = (place_p < other_p).astype(np.float64) - (place_p > other_p)
    user_p, n_u = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), np.diff(offsets)
    out = np.zeros((len(n_u), 3))
    differ = np.flatnonzero(sign_p)
    users, first = np.unique(user_p[differ], return_index=True)
    last = np.searchsorted(user_p[differ], users, side="right") - 1
    out[users, 0], out[users, 1] = sign_p[differ[first]], sign_p[differ[last]]
    np.divide(np.bincount(user_p, sign_p, len(n_u)), n_u, out=out[:, 2], where=n_u > 0)
    out[n_u == 0] = np.nan
    return out
