"""Learning curves: the value of a system after a user has given 1, 2, ... L ratings, and its mean.

Axes: u users, l points of a curve (numbers of given ratings, ascending). NaN marks a point at which a user
does not stand, or where the definition of the metric leaves the user out.
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
"""A point with fewer users has no place in a curve: at its right end only a few heavy users stand."""


class CurvePoints(NamedTuple):
    """Points of a curve, (l,) each; NaN where fewer than `FEWEST_USERS` users stand."""

    value_l: Floats
    stderr_l: Floats
    low_l: Floats
    high_l: Floats
    n_l: Ints


def summarise_points(
    keys_u: npt.NDArray[np.int64], values_ul: Floats, replicates: int = 1000, seed: int = 42
) -> CurvePoints:
    """Return mean, standard error, 95 % interval and number of users at each point.

    Sums are whole numbers, so the order of the users changes no bit. Users are resampled, not draws.
    """
    mean_l, error_l, n_l = mean_and_error(moments(values_ul))
    low_l, high_l = interval(*bootstrap_sums(keys_u, values_ul, replicates, seed), n_l)
    few = n_l < FEWEST_USERS
    value_l, stderr_l, low_l, high_l = (
        np.where(few, np.nan, column) for column in (mean_l, error_l, low_l, high_l)
    )
    return CurvePoints(value_l, stderr_l, low_l, high_l, n_l)


def point_weights(given: Sequence[int]) -> Floats:
    """Return the weights of the points in a sum over all whole numbers from the first to the last point.

    Values between two points are on the straight line between them (trapezoids). So the weights of
    1, 2, ... L are 1 each.

    >>> point_weights([1, 2, 3]).tolist(), point_weights([1, 2, 4, 8]).tolist()
    ([1.0, 1.0, 1.0], [1.0, 1.5, 3.0, 2.5])
    """
    steps = np.diff(np.asarray(given, np.float64))
    weights = np.ones(len(given))
    weights[:-1] += (steps - 1) / 2
    weights[1:] += (steps - 1) / 2
    return weights


@register("mandcg", About(place=15, wider=(("negative_grades", "signed", (-math.inf, 1.0)),)))
def average_points(values_ul: Floats, given: Sequence[int], standing_u: Ints | None = None) -> Floats:
    """Return the mean of each user's curve: MANDCG of a user, where the values are NDCG. NaN: no point.

    A point without a value is left out, with its weight. This is (1 / L_u) sum_l NDCG_u(l) where the points
    are 1 .. L_u.

    Args:
        values_ul: (u, l) values.
        given: the points.
        standing_u: number of points at which each user stands, from the first on; None: all of them.
    """
    table = np.zeros((len(given) + 1, len(given)))
    for count in range(1, len(given) + 1):
        table[count, :count] = point_weights(given[:count])
    counts = np.full(len(values_ul), len(given)) if standing_u is None else standing_u
    weights_ul = np.where(np.isnan(values_ul), 0.0, table[counts])
    sums_u = (weights_ul * np.nan_to_num(values_ul)).sum(axis=1)
    return divide(sums_u, weights_ul.sum(axis=1), np.nan)


def average_draws(values_dul: Floats) -> Floats:
    """Return the mean over draws of each user and point, (u, l); draws without a value are left out."""
    counts_ul = (~np.isnan(values_dul)).sum(axis=0)
    return divide(np.nansum(values_dul, axis=0), counts_ul, np.nan)
