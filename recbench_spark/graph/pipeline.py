"""Build graphs, read features and weights, and run models.

The tables are `graphs`, `graph_vectors`, `embeddings` and `graph_runs`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext
from pyspark.sql import functions as F

from recbench_spark import revisions
from recbench_spark.config import digest
from recbench_spark.config.graph import GraphLayers, GraphModel, GraphSource
from recbench_spark.data.identity import identity
from recbench_spark.errors import ConfigError, StoreError, nearest
from recbench_spark.graph import features as first
from recbench_spark.graph.build import build_graph, default_block_count, open_inputs, write_node_table
from recbench_spark.graph.checking import find_graph_damage, write_graph_seal
from recbench_spark.graph.edges import RowSource
from recbench_spark.graph.folders import MANIFEST, Graph, create_matrix, map_array, read_graph
from recbench_spark.graph.incremental import LayerFiles
from recbench_spark.graph.message_passing import Pass, PassPlan
from recbench_spark.graph.read_throughput import free_memory, measure_read_throughput
from recbench_spark.graph.runner import LayerRun, Model, has_result, plan_passes, run_model
from recbench_spark.inputs import pin_inputs, require_unchanged
from recbench_spark.kernels.graph import costs
from recbench_spark.kernels.graph.forms import SCATTERABLE
from recbench_spark.kernels.graph.layers import (
    check_weights,
    make_layers,
    model_weight_shapes,
    random_weights,
)
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import (
    CHECKS,
    EMBEDDINGS,
    GRAPH_NODES,
    GRAPH_RUNS,
    GRAPH_VECTORS,
    GRAPHS,
    SPLITS,
    TABLES,
)
from recbench_spark.storage.delta_tables import open_table
from recbench_spark.storage.leases import hold_lease
from recbench_spark.storage.paths import relative_path
from recbench_spark.storage.publish import remove_published, remove_tree, replace_text
from recbench_spark.storage.seals import SEAL, find_damage, write_seal
from recbench_spark.storage.store import Store

FOLDER = "graph_files"
"""Folder of the warehouse for the adjacency and features of graphs, and for the files of running models."""

MAPPED_SHARE = 0.4
"""Share of a host's memory that plan R may map."""

FREE_SHARE = 0.8
"""Share of the free memory that plan R may map.

Pages that do not fit are read from the disk again for each edge.
"""

THIRD_COLUMN = "column_2"
"""Name of the column after src and dst of a CSV file whose first line has no names."""

PROBE_MIN_EDGES = 1_000_000
"""Edges from which on the throughput of reading is measured. The measurement takes a second."""


@dataclass(frozen=True)
class PreparedGraphModel:
    """PreparedGraphModel holds a model that is ready to run.

    Attributes:
        settings: settings of the model.
        graph: the graph on disk.
        model: the model with its weights and its file of features.
        checks: counts of the features, by name.
        pace: seconds that a core needs to read a byte of features. It is measured where the graph is large.
    """

    settings: GraphModel
    graph: Graph
    model: Model
    checks: dict[str, int]
    pace: float = costs.DEFAULT_READ_SECONDS


def files_folder(store: Store) -> Path:
    """Return the folder of the files that tasks map.

    Raises:
        StoreError: the warehouse is a catalog or remote, so that files cannot be mapped.
    """
    if store.folder is None:
        raise StoreError(
            f"{store.root} is no folder, and a graph's files are mapped",
            "--warehouse must be a folder that the driver and all workers see",
        )
    return store.folder / FOLDER


def split_source(store: Store, split_id: str, **more: Any) -> GraphSource:
    """Return the training part of a split as a bipartite graph. No held-out row is ever read.

    Args:
        store: the warehouse.
        split_id: name of the split.
        more: further settings of the source.

    Raises:
        ConfigError: there is no such split.
    """
    store.create(SPLITS)
    known = {part["split_id"] for part in open_table(store.location("splits")).partitions()}
    if split_id not in known:
        raise ConfigError(f"no split {split_id} in {store.root}", nearest(split_id, known))
    return GraphSource(
        edges=store.location("splits"),
        format="delta",
        columns={"src": "user_id", "dst": "item_id", "weight": "rating"},
        sides=("user", "item"),
        where={"part": "train"},
        partitions={"split_id": split_id},
        **more,
    )


