"""Off-policy evaluation: a policy's value from another policy's rounds.

Values have intervals. Rounds are added as whole numbers, so neither their order nor the tasks change a bit.
No Spark is needed. Axes: n rounds, e estimators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa

from recbench_spark.analyses.exposure.kernels.bandit_feedback import ESTIMATORS, Rounds, contributions
from recbench_spark.analyses.exposure.kernels.exposure import MODELLED, EstimatorSettings
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import VERSION
from recbench_spark.core.ratios import exact_moments, exact_ratio_and_error, scaling
from recbench_spark.core.sums import Sums
from recbench_spark.metrics.predictions import MetricRow, number_row

METRIC = "policy_value"
HEAVY_WEIGHT_SHARE = 0.05
"""Share of the total weight that one round may have before a warning."""

FAR_STANDARD_ERRORS = 4.0
"""Distance of the mean weight from 1, in standard errors, before a warning."""


@dataclass(frozen=True)
class PolicyPlan:
    """Settings for tasks reading rounds: reward, propensity, pi_e.

    Attributes:
        settings: bounds on weights.
        policy: the evaluated policy's name, for the definition.
        level: level for intervals, which are normal; errors treat rounds as independent.
        modelled: rounds have q (expected reward of the logged action) and q_policy (mean over the policy's
            actions).
    """

    settings: EstimatorSettings
    policy: str
    level: float
    modelled: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The estimators."""
        return tuple(name for name in ESTIMATORS if self.modelled or name not in MODELLED)

    def read(self, rows: pa.Table) -> Rounds:
        """Read rounds."""
        reward, propensity, target = (rows.column(x).to_numpy() for x in ("reward", "propensity", "pi_e"))
        model = [rows.column(x).to_numpy() for x in ("q", "q_policy") if self.modelled]
        return Rounds(reward, target / propensity, *model)

    def add_parts(self, rounds: Rounds) -> Floats:
        """Return each round's numerators and denominators, (n, 2 e)."""
        return np.concatenate(contributions(rounds, self.names, self.settings), axis=1)


@dataclass(frozen=True)
class RoundFacts:
    """Counts and maxima over some rounds; tasks' facts are added.

    Attributes:
        n: number of rounds.
        wrong: rounds whose propensity, and whose pi_e, is no probability; without them all else is counted.
        beyond: weights above the switch.
        most: the largest weight.
        largest: the largest absolute parts, (2 e,).
    """

    n: int = 0
    wrong: tuple[int, int] = (0, 0)
    beyond: int = 0
    most: float = 0.0
    largest: Floats | float = 0.0

    def __add__(self, other: RoundFacts) -> RoundFacts:
        """Join two tasks' facts."""
        return RoundFacts(
            self.n + other.n,
            (self.wrong[0] + other.wrong[0], self.wrong[1] + other.wrong[1]),
            self.beyond + other.beyond,
            max(self.most, other.most),
            np.maximum(self.largest, other.largest),
        )


def find_facts(tables: Iterable[pa.Table], plan: PolicyPlan) -> RoundFacts:
    """Count a task's rounds."""
    return reduce(add, (_count_rounds(rows, plan) for rows in tables), RoundFacts())


def _count_rounds(rows: pa.Table, plan: PolicyPlan) -> RoundFacts:
    propensity, target = (rows.column(name).to_numpy() for name in ("propensity", "pi_e"))
    wrong = (~((propensity > 0) & (propensity <= 1))).sum(), (~((target >= 0) & (target <= 1))).sum()
    if any(wrong):
        return RoundFacts(len(rows), (int(wrong[0]), int(wrong[1])))
    rounds = plan.read(rows)
    beyond = int((rounds.weight.astype(np.float32) > np.float32(plan.settings.switch)).sum())
    largest = np.nanmax(np.abs(plan.add_parts(rounds)), axis=0, initial=0.0)
    return RoundFacts(len(rows), (0, 0), beyond, float(rounds.weight.max(initial=0.0)), largest)


def sum_rounds(tables: Iterable[pa.Table], plan: PolicyPlan, scale_c: Floats) -> Sums | None:
    """Add up a task's scaled moments, (6, e); None without rounds."""
    e, total = len(plan.names), None
    for rows in tables:
        scaled = plan.add_parts(plan.read(rows)) * scale_c
        moments = exact_moments(scaled[:, :e], scaled[:, e:])
        total = moments if total is None else total + moments
    return total


def find_scale(facts: RoundFacts) -> Floats:
    """Return powers of two to scale parts by, (2 e,)."""
    return np.array([scaling(float(x)) for x in np.atleast_1d(facts.largest)])


def estimate_values(moments: Sums, scale_c: Floats, plan: PolicyPlan) -> list[MetricRow]:
    """Estimate a policy's mean reward per round: rows of `metrics`.

    Each estimator has a row.

    Args:
        moments: `sum_rounds` over all rounds.
        scale_c: the parts' scale.
        plan: as there.
    """
    ratio, spread, n = exact_ratio_and_error(moments)
    e = len(plan.names)
    back = scale_c[e:] / scale_c[:e]
    from scipy.stats import norm  # noqa: PLC0415 (the import takes a second, and few need it)

    z = float(norm.ppf((1 + plan.level) / 2))
    bounds = {"clipped_ips": "clip", "switch_dr": "switch", "dros": "shrink"}
    rows = []
    for name, value, error, count in zip(plan.names, ratio * back, spread * back, n, strict=True):
        numbers = float(value), float(error), float(value - z * error), float(value + z * error)
        bound = bounds.get(name)
        own = f";{bound}={getattr(plan.settings, bound):g}" if bound else ""
        definition = f"{VERSION};policy={plan.policy}{own}"
        rows.append(
            {**number_row(METRIC, numbers, int(count)), "estimator": name, "definition": definition}
        )
    return rows


def check_rounds(facts: RoundFacts, moments: Sums, scale_c: Floats, plan: PolicyPlan) -> list[Check]:
    """Check what the estimates rest on.

    The checks are the numbers of rounds and of effective rounds, heavy weights, and the mean weight.
    `snips` has the weight as its denominator. If the propensities are right and the logging policy covers
    the evaluated policy's actions, the weights have mean 1.
    """
    snips, n = plan.names.index("snips"), facts.n
    sums = np.array(moments.fractions(), dtype=object).reshape(6, -1)[:, snips]
    scale = Fraction(float(scale_c[len(plan.names) + snips]))
    weight, squares = sums[2] / scale, sums[5] / scale**2
    total = float(weight)
    effective = float(weight**2 / squares) if squares else 0.0
    share = facts.most / total if total else 0.0
    variance = max(squares - weight**2 / n, Fraction(0)) / (n - 1) if n > 1 else Fraction(0)
    error = float(variance) ** 0.5 / n**0.5
    far = abs(total / n - 1) / error if error else 0.0
    return [
        Check("rounds", n, None, "info", "logged rounds"),
        Check("effective rounds", effective, None, "info", "(sum w)^2 / sum w^2"),
        Check(
            "largest share of the weight", share, HEAVY_WEIGHT_SHARE, "warning",
            "one round decides so much",
        ),
        Check(
            "mean weight, standard errors from 1", far, FAR_STANDARD_ERRORS, "warning",
            f"mean {total / n:g}; far from 1: wrong propensities or pi_e, or actions never logged",
        ),
        Check("weights above the switch", facts.beyond, None, "info", f"above {plan.settings.switch:g}"),
    ]  # fmt: skip
