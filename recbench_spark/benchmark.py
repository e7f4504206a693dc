"""The whole story of a night in one function. Read this first.

    read a log -> split -> for each model: train or open -> rank -> measure -> publish -> report

Every step reads tables and writes tables; a model whose run key has succeeded on this night is not
run again; a run becomes visible with its row in `runs`, written last.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from recbench_spark import reports
from recbench_spark.config import Benchmark, ModelConfig, PublishedModel
from recbench_spark.data.identity import identity
from recbench_spark.errors import (
    FAILED,
    OK,
    REGRESSION,
    DataError,
    Interrupted,
    RecbenchError,
    StoreError,
    is_cancelled,
)
from recbench_spark.journal import Journal
from recbench_spark.kernels.comparison.paradoxes import KINDS
from recbench_spark.placeholders import on_night
from recbench_spark.schemas import CHECKS, MANIFESTS, RUNS
from recbench_spark.sharing import drop_scratch
from recbench_spark.steps.changes import explain_changes
from recbench_spark.steps.comparing import compare_night, regression_in_words
from recbench_spark.steps.evaluating import evaluate_model, train
from recbench_spark.steps.gates import failure
from recbench_spark.steps.night import Night, check_benchmark, new_run_id, night_gates, run_key, yesterday
from recbench_spark.steps.paradoxes import find_paradoxes
from recbench_spark.steps.rating import predict_model
from recbench_spark.steps.results import publish, write_published
from recbench_spark.steps.splitting import current_name, prepare_split, split_identity
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
        stop_at_gates(night, [(model, attempts[model.name] + 1) for model in todo], journal)
    run_ids, failed = {}, {}
    try:
        for n, model in enumerate(todo, start=1):
            run = Run(night, model, attempts[model.name] + 1, f"{n}/{len(todo)}")
            try:
                run_ids[model.name] = run_model(run, journal)
            except (RecbenchError, PySparkException, Py4JError) as error:
                if is_cancelled(error):
                    raise Interrupted from error
                failed[model.name] = record_failure(run, error, journal)
    finally:
        drop_scratch(store.spark, store.scratch)
    regressed = compare_night(night, journal)
    find_paradoxes(night, journal)
    explain_changes(night, journal)
    skipped = tuple(model.name for model in benchmark.models if model not in todo)
    path, leaderboard = tell(night, journal) if run_ids or skipped else (None, "")
    lines = tuple(sql_lines(store, benchmark))
    outcome = Outcome(run_ids, skipped, failed, path, leaderboard, lines, regressed)
    write_night(night, outcome.exit_code, regressed, failed)
    return outcome


def open_night(store: Store, benchmark: Benchmark, logical_date: date) -> Night:
    """Check the settings, name the split and the inputs of a night."""
    benchmark = on_night(benchmark, logical_date)
    check_benchmark(benchmark)
    _ = store.scratch  # whether workers can read it is known before hours of work
    split_id, inputs = split_identity(store, benchmark)
    asked = benchmark.evaluation
    shown = asked.exposure
    paths = {"candidates": asked.candidates_path, "features": asked.features}
    if shown:
        chances = shown.propensities
        paths |= {"propensities": chances.path, "rewards": shown.rewards}
        paths |= {"item features": chances.item_features, "user features": chances.user_features}
    for name, path in paths.items():
        if path:
            inputs[name] = identity(store.spark, path)
    return Night(store, benchmark, asked.resolve(), split_id, inputs, logical_date)


def attempts_so_far(night: Night) -> dict[str, int]:
    """Succeeded runs of each model with its key on this night."""
    of_night = (
        (F.col("suite") == night.benchmark.name)
        & (F.col("logical_date") == F.lit(night.logical_date))
        & (F.col("status") == "succeeded")
    )
    rows = night.store.read(RUNS).where(of_night).select("model", "run_key").collect()
    done = Counter((row.model, row.run_key) for row in rows)
    return {model.name: done[model.name, run_key(night, model)] for model in night.benchmark.models}


def require_truth(night: Night) -> None:
    """Refuse a night whose parts hold no rows."""
    rows = night.table(MANIFESTS).where("fact = 'rows'").select("part", "value").collect()
    filled = {row.part for row in rows if row.value}
    for part in night.benchmark.evaluation.parts:
        if part not in filled:
            raise DataError(
                f"part '{part}' of dataset {night.benchmark.dataset.name} is empty",
                f"parts with rows: {', '.join(sorted(filled))}; see split and evaluation.parts",
            )


def require_split(night: Night) -> None:
    """Refuse to publish what was measured while retention removed the split under it."""
    if current_name(night.store, night.split_id) != night.split_id:
        raise StoreError(f"split {night.split_id} was removed by jobs/maintain.py meanwhile", "run again")


def stop_at_gates(night: Night, todo: Sequence[tuple[ModelConfig, int]], journal: Journal) -> None:
    """Where a gate fails the night, every run of it is recorded as failed, and the job ends."""
    error = failure(night_gates(night))
    if error is None:
        return
    for n, (model, attempt) in enumerate(todo, start=1):
        record_failure(Run(night, model, attempt, f"{n}/{len(todo)}"), error, journal)
    write_night(night, error.exit_code, (), {model.name: str(error) for model, _ in todo})
    raise error


class Run:
    """One attempt at one model."""

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
    write_result(run, "succeeded", OK)
    return run.run_id


def record_failure(run: Run, error: Exception, journal: Journal) -> str:
    """Tell why a model failed: to the watcher, in the log, in `runs`, in its result file."""
    message = str(error) if isinstance(error, RecbenchError) else explain(error)
    journal.say(f"model {run.place} {run.model.name}: FAILED: {message}")
    publish(run.night, run.model, run.run_id, run.started, run.attempt, error=message)
    journal.record("publish", **run.facts, error=message)
    write_result(run, "failed", getattr(error, "exit_code", FAILED), message)
    return message


def write_result(run: Run, status: str, exit_code: int, error: str | None = None) -> None:
    """`results/<run_id>.json` beside the tables: some cluster modes lose the exit code."""
    folder = run.night.store.folder
    if folder is not None:
        result = {**run.facts, "status": status, "exit_code": exit_code, "error": error}
        write_json(folder / "results" / f"{run.run_id}.json", result)


def write_night(
    night: Night, exit_code: int, regressions: Sequence[str], failed: Mapping[str, str]
) -> None:
    """`results/night-SUITE-DATE.json`: how the night ended, and the run that counts of each model.

    A run's own file is written before the runs are compared, and knows of no regression.
    """
    folder, suite, day = night.store.folder, night.benchmark.name, night.logical_date
    if folder is None:
        return
    of_night = (F.col("suite") == suite) & (F.col("logical_date") == F.lit(day))
    newest = F.max_by("run_id", F.struct("finished_at", "attempt", "run_id")).alias("run_id")
    runs = night.store.read(RUNS).where(of_night & (F.col("status") == "succeeded"))
    found = runs.groupBy("model").agg(newest).orderBy("model").collect()
    content = {
        "suite": suite,
        "logical_date": day,
        "exit_code": exit_code,
        "regressions": regressions,
        "failed": failed,
        "run_ids": {row.model: row.run_id for row in found},
    }
    write_json(folder / "results" / f"night-{suite}-{day}.json", content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file that is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    partial.replace(path)


def tell(night: Night, journal: Journal) -> tuple[str | None, str]:
    """The report as one HTML file (where the warehouse is a local folder) and the leaderboard."""
    with journal.stage("report", "report"):
        report = make_report(night.store, night.benchmark, night.logical_date, night.split_id)
        path = None
        if night.store.folder is not None:
            name = f"{night.benchmark.name}-{night.logical_date}.html"
            path = str(night.store.folder / "reports" / name)
            reports.write_report(report, path)
    return path, reports.leaderboard_text(report)


def make_report(store: Store, benchmark: Benchmark, logical_date: date, split_id: str) -> reports.Report:
    """The facts of one suite's night. The driver holds published numbers, none a user."""
    store.install_views()
    spark = store.spark
    of_suite = F.col("suite") == benchmark.name
    latest = spark.table("latest_metrics").where(of_suite).toPandas()
    of_runs = F.col("run_id").isin(latest.run_id.unique().tolist())
    failed = of_suite & (F.col("logical_date") == F.lit(logical_date)) & (F.col("status") == "failed")
    report = reports.make_report(
        latest,
        store.read(RUNS).where(of_runs | failed).toPandas(),
        store.read(CHECKS).where(of_runs).toPandas(),
        store.read(MANIFESTS).where(F.col("split_id") == split_id).toPandas(),
        benchmark.headline,
        sql_lines(store, benchmark),
        multiverse_pairs(store, [benchmark.name]) if benchmark.evaluation.multiverse else None,
        regressions_shown(store, of_runs, logical_date) if benchmark.regressions else (),
    )
    if benchmark.paradoxes:
        shown = reports.make_disagreements(*disagreements_shown(store, of_runs))
        report = replace(report, disagreements=shown)
    if benchmark.comparisons is None:
        return report
    return replace(report, changes=reports.make_changes(changes_shown(store, benchmark, of_runs)))


