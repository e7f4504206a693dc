"""Writing a run's results; the row of `runs` comes last and makes them visible."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import __version__
from recbench_spark.config import Provenance, digest
from recbench_spark.evaluation import metrics as metric_rows
from recbench_spark.evaluation.beyond import Catalogue
from recbench_spark.evaluation.checks import Check
from recbench_spark.evaluator import Result
from recbench_spark.schemas import CHECKS, METRICS, RANKINGS, RUNS, USER_METRICS
from recbench_spark.steps.night import Night, model_inputs, new_run_id, run_key
from recbench_spark.store import Store


def write_metrics(
    store: Store,
    rankings: DataFrame,
    plan: metric_rows.Plan,
    run_id: str,
    catalogue: Catalogue,
    *,
    per_user: bool,
) -> None:
    """Append to `user_metrics` (where asked for) and to `metrics`."""
    stamp = F.lit(run_id)
    if per_user and (plan.of_ranks or plan.of_lists):
        values = metric_rows.all_user_metrics(rankings, plan, catalogue)
        store.append(values.withColumn("run_id", stamp), USER_METRICS)
    rows = metric_rows.all_metrics(rankings, plan, catalogue)
    store.append(rows.withColumn("run_id", stamp), METRICS)


def write_checks(store: Store, run_id: str, found: Sequence[Check]) -> None:
    """Append to `checks`."""
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
        for c in found
    ]
    if rows:
        store.append(store.spark.createDataFrame(rows, CHECKS.schema), CHECKS)


def publish(
    night: Night, model: Any, run_id: str, started: datetime, attempt: int, *, error: str | None = None
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
        **_provenance(model, model.provenance, benchmark.ran_by),
    }
    _append_run(night.store, row, run_id, started)


def publish_standalone(store: Store, result: Result, run: dict[str, Any]) -> str:
    """Write what `evaluator.evaluate` found, and at last the row of `runs`; returns the run's id."""
    run_id = new_run_id(run["logical_date"], run["model"])
    stamp = F.lit(run_id)
    if result.rankings is not None:
        store.append(
            result.rankings.withColumn("run_id", stamp).withColumn("part", F.lit("test")), RANKINGS
        )
    store.append(result.user_metrics.withColumn("run_id", stamp), USER_METRICS)
    store.append(result.metrics.withColumn("run_id", stamp), METRICS)
    write_checks(store, run_id, result.checks)
    identity = digest(run["inputs"], run["settings"], run["model"], __version__)
    facts = {name: run[name] for name in ("suite", "logical_date", "model", "model_kind", "dataset")}
    given = {key: run["inputs"][key] for key in ("truth", "predictions") if key in run["inputs"]}
    row = {**facts, "run_key": identity, "attempt": 1, "split": "given", "split_id": digest(given)}
    row |= {"inputs": run["inputs"], "settings": run["settings"], "source": "own", "ran_by": _user()}
    _append_run(store, row, run_id, run["started_at"])
    return run_id


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
        "n_users": _users_of(store, run_id),
        "seconds": (now - started).total_seconds(),
    }
    values = tuple(full.get(name) for name in RUNS.names)
    store.append(store.spark.createDataFrame([values], RUNS.schema), RUNS)


def _users_of(store: Store, run_id: str) -> int:
    """Users with a ranking; for predictions, users with a value."""
    ranked = store.of_run("rankings", run_id).count()
    return ranked or store.of_run("user_metrics", run_id).select("user_id").distinct().count()


def _user() -> str:
    return os.environ.get("USER", "unknown")


def _provenance(model: Any, provenance: Provenance, ran_by: str | None) -> dict[str, Any]:
    return {
        "source": provenance.source,
        "ran_by": provenance.ran_by or ran_by or _user(),
        "source_year": provenance.year,
        "search_space": json.dumps(provenance.search_space) if provenance.search_space else None,
        "budget": provenance.budget,
        "at_grid_edge": grid_edges(model, provenance),
    }


def grid_edges(model: Any, provenance: Provenance) -> list[str]:
    """Settings whose value is the smallest or largest one searched: the grid may be too small."""
    return [
        name
        for name, grid in provenance.search_space.items()
        if len(grid) > 1 and getattr(model, name, None) in (min(grid), max(grid))
    ]


def write_published(night: Night, model: Any, run_id: str) -> None:
    """Figures from a publication as rows of `metrics`: `ndcg@10: 0.31`, `rmse: 0.77`."""
    rows = []
    for name, value in model.figures.items():
        metric, _, k = name.partition("@")
        rows.append((run_id, "test", metric, "as published", int(k) if k else None, "holdout",
                     None, None, float(value), None, None, None, 0))  # fmt: skip
    night.store.append(night.spark.createDataFrame(rows, METRICS.schema), METRICS)
