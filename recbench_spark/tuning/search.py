"""A search for settings on validation rows: a trial is a row of `trials`, every method has one budget.

How a setting is tried is a matter of the task: `rating_trials` fits folds as Spark tasks, `trial_nights`
ranks for validation rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
from pyspark.sql import functions as F

from recbench_spark.config import Benchmark, ModelConfig, Provenance, SearchSettings, SettingRange, digest
from recbench_spark.config.models import make_model
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.kernels.metrics.about import About, about_metric
from recbench_spark.leaderboard.entries import SettingsSource
from recbench_spark.leaderboard.search_spaces import (
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
from recbench_spark.leaderboard.searches import SearchTrials as Judged
from recbench_spark.leaderboard.verdicts import uses_best
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.registry import FAMILIES
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import TRIALS
from recbench_spark.storage.store import Store
from recbench_spark.tuning.folds import compute_credited_log_id

Row = dict[str, Any]

COMMON_FIELDS = ("name", "version", "provenance", "kind")
"""What a search cannot vary."""


class PlannedTrial(NamedTuple):
    """A setting that is to be tried.

    Attributes:
        searched: of which search.
        number: its place there.
        setting: the values.
        model: with these values.
    """

    search: ModelSearch
    number: int
    setting: Setting
    model: ModelConfig


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a setting.

    Attributes:
        status: succeeded, diverged or failed.
        values: of each seed that succeeded.
        seconds: of its fits.
        fit_ids: the fits (or runs) behind it.
        settings: all of them, as they were fitted.
        error: why it failed.
    """

    status: str
    values: tuple[float, ...]
    seconds: float
    fit_ids: tuple[str, ...]
    settings: Row
    error: str = ""


class Trials(Protocol):
    """Where and how settings are tried.

    Attributes:
        store: the warehouse.
        log_id: hash of the log and of what is held out of it.
        credited_log_id: hash of the log and protocol whose results the search may be credited to.
        suite: name of the benchmark file.
        dataset: name of the dataset.
        metric: what is told of each, such as rmse or ndcg@20.
    """

    store: Store
    log_id: str
    credited_log_id: str
    suite: str
    dataset: str
    metric: str

    def settings(self, model: ModelConfig) -> Row:
        """What a fit of the model hangs on."""

    def outcomes(self, makings: Sequence[PlannedTrial], journal: Journal) -> list[TrialOutcome]:
        """What came of each, those of earlier starts not fitted again."""


@dataclass(frozen=True)
class ModelSearch:
    """One method's search, or a stretch of it.

    Attributes:
        model: as the benchmark file has it.
        space: of this search.
        search_id: hash of log, model, space and method.
        extends: the search that this one goes on from; itself where it is the first.
    """

    model: ModelConfig
    space: Space
    search_id: str
    extends: str


@dataclass(frozen=True)
class SearchResult:
    """What is known of a method after its searches.

    Attributes:
        model: as the benchmark file has it.
        space: all that was searched, extensions included.
        trials: rows of `trials`, each setting once, by value; those without one last.
    """

    model: str
    space: Space
    trials: tuple[Row, ...]

    @property
    def metric(self) -> str:
        """What was measured."""
        return self.trials[0]["metric"] or "rmse"

    @property
    def best(self) -> Row | None:
        """The best trial."""
        return self.trials[0] if self.trials and self.trials[0]["value"] is not None else None

    @property
    def edges(self) -> list[Edge]:
        """Settings whose best value lies on the edge of all that was searched."""
        return find_edges(self.space, trial_setting(self.space, self.best)) if self.best else []

    def judged(self) -> Judged | None:
        """As boards judge it; noise is the mean spread over seeds."""
        spreads = [row["spread"] for row in self.trials if row["spread"] is not None]
        tried = [(row["searched"], row["value"]) for row in self.trials if row["value"] is not None]
        noise = float(np.mean(spreads)) if spreads else 0.0
        return make_search(self.space, tried, noise, metric_facts(self.metric).best != "large")


def metric_facts(metric: str) -> About:
    """What a metric says of itself, by its name with a cut-off or without."""
    return about_metric(metric.partition("@")[0])


def trial_setting(space: Space, trial: Row) -> Setting:
    """The settings of a trial, choices as they stand in the space."""
    places: Mapping[str, float] = trial["searched"]
    return {name: of.values[int(places[name])] if of.values else places[name] for name, of in space.items()}


