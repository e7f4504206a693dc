"""Prepare a model over a graph: weights and feature matrix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.config import digest
from recbench_spark.core.inputs import require_unchanged
from recbench_spark.errors import ConfigError
from recbench_spark.graphs import features as first
from recbench_spark.graphs.folders import Graph, read_note
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.kernels.dense import Dense
from recbench_spark.graphs.kernels.layers import (
    Layer,
    check_weights,
    make_layers,
    model_weight_shapes,
    random_weights,
)
from recbench_spark.graphs.machine_speed import NetworkCosts, describe_network, measure_read_throughput
from recbench_spark.graphs.runner import Model
from recbench_spark.graphs.settings import GraphLayers, GraphModel
from recbench_spark.graphs.stored_graphs import ensure_graph, files_folder, identify_graph, prefix_split_id
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import (
    EMBEDDINGS,
    GRAPH_VECTORS,
)
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.block_arrays import has_parts
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import explain_missing_folder, find_folder, make_folder
from recbench_spark.storage.objects import read_bytes, remove_objects, write_text
from recbench_spark.storage.seals import find_damage, write_seal
from recbench_spark.storage.uris import absolute_place, is_remote, join_uri

PROBE_MIN_EDGES = 1_000_000
"""Edges from which on the reading throughput is measured.

The measurement takes a second.
"""


@dataclass(frozen=True)
class PreparedGraphModel:
    """A model ready to run over its graph.

    Attributes:
        settings: the model's settings.
        graph: the graph on disk.
        model: the model with its weights and its feature file.
        checks: the features' counts, by name.
        pace: seconds a core needs per feature byte, measured where the graph is large.
        network: what executors pay for objects; None: the files are in a folder.
    """

    settings: GraphModel
    graph: Graph
    model: Model
    checks: dict[str, int]
    pace: float = costs.DEFAULT_READ_SECONDS
    network: NetworkCosts | None = None


def prepare_model(store: FileTables, settings: GraphModel, journal: Journal) -> PreparedGraphModel:
    """Prepare a model's graph, features and weights.

    Weights and features are checked before anything is built; nodes without features are found before the
    graph's edges are built. Each is made once.

    Raises:
        ConfigError: weights have a wrong shape or an unknown name.
        DataError: features are missing, not finite, or have different lengths.
    """
    weighted = read_layers(settings)
    graph = ensure_checked_graph(store, settings, settings.blocks, journal)
    place, features_id, checks = build_features(store, settings, graph, journal)
    model_id = make_model_id(settings, graph.graph_id, features_id, weighted.weights_id)
    for table in (GRAPH_VECTORS, EMBEDDINGS):
        store.create(table)
    layers = (weighted.layers, weighted.output_layers, settings.mode, settings.wire)
    vectors, embeddings = (store.location(table.name) for table in (GRAPH_VECTORS, EMBEDDINGS))
    places = (place, model_folder(store, model_id), vectors)
    output = embeddings if settings.output == "embeddings" else None
    model = Model(model_id, *layers, *places, output, settings.batch, settings.groups)
    # A small graph or an existing model is not measured.
    measured = graph.edges >= PROBE_MIN_EDGES and read_note(model.folder) is None
    network = describe_network(store.engine, place, measured) if is_remote(place) else None
    pace = measure_read_throughput(store.engine, graph, place) if measured else costs.DEFAULT_READ_SECONDS
    return PreparedGraphModel(settings, graph, model, checks, pace, network)


def ensure_checked_graph(
    store: FileTables, settings: GraphModel, blocks: int | None, journal: Journal
) -> Graph:
    """Return a model's graph, with its features checked.

    The graph is built if all nodes have features, or may be without.

    Raises:
        DataError: features are missing or cannot be used; no edge is stored then.
    """

    def check(graph: Graph) -> None:
        first.read_table(store.engine, _open_feature_table(settings, graph), settings.features.missing)

    has_table = settings.features.path is not None
    return ensure_graph(store, settings.graph, blocks, journal, check=check if has_table else None)


def _open_feature_table(settings: GraphModel, graph: Graph, place: str | None = None) -> first.TableWork:
    """Open the feature table, to be copied to a place, or only checked."""
    features = settings.features
    assert features.path is not None
    side = graph.sides.index(features.side or graph.sides[-1])
    kind = "numeric" if graph.numeric[side] else "text"
    rows = first.open_features(features.path, features.id_column, kind)
    dims = first.count_dimensions(rows)
    return first.TableWork(graph, rows, side, dims, place, np.dtype(settings.wire))


def model_folder(store: FileTables, model_id: str) -> str:
    """Return the folder for a model's files."""
    return join_uri(files_folder(store), MODELS, model_id)


