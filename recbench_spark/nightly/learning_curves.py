"""Learning curves of a night: values of held-out users, their means with intervals, and MANDCG.

The held-out users are dealt to tasks once. Tasks write the files of one model after the other, before the
rows of `runs` make them visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.checks import Check
from recbench_spark.config import ModelConfig, digest
from recbench_spark.evaluation.batch_schemas import USER_VALUES
from recbench_spark.evaluation.batched import curves
from recbench_spark.evaluation.batched.curves import Measurement
from recbench_spark.evaluation.batched.task_devices import choose_device
from recbench_spark.evaluation.metrics.accuracy import HOLDOUT
from recbench_spark.evaluation.metrics.curve_batches import (
    CURVE_ROWS,
    CURVE_USERS,
    CurveMember,
    measure_users,
)
from recbench_spark.evaluation.metrics.curve_rankings import CURVE_RANKED, rank_users
from recbench_spark.nightly.batched_evaluation import ends_night
from recbench_spark.nightly.curve_context import CurveContext
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.nightly.results import write_checks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import (
    CURVE_RANKINGS,
    CURVE_VALUES,
    LEARNING_CURVES,
    METRICS,
    USER_METRICS,
    Table,
)
from recbench_spark.storage.blocks import reduce_rows
from recbench_spark.training.model_adapter import make_adapter

CURVE_TABLES: tuple[tuple[Table, pa.Schema, Measurement], ...] = (
    (CURVE_VALUES, CURVE_ROWS, measure_users),
    (CURVE_RANKINGS, CURVE_RANKED, rank_users),
)
"""Tables of users, and what makes their rows. Ranks are made once more, since few files ask for them."""


@dataclass(frozen=True)
class CurveOutcome:
    """Checks of the curves of one run, or the error it failed with."""

    checks: list[Check] = field(default_factory=list)
    error: Exception | None = None


def measure_curves(
    night: BenchmarkNight, models: Mapping[str, ModelConfig], journal: Journal
) -> dict[str, CurveOutcome]:
    """Measure the learning curves of models that are fitted; by run id.

    A model that fails takes no other one with it.

    Args:
        night: the night; nothing is done where its file asks for no curves.
        models: run id -> model.
        journal: journal of the job.
    """
    context = night.curves
    if context is None or not models:
        return {}
    names = ", ".join(model.name for model in models.values())
    failed: dict[str, Exception] = {}
    with journal.stage("learning_curves", f"learning curves of {names}", run_ids=list(models)) as counts:
        for run_id, model in models.items():
            try:
                _write_users(night, context, model, run_id)
            except Exception as error:
                if ends_night(error):
                    raise
                failed[run_id] = error
        written = [run_id for run_id in models if run_id not in failed]
        write_curve_results(night, written)
        checks = context.make_checks()
        for run_id in written:
            write_checks(night.store, run_id, checks)
        counts["failed"] = len(failed)
    return {
        run_id: CurveOutcome([] if run_id in failed else checks, failed.get(run_id)) for run_id in models
    }


def _write_users(night: BenchmarkNight, context: CurveContext, model: ModelConfig, run_id: str) -> None:
    """Write the values of users by a model, and its ranks if the file asks for them; tasks write files."""
    adapter, device = make_adapter(model), choose_device(night.store.engine)
    member = CurveMember(run_id, adapter.make_prefix_scorer(adapter.load(night.data), night.data))
    for table, schema, measure in CURVE_TABLES[: 1 + context.keeps_rankings]:
        planned = partial(measure, context.plan)
        work = partial(curves.run_member, measure=planned, member=member, device=device, schema=schema)
        users = context.users.open(CURVE_USERS.names, work, tuple(schema.names))
        night.store.append_blocks(users, table, run_id)


def write_curve_results(night: BenchmarkNight, run_ids: Sequence[str]) -> None:
    """Append to `learning_curves`, `metrics` and `user_metrics` what follows from rows of `curve_values`.

    The driver holds one row for each point of a curve.
    """
    if not run_ids:
        return
    store, bootstrap = night.store, night.benchmark.evaluation.bootstrap
    values = store.open_rows(CURVE_VALUES, "run_id", run_ids)
    measures = {"means": curves.curve_measure(bootstrap)}
    means = reduce_rows(measures, values, store.engine.count_tasks(0))["means"]
    is_point = pc.is_valid(means.column("given"))
    store.append_rows(means.filter(is_point), LEARNING_CURVES)
    overall = means.filter(pc.invert(is_point))
    store.append_rows(
        overall.append_column("estimator", pa.repeat(pa.scalar(HOLDOUT), overall.num_rows)), METRICS
    )
    averaged = [
        (
            store.open_rows(CURVE_VALUES, "run_id", [run_id]).open(
                CURVE_ROWS.names, curves.average_points, tuple(USER_VALUES.names)
            ),
            {"run_id": run_id},
        )
        for run_id in run_ids
    ]
    store.append_parts(averaged, USER_METRICS, digest("curves", *run_ids, length=32))