# --------------------------------------------------------------------------------- graphs


def identify_graph(store: Store, source: GraphSource) -> tuple[str, str]:
    """Return the name of a graph and the identity of its edges.

    The name is a hash of the inputs. It begins with the name of the split, if there is one.
    """
    edges = ",".join(f"{name}={value}" for name, value in sorted(source.partitions.items()))
    # In the tables of the warehouse a partition is named by a hash of all inputs of its rows.
    if not edges or source.edges not in map(store.location, TABLES):
        edges = " of ".join(
            filter(None, [edges, identity(store.spark, str(Path(source.edges).absolute()))])
        )
    nodes = {side: identity(store.spark, path) for side, path in source.nodes.items()}
    settings = source.model_dump(exclude={"edges", "nodes"})
    return prefix_split_id(
        source, digest("graph", settings, edges, nodes, revisions.select_revisions("graphs"))
    ), edges


def prefix_split_id(source: GraphSource, name: str) -> str:
    """Put the name of the graph's split before a name.

    Retention uses the prefix to find all that belongs to a split.
    """
    walked = source.partitions.get("neighbourhood_id", "").rpartition("-")[0]
    split_id = source.partitions.get("split_id") or walked
    return f"{split_id}-{name}" if split_id else name


def graph_folder(store: Store, graph_id: str, blocks: int) -> Path:
    """Return the folder of a graph's files. Each number of blocks has a folder of its own."""
    return files_folder(store) / f"{graph_id}-{blocks}"


def find_graph(store: Store, graph_id: str, blocks: int | None, journal: Journal) -> Graph | None:
    """Return a complete graph from the disk and mark it as used now, or None.

    With `blocks` None any number of blocks will do, so the number of cores may change between runs. Tasks
    compare the files with the seal. A damaged graph is removed.
    """
    for folder in sorted(files_folder(store).glob(f"{graph_id}-{blocks or '*'}")):
        graph = read_graph(folder)
        if graph is None:
            continue
        os.utime(folder / MANIFEST)
        damage = _graph_damage(store, folder)
        if not damage:
            return graph
        journal.say(f"warning: graph {graph_id} is damaged and is laid out anew: {damage}")
        remove_published(folder)
    return None


def _graph_damage(store: Store, folder: Path) -> str:
    try:
        return find_graph_damage(store.spark.sparkContext, folder)
    except StoreError as error:
        return error.message


@pin_inputs()
def ensure_graph(
    store: Store, source: GraphSource, blocks: int | None, journal: Journal, nodes: bool = True
) -> Graph:
    """Return the graph of a source. It is built once, with rows in `graphs`, `graph_nodes` and `checks`.

    Args:
        store: the warehouse.
        source: edges, node tables and their settings.
        blocks: blocks of each side; None: by the number of edges.
        journal: receives the progress.
        nodes: whether `graph_nodes` is written.

    Raises:
        ConfigError, DataError, SchemaError, StoreError: see `build.build_graph`.
    """
    graph_id, edges = identify_graph(store, source)
    graph = find_graph(store, graph_id, blocks, journal)
    if graph is not None:
        journal.say(f"graph {graph_id}: laid out before")
    else:
        graph = _build_graph(store, source, graph_id, blocks, journal)
    # Each is written once for a graph. A killed run may not have written them.
    if nodes:
        _append_nodes(store, graph)
    _append_graph(store, source, graph, edges)
    return graph


