"""What names a split and a run: hashes of settings, inputs and code. Without a session.

Identities of inputs come from whoever can tell them: Spark (`data.identity`), or this process
(`data.arrow_files`); both give the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Protocol

from recbench_spark import __version__
from recbench_spark.config import TABLE_READERS, Benchmark, Dataset, ModelConfig, digest
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError, FallbackToSpark, MissingError
from recbench_spark.nightly.code_provenance import run_revisions, split_revisions


class InputIdentifier(Protocol):
    """Function that returns the identity of what lies at a path."""

    def __call__(self, path: str, *, named: bool = False, options: Mapping[str, str] | None = None) -> str:
        """Return the identity; `named`: names of plain files count; `options`: of the reader."""


def hash_split(identify: InputIdentifier, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    """The hash of all that a split is made from, and the identity of the log and of its slices."""
    dataset = benchmark.dataset
    inputs = {}
    if dataset.reader != "world":
        named = uses_file_names(dataset) or benchmark.split.holdout == "consecutive"
        inputs["log"] = identify(str(dataset.path), named=named, options=dataset.options)
    for cut in benchmark.evaluation.slices:
        if cut.path:
            inputs[f"slice {cut.key}"] = identify(cut.path)
    settings = dataset.model_dump(exclude={"name", "path", "world"})
    settings["world"] = world_settings(dataset)
    # The content at a slice's path is among the inputs: a copy elsewhere is the same slice.
    slices = [{**cut.model_dump(), "path": None} for cut in benchmark.evaluation.slices]
    return digest(settings, inputs, benchmark.split.model_dump(), slices, split_revisions(dataset)), inputs


def uses_file_names(dataset: Dataset) -> bool:
    """Whether the names of a log's files say what they hold."""
    return dataset.reader not in TABLE_READERS


def world_settings(dataset: Dataset) -> dict[str, object]:
    """The world as split hashes know it: a setting counts where its rows are not those from before it."""
    world, before = dataset.world.model_dump(), {"tastes": 8, "open_items": "unseen"}
    generated = dataset.reader == "world"
    return {
        name: value
        for name, value in world.items()
        if name not in before or (generated and value != before[name])
    }


def evaluation_paths(benchmark: Benchmark) -> dict[str, str]:
    """The paths of tables that an evaluation reads beside log and models, by what they are."""
    asked = benchmark.evaluation
    paths = {"candidates": asked.candidates_path, "features": asked.features}
    if asked.exposure:
        chances = asked.exposure.propensities
        paths |= {"propensities": chances.path, "rewards": asked.exposure.rewards}
        paths |= {"item features": chances.item_features, "user features": chances.user_features}
    return {name: path for name, path in paths.items() if path}


def identify_model_inputs(identify: InputIdentifier, model: ModelConfig) -> dict[str, str]:
    """Identity of the files a model was handed over in; `missing` where nothing is there.

    A model without its file has a key as well, under which it fails, and the night goes on.
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


def hash_run_key(
    benchmark: Benchmark,
    definition: Definition,
    split_id: str,
    inputs: Mapping[str, str],
    model: ModelConfig,
) -> str:
    """Hash of all that a run's numbers depend on: same key, same numbers.

    Args:
        benchmark: the settings of the night.
        definition: as its evaluation resolves it.
        split_id: of its split.
        inputs: identities of all inputs of the night and of the model.
        model: whose run it is.
    """
    return digest(
        split_id.partition(".")[0],
        model.model_dump(exclude={"provenance", *model.unkeyed}),
        benchmark.evaluation.model_dump(exclude={"preset", "definition"}),
        definition.model_dump(),
        dict(inputs),
        __version__,
        run_revisions(benchmark, definition, model),
    )
