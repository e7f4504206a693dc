"""Multiverse analysis: a model's metrics under every defensible definition.

All are computed from the same ranks. Libraries differ in gain, discount, denominators, ties and averaged
users. Each combination of choices is a world. If model A beats model B in nearly all worlds, this is a
finding; if it does in half of them, the choice of definition decides. After Steegen et al. 2016,
"Increasing transparency through a multiverse analysis".
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pyarrow as pa

from recbench_spark.core.definitions import DEFAULT_TIE_SEED, Definition
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.accuracy import RANKING_COLUMNS, MetricColumn, MetricPlan, TruthSelection
from recbench_spark.metrics.kernels.accuracy import METRICS, cutoffs, measure
from recbench_spark.schemas import MULTIVERSE

WORLDS = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg")
"""Metrics in the multiverse; all are better when higher."""

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
"""Each axis's values in published libraries; other axes keep the benchmark file's value."""


def metric_definitions(metric: str, base: Definition) -> list[Definition]:
    """List every combination of choices behind a metric.

    >>> len(metric_definitions("hit", Definition())), len(metric_definitions("ndcg", Definition()))
    (16, 288)
    """
    axes = [axis for axis in CHOICES if axis in METRICS[metric].axes]
    choices = product(*(_choices(axis, metric, base) for axis in axes))
    worlds = (base.model_copy(update=dict(zip(axes, chosen, strict=True))) for chosen in choices)
    seed = {"tie_seed": DEFAULT_TIE_SEED}  # as `make_definition` wants it without hashed ties
    return [world if world.ties == "hashed" else world.model_copy(update=seed) for world in worlds]


def _choices(axis: str, metric: str, base: Definition) -> tuple[str, ...]:
    """Return an axis's values.

    Ranks with hashed ties do not know the order by id. In some definitions NDCG has its own rule for ties:
    `ties` then changes nothing in it.
    """
    if axis != "ties":
        return CHOICES[axis]
    if metric == "ndcg" and base.ndcg_ties != "same":
        return (base.ties,)
    return ("hashed", *CHOICES["ties"][1:]) if base.ties == "hashed" else CHOICES["ties"]


def multiverse_columns(plan: MetricPlan) -> list[MetricColumn]:
    """List the worlds in the order of a user's values."""
    return [
        MetricColumn(metric, k, definition.describe(METRICS[metric].axes), metric_rows.HOLDOUT)
        for metric in WORLDS
        for definition in metric_definitions(metric, plan.definition)
        for k in cutoffs(metric, plan.ks)
    ]


def multiverse_measure(plan: MetricPlan) -> Measure:
    """Return the measure for about 600 definitions at every cut-off.

    The measure has no slices and no bootstrap.

    Args:
        plan: cut-offs, and the definition for all other axes.
    """
    plain = plan.bootstrap.model_copy(update={"replicates": 0})
    finish = partial(metric_rows.finish_metrics, multiverse_columns(plan), plain)
    return Measure(partial(_totals, plan), metric_rows.SLICE, finish, RANKING_COLUMNS, MULTIVERSE)


def _drop_slices(batches: Batches) -> Batches:
    """Remove all slices from rankings."""
    for batch in batches:
        place = batch.schema.get_field_index("slices")
        nothing = pa.nulls(batch.num_rows, batch.column(place).type)
        yield batch.set_column(place, "slices", nothing)


def _totals(plan: MetricPlan, batches: Batches) -> Batches:
    plain = plan.bootstrap.model_copy(update={"replicates": 0})

    def totals(selection: TruthSelection) -> metric_rows.MetricTotals:
        values = {}
        for metric in WORLDS:
            for world in metric_definitions(metric, plan.definition):
                own = measure(selection.rankings, [metric], plan.ks, world)
                values[f"{metric} {world.describe()}"] = own[metric]
        return metric_rows.sum_users(values, selection.owners, plain, plan.definition.weigh)

    yield from metric_rows.sum_by_slice(_drop_slices(batches), totals)