def make_model_id(settings: GraphModel, graph_id: str, features_id: str, weights_id: str) -> str:
    """Name a model; models with equal names have equal bits."""
    return prefix_split_id(settings.graph, settings.key(graph_id, features_id, weights_id))


def compute_model_id(store: FileTables, settings: GraphModel) -> str:
    """Return the name `prepare_model` will give a model.

    Nothing is built.

    Raises:
        ConfigError, DataError: weights or features do not exist.
    """
    graph_id, _ = identify_graph(store, settings.graph)
    _, weights_id = read_weights(settings.weights)
    return make_model_id(settings, graph_id, identify_features(store, settings), weights_id)


def describe_files(settings: GraphLayers) -> str:
    """Check that features and weights fit together, and describe them.

    Spark is not needed.

    Raises:
        ConfigError, DataError, SchemaError: see `prepare_model`.
    """
    features, dims = settings.features, count_feature_dimensions(settings, all_rows=True)
    wanted = model_weight_shapes(settings.forms(), settings.final, dims)
    weights = read_weights(settings.weights)[0]
    if weights is not None:
        check_weights(weights, wanted, f"weights {settings.weights}")
    kind = "random" if weights is None else "of the right shapes"
    widths = [layer.width for layer in settings.layers] + list(settings.final)
    through = " -> ".join(map(str, [dims, *widths]))
    return f"features {features.path or features.kind}; dimensions {through}; {len(wanted)} weights, {kind}"


def count_feature_dimensions(settings: GraphLayers, *, all_rows: bool = False) -> int:
    """Return the length of a node's features.

    For a table it is the first vector's length. With `all_rows` the first rows are compared.
    """
    features = settings.features
    if features.path is None:
        return features.dims if features.kind == "hashed" else 1
    rows = first.open_features(features.path, features.id_column, "auto")
    return first.count_dimensions(first.require_equal_lengths(rows) if all_rows else rows)


class WeightedLayers(NamedTuple):
    """A model's layers with weights, before there is a graph.

    Attributes:
        dims: feature length.
        weights_id: the weights file's digest.
        layers: layers with their weights.
        output_layers: dense layers after the last one.
    """

    dims: int
    weights_id: str
    layers: tuple[Layer, ...]
    output_layers: tuple[Dense, ...]


def read_layers(settings: GraphModel) -> WeightedLayers:
    """Read and check a model's weights, and its first features.

    Nothing is built.

    Raises:
        ConfigError, DataError, SchemaError: see `prepare_model`.
    """
    dims = count_feature_dimensions(settings)
    stored, weights_id = read_weights(settings.weights)
    wanted = model_weight_shapes(settings.forms(), settings.final, dims)
    if stored is None:
        weights = random_weights(wanted, settings.seed)
    else:
        weights = check_weights(stored, wanted, f"weights {settings.weights}")
    ends = make_layers(settings.forms(), settings.final, weights, dims, settings.seed)
    return WeightedLayers(dims, weights_id, *ends)


