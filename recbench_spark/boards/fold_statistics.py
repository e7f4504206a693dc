"""Compute means over folds and seeds, with their spreads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr


class FoldSummary(NamedTuple):
    """A model's mean and spreads over folds and seeds.

    Attributes:
        mean: mean over the folds' means over seeds.
        over_folds: standard deviation of these means; NaN for one fold. It shows the effect of the data.
        over_seeds: standard deviation over seeds within a fold, as a mean of variances; NaN for one seed.
            It shows the effect of chance in the fit.
        folds: number of folds.
        seeds: number of seeds in the fold with fewest.
        by_fold: mean over seeds by fold; empty if there are no folds.
    """

    mean: float
    over_folds: float
    over_seeds: float
    folds: int
    seeds: int
    by_fold: Mapping[int, float] = {}


def summarise_folds(values: Mapping[tuple[int | None, int], float]) -> FoldSummary:
    """Summarise values by (fold, seed).

    Without values, all numbers are NaN.

    >>> summarise_folds({(0, 1): 0.5, (0, 2): 0.75, (1, 1): 1.0, (1, 2): 1.25})[:2]
    (0.875, 0.3535533905932738)
    """
    by_fold: dict[int | None, list[float]] = {}
    for fold, seed in sorted(values, key=lambda key: (-1 if key[0] is None else key[0], key[1])):
        by_fold.setdefault(fold, []).append(values[fold, seed])
    if not by_fold:
        return FoldSummary(float("nan"), float("nan"), float("nan"), 0, 0)
    means = [float(np.mean(numbers)) for numbers in by_fold.values()]
    within = [float(np.var(numbers, ddof=1)) for numbers in by_fold.values() if len(numbers) > 1]
    return FoldSummary(
        float(np.mean(means)),
        float(np.std(means, ddof=1)) if len(means) > 1 else float("nan"),
        float(np.sqrt(np.mean(within))) if within else float("nan"),
        len(means),
        min(len(numbers) for numbers in by_fold.values()),
        {fold: mean for fold, mean in zip(by_fold, means, strict=True) if fold is not None},
    )


class PairedFolds(NamedTuple):
    """Two runs' differences by fold, with Student's paired t.

    Attributes:
        differences_f: (f,) first run minus second run, in fold order.
        mean: mean difference.
        t: Student's t for the differences; infinite if all are equal.
        p: two-sided p. It is too small, because folds share most of their training rows.
    """

    differences_f: npt.NDArray[np.float64]
    mean: float
    t: float
    p: float

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.differences_f)


def compare_folds(one: Mapping[int, float], other: Mapping[int, float]) -> PairedFolds | None:
    """Compare two runs fold by fold.

    Returns None for fewer than two folds, or for different folds. Equal differences in all folds leave no
    spread to judge by: t and p are NaN, or 0 and 1 if all are 0.

    >>> found = compare_folds({0: 3.0, 1: 5.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 4.0})
    >>> found.mean, round(found.t, 3), round(found.p, 3)
    (2.0, 3.464, 0.074)
    """
    if len(one) < 2 or one.keys() != other.keys():
        return None
    differences = np.array([one[fold] - other[fold] for fold in sorted(one)])
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))
    if error == 0:
        return PairedFolds(differences, mean, *((np.nan, np.nan) if mean else (0.0, 1.0)))
    t = mean / error
    return PairedFolds(differences, mean, t, float(2 * stdtr(len(differences) - 1, -abs(t))))
