"""Plan a benchmark's fits, and run the missing ones.

Their rows are appended to `fits`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from recbench_spark.boards.fold_statistics import FoldSummary, summarise_folds
from recbench_spark.config import Benchmark, MllibAlsModel, ModelConfig, digest
from recbench_spark.core import revisions
from recbench_spark.models.fits.logs import require_times
from recbench_spark.models.fits.running import TaskResult, count_slots, run_tasks
from recbench_spark.models.fits.table import BackgroundCommits, append_fits, store_place
from recbench_spark.models.fits.tasks import FIT_FILES, FitTask, Row, fit_one, read_earlier_row
from recbench_spark.models.rating.kinds import learner_settings, model_seed
from recbench_spark.models.rating.registry import learns_relevant
from recbench_spark.runtime.failures import describe_error
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import FITS
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.tuning.folds import FoldedLog

COMMIT_SECONDS = 20.0
"""Longest wait for a common commit.

Each commit takes the driver a second.
"""

FINAL_STATES = ("succeeded", "diverged")
"""States another attempt would only repeat."""


@dataclass(frozen=True)
class FitPlan:
    """Fits on one log, and their purpose.

    Attributes:
        log: the log.
        suite: the benchmark file's name.
        purpose: benchmark, search, or figure.
        tasks: the fits.
        threads: threads of each fit.
    """

    log: FoldedLog
    suite: str
    purpose: str
    tasks: tuple[FitTask, ...]
    threads: int = 1

    @property
    def facts(self) -> Row:
        """Values all rows of the plan share."""
        log = self.log
        facts = {"log_id": log.log_id, "dataset": log.dataset, "split": log.split}
        return {**facts, "suite": self.suite, "purpose": self.purpose}


@dataclass(frozen=True)
class ValidationDraw:
    """Validation rows, drawn by hash from the training rows.

    The fold's test rows stay unseen.
    """

    share: float
    seed: int


@dataclass(frozen=True)
class FitPlanner:
    """Plans fits with a benchmark's shared data and settings.

    Attributes:
        store: the warehouse.
        benchmark: its name and definition.
        log: the log to fit.
        threads: threads of each fit.
        purpose: purpose as in `fits`.
    """

    store: FileTables
    benchmark: Benchmark
    log: FoldedLog
    threads: int = 1
    purpose: str = "benchmark"

    def over_folds(
        self, models: Sequence[ModelConfig], seeds: Sequence[int] = (), folds: Sequence[int] = ()
    ) -> FitPlan:
        """Plan every model on every fold with every seed.

        Without `seeds` each model has its own seed; without `folds` all folds are taken.
        """
        places: Sequence[int | None] = folds or self.log.folds or (None,)
        return self.plan(
            self.task(model, seed, fold)
            for model in models
            for fold in places
            for seed in (seeds or (model_seed(model),))
        )

    def make_distributed_task(self, model: MllibAlsModel, seed: int, fold: int | None) -> FitTask:
        """Make a distributed fit; only its row is stored.

        Spark distributes it.
        """
        train, held_out = self.log.divide_parts(fold)
        document = model.model_dump(exclude={"name", "version", "provenance", "seed", "items"})
        revised = revisions.select_revisions(model.kind, *model.revised, "values")
        hashed = ("distributed", self.log.log_id, document, seed, train, held_out, revised)
        whole = model.counts_catalogue
        fit_id = digest(*hashed, *_name_whole(whole), length=20)
        return FitTask(fit_id, model.name, document, seed, fold, train, held_out, keep=False, whole=whole)

    def plan(self, tasks: Iterable[FitTask]) -> FitPlan:
        """Make a plan with the longest fits first.

        So nobody waits for one at the end.
        """
        longest_first = tuple(sorted(tasks, key=lambda task: -estimate_cost(task, self.log)))
        return FitPlan(self.log, self.benchmark.name, self.purpose, longest_first, self.threads)

    def task(
        self,
        model: ModelConfig,
        seed: int,
        fold: int | None,
        drawn: ValidationDraw | None = None,
        keep: bool = True,
    ) -> FitTask:
        """Make one fit, named by a hash.

        The hash covers everything its numbers depend on, so not its threads.

        Raises:
            ConfigError: no rating model, or its times are missing in the log.
        """
        settings, log = learner_settings(model), self.log
        require_times(log.files, model.name, settings)
        train, held_out = log.divide_parts(fold)
        evaluated: tuple[str, ...] = () if drawn else held_out
        share, share_seed = (drawn.share, drawn.seed) if drawn else (0.0, 0)
        document, evaluation = settings.model_dump(), self.benchmark.evaluation
        threshold = evaluation.resolve().threshold if learns_relevant(document) else None
        whole = model.counts_catalogue
        revised = revisions.select_revisions(settings.kind, "values", "trained_items")
        places = (train, evaluated, share, share_seed, threshold)
        hashed = (log.log_id, log.files.scale, document, seed, *places, revised)
        fit_id = digest(*hashed, *_name_whole(whole), length=20)
        folder, stored = f"{self.store.files_root}/{FIT_FILES}", self.store.format_path(FIT_FILES)
        return FitTask(
            fit_id, model.name, document, seed, fold, train, evaluated, share, share_seed, threshold,
            self.threads, folder, keep, stored, whole,
        )  # fmt: skip


def _name_whole(whole: bool) -> tuple[str, ...]:
    """Return what a fit's name says about its items."""
    return ("items of the log",) if whole else ()