def _build_graph(
    store: Store, source: GraphSource, graph_id: str, blocks: int | None, journal: Journal
) -> Graph:
    rows, context = open_inputs(source).edges, store.spark.sparkContext
    if (warning := warn_unread_weights(source, rows)) is not None:
        journal.say(warning)
    wanted = blocks or default_block_count(rows.n, context.defaultParallelism)
    folder = graph_folder(store, graph_id, wanted)
    with journal.stage("graph", f"graph {graph_id}: lay out {source.edges}", graph_id=graph_id) as counts:
        graph = _publish_graph(context, source, graph_id, folder, wanted, journal)
        counts |= {"nodes": graph.nodes, "edges": graph.edges}
    rate = graph.checks["edges"] / max(graph.seconds, 1e-9)
    journal.say(f"graph {graph_id}: {graph.nodes:,} nodes, {graph.edges:,} edges, {rate:,.0f} a second")
    return graph


def _publish_graph(
    context: SparkContext, source: GraphSource, graph_id: str, folder: Path, blocks: int, journal: Journal
) -> Graph:
    """Build a graph in a work folder, seal it and publish it, or wait for another run that builds it."""
    with hold_lease(folder, lambda: read_graph(folder) is not None, journal.say) as lease:
        if lease is not None:
            remove_tree(lease.work)
            build_graph(context, source, graph_id, lease.work, blocks)
            require_unchanged()
            write_graph_seal(context, lease.work)
            lease.publish()
    graph = read_graph(folder)
    if graph is None:
        raise StoreError(f"graph {graph_id}: {folder} was removed while it was made", "run again")
    return graph


def warn_unread_weights(source: GraphSource, rows: RowSource) -> str | None:
    """Return a warning if the edges seem to have weights that the settings do not use, or None."""
    if source.weighted or source.partitions:
        return None
    likely = source.column("weights" if source.lists else "weight")
    names = [name for name in (likely, THIRD_COLUMN) if name in rows.others]
    if not names:
        return None
    what = f"column {names[0]}" if names[0] == likely else "the third column"
    return f"warning: {what} of {source.edges} is not read: every edge weighs 1 (weights: --weighted)"


def _append_graph(store: Store, source: GraphSource, graph: Graph, edges: str) -> None:
    where = f", {json.dumps(source.where)}" if source.where else ""
    row = {
        "graph_id": graph.graph_id,
        "sides": list(graph.sides),
        "nodes": graph.nodes,
        "edges": graph.edges,
        "blocks": len(graph.blocks),
        "weighted": graph.weighted,
        "source": source.edges + where,
        "source_identity": edges,
        "settings_json": source.model_dump_json(),
        "seconds": graph.seconds,
        "laid_out_at": datetime.now(UTC),
    }
    store.append_rows([row], GRAPHS, once=graph.graph_id)
    write_graph_checks(store, graph.graph_id, graph.checks)


FAULT_COUNTS = ("null_ids", "bad_weights", "negative_weights", "nodes_without_features")
"""Counts that should be 0."""


def write_graph_checks(store: Store, name: str, counts: Mapping[str, int], of: str = "") -> None:
    """Write counts of a graph or a model as rows of `checks`, where run_id is its name.

    The rows are written once for each name, or once for each name and part `of` it.
    """
    rows = [
        {
            "run_id": name,
            "check": f"graph: {what.replace('_', ' ')}",
            "severity": "warning" if what in FAULT_COUNTS else "info",
            "observed": float(count),
            "threshold": 0.0 if what in FAULT_COUNTS else None,
            "passed": what not in FAULT_COUNTS or not count,
            "detail": "",
        }
        for what, count in counts.items()
    ]
    store.append_rows(rows, CHECKS, once=f"graph/{name}{of}")


def _append_nodes(store: Store, graph: Graph) -> None:
    store.create(GRAPH_NODES)
    write_node_table(store.spark.sparkContext, graph, store.location("graph_nodes"))


# --------------------------------------------------------------------------------- models