def check_searches(benchmark: Benchmark, search: SearchSettings) -> None:
    """Every setting is there, and takes both ends of its range, before hours are spent.

    Raises:
        ConfigError: a model that cannot be searched, a setting that it does not have or does not take.
    """
    models = {model.name: model for model in benchmark.models}
    for name, space in search.spaces.items():
        known = list_searchable(models[name], benchmark.evaluation.task)
        for setting, of in space.items():
            if setting.split(".")[0] not in known:
                raise ConfigError(
                    f"search.spaces.{name}: kind '{models[name].kind}' has no setting '{setting}'",
                    nearest(setting, known),
                )
            for value in of.values or (of.at(0.0), of.at(1 - 1e-9)):
                apply_setting(models[name], {setting: value})


def list_searchable(model: ModelConfig, task: str) -> list[str]:
    """The settings that a search may vary.

    Raises:
        ConfigError: the model is fitted elsewhere, or is none of the task.
    """
    if task == "rating":
        if model.kind not in FAMILIES:
            raise ConfigError(
                f"search.spaces.{model.name}: kind '{model.kind}' is no rating model",
                f"kinds: {', '.join(sorted(FAMILIES))}",
            )
        return [name for name in FAMILIES[model.kind].settings.model_fields if name != "kind"]
    found = [name for name in type(model).model_fields if name not in (*COMMON_FIELDS, *model.paths)]
    if not found or not model.measured:
        raise ConfigError(
            f"search.spaces.{model.name}: kind '{model.kind}' has no settings of its own to search",
            "models that are fitted in a night, such as als, item_knn, mf_bpr",
        )
    return found


def has_settings(model: ModelConfig, task: str) -> bool:
    """Whether there is anything to search."""
    if task == "rating" and model.kind not in FAMILIES:
        return True  # MLlib's als is fitted elsewhere, and has settings all the same
    try:
        return bool(list_searchable(model, task))
    except ConfigError:
        return False


def make_searches(benchmark: Benchmark, search: SearchSettings, trials: Trials) -> list[ModelSearch]:
    """The declared searches; see `check_searches`."""
    models = {model.name: model for model in benchmark.models}
    found = []
    for name, space in search.spaces.items():
        search_id = _search_id(search, trials, models[name], space)
        found.append(ModelSearch(models[name], space, search_id, search_id))
    return found


def apply_setting(model: ModelConfig, setting: Setting) -> ModelConfig:
    """The model with some settings replaced. Raises ConfigError for a value that it does not take."""
    document = replace_settings(model.model_dump(), setting)
    return make_model(document, f"search.spaces.{model.name}")


def _search_id(search: SearchSettings, trials: Trials, model: ModelConfig, space: Space) -> str:
    settings = {name: value for name, value in trials.settings(model).items() if name not in space}
    how = search.model_dump(exclude={"budget", "spaces"})
    return digest(trials.log_id, settings, {k: v.model_dump() for k, v in space.items()}, how, length=20)


def run_searches(
    trials: Trials, search: SearchSettings, searches: Sequence[ModelSearch], journal: Journal
) -> dict[str, SearchResult]:
    """All trials of some searches at once, those of earlier starts not made again; and all that is known.

    Raises:
        DataError: no trial of a method came to an end.
    """
    makings = [
        PlannedTrial(one, number, setting, apply_setting(one.model, setting))
        for one in searches
        for number, setting in enumerate(draw_points(one.space, search.budget, search.method, search.seed))
    ]
    outcomes = trials.outcomes(makings, journal)
    rows = [_trial_row(search, trials, *pair) for pair in zip(makings, outcomes, strict=True)]
    trials.store.append_missing(rows, TRIALS, TRIAL_KEYS)
    known = read_searches(trials.store, trials.log_id)
    for one in searches:
        if known[one.model.name].best is None:
            pairs = zip(makings, outcomes, strict=True)
            told = next((o.error for making, o in pairs if making.search is one and o.error), "")
            raise DataError(f"model {one.model.name}: no trial came to an end: {told}", "narrow its space")
    return {one.model.name: known[one.model.name] for one in searches}