def read_weights(path: str | None) -> tuple[dict[str, Any] | None, str]:
    """Read weights from a safetensors file, and hash its bytes.

    Without a file the result is None and `random`. Numbers with 16 bits (bfloat16 too) and 32 bits are
    exact in float32. Numbers with 64 bits are rounded to the nearest.

    Raises:
        ConfigError: the file does not exist, is not a safetensors file, or has weights that are no
            floats.
    """
    if path is None:
        return None, "random"
    from safetensors import SafetensorError, deserialize  # noqa: PLC0415

    try:
        packed = Path(path).read_bytes()
        stored = deserialize(packed)  # type: ignore[no-untyped-call]
        weights = {name: _read_weight(path, name, weight) for name, weight in stored}
    except OSError as error:
        raise ConfigError(f"weights {path}: {error.strerror}", "give a file of safetensors") from None
    except SafetensorError as error:
        raise ConfigError(f"weights {path}: {error}", "save them by safetensors.torch.save_file") from None
    return weights, hashlib.sha256(packed).hexdigest()[:16]


FLOAT_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
"""Supported weight types, and the numpy types of their bytes.

A bfloat16 is the upper half of a float32.
"""


def _read_weight(path: str, name: str, stored: dict[str, Any]) -> npt.NDArray[Any]:
    """Read one weight from a safetensors file.

    Raises:
        ConfigError: its type is not supported.
    """
    kind = stored["dtype"]
    if kind not in FLOAT_TYPES:
        raise ConfigError(
            f"weights {path}: {name} holds numbers of type {kind}",
            f"save it as one of {', '.join(FLOAT_TYPES)}, e.g. by .float() before saving",
        )
    values = np.frombuffer(stored["data"], FLOAT_TYPES[kind]).reshape(stored["shape"])
    if kind == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def build_features(
    store: FileTables, settings: GraphModel, graph: Graph, journal: Journal
) -> tuple[str, str, dict[str, int]]:
    """Build the feature matrix by dense id.

    The matrix is made once for all models. Returns its place, name and counts.
    """
    features, engine, name = settings.features, store.engine, identify_features(store, settings)
    target = graph.place(f"{FEATURES}/{name}")
    if damage := find_damage(target, digests=True, optional=True):
        journal.say(f"warning: features {name} are damaged and are computed again: {damage}")
        remove_objects(target)
    with make_folder(target, lambda: _read_counts(target) is not None, journal.say) as work:
        if work is not None:
            text = f"features: {features.path or features.kind}"
            with journal.stage("features", text, graph_id=graph.graph_id):
                work.clear()
                counts = _fill_features(engine, settings, graph, join_uri(work.work, FEATURES))
            require_unchanged()
            write_text(join_uri(work.work, COUNTS_FILE), json.dumps(counts))
            if work.lease is not None:
                write_seal(work.lease.work)
            work.publish()
    folder, checks = find_folder(target), _read_counts(target)
    if folder is None or checks is None:
        raise explain_missing_folder(target)
    return join_uri(folder, FEATURES), name, checks


def _read_counts(target: str) -> dict[str, int] | None:
    """Return the counts of complete features, or None."""
    folder = find_folder(target)
    text = None if folder is None else read_bytes(join_uri(folder, COUNTS_FILE))
    if text is None or folder is None or not has_parts(join_uri(folder, FEATURES)):
        return None
    return json.loads(text)  # type: ignore[no-any-return]


FEATURES = "features"
"""Folder for a graph's features, and their array in a subfolder."""

MODELS = "models"
"""Folder for the files of models, in `graph_files`."""

COUNTS_FILE = "counts.json"
"""File with counts in a feature folder, written after the matrix."""


def identify_features(store: FileTables, settings: GraphModel) -> str:
    """Hash everything that decides a node's first vector."""
    features = settings.features
    options = features.model_dump(exclude={"path", "missing"})
    seed = settings.seed if features.kind == "hashed" else 0
    source = "" if features.path is None else choose_identity(store)(absolute_place(features.path))
    return digest(options, source, features.missing, seed, settings.wire)


def _fill_features(engine: Engine, settings: GraphModel, graph: Graph, place: str) -> dict[str, int]:
    features = settings.features
    if features.path is None:
        dims, wire = features.dims if features.kind == "hashed" else 1, settings.wire
        first.fill_generated(engine, graph, features.kind, dims, settings.seed, place=place, dtype=wire)
        return {}
    return first.read_table(engine, _open_feature_table(settings, graph, place), features.missing)
