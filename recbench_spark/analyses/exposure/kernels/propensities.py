"""Exposure propensities: chances that an item was shown.

They follow from the item's count n in the log, except for naive Bayes. So one value per different count is
enough for any number of items. Only some are chances; the others are proportional to one up to an unknown
factor, which cancels in self-normalised estimators and is needed by plain IPS: `scale` turns one into the
other, and `clip` bounds the weights. Axes: x different counts or propensities, n items, r ratings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw
from recbench_spark.core.arrays import Floats
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.metrics.kernels.chunk import divide

Scale = Literal["as_is", "largest", "interactions"]


def power_law(count_n: npt.NDArray[Any], law: PowerLaw) -> Floats:
    """Return n^((alpha + 1) / 2), up to a factor.

    Yang et al. 2018, section 3; alpha is their gamma.
    """
    return np.asarray(count_n, dtype=np.float64) ** ((law.alpha + 1) / 2)


def power_above_xmin(count_n: npt.NDArray[Any], law: PowerLaw) -> Floats:
    """Return n^alpha if n > xmin, else n, up to a factor.

    This formula in the code by Jadidinejad et al. differs from the one in their paper (`power_law`) and has
    a jump at xmin; it exists for comparisons with their figures.
    """
    n = np.asarray(count_n, dtype=np.float64)
    return np.where(n > law.xmin, n**law.alpha, n)


def steck(count_n: npt.NDArray[Any], law: PowerLaw) -> Floats:
    """Return n^beta, beta = gamma / (gamma + 1), up to a factor.

    The inverse of Steck's weights n^-beta. Source: Steck 2011, "Item popularity and recommendation
    accuracy", section 3.
    """
    return np.asarray(count_n, dtype=np.float64) ** (law.alpha / (law.alpha + 1))


def relative_frequency(count_n: npt.NDArray[Any], users: int) -> Floats:
    """Return n / users: the chance that a user has the item.

    Users are those in the log; the item's quality is ignored.
    """
    if users < 1:
        what = f"relative frequencies need users, and there are {users}"
        raise DataError(what, "the training part is empty")
    return np.asarray(count_n, dtype=np.float64) / users


POWERS: dict[str, Callable[[npt.NDArray[Any], PowerLaw], Floats]] = {
    "power_law": power_law,
    "power_above_xmin": power_above_xmin,
    "steck": steck,
}
"""Propensities up to a factor, from a fitted law."""

CHANCES = ("relative_frequency", "naive_bayes", "logistic_regression", "given")
"""Methods whose values are chances without scaling."""


def naive_bayes(logged_r: npt.NDArray[Any], sample_r: npt.NDArray[Any], cells: int) -> Floats:
    """Return P(shown | rating) for each rating, (r,).

    P(shown | rating) = P(rating | shown) P(shown) / P(rating). NaN for a rating missing from the sample;
    above 1 if the sample is too small, so clip the result. Source: Schnabel et al. 2016, "Recommendations
    as treatments", section 5.1 (eq. 18).

    Args:
        logged_r: log rows with each rating.
        sample_r: rows with each rating in a uniform sample of cells.
        cells: users x items that could have been rated.
    """
    logged, sample = np.asarray(logged_r, dtype=np.float64), np.asarray(sample_r, dtype=np.float64)
    if not logged.sum() or not sample.sum():
        raise DataError("naive Bayes needs logged and randomly drawn ratings", "give an open loop")
    return divide(logged / cells * sample.sum(), sample, np.nan)


def scale(propensity_x: Floats, items_x: npt.NDArray[Any], how: Scale, per_user: float = 0.0) -> float:
    """Return this scaling's factor; multiply propensities, then clip.

    as_is: 1. largest: the largest becomes 1. interactions: their sum over items becomes `per_user`, a mean
    user's interactions, as with chances.
    """
    if how == "as_is":
        return 1.0
    if how == "largest":
        return float(1.0 / propensity_x.max())
    return float(per_user / (propensity_x @ np.asarray(items_x, dtype=np.float64)))


@dataclass(frozen=True)
class Clipped:
    """Propensities within bounds, and items changed by each bound."""

    propensity: Floats
    raised: int
    lowered: int


def clip(propensity_x: Floats, items_x: npt.NDArray[Any], low: float, high: float = 1.0) -> Clipped:
    """Clip propensities to low..high.

    Raising small ones trades variance for bias.

    Raises:
        ConfigError: not 0 < low <= high.
        DataError: propensities are not positive.
    """
    if not 0 < low <= high:
        raise ConfigError(f"propensities cannot be clipped to {low}..{high}", "need 0 < low <= high")
    check(propensity_x, zero=True)
    items = np.asarray(items_x, dtype=np.int64)
    raised, lowered = items[propensity_x < low].sum(), items[propensity_x > high].sum()
    return Clipped(np.clip(propensity_x, low, high), int(raised), int(lowered))


def check(propensity_n: Floats, *, zero: bool = False) -> None:
    """Refuse propensities unfit for weights.

    Raises:
        DataError: one is NaN, infinite, negative or (unless `zero`) 0.
    """
    fine = np.isfinite(propensity_n) & ((propensity_n > 0) | (zero & (propensity_n == 0)))
    if not fine.all():
        raise DataError(
            f"{int((~fine).sum())} of {len(fine)} propensities are not positive numbers",
            "an item that is never shown has no estimate: set a lower bound for clipping",
        )
