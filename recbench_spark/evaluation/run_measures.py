"""A run's measures, composed here alone, and user values."""

from __future__ import annotations

from recbench_spark.analyses.exposure.debiased import estimation_measure
from recbench_spark.analyses.exposure.estimation_plan import EstimationPlan
from recbench_spark.analyses.sampling import sampled
from recbench_spark.config import Evaluation
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.engine.whole_users import keep_users_whole
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.ceilings import ceiling_measure
from recbench_spark.metrics.listed import (
    ListedCatalogue,
    compute_list_values,
    list_measures,
    map_lists,
)
from recbench_spark.metrics.multiverse import multiverse_measure
from recbench_spark.metrics.ranking_counts import count_measure


def make_measures(
    plan: MetricPlan,
    catalogue: ListedCatalogue | None,
    evaluation: Evaluation | None = None,
    estimation: EstimationPlan | None = None,
    *,
    ceilings: bool = False,
) -> dict[str, Measure]:
    """Return the measures for a run's rankings by name.

    Args:
        plan: metrics, cut-offs, definition, bootstrap.
        catalogue: the catalogue for list metrics; None: none are requested.
        evaluation: the benchmark file's section, for a night.
        estimation: plan for estimates corrected for exposure bias.
        ceilings: also measure what the best order of the candidates would reach.
    """
    measures = {"counts": count_measure(plan.definition.threshold, profiles=plan.wants_profiles)}
    if plan.rank_metrics:
        measures["ranks"] = accuracy.rank_measure(plan)
        measures |= {"ceilings": ceiling_measure(plan)} if ceilings else {}
    if catalogue is not None:
        measures |= list_measures(plan, catalogue)
    if evaluation is not None:
        draw, is_drawn = evaluation.draw, plan.definition.candidates == "uniform"
        if is_drawn and draw.estimators and sampled.correctable_metrics(plan):
            measures |= sampled.correction_measures(plan, draw.estimators, draw.n)
        if evaluation.multiverse:
            measures["multiverse"] = multiverse_measure(plan)
    if estimation is not None:
        measures["estimates"] = estimation_measure(estimation)
    return measures


def map_user_values(plan: MetricPlan, catalogue: ListedCatalogue | None, batches: Batches) -> Batches:
    """Compute all metrics per user: `USER_VALUES` from `RANKED_USERS`.

    Arguments as in `make_measures`.
    """
    for batch in keep_users_whole(batches):
        if plan.rank_metrics:
            yield from accuracy.user_value_batches(plan, iter([batch]))
        if plan.list_metrics and catalogue is not None:
            yield from map_lists(plan, catalogue, compute_list_values, iter([batch]))
