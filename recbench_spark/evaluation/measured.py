"""Numbers and checks from rankings, for both engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.checks import Check
from recbench_spark.core.metric_names import Figures
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measures, list_results
from recbench_spark.evaluation.request_checks import EvaluationPlan
from recbench_spark.evaluation.run_measures import make_measures
from recbench_spark.metrics.listed import ListedCatalogue, check_head
from recbench_spark.metrics.ranking_counts import checks_from_counts
from recbench_spark.metrics.result import PART
from recbench_spark.ranking.batch_schemas import METRIC_ROWS
from recbench_spark.schemas import METRICS


class Measured(NamedTuple):
    """Numbers from rankings, and how user values follow.

    Attributes:
        metrics: the result's rows.
        values: computes user values from rankings.
        columns: ranking columns read by `values`.
        checks: on inputs and rankings.
    """

    metrics: pa.Table
    values: Callable[[Batches], Batches]
    columns: Sequence[str]
    checks: list[Check]


def measure_rankings(
    plan: EvaluationPlan,
    catalogue: ListedCatalogue | None,
    reduce: Callable[[Measures], Mapping[str, pa.Table]],
) -> tuple[pa.Table, list[Check]]:
    """Measure rankings: rows of `metrics`, and their checks.

    Args:
        plan: the request.
        catalogue: the catalogue for list metrics; None: none are requested.
        reduce: reduces the rankings by measures.
    """
    measures = make_measures(plan.metric_plan, catalogue)
    results = reduce(measures)
    rows = [METRIC_ROWS.empty_table(), *list_results(measures, results, METRICS)]
    metrics = pa.concat_tables(rows)
    checks = checks_from_counts(results.get("counts"), (PART,), lists=plan.lists)
    return _select_figures(metrics, plan.figures), [*checks, *check_head(plan.metric_plan, catalogue)]


def _select_figures(metrics: pa.Table, figures: Figures) -> pa.Table:
    """Select the numbers to report.

    Metrics named with a cut-off are reported only there.
    """
    for name in {metric for metric, _ in figures}:
        ks = pa.array([k for metric, k in figures if metric == name], pa.int32())
        other = pc.not_equal(metrics.column("metric"), name)
        metrics = metrics.filter(pc.or_(other, pc.is_in(metrics.column("k"), value_set=ks)))
    return metrics
