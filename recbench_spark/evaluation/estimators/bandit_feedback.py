"""Off-policy evaluation: the value of a policy from rounds that another policy logged, with intervals.

Rounds are added as whole numbers: only one row per task is shuffled, and the partitioning does not change
a bit.
Axes: n rounds, e estimators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.definitions import VERSION
from recbench_spark.evaluation.estimators.sums import largest_values, sum_batches
from recbench_spark.evaluation.metrics.predictions import MetricRow, number_row
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.estimators.bandit_feedback import ESTIMATORS, Rounds, contributions
from recbench_spark.kernels.estimators.exposure import MODELLED, EstimatorSettings
from recbench_spark.kernels.ratios import exact_moments, exact_ratio_and_error, scaling
from recbench_spark.kernels.sums import Sums

METRIC = "policy_value"
HEAVY_WEIGHT_SHARE = 0.05
"""Largest share of the total weight that one round may have without a warning."""

FAR_STANDARD_ERRORS = 4.0
"""Largest distance of the mean weight from 1, in standard errors, without a warning."""


def estimate_policy_values(
    rounds: DataFrame, settings: EstimatorSettings, policy: str, level: float, *, modelled: bool
) -> list[MetricRow]:
    """Estimate the mean reward per round of a policy by each estimator: rows of `metrics`.

    Two passes, one for the largest parts and one for sums; each task returns a row of 6 sums per estimator.
    Errors treat rounds as independent (`ratios.ratio_and_error`); intervals are normal.

    Args:
        rounds: reward, propensity (above 0), pi_e; with a reward model also q and q_policy.
        settings: bounds on weights.
        policy: name of the evaluated policy, for the definition.
        level: level of the intervals.
        modelled: rounds have q (expected reward of the logged action) and q_policy (mean over the actions
            of the policy).
    """
    names = tuple(name for name in ESTIMATORS if modelled or name not in MODELLED)

    def parts(batch: pa.RecordBatch) -> Floats:
        return np.concatenate(contributions(read_rounds(batch, modelled), names, settings), axis=1)

    scale_c = np.array([scaling(x) for x in largest_values(rounds, parts)])
    e = len(names)

    def sums(batch: pa.RecordBatch) -> list[Sums]:
        scaled = parts(batch) * scale_c
        return [exact_moments(scaled[:, :e], scaled[:, e:])]

    (moments,) = sum_batches(rounds, sums, [(6, e)])
    ratio, spread, n = exact_ratio_and_error(moments)
    back = scale_c[e:] / scale_c[:e]
    from scipy.stats import norm  # noqa: PLC0415 (the import takes a second, and few need it)

    z = float(norm.ppf((1 + level) / 2))
    return [
        _row(name, (float(value), float(error)), int(count), z, _definition(name, policy, settings))
        for name, value, error, count in zip(names, ratio * back, spread * back, n, strict=True)
    ]


def _row(
    estimator: str, value_and_error: tuple[float, float], n: int, z: float, definition: str
) -> MetricRow:
    value, error = value_and_error
    row = number_row(METRIC, (value, error, value - z * error, value + z * error), n)
    return {**row, "estimator": estimator, "definition": definition}


def _definition(estimator: str, policy: str, settings: EstimatorSettings) -> str:
    bounds = {"clipped_ips": "clip", "switch_dr": "switch", "dros": "shrink"}
    bound = bounds.get(estimator)
    return f"{VERSION};policy={policy}" + (f";{bound}={getattr(settings, bound):g}" if bound else "")


def read_rounds(batch: pa.RecordBatch, modelled: bool) -> Rounds:
    """Read the rounds of a batch."""
    reward, propensity, target = (_floats(batch, name) for name in ("reward", "propensity", "pi_e"))
    model: Sequence[Floats] = [_floats(batch, name) for name in ("q", "q_policy")] if modelled else []
    return Rounds(reward, target / propensity, *model)


def _floats(batch: pa.RecordBatch, name: str) -> Floats:
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)


def check_rounds(rounds: DataFrame, settings: EstimatorSettings) -> list[Check]:
    """Check the basis of the estimates: rounds, effective rounds, heavy weights, the mean weight.

    One aggregation. Where the propensities are right and the logging policy covers the actions of the
    evaluated policy, the weights have mean 1.
    """
    w = F.col("pi_e") / F.col("propensity")
    (row,) = rounds.agg(
        F.count("*").alias("n"),
        F.sum(w).alias("total"),
        F.sum(w * w).alias("squares"),
        F.max(w).alias("most"),
        F.stddev(w).alias("spread"),
        F.count_if(w.cast("float") > F.lit(settings.switch).cast("float")).alias("beyond"),
    ).collect()
    n, total = row.n, row.total
    effective = total**2 / row.squares if row.squares else 0.0
    share = row.most / total if total else 0.0
    error = (row.spread or 0.0) / n**0.5
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
        Check("weights above the switch", row.beyond, None, "info", f"above {settings.switch:g}"),
    ]  # fmt: skip