def disagreements_shown(store: Store, of_runs: Column) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The plainest rows of `current_paradoxes` of these runs, and how many there are of each kind."""
    found = store.spark.table("current_paradoxes").where(of_runs)
    disagree = found.where("kind <> 'none'")
    severity = F.array_position(F.array(*map(F.lit, KINDS)), F.col("kind"))
    order = (F.desc("certain"), severity.desc(), F.desc("opposed_share"), "part", "metric", "k", "model")
    plainest = disagree.orderBy(*order, "other").limit(reports.DISAGREEMENTS_SHOWN)
    return plainest.toPandas(), found.groupBy("kind", "certain").count().toPandas()


def regressions_shown(store: Store, of_runs: Column, logical_date: date) -> tuple[str, ...]:
    """The regressions of these runs on a night in words, those of models that could be shipped first."""
    kinds = store.read(RUNS).select("run_id", "model_kind")
    fallen = of_runs & F.col("regressed") & (F.col("logical_date") == F.lit(logical_date))
    rows = store.spark.table("current_comparisons").where(fallen).join(kinds, "run_id")
    order = (F.col("model_kind").isin(*reports.NOT_SHIPPED), "model", "part", "metric", "k", "kind")
    return tuple(regression_in_words(row) for row in rows.orderBy(*order).collect())


def changes_shown(store: Store, benchmark: Benchmark, of_runs: Column) -> pd.DataFrame:
    """Rows of `current_changes` of these runs at the headline: some groups a model and part."""
    metric, _, k = benchmark.headline.partition("@")
    at = (F.col("metric") == metric) & F.col("k").eqNullSafe(F.lit(int(k) if k.isdecimal() else None))
    return store.spark.table("current_changes").where(of_runs & at).toPandas()


def multiverse_pairs(store: Store, suites: Sequence[str]) -> pd.DataFrame:
    """The view `multiverse_pairs` of some suites: a row a pair of models, metric and protocol."""
    store.install_views()
    pairs = store.spark.table("multiverse_pairs").where(F.col("suite").isin(list(suites)))
    return pairs.toPandas()


def sql_lines(store: Store, benchmark: Benchmark) -> list[str]:
    """Lines to paste: with Spark, and without."""
    metric, _, k = benchmark.headline.partition("@")
    at = f"k = {k}" if k else "k IS NULL"
    chosen = f"suite = '{benchmark.name}' AND metric = '{metric}' AND {at} AND estimator = 'holdout'"
    sql = f"SELECT part, position, model, value FROM leaderboard WHERE {chosen}"
    mask = f"(t.metric == '{metric}') & {f'(t.k == {k})' if k else 't.k.isna()'} & t.slice_key.isna()"
    mask += " & (t.estimator == 'holdout')"
    return [
        f"make sql WAREHOUSE={store.root} Q=leaderboard",
        f'{sys.executable} jobs/query.py --warehouse {store.root} "{sql}"',
        f'{sys.executable} -c "from deltalake import DeltaTable as T; '
        f"r, m = (T('{store.root}/' + n).to_pandas() for n in ('runs', 'metrics')); "
        f"t = m.merge(r[r.status == 'succeeded'][['run_id', 'model']]); "
        f"print(t[{mask}][['part', 'model', 'value', 'ci_low', 'ci_high']].to_string(index=False))\"",
    ]


def dry_run(store_root: str, benchmark: Benchmark, logical_date: date) -> str:
    """What a night would do, in words, without Spark."""
    asked = benchmark.evaluation
    lines: Sequence[str] = [
        f"benchmark   {benchmark.name}: {benchmark.description}".rstrip(": "),
        f"night       {logical_date}",
        f"warehouse   {store_root}",
        f"dataset     {benchmark.dataset.name} ({benchmark.dataset.reader}) {benchmark.dataset.path or ''}",
        f"split       {benchmark.split.describe()}",
        f"models      {', '.join(f'{model.name} ({model.kind})' for model in benchmark.models)}",
        f"metrics     {', '.join(asked.metrics)} at {', '.join(map(str, asked.cutoffs))}",
        f"parts       {', '.join(asked.parts)}",
        f"definition  {asked.resolve().describe()}",
    ]
    return "\n".join(lines)
