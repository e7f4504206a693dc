"""Search for settings on validation rows.

A trial is a row of `trials`, and every method has the same budget. The task decides how a setting is
tried (`trials`): by fits on folds as Spark tasks, or by rankings for validation rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np

from recbench_spark.boards.search_spaces import (
    Edge,
    Setting,
    Space,
    draw_points,
    extend_space,
    find_edges,
    make_search,
    merge_spaces,
    replace_settings,
)
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.config import Benchmark, ModelConfig, SearchSettings, SettingRange, digest
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.metrics.kernels.about import About, about_metric
from recbench_spark.models.rating.registry import ALL_FAMILIES, FAMILIES, gives_ratings
from recbench_spark.models.settings import make_model
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import TRIALS
from recbench_spark.storage.file_tables import FileTables, RowReader

Row = dict[str, Any]

COMMON_FIELDS = ("name", "version", "provenance", "kind")
"""Fields a search cannot vary."""


class PlannedTrial(NamedTuple):
    """A setting to try.

    Attributes:
        search: the search it belongs to.
        number: its place in the search.
        setting: the values.
        model: the model with these values.
    """

    search: ModelSearch
    number: int
    setting: Setting
    model: ModelConfig


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of trying a setting.

    Attributes:
        status: succeeded, diverged or failed.
        values: the values of seeds that succeeded.
        seconds: seconds of its fits.
        fit_ids: ids of its fits (or runs).
        settings: all settings, as they were fitted.
        error: the error it failed with.
    """

    status: str
    values: tuple[float, ...]
    seconds: float
    fit_ids: tuple[str, ...]
    settings: Row
    error: str = ""


class Trials(Protocol):
    """Tries settings on a task's data.

    Attributes:
        store: the warehouse.
        log_id: hash of the log and its held-out rows.
        credited_log_id: hash of log and protocol whose results the search may be credited to.
        suite: the benchmark file's name.
        dataset: the dataset's name.
        metric: the measured metric, such as rmse or ndcg@20.
    """

    store: FileTables
    log_id: str
    credited_log_id: str
    suite: str
    dataset: str
    metric: str

    def settings(self, model: ModelConfig) -> Row:
        """Return all settings a fit of the model depends on."""

    def run_trials(self, planned: Sequence[PlannedTrial], journal: Journal) -> list[TrialOutcome]:
        """Return each trial's outcome.

        Trials from earlier starts are not fitted again.
        """


@dataclass(frozen=True)
class ModelSearch:
    """The search for one model's settings, or its extension.

    Attributes:
        model: the model as in the benchmark file.
        space: the space of this search.
        search_id: hash of log, model, space and method.
        extends: the search this one extends; its own id for the first search.
    """

    model: ModelConfig
    space: Space
    search_id: str
    extends: str


@dataclass(frozen=True)
class SearchResult:
    """All searches for one model's settings, joined.

    Attributes:
        model: the model as in the benchmark file.
        space: all that was searched, extensions included.
        trials: rows of `trials`, each setting once, sorted by value; those without a value last.
    """

    model: str
    space: Space
    trials: tuple[Row, ...]

    @property
    def metric(self) -> str:
        """The measured metric."""
        return self.trials[0]["metric"] or "rmse"

    @property
    def best(self) -> Row | None:
        """The best trial."""
        return self.trials[0] if self.trials and self.trials[0]["value"] is not None else None

    @property
    def edges(self) -> list[Edge]:
        """Settings with their best value on the space's edge."""
        return find_edges(self.space, trial_setting(self.space, self.best)) if self.best else []

    def to_search_trials(self) -> SearchTrials | None:
        """Return the search in the form boards judge.

        The noise is the mean spread over seeds.
        """
        spreads = [row["spread"] for row in self.trials if row["spread"] is not None]
        tried = [(row["searched"], row["value"]) for row in self.trials if row["value"] is not None]
        noise = float(np.mean(spreads)) if spreads else 0.0
        return make_search(self.space, tried, noise, metric_facts(self.metric).best != "large")


def metric_facts(metric: str) -> About:
    """Return facts on a metric, with or without cut-off."""
    return about_metric(metric.partition("@")[0])


