"""Retention of what graphs and models over them leave beside the tables: files, and vectors of layers.

What is of a split goes with the split. What is of an edge list goes when nothing has used it since the
first night that is kept: each use marks the graph's manifest, and a model's note, by its time. Whatever was
touched within a day stays, since a night may be at work on it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from pyspark.sql import functions as F

from recbench_spark.graph.folders import MANIFEST
from recbench_spark.schemas import GRAPH_RUNS, GRAPH_VECTORS, SPLITS
from recbench_spark.steps.embedding import FOLDER, NIGHT
from recbench_spark.store import Store

AT_WORK = 24 * 3600
"""Seconds: a night is over within a day."""


@dataclass(frozen=True)
class OldGraphs:
    """What retention removes.

    Attributes:
        folders: of graphs and of models, in `graph_files`.
        models: models of edge lists whose layers go; their embeddings stay.
        size: bytes of the folders.
    """

    folders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    size: int = 0


def find_old_graphs(
    store: Store, before: date, keep: Sequence[date] = (), splits: Collection[str] = ()
) -> OldGraphs:
    """Folders that no kept night needs.

    Args:
        store: the warehouse.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        splits: those that are about to be removed.
    """
    root = None if store.folder is None else store.folder / FOLDER
    if root is None or not root.is_dir():
        return OldGraphs()
    there = {row.split_id for row in store.read(SPLITS).select("split_id").distinct().collect()}
    kept = there - set(splits)
    graphs = [folder for folder in root.iterdir() if folder.is_dir() and folder.name != "models"]
    models = [folder for folder in (root / "models").glob("*") if folder.is_dir()]
    old = [folder for folder in graphs if is_old(folder, 2, kept, before, keep)]
    old_models = [folder for folder in models if is_old(folder, 1, kept, before, keep)]
    lists = [folder.name for folder in old_models if "-" not in folder.name and (folder / NIGHT).is_file()]
    found = sorted(old + old_models)
    size = sum(file.stat().st_size for folder in found for file in folder.rglob("*") if file.is_file())
    names = tuple(str(folder.relative_to(root)) for folder in found)
    return OldGraphs(names, tuple(sorted(lists)), size)


def is_old(folder: Path, dashes: int, kept: Collection[str], before: date, keep: Sequence[date]) -> bool:
    """Whether nobody needs a folder; one of a split has its name before the first of `dashes` or more."""
    used = last_use(folder)
    if time.time() - used < AT_WORK:
        return False
    if folder.name.count("-") >= dashes:
        return folder.name.partition("-")[0] not in kept
    day = datetime.fromtimestamp(used, UTC).date()
    return day < before and day not in keep


def last_use(folder: Path) -> float:
    """Seconds since 1970: of the mark of the last use, or of the newest file where none was finished."""
    marks = [file for file in (folder / MANIFEST, folder / NIGHT) if file.is_file()]
    files = marks or [folder, *(file for file in folder.rglob("*") if file.is_file())]
    return max(file.stat().st_mtime for file in files)


def drop_old_graphs(store: Store, old: OldGraphs) -> None:
    """Delete them: rows of layers first, so that nothing takes a model for whole whose files are gone."""
    assert store.folder is not None or not old.folders
    if old.models and store.exists(GRAPH_VECTORS.name):
        for name in old.models:
            layer = _last_layer(store, name)
            vectors = f"CASE WHEN layer < {layer} THEN model_id END"
            store.delete(GRAPH_VECTORS.name, vectors, [name])
    for folder in old.folders:
        shutil.rmtree((store.folder or Path()) / FOLDER / folder, ignore_errors=True)


def _last_layer(store: Store, name: str) -> int:
    """The layer of a model whose vectors are its result, kept like embeddings."""
    note = json.loads(((store.folder or Path()) / FOLDER / "models" / name / NIGHT).read_text("utf-8"))
    return int(note["layers"]) + int(note["output"] == "embeddings")


def compact(store: Store, name: str) -> bool:
    """OPTIMIZE a table; False for one whose files stay as tasks wrote them, block by block.

    A run over a graph knows by the names of files which blocks are there: vectors of graph models are left
    alone, in `embeddings` too.
    """
    if name == GRAPH_VECTORS.name:
        return False
    models: list[str] = []
    if name == "embeddings":
        rows = store.read(GRAPH_RUNS).select("model_id").distinct()
        models = [row.model_id for row in rows.orderBy(F.col("model_id")).collect()]
    store.optimize(name, without=("model_id", models))
    return True
