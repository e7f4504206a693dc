"""A policy's value from rounds logged by another policy.

In a round the logging policy b showed an action in a context and observed a reward r; e is the evaluated
policy, w = e(action) / b(action), q a model's expected reward for the action. Rounds add (numerator,
denominator) pairs: values, errors and bootstraps follow from sums (`ratios`). Axes: n rounds, e estimators.

Sources: Dudik, Langford and Li 2011 (dr); Swaminathan and Joachims 2015 (snips); Wang, Agarwal and Dudik
2017 (switch_dr); Su et al. 2020 (dros).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
from recbench_spark.core.arrays import Floats
from recbench_spark.errors import ConfigError, DataError, nearest

ESTIMATORS = ("ips", "clipped_ips", "snips", *exposure.MODELLED)


@dataclass(frozen=True)
class Rounds:
    """Logged rounds, float64 (n,) each.

    Attributes:
        reward: observed reward.
        weight: e(action) / b(action), 0 if e never takes it.
        expected: q for the logged action; None: no model.
        policy: mean q over e's actions; None: no model.
    """

    reward: Floats
    weight: Floats
    expected: Floats | None = None
    policy: Floats | None = None


def contributions(
    rounds: Rounds, estimators: Sequence[str], settings: EstimatorSettings
) -> tuple[Floats, Floats]:
    """Return each round's numerators and denominators, (n, e) each.

    NaN where a reward model is needed and missing. The value is sum(numerator) / sum(denominator): the
    denominator is w for snips, else 1.

    Raises:
        DataError: weights or rewards are not finite, or weights are below 0.
    """
    _check(rounds, estimators)
    numerator = np.column_stack([_numerator(rounds, name, settings) for name in estimators])
    one = np.ones_like(rounds.weight)
    denominator = np.column_stack([rounds.weight if name == "snips" else one for name in estimators])
    return numerator, denominator


def _numerator(rounds: Rounds, name: str, settings: EstimatorSettings) -> Floats:
    if name in ("ips", "snips"):
        return rounds.weight * rounds.reward
    if name == "clipped_ips":
        return np.minimum(rounds.weight, settings.clip) * rounds.reward
    if rounds.policy is None or rounds.expected is None:
        return np.full(len(rounds.weight), np.nan)
    if name == "dm":
        return rounds.policy
    weight = exposure.correction_weights(name, rounds.weight, settings)
    return rounds.policy + weight * (rounds.reward - rounds.expected)


def _check(rounds: Rounds, estimators: Sequence[str]) -> None:
    for name in estimators:
        if name not in ESTIMATORS:
            raise ConfigError(f"unknown estimator '{name}'", nearest(name, ESTIMATORS))
    fine = np.isfinite(rounds.weight) & (rounds.weight >= 0) & np.isfinite(rounds.reward)
    if not fine.all():
        raise DataError(
            f"{int((~fine).sum())} of {len(fine)} rounds have a weight or reward that is not a number >= 0",
            "the logging policy must give every logged action a positive propensity",
        )