def trial_setting(space: Space, trial: Row) -> Setting:
    """Return a trial's setting; choices have values in the space."""
    places: Mapping[str, float] = trial["searched"]
    return {
        name: span.values[int(places[name])] if span.values else places[name]
        for name, span in space.items()
    }


def check_searches(benchmark: Benchmark, search: SearchSettings) -> None:
    """Check the searched settings before hours are spent.

    Models must have every setting and accept both ends of its range.

    Raises:
        ConfigError: a model cannot be searched, lacks a setting, or does not accept it.
    """
    models = {model.name: model for model in benchmark.models}
    for name, space in search.spaces.items():
        settings = list_searchable(models[name], benchmark.evaluation.task)
        for setting, span in space.items():
            if setting.split(".")[0] not in settings:
                raise ConfigError(
                    f"search.spaces.{name}: kind '{models[name].kind}' has no setting '{setting}'",
                    nearest(setting, settings),
                )
            for value in span.values or (span.at(0.0), span.at(1 - 1e-9)):
                apply_setting(models[name], {setting: value})


def list_searchable(model: ModelConfig, task: str) -> list[str]:
    """List the settings a search may vary.

    Raises:
        ConfigError: the model is fitted elsewhere, or does not fit the task.
    """
    if task == "rating":
        if not gives_ratings(model):
            raise ConfigError(
                f"search.spaces.{model.name}: kind '{model.kind}' is not a rating model",
                f"kinds: {', '.join(sorted(FAMILIES))}",
            )
        return [name for name in ALL_FAMILIES[model.kind].settings.model_fields if name != "kind"]
    names = [name for name in type(model).model_fields if name not in (*COMMON_FIELDS, *model.paths)]
    if not names or not model.measured:
        raise ConfigError(
            f"search.spaces.{model.name}: kind '{model.kind}' has no settings of its own to search",
            "models that are fitted in a night, such as als, item_knn, mf_bpr",
        )
    return names


def has_settings(model: ModelConfig, task: str) -> bool:
    """Tell whether there is anything to search."""
    if task == "rating" and not gives_ratings(model):
        return True  # mllib_als is fitted elsewhere, but it has settings
    try:
        return bool(list_searchable(model, task))
    except ConfigError:
        return False


def make_searches(benchmark: Benchmark, search: SearchSettings, trials: Trials) -> list[ModelSearch]:
    """Return the declared searches; see `check_searches`."""
    models = {model.name: model for model in benchmark.models}
    searches = []
    for name, space in search.spaces.items():
        search_id = _search_id(search, trials, models[name], space)
        searches.append(ModelSearch(models[name], space, search_id, search_id))
    return searches


def apply_setting(model: ModelConfig, setting: Setting) -> ModelConfig:
    """Replace some settings of a model.

    Raises:
        ConfigError: the model does not accept a value.
    """
    document = replace_settings(model.model_dump(), setting)
    return make_model(document, f"search.spaces.{model.name}")


def _search_id(search: SearchSettings, trials: Trials, model: ModelConfig, space: Space) -> str:
    settings = {name: value for name, value in trials.settings(model).items() if name not in space}
    method = search.model_dump(exclude={"budget", "spaces"})
    return digest(trials.log_id, settings, {k: v.model_dump() for k, v in space.items()}, method, length=20)


def run_searches(
    trials: Trials, search: SearchSettings, searches: Sequence[ModelSearch], journal: Journal
) -> dict[str, SearchResult]:
    """Run all trials of some searches at once.

    Returns all results by model. Trials from earlier starts are not repeated.

    Raises:
        DataError: no trial of a method has ended with a value.
    """
    planned = [
        PlannedTrial(one_search, number, setting, apply_setting(one_search.model, setting))
        for one_search in searches
        for number, setting in enumerate(
            draw_points(one_search.space, search.budget, search.method, search.seed)
        )
    ]
    outcomes = trials.run_trials(planned, journal)
    rows = [_trial_row(search, trials, *pair) for pair in zip(planned, outcomes, strict=True)]
    trials.store.append_missing(rows, TRIALS, TRIAL_KEYS)
    results = read_searches(trials.store.rows, trials.log_id)
    for one_search in searches:
        if results[one_search.model.name].best is None:
            pairs = zip(planned, outcomes, strict=True)
            message = next((o.error for trial, o in pairs if trial.search is one_search and o.error), "")
            raise DataError(
                f"model {one_search.model.name}: no trial has succeeded: {message}", "narrow its space"
            )
    return {one_search.model.name: results[one_search.model.name] for one_search in searches}


