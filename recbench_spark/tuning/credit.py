"""Credit searches to models, and fill in their provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recbench_spark.boards.entries import SettingsSource
from recbench_spark.boards.search_spaces import replace_settings
from recbench_spark.boards.verdicts import uses_best
from recbench_spark.config import FOLD_HOLDOUTS, Benchmark, ModelConfig, Provenance, digest
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.registry import gives_ratings
from recbench_spark.night.split import identify_split
from recbench_spark.schemas import TRIALS
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.tuning.search import (
    Row,
    SearchResult,
    collect_searches,
    search_identity,
)


def credit_searches(store: FileTables, benchmark: Benchmark) -> Benchmark:
    """Fill in missing provenance from `trials`.

    A search belongs to a model by its name, the settings that were not searched, and the identity of log
    and protocol. It is credited if the model uses its result.
    """
    rows = read_credited_trials(store, benchmark)
    models = tuple(_credit_search(model, benchmark.evaluation.task, rows) for model in benchmark.models)
    return benchmark.model_copy(update={"models": models}) if rows else benchmark


def _credit_search(model: ModelConfig, task: str, rows: Sequence[Row]) -> ModelConfig:
    settings = model_settings(model, task)
    result = find_search(rows, model.name, settings)
    if result is None or model.provenance.search_space or model.provenance.budget:
        return model
    if not is_used(result, settings):
        return model
    return model.model_copy(update={"provenance": make_provenance(result, model.provenance)})


def read_credited_trials(store: FileTables, benchmark: Benchmark) -> list[Row]:
    """Read trials that may be credited to a benchmark's models.

    The driver holds all of them.
    """
    trials = store.rows(TRIALS, [("model", "in", [model.name for model in benchmark.models])])
    if not trials:
        return []  # identifying the log takes time
    log_id = compute_credited_log_id(store, benchmark)
    return [row for row in trials if (row["credited_log_id"] or row["log_id"]) == log_id]


def compute_credited_log_id(store: FileTables, benchmark: Benchmark) -> str:
    """Identify log and protocol whose searches may be credited.

    The id is the same for all folds and for any slices in the evaluation, which hold nothing out. Models
    that rate and models that rank share it.
    """
    split = benchmark.split
    if split.holdout in FOLD_HOLDOUTS:
        split = split.model_copy(update={"fold": 0, "valid": False})
    evaluation = benchmark.evaluation.model_copy(update={"slices": ()})
    reduced = benchmark.model_copy(update={"split": split, "evaluation": evaluation})
    return digest("fits", identify_split(store, reduced)[0].partition(".")[0])


def model_settings(model: ModelConfig, task: str) -> Row:
    """Return a model's settings as its trials have them.

    The settings are a rating learner's, or the model's.
    """
    if task == "rating" and gives_ratings(model):
        return learner_settings(model).model_dump()
    return model.model_dump(mode="json", exclude={"name", "version", "provenance"})


def find_search(rows: Iterable[Row], model: str, settings: Mapping[str, Any]) -> SearchResult | None:
    """Find a model's last search with these settings.

    Settings it varied may differ.
    """
    same = [row for row in rows if row["model"] == model and _matches_settings(row, settings)]
    return collect_searches(same).get(model)


def _matches_settings(trial: Row, settings: Mapping[str, Any]) -> bool:
    """Tell whether a trial's fixed settings have these values.

    Newer keys do not count.
    """
    varied, fixed = search_identity(trial)
    trial_values = json.loads(fixed)
    values = json.loads(json.dumps(replace_settings(settings, dict.fromkeys(varied, ""))))
    return all(values.get(name) == value for name, value in trial_values.items())


def find_used_values(result: SearchResult, settings: Mapping[str, Any]) -> dict[str, float] | None:
    """Return each searched setting's number or choice.

    The result is None if one has no usable value.
    """
    values = {name: _value_in(settings, name) for name in result.space}
    numbers = {
        name: span.place(values[name])
        for name, span in result.space.items()
        if values[name] is not None and (not span.values or values[name] in span.values)
    }
    return numbers if len(numbers) == len(result.space) else None


def _value_in(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value at a dotted path.

    For a section with equal values it is this value.
    """
    value: Any = settings
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        alike = set(value.values())
        value = alike.pop() if len(alike) == 1 else None
    return value


def is_used(result: SearchResult, settings: Mapping[str, Any]) -> bool:
    """Tell whether settings are a search's best.

    As good within the noise counts too.
    """
    judged, used = result.to_search_trials(), find_used_values(result, settings)
    return judged is not None and used is not None and uses_best(judged, used)


def find_tuning(
    rows: Iterable[Row], model: str, settings: Mapping[str, Any], provenance: Provenance | None
) -> SettingsSource:
    """Find the source of a run's settings.

    The source is a search, the file's note on one, or none.
    """
    rows = list(rows)
    result = find_search(rows, model, settings)
    judged = result.to_search_trials() if result else None
    budget = _describe_budget(provenance)
    if result is None or judged is None:
        others = any(row["model"] == model for row in rows)
        why = "its search had other settings beside those that it varied" if others else ""
        return SettingsSource(description=budget, why=why)
    used = find_used_values(result, settings)
    if used is None:
        why = f"its search of {len(judged.trials)} settings did not try such values"
        return SettingsSource(description=budget, why=why)
    return SettingsSource(judged, used)


def _describe_budget(provenance: Provenance | None) -> str:
    if provenance is None:
        return ""
    return provenance.budget or (
        f"a search over {provenance.search_space}" if provenance.search_space else ""
    )


def make_provenance(result: SearchResult, before: Provenance) -> Provenance:
    """Make the provenance a search gives to a model."""
    judged = result.to_search_trials()
    seconds = sum(row["seconds"] or 0.0 for row in result.trials)
    unit = "core-seconds" if result.metric == "rmse" else "seconds"
    ends = {name: tuple(dict.fromkeys(ends)) for name, ends in judged.space.items()} if judged else {}
    update: dict[str, Any] = {
        "search_space": ends,
        "budget": f"{len(result.trials)} settings, {seconds:.0f} {unit}, on validation rows",
        "at_edge": tuple(edge.name for edge in result.edges),
    }
    return before.model_copy(update=update)