def estimate_cost(task: FitTask, log: FoldedLog) -> float:
    """Estimate a fit's duration in any unit.

    The estimate is rows times steps times numbers in a row.
    """
    settings = task.settings
    steps = (
        sum(settings.get(name) or 0 for name in ("epochs", "sweeps", "iterations", "samples", "burn_in"))
        or 1
    )
    dims = task.dims or 8
    solves = task.kind in ("als", "bayesian_mf", "als_wr", "implicit_als")
    return float(log.files.rows * steps * dims * (dims if solves else 1))


def run_plan(store: FileTables, plan: FitPlan, journal: Journal) -> list[Row]:
    """Return a row for every planned task, in order.

    Fits from earlier attempts are not repeated.
    """
    done = read_done_rows(store, plan)
    _append_under_plan(store, plan, done)
    todo = [task for task in plan.tasks if task.fit_id not in done]
    todo = list({task.fit_id: task for task in todo}.values())
    journal.say(_describe_done(plan, todo))
    rows = dict(done)
    for row in _run_fits(store, plan, todo, journal):
        rows[row["fit_id"]] = row
    return [{**rows[task.fit_id], "model": task.model} for task in plan.tasks]


def _describe_done(plan: FitPlan, todo: Sequence[FitTask]) -> str:
    """Describe how many fits are done.

    Counted are rows in the table, and files from a killed start.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        uncommitted = sum(row is not None for row in pool.map(read_earlier_row, todo))
    done = len(plan.tasks) - len(todo) + uncommitted
    note = f" ({uncommitted} of these by a run that did not end)" if uncommitted else ""
    return f"{len(plan.tasks)} fits, {done} of them already done{note}"


def read_done_rows(store: FileTables, plan: FitPlan) -> dict[str, Row]:
    """Return earlier attempts' rows in a final state, by fit."""
    keep = {task.fit_id: task.keep for task in plan.tasks}
    rows_by_fit: dict[str, Row] = {}
    for row in store.rows(FITS, [("log_id", "=", plan.log.log_id), ("status", "in", list(FINAL_STATES))]):
        name, files = row["fit_id"], row["files"]
        if name in keep and (files is not None or row["status"] != "succeeded" or not keep[name]):
            entered = rows_by_fit.get(name, {}).get(ENTERED, set())
            place = None if files is None else store_place(store, files)
            extra = {"files": place, ENTERED: entered | {(row["suite"], row["model"], row["purpose"])}}
            rows_by_fit[name] = row | extra
    return rows_by_fit


ENTERED = "entered"
"""Key of a known row: its places in the table.

Each place is a (suite, model, purpose).
"""


def _append_under_plan(store: FileTables, plan: FitPlan, done: Mapping[str, Row]) -> None:
    """Append rows for fits made under another name or purpose.

    The new rows have the plan's.
    """
    missing = {}
    for task in plan.tasks:
        row = done.get(task.fit_id)
        if row is not None and (plan.suite, task.model, plan.purpose) not in row[ENTERED]:
            missing[task.fit_id] = {**row, **plan.facts, "model": task.model}
    append_fits(store, list(missing.values()), {})


def run_distributed(
    fits: FitPlanner,
    models: Sequence[MllibAlsModel],
    seeds: Sequence[int],
    folds: Sequence[int],
    journal: Journal,
) -> list[Row]:
    """Fit models that use Spark themselves, one after the other.

    Each fit uses all executors. A row is committed when its fit ends; fits from earlier starts are not
    repeated.

    Raises:
        FallbackToSpark: the warehouse has no Spark.
    """
    if not models:
        return []
    store = require_session(fits.store, f"model {models[0].name} (kind {models[0].kind})")
    from recbench_spark.models.adapters.mllib_als import fit_als  # noqa: PLC0415

    log, places = fits.log, folds or fits.log.folds or (None,)
    rows = []
    for model in models:
        for fold in places:
            for seed in seeds or (model.seed,):
                task = fits.make_distributed_task(model, seed, fold)
                plan = fits.plan([task])
                done = read_done_rows(fits.store, plan)
                if task.fit_id not in done:
                    done[task.fit_id] = fit_als(store, model, task, log.files)
                    append_fits(fits.store, [done[task.fit_id]], plan.facts)
                    journal.say(f"fit {_describe_fit(done[task.fit_id])}")
                rows.append(done[task.fit_id])
    return rows


