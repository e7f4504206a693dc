"""Writing a run's results; the row of `runs` comes last and makes them visible."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import __version__, revisions
from recbench_spark.checks import Check
from recbench_spark.config import Evaluation, ModelConfig, Provenance, PublishedModel, digest
from recbench_spark.evaluation.estimators import sampled
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.multiverse import multiverse
from recbench_spark.evaluation.metrics.top_lists import Catalogue
from recbench_spark.evaluation.result import Result
from recbench_spark.schemas import CHECKS, METRICS, MULTIVERSE, RANKINGS, RUNS, USER_METRICS
from recbench_spark.steps import revising
from recbench_spark.steps.night import Night, model_inputs, new_run_id, run_key
from recbench_spark.store import Store


def write_metrics(
    store: Store,
    rankings: DataFrame,
    plan: MetricPlan,
    run_id: str,
    catalogue: Catalogue,
    *,
    asked: Evaluation,
    further: Sequence[DataFrame] = (),
) -> None:
    """Append to `user_metrics` (where asked for) and to `metrics`, with further rows of these."""
    frames = [(rows, METRICS) for rows in (measuring.all_metrics(rankings, plan, catalogue), *further)]
    draw = asked.draw
    if plan.definition.candidates == "uniform" and draw.estimators and sampled.correctable(plan):
        corrected = sampled.corrected_metrics(rankings, plan, draw.estimators, draw.n)
        frames.append((corrected, METRICS))
    if asked.multiverse:
        frames.append((multiverse(rankings, plan), MULTIVERSE))
    if asked.user_metrics and (plan.of_ranks or plan.of_lists):
        frames.append((measuring.all_user_metrics(rankings, plan, catalogue), USER_METRICS))
    store.append_all([(frame.withColumn("run_id", F.lit(run_id)), table) for frame, table in frames])


def write_checks(store: Store, run_id: str, checks: Sequence[Check]) -> None:
    """Append to `checks`."""
    if checks:
        store.append(check_frame(store.spark, run_id, checks), CHECKS)


def check_frame(spark: SparkSession, run_id: str, checks: Sequence[Check]) -> DataFrame:
    """Rows of `checks`; what passed is information only."""
    rows = [
        (
            run_id,
            c.check,
            c.severity if not c.passed else "info",
            float(c.observed),
            c.threshold,
            c.passed,
            c.detail,
        )
        for c in checks
    ]
    return spark.createDataFrame(rows, CHECKS.schema)


def publish(
    night: Night,
    model: ModelConfig,
    run_id: str,
    started: datetime,
    attempt: int,
    *,
    found: Sequence[Check] = (),
    error: str | None = None,
) -> None:
    """The row of `runs`: from here on the run is visible, unless it tells of an error."""
    benchmark = night.benchmark
    settings = {
        "model": model.model_dump(),
        "split": benchmark.split.model_dump(),
        "evaluation": benchmark.evaluation.model_dump(),
        "dataset": benchmark.dataset.model_dump(),
    }
    row = {
        "run_key": run_key(night, model),
        "attempt": attempt,
        "suite": benchmark.name,
        "logical_date": night.logical_date,
        "model": model.name,
        "model_kind": model.kind,
        "model_version": model.version,
        "dataset": benchmark.dataset.name,
        "split": benchmark.split.describe(),
        "split_id": night.split_id,
        "inputs": {**night.inputs, **model_inputs(night.spark, model)},
        "settings": settings,
        "status": "failed" if error else "succeeded",
        "error": error,
        "revisions": revising.as_text(revising.of_run(benchmark, night.definition, model)),
        "n_users": _users_in(found),
        **_provenance(model, model.provenance, benchmark.ran_by),
    }
    _append_run(night.store, row, run_id, started)


def publish_standalone(store: Store, result: Result, run: dict[str, Any]) -> str:
    """Write what `evaluator.evaluate.evaluate` found, and at last the row of `runs`; returns the run's
    id."""
    run_id = new_run_id(run["logical_date"], run["model"])
    found = [*result.checks, *other_base_rates(store, run["suite"], result)]
    frames = [(result.user_metrics, USER_METRICS), (result.metrics, METRICS)]
    if result.rankings is not None:
        frames.append((result.rankings.withColumn("part", F.lit("test")), RANKINGS))
    stamped = [(frame.withColumn("run_id", F.lit(run_id)), table) for frame, table in frames]
    store.append_all([*stamped, (check_frame(store.spark, run_id, found), CHECKS)])
    revised = revisions.of(*revising.STANDALONE)
    identity = digest(run["inputs"], run["settings"], run["model"], __version__, revised)
    facts = {name: run[name] for name in ("suite", "logical_date", "model", "model_kind", "dataset")}
    truth = result.truth or digest({"truth": run["inputs"]["truth"]})
    row = {**facts, "run_key": identity, "attempt": 1, "split": "given", "split_id": truth}
    row |= {"inputs": run["inputs"], "settings": run["settings"], "source": "own", "ran_by": _user()}
    row |= {"revisions": revising.as_text(revised), "n_users": _users_in(result.checks)}
    _append_run(store, row, run_id, run["started_at"])
    return run_id


def other_base_rates(store: Store, suite: str, result: Result) -> list[Check]:
    """A warning where the suite holds value metrics over another mean outcome: RIG depends on it."""
    if result.truth is None:
        return []
    overall = "metric = 'mean_outcome' AND slice_key IS NULL"
    ours = result.metrics.where(overall).collect()[0].value
    of_suite = store.read(RUNS).where(F.col("suite") == suite).select("run_id")
    known = store.visible(METRICS).where(overall).join(of_suite, "run_id", "left_semi")
    others = known.where(F.col("value") != ours).count()
    detail = f"base rate here {ours:g}: do not compare RIG, log-loss, NMSE or PE with theirs"
    return [Check("runs of another base rate", others, 0.0, "warning", detail)]


def _append_run(store: Store, row: dict[str, Any], run_id: str, started: datetime) -> None:
    """Add what every run has in common, and append."""
    now = datetime.now(UTC)
    settings = json.dumps(row["settings"], default=str)
    full = {
        "status": "succeeded",
        **row,
        "run_id": run_id,
        "config_json": settings,
        "config_hash": digest(settings),
        "inputs_json": json.dumps(row["inputs"]),
        "code_version": __version__,
        "started_at": started,
        "finished_at": now,
        "seconds": (now - started).total_seconds(),
    }
    values = tuple(full.get(name) for name in RUNS.names)
    store.append(store.spark.createDataFrame([values], RUNS.schema), RUNS)


def _users_in(checks: Sequence[Check]) -> int:
    """Users of the held-out part that has most."""
    return int(max((check.observed for check in checks if check.check.endswith(": users")), default=0))


def _user() -> str:
    return os.environ.get("USER", "unknown")


def _provenance(model: ModelConfig, provenance: Provenance, ran_by: str | None) -> dict[str, Any]:
    return {
        "source": provenance.source,
        "ran_by": provenance.ran_by or ran_by or _user(),
        "source_year": provenance.year,
        "search_space": json.dumps(provenance.search_space) if provenance.search_space else None,
        "budget": provenance.budget,
        "at_grid_edge": grid_edges(model, provenance),
    }


def grid_edges(model: ModelConfig, provenance: Provenance) -> list[str]:
    """Settings whose value is the smallest or largest one searched: the grid may be too small."""
    return [
        name
        for name, grid in provenance.search_space.items()
        if len(grid) > 1 and getattr(model, name, None) in (min(grid), max(grid))
    ]


def write_published(night: Night, model: PublishedModel, run_id: str) -> None:
    """Figures from a publication as rows of `metrics`: `ndcg@10: 0.31`, `rmse: 0.77`."""
    rows = []
    for name, value in model.figures.items():
        metric, _, k = name.partition("@")
        rows.append((run_id, "test", metric, "as published", int(k) if k else None, "holdout",
                     None, None, float(value), None, None, None, 0))  # fmt: skip
    night.store.append(night.spark.createDataFrame(rows, METRICS.schema), METRICS)
