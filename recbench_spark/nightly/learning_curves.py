"""Learning curves of a night: values of held-out users, their means with intervals, and MANDCG.

The curves of a group of models come from one pass over the held-out users. Their rows are written before
the rows of `runs`, which make them visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.config import ModelConfig
from recbench_spark.engine.versions import collect_arrow
from recbench_spark.errors import is_cancelled
from recbench_spark.evaluation.batched import curves
from recbench_spark.evaluation.metrics.accuracy import HOLDOUT
from recbench_spark.evaluation.metrics.curve_batches import CurveMember, CurvePlan
from recbench_spark.failures import is_java_gone
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
from recbench_spark.training.model_adapter import make_adapter

Measure = Callable[[DataFrame, CurvePlan, Sequence[CurveMember]], DataFrame]
"""Rows of a table of curves, made of the held-out users."""


@dataclass(frozen=True)
class CurveOutcome:
    """Checks of the curves of one run, or the error it failed with."""

    checks: list[Check] = field(default_factory=list)
    error: Exception | None = None


def measure_curves(
    night: BenchmarkNight, models: Mapping[str, ModelConfig], journal: Journal
) -> dict[str, CurveOutcome]:
    """Measure the learning curves of models that are fitted, in one pass; by run id.

    A model that fails takes no other one with it: where the pass dies, each model is tried by itself.

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
    append = partial(_append_rows, night, context)
    with journal.stage("learning_curves", f"learning curves of {names}", run_ids=list(models)) as counts:
        members = [member for run_id in models if (member := _open_member(night, models, run_id, failed))]
        written = _write_members(partial(append, curves.measure_models, CURVE_VALUES), members, failed)
        if context.keeps_rankings:
            measured = [member for member in members if member.run_id in written]
            written = _write_members(partial(append, curves.rank_models, CURVE_RANKINGS), measured, failed)
        write_curve_results(night, written)
        checks = context.make_checks()
        for run_id in written:
            write_checks(night.store, run_id, checks)
        counts["failed"] = len(failed)
    return {
        run_id: CurveOutcome([] if run_id in failed else checks, failed.get(run_id)) for run_id in models
    }


def _open_member(
    night: BenchmarkNight, models: Mapping[str, ModelConfig], run_id: str, failed: dict[str, Exception]
) -> CurveMember | None:
    """Return a model as tasks see it; None, and a note in `failed`, if it cannot be opened."""
    try:
        adapter = make_adapter(models[run_id])
        return CurveMember(run_id, adapter.make_prefix_scorer(adapter.load(night.data), night.data))
    except Exception as error:
        _keep_error(run_id, error, failed)
        return None


def _keep_error(run_id: str, error: Exception, failed: dict[str, Exception]) -> None:
    if is_cancelled(error) or is_java_gone(error):
        raise error
    failed[run_id] = error


def _append_rows(
    night: BenchmarkNight,
    context: CurveContext,
    measure: Measure,
    table: Table,
    models: Sequence[CurveMember],
) -> None:
    """Append the rows that a measure makes of some models, in one commit."""
    night.spark_store.append(measure(context.users, context.plan, models), table)


def _write_members(
    write: Callable[[Sequence[CurveMember]], None],
    members: Sequence[CurveMember],
    failed: dict[str, Exception],
) -> list[str]:
    """Write rows of all models at once; where that dies, each model is tried by itself.

    Returns:
        The runs that have rows.
    """
    if not members:
        return []
    try:
        write(members)
    except Exception as error:
        if len(members) == 1:
            _keep_error(members[0].run_id, error, failed)
            return []
        if is_cancelled(error) or is_java_gone(error):
            raise
        return [run_id for member in members for run_id in _write_members(write, [member], failed)]
    return [member.run_id for member in members]


def write_curve_results(night: BenchmarkNight, run_ids: Sequence[str]) -> None:
    """Append to `learning_curves`, `metrics` and `user_metrics` what follows from rows of `curve_values`.

    The driver holds one row for each point of a curve.
    """
    if not run_ids:
        return
    store, bootstrap = night.spark_store, night.benchmark.evaluation.bootstrap
    values = store.read(CURVE_VALUES).where(F.col("run_id").isin(list(run_ids)))
    means = collect_arrow(curves.summarise_curves(values, bootstrap))
    is_point = pc.is_valid(means.column("given"))
    store.append_rows(means.filter(is_point), LEARNING_CURVES)
    overall = means.filter(pc.invert(is_point))
    store.append_rows(
        overall.append_column("estimator", pa.repeat(pa.scalar(HOLDOUT), overall.num_rows)), METRICS
    )
    store.append(curves.average_points(values), USER_METRICS)
