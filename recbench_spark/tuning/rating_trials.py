"""Settings of rating models, tried on rows drawn from the training part: fits as Spark tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recbench_spark.config import ModelConfig, Search
from recbench_spark.models.rating.kinds import learner_settings, seed_of
from recbench_spark.runtime.journal import Journal
from recbench_spark.training.fits.tasks import FitTask
from recbench_spark.tuning.fold_fits import Drawn, Fits, run_plan
from recbench_spark.tuning.folds import credited_log_id
from recbench_spark.tuning.search import Making, Outcome, Row


class RatingTrials:
    """`tuning.Trials` by RMSE; a setting is a fit a seed."""

    metric = "rmse"

    def __init__(self, fits: Fits, search: Search) -> None:
        self.fits, self.search, self.store = fits, search, fits.store
        self.log_id, self.suite, self.dataset = fits.log.log_id, fits.benchmark.name, fits.log.dataset
        self.credited_log_id = credited_log_id(fits.store, fits.benchmark)

    def settings(self, model: ModelConfig) -> Row:
        """Those of its learner."""
        return learner_settings(model).model_dump()

    def outcomes(self, makings: Sequence[Making], journal: Journal) -> list[Outcome]:
        """By as many fits as the search has seeds, all of them planned together."""
        tasks = [self._tasks(making.model) for making in makings]
        plan = self.fits.plan(task for some in tasks for task in some)
        rows = {row["fit_id"]: row for row in run_plan(self.store, plan, journal)}
        return [_outcome(some, rows) for some in tasks]

    def _tasks(self, model: ModelConfig) -> list[FitTask]:
        search = self.search
        fold = search.fold if self.fits.log.folds else None
        drawn = Drawn(search.share, search.seed)
        seeds = range(seed_of(model), seed_of(model) + search.seeds)
        return [self.fits.task(model, seed, fold, drawn, keep=False) for seed in seeds]


def _outcome(tasks: Sequence[FitTask], rows: Mapping[str, Row]) -> Outcome:
    made = [rows[task.fit_id] for task in tasks]
    lost = [row for row in made if row["status"] != "succeeded"]
    return Outcome(
        lost[0]["status"] if lost else "succeeded",
        tuple(row["rmse"] for row in made if row["status"] == "succeeded"),
        sum(row.get("cpu_seconds") or 0.0 for row in made),
        tuple(task.fit_id for task in tasks),
        dict(tasks[0].settings),
        next((row["error"] for row in lost if row.get("error")), ""),
    )
