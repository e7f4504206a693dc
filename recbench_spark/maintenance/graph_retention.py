"""Retention of the files of graphs and of models over them, and of the vectors of layers.

Files of a split's graph are removed with the split. Files of a graph from an edge list are removed if
nothing has used them since the first night that is kept: each use updates the time of the graph's manifest
and of a model's note. Files that a run may be using stay (`maintenance/retention.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from recbench_spark.graph.folders import FOLDER, NIGHT_NOTE, read_note
from recbench_spark.maintenance.retention import (
    MAX_NIGHT_SECONDS,
    RetentionRule,
    find_old_folders,
    find_old_objects,
    find_unused_objects,
    remove_folders,
)
from recbench_spark.schemas import GRAPH_RUNS, GRAPH_VECTORS
from recbench_spark.storage.uris import join_uri

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore


@dataclass(frozen=True)
class OldGraphs:
    """Graph files and vectors that retention removes.

    Attributes:
        folders: folders of graphs and of models, in `graph_files`.
        models: models of edge lists whose layers are removed; their embeddings stay.
        size: bytes of the folders.
    """

    folders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    size: int = 0


def find_old_graphs(
    store: AnyStore, before: date, keep: Sequence[date] = (), splits: Collection[str] = ()
) -> OldGraphs:
    """Return the folders that no kept night needs.

    Args:
        store: the warehouse.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        splits: splits that will be removed.
    """
    if store.folder is None:
        return _find_old_graph_objects(store, RetentionRule.read(store, before, keep, splits))
    root = store.folder / FOLDER
    if not root.is_dir():
        return OldGraphs()
    rule = RetentionRule.read(store, before, keep, splits)
    old = find_old_folders(root, 2, rule)
    old_models = find_old_folders(root / "models", 1, rule)
    lists = [
        folder.name for folder in old_models if "-" not in folder.name and (folder / NIGHT_NOTE).is_file()
    ]
    folders = sorted(old + old_models)
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    names = tuple(str(folder.relative_to(root)) for folder in folders)
    return OldGraphs(names, tuple(sorted(lists)), size)


def _find_old_graph_objects(store: AnyStore, rule: RetentionRule) -> OldGraphs:
    """Return the old folders of an object storage; a catalog where Spark writes has none."""
    if not store.is_file_storage:
        return OldGraphs()
    root = join_uri(store.root, FOLDER)
    sizes = find_old_objects(root, 2, rule)
    names = tuple(place.removeprefix(f"{root}/") for place in sizes)
    models = [name.removeprefix("models/") for name in names if name.startswith("models/")]
    lists = [name for name in models if "-" not in name and read_note(join_uri(root, f"models/{name}"))]
    return OldGraphs(names, tuple(lists), sum(sizes.values()))


def drop_old_graphs(store: AnyStore, old: OldGraphs) -> None:
    """Delete old graphs, rows of layers first, so that no model without files appears complete."""
    root = join_uri(str(store.folder or store.root), FOLDER)
    places = [join_uri(root, name) for name in old.folders]
    if store.folder is None:  # a run may have begun to use one of them
        places = find_unused_objects(places, store.read_clock() - MAX_NIGHT_SECONDS)
    models = [name for name in old.models if join_uri(root, f"models/{name}") in places]
    if models and store.exists(GRAPH_VECTORS.name):
        for name in models:
            layer = _last_layer(store, name)
            vectors = f"CASE WHEN layer < {layer} THEN model_id END"
            store.delete(GRAPH_VECTORS.name, vectors, [name])
    remove_folders(store, places if store.folder is None else list(map(Path, places)))


def _last_layer(store: AnyStore, name: str) -> int:
    """Return the layer of a model whose vectors are its result and are kept like embeddings."""
    note = read_note(join_uri(str(store.folder or store.root), f"{FOLDER}/models/{name}"))
    assert note is not None
    return int(note["layers"]) + int(note["output"] == "embeddings")


def compact_table(store: AnyStore, name: str) -> bool:
    """OPTIMIZE a table; return False for one whose files must stay as tasks wrote them, block by block.

    A run over a graph identifies finished blocks by the names of files. So vectors of graph models are not
    compacted, in `embeddings` either.
    """
    if name == GRAPH_VECTORS.name:
        return False
    models: list[str] = []
    if name == "embeddings":
        models = sorted(store.list_values(GRAPH_RUNS, "model_id") if store.exists(GRAPH_RUNS.name) else [])
    store.optimize(name, without=("model_id", models))
    return True
