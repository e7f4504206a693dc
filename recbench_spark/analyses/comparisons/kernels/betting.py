"""Evidence against "no difference", valid at every look: bets on users.

A bettor starts with 1 and stakes a fixed share on each user's difference. If the hypothesis holds, the
expected wealth never grows, so it reaches 1 / alpha with a chance of at most alpha, however often one looks
(Ville's inequality). Users are counted by difference, as for Wilcoxon's test, so any order gives the same
bits. Sources: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"; Wang
and Ramdas 2022, "False discovery rate control with e-values". Axes: d different differences, b bets, x
hypotheses.
"""

from __future__ import annotations

import math

import numpy as np

from recbench_spark.analyses.comparisons.kernels.significance import DIFFERENCE_BITS
from recbench_spark.core.arrays import Floats, Ints

BETS = 5
"""Number of stakes whose mean wealth counts: each suits differences of another size."""

LARGEST_LOG = 690.0
"""Logarithms of wealth stop here, below float64's largest number."""


def choose_bets(planned: int, bound: float) -> Floats:
    """Return the stakes, (b,), in doubling steps.

    The best stake is mean / variance. `planned` users show a mean of 2.8 deviations / sqrt(planned) four
    times in five, so the best stakes for deviations from .05 to .8 are 3.5 to 56 over sqrt(planned). None
    can lose everything: a difference is at least -1 - bound.

    Args:
        planned: users for which wealth grows fastest; must not depend on the data.
        bound: see `bet_on_users`.
    """
    stakes = np.asarray(3.5 * 2.0 ** np.arange(BETS) / math.sqrt(planned), np.float64)
    return np.minimum(stakes, 1 / (2 + 2 * abs(bound)))


def bet_on_users(step_d: Ints, users_d: Ints, bound: float, planned: int) -> Floats:
    """Return the logarithm of each bet's wealth, (b,).

    The hypothesis: the mean difference is at most `bound`. Logarithms of several looks add up. Half a step
    is taken from each difference, more than rounding can have added.

    Args:
        step_d: different differences between -1 and 1, in steps of 2^-16, always in the same order.
        users_d: users with each; with more axes in front, (..., d), the result has them too.
        bound: largest mean difference under the hypothesis, 0 to 1 in size.
        planned: see `choose_bets`.
    """
    gain_d = (np.asarray(step_d) - 0.5) * 2.0**-DIFFERENCE_BITS - bound
    grown_bd = np.log1p(choose_bets(planned, bound)[:, None] * gain_d)
    return np.asarray((grown_bd * np.asarray(users_d)[..., None, :]).sum(axis=-1))


def measure_evidence(log_b: Floats) -> Floats:
    """Return e-values: the mean wealth over all bets, (..., b) to (...).

    One is at least 1 / alpha with a chance of at most alpha where the hypothesis holds.
    """
    largest = log_b.max(axis=-1)
    log_mean = largest + np.log(np.exp(log_b - largest[..., None]).mean(axis=-1))
    return np.asarray(np.exp(np.minimum(log_mean, LARGEST_LOG)), np.float64)


def adjust_evidence(e_x: Floats) -> Floats:
    """Adjust e-values to bound the share of false findings (e-BH).

    Those of at least 1 / alpha are found. At most a share of alpha of them is false in expectation,
    whatever their dependence, and at every look. NaN stays out.
    """
    known = np.flatnonzero(~np.isnan(e_x))
    order = known[np.argsort(-e_x[known], kind="stable")]
    out = np.full(e_x.shape, np.nan)
    scaled = e_x[order] * np.arange(1, len(order) + 1) / max(len(order), 1)
    out[order] = np.maximum.accumulate(scaled[::-1])[::-1]
    return out
