"""Errors of predicted ratings over all cells of a rating matrix; a biased part of them is known.

The error of a cell is (prediction - rating)^2 or |prediction - rating|. Users add sums (SUMS), the
estimates follow from totals, and a bootstrap reweights users. Axes: u users, n known ratings, s sums.

Source: Schnabel et al. 2016, "Recommendations as treatments", section 3; doubly robust: Wang et al.
2019, "Doubly robust joint learning for recommendation on data missing not at random", section 3.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.exposure.kernels.propensities import check
from recbench_spark.core.arrays import Floats, Ints

Loss = Literal["squared", "absolute"]

SUMS = ("known", "cells", "loss", "weighted", "weight", "correction", "imputed")
"""Known ratings, cells of the user, errors d, d / p, 1 / p, (d - imputed d) / p, imputed d of all cells."""

ESTIMATES = ("naive", "ips", "snips", "dr")


def losses(prediction: Floats, rating: Floats, loss: Loss) -> Floats:
    """Return the error of each cell."""
    difference = prediction - rating
    return difference**2 if loss == "squared" else np.abs(difference)


def user_sums(
    offsets: Ints,
    loss_n: Floats,
    propensity_n: Floats,
    items: int,
    imputed_n: Floats | None = None,
    *,
    imputed_u: Floats | None = None,
) -> Floats:
    """Return each user's sums: float64 (u, s), columns SUMS; the last two NaN without a model of ratings.

    Args:
        offsets: (u + 1,), the known ratings of user u are `offsets[u]:offsets[u + 1]`.
        loss_n: the error of each known rating.
        propensity_n: chances that these ratings became known, already clipped.
        items: cells of a user.
        imputed_n: the error that a model of ratings expects of each known rating.
        imputed_u: the sum of its expected errors over all cells of each user.
    """
    check(propensity_n)
    u = len(offsets) - 1
    user = np.repeat(np.arange(u), np.diff(offsets))
    weight = 1.0 / propensity_n
    rows = [np.ones_like(weight), loss_n, loss_n * weight, weight]
    known, loss, weighted, weights = (np.bincount(user, weights=row, minlength=u) for row in rows)
    correction = imputed = np.full(u, np.nan)
    if imputed_n is not None and imputed_u is not None:
        correction = np.bincount(user, weights=(loss_n - imputed_n) * weight, minlength=u)
        imputed = imputed_u
    return np.column_stack([known, np.full(u, items), loss, weighted, weights, correction, imputed])


def parts(sums: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return numerators and denominators of ESTIMATES from sums (..., s): (..., 4) each.

    For `ratios.ratio_moments` (of users) or a bootstrap; an estimate is a ratio of their totals.
    """
    known, cells, loss, weighted, weight, correction, imputed = np.moveaxis(
        np.asarray(sums, dtype=np.float64), -1, 0
    )
    numerators = [loss, weighted, weighted, imputed + correction]
    return np.stack(numerators, axis=-1), np.stack([known, cells, weight, cells], axis=-1)


def from_totals(totals: npt.NDArray[Any]) -> dict[str, Floats]:
    """Return every estimate of the mean error over all cells from totals (..., s): (...), NaN: undefined.

    naive: over the known ratings. ips: sum d / p over all cells, needs chances. snips: divided by
    sum 1 / p, of any scale. dr: imputed errors of all cells, corrected by the known ratings: right if
    the propensities or the model are right.
    """
    numerator, denominator = parts(totals)
    value: Floats = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=value, where=denominator > 0)
    return {name: value[..., e] for e, name in enumerate(ESTIMATES)}