def _trial_row(search: SearchSettings, trials: Trials, planned: PlannedTrial, outcome: TrialOutcome) -> Row:
    owner, values = planned.search, outcome.values
    whole = outcome.status == "succeeded"
    return {
        "trial_id": digest(owner.search_id, planned.number, length=20), "search_id": owner.search_id,
        "extends": owner.extends, "log_id": trials.log_id, "suite": trials.suite, "dataset": trials.dataset,
        "model": owner.model.name, "kind": owner.model.kind, "number": planned.number,
        "settings_json": json.dumps(outcome.settings, sort_keys=True),
        "searched": {name: owner.space[name].place(value) for name, value in planned.setting.items()},
        "space_json": json.dumps({name: span.model_dump() for name, span in owner.space.items()}),
        "method": search.method, "budget": search.budget, "status": outcome.status,
        "metric": trials.metric, "value": float(np.mean(values)) if whole else None,
        "spread": float(np.std(values, ddof=1)) if whole and len(values) > 1 else None,
        "fit_ids": list(outcome.fit_ids), "seconds": float(outcome.seconds),
        "finished_at": datetime.now(UTC), "credited_log_id": trials.credited_log_id,
    }  # fmt: skip


TRIAL_KEYS = ("trial_id", "status", "credited_log_id")
"""Columns to identify a trial; rows from an old version lack the last one."""


def read_searches(read: RowReader, log_id: str) -> dict[str, SearchResult]:
    """Return all search results on a log, by model.

    The driver holds one row for each trial.
    """
    return collect_searches(read(TRIALS, [("log_id", "=", log_id)]))


def collect_searches(rows: Iterable[Row]) -> dict[str, SearchResult]:
    """Group trials by model, and join their spaces.

    A setting is kept once. A model's trials vary the same settings as its last one and share all others:
    trials with fewer epochs belong to another search.
    """
    by_model: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: row["finished_at"]):
        by_model.setdefault(row["model"], {})[row["trial_id"]] = row
    results = {}
    for model, trials in by_model.items():
        last = max(trials.values(), key=lambda row: row["finished_at"])
        search = search_identity(last)
        same = [row for row in trials.values() if search_identity(row) == search]
        space = read_space(same[0])
        for row in same[1:]:
            space = merge_spaces(space, read_space(row))
        results[model] = SearchResult(model, space, tuple(sorted(same, key=_sort_key)))
    return results


def search_identity(trial: Row) -> tuple[frozenset[str], str]:
    """Return the settings a trial varies, and all others' values."""
    varied = frozenset(trial["searched"])
    settings = replace_settings(json.loads(trial["settings_json"]), dict.fromkeys(varied, ""))
    return varied, json.dumps(settings, sort_keys=True)


def _sort_key(row: Row) -> float:
    """Return a sort key, smaller for a better value.

    A row without a value is last.
    """
    return (
        math.inf if row["value"] is None else metric_facts(row["metric"] or "rmse").sort_key(row["value"])
    )


def read_space(trial: Row) -> dict[str, SettingRange]:
    """Return the space a trial was drawn from."""
    return {
        name: SettingRange.model_validate(span) for name, span in json.loads(trial["space_json"]).items()
    }


def extend_searches(
    benchmark: Benchmark, search: SearchSettings, trials: Trials, known: Mapping[str, SearchResult]
) -> list[ModelSearch]:
    """Extend the searches whose best value is on an edge.

    The new search lies beyond this edge of its space.
    """
    models = {model.name: model for model in benchmark.models}
    searches = []
    for name in search.spaces:
        if name not in known or not known[name].edges:
            continue
        space = extend_space(known[name].space, known[name].edges)
        if not space:
            continue
        search_id = _search_id(search, trials, models[name], space)
        first = known[name].trials[0]["extends"]
        searches.append(ModelSearch(models[name], space, search_id, first))
    return searches
