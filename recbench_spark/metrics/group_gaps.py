"""Gaps between groups of users: how far their means lie apart.

Groups are disjoint, so their means have independent errors. Axes: g groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import ndtri

from recbench_spark.core.resampling import FEW_USERS
from recbench_spark.metrics.kernels.about import about_metric


@dataclass(frozen=True)
class Gaps:
    """Differences between means of groups of users, with bounds.

    mad: mean size of the difference of two groups; gap: the largest one. worst, best: places of the groups.
    worst_reach: half the width of the worst group's interval. NaN: fewer than two groups.
    """

    mad: tuple[float, float, float]
    gap: tuple[float, float, float]
    worst: int
    best: int
    worst_reach: float


def measure_gaps(mean_g: Sequence[float], stderr_g: Sequence[float], level: float, sign: float) -> Gaps:
    """Measure how far means of disjoint groups lie apart.

    The means have independent errors. All differences have intervals that hold together (Bonferroni), so
    the bounds of their mean and of the largest hold too, and reach 0 where no difference is certain. Source
    of the mean difference: Deldjoo et al. 2021, A flexible framework for evaluating user and item fairness
    in recommender systems.

    Args:
        mean_g: means, at least two.
        stderr_g: their standard errors.
        level: chance that the bounds hold.
        sign: 1 where large values are best, else -1.
    """
    means, errors = np.asarray(mean_g), np.asarray(stderr_g)
    one, other = np.array(list(combinations(range(len(means)), 2))).T
    size = np.abs(means[one] - means[other])
    reach = -ndtri((1 - level) / 2 / len(size)) * np.hypot(errors[one], errors[other])
    bounds = size, np.clip(size - reach, 0, None), size + reach
    mad, gap = ([float(function(bound)) for bound in bounds] for function in (np.mean, np.max))
    worst, best = int(np.argmin(sign * means)), int(np.argmax(sign * means))
    worst_reach = float(-ndtri((1 - level) / 2 / len(means)) * errors[worst])
    return Gaps((mad[0], mad[1], mad[2]), (gap[0], gap[1], gap[2]), worst, best, worst_reach)


def describe_gaps(rows: Sequence[Mapping[str, Any]], metric: str, level: float) -> dict[str, Any]:
    """Measure the gaps between one number's groups: columns of `group_gaps`.

    rows: a row of `metrics` for each group. Groups with fewer than FEW_USERS users are left out.
    """
    kept = [row for row in rows if row["n"] >= FEW_USERS and row["stderr"] is not None]
    kept.sort(key=lambda row: str(row["slice_value"]))
    facts: dict[str, Any] = {"groups": len(kept), "few": len(rows) - len(kept)}
    if len(kept) < 2:
        return facts
    means, errors = ([row[name] for row in kept] for name in ("value", "stderr"))
    gaps: Gaps = measure_gaps(means, errors, level, -1.0 if about_metric(metric).best == "small" else 1.0)
    for name, numbers in (("mad", gaps.mad), ("gap", gaps.gap)):
        facts |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
    facts |= {"worst_group": kept[gaps.worst]["slice_value"], "worst_value": means[gaps.worst]}
    facts |= {"worst_low": means[gaps.worst] - gaps.worst_reach}
    facts |= {"worst_high": means[gaps.worst] + gaps.worst_reach}
    return facts | {"best_group": kept[gaps.best]["slice_value"], "best_value": means[gaps.best]}
