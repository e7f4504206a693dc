"""Tell whether two nights embedded one model.

The same model has the same settings and weights on any graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recbench_spark.errors import ConfigError
from recbench_spark.graphs.model_inputs import PreparedGraphModel, WeightedLayers
from recbench_spark.graphs.settings import GraphModel
from recbench_spark.storage.block_arrays import read_parts

Note = Mapping[str, Any]
"""Note on an embedded model, as `pipeline` writes it."""


def list_layers(prepared: PreparedGraphModel) -> WeightedLayers:
    """Return a prepared model's layers."""
    model = prepared.model
    return WeightedLayers(read_parts(model.features).shape[1], "", model.layers, model.output_layers)


def model_family(settings: GraphModel, weighted: WeightedLayers, missing: str = "error") -> str:
    """Hash a model's settings and weights without its graph.

    All nights of one model have the same hash. It ignores what nodes without features get
    (`features.missing`): the vectors themselves are compared. Older versions wrote it with this setting's
    value.
    """
    features = settings.features.model_copy(update={"missing": missing})
    settings = settings.model_copy(update={"features": features})
    return settings.key("family", "", _hash_weights(weighted))


def has_family(settings: GraphModel, weighted: WeightedLayers, note: Note) -> bool:
    """Tell whether an earlier note belongs to this model."""
    return note["family"] in {model_family(settings, weighted, missing) for missing in ("error", "zero")}


def check_family(settings: GraphModel, weighted: WeightedLayers, note: Note) -> None:
    """Refuse an earlier model with other settings or weights.

    Raises:
        ConfigError: the model is such; the message names each difference with both values.
    """
    if has_family(settings, weighted, note):
        return
    differences = list_differences(list_settings(settings, weighted), note.get("settings", {}))
    unknown = "layers, weights, features' settings or seed (an older version has not noted which)"
    raise ConfigError(f"model {note['model_id']} has other settings: {differences or unknown}", SAME_MODEL)


SAME_MODEL = "give tonight's model the values of the earlier one, or run without --previous"


def list_settings(settings: GraphModel, weighted: WeightedLayers) -> dict[str, str]:
    """Return the settings a model's numbers depend on.

    Setting names are those in a model file.
    """
    features = settings.features.model_dump(exclude={"path", "missing", "dims"})
    named: dict[str, Any] = {f"features.{name}": value for name, value in features.items()}
    named["features.dims"] = weighted.dims
    for n, layer in enumerate(settings.layers):
        named |= {f"layers[{n}].{name}": value for name, value in layer.model_dump().items()}
    named |= {name: getattr(settings, name) for name in ("mode", "wire", "seed")}
    named |= {"final": list(settings.final), "weights": "random"}
    if settings.weights:
        named["weights"] = f"{Path(settings.weights).name} of digest {_hash_weights(weighted)}"
    return {name: str(value) for name, value in named.items()}


def list_differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """List the names whose values differ, with both values.

    The text is empty where `then` is not known.
    """
    names = [name for name in {**now, **then} if then and now.get(name) != then.get(name)]
    return "; ".join(f"{name} is {now.get(name)}, and was {then.get(name)}" for name in names)


def _hash_weights(weighted: WeightedLayers) -> str:
    weights = hashlib.sha256()
    for layer in weighted.layers:
        arrays = [layer.own_t, layer.pooled_t, layer.bias, layer.recurrent_t, *(layer.project or ())[:2]]
        for array in arrays:
            weights.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    for end in weighted.output_layers:
        weights.update(end.weight_t.tobytes() + end.bias.tobytes())
    return weights.hexdigest()[:16]
