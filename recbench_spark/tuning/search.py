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

from recbench_spark.config import Benchmark, ModelConfig, Provenance, Range, Search, digest
from recbench_spark.config.models import make_model
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.kernels.metrics.about import About, about_metric
from recbench_spark.leaderboard.entries import Tuning
from recbench_spark.leaderboard.search_spaces import (
    Edge,
    Setting,
    Space,
    as_search,
    edges,
    extended,
    joined,
    points,
    with_settings,
)
from recbench_spark.leaderboard.searches import Search as Judged
from recbench_spark.leaderboard.verdicts import uses_best
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.registry import FAMILIES
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import TRIALS
from recbench_spark.storage.store import Store
from recbench_spark.tuning.folds import credited_log_id

Row = dict[str, Any]

OF_EVERY_MODEL = ("name", "version", "provenance", "kind")
"""What a search cannot vary."""


class Making(NamedTuple):
    """A setting that is to be tried.

    Attributes:
        searched: of which search.
        number: its place there.
        setting: the values.
        model: with these values.
    """

    searched: Searched
    number: int
    setting: Setting
    model: ModelConfig


@dataclass(frozen=True)
class Outcome:
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

    def outcomes(self, makings: Sequence[Making], journal: Journal) -> list[Outcome]:
        """What came of each, those of earlier starts not fitted again."""


@dataclass(frozen=True)
class Searched:
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
class Found:
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
        return edges(self.space, chosen(self.space, self.best)) if self.best else []

    def judged(self) -> Judged | None:
        """As boards judge it; noise is the mean spread over seeds."""
        spreads = [row["spread"] for row in self.trials if row["spread"] is not None]
        tried = [(row["searched"], row["value"]) for row in self.trials if row["value"] is not None]
        noise = float(np.mean(spreads)) if spreads else 0.0
        return as_search(self.space, tried, noise, about(self.metric).best != "large")


def about(metric: str) -> About:
    """What a metric says of itself, by its name with a cut-off or without."""
    return about_metric(metric.partition("@")[0])


def chosen(space: Space, trial: Row) -> Setting:
    """The settings of a trial, choices as they stand in the space."""
    places: Mapping[str, float] = trial["searched"]
    return {name: of.values[int(places[name])] if of.values else places[name] for name, of in space.items()}


def check_searches(benchmark: Benchmark, search: Search) -> None:
    """Every setting is there, and takes both ends of its range, before hours are spent.

    Raises:
        ConfigError: a model that cannot be searched, a setting that it does not have or does not take.
    """
    models = {model.name: model for model in benchmark.models}
    for name, space in search.spaces.items():
        known = searchable(models[name], benchmark.evaluation.task)
        for setting, of in space.items():
            if setting.split(".")[0] not in known:
                raise ConfigError(
                    f"search.spaces.{name}: kind '{models[name].kind}' has no setting '{setting}'",
                    nearest(setting, known),
                )
            for value in of.values or (of.at(0.0), of.at(1 - 1e-9)):
                tried(models[name], {setting: value})


def searchable(model: ModelConfig, task: str) -> list[str]:
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
    found = [name for name in type(model).model_fields if name not in (*OF_EVERY_MODEL, *model.paths)]
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
        return bool(searchable(model, task))
    except ConfigError:
        return False


def first_searches(benchmark: Benchmark, search: Search, trials: Trials) -> list[Searched]:
    """The declared searches; see `check_searches`."""
    models = {model.name: model for model in benchmark.models}
    found = []
    for name, space in search.spaces.items():
        search_id = _search_id(search, trials, models[name], space)
        found.append(Searched(models[name], space, search_id, search_id))
    return found


def tried(model: ModelConfig, setting: Setting) -> ModelConfig:
    """The model with some settings replaced. Raises ConfigError for a value that it does not take."""
    document = with_settings(model.model_dump(), setting)
    return make_model(document, f"search.spaces.{model.name}")


