"""The whole story of a night in one function. Read this first.

    read a log -> split -> for each model: train or open -> rank -> measure -> publish -> report

Every step reads tables and writes tables; a model whose run key has succeeded on this night is not
run again; a run becomes visible with its row in `runs`, written last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from recbench_spark.config import Benchmark, ModelConfig, PublishedModel
from recbench_spark.errors import FAILED, OK, REGRESSION, Interrupted, RecbenchError, is_cancelled
from recbench_spark.journal import Journal
from recbench_spark.sharing import drop_scratch
from recbench_spark.steps.changes import explain_changes
from recbench_spark.steps.comparing import compare_night
from recbench_spark.steps.evaluating import evaluate_model, train
from recbench_spark.steps.gates import failure
from recbench_spark.steps.night import (
    Night,
    attempts_so_far,
    new_run_id,
    night_gates,
    open_night,
    require_split,
    require_truth,
    yesterday,
)
from recbench_spark.steps.paradoxes import find_paradoxes
from recbench_spark.steps.rating import predict_model
from recbench_spark.steps.reporting import report_night, sql_lines
from recbench_spark.steps.result_files import write_night, write_result
from recbench_spark.steps.results import publish, write_published
from recbench_spark.steps.splitting import prepare_split
from recbench_spark.store import Store, explain


@dataclass(frozen=True)
class Outcome:
    """What a night did: new runs, skipped and failed models, and where to look."""

    run_ids: dict[str, str]
    skipped: tuple[str, ...]
    failed: dict[str, str]
    report_path: str | None
    leaderboard: str
    sql_lines: tuple[str, ...]
    regressions: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """How the job ends."""
        if self.failed:
            return FAILED
        return REGRESSION if self.regressions else OK


def run_night(
    store: Store, benchmark: Benchmark, logical_date: date, journal: Journal, force: bool = False
) -> Outcome:
    """Evaluate all models of a benchmark file for one night; one that fails does not stop the others."""
    night = open_night(store, benchmark, logical_date)
    benchmark = night.benchmark
    attempts = attempts_so_far(night)
    todo = [model for model in benchmark.models if force or not attempts[model.name]]
    if todo:
        store.delete_orphans(yesterday())
        prepare_split(store, benchmark, night.split_id, journal)
        require_truth(night)
        stop_at_gates(night, todo, attempts, journal)
    run_ids, failed = run_models(night, todo, attempts, journal)
    regressed = compare_night(night, journal)
    find_paradoxes(night, journal)
    explain_changes(night, journal)
    skipped = tuple(model.name for model in benchmark.models if model not in todo)
    path, leaderboard = report_night(night, journal) if run_ids or skipped else (None, "")
    lines = tuple(sql_lines(store, benchmark))
    outcome = Outcome(run_ids, skipped, failed, path, leaderboard, lines, regressed)
    write_night(night, outcome.exit_code, regressed, failed)
    return outcome


class Run:
    """One attempt at one model; it starts when it is made."""

    def __init__(self, night: Night, model: ModelConfig, attempt: int, place: str) -> None:
        self.night, self.model, self.attempt, self.place = night, model, attempt, place
        self.run_id = new_run_id(night.logical_date, model.name)
        self.started = datetime.now(UTC)

    @property
    def facts(self) -> dict[str, str]:
        """What every log line and result of this run says."""
        return {
            "run_id": self.run_id,
            "suite": self.night.benchmark.name,
            "model": self.model.name,
            "logical_date": str(self.night.logical_date),
        }


def start_runs(night: Night, todo: Sequence[ModelConfig], attempts: Mapping[str, int]) -> Iterator[Run]:
    """The next attempt at each model, each made when it is asked for."""
    for n, model in enumerate(todo, start=1):
        yield Run(night, model, attempts[model.name] + 1, f"{n}/{len(todo)}")


def stop_at_gates(
    night: Night, todo: Sequence[ModelConfig], attempts: Mapping[str, int], journal: Journal
) -> None:
    """Where a gate fails the night, every run of it is recorded as failed, and the job ends."""
    error = failure(night_gates(night))
    if error is None:
        return
    for run in start_runs(night, todo, attempts):
        record_failure(run, error, journal)
    write_night(night, error.exit_code, (), {model.name: str(error) for model in todo})
    raise error


def run_models(
    night: Night, todo: Sequence[ModelConfig], attempts: Mapping[str, int], journal: Journal
) -> tuple[dict[str, str], dict[str, str]]:
    """By model: the ids of runs that succeeded, the messages of those that failed."""
    run_ids, failed = {}, {}
    try:
        for run in start_runs(night, todo, attempts):
            try:
                run_ids[run.model.name] = run_model(run, journal)
            except (RecbenchError, PySparkException, Py4JError) as error:
                if is_cancelled(error):
                    raise Interrupted from error
                failed[run.model.name] = record_failure(run, error, journal)
    finally:
        drop_scratch(night.spark, night.store.scratch)
    return run_ids, failed


def run_model(run: Run, journal: Journal) -> str:
    """Train or open one model, rank, measure, publish; returns the run's id."""
    night, model, found = run.night, run.model, []
    if isinstance(model, PublishedModel):
        write_published(night, model, run.run_id)
    else:
        with journal.stage("train", f"model {run.place} {model.name}: train", **run.facts) as counts:
            counts["trained"] = train(night, model)
        measure = predict_model if night.benchmark.evaluation.task == "rating" else evaluate_model
        found = measure(night, model, run.run_id, journal)
    require_split(night)
    publish(night, model, run.run_id, run.started, run.attempt, found=found)
    journal.record("publish", **run.facts)
    write_result(night.store, run.facts, "succeeded", OK)
    return run.run_id


def record_failure(run: Run, error: Exception, journal: Journal) -> str:
    """Tell why a model failed: to the watcher, in the log, in `runs`, in its result file."""
    message = str(error) if isinstance(error, RecbenchError) else explain(error)
    journal.say(f"model {run.place} {run.model.name}: FAILED: {message}")
    publish(run.night, run.model, run.run_id, run.started, run.attempt, error=message)
    journal.record("publish", **run.facts, error=message)
    write_result(run.night.store, run.facts, "failed", getattr(error, "exit_code", FAILED), message)
    return message
