"""A number over folds and seeds: its mean, and two spreads that are never mixed up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class OverFolds(NamedTuple):
    """A model on a benchmark of folds.

    Attributes:
        mean: of the folds' means over their seeds.
        over_folds: standard deviation of these means; NaN of one fold. How much the data moves the number.
        over_seeds: standard deviation over seeds within a fold, as a mean of variances; NaN of one seed.
            How much chance in the fit does.
        folds: how many there are.
        seeds: of the fold that has fewest.
    """

    mean: float
    over_folds: float
    over_seeds: float
    folds: int
    seeds: int


def over_folds(values: Mapping[tuple[int | None, int], float]) -> OverFolds:
    """Values by (fold, seed); none is NaN everywhere.

    >>> over_folds({(0, 1): 0.5, (0, 2): 0.75, (1, 1): 1.0, (1, 2): 1.25})[:2]
    (0.875, 0.3535533905932738)
    """
    by_fold: dict[int | None, list[float]] = {}
    for fold, seed in sorted(values, key=lambda key: (-1 if key[0] is None else key[0], key[1])):
        by_fold.setdefault(fold, []).append(values[fold, seed])
    if not by_fold:
        return OverFolds(float("nan"), float("nan"), float("nan"), 0, 0)
    means = [float(np.mean(found)) for found in by_fold.values()]
    within = [float(np.var(found, ddof=1)) for found in by_fold.values() if len(found) > 1]
    return OverFolds(
        float(np.mean(means)),
        float(np.std(means, ddof=1)) if len(means) > 1 else float("nan"),
        float(np.sqrt(np.mean(within))) if within else float("nan"),
        len(means),
        min(len(found) for found in by_fold.values()),
    )
