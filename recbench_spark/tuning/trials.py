"""Try a search's settings, by fits or by nights.

A rating model is fitted as Spark tasks on rows drawn from the training part. For models that rank, the
training rows of the benchmark's split become a log. A share of each user's rows is held out, and every
setting is a model of a night on this log. So a trial is ranked, measured and stored like any run, and a
finished one is not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Benchmark, Dataset, Evaluation, ModelConfig, SearchSettings, Split, digest
from recbench_spark.engine.local import ROWS_PER_TASK
from recbench_spark.errors import ConfigError
from recbench_spark.models.fits.tasks import FitTask, name_settings
from recbench_spark.models.rating.kinds import learner_settings, model_seed
from recbench_spark.night import run_night as nights
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.night.night import (
    BenchmarkNight,
    count_attempts,
    find_newest_runs,
    hold_night,
    list_missing_models,
    open_night,
    require_truth,
)
from recbench_spark.night.split import prepare_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, SPLITS
from recbench_spark.sources.columnar import deal_owners
from recbench_spark.splits.labelled_rows import open_labelled
from recbench_spark.storage.blocks import ChangedRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import write_folder, write_once
from recbench_spark.storage.packed_blocks import decode_dictionaries
from recbench_spark.tuning.credit import compute_credited_log_id, model_settings
from recbench_spark.tuning.fold_fits import FitPlanner, ValidationDraw, run_plan
from recbench_spark.tuning.search import PlannedTrial, Row, TrialOutcome

DAY = date(1970, 1, 1)
"""Night date for all trials.

The log names a search's data, not the day.
"""

COLUMNS = ("user_id", "item_id", "rating")
"""Columns in the training log.

