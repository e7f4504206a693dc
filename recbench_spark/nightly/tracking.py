"""An optional link to MLflow: the driver logs each run of a night with its settings and its numbers.

The tables remain the only reference. A tracking server that cannot be reached, or a missing mlflow, gives a
warning and never fails a night.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import functions as F

from recbench_spark.config import Benchmark
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, RUNS
from recbench_spark.storage.store import Store


@dataclass(frozen=True)
class TrackedRun:
    """One run in the form that MLflow stores."""

    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)


def log_night(
    uri: str, store: Store, benchmark: Benchmark, run_ids: dict[str, str], journal: Journal
) -> bool:
    """Log the new runs of a night to the experiment of the suite's name; return False on a failure."""
    try:
        logged = log_runs(uri, benchmark.name, read_tracked_runs(store, run_ids))
    # No error of a tracking server or its client may fail a night that is complete.
    except Exception as error:
        journal.say(f"warning: cannot log to MLflow at {uri}: {type(error).__name__}: {error}")
        return False
    journal.say(f"MLflow at {uri}: {logged} runs logged")
    return True


def log_runs(uri: str, experiment: str, runs: Sequence[TrackedRun]) -> int:
    """Write runs to a tracking server, or to a folder by a file: URI.

    Raises:
        ImportError: mlflow is not installed (mlflow-skinny suffices).
    """
    import mlflow  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  an extra

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment)
    for run in runs:
        with mlflow.start_run(run_name=run.name, tags=run.tags):
            mlflow.log_params(run.params)
            mlflow.log_metrics(run.metrics)
    return len(runs)


def read_tracked_runs(store: Store, run_ids: dict[str, str]) -> list[TrackedRun]:
    """Return all that is logged of these runs. The driver holds published numbers, no row for a user."""
    selected = F.col("run_id").isin(list(run_ids.values()))
    overall = selected & F.col("slice_key").isNull() & (F.col("estimator") == "holdout")
    rows = store.read(METRICS).where(overall & F.col("value").isNotNull()).collect()
    metrics: dict[str, dict[str, float]] = {}
    for row in rows:
        metrics.setdefault(row.run_id, {})[mlflow_metric_name(row.part, row.metric, row.k)] = row.value
    runs = store.read(RUNS).where(selected).collect()
    return [_make_tracked_run(row.asDict(), metrics.get(row.run_id, {})) for row in runs]


def _make_tracked_run(run: dict[str, Any], metrics: dict[str, float]) -> TrackedRun:
    params = ("suite", "model", "model_kind", "model_version", "dataset", "split", "config_hash")
    tags = ("run_id", "run_key", "split_id", "code_version", "logical_date", "attempt")
    return TrackedRun(
        f"{run['model']} {run['logical_date']}",
        {name: run[name] for name in params},
        {f"recbench.{name}": str(run[name]) for name in tags},
        metrics,
    )


def mlflow_metric_name(part: str, metric: str, k: int | None) -> str:
    """Return `test/ndcg_at_10` for ndcg@10 of test: MLflow does not allow `@` in names."""
    return f"{part}/{metric}" + (f"_at_{k}" if k else "")
