"""Remove old graph files, models over graphs, and layer vectors.

A split's graph goes with its split. A graph from an edge list goes if nothing has used it since the first
kept night: each use updates the time on the graph's manifest and on a model's note. Files stay while a run
may be using them (`maintenance/retention.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from recbench_spark.graphs.folders import FOLDER, read_note
from recbench_spark.maintenance.retention import (
    MAX_NIGHT_SECONDS,
    RetentionRule,
    find_old_folders,
    find_unused,
    remove_folders,
)
from recbench_spark.schemas import GRAPH_RUNS, GRAPH_VECTORS
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.uris import join_uri, relative_place


@dataclass(frozen=True)
class OldGraphs:
    """Graph files and vectors for retention to remove.

    Attributes:
        folders: folders of graphs and models, in `graph_files`.
        models: models on edge lists whose layers are removed; their embeddings stay.
        size: bytes in the folders.
    """

    folders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    size: int = 0


def find_old_graphs(root: str, rule: RetentionRule) -> OldGraphs:
    """Return the warehouse's graph folders which no kept night needs."""
    files = join_uri(root, FOLDER)
    sizes = find_old_folders(root, FOLDER, 2, rule)
    names = tuple(relative_place(place, files) for place in sizes)
    models = [name.removeprefix("models/") for name in names if name.startswith("models/")]
    lists = [
        name
        for name in models
        if "-" not in name and read_note(join_uri(files, "models", name)) is not None
    ]
    return OldGraphs(names, tuple(lists), sum(sizes.values()))


def drop_old_graphs(store: FileTables, old: OldGraphs) -> None:
    """Delete old graphs, except those a run now uses.

    Layer rows go first, so that a model without files never looks complete.
    """
    in_use = store.find_use_time(MAX_NIGHT_SECONDS)
    places = find_unused((join_uri(store.root, FOLDER, name) for name in old.folders), in_use)
    if old.models and store.exists(GRAPH_VECTORS.name):
        for name in old.models:
            place = join_uri(store.root, FOLDER, "models", name)
            if place in places:
                vectors = f"CASE WHEN layer < {_last_layer(place)} THEN model_id END"
                store.delete(GRAPH_VECTORS.name, vectors, [name])
    remove_folders(places, in_use)


def _last_layer(place: str) -> int:
    """Return a model's output layer, which is kept like embeddings."""
    note = read_note(place)
    assert note is not None
    return int(note["layers"]) + int(note["output"] == "embeddings")


def compact_table(store: FileTables, name: str) -> bool:
    """OPTIMIZE a table; return False if its files must stay.

    A run over a graph recognises finished blocks by file name. So vectors from graph models are never
    compacted, not even in `embeddings`.
    """
    if name == GRAPH_VECTORS.name:
        return False
    models: list[str] = []
    if name == "embeddings":
        models = sorted(store.list_values(GRAPH_RUNS, "model_id") if store.exists(GRAPH_RUNS.name) else [])
    store.optimize(name, without=("model_id", models))
    return True
