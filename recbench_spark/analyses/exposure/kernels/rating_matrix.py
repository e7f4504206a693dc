"""Errors of predicted ratings over a whole rating matrix.

A biased part of the ratings is known. A cell's error is (prediction - rating)^2 or |prediction - rating|.
Users add sums (SUMS), the estimates follow from totals, and a bootstrap reweights users. Axes: u users, n
known ratings, s sums.

Source: Schnabel et al. 2016, "Recommendations as treatments", section 3; doubly robust: Wang et al. 2019,
"Doubly robust joint learning for recommendation on data missing not at random", section 3.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.exposure.kernels.propensities import check
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.metrics.kernels.chunk import divide

Loss = Literal["squared", "absolute"]

SUMS = ("known", "cells", "loss", "weighted", "weight", "correction", "imputed")
"""Known ratings, the user's cells, errors d, d / p, 1 / p, (d - imputed d) / p, imputed d over all cells.
"""

ESTIMATES = ("naive", "ips", "snips", "dr")


def losses(prediction: Floats, rating: Floats, loss: Loss) -> Floats:
    """Return each cell's error."""
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
    """Return each user's sums: float64 (u, s), columns SUMS.

    The last two are NaN without a rating model.

    Args:
        offsets: (u + 1,), user u has the known ratings `offsets[u]:offsets[u + 1]`.
        loss_n: each known rating's error.
        propensity_n: chances that these ratings became known, already clipped.
        items: cells per user.
        imputed_n: the rating model's expected error for each known rating.
        imputed_u: its expected errors summed over each user's cells.
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
    """Return numerators and denominators for ESTIMATES, (..., 4) each.

    From sums (..., s), for `ratios.ratio_moments` (over users) or a bootstrap; an estimate is a ratio of
    their totals.
    """
    by_column = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    known, cells, loss, weighted, weight, correction, imputed = by_column
    numerators = [loss, weighted, weighted, imputed + correction]
    return np.stack(numerators, axis=-1), np.stack([known, cells, weight, cells], axis=-1)


def from_totals(totals: npt.NDArray[Any]) -> dict[str, Floats]:
    """Estimate the mean error over all cells from totals (..., s).

    Returns (...) by estimator, NaN: undefined. naive: over the known ratings. ips: sum d / p over all
    cells, needs chances. snips: divided by sum 1 / p, at any scale. dr: imputed errors over all cells,
    corrected by the known ratings: right if the propensities or the model are right.
    """
    value = divide(*parts(totals), np.nan)
    return {name: value[..., e] for e, name in enumerate(ESTIMATES)}