def prepare_model(store: Store, settings: GraphModel, journal: Journal) -> PreparedGraphModel:
    """Prepare the graph, the features and the weights of a model.

    Each is made once and checked before the run.

    Raises:
        ConfigError: weights have a wrong shape or an unknown name.
        DataError: features are missing, not finite, or of different lengths.
    """
    stored, weights_id = read_weights(settings.weights)
    graph = ensure_graph(store, settings.graph, settings.blocks, journal)
    path, features_id, checks = build_features(store, settings, graph, journal)
    dims = int(map_array(path).shape[1])
    wanted = model_weight_shapes(settings.forms(), settings.final, dims)
    if stored is None:
        weights = random_weights(wanted, settings.seed)
    else:
        weights = check_weights(stored, wanted, str(settings.weights))
    layers, output_layers = make_layers(settings.forms(), settings.final, weights, dims, settings.seed)
    model_id = make_model_id(settings, graph.graph_id, features_id, weights_id)
    for table in (GRAPH_VECTORS, EMBEDDINGS):
        store.create(table)
    model = Model(
        model_id,
        layers,
        output_layers,
        settings.mode,
        settings.wire,
        str(path),
        str(files_folder(store) / "models" / model_id),
        store.location("graph_vectors"),
        store.location("embeddings") if settings.output == "embeddings" else None,
        settings.batch,
        settings.groups,
    )
    return PreparedGraphModel(settings, graph, model, checks, _measure_throughput(store, graph, model))


def _measure_throughput(store: Store, graph: Graph, model: Model) -> float:
    """Measure how fast features are read, unless the graph is small or the model exists already."""
    if graph.edges < PROBE_MIN_EDGES or Path(model.folder, NIGHT_NOTE).exists():
        return costs.DEFAULT_READ_SECONDS
    return measure_read_throughput(store.spark.sparkContext, graph, model.features)


def make_model_id(settings: GraphModel, graph_id: str, features_id: str, weights_id: str) -> str:
    """Return the name of a model. Models of equal names have equal bits."""
    return prefix_split_id(settings.graph, settings.key(graph_id, features_id, weights_id))


def compute_model_id(store: Store, settings: GraphModel) -> str:
    """Return the name that `prepare_model` will give a model. Nothing is built.

    Raises:
        ConfigError, DataError: weights or features do not exist.
    """
    graph_id, _ = identify_graph(store, settings.graph)
    _, weights_id = read_weights(settings.weights)
    return make_model_id(settings, graph_id, identify_features(store, settings), weights_id)


def describe_files(settings: GraphLayers) -> str:
    """Check that features and weights exist and fit together, and describe them. Spark is not needed.

    Raises:
        ConfigError, DataError, SchemaError: see `prepare_model`.
    """
    features, weights = settings.features, read_weights(settings.weights)[0]
    if features.path is None:
        dims = features.dims if features.kind == "hashed" else 1
    else:
        dims = first.count_dimensions(
            first.require_equal_lengths(first.open_features(features.path, features.id_column, "auto"))
        )
    wanted = model_weight_shapes(settings.forms(), settings.final, dims)
    if weights is not None:
        check_weights(weights, wanted, str(settings.weights))
    kind = "random" if weights is None else "of the right shapes"
    widths = [layer.width for layer in settings.layers] + list(settings.final)
    through = " -> ".join(map(str, [dims, *widths]))
    return f"features {features.path or features.kind}; dimensions {through}; {len(wanted)} weights, {kind}"


def read_weights(path: str | None) -> tuple[dict[str, Any] | None, str]:
    """Read the weights of a safetensors file and hash its bytes. Without a file return None and `random`.

    Numbers of 16 bits (bfloat16 too) and of 32 bits are exact in float32. Numbers of 64 bits are rounded to
    the nearest.

    Raises:
        ConfigError: the file does not exist, is not a safetensors file, or has weights that are no floats.
    """
    if path is None:
        return None, "random"
    from safetensors import SafetensorError, deserialize  # noqa: PLC0415

    try:
        packed = Path(path).read_bytes()
        stored = deserialize(packed)  # type: ignore[no-untyped-call]
        weights = {name: _read_weight(path, name, weight) for name, weight in stored}
    except OSError as error:
        raise ConfigError(f"weights {path}: {error.strerror}", "a file of safetensors") from None
    except SafetensorError as error:
        raise ConfigError(f"weights {path}: {error}", "save them by safetensors.torch.save_file") from None
    return weights, hashlib.sha256(packed).hexdigest()[:16]