def _trial_row(search: SearchSettings, trials: Trials, making: PlannedTrial, outcome: TrialOutcome) -> Row:
    one, values = making.search, outcome.values
    whole = outcome.status == "succeeded"
    return {
        "trial_id": digest(one.search_id, making.number, length=20), "search_id": one.search_id,
        "extends": one.extends, "log_id": trials.log_id, "suite": trials.suite, "dataset": trials.dataset,
        "model": one.model.name, "kind": one.model.kind, "number": making.number,
        "settings_json": json.dumps(outcome.settings, sort_keys=True),
        "searched": {name: one.space[name].place(value) for name, value in making.setting.items()},
        "space_json": json.dumps({name: of.model_dump() for name, of in one.space.items()}),
        "method": search.method, "budget": search.budget, "status": outcome.status,
        "metric": trials.metric, "value": float(np.mean(values)) if whole else None,
        "spread": float(np.std(values, ddof=1)) if whole and len(values) > 1 else None,
        "fit_ids": list(outcome.fit_ids), "seconds": float(outcome.seconds),
        "finished_at": datetime.now(UTC), "credited_log_id": trials.credited_log_id,
    }  # fmt: skip


TRIAL_KEYS = ("trial_id", "status", "credited_log_id")
"""Columns that say which trial a row is of; one of an old version lacks the last."""


def read_searches(store: Store, log_id: str) -> dict[str, SearchResult]:
    """All that `trials` knows of a log, by model; the driver holds a row a trial."""
    rows = [row.asDict() for row in store.read(TRIALS).where(F.col("log_id") == log_id).collect()]
    return collect_searches(rows)


def collect_searches(rows: Iterable[Row]) -> dict[str, SearchResult]:
    """Rows of `trials` by model: the spaces joined, each setting once.

    Of each model the trials that vary what the last one varies and have all else alike: what was tried
    with fewer epochs is another search.
    """
    by_model: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: row["finished_at"]):
        by_model.setdefault(row["model"], {})[row["trial_id"]] = row
    found = {}
    for model, trials in by_model.items():
        last = max(trials.values(), key=lambda row: row["finished_at"])
        search = _search_identity(last)
        same = [row for row in trials.values() if _search_identity(row) == search]
        space = read_space(same[0])
        for row in same[1:]:
            space = merge_spaces(space, read_space(row))
        found[model] = SearchResult(model, space, tuple(sorted(same, key=_sort_key)))
    return found


def _search_identity(trial: Row) -> tuple[frozenset[str], str]:
    """What a trial varies, and the settings that it leaves as the benchmark file has them."""
    varied = frozenset(trial["searched"])
    settings = replace_settings(json.loads(trial["settings_json"]), dict.fromkeys(varied, ""))
    return varied, json.dumps(settings, sort_keys=True)


def _sort_key(row: Row) -> float:
    """The smaller, the better; last what has no value."""
    return (
        math.inf if row["value"] is None else metric_facts(row["metric"] or "rmse").sort_key(row["value"])
    )


def read_space(trial: Row) -> dict[str, SettingRange]:
    """The space that a trial was drawn from."""
    return {name: SettingRange.model_validate(of) for name, of in json.loads(trial["space_json"]).items()}


def extend_searches(
    benchmark: Benchmark, search: SearchSettings, trials: Trials, known: Mapping[str, SearchResult]
) -> list[ModelSearch]:
    """Where the best lies on an edge: a search that goes on beyond it, on the other side of that edge."""
    models = {model.name: model for model in benchmark.models}
    found = []
    for name in search.spaces:
        if name not in known or not known[name].edges:
            continue
        space = extend_space(known[name].space, known[name].edges)
        if not space:
            continue
        search_id = _search_id(search, trials, models[name], space)
        first = known[name].trials[0]["extends"]
        found.append(ModelSearch(models[name], space, search_id, first))
    return found


# -------------------------------------------------------------------------------- what runs later


def credit_searches(store: Store, benchmark: Benchmark) -> Benchmark:
    """The benchmark with each model's provenance filled in from `trials`, where the file says nothing.

    A search belongs to a model by its name, the settings that were not searched, and the identity of log
    and protocol. It is credited where the model uses what it found.
    """
    rows = read_credited_trials(store, benchmark)
    models = tuple(_credit_search(model, benchmark.evaluation.task, rows) for model in benchmark.models)
    return benchmark.model_copy(update={"models": models}) if rows else benchmark


def _credit_search(model: ModelConfig, task: str, rows: Sequence[Row]) -> ModelConfig:
    settings = model_settings(model, task)
    found = find_search(rows, model.name, settings)
    if found is None or model.provenance.search_space or model.provenance.budget:
        return model
    if not is_used(found, settings):
        return model
    return model.model_copy(update={"provenance": make_provenance(found, model.provenance)})


