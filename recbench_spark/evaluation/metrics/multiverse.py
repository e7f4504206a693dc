"""One model's numbers under every defensible definition, from the same stored ranks.

Which library one would have used decides gain, discount, denominators, ties and whom to average over.
Every such choice is a world; that model A beats model B in nearly all of them is a finding, that it
does in half of them is the protocol's doing. After Steegen et al. 2016, "Increasing transparency
through a multiverse analysis".
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.definitions import Definition
from recbench_spark.evaluation.measure import RankingMeasure
from recbench_spark.evaluation.metrics import accuracy as metric_rows
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics.accuracy import (
    RANKING_COLUMNS,
    TOTALS,
    MetricColumn,
    MetricPlan,
    MetricTotals,
    TruthSelection,
)
from recbench_spark.kernels.metrics.accuracy import METRICS, cutoffs, measure
from recbench_spark.kernels.streams import Batches

WORLDS = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg")
"""The metrics looked at: higher is better in all of them."""

CHOICES: dict[str, tuple[str, ...]] = {
    "users": ("truth", "both"),
    "empty_users": ("leave_out", "zero"),
    "gain": ("binary", "linear", "exponential"),
    "discount": ("log2", "log2_max2"),
    "ideal": ("min_k_relevant", "k", "relevant"),
    "precision_by": ("k", "list", "min_k_relevant"),
    "recall_by": ("relevant", "min_k_relevant"),
    "ap_by": ("min_k_relevant", "relevant", "k"),
    "ties": ("id", "expected", "optimistic", "pessimistic"),
}
"""Values of an axis that a published library takes; the others stay as the benchmark file says."""


def metric_definitions(metric: str, base: Definition) -> list[Definition]:
    """Every combination of the choices that this metric depends on.

    >>> len(definitions_of("hit", Definition())), len(definitions_of("ndcg", Definition()))
    (16, 288)
    """
    axes = [axis for axis in CHOICES if axis in METRICS[metric].axes]
    worlds = product(*(CHOICES[axis] for axis in axes))
    return [base.model_copy(update=dict(zip(axes, world, strict=True))) for world in worlds]


def multiverse_columns(plan: MetricPlan) -> list[MetricColumn]:
    """The worlds, in the order in which `measure_multiverse` measures them."""
    return [
        MetricColumn(metric, k, definition.describe(METRICS[metric].axes), metric_rows.HOLDOUT)
        for metric in WORLDS
        for definition in metric_definitions(metric, plan.definition)
        for k in cutoffs(metric, plan.ks)
    ]


def measure_multiverse(rankings: DataFrame, plan: MetricPlan) -> DataFrame:
    """part, metric, k, definition, value, n: about 600 definitions at every cut-off.

    One pass over the rankings, as `metrics`, without bootstrap: a task measures its users once for
    each definition; what is shuffled is one row per task and part.

    Args:
        rankings: rows of the table `rankings` of one run.
        plan: cut-offs, and the definition whose other axes stay.
    """
    without_slices = F.lit(None).cast("map<string,array<string>>")
    narrow = rankings.select(*RANKING_COLUMNS).withColumn("slices", without_slices)
    plain = plan.bootstrap.model_copy(update={"replicates": 0})
    totals = narrow.mapInArrow(partial(_totals, plan), TOTALS)
    rows = measuring.finish_totals(totals, multiverse_columns(plan), plain)
    return rows.select("part", "metric", "k", "definition", "value", "n")


def multiverse_measure(plan: MetricPlan) -> RankingMeasure:
    """What `measure_multiverse` works out, of rankings of any origin, without slices."""
    plain = plan.bootstrap.model_copy(update={"replicates": 0})
    finish = partial(metric_rows.finish_metrics, multiverse_columns(plan), plain)
    return RankingMeasure(lambda batches: _totals(plan, drop_slices(batches)), metric_rows.SLICE, finish)


def drop_slices(batches: Batches) -> Batches:
    """Rankings as if no slice had been asked for."""
    for batch in batches:
        place = batch.schema.get_field_index("slices")
        nothing = pa.nulls(batch.num_rows, batch.column(place).type)
        yield batch.set_column(place, "slices", nothing)


def _totals(plan: MetricPlan, batches: Batches) -> Batches:
    plain = plan.bootstrap.model_copy(update={"replicates": 0})

    def totals(some: TruthSelection) -> MetricTotals:
        values = {
            f"{metric} {definition.describe()}": measure(some.rankings, [metric], plan.ks, definition)[
                metric
            ]
            for metric in WORLDS
            for definition in metric_definitions(metric, plan.definition)
        }
        return metric_rows.sum_users(values, some.keys_u, plain)

    yield from metric_rows.sum_by_slice(batches, totals)
