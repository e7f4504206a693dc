"""Learning curves: values after 1, 2, ... L ratings, and means.

The values are a system's, after a user has given so many ratings.

Axes: u users, l curve points (numbers of given ratings, ascending). NaN marks a point not reached by a
user, or one where the metric's definition leaves the user out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.resampling import bootstrap_sums, interval, mean_and_error, moments
from recbench_spark.metrics.kernels.about import About, register
from recbench_spark.metrics.kernels.chunk import divide

FEWEST_USERS = 10
"""A point with fewer users has no place in a curve: only a few heavy users reach its right end."""


class CurvePoints(NamedTuple):
    """Curve points, (l,) each; NaN below `FEWEST_USERS`."""

    value_l: Floats
    stderr_l: Floats
    low_l: Floats
    high_l: Floats
    n_l: Ints


def summarise_points(
    keys_u: npt.NDArray[np.int64], values_ul: Floats, replicates: int = 1000, seed: int = 42
) -> CurvePoints:
    """Return mean, standard error, 95 % interval and users per point.

    Sums are whole numbers, so the users' order changes no bit. Users are resampled, not draws.
    """
    mean_l, error_l, n_l = mean_and_error(moments(values_ul))
    low_l, high_l = interval(*bootstrap_sums(keys_u, values_ul, replicates, seed), n_l)
    mean_l, error_l, low_l, high_l = np.where(n_l < FEWEST_USERS, np.nan, [mean_l, error_l, low_l, high_l])
    return CurvePoints(mean_l, error_l, low_l, high_l, n_l)


def point_weights(given: Sequence[int]) -> Floats:
    """Return the points' weights in a sum over all lengths.

    The sum runs over all whole numbers from the first to the last point. Values between two points are on
    the straight line between them (trapezoids). So the weights for 1, 2, ... L are 1 each.

    >>> point_weights([1, 2, 3]).tolist(), point_weights([1, 2, 4, 8]).tolist()
    ([1.0, 1.0, 1.0], [1.0, 1.5, 3.0, 2.5])
    """
    steps = np.diff(np.asarray(given, np.float64))
    weights = np.ones(len(given))
    weights[:-1] += (steps - 1) / 2
    weights[1:] += (steps - 1) / 2
    return weights


@register(
    "mandcg",
    About(
        place=15,
        wider=(("negative_grades", "signed", (-math.inf, 1.0)),),
        title="mean of average nDCG along a learning curve (MANDCG)",
        formula="Mean over users; a user's value is the mean nDCG over the points of the learning curve.",
        edges="A point without a value is left out with its weight; a user without a point is left out.",
    ),
)
def average_points(values_ul: Floats, given: Sequence[int], standing_u: Ints | None = None) -> Floats:
    """Average each user's curve: a user's MANDCG, from NDCG values.

    A point without a value is left out, with its weight; NaN: no point. This is (1 / L_u) sum_l NDCG_u(l)
    where the points are 1 .. L_u.

    Args:
        values_ul: (u, l) values.
        given: the points.
        standing_u: how many points each user reaches, from the first on; None: all.
    """
    table = np.zeros((len(given) + 1, len(given)))
    for count in range(1, len(given) + 1):
        table[count, :count] = point_weights(given[:count])
    counts = np.full(len(values_ul), len(given)) if standing_u is None else standing_u
    weights_ul = np.where(np.isnan(values_ul), 0.0, table[counts])
    sums_u = (weights_ul * np.nan_to_num(values_ul)).sum(axis=1)
    return divide(sums_u, weights_ul.sum(axis=1), np.nan)


def average_draws(values_dul: Floats) -> Floats:
    """Average each user and point over draws, (u, l).

    Draws without a value are left out.
    """
    counts_ul = (~np.isnan(values_dul)).sum(axis=0)
    return divide(np.nansum(values_dul, axis=0), counts_ul, np.nan)