FLOAT_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
"""Types of weights that are read, and the numpy types of their bytes.

A bfloat16 is the upper half of a float32.
"""


def _read_weight(path: str, name: str, stored: dict[str, Any]) -> npt.NDArray[Any]:
    """Read one weight of a safetensors file. Raise ConfigError for a type that is not supported."""
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
    store: Store, settings: GraphModel, graph: Graph, journal: Journal
) -> tuple[Path, str, dict[str, int]]:
    """Return the file of the feature matrix by dense id, its name and its counts.

    It is made once for all models.
    """
    features, context, name = (
        settings.features,
        store.spark.sparkContext,
        identify_features(store, settings),
    )
    folder = Path(graph.folder, "features", name)
    damage = _features_damage(folder)
    if damage:
        journal.say(f"warning: features {name} are damaged and are made anew: {damage}")
        remove_published(folder)
    with hold_lease(folder, (folder / COUNTS_FILE).is_file, journal.say) as lease:
        if lease is not None:
            text = f"features: {features.path or features.kind}"
            with journal.stage("features", text, graph_id=graph.graph_id):
                remove_tree(lease.work)
                counts = _fill_features(context, settings, graph, lease.work / "features.npy")
            require_unchanged()
            replace_text(lease.work / COUNTS_FILE, json.dumps(counts))
            write_seal(lease.work)
            lease.publish()
    return folder / "features.npy", name, json.loads((folder / COUNTS_FILE).read_text(encoding="utf-8"))


COUNTS_FILE = "counts.json"
"""File of counts in a folder of features. It is written after the matrix."""


def _features_damage(folder: Path) -> str:
    """Return the damage of the features on disk, or an empty text. Older versions wrote no seal."""
    return find_damage(folder, digests=True) if (folder / SEAL).is_file() else ""


def identify_features(store: Store, settings: GraphModel) -> str:
    """Hash all that determines the first vectors of a model's nodes."""
    features = settings.features
    options = features.model_dump(exclude={"path", "missing"})
    seed = settings.seed if features.kind == "hashed" else 0
    source = "" if features.path is None else identity(store.spark, str(Path(features.path).absolute()))
    return digest(options, source, features.missing, seed, settings.wire)


def _fill_features(context: Any, settings: GraphModel, graph: Graph, path: Path) -> dict[str, int]:
    features = settings.features
    if features.path is None:
        dims = features.dims if features.kind == "hashed" else 1
        create_matrix(path, (graph.nodes, dims), settings.wire)
        first.fill_generated(context, graph, features.kind, dims, settings.seed, path)
        return {}
    side = graph.sides.index(features.side or graph.sides[-1])
    rows: RowSource = first.open_features(
        features.path, features.id_column, "numeric" if graph.numeric[side] else "text"
    )
    dims = first.count_dimensions(rows)
    create_matrix(path, (graph.nodes, dims), settings.wire)
    return first.fill_from_table(context, graph, rows, side, dims, path, features.missing)


# --------------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class PassEstimate:
    """PassEstimate is the predicted cost of a pass under a plan.

    Attributes:
        step: the pass.
        plan: plan of the settings, or the chosen one.
        size: amounts of work of the pass.
        seconds: predicted wall time in seconds.
        low: lower end of the interval around `seconds`.
        high: upper end of the interval.
        tasks: number of tasks.
        moved: bytes of vectors or sums that are shuffled.
        memory: bytes of a worker without its mapped files.
    """

    step: Pass
    plan: PassPlan
    size: costs.PassSize
    seconds: float
    low: float
    high: float
    tasks: int
    moved: int
    memory: int


