"""Retention of the files of graphs and of models over them, and of the vectors of layers.

Files of a split's graph are removed with the split. Files of a graph from an edge list are removed if
nothing has used them since the first night that is kept: each use updates the time of the graph's manifest
and of a model's note. Files that a run may be using stay (`maintenance/retention.py`).
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
    """Graph files and vectors that retention removes.

    Attributes:
        folders: folders of graphs and of models, in `graph_files`.
        models: models of edge lists whose layers are removed; their embeddings stay.
        size: bytes of the folders.
    """

    folders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    size: int = 0


def find_old_graphs(root: str, rule: RetentionRule) -> OldGraphs:
    """Return the folders that no kept night needs, of the warehouse at `root`."""
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
    """Delete old graphs, rows of layers first, so that no model without files appears complete.

    Those that a run has begun to use stay.
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
    """Return the layer of a model whose vectors are its result and are kept like embeddings."""
    note = read_note(place)
    assert note is not None
    return int(note["layers"]) + int(note["output"] == "embeddings")


def compact_table(store: FileTables, name: str) -> bool:
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
