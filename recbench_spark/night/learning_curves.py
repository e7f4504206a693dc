"""Measure a night's learning curves.

These are values of held-out users, their means with intervals, and MANDCG. The held-out users are dealt
to tasks once. Tasks write the files of one model after the other, before the rows in `runs` make them
visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.curves import batched as curves
from recbench_spark.analyses.curves.batched import CURVE_RANKED, Measurement, rank_users
from recbench_spark.analyses.curves.curve_batches import CURVE_ROWS, CURVE_USERS, CurveMember, measure_users
from recbench_spark.config import ModelConfig, digest
from recbench_spark.evaluation.task_devices import choose_device
from recbench_spark.metrics.accuracy import HOLDOUT
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.curve_context import CurveContext
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.ranking.batch_schemas import USER_VALUES
from recbench_spark.schemas import (
    CURVE_RANKINGS,
    CURVE_VALUES,
    LEARNING_CURVES,
    METRICS,
    USER_METRICS,
    Table,
)
from recbench_spark.storage.blocks import reduce_rows
from recbench_spark.storage.commits import Addition, add_blocks
from recbench_spark.storage.file_tables import TaskParts

CURVE_TABLES: tuple[tuple[Table, pa.Schema, Measurement], ...] = (
    (CURVE_VALUES, CURVE_ROWS, measure_users),
    (CURVE_RANKINGS, CURVE_RANKED, rank_users),
)
"""User tables, each with the function for its rows.

Ranks are made once more, since few files ask for them.
"""


def list_curve_values(
    night: BenchmarkNight, context: CurveContext, model: ModelConfig, run_id: str
) -> list[Addition]:
    """Return a model's user values, and its ranks if wanted.

    Tasks compute and write them when they are committed.
    """
    adapter, device = make_adapter(model), choose_device(night.store.engine)
    member = CurveMember(run_id, adapter.make_prefix_scorer(adapter.load(night.data), night.data))
    additions = []
    for table, schema, measure in CURVE_TABLES[: 1 + context.keeps_rankings]:
        planned = partial(measure, context.plan)
        work = partial(curves.run_member, measure=planned, member=member, device=device, schema=schema)
        users = context.users.open(CURVE_USERS.names, work, tuple(schema.names))
        additions.append(add_blocks(table, run_id, users))
    return additions


def summarise_curves(night: BenchmarkNight, run_ids: Sequence[str]) -> list[Addition]:
    """Summarise rows of `curve_values` for three tables.

    The tables are `learning_curves`, `metrics` and `user_metrics`. The driver holds one row for each point
    on a curve.
    """
    if not run_ids:
        return []
    store, bootstrap = night.store, night.benchmark.evaluation.bootstrap
    values = store.open_rows(CURVE_VALUES, "run_id", run_ids)
    measures = {"means": curves.curve_measure(bootstrap)}
    means = reduce_rows(measures, values, store.engine.count_tasks(0))["means"]
    is_point = pc.is_valid(means.column("given"))
    overall = means.filter(pc.invert(is_point))
    averaged = [
        (
            store.open_rows(CURVE_VALUES, "run_id", [run_id]).open(
                CURVE_ROWS.names, curves.average_points, tuple(USER_VALUES.names)
            ),
            {"run_id": run_id},
        )
        for run_id in run_ids
    ]
    estimators = pa.repeat(pa.scalar(HOLDOUT), overall.num_rows)
    return [
        Addition(LEARNING_CURVES, rows=means.filter(is_point)),
        Addition(METRICS, rows=overall.append_column("estimator", estimators)),
        Addition(USER_METRICS, digest("curves", *run_ids, length=32), TaskParts(averaged)),
    ]