def _search_id(search: Search, trials: Trials, model: ModelConfig, space: Space) -> str:
    settings = {name: value for name, value in trials.settings(model).items() if name not in space}
    how = search.model_dump(exclude={"budget", "spaces"})
    return digest(trials.log_id, settings, {k: v.model_dump() for k, v in space.items()}, how, length=20)


def run_searches(
    trials: Trials, search: Search, searches: Sequence[Searched], journal: Journal
) -> dict[str, Found]:
    """All trials of some searches at once, those of earlier starts not made again; and all that is known.

    Raises:
        DataError: no trial of a method came to an end.
    """
    makings = [
        Making(one, number, setting, tried(one.model, setting))
        for one in searches
        for number, setting in enumerate(points(one.space, search.budget, search.method, search.seed))
    ]
    outcomes = trials.outcomes(makings, journal)
    rows = [_trial(search, trials, *pair) for pair in zip(makings, outcomes, strict=True)]
    trials.store.append_missing(rows, TRIALS, TRIAL)
    known = known_searches(trials.store, trials.log_id)
    for one in searches:
        if known[one.model.name].best is None:
            pairs = zip(makings, outcomes, strict=True)
            told = next((o.error for making, o in pairs if making.searched is one and o.error), "")
            raise DataError(f"model {one.model.name}: no trial came to an end: {told}", "narrow its space")
    return {one.model.name: known[one.model.name] for one in searches}


def _trial(search: Search, trials: Trials, making: Making, outcome: Outcome) -> Row:
    one, values = making.searched, outcome.values
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


TRIAL = ("trial_id", "status", "credited_log_id")
"""Columns that say which trial a row is of; one of an old version lacks the last."""


def known_searches(store: Store, log_id: str) -> dict[str, Found]:
    """All that `trials` knows of a log, by model; the driver holds a row a trial."""
    rows = [row.asDict() for row in store.read(TRIALS).where(F.col("log_id") == log_id).collect()]
    return found_in(rows)


def found_in(rows: Iterable[Row]) -> dict[str, Found]:
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
        search = _of_one_search(last)
        same = [row for row in trials.values() if _of_one_search(row) == search]
        space = space_of(same[0])
        for row in same[1:]:
            space = joined(space, space_of(row))
        found[model] = Found(model, space, tuple(sorted(same, key=_place)))
    return found


def _of_one_search(trial: Row) -> tuple[frozenset[str], str]:
    """What a trial varies, and the settings that it leaves as the benchmark file has them."""
    varied = frozenset(trial["searched"])
    settings = with_settings(json.loads(trial["settings_json"]), dict.fromkeys(varied, ""))
    return varied, json.dumps(settings, sort_keys=True)


def _place(row: Row) -> float:
    """The smaller, the better; last what has no value."""
    return math.inf if row["value"] is None else about(row["metric"] or "rmse").sort_key(row["value"])


def space_of(trial: Row) -> dict[str, Range]:
    """The space that a trial was drawn from."""
    return {name: Range.model_validate(of) for name, of in json.loads(trial["space_json"]).items()}


def further_searches(
    benchmark: Benchmark, search: Search, trials: Trials, known: Mapping[str, Found]
) -> list[Searched]:
    """Where the best lies on an edge: a search that goes on beyond it, on the other side of that edge."""
    models = {model.name: model for model in benchmark.models}
    found = []
    for name in search.spaces:
        if name not in known or not known[name].edges:
            continue
        space = extended(known[name].space, known[name].edges)
        if not space:
            continue
        search_id = _search_id(search, trials, models[name], space)
        first = known[name].trials[0]["extends"]
        found.append(Searched(models[name], space, search_id, first))
    return found


# -------------------------------------------------------------------------------- what runs later