def pass_size(graph: Graph, step: Pass, widths: tuple[int, int], pace: float) -> costs.PassSize:
    """Return the size of a pass for its estimate of costs.

    `widths` are those of own vectors and of new ones.
    """
    into, sources = graph.side_blocks(step.side), graph.side_blocks(step.sources)
    d, o = widths
    m = step.module.message_width(d) if step.module.project is not None else d
    return costs.PassSize(
        sum(block.rows for block in into),
        sum(block.edges for block in into),
        sum(block.rows for block in sources),
        sum(block.sources for block in into),
        sum(block.parts for block in into),
        len(into),
        len(sources),
        d,
        m,
        o,
        np.dtype(step.dtype).itemsize,
        step.projects,
        step.module.aggregator == "gcn",
        step.kind == "layer",
        pace,
    )


def estimate_passes(
    prepared: PreparedGraphModel, rates: costs.Rates, cores: int, plan: str
) -> list[PassEstimate]:
    """Predict the cost of each pass and choose its plan before anything runs."""
    estimates = []
    d = int(map_array(Path(prepared.model.features)).shape[1])
    for step in plan_passes(prepared.model, prepared.graph):
        pooled = d if step.module.project is None else step.module.message_width(d)
        o = step.width if step.kind == "layer" else pooled
        size = pass_size(prepared.graph, step, (d, o), prepared.pace)
        estimates.append(_estimate_pass(step, size, rates, cores, plan, prepared))
        d = o if step.kind == "layer" else d
    return estimates


def _estimate_pass(
    step: Pass,
    size: costs.PassSize,
    rates: costs.Rates,
    cores: int,
    plan: str,
    prepared: PreparedGraphModel,
) -> PassEstimate:
    scattered = step.module.aggregator in SCATTERABLE
    item = 4 if step.target is not None and step.target.kind == "embeddings" else size.item
    copies = (step.out is not None) + (step.target is not None)
    costs.check_plan(plan, step.module.aggregator, scattered)
    if plan == "auto":
        plan = costs.choose_plan(size, rates, cores, item * copies, scattered, _mappable_bytes())
    amounts = size.amounts(plan, item * copies)
    seconds = rates.predict(amounts, cores)
    low, high = rates.interval(seconds)
    memory = size.worker_bytes(plan, prepared.model.batch)
    moved, tasks = size.bytes_moved(plan), int(amounts.tasks)
    return PassEstimate(step, cast(PassPlan, plan), size, seconds, low, high, tasks, moved, memory)


