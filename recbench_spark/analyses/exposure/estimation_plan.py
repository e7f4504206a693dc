"""Plans for debiased estimates: metrics, estimators, settings and bounds.

The bounds limit what a user adds to a sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.analyses.exposure.kernels.exposure import MODELLED, QUOTIENTS, EstimatorSettings
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges
from recbench_spark.core import ratios
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.accuracy import HOLDOUT, MetricColumn
from recbench_spark.metrics.kernels.accuracy import METRICS

if TYPE_CHECKING:  # their module reads frames of Spark
    from recbench_spark.analyses.exposure.exposure import Weights

UNIFORM = ("open_loop",)
"""Parts in which all items had the same chance to be shown."""

STRATIFIED = "stratified"
SUM = "dcg"
"""Metric estimated beside `ndcg`: reward models need a sum, and NDCG is a quotient."""

LARGEST_DISCOUNT = 1.5
"""Upper bound for a rank's discount: the largest is 1 / ln 2 = 1.44."""


@dataclass(frozen=True)
class EstimationPlan:
    """Debiased estimates to compute.

    Attributes:
        measured: metrics, cut-offs, definition, bootstrap.
        estimators: names, in order.
        settings: bounds on weights.
        exposed: the propensities' name, for definitions.
        strata: stratum edges, one set for each number of strata.
        weights: each part's weights.
        n_items: catalogue size.
        rewards: the reward model's name, if there is one.
        compared: metric and cut-off whose replicates are stored; they decide the proposed number of strata.
    """

    measured: metric_rows.MetricPlan
    estimators: tuple[str, ...]
    settings: EstimatorSettings
    exposed: str
    strata: tuple[StratumEdges, ...]
    weights: Mapping[str, Weights]
    n_items: int
    rewards: str | None = None
    compared: tuple[str, int | None] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """List the corrected parts."""
        return tuple(part for part in self.weights if part not in UNIFORM)

    @property
    def metrics(self) -> tuple[str, ...]:
        """List rank metrics, with `dcg` where NDCG is requested."""
        names = self.measured.rank_metrics
        return (*names, SUM) if "ndcg" in names else names

    @property
    def ratio_estimators(self) -> tuple[str, ...]:
        """List all estimators but `stratified`, after `holdout`.

        `holdout` estimates `dcg` alone.
        """
        return (HOLDOUT, *(name for name in self.estimators if name != STRATIFIED))

    def reason(self, estimator: str, metric: str) -> str | None:
        """Return why a value is missing; None: it is not."""
        if estimator == STRATIFIED and metric == SUM:
            return "strata are combined for the metrics asked for"
        if estimator == STRATIFIED and not self.strata:
            return "all items are shown alike"
        definition, has_rewards = self.measured.definition, bool(self.rewards)
        return exposure.reason(estimator, metric, definition, self.settings, rewards=has_rewards)

    def estimable_metrics(self, estimator: str) -> list[str]:
        """List an estimator's metrics with a value."""
        if estimator == HOLDOUT:
            return [SUM] if SUM in self.metrics else []
        return [metric for metric in self.metrics if self.reason(estimator, metric) is None]

    def columns(self, estimator: str, metric: str, cut: StratumEdges | None = None) -> list[MetricColumn]:
        """List an estimate's columns."""
        axes = METRICS["ndcg" if metric == SUM else metric].axes
        definition = ";".join([self.measured.definition.describe(axes), *self._settings(estimator, cut)])
        ks = exposure.columns(metric, self.measured.ks)
        return [MetricColumn(metric, k, definition, estimator) for k in ks]

    def table(self, estimator: str) -> list[MetricColumn]:
        """List a weighted estimator's columns for all metrics, in order."""
        names = self.estimable_metrics(estimator)
        return [column for name in names for column in self.columns(estimator, name)]

    def _settings(self, estimator: str, cut: StratumEdges | None) -> list[str]:
        """List settings behind an estimate, beside the metric's axes."""
        settings, exposed = self.settings, f"propensities={self.exposed}"
        model = f"rewards={self.rewards}"
        settings_by_estimator = {
            HOLDOUT: [],
            "clipped_ips": [exposed, f"clip={settings.clip:g}"],
            "dm": [model],
            "dr": [exposed, model],
            "switch_dr": [exposed, model, f"switch={settings.switch:g}"],
            "dros": [exposed, model, f"shrink={settings.shrink:g}"],
            STRATIFIED: [exposed, *([f"strata={cut.requested} {cut.kind}"] if cut else [])],
        }
        return settings_by_estimator.get(estimator, [exposed])

    def scalings(self, estimator: str, metric: str, part: str) -> tuple[float, float]:
        """Return powers of two to scale both ratio parts.

        The powers bring both parts near to 2^10 (see `ratios.scaling`).
        """
        numerator, denominator = self._bounds(estimator, metric, self.weights[part])
        return ratios.scaling(numerator), ratios.scaling(denominator)

    def _bounds(self, estimator: str, metric: str, weights: Weights) -> tuple[float, float]:
        """Return upper bounds for a user's numerator and denominator."""
        largest, longest = self._largest_weight(estimator, weights), float(weights.longest)
        total = LARGEST_DISCOUNT * longest * largest * max(_largest_gain(metric, weights.grade, self), 1.0)
        if estimator == exposure.POOLED:
            return total, longest * largest
        if estimator == "snips_global":
            # The ideal list of `ideal=k` has one item for each rank.
            return total, total * (self.n_items if self.measured.definition.ideal == "k" else 1)
        if estimator in MODELLED:
            return 2 * total + LARGEST_DISCOUNT * max(self.measured.ks), 1.0
        return (1.0 if metric in QUOTIENTS else total), 1.0

    def _largest_weight(self, estimator: str, weights: Weights) -> float:
        settings = self.settings
        bounds = {
            HOLDOUT: 1.0,
            "clipped_ips": min(weights.largest, settings.clip),
            "snips_user": float(weights.longest),
            "switch_dr": min(weights.largest, settings.switch),
            "dros": min(weights.largest, math.sqrt(settings.shrink) / 2),
        }
        return bounds.get(estimator, weights.largest)


def _largest_gain(metric: str, grade: float, plan: EstimationPlan) -> float:
    """Return the largest absolute gain up to a grade.

    Items have at most this absolute relevance.
    """
    definition = plan.measured.definition
    grade += abs(definition.grade_origin)
    if metric not in (SUM, "ndcg") or definition.gain == "binary":
        return 1.0
    if definition.gain == "linear":
        return grade
    if definition.gain == "exponential_above":
        grade = grade - (definition.threshold or 0.0) + 1.0
    return math.exp2(grade)
