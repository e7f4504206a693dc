"""A search for settings on validation rows: a trial is a row of `trials`, every method has one budget."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pyspark.sql import functions as F

from recbench_spark.boards.searches import Search as Judged
from recbench_spark.boards.spaces import (
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
from recbench_spark.config import Benchmark, ModelConfig, Provenance, Range, Search, digest
from recbench_spark.config.models import make_model
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.journal import Journal
from recbench_spark.models.rating.kinds import learner_settings, seed_of
from recbench_spark.models.rating.registry import FAMILIES
from recbench_spark.schemas import TRIALS
from recbench_spark.steps.fitting import Drawn, Fits, Plan, run_plan
from recbench_spark.steps.folding import FoldedLog
from recbench_spark.store import Store
from recbench_spark.training.fits.tasks import FitTask, Row


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
        return as_search(self.space, tried, float(np.mean(spreads)) if spreads else 0.0)


def chosen(space: Space, trial: Row) -> Setting:
    """The settings of a trial, choices as they stand in the space."""
    places: Mapping[str, float] = trial["searched"]
    return {name: of.values[int(places[name])] if of.values else places[name] for name, of in space.items()}


def first_searches(benchmark: Benchmark, search: Search, log: FoldedLog) -> list[Searched]:
    """The declared searches. Raises ConfigError for a setting that the learner does not have."""
    models = {model.name: model for model in benchmark.models}
    found = []
    for name, space in search.spaces.items():
        model = models[name]
        if model.kind not in FAMILIES:
            raise ConfigError(
                f"search.spaces.{name}: kind '{model.kind}' is no rating model",
                f"kinds: {', '.join(sorted(FAMILIES))}",
            )
        check_space(model, space)
        search_id = _search_id(search, log, model, space)
        found.append(Searched(model, space, search_id, search_id))
    return found


def check_space(model: ModelConfig, space: Space) -> None:
    """Every setting is there, and takes both ends of its range, before hours are spent."""
    known = [name for name in FAMILIES[model.kind].settings.model_fields if name != "kind"]
    for name, of in space.items():
        if name.split(".")[0] not in known:
            raise ConfigError(
                f"search.spaces.{model.name}: kind '{model.kind}' has no setting '{name}'",
                nearest(name, known),
            )
        ends = of.values or (of.at(0.0), of.at(1 - 1e-9))
        for value in ends:
            tried(model, {name: value})


def tried(model: ModelConfig, setting: Setting) -> ModelConfig:
    """The model with some settings replaced. Raises ConfigError for a value that it does not take."""
    document = with_settings(model.model_dump(), setting)
    return make_model(document, f"search.spaces.{model.name}")


def _search_id(search: Search, log: FoldedLog, model: ModelConfig, space: Space) -> str:
    settings = {
        name: value for name, value in learner_settings(model).model_dump().items() if name not in space
    }
    how = search.model_dump(exclude={"budget", "spaces"})
    return digest(log.log_id, settings, {k: v.model_dump() for k, v in space.items()}, how, length=20)


def run_searches(
    fits: Fits, search: Search, searches: Sequence[Searched], journal: Journal
) -> dict[str, Found]:
    """All trials of some searches at once, those of earlier starts not made again; and all that is known.

    Raises:
        DataError: no trial of a method came to an end.
    """
    fold = search.fold if fits.log.folds else None
    drawn, makings = Drawn(search.share, search.seed), []
    for one in searches:
        for number, setting in enumerate(points(one.space, search.budget, search.method, search.seed)):
            model = tried(one.model, setting)
            tasks = [
                fits.task(model, seed_of(model) + n, fold, drawn, keep=False) for n in range(search.seeds)
            ]
            makings.append((one, number, setting, tasks))
    plan = fits.plan(task for *_, tasks in makings for task in tasks)
    rows = {row["fit_id"]: row for row in run_plan(fits.store, plan, journal)}
    found = [_trial(search, one, number, setting, tasks, rows) for one, number, setting, tasks in makings]
    _append(fits, plan, found)
    known = known_searches(fits.store, fits.log)
    for one in searches:
        if known[one.model.name].best is None:
            told = next((row["error"] for row in rows.values() if row.get("error")), "")
            raise DataError(f"model {one.model.name}: no trial came to an end: {told}", "narrow its space")
    return {one.model.name: known[one.model.name] for one in searches}


def _trial(
    search: Search,
    one: Searched,
    number: int,
    setting: Setting,
    tasks: Sequence[FitTask],
    rows: Mapping[str, Row],
) -> Row:
    made = [rows[task.fit_id] for task in tasks]
    values = [row["rmse"] for row in made if row["status"] == "succeeded"]
    whole = len(values) == len(made)
    worst = next((row["status"] for row in made if row["status"] != "succeeded"), "succeeded")
    return {
        "trial_id": digest(one.search_id, number, length=20), "search_id": one.search_id,
        "extends": one.extends, "model": one.model.name, "kind": one.model.kind, "number": number,
        "settings_json": json.dumps(tasks[0].settings, sort_keys=True),
        "searched": {name: one.space[name].place(value) for name, value in setting.items()},
        "space_json": json.dumps({name: of.model_dump() for name, of in one.space.items()}),
        "method": search.method, "budget": search.budget, "status": worst,
        "value": float(np.mean(values)) if whole else None,
        "spread": float(np.std(values, ddof=1)) if whole and len(values) > 1 else None,
        "fit_ids": [task.fit_id for task in tasks],
        "seconds": float(sum(row.get("cpu_seconds") or 0.0 for row in made)),
        "finished_at": datetime.now(UTC),
    }  # fmt: skip


def _append(fits: Fits, plan: Plan, found: Sequence[Row]) -> None:
    """Trials that are not there yet, or failed when they were."""
    store, log = fits.store, fits.log
    ids = [row["trial_id"] for row in found]
    there = store.read(TRIALS).where(F.col("trial_id").isin(ids)).select("trial_id", "status").collect()
    known = {(row.trial_id, row.status) for row in there}
    facts = {"log_id": log.log_id, "suite": plan.suite, "dataset": log.dataset}
    rows = [{**facts, **row} for row in found if (row["trial_id"], row["status"]) not in known]
    if rows:
        values = [tuple(row.get(name) for name in TRIALS.names) for row in rows]
        store.append(store.spark.createDataFrame(values, TRIALS.schema), TRIALS)


def known_searches(store: Store, log: FoldedLog) -> dict[str, Found]:
    """All that `trials` knows of a log, by model; the driver holds a row a trial."""
    rows = [row.asDict() for row in store.read(TRIALS).where(F.col("log_id") == log.log_id).collect()]
    return found_in(rows)


def found_in(rows: Iterable[Row]) -> dict[str, Found]:
    """Rows of `trials` by model: the spaces joined, each setting once."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: row["finished_at"]):
        by_model.setdefault(row["model"], {})[row["trial_id"]] = row
    found = {}
    for model, trials in by_model.items():
        last = max(trials.values(), key=lambda row: row["finished_at"])
        same = [row for row in trials.values() if set(row["searched"]) == set(last["searched"])]
        space = space_of(same[0])
        for row in same[1:]:
            space = joined(space, space_of(row))
        ordered = sorted(same, key=lambda row: math.inf if row["value"] is None else row["value"])
        found[model] = Found(model, space, tuple(ordered))
    return found


