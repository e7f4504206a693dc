"""Compute tonight's embeddings from last night's, and report the drift.

Only changed nodes are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recbench_spark.errors import ConfigError, nearest
from recbench_spark.graphs import incremental, model_families
from recbench_spark.graphs.drift import measure_drift
from recbench_spark.graphs.estimates import estimate_passes
from recbench_spark.graphs.folders import MANIFEST, NIGHT_NOTE, read_graph, read_note
from recbench_spark.graphs.incremental import GraphNight, LayerChanges
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.message_passing import ReusedFiles
from recbench_spark.graphs.model_families import Note
from recbench_spark.graphs.model_inputs import MODELS, PreparedGraphModel, model_folder, read_layers
from recbench_spark.graphs.pipeline import layer_places
from recbench_spark.graphs.runner import plan_passes
from recbench_spark.graphs.settings import GraphModel
from recbench_spark.graphs.stored_graphs import files_folder
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import MANIFESTS
from recbench_spark.storage.block_arrays import has_parts, read_parts
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import hold_private_folder
from recbench_spark.storage.objects import list_folders, refresh_time
from recbench_spark.storage.uris import join_uri, resolve_path


def read_model_night(store: FileTables, model_id: str) -> tuple[GraphNight, Note]:
    """Return an embedded model and its note.

    Raises:
        ConfigError: the model is not in this warehouse, or its graph's files are gone.
    """
    root = files_folder(store)
    note = read_note(model_folder(store, model_id))
    if note is None:
        known = [name for name in list_folders(join_uri(root, MODELS)) if not name.startswith(".")]
        raise ConfigError(f"no embedded model {model_id} in {store.root}", nearest(model_id, known))
    folder, features = (_resolve_stored_place(root, note[name]) for name in ("graph", "features"))
    graph = read_graph(folder)
    # Retention keeps what was used lately.
    for mark in (join_uri(model_folder(store, model_id), NIGHT_NOTE), join_uri(folder, MANIFEST)):
        refresh_time(mark)
    if graph is None or not has_parts(features):
        raise ConfigError(f"the graph of model {model_id} is gone: {folder}", "run without --previous")
    return GraphNight(graph, features, layer_places(store, graph, note)), note


def check_previous_model(store: FileTables, settings: GraphModel, previous: str) -> None:
    """Refuse an earlier model with other settings or weights.

    The refusal comes before anything is built (`check_family`).
    """
    note = read_note(model_folder(store, previous))
    if note is not None:
        model_families.check_family(settings, read_layers(settings), note)


def _resolve_stored_place(root: str, stored: str) -> str:
    """Resolve a place in a note.

    Notes hold places below `graph_files`; those from older versions are absolute paths.
    """
    if not stored.startswith("/"):
        return join_uri(root, stored)
    return str(resolve_path(stored, Path(root).parent, Path(root).name))


def find_earlier_model(
    store: FileTables, prepared: PreparedGraphModel, splits: Sequence[str]
) -> str | None:
    """Find this model on an earlier night.

    That night's model has equal settings and weights, and another split.

    Args:
        store: the warehouse.
        prepared: tonight's model.
        splits: splits of earlier nights, the newest first. If tonight's own split comes first, nothing
            has changed and the result is None.
    """
    own, folder = prepared.settings.graph.partitions.get("split_id"), join_uri(files_folder(store), MODELS)
    names = list_folders(folder)
    for split_id in splits:
        if split_id == own:
            return None
        for name in (name for name in names if name.startswith(f"{split_id}-")):
            note = read_note(join_uri(folder, name))
            if note is not None and model_families.has_family(
                prepared.settings, model_families.list_layers(prepared), note
            ):
                return str(note["model_id"])
    return None


def plan_refresh(
    store: FileTables, prepared: PreparedGraphModel, previous: str, rates: costs.Rates, journal: Journal
) -> tuple[PreparedGraphModel, str]:
    """Plan which files of an earlier model can be reused.

    Returns the model with these files, and a sentence about them. If a full run is cheaper, the model is
    returned unchanged.

    Raises:
        ConfigError: the earlier model has another mode, other settings or another kind of graph.
    """
    before, note = read_model_night(store, previous)
    _check_compatible(prepared, before, note)
    if not incremental.has_all_vectors(before):
        return prepared, f"previous {previous}: some of its layers are missing, so all nodes are computed"
    engine, steps = store.engine, plan_passes(prepared.model, prepared.graph)
    folder = prepared.model.folder
    with journal.stage("compare", f"compare with {previous}", previous=previous):
        changes = incremental.mark_changes(engine, prepared.graph, steps, before, folder)
    full, less = _predict_seconds(prepared, changes, rates, engine.cores)
    both = zip(steps, changes, strict=True)
    counts = ", ".join(f"{step.kind} {step.layer} {one.nodes:,}" for step, one in both)
    message = f"previous {previous}: of {prepared.graph.nodes:,} nodes, affected are {counts}; "
    if less >= full:
        return prepared, f"{message}a full run is cheaper ({full:.2f} s against {less:.2f} s)"
    for k, place in enumerate(before.places, 1):
        kind = "float32" if place.by_side else prepared.model.dtype
        incremental.restore_vectors(engine, before, [place], join_uri(folder, f"before-{k}"), kind)
    reused: dict[tuple[int, str], ReusedFiles] = {
        (step.layer, step.kind): incremental.list_reused_files(folder, p, step)
        for p, step in enumerate(steps, 1)
    }
    message += f"only these are computed ({less:.2f} s against {full:.2f} s)"
    return replace(prepared, model=replace(prepared.model, reused=reused)), message


def _check_compatible(prepared: PreparedGraphModel, before: GraphNight, note: Note) -> None:
    """Refuse another model, or another kind of graph.

    The error names each difference with both values.
    """
    model_families.check_family(prepared.settings, model_families.list_layers(prepared), note)
    kinds = [
        {"sides": g.sides, "numeric ids": g.numeric, "graph.seed": g.seed, "weighted": g.weighted}
        for g in (prepared.graph, before.graph)
    ]
    if differences := model_families.list_differences(kinds[0], kinds[1]):
        raise ConfigError(
            f"the graph of {note['model_id']} is of another kind: {differences}", model_families.SAME_MODEL
        )


def _predict_seconds(
    prepared: PreparedGraphModel, changes: list[LayerChanges], rates: costs.Rates, cores: int
) -> tuple[float, float]:
    """Predict the seconds of full run and reusing run.

    The reusing run copies nodes without changes.
    """
    full = less = 0.0
    for one, part in zip(estimate_passes(prepared, rates, cores, "R"), changes, strict=True):
        whole = one.size.amounts("R", one.size.item)
        share = part.edges / max(one.size.edges, 1)
        nodes = part.nodes / max(one.size.nodes, 1)
        less_work = {"read": whole.read * share, "flops": whole.flops * nodes}
        changed = whole._replace(**less_work, written=2 * whole.written)
        full += rates.predict(whole, cores)
        less += rates.predict(changed, cores)
    return full, less


def report_drift(
    store: FileTables, prepared: PreparedGraphModel, previous: str, journal: Journal
) -> list[tuple[str, str, float]]:
    """Measure how far embeddings moved since an earlier model.

    The result is printed and appended to `manifests`.
    """
    before, _ = read_model_night(store, previous)
    now, _ = read_model_night(store, prepared.model.model_id)
    last, engine = len(prepared.model.layers) - 1, store.engine
    with hold_private_folder(model_folder(store, prepared.model.model_id)) as folder:
        arrays = [join_uri(folder, name) for name in ("now", "then")]
        for array, night in zip(arrays, (now, before), strict=True):
            incremental.restore_vectors(engine, night, night.places[last:], array, "float32")
        widths = [read_parts(array).shape[1] for array in arrays]
        if len(set(widths)) > 1:
            message = f"vectors of {widths[0]} and {widths[1]} dimensions have no cosine"
            raise ConfigError(message, "use vectors of the same length")
        facts = measure_drift(engine, now.graph, arrays[0], before.graph, arrays[1])
    for side, fact, value in facts:
        journal.say(f"{side}: {fact.replace('_', ' ')} {value:.4f}")
    name = prepared.model.model_id
    common = {"split_id": name, "detail": f"since {previous}"}
    rows = [{**common, "part": side, "fact": fact, "value": float(value)} for side, fact, value in facts]
    store.append(rows, MANIFESTS, once=f"drift/{name}/{previous}")
    return facts