Times are added where the split or a model uses them.
"""


class RankingTrials:
    """Tries settings by the benchmark file's headline (see `search.Trials`).

    Each setting has one run for each seed.
    """

    def __init__(
        self,
        store: FileTables,
        benchmark: Benchmark,
        search: SearchSettings,
        day: date | None,
        journal: Journal,
    ) -> None:
        self.store, self.search, self.metric = store, search, benchmark.headline
        self.suite, self.dataset = benchmark.name, benchmark.dataset.name
        self.credited_log_id = compute_credited_log_id(store, benchmark)
        place = write_training_log(open_night(store, benchmark, day or DAY), journal)
        self.inner = validation_benchmark(benchmark, search, place)
        self.log_id = digest("trials", open_night(store, self.inner, DAY).split_id)

    def settings(self, model: ModelConfig) -> Row:
        """Return all settings but the name and the provenance."""
        return model_settings(model, "ranking")

    def run_trials(self, planned: Sequence[PlannedTrial], journal: Journal) -> list[TrialOutcome]:
        """Run one night with all settings not run yet."""
        models = [self._models(trial.model) for trial in planned]
        unique = {model.name: model.hide_validation() for seeds in models for model in seeds}
        night = open_night(
            self.store, self.inner.model_copy(update={"models": tuple(unique.values())}), DAY
        )
        failed = run_missing(night, journal)
        rows = read_values(night)
        return [_make_outcome(self.settings(seeds[0]), seeds, rows, failed) for seeds in models]

    def _models(self, model: ModelConfig) -> list[ModelConfig]:
        """Return a model for each seed, named by settings.

        The name is their hash. There is one model if it has no seed.
        """
        first = getattr(model, "seed", None)
        seeds = [None] if first is None else [first + n for n in range(self.search.seeds)]
        models = [model if seed is None else model.model_copy(update={"seed": seed}) for seed in seeds]
        names = [f"{one.name}-{digest(self.settings(one), length=12)}" for one in models]
        return [one.model_copy(update={"name": n}) for one, n in zip(models, names, strict=True)]


def check_trials(benchmark: Benchmark) -> None:
    """Check all that can be checked before Spark starts.

    Raises:
        ConfigError: candidates are listed for held-out rows, and validation rows are not among these.
    """
    check_benchmark(benchmark)
    if benchmark.evaluation.resolve().candidates == "given":
        raise ConfigError(
            "search: candidates are given for the held-out rows, and none for validation rows",
            "--set evaluation.definition.candidates=all for the search",
        )


def validation_benchmark(benchmark: Benchmark, search: SearchSettings, place: str) -> Benchmark:
    """Return the benchmark over its own training rows.

    A share of each user's rows is held out, and the headline measured. Rows are held out in the order of
    the benchmark's split: the last ones where it uses times. There is no part valid, so none is shown to
    models.
    """
    metric, k = parse_headline(benchmark)
    settings = benchmark.evaluation
    evaluation = Evaluation(
        metrics=(metric,), k=(k,) if k else settings.k, preset=settings.preset,
        definition=settings.definition, features=settings.features, draw=settings.draw, slices=(),
        user_metrics=False, uncut=settings.uncut,
    )  # fmt: skip
    return Benchmark(
        name=f"{benchmark.name}-search",
        dataset=Dataset(name=benchmark.dataset.name, reader="parquet", path=place, time_unit="us"),
        split=Split(
            order=benchmark.split.order, ratio=(1 - search.share, 0.0, search.share), seed=search.seed
        ),
        models=tuple(model.hide_validation() for model in benchmark.models),
        evaluation=evaluation,
        headline=benchmark.headline,
    )


def write_training_log(night: BenchmarkNight, journal: Journal) -> str:
    """Write the split's training rows once, as Parquet for workers.

    Returns the folder. The files have the same bytes on any runner: users are dealt to tasks whose number
    depends on the rows alone, and a task sorts its rows. Their content names the searches.
    """
    store, split_id, by_time = night.store, night.split_id, night.benchmark.split.temporal
    has_times = by_time or any(model.needs_times for model in night.benchmark.models)

    def write(folder: str) -> None:
        prepare_split(store, night.benchmark, split_id, journal)
        names = (*COLUMNS, "event_time") if has_times else COLUMNS
        tasks = -(-store.count_rows(SPLITS, "split_id", split_id) // ROWS_PER_TASK)
        train = ChangedRows(open_labelled(store, split_id), (*names, "part"), _keep_training, names)
        dealt = train.deal(names, partial(deal_owners, owner="user_id", tasks=tasks), tasks)
        write_folder(dealt.then(_sort_rows, names), folder)

    name = "train-times" if has_times and not by_time else "train"
    return write_once(f"{store.files_root}/fit_files/logs/{split_id}-{name}", write)


def _keep_training(rows: pa.Table) -> pa.Table:
    """Keep training rows, with texts in place of dictionaries."""
    return decode_dictionaries(rows.filter(pc.equal(rows.column("part").cast(pa.string()), "train")))


def _sort_rows(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


def run_missing(night: BenchmarkNight, journal: Journal) -> Mapping[str, str]:
    """Run models without a run; return failures by name.

    If another search runs the same models, this one waits for it.
    """
    if not list_missing_models(night, count_attempts(night)):
        return {}
    part = digest(sorted(model.name for model in night.benchmark.models))
    with nights.hold_caches(night.store), hold_night(night, journal, part):
        attempts = count_attempts(night)
        todo = list_missing_models(night, attempts)
        if not todo:
            return {}
        prepare_split(night.store, night.benchmark, night.split_id, journal)
        require_truth(night)
        return nights.run_models(night, todo, attempts, journal)[1]


def read_values(night: BenchmarkNight) -> dict[str, Row]:
    """Return each model's newest run with the headline's value.

    The run has succeeded.
    """
    store = night.store
    runs = {model: dict(row) for model, row in find_newest_runs(night).items()}
    by_run = {row["run_id"]: row for row in runs.values()}
    metric, k = parse_headline(night.benchmark)
    filters = [("run_id", "in", list(by_run)), ("metric", "=", metric)]
    for row in store.rows(METRICS, filters) if runs else []:
        if row["slice_key"] is None and row["estimator"] == "holdout" and row["k"] == k:
            by_run[row["run_id"]]["value"] = row["value"]
    return runs


def _make_outcome(
    settings: Row, models: Sequence[ModelConfig], rows: Mapping[str, Row], failed: Mapping[str, str]
) -> TrialOutcome:
    candidates = (rows.get(model.name, {}) for model in models)
    finished = [row for row in candidates if row.get("value") is not None]
    return TrialOutcome(
        "succeeded" if len(finished) == len(models) else "failed",
        tuple(row["value"] for row in finished),
        sum(row["seconds"] or 0.0 for row in finished),
        tuple(row["run_id"] for row in finished),
        settings,
        next((failed[model.name] for model in models if model.name in failed), ""),
    )


class RatingTrials:
    """Tries settings by RMSE (see `search.Trials`).

    Each setting has one fit for each seed.
    """

    metric = "rmse"

    def __init__(self, fits: FitPlanner, search: SearchSettings) -> None:
        self.fits, self.search, self.store = fits, search, fits.store
        self.log_id, self.suite, self.dataset = fits.log.log_id, fits.benchmark.name, fits.log.dataset
        self.credited_log_id = compute_credited_log_id(fits.store, fits.benchmark)

    def settings(self, model: ModelConfig) -> Row:
        """Return the learner's settings, and the items the model counts."""
        return name_settings(learner_settings(model).model_dump(), model.counts_catalogue)

    def run_trials(self, planned: Sequence[PlannedTrial], journal: Journal) -> list[TrialOutcome]:
        """Fit every setting with all seeds, in one plan."""
        tasks = [self._tasks(making.model) for making in planned]
        plan = self.fits.plan(task for fits in tasks for task in fits)
        rows = {row["fit_id"]: row for row in run_plan(self.store, plan, journal)}
        return [_make_fit_outcome(fits, rows) for fits in tasks]

    def _tasks(self, model: ModelConfig) -> list[FitTask]:
        search = self.search
        fold = search.fold if self.fits.log.folds else None
        drawn = ValidationDraw(search.share, search.seed)
        seeds = range(model_seed(model), model_seed(model) + search.seeds)
        return [self.fits.task(model, seed, fold, drawn, keep=False) for seed in seeds]


def _make_fit_outcome(tasks: Sequence[FitTask], rows: Mapping[str, Row]) -> TrialOutcome:
    fits = [rows[task.fit_id] for task in tasks]
    unfinished = [row for row in fits if row["status"] != "succeeded"]
    return TrialOutcome(
        unfinished[0]["status"] if unfinished else "succeeded",
        tuple(row["rmse"] for row in fits if row["status"] == "succeeded"),
        sum(row.get("cpu_seconds") or 0.0 for row in fits),
        tuple(task.fit_id for task in tasks),
        name_settings(tasks[0].settings, tasks[0].whole),
        next((row["error"] for row in unfinished if row.get("error")), ""),
    )
