"""Metrics of rankings on Spark: the batch functions of `accuracy`, called by `mapInArrow`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap
from recbench_spark.engine.versions import change_groups
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
    """Compute one row per user and metric, with values at every cut-off. No shuffle.

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
    """Compute metrics of each user's list like `compute_user_metrics`, for users with a list."""
    listed = top_lists.count_listed_items(rankings, catalogue, plan.definition.threshold)
    return listed.mapInArrow(
        partial(accuracy.compute_list_values, plan, catalogue.facts(plan.list_metrics)), USER_VALUES
    )


def compute_all_user_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """Compute `compute_user_metrics` and, where the plan has such metrics, `compute_list_user_metrics`."""
    rows = compute_user_metrics(rankings, plan)
    return (
        rows.unionByName(compute_list_user_metrics(rankings, plan, catalogue))
        if plan.list_metrics
        else rows
    )


# ------------------------------------------------------------------------------- overall


def compute_metrics(rankings: DataFrame, plan: MetricPlan) -> DataFrame:
    """Compute one row per metric, cut-off and slice (NULL: all users), with interval and users.

    Each task adds up its users. One row of cut-offs x replicates whole numbers is shuffled per task and
    slice. Nothing grows with the number of users after the first pass.

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
    """Rank lists and compute their metrics in one pass through Python, without storing rankings.

    Args:
        users: one row per user with the list, as in `rank_listed`.
        request: definition; no lists are requested.
        plan: metrics, cut-offs, definition, bootstrap.
        mask: drop a user's training items from the lists.
    """
    narrow = rank.select_required(users, request, mask)
    totals = narrow.mapInArrow(partial(_rank_and_sum, plan, request), TOTALS)
    return finish_totals(totals, plan.table(plan.rank_metrics), plan.bootstrap)


def _rank_and_sum(plan: MetricPlan, request: RankingRequest, batches: Batches) -> Batches:
    yield from accuracy.total_batches(plan, rank_batches(request, batches))


def compute_list_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """Compute metrics of lists like `compute_metrics`, averaged over users with a list, without slices."""
    listed = top_lists.count_listed_items(rankings, catalogue, plan.definition.threshold)
    totals = listed.mapInArrow(
        partial(accuracy.sum_list_values, plan, catalogue.facts(plan.list_metrics)), TOTALS
    )
    return finish_totals(totals, plan.table(plan.list_metrics), plan.bootstrap)


def finish_totals(totals: DataFrame, columns: Sequence[MetricColumn], bootstrap: Bootstrap) -> DataFrame:
    """Compute rows of `metrics` from totals of tasks (`TOTALS`); one row per task and slice is shuffled."""

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def finish(table: pa.Table) -> pa.Table:
        return accuracy.finish_metrics(columns, bootstrap, table)

    return change_groups(totals, SLICE, finish, METRIC_ROWS)


# ------------------------------------------------------------------------------- all metrics


def compute_all_metrics(rankings: DataFrame, plan: MetricPlan, catalogue: SplitCatalogue) -> DataFrame:
    """Compute all metrics of the plan: of ranks, of users' lists, and of all lists together."""
    frames = []
    if plan.rank_metrics:
        frames.append(compute_metrics(rankings, plan))
    if plan.list_metrics:
        frames.append(compute_list_metrics(rankings, plan, catalogue))
    if plan.overall:
        rows = top_lists.compute_overall(rankings, catalogue, plan.overall, plan.ks)
        definition = F.lit(plan.definition.describe(beyond_accuracy.AXES)).alias("definition")
        frames.append(rows.select("*", definition, F.lit(HOLDOUT).alias("estimator")))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
