"""Trials of rating models on rows drawn from the training part: fits as Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recbench_spark.config import ModelConfig, SearchSettings
from recbench_spark.models.rating.kinds import learner_settings, model_seed
from recbench_spark.runtime.journal import Journal
from recbench_spark.training.fits.tasks import FitTask
from recbench_spark.tuning.fold_fits import FitPlanner, ValidationDraw, run_plan
from recbench_spark.tuning.folds import compute_credited_log_id
from recbench_spark.tuning.search import PlannedTrial, Row, TrialOutcome


class RatingTrials:
    """`search.Trials` by RMSE; each setting has one fit for each seed."""

    metric = "rmse"

    def __init__(self, fits: FitPlanner, search: SearchSettings) -> None:
        self.fits, self.search, self.store = fits, search, fits.store
        self.log_id, self.suite, self.dataset = fits.log.log_id, fits.benchmark.name, fits.log.dataset
        self.credited_log_id = compute_credited_log_id(fits.store, fits.benchmark)

    def settings(self, model: ModelConfig) -> Row:
        """Return the settings of the model's learner."""
        return learner_settings(model).model_dump()

    def run_trials(self, planned: Sequence[PlannedTrial], journal: Journal) -> list[TrialOutcome]:
        """Fit every setting with all seeds of the search, in one plan."""
        tasks = [self._tasks(making.model) for making in planned]
        plan = self.fits.plan(task for fits in tasks for task in fits)
        rows = {row["fit_id"]: row for row in run_plan(self.store, plan, journal)}
        return [_make_outcome(fits, rows) for fits in tasks]

    def _tasks(self, model: ModelConfig) -> list[FitTask]:
        search = self.search
        fold = search.fold if self.fits.log.folds else None
        drawn = ValidationDraw(search.share, search.seed)
        seeds = range(model_seed(model), model_seed(model) + search.seeds)
        return [self.fits.task(model, seed, fold, drawn, keep=False) for seed in seeds]


def _make_outcome(tasks: Sequence[FitTask], rows: Mapping[str, Row]) -> TrialOutcome:
    fits = [rows[task.fit_id] for task in tasks]
    unfinished = [row for row in fits if row["status"] != "succeeded"]
    return TrialOutcome(
        unfinished[0]["status"] if unfinished else "succeeded",
        tuple(row["rmse"] for row in fits if row["status"] == "succeeded"),
        sum(row.get("cpu_seconds") or 0.0 for row in fits),
        tuple(task.fit_id for task in tasks),
        dict(tasks[0].settings),
        next((row["error"] for row in unfinished if row.get("error")), ""),
    )
