"""Results on both runners: Arrow tables or lazy Spark frames.

The module needs no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from recbench_spark.core.checks import Check
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measures, reduce_pieces
from recbench_spark.evaluation.measured import Measured, measure_rankings
from recbench_spark.evaluation.request_checks import EvaluationPlan
from recbench_spark.evaluation.run_measures import map_user_values
from recbench_spark.metrics.accuracy import RANKING_COLUMNS
from recbench_spark.metrics.listed import ListedCatalogue, name_list_columns
from recbench_spark.metrics.pairs import pair_measure, value_batches
from recbench_spark.metrics.predictions import BATCH_USERS
from recbench_spark.metrics.result import Result, ShownTable
from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS, USER_VALUES
from recbench_spark.sources.input_rows import open_table
from recbench_spark.storage.blocks import Engine, StoredRows, TaskRows, return_rows


class Outputs(Protocol):
    """Rankings, and what a runner makes from them."""

    @property
    def rows(self) -> StoredRows:
        """The rankings."""

    def reduce(self, measures: Measures) -> dict[str, pa.Table]:
        """Reduce the rankings by measures."""

    def finish(self, measured: Measured) -> Result:
        """Return the call's result."""


def open_outputs(engine: Engine, rankings: TaskRows, schema: pa.Schema = RANKED_USERS) -> Outputs:
    """Rank the users, and return the rankings.

    Rows may follow another `schema`.
    """
    spark: Any = getattr(engine, "spark", None)
    if spark is not None:
        from recbench_spark.evaluation.frame_outputs import FrameOutputs  # noqa: PLC0415

        return FrameOutputs(spark, rankings, schema)
    return TableOutputs(engine, pa.concat_tables([schema.empty_table(), *rankings.each(return_rows)]))


class TableOutputs:
    """This process's rankings."""

    def __init__(self, engine: Engine, ranked: pa.Table) -> None:
        self.ranked, self.batches = ranked, list(to_batches(ranked))
        self.rows = open_table(engine, ranked).rows

    def reduce(self, measures: Measures) -> dict[str, pa.Table]:
        """Reduce the rankings by measures."""
        return reduce_pieces(measures, [self.batches])

    def finish(self, measured: Measured) -> Result:
        """Return the result, as `Outputs`."""
        per_user = to_table(measured.values(iter(self.batches)), USER_VALUES)
        rankings = self.ranked.select(
            [name for name in self.ranked.column_names if name not in PROFILES.names]
        )
        return Result(ShownTable(measured.metrics), ShownTable(per_user), rankings, measured.checks)


def measure_result(
    outputs: Outputs, plan: EvaluationPlan, catalogue: ListedCatalogue | None, checks: list[Check]
) -> Result:
    """Measure rankings by a plan's metrics."""
    metrics, more = measure_rankings(plan, catalogue, outputs.reduce)
    values = partial(map_user_values, plan.metric_plan, catalogue)
    columns = tuple(dict.fromkeys((*RANKING_COLUMNS, *name_list_columns(plan.metric_plan))))
    return outputs.finish(Measured(metrics, values, columns, [*checks, *more]))


def measure_pairs(outputs: Outputs, plan: EvaluationPlan, ks: Sequence[int], checks: list[Check]) -> Result:
    """Measure rankings by pairs' hit rates and scaled MRR."""
    more = measure_rankings(plan, None, outputs.reduce)[1]
    metrics = outputs.reduce({"pairs": pair_measure(ks)})["pairs"]
    values = partial(value_batches, ks)
    columns = ("user_id", "above", "before")
    return outputs.finish(Measured(metrics, values, columns, [*checks, *more]))


def to_batches(table: pa.Table) -> Batches:
    """Split a table into batches, as tasks receive it."""
    return iter(table.combine_chunks().to_batches(BATCH_USERS))


def to_table(batches: Batches, schema: pa.Schema) -> pa.Table:
    """Combine batches into a table with a schema."""
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