def read_credited_trials(store: Store, benchmark: Benchmark) -> list[Row]:
    """Rows of `trials` that may be credited to a benchmark's models; the driver holds a row a trial."""
    if not store.exists(TRIALS.name):
        return []
    of_models = F.col("model").isin([model.name for model in benchmark.models])
    named = F.coalesce("credited_log_id", "log_id")
    known = store.read(TRIALS).where(of_models).withColumn("named", named)
    if not known.take(1):
        return []  # the log's identity is not asked for nothing
    mine = known.where(F.col("named") == compute_credited_log_id(store, benchmark))
    return [row.asDict() for row in mine.drop("named").collect()]


def model_settings(model: ModelConfig, task: str) -> Row:
    """The settings of a model as its trials have them: of a rating learner, or of a model that ranks."""
    if task == "rating" and model.kind in FAMILIES:
        return learner_settings(model).model_dump()
    return model.model_dump(mode="json", exclude={"name", "version", "provenance"})


def find_search(rows: Iterable[Row], model: str, settings: Mapping[str, Any]) -> SearchResult | None:
    """The last search of a model with these settings, apart from those that it varied."""
    same = [row for row in rows if row["model"] == model and _matches_settings(row, settings)]
    return collect_searches(same).get(model)


def _matches_settings(trial: Row, settings: Mapping[str, Any]) -> bool:
    """Whether all that a trial did not vary is from these settings; keys that came later do not count."""
    varied, fixed = _search_identity(trial)
    before = json.loads(fixed)
    own = json.loads(json.dumps(replace_settings(settings, dict.fromkeys(varied, ""))))
    return all(own.get(name) == value for name, value in before.items())


def find_used_values(found: SearchResult, settings: Mapping[str, Any]) -> dict[str, float] | None:
    """What settings give to each searched setting, choices by their number; None: one value is no such."""
    values = {name: _value_in(settings, name) for name in found.space}
    known = {
        name: of.place(values[name])
        for name, of in found.space.items()
        if values[name] is not None and (not of.values or values[name] in of.values)
    }
    return known if len(known) == len(found.space) else None


def _value_in(settings: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted path; of a section whose values are all alike, that value."""
    value: Any = settings
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        alike = set(value.values())
        value = alike.pop() if len(alike) == 1 else None
    return value


def is_used(found: SearchResult, settings: Mapping[str, Any]) -> bool:
    """Whether settings are those that a search found best, or as good but for noise."""
    judged, used = found.judged(), find_used_values(found, settings)
    return judged is not None and used is not None and uses_best(judged, used)


def find_tuning(
    rows: Iterable[Row], model: str, settings: Mapping[str, Any], provenance: Provenance | None
) -> SettingsSource:
    """Return where a run's settings are from: a search of them, what the file tells of one, or none."""
    rows = list(rows)
    found = find_search(rows, model, settings)
    judged = found.judged() if found else None
    told = _describe_budget(provenance)
    if found is None or judged is None:
        others = any(row["model"] == model for row in rows)
        why = "its search had other settings beside those that it varied" if others else ""
        return SettingsSource(told=told, why=why)
    used = find_used_values(found, settings)
    if used is None:
        why = f"its search of {len(judged.trials)} settings did not try such values"
        return SettingsSource(told=told, why=why)
    return SettingsSource(judged, used)


def _describe_budget(provenance: Provenance | None) -> str:
    if provenance is None:
        return ""
    return provenance.budget or (
        f"a search over {provenance.search_space}" if provenance.search_space else ""
    )


def make_provenance(found: SearchResult, before: Provenance) -> Provenance:
    """What a search says of where settings come from."""
    judged = found.judged()
    seconds = sum(row["seconds"] or 0.0 for row in found.trials)
    unit = "core-seconds" if found.metric == "rmse" else "seconds"
    ends = {name: tuple(dict.fromkeys(ends)) for name, ends in judged.space.items()} if judged else {}
    update: dict[str, Any] = {
        "search_space": ends,
        "budget": f"{len(found.trials)} settings, {seconds:.0f} {unit}, on validation rows",
        "at_edge": tuple(edge.name for edge in found.edges),
    }
    return before.model_copy(update=update)


def best_model(model: ModelConfig, found: SearchResult) -> ModelConfig:
    """The model with the best settings that were found, its provenance filled in."""
    assert found.best is not None
    better = apply_setting(model, trial_setting(found.space, found.best))
    return better.model_copy(update={"provenance": make_provenance(found, model.provenance)})
