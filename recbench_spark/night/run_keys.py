"""Name splits and runs: hashes of settings, inputs and code.

No Spark session is needed. Input identities come from Spark (`sources.identity`) or from this process
(`sources.arrow_files`); both give the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Protocol

from recbench_spark import __version__
from recbench_spark.config import (
    Benchmark,
    Dataset,
    ModelConfig,
    RetrievedModel,
    SwitchModel,
    digest,
)
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError, FallbackToSpark, MissingError
from recbench_spark.night.code_provenance import run_revisions, split_revisions


class InputIdentifier(Protocol):
    """Identifies the data at a path."""

    def __call__(self, path: str, *, named: bool = False, options: Mapping[str, str] | None = None) -> str:
        """Return the identity.

        `named`: names of plain files count; `options`: options for the reader.
        """


def hash_split(identify: InputIdentifier, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    """Hash a split's inputs; identify the log and its slices."""
    dataset = benchmark.dataset
    inputs = {}
    if dataset.reader != "world":
        named = uses_file_names(dataset) or benchmark.split.holdout == "consecutive"
        inputs["log"] = identify(str(dataset.path), named=named, options=dataset.options)
    for cut in benchmark.evaluation.slices:
        if cut.path:
            inputs[f"slice {cut.key}"] = identify(cut.path)
    settings = dataset.model_dump(exclude={"name", "path", "world", "availability"})
    settings["world"] = world_settings(dataset)
    # A slice's content is among the inputs, so a copy at another path is the same slice.
    slices = [{**cut.model_dump(), "path": None} for cut in benchmark.evaluation.slices]
    split = benchmark.split.model_dump(exclude={"anchor"})
    timed = benchmark.definition.candidates_as_of != "none"  # its blocks have times
    more = (*list_period_keys(benchmark), *(["timed"] if timed else []))
    return digest(settings, inputs, split, slices, split_revisions(dataset), *more), inputs


def list_period_keys(benchmark: Benchmark) -> tuple[str, ...]:
    """Return `calendar` where a calendar moves a period's bounds.

    Elsewhere the result is empty. From a given `start` on, UTC days are equally long, as they were before
    there were anchors. The zone and the resolved `start` are among the settings.
    """
    split = benchmark.split
    equal_days = split.start is not None and benchmark.dataset.time_zone in ("UTC", "+00:00")
    months = any(lasts and lasts.endswith("mo") for lasts in (split.length, split.step))
    return ("calendar",) if split.by_calendar and (months or not equal_days) else ()


def uses_file_names(dataset: Dataset) -> bool:
    """Tell whether the names of a log's files are data."""
    return not dataset.is_table


def world_settings(dataset: Dataset) -> dict[str, object]:
    """Return the settings of a generated world, for split hashes.

    A newer setting counts only where it changes the log's rows.
    """
    world, before = dataset.world.model_dump(), {"tastes": 8, "open_items": "unseen"}
    generated = dataset.reader == "world"
    return {
        name: value
        for name, value in world.items()
        if name not in before or (generated and value != before[name])
    }


def evaluation_paths(benchmark: Benchmark) -> dict[str, str]:
    """Return an evaluation's paths beside log and models, by kind."""
    evaluation = benchmark.evaluation
    paths = {"candidates": evaluation.candidates_path, "features": evaluation.features}
    if evaluation.item_groups:
        paths["item groups"] = evaluation.item_groups.path
    if evaluation.exposure:
        chances = evaluation.exposure.propensities
        paths |= {"propensities": chances.path, "rewards": evaluation.exposure.rewards}
        paths |= {"item features": chances.item_features, "user features": chances.user_features}
    if benchmark.dataset.availability and evaluation.resolve().candidates_as_of == "availability":
        paths["availability"] = benchmark.dataset.availability.path
    return {name: path for name, path in paths.items() if path}


def identify_model_inputs(identify: InputIdentifier, model: ModelConfig) -> dict[str, str]:
    """Identify each file a model is read from.

    The identity is `missing` if there is no file. A model without its file has a key as well: its run
    fails under this key, and the night goes on.
    """
    paths = {name: attrgetter(name)(model) for name in model.paths}
    return {f"model {name}": _identify_or_missing(identify, path) for name, path in paths.items() if path}


def _identify_or_missing(identify: InputIdentifier, path: str) -> str:
    try:
        return identify(path)
    except FallbackToSpark:
        raise
    except (DataError, MissingError):
        return "missing"


def list_switched_models(benchmark: Benchmark, model: ModelConfig) -> tuple[ModelConfig, ...]:
    """List the models whose values a switching model uses.

    Other models use none.
    """
    if not isinstance(model, SwitchModel):
        return ()
    names = {model.first, model.then}
    return tuple(one for one in benchmark.curve_models if model.first is None or one.name in names)


def choose_curve_cutoff(benchmark: Benchmark) -> int:
    """Choose the cut-off to compare and show learning curves at.

    The headline's cut-off is chosen if it is measured, else the largest one.
    """
    k, cutoffs = benchmark.headline.partition("@")[2], benchmark.evaluation.cutoffs
    return int(k) if k and int(k) in cutoffs else max(cutoffs)


def list_unkeyed(model: ModelConfig) -> dict[str, Any]:
    """List a model's settings outside the run key, for pydantic."""
    left_out: dict[str, Any] = dict.fromkeys(("provenance", *model.unkeyed), True)
    return left_out | ({"base": list_unkeyed(model.base)} if isinstance(model, RetrievedModel) else {})


def hash_run_key(
    benchmark: Benchmark,
    definition: Definition,
    split_id: str,
    inputs: Mapping[str, str],
    model: ModelConfig,
) -> str:
    """Hash everything a run's numbers depend on.

    The same key means the same numbers.

    Args:
        benchmark: settings of the night.
        definition: the definition its evaluation resolves to.
        split_id: its split's id.
        inputs: identities of all inputs, for night and model.
        model: the run's model.
    """
    chosen = isinstance(model, SwitchModel) and model.at == "auto"
    more = {"cut-off of the choice": choose_curve_cutoff(benchmark)} if chosen else {}
    return digest(
        split_id.partition(".")[0],
        model.model_dump(exclude=list_unkeyed(model)),
        benchmark.evaluation.model_dump(exclude={"preset", "definition"}),
        definition.to_settings(),
        {**inputs, **more},
        __version__,
        run_revisions(benchmark, definition, model),
    )