def _mappable_bytes() -> int:
    """Return the bytes of messages that this host can keep in memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(pages * MAPPED_SHARE, free_memory(pages) * FREE_SHARE))


def fit_rates(store: Store) -> costs.Rates:
    """Fit rates to the runs of this warehouse. With few runs return the default rates."""
    rows = store.read(GRAPH_RUNS).orderBy(F.desc("started_at")).limit(200).collect()
    return costs.fit_rates(
        [(costs.Amounts(*json.loads(row.amounts_json)), row.seconds, row.cores) for row in rows]
    )


def explain_costs(
    estimates: list[PassEstimate], prepared: PreparedGraphModel, rates: costs.Rates, cores: int
) -> str:
    """Format plan, tasks, bytes, memory, seconds and core-hours of the passes, one line for each."""
    graph = prepared.graph
    lines = [
        f"model {prepared.model.model_id} over graph {graph.graph_id}: {graph.nodes:,} nodes, "
        f"{graph.edges:,} edges, {len(graph.blocks)} blocks, wire {prepared.model.dtype}",
        f"{'pass':<22}{'plan':<6}{'tasks':>6}{'moved':>12}{'a worker':>12}"
        f"{'seconds':>10}{'from':>9}{'to':>9}",
    ]
    for one in estimates:
        name = f"{one.step.layer} {one.step.kind} {one.step.module.aggregator}"
        lines.append(
            f"{name:<22}{one.plan:<6}{one.tasks:>6}{_format_bytes(one.moved):>12}{_format_bytes(one.memory):>12}"
            f"{one.seconds:>10.2f}{one.low:>9.2f}{one.high:>9.2f}"
        )
    seconds, low, high = (
        sum(getattr(one, what) for one in estimates) for what in ("seconds", "low", "high")
    )
    hours = " to ".join(f"{value * cores / 3600:.4f}" for value in (low, high))
    lines.append(f"all: {seconds:.2f} s ({low:.2f} to {high:.2f}), {hours} core-hours on {cores} cores")
    basis = f"fitted to {rates.runs} runs of this warehouse" if rates.runs else "built in: no runs here yet"
    lines.append(f"rates: {basis}; intervals hold 19 times in 20{_describe_throughput(prepared)}")
    return "\n".join(lines)


def _describe_throughput(prepared: PreparedGraphModel) -> str:
    """Describe the measured time to read a vector of features."""
    if prepared.pace == costs.DEFAULT_READ_SECONDS:
        return ""
    features = map_array(Path(prepared.model.features))
    seconds = prepared.pace * features.shape[1] * features.itemsize
    return f"; probe: {seconds * 1e9:.0f} ns of a core to take in a vector of features"


def _format_bytes(n: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n = n / 1000  # type: ignore[assignment]
    return f"{n:.1f} TB"


# --------------------------------------------------------------------------------- running


@contextmanager
def open_model_work(
    store: Store, prepared: PreparedGraphModel, journal: Journal
) -> Iterator[PreparedGraphModel]:
    """Give a model a work folder that no other run writes to, and publish its note at the end.

    A run that was killed is continued: its committed blocks count and its files are used again. If another
    run computes the model, this one waits for it.
    """
    target, graph = Path(prepared.model.folder), prepared.graph

    def is_done() -> bool:
        return (target / NIGHT_NOTE).is_file() and has_result(graph, prepared.model)

    with hold_lease(target, is_done, journal.say, [Path(graph.folder, MANIFEST)]) as lease:
        if lease is None:
            yield prepared
            return
        yield replace(prepared, model=replace(prepared.model, folder=str(lease.work)))
        if (lease.work / NIGHT_NOTE).is_file():
            lease.publish()


def embed(store: Store, prepared: PreparedGraphModel, journal: Journal) -> list[LayerRun]:
    """Compute all layers and commit them one by one, with rows in `graph_runs` and `checks`.

    Existing blocks stay.
    """
    context = store.spark.sparkContext
    cores, rates = context.defaultParallelism, fit_rates(store)
    planned = {
        _pass_key(one.step): one for one in estimate_passes(prepared, rates, cores, prepared.settings.plan)
    }
    write_graph_checks(store, prepared.model.model_id, prepared.checks)
    report, record = (
        partial(_report_pass, journal, planned),
        partial(_record_pass, store, prepared, planned, cores),
    )
    runs = run_model(context, prepared.graph, prepared.model, _plan_chooser(planned), report, record)
    _write_note(prepared)
    if not runs:
        journal.say(f"model {prepared.model.model_id}: made before")
    return runs


PassEstimates = Mapping[tuple[int, str], "PassEstimate"]


def _record_pass(
    store: Store, prepared: PreparedGraphModel, planned: PassEstimates, cores: int, run: LayerRun
) -> None:
    """Write the row of a pass in `graph_runs` and its number of projected vectors, once."""
    name, step = prepared.model.model_id, planned[run.layer, run.kind].step
    once = f"/{run.layer}/{run.kind}/{len(prepared.graph.blocks)}"
    store.append_rows([_run_row(prepared, run, planned, cores)], GRAPH_RUNS, once=f"{name}{once}")
    if step.projects or (run.kind == "layer" and step.module.project is None):
        counts = {f"vectors_projected_in_layer_{run.layer}": run.projected}
        write_graph_checks(store, name, counts, once)


NIGHT_NOTE = "night.json"
"""File in a model's folder that the next night reads. Its paths are relative to `graph_files`."""


