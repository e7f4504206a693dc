"""Write the results of a run; its row of `runs` comes last and makes the results visible.

Files in `results/` repeat the outcomes, since some cluster modes lose the exit code of a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import __version__, revisions
from recbench_spark.checks import Check
from recbench_spark.config import Benchmark, Evaluation, ModelConfig, Provenance, PublishedModel, digest
from recbench_spark.errors import OK
from recbench_spark.evaluation.estimators import sampled
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.multiverse import measure_multiverse
from recbench_spark.evaluation.metrics.top_lists import SplitCatalogue
from recbench_spark.evaluation.result import Result, to_arrow
from recbench_spark.inputs import require_unchanged
from recbench_spark.nightly import code_provenance
from recbench_spark.nightly.night import (
    BenchmarkNight,
    find_newest_runs,
    identify_model_inputs,
    make_run_key,
    new_run_id,
)
from recbench_spark.nightly.night_status import NightOutcome, hash_following, night_file
from recbench_spark.nightly.result_files import (
    NightRecord,
    RunRecord,
    describe_code,
    read_differences,
    read_metrics,
)
from recbench_spark.runtime.journal import write_json
from recbench_spark.schemas import (
    CHECKS,
    METRICS,
    MULTIVERSE,
    RANKINGS,
    REJECTS,
    REPLAYS,
    RUNS,
    USER_METRICS,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.paths import shorten_path
from recbench_spark.storage.store import Store
from recbench_spark.storage.uris import join_uri
from recbench_spark.training.fits.tasks import FIT_FILES


def write_metrics(
    store: Store,
    rankings: DataFrame,
    plan: MetricPlan,
    run_id: str,
    catalogue: SplitCatalogue,
    *,
    evaluation: Evaluation,
    extra: Sequence[DataFrame] = (),
) -> None:
    """Append to `metrics`, and to `user_metrics` if the evaluation says so.

    Args:
        store: the warehouse.
        rankings: rows of the table `rankings` of one run.
        plan: the plan of the metrics.
        run_id: id of the run.
        catalogue: data that metrics of lists need.
        evaluation: the section `evaluation` of the benchmark file.
        extra: further rows of `metrics`.
    """
    frames = [
        (rows, METRICS) for rows in (measuring.compute_all_metrics(rankings, plan, catalogue), *extra)
    ]
    draw = evaluation.draw
    if plan.definition.candidates == "uniform" and draw.estimators and sampled.correctable_metrics(plan):
        corrected = sampled.compute_corrected_metrics(rankings, plan, draw.estimators, draw.n)
        frames.append((corrected, METRICS))
    if evaluation.multiverse:
        frames.append((measure_multiverse(rankings, plan), MULTIVERSE))
    if evaluation.user_metrics and (plan.rank_metrics or plan.list_metrics):
        frames.append((measuring.compute_all_user_metrics(rankings, plan, catalogue), USER_METRICS))
    store.append_all([(frame.withColumn("run_id", F.lit(run_id)), table) for frame, table in frames])


def write_checks(store: Store, run_id: str, checks: Sequence[Check]) -> None:
    """Append to `checks`."""
    store.append_rows(check_rows(run_id, checks), CHECKS)


def check_rows(run_id: str, checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return rows of `checks`; a check that has passed gets the severity `info`."""
    return [
        {
            "run_id": run_id,
            "check": c.check,
            "severity": c.severity if not c.passed else "info",
            "observed": float(c.observed),
            "threshold": c.threshold,
            "passed": c.passed,
            "detail": c.detail,
        }
        for c in checks
    ]