def _run_fits(store: FileTables, plan: FitPlan, todo: Sequence[FitTask], journal: Journal) -> Iterator[Row]:
    """Yield rows as fits end, and commit them in groups.

    After an interruption the next start goes on.
    """
    if not todo:
        return
    at_once = count_slots(store.engine, plan.threads)
    work = partial(fit_one, files=plan.log.files)
    progress, write = _Progress(plan, todo, journal), partial(append_fits, store, facts=plan.facts)
    outcomes = run_tasks(store.engine, todo, work, at_once)
    with (
        BackgroundCommits(write, COMMIT_SECONDS) as commits,
        closing(outcomes),
    ):  # so no fit starts after an error
        for outcome in outcomes:
            row = _outcome_row(todo[outcome.place], outcome)
            progress.report(row)
            commits.add(row)
            yield row


def _outcome_row(task: FitTask, outcome: TaskResult) -> Row:
    """Return a task's row, also if its process died."""
    if outcome.row is not None:
        return outcome.row
    message = describe_error(outcome.error or OSError("no outcome"))
    return {
        "fit_id": task.fit_id, "model": task.model, "kind": task.kind, "settings_json": None,
        "seed": task.seed, "fold": task.fold, "dims": task.dims, "threads": task.threads,
        "status": "failed", "error": f"its process ended: {message}",
    }  # fmt: skip


class _Progress:
    """Reports a line for each fit.

    The line has the fit's name, error and seconds, and the time left.
    """

    def __init__(self, plan: FitPlan, todo: Sequence[FitTask], journal: Journal) -> None:
        self.left = {task.fit_id: estimate_cost(task, plan.log) for task in todo}
        self.journal, self.started = journal, time.monotonic()
        self.all, self.spent, self.since = len(todo), 0.0, datetime.now(UTC).isoformat()

    def report(self, row: Row) -> None:
        """Report a finished fit.

        A fit from an earlier start does not count for the time left.
        """
        cost = self.left.pop(row["fit_id"])
        self.spent += cost if (row.get("started_at") or self.since) >= self.since else 0.0
        self.journal.say(
            f"fit {self.all - len(self.left)}/{self.all} {_describe_fit(row)}{self._describe_rest()}"
        )
        facts = {key: row.get(key) for key in ("fit_id", "model", "seed", "fold", "status", "rmse")}
        self.journal.record("fit", **facts, seconds=row.get("seconds"), error=row.get("error"))

    def _describe_rest(self) -> str:
        if not self.spent:
            return ""
        pace = (time.monotonic() - self.started) / self.spent
        return f"; about {pace * sum(self.left.values()):.0f} s left"


def _describe_fit(row: Row) -> str:
    fold = "" if row["fold"] is None else f" fold {row['fold']}"
    dims = "" if row.get("dims") is None else f" dims {row['dims']}"
    title = f"{row['model']}{dims}{fold} seed {row['seed']}"
    if row["status"] != "succeeded":
        return f"{title}: {row['status'].upper()}: {str(row['error']).partition(chr(10))[0]}"
    peak = (row.get("peak_bytes") or 0) / 2**20
    return f"{title}: RMSE {row['rmse']:.4f} in {row['seconds']:.1f} s, {peak:.0f} MB"


def select_complete_seeds(rows: Sequence[Row], folds: Sequence[int]) -> list[Row]:
    """Return the rows of seeds that have every fold.

    So no fold counts twice in a mean.
    """
    required: set[int | None] = set(folds) or {None}
    folds_by_seed: dict[int, set[int | None]] = {}
    for row in rows:
        folds_by_seed.setdefault(row["seed"], set()).add(row["fold"])
    return [row for row in rows if folds_by_seed[row["seed"]] >= required]


def list_named_parts(rows: Sequence[Row]) -> list[str]:
    """List the parts with errors of their own in `fits`.

    Fold numbers are left out.
    """
    parts = {part for row in rows for part in row.get("rmse_by_part") or {}}
    return sorted(part for part in parts if not part[:1].isdecimal())


def summarise_models(rows: Sequence[Row], part: str | None = None) -> dict[str, FoldSummary]:
    """Summarise each model's succeeded fits by mean and spreads.

    The summary is over all rows or over one part.
    """
    values_by_model: dict[str, dict[tuple[int | None, int], float]] = {}
    for row in rows:
        value = row.get("rmse") if part is None else (row.get("rmse_by_part") or {}).get(part)
        if row["status"] == "succeeded" and value is not None:
            values_by_model.setdefault(row["model"], {})[row["fold"], row["seed"]] = value
    return {model: summarise_folds(values) for model, values in values_by_model.items()}
