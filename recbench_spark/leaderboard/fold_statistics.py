"""A number over folds and seeds: its mean, and two spreads that are never mixed up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr


class FoldSummary(NamedTuple):
    """A model on a benchmark of folds.

    Attributes:
        mean: of the folds' means over their seeds.
        over_folds: standard deviation of these means; NaN of one fold. How much the data moves the number.
        over_seeds: standard deviation over seeds within a fold, as a mean of variances; NaN of one seed.
            How much chance in the fit does.
        folds: how many there are.
        seeds: of the fold that has fewest.
        by_fold: mean over seeds of each fold; empty where there are no folds.
    """

    mean: float
    over_folds: float
    over_seeds: float
    folds: int
    seeds: int
    by_fold: Mapping[int, float] = {}


def summarise_folds(values: Mapping[tuple[int | None, int], float]) -> FoldSummary:
    """Values by (fold, seed); none is NaN everywhere.

    >>> over_folds({(0, 1): 0.5, (0, 2): 0.75, (1, 1): 1.0, (1, 2): 1.25})[:2]
    (0.875, 0.3535533905932738)
    """
    by_fold: dict[int | None, list[float]] = {}
    for fold, seed in sorted(values, key=lambda key: (-1 if key[0] is None else key[0], key[1])):
        by_fold.setdefault(fold, []).append(values[fold, seed])
    if not by_fold:
        return FoldSummary(float("nan"), float("nan"), float("nan"), 0, 0)
    means = [float(np.mean(found)) for found in by_fold.values()]
    within = [float(np.var(found, ddof=1)) for found in by_fold.values() if len(found) > 1]
    return FoldSummary(
        float(np.mean(means)),
        float(np.std(means, ddof=1)) if len(means) > 1 else float("nan"),
        float(np.sqrt(np.mean(within))) if within else float("nan"),
        len(means),
        min(len(found) for found in by_fold.values()),
        {fold: mean for fold, mean in zip(by_fold, means, strict=True) if fold is not None},
    )


class PairedFolds(NamedTuple):
    """Two runs over the same folds.

    Attributes:
        differences_f: (f,) of each fold, in the order of folds: the first run less the second.
        mean: of these.
        t: Student's, of the differences; infinite where all are alike.
        p: two-sided. Folds share most of what is learnt from, so it is too small.
    """

    differences_f: npt.NDArray[np.float64]
    mean: float
    t: float
    p: float

    @property
    def folds(self) -> int:
        """How many there are."""
        return len(self.differences_f)


def compare_folds(one: Mapping[int, float], other: Mapping[int, float]) -> PairedFolds | None:
    """The difference of two runs fold by fold; None of fewer than two folds, or of other ones.

    >>> found = paired_folds({0: 3.0, 1: 5.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 4.0})
    >>> found.mean, round(found.t, 3), round(found.p, 3)
    (2.0, 3.464, 0.074)
    """
    if len(one) < 2 or one.keys() != other.keys():
        return None
    differences = np.array([one[fold] - other[fold] for fold in sorted(one)])
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))
    if error == 0:
        return PairedFolds(
            differences, mean, float(np.copysign(np.inf, mean)) if mean else 0.0, float(not mean)
        )
    t = mean / error
    return PairedFolds(differences, mean, t, float(2 * stdtr(len(differences) - 1, -abs(t))))
