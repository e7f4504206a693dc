"""Log a night's runs to MLflow, if wanted.

The driver logs each run with its settings and its numbers. The tables remain the only reference. A
tracking server that cannot be reached, or a missing mlflow, gives a warning and never fails a night.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from recbench_spark.config import Benchmark
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, RUNS
from recbench_spark.storage.file_tables import RowReader

Entry = TypeVar("Entry", str, float)


@dataclass(frozen=True)
class TrackedRun:
    """One run as MLflow stores it.

    Beside each metric stand its interval (`_ci_low`, `_ci_high`) and the number of averaged users (`_n`).
    The tag `recbench.definition.METRIC` says what the number means.
    """

    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)


def log_night(
    uri: str, read: RowReader, benchmark: Benchmark, run_ids: dict[str, str], journal: Journal
) -> bool:
    """Log a night's new runs to the suite's experiment.

    Returns False on a failure.
    """
    try:
        runs = read_tracked_runs(read, run_ids, benchmark.evaluation.k)
        logged = log_runs(uri, benchmark.name, runs)
    # No error of a tracking server or its client may fail a complete night.
    except Exception as error:
        journal.say(f"warning: cannot log to MLflow at {uri}: {type(error).__name__}: {error}")
        return False
    journal.say(f"MLflow at {uri}: {logged} runs logged")
    return True


def log_runs(uri: str, experiment: str, runs: Sequence[TrackedRun]) -> int:
    """Write runs to a tracking server or a folder.

    A folder is named by a file: URI.

    Raises:
        ImportError: mlflow is not installed (mlflow-skinny suffices).
    """
    import mlflow  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  an extra

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment)
    for run in runs:
        with mlflow.start_run(run_name=run.name):
            mlflow.log_params(run.params)
            for tags in _split(run.tags):
                mlflow.set_tags(tags)
            for metrics in _split(run.metrics):
                mlflow.log_metrics(metrics)
    return len(runs)


MOST_AT_ONCE = 100
"""Most entries in one request.

A server refuses more than 100 tags, and more than 1,000 metrics.
"""


def _split(entries: Mapping[str, Entry]) -> Iterator[dict[str, Entry]]:
    """Yield the entries in requests a server accepts."""
    listed = list(entries.items())
    for start in range(0, len(listed), MOST_AT_ONCE):
        yield dict(listed[start : start + MOST_AT_ONCE])


def read_tracked_runs(read: RowReader, run_ids: dict[str, str], k: Sequence[int]) -> list[TrackedRun]:
    """Read everything to log about these runs.

    The driver holds published numbers, no row for a user.

    Args:
        read: reads rows of the warehouse.
        run_ids: the runs by their models' names.
        k: the benchmark file's cut-offs; other points on a curve stay in the tables.
    """
    selected = ("run_id", "in", list(run_ids.values()))
    numbers: dict[str, list[dict[str, Any]]] = {}
    for row in read(METRICS, [selected, ("estimator", "=", "holdout")]):
        if row["slice_key"] is None and row["value"] is not None and row["k"] in (None, *k):
            numbers.setdefault(row["run_id"], []).append(row)
    return [make_tracked_run(row, numbers.get(row["run_id"], [])) for row in read(RUNS, [selected])]


def make_tracked_run(run: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> TrackedRun:
    """Turn a run into what is logged.

    Logged are the run's row in `runs`, and its rows in `metrics` without slices.
    """
    params = ("suite", "model", "model_kind", "model_version", "dataset", "split", "config_hash")
    tags = ("run_id", "run_key", "split_id", "code_version", "logical_date", "attempt")
    metrics: dict[str, float] = {}
    definitions = {}
    for row in numbers:
        name = mlflow_metric_name(row["part"], row["metric"], row["k"])
        beside = {name: row["value"], f"{name}_ci_low": row["ci_low"], f"{name}_ci_high": row["ci_high"]}
        beside[f"{name}_n"] = row["n"]
        metrics |= {key: float(value) for key, value in beside.items() if value is not None}
        definitions[f"recbench.definition.{name}"] = row["definition"]
    return TrackedRun(
        f"{run['model']} {run['logical_date']}",
        {name: run[name] for name in params},
        {f"recbench.{name}": str(run[name]) for name in tags} | definitions,
        metrics,
    )


def mlflow_metric_name(part: str, metric: str, k: int | None) -> str:
    """Name ndcg@10 on test `test/ndcg_at_10`.

    MLflow does not allow `@` in names.
    """
    return f"{part}/{metric}" + (f"_at_{k}" if k else "")
