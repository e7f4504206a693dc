"""Rankings of the cluster measured: the functions of batches of `accuracy`, called by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap
from recbench_spark.evaluation import batch_schemas
from recbench_spark.evaluation.metrics import accuracy, beyond_accuracy, top_lists
from recbench_spark.evaluation.metrics.accuracy import (
    HOLDOUT,
    METRIC_ROWS,
    RANKING_COLUMNS,
    SLICE,
    TOTALS,
    MetricColumn,
    MetricPlan,
)
from recbench_spark.evaluation.metrics.top_lists import SplitCatalogue
from recbench_spark.evaluation.ranking import rank
from recbench_spark.evaluation.ranking.given import rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.streams import Batches

USER_VALUES = batch_schemas.to_ddl(batch_schemas.USER_VALUES)

# ------------------------------------------------------------------------------- per user


def compute_user_metrics(rankings: DataFrame, plan: MetricPlan) -> DataFrame:
    """One row a user and metric, with the values at every cut-off. No shuffle; one batch in memory.

    Args:
        rankings: rows of the table `rankings` of one run.
        plan: metrics, cut-offs, definition.
    """
    return rankings.select(*RANKING_COLUMNS).mapInArrow(
        partial(accuracy.user_value_batches, plan), USER_VALUES
    )


def compute_list_user_metrics(
    rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue
) -> DataFrame:
    """As `compute_user_metrics`, for the metrics of each user's list; users without one have no row."""
    listed = top_lists.count_listed_items(rankings, catalogue, plan.definition.threshold)
    return listed.mapInArrow(
        partial(accuracy.listed_value_batches, plan, catalogue.facts(plan.list_metrics)), USER_VALUES
    )


def compute_all_user_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """`compute_user_metrics` and, where they are asked for, `compute_list_user_metrics`."""
    rows = compute_user_metrics(rankings, plan)
    return (
        rows.unionByName(compute_list_user_metrics(rankings, plan, catalogue))
        if plan.list_metrics
        else rows
    )


# ------------------------------------------------------------------------------- overall


def compute_metrics(rankings: DataFrame, plan: MetricPlan) -> DataFrame:
    """One row a metric, cut-off and slice (NULL slice: everyone), with interval and users averaged.

    Each task adds its users up; what is shuffled is one row a task and slice, of cut-offs x
    replicates whole numbers. Nothing grows with users after the first pass.

    Args:
        rankings: rows of the table `rankings` of one run.
        plan: metrics, cut-offs, definition, bootstrap.
    """
    narrow = rankings.select(*RANKING_COLUMNS)
    totals = narrow.mapInArrow(partial(accuracy.total_batches, plan), TOTALS)
    return finish_totals(totals, plan.table(plan.rank_metrics), plan.bootstrap)


def rank_and_measure_lists(
    users: DataFrame, request: RankingRequest, plan: MetricPlan, mask: bool
) -> DataFrame:
    """`compute_metrics` of `ranking.rank_listed` in one pass through Python, where rankings are not to be kept.

    Args:
        users: one row a user with the list, as `rank_listed` wants it.
        request: definition; no lists are asked for.
        plan: metrics, cut-offs, definition, bootstrap.
        mask: drop a user's training items from the lists.
    """
    narrow = rank.required_columns(users, request, mask)
    totals = narrow.mapInArrow(partial(_ranked_totals, plan, request), TOTALS)
    return finish_totals(totals, plan.table(plan.rank_metrics), plan.bootstrap)


def _ranked_totals(plan: MetricPlan, request: RankingRequest, batches: Batches) -> Batches:
    yield from accuracy.total_batches(plan, rank_batches(request, batches))


def compute_list_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """As `compute_metrics`, for the metrics of each user's list, averaged over users with one; no slices."""
    listed = top_lists.count_listed_items(rankings, catalogue, plan.definition.threshold)
    totals = listed.mapInArrow(
        partial(accuracy.listed_total_batches, plan, catalogue.facts(plan.list_metrics)), TOTALS
    )
    return finish_totals(totals, plan.table(plan.list_metrics), plan.bootstrap)


def finish_totals(totals: DataFrame, columns: Sequence[MetricColumn], bootstrap: Bootstrap) -> DataFrame:
    """Rows of `compute_metrics` from the totals of tasks (`TOTALS`). Shuffles one row a task and slice."""

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return accuracy.finish_metrics(columns, bootstrap, table)

    return totals.groupBy(*SLICE).applyInArrow(finish, METRIC_ROWS)


# ------------------------------------------------------------------------------- everything


def compute_all_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """`compute_metrics`, `compute_list_metrics` and the metrics of all lists together, as far as they are asked for."""
    frames = []
    if plan.rank_metrics:
        frames.append(compute_metrics(rankings, plan))
    if plan.list_metrics:
        frames.append(compute_list_metrics(rankings, plan, catalogue))
    if plan.overall:
        rows = top_lists.compute_overall(rankings, catalogue, plan.overall, plan.ks)
        definition = F.lit(plan.definition.describe(beyond_accuracy.AXES)).alias("definition")
        frames.append(rows.select("*", definition, F.lit(HOLDOUT).alias("estimator")))
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