def with_searches(store: Store, benchmark: Benchmark) -> Benchmark:
    """The benchmark with each model's provenance filled in from `trials`, where the file says nothing.

    A search belongs to a model by its name, the settings that were not searched, and the identity of log
    and protocol. It is credited where the model uses what it found.
    """
    rows = credited_trials(store, benchmark)
    models = tuple(_with_search(model, benchmark.evaluation.task, rows) for model in benchmark.models)
    return benchmark.model_copy(update={"models": models}) if rows else benchmark


def _with_search(model: ModelConfig, task: str, rows: Sequence[Row]) -> ModelConfig:
    settings = settings_of(model, task)
    found = search_of(rows, model.name, settings)
    if found is None or model.provenance.search_space or model.provenance.budget:
        return model
    if not is_used(found, settings):
        return model
    return model.model_copy(update={"provenance": provenance_of(found, model.provenance)})


def credited_trials(store: Store, benchmark: Benchmark) -> list[Row]:
    """Rows of `trials` that may be credited to a benchmark's models; the driver holds a row a trial."""
    if not store.exists(TRIALS.name):
        return []
    of_models = F.col("model").isin([model.name for model in benchmark.models])
    named = F.coalesce("credited_log_id", "log_id")
    known = store.read(TRIALS).where(of_models).withColumn("named", named)
    if not known.take(1):
        return []  # the log's identity is not asked for nothing
    mine = known.where(F.col("named") == credited_log_id(store, benchmark))
    return [row.asDict() for row in mine.drop("named").collect()]


def settings_of(model: ModelConfig, task: str) -> Row:
    """The settings of a model as its trials have them: of a rating learner, or of a model that ranks."""
    if task == "rating" and model.kind in FAMILIES:
        return learner_settings(model).model_dump()
    return model.model_dump(mode="json", exclude={"name", "version", "provenance"})


def search_of(rows: Iterable[Row], model: str, settings: Mapping[str, Any]) -> Found | None:
    """The last search of a model with these settings, apart from those that it varied."""
    same = [row for row in rows if row["model"] == model and _is_of(row, settings)]
    return found_in(same).get(model)


def _is_of(trial: Row, settings: Mapping[str, Any]) -> bool:
    """Whether all that a trial did not vary is from these settings; keys that came later do not count."""
    varied, fixed = _of_one_search(trial)
    before = json.loads(fixed)
    own = json.loads(json.dumps(with_settings(settings, dict.fromkeys(varied, ""))))
    return all(own.get(name) == value for name, value in before.items())


def used_values(found: Found, settings: Mapping[str, Any]) -> dict[str, float] | None:
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


def is_used(found: Found, settings: Mapping[str, Any]) -> bool:
    """Whether settings are those that a search found best, or as good but for noise."""
    judged, used = found.judged(), used_values(found, settings)
    return judged is not None and used is not None and uses_best(judged, used)


def tuning_of(
    rows: Iterable[Row], model: str, settings: Mapping[str, Any], provenance: Provenance | None
) -> Tuning:
    """Return where a run's settings are from: a search of them, what the file tells of one, or none."""
    rows = list(rows)
    found = search_of(rows, model, settings)
    judged = found.judged() if found else None
    told = _told(provenance)
    if found is None or judged is None:
        others = any(row["model"] == model for row in rows)
        why = "its search had other settings beside those that it varied" if others else ""
        return Tuning(told=told, why=why)
    used = used_values(found, settings)
    if used is None:
        why = f"its search of {len(judged.trials)} settings did not try such values"
        return Tuning(told=told, why=why)
    return Tuning(judged, used)


def _told(provenance: Provenance | None) -> str:
    if provenance is None:
        return ""
    return provenance.budget or (
        f"a search over {provenance.search_space}" if provenance.search_space else ""
    )


def provenance_of(found: Found, before: Provenance) -> Provenance:
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


def best_model(model: ModelConfig, found: Found) -> ModelConfig:
    """The model with the best settings that were found, its provenance filled in."""
    assert found.best is not None
    better = tried(model, chosen(found.space, found.best))
    return better.model_copy(update={"provenance": provenance_of(found, model.provenance)})