def space_of(trial: Row) -> dict[str, Range]:
    """The space that a trial was drawn from."""
    return {name: Range.model_validate(of) for name, of in json.loads(trial["space_json"]).items()}


def further_searches(
    benchmark: Benchmark, search: Search, log: FoldedLog, known: Mapping[str, Found]
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
        search_id = _search_id(search, log, models[name], space)
        first = known[name].trials[0]["search_id"]
        found.append(Searched(models[name], space, search_id, first))
    return found


# -------------------------------------------------------------------------------- what runs later


def with_searches(store: Store, benchmark: Benchmark) -> Benchmark:
    """The benchmark with each model's provenance filled in from `trials`, where the file says nothing.

    By dataset and kind of model: settings are searched on one protocol and used on others.
    """
    if not store.exists(TRIALS.name):
        return benchmark
    of_dataset = F.col("dataset") == benchmark.dataset.name
    rows = [row.asDict() for row in store.read(TRIALS).where(of_dataset).collect()]
    by_kind: dict[str, Found] = {}
    for one in found_in(rows).values():
        by_kind[one.trials[0]["kind"]] = one
    models = tuple(_with_search(model, by_kind.get(model.kind)) for model in benchmark.models)
    return benchmark.model_copy(update={"models": models})


def _with_search(model: ModelConfig, found: Found | None) -> ModelConfig:
    if found is None or found.best is None or model.provenance.search_space or model.provenance.budget:
        return model
    return model.model_copy(update={"provenance": provenance_of(found, model.provenance)})


def provenance_of(found: Found, before: Provenance) -> Provenance:
    """What a search says of where settings come from."""
    judged = found.judged()
    seconds = sum(row["seconds"] or 0.0 for row in found.trials)
    ends = {name: tuple(dict.fromkeys(ends)) for name, ends in judged.space.items()} if judged else {}
    update: dict[str, Any] = {
        "search_space": ends,
        "budget": f"{len(found.trials)} settings, {seconds:.0f} core-seconds, on validation rows",
        "at_edge": tuple(edge.name for edge in found.edges),
    }
    return before.model_copy(update=update)


def best_model(model: ModelConfig, found: Found) -> ModelConfig:
    """The model with the best settings that were found, its provenance filled in."""
    assert found.best is not None
    better = tried(model, chosen(found.space, found.best))
    return better.model_copy(update={"provenance": provenance_of(found, model.provenance)})
