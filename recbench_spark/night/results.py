"""Write a run's results, and make them visible.

Its row in `runs` does so and comes last. Files in `results/` repeat the outcomes, since some cluster
modes lose the job's exit code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from recbench_spark.config import Benchmark, ModelConfig, Provenance, PublishedModel
from recbench_spark.core.checks import Check
from recbench_spark.errors import OK
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.night import code_provenance
from recbench_spark.night.lost_rows import list_filled_tables
from recbench_spark.night.night import BenchmarkNight, find_newest_runs, identify_model_inputs, make_run_key
from recbench_spark.night.night_status import NightOutcome, hash_following, night_file
from recbench_spark.night.result_files import (
    MetricRecord,
    NightRecord,
    RunRecord,
    describe_code,
    read_differences,
    read_metrics,
    read_slice_falls,
)
from recbench_spark.night.standalone_runs import count_users, make_run_row, new_run_id, user_name
from recbench_spark.night.verdicts import (
    Judge,
    choose_doubt_code,
    describe_doubts,
    describe_restatements,
    select_headline,
)
from recbench_spark.query.answers import make_query_runner
from recbench_spark.runtime.journal import write_json
from recbench_spark.schemas import METRICS, RUNS
from recbench_spark.storage.commits import Addition
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.uris import join_uri


@dataclass
class Attempt:
    """One attempt to run a model, with its outcome.

    An attempt starts when it is made.

    Attributes:
        night, model: the model that runs, and its night.
        number: 1 for the first attempt with this key.
        place: its place among the night's attempts, in words.
        checks: checks of a run that succeeded.
        error, exit_code: the error, and the exit code of a job with this attempt alone; None: no error.
        seconds: seconds of training and evaluation; None: the time since the start.
        budget: how the settings were chosen, where the run itself chose them; None: as the file says.
    """

    night: BenchmarkNight
    model: ModelConfig
    number: int
    place: str
    checks: list[Check] = field(default_factory=list)
    error: str | None = None
    exit_code: int = OK
    seconds: float | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        """Name the run and note its start."""
        self.run_id = new_run_id(self.night.logical_date, self.model.name)
        self.night.store.note_run(self.run_id)
        self.started = datetime.now(UTC)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for every log line and result of this run."""
        return {
            "run_id": self.run_id,
            "suite": self.night.benchmark.name,
            "model": self.model.name,
            "logical_date": str(self.night.logical_date),
        }


def add_runs(attempts: Sequence[Attempt]) -> Addition:
    """Return rows of `runs`, to commit last.

    These rows make runs visible, except failed ones.
    """
    return Addition(RUNS, rows=[_attempt_row(attempt) for attempt in attempts])


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    night, model = attempt.night, attempt.model
    benchmark = night.benchmark
    settings = {
        "model": model.model_dump(),
        "split": benchmark.split.model_dump(),
        "evaluation": benchmark.evaluation.model_dump(),
        "dataset": _dataset_settings(night),
    }
    row = {
        "run_key": make_run_key(night, model),
        "attempt": attempt.number,
        "suite": benchmark.name,
        "logical_date": night.logical_date,
        "model": model.name,
        "model_kind": model.kind,
        "model_version": model.version,
        "dataset": benchmark.dataset.name,
        "split": benchmark.split.describe(),
        "split_id": night.split_id,
        "inputs": {**night.inputs, **identify_model_inputs(night.store, model)},
        "settings": settings,
        "status": "failed" if attempt.error else "succeeded",
        "error": attempt.error,
        "revisions": code_provenance.format_revisions(
            code_provenance.run_revisions(benchmark, night.definition, model)
        ),
        "n_users": count_users(attempt.checks),
        **_provenance_columns(model, model.provenance, benchmark.ran_by),
    }
    if attempt.budget is not None:
        row["budget"] = attempt.budget
    return make_run_row(row, attempt.run_id, attempt.started, attempt.seconds)


def _dataset_settings(night: BenchmarkNight) -> dict[str, Any]:
    """Return the dataset's settings.

    A log in the warehouse is named relative to it.
    """
    dataset = night.benchmark.dataset.model_dump()
    if dataset["path"]:
        dataset["path"] = night.store.shorten_path(dataset["path"], FIT_FILES)
    return dataset