@dataclass
class Attempt:
    """One attempt at one model. It starts when it is made, and holds the outcome in the end.

    Attributes:
        night, model: the model that runs, and its night.
        number: 1 for the first attempt of this key.
        place: its place among the attempts of the night, in words.
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
        """Facts in every log line and result of this run."""
        return {
            "run_id": self.run_id,
            "suite": self.night.benchmark.name,
            "model": self.model.name,
            "logical_date": str(self.night.logical_date),
        }


def publish_runs(store: Store, attempts: Sequence[Attempt]) -> None:
    """Append the rows of `runs` in one commit: from then on runs are visible, except failed ones."""
    store.append_rows([_attempt_row(attempt) for attempt in attempts], RUNS)


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
        "inputs": {**night.inputs, **identify_model_inputs(night.spark, model)},
        "settings": settings,
        "status": "failed" if attempt.error else "succeeded",
        "error": attempt.error,
        "revisions": code_provenance.format_revisions(
            code_provenance.run_revisions(benchmark, night.definition, model)
        ),
        "n_users": _count_users(attempt.checks),
        **_provenance_columns(model, model.provenance, benchmark.ran_by),
    }
    if attempt.budget is not None:
        row["budget"] = attempt.budget
    return make_run_row(row, attempt.run_id, attempt.started, attempt.seconds)


def _dataset_settings(night: BenchmarkNight) -> dict[str, Any]:
    """Return the settings of the dataset; a log that the warehouse holds is named relative to it."""
    dataset = night.benchmark.dataset.model_dump()
    if dataset["path"]:
        root = None if night.store.in_catalog else night.store.root
        dataset["path"] = shorten_path(dataset["path"], root, FIT_FILES)
    return dataset


def publish_standalone(store: Store | ArrowStore, result: Result, run: dict[str, Any]) -> str:
    """Write the result of `adhoc.evaluate.evaluate`, with the row of `runs` last; return the run's id.

    Store and result are of one engine.
    """
    run_id = new_run_id(run["logical_date"], run["model"])
    store.note_run(run_id)
    checks = [*result.checks, *check_base_rates(store, run["suite"], result)]
    frames = [(result.user_metrics, USER_METRICS), (result.metrics, METRICS)]
    if result.rankings is not None:
        frames.append((result.rankings, RANKINGS))
    store.append_all([(_add_run_id(rows, run_id), table) for rows, table in frames])
    store.append_rows(check_rows(run_id, checks), CHECKS)
    row = _standalone_row(run, result.truth, result.checks)
    require_unchanged()  # inputs may be read during the writes; the row of `runs` makes them visible
    store.append_rows([make_run_row(row, run_id, run["started_at"])], RUNS)
    store.end_runs()
    return run_id


def publish_replays(
    store: ArrowStore,
    rows: Sequence[dict[str, Any]],
    checks: Sequence[Check],
    rejects: Sequence[tuple[str, str]],
    run: dict[str, Any],
) -> list[str]:
    """Write a replay: a run for each model, whose rows of `runs` come last in one commit.

    Args:
        store: the warehouse.
        rows: rows of `replays` without run ids.
        checks: checks of the log; they are written for each run.
        rejects: rows of the log that were left out, and the reason of each.
        run: columns of `runs` that the models share; `models`: identity of the input of each model.
    """
    run_ids = {model: new_run_id(run["logical_date"], model) for model in run["models"]}
    for run_id in run_ids.values():
        store.note_run(run_id)
    truth = digest(run["inputs"]["truth"])
    store.append_rows([{**row, "run_id": run_ids[row["model"]]} for row in rows], REPLAYS)
    store.append_rows([row for run_id in run_ids.values() for row in check_rows(run_id, checks)], CHECKS)
    rejected = [
        {"split_id": truth, "file": run["dataset"], "line": line, "reason": why} for line, why in rejects
    ]
    store.append_rows(rejected, REJECTS)
    published = [
        make_run_row(_replay_row(run, model, checks), run_ids[model], run["started_at"])
        for model in run["models"]
    ]
    store.append_rows(published, RUNS)
    store.end_runs()
    return list(run_ids.values())


def find_finished_replay(store: ArrowStore, run: dict[str, Any]) -> list[str]:
    """Return the runs of a replay that has succeeded on its day; empty if a model lacks one.

    Args:
        store: the warehouse.
        run: as in `publish_replays`.
    """
    wanted = {_replay_row(run, model, ())["run_key"] for model in run["models"]}
    day = ("logical_date", "=", run["logical_date"])
    filters = [("suite", "=", run["suite"]), ("status", "=", "succeeded"), day]
    rows = store.rows(RUNS, filters, ["run_id", "run_key"])
    newest = {row["run_key"]: row["run_id"] for row in sorted(rows, key=lambda row: row["run_id"])}
    return [newest[key] for key in sorted(wanted)] if wanted <= newest.keys() else []


def _replay_row(run: dict[str, Any], model: str, checks: Sequence[Check]) -> dict[str, Any]:
    own = {**run, "model": model, "model_kind": "replay"}
    own["inputs"] = {**run["inputs"], "model": run["models"][model]}
    return _standalone_row(own, digest(run["inputs"]["truth"]), checks, ("replays",))


def _add_run_id(rows: Any, run_id: str) -> Any:
    if isinstance(rows, DataFrame):
        return rows.withColumn("run_id", F.lit(run_id))
    return rows.append_column("run_id", pa.repeat(run_id, len(rows)))


def _standalone_row(
    run: dict[str, Any], truth: str | None, checks: Sequence[Check], parts: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the row of an evaluation without a night; `truth`: a hash of the truth.

    `parts` are parts of the code that it uses beside those of all such evaluations.
    """
    used_revisions = revisions.select_revisions(*code_provenance.STANDALONE, *parts)
    identity = digest(run["inputs"], run["settings"], run["model"], __version__, used_revisions)
    facts = {name: run[name] for name in ("suite", "logical_date", "model", "model_kind", "dataset")}
    split = truth or digest({"truth": run["inputs"]["truth"]})
    row = {**facts, "run_key": identity, "attempt": 1, "split": "given", "split_id": split}
    row |= {"inputs": run["inputs"], "settings": run["settings"], "source": "own", "ran_by": _user_name()}
    return row | {
        "revisions": code_provenance.format_revisions(used_revisions),
        "n_users": _count_users(checks),
    }