def model_family(prepared: PreparedGraphModel) -> str:
    """Hash the settings and weights of a model without its graph.

    All nights of one model have the same hash.
    """
    weights = hashlib.sha256()
    for layer in prepared.model.layers:
        arrays = [layer.own_t, layer.pooled_t, layer.bias, layer.recurrent_t, *(layer.project or ())[:2]]
        for array in arrays:
            weights.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    for end in prepared.model.output_layers:
        weights.update(end.weight_t.tobytes() + end.bias.tobytes())
    return prepared.settings.key("family", "", weights.hexdigest()[:16])


def _write_note(prepared: PreparedGraphModel) -> None:
    """Remove the files of the layers of a complete model, and note where its tables are."""
    folder = Path(prepared.model.folder)
    for file in folder.glob("*.npy"):
        file.unlink()
    root = Path(prepared.graph.folder).parent
    note = {
        "model_id": prepared.model.model_id,
        "graph": relative_path(prepared.graph.folder, root),
        "features": relative_path(prepared.model.features, root),
        "family": model_family(prepared),
        "layers": len(prepared.model.layers),
        "mode": prepared.model.mode,
        "output": prepared.settings.output,
    }
    replace_text(folder / NIGHT_NOTE, json.dumps(note))


def layer_places(store: Store, graph: Graph, note: Mapping[str, Any]) -> tuple[LayerFiles, ...]:
    """Return where the vectors of each layer of a stored model are. Mode bipartite ends with pools."""
    name, last = {"model_id": str(note["model_id"])}, int(note["layers"])
    bipartite = note.get("mode") == "bipartite"
    every = tuple(range(len(graph.sides)))
    places = []
    for k in range(1, last + 1 + bipartite):
        sides = every if not bipartite else (0,) if k > last else (1,)
        if k >= last and note["output"] == "embeddings":
            places.append(LayerFiles(store.location("embeddings"), name, sides, True))
        else:
            partition = {**name, "layer": str(k)}
            places.append(LayerFiles(store.location("graph_vectors"), partition, sides, False))
    return tuple(places)


def _plan_chooser(planned: PassEstimates) -> Callable[[Pass], PassPlan]:
    return lambda step: planned[_pass_key(step)].plan


def _pass_key(step: Pass) -> tuple[int, str]:
    return step.layer, step.kind


def _report_pass(journal: Journal, planned: PassEstimates, run: LayerRun) -> None:
    one = planned[run.layer, run.kind]
    expected = one.seconds * run.nodes / max(one.size.nodes, 1)  # only for the nodes of this run
    journal.say(
        f"layer {run.layer} {run.kind} ({run.aggregator}, plan {run.plan}): {run.nodes:,} nodes, "
        f"{run.edges / max(run.seconds, 1e-9):,.0f} edges/s, {_format_bytes(run.shuffled)} shuffled, "
        f"{run.seconds:.1f} s, {run.seconds / max(expected, 1e-9):.0%} of the predicted time"
    )
    journal.record("graph_layer", **run._asdict(), predicted=expected)


def _run_row(
    prepared: PreparedGraphModel, run: LayerRun, planned: PassEstimates, cores: int
) -> dict[str, Any]:
    one = planned[run.layer, run.kind]
    share = run.nodes / max(one.size.nodes, 1)
    item = 4 if one.step.target is not None and one.step.target.kind == "embeddings" else one.size.item
    copies = (one.step.out is not None) + (one.step.target is not None)
    amounts = one.size.amounts(run.plan, item * copies)
    return {
        "model_id": prepared.model.model_id,
        "graph_id": prepared.graph.graph_id,
        "model": prepared.settings.name,
        "layer": run.layer,
        "aggregator": run.aggregator,
        "plan": run.plan,
        "nodes": run.nodes,
        "edges": run.edges,
        "width": run.width,
        "vectors_projected": run.projected,
        "bytes_shuffled": run.shuffled,
        "predicted_bytes": int(one.moved * share),
        "seconds": run.seconds,
        "predicted_seconds": one.seconds * share,
        "amounts_json": json.dumps([amount * share for amount in amounts[:-1]] + [amounts.passes]),
        "cores": cores,
        "started_at": datetime.fromtimestamp(run.started, UTC),
    }