def _provenance_columns(model: ModelConfig, provenance: Provenance, ran_by: str | None) -> dict[str, Any]:
    return {
        "source": provenance.source,
        "ran_by": provenance.ran_by or ran_by or user_name(),
        "source_year": provenance.year,
        "search_space": json.dumps(provenance.search_space) if provenance.search_space else None,
        "budget": provenance.budget,
        "at_grid_edge": find_grid_edges(model, provenance),
    }


def find_grid_edges(model: ModelConfig, provenance: Provenance) -> list[str]:
    """List the settings chosen at an end of their grid.

    The grid may be too small.
    """
    return [
        name
        for name, grid in provenance.search_space.items()
        if name in provenance.at_edge
        or (len(grid) > 1 and getattr(model, name, None) in (min(grid), max(grid)))
    ]


def add_published_figures(model: PublishedModel, run_id: str) -> Addition:
    """Turn published figures into rows of `metrics`.

    Figures look like `ndcg@10: 0.31`, `rmse: 0.77`.
    """
    facts = {"run_id": run_id, "part": "test", "definition": "as published", "estimator": "holdout", "n": 0}
    rows = []
    for name, value in model.figures.items():
        metric, _, k = name.partition("@")
        rows.append({**facts, "metric": metric, "k": int(k) if k else None, "value": float(value)})
    return Addition(METRICS, rows=rows)


def write_results(store: FileTables, benchmark: Benchmark, attempts: Sequence[Attempt]) -> None:
    """Write `results/<run_id>.json` for each run.

    A file holds the outcome and the numbers over all users.
    """
    if store.file_place() is None:
        return
    done = {one.run_id: one.model.name for one in attempts if not one.error}
    metrics = read_metrics(store, done, benchmark)
    store.run_together([partial(_write_result, store, attempt, metrics) for attempt in attempts])


def _write_result(store: FileTables, attempt: Attempt, metrics: Sequence[MetricRecord]) -> None:
    """Write one run's file; `metrics` may cover several runs."""
    own = [one for one in metrics if one.run_id == attempt.run_id]
    outcome = {
        "status": "failed" if attempt.error else "succeeded",
        "exit_code": attempt.exit_code,
        "error": attempt.error,
    }
    record = RunRecord.model_validate({**attempt.facts, **outcome, **describe_code(), "metrics": own})
    place = join_uri(store.root, "results", f"{attempt.run_id}.json")
    write_json(place, record.model_dump(mode="json"))


def write_night(
    night: BenchmarkNight, outcome: NightOutcome, judge: Judge, comparison_id: str | None = None
) -> NightOutcome:
    """Write `results/night-SUITE-DATE.json`; return outcome with doubts.

    The file holds the night's numbers and its comparison. The file of a run is written before the runs are
    compared, so it has no regressions. `night_status.find_finished_night` reads this file to see if the
    same night is complete.
    """
    suite, day = night.benchmark.name, night.logical_date
    newest = find_newest_runs(night, [("logical_date", "=", day)])
    run_ids = {model: row["run_id"] for model, row in sorted(newest.items())}
    ask, verdicts = make_query_runner(night.store), judge(run_ids.values())
    outcome = replace(
        outcome,
        doubts=describe_doubts(verdicts),
        restated=describe_restatements(ask, night.benchmark, outcome.run_ids.values()),
        doubt_code=choose_doubt_code(verdicts, night.benchmark),
    )
    if night.store.file_place() is None:
        return outcome
    differences = read_differences(night.store.rows, comparison_id) if comparison_id else []
    record = NightRecord(
        suite=suite,
        logical_date=day,
        exit_code=outcome.exit_code,
        run_ids=run_ids,
        failed=outcome.failed,
        regressions=list(outcome.regressions),
        regressed=[one for one in differences if one.regressed],
        fallen_slices=read_slice_falls(night.store.rows, night.benchmark, comparison_id),
        verdicts=select_headline(verdicts, night.benchmark),
        doubts=list(outcome.doubts),
        restated=list(outcome.restated),
        metrics=read_metrics(night.store, {run_ids[model]: model for model in run_ids}, night.benchmark),
        comparisons=differences,
        report=f"reports/{suite}-{day}.html" if outcome.report_path else None,
        leaderboard=outcome.leaderboard,
        sql_lines=list(outcome.sql_lines),
        tables=list_filled_tables(night.store, {*run_ids.values()}, night.split_id.partition(".")[0]),
        follows=hash_following(night.store, night.benchmark, day),
        **describe_code(),
    )
    write_json(night_file(night.store.root, suite, day), record.model_dump(mode="json"))
    return outcome