def check_base_rates(store: Store | ArrowStore, suite: str, result: Result) -> list[Check]:
    """Warn if the suite has value metrics over another mean outcome, since RIG depends on it."""
    if result.truth is None:
        return []
    (base_rate,) = _base_rates(to_arrow(result.metrics).to_pylist())
    filters = [("suite", "=", suite), ("status", "=", "succeeded")]
    runs = {row["run_id"] for row in store.rows(RUNS, filters, ["run_id"])}
    columns = ["run_id", "metric", "slice_key", "value"]
    known = store.rows(METRICS, [("metric", "=", "mean_outcome")], columns)
    values = _base_rates([row for row in known if row["run_id"] in runs])
    return [_base_rate_check(sum(value not in (None, base_rate) for value in values), base_rate)]


def _base_rates(metrics: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [row["value"] for row in metrics if row["metric"] == "mean_outcome" and row["slice_key"] is None]


def _base_rate_check(others: int, base_rate: float) -> Check:
    detail = f"base rate here {base_rate:g}: do not compare RIG, log-loss, NMSE or PE with theirs"
    return Check("runs of another base rate", others, 0.0, "warning", detail)


def make_run_row(
    row: dict[str, Any], run_id: str, started: datetime, seconds: float | None = None
) -> dict[str, Any]:
    """Return a row of `runs` with the values that every run has."""
    now, settings = datetime.now(UTC), json.dumps(row["settings"], default=str)
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
        "seconds": (now - started).total_seconds() if seconds is None else seconds,
    }
    return {name: full.get(name) for name in RUNS.names}


def _count_users(checks: Sequence[Check]) -> int:
    """Return the number of users of the largest held-out part."""
    return int(max((check.observed for check in checks if check.check.endswith(": users")), default=0))


def _user_name() -> str:
    return os.environ.get("USER", "unknown")


def _provenance_columns(model: ModelConfig, provenance: Provenance, ran_by: str | None) -> dict[str, Any]:
    return {
        "source": provenance.source,
        "ran_by": provenance.ran_by or ran_by or _user_name(),
        "source_year": provenance.year,
        "search_space": json.dumps(provenance.search_space) if provenance.search_space else None,
        "budget": provenance.budget,
        "at_grid_edge": find_grid_edges(model, provenance),
    }


def find_grid_edges(model: ModelConfig, provenance: Provenance) -> list[str]:
    """Return the settings with the smallest or largest value searched: the grid may be too small."""
    return [
        name
        for name, grid in provenance.search_space.items()
        if name in provenance.at_edge
        or (len(grid) > 1 and getattr(model, name, None) in (min(grid), max(grid)))
    ]


def write_published_figures(night: BenchmarkNight, model: PublishedModel, run_id: str) -> None:
    """Write figures of a publication as rows of `metrics`: `ndcg@10: 0.31`, `rmse: 0.77`."""
    facts = {"run_id": run_id, "part": "test", "definition": "as published", "estimator": "holdout", "n": 0}
    rows = []
    for name, value in model.figures.items():
        metric, _, k = name.partition("@")
        rows.append({**facts, "metric": metric, "k": int(k) if k else None, "value": float(value)})
    night.store.append_rows(rows, METRICS)


def write_results(store: Store, benchmark: Benchmark, attempts: Sequence[Attempt]) -> None:
    """Write `results/<run_id>.json` for each run: its outcome and its numbers over all users."""
    if not store.is_file_storage:
        return
    done = {one.run_id: one.model.name for one in attempts if not one.error}
    metrics = read_metrics(store, done, benchmark)
    for attempt in attempts:
        own = [one for one in metrics if one.run_id == attempt.run_id]
        outcome = {
            "status": "failed" if attempt.error else "succeeded",
            "exit_code": attempt.exit_code,
            "error": attempt.error,
        }
        record = RunRecord.model_validate({**attempt.facts, **outcome, **describe_code(), "metrics": own})
        place = join_uri(store.root, "results", f"{attempt.run_id}.json")
        write_json(place, record.model_dump(mode="json"))


def write_night(night: BenchmarkNight, outcome: NightOutcome) -> None:
    """Write `results/night-SUITE-DATE.json`: the outcome of the night, its numbers and comparisons.

    The file of a run is written before the runs are compared, so it has no regressions.
    `night_status.find_finished_night` reads this file to see if the same night is complete.
    """
    if not night.store.is_file_storage:
        return
    suite, day = night.benchmark.name, night.logical_date
    newest = find_newest_runs(night, [("logical_date", "=", day)])
    run_ids = {model: row["run_id"] for model, row in sorted(newest.items())}
    compared = night.benchmark.comparisons is not None or night.benchmark.regressions
    differences = read_differences(night.store, suite, day) if compared else []
    record = NightRecord(
        suite=suite,
        logical_date=day,
        exit_code=outcome.exit_code,
        run_ids=run_ids,
        failed=outcome.failed,
        regressions=list(outcome.regressions),
        regressed=[one for one in differences if one.regressed],
        metrics=read_metrics(night.store, {run_ids[model]: model for model in run_ids}, night.benchmark),
        comparisons=differences,
        report=f"reports/{suite}-{day}.html" if outcome.report_path else None,
        leaderboard=outcome.leaderboard,
        sql_lines=list(outcome.sql_lines),
        follows=hash_following(night.store, night.benchmark, day),
        **describe_code(),
    )
    write_json(night_file(night.store.root, suite, day), record.model_dump(mode="json"))
