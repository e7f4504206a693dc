"""Build a warehouse's graphs, each once, and find them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from recbench_spark import schemas
from recbench_spark.config import digest
from recbench_spark.core import revisions
from recbench_spark.core.inputs import pin_inputs, require_unchanged
from recbench_spark.errors import ConfigError, StoreError, nearest
from recbench_spark.graphs.build import CheckNodes, build_graph, default_block_count, write_node_table
from recbench_spark.graphs.build_inputs import open_inputs
from recbench_spark.graphs.edges import RowSource
from recbench_spark.graphs.folders import FOLDER, MANIFEST, Graph, read_graph
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.runtime.journal import Journal
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage import seals
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.delta_tables import open_table
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import explain_missing_folder, find_folder, make_folder
from recbench_spark.storage.objects import list_folders, refresh_time, remove_objects
from recbench_spark.storage.uris import absolute_place, join_uri

THIRD_COLUMN = "column_2"
"""Column name after src and dst in a CSV file without header."""


def files_folder(store: FileTables) -> str:
    """Return the folder for graph files, path or URI.

    Raises:
        StoreError: the warehouse is a catalog where Spark writes, or on a storage where tasks do not
            write objects themselves.
    """
    if (place := store.file_place(FOLDER)) is None:
        raise StoreError(
            f"{store.root} is neither a folder nor an object storage, where files of graphs can be",
            "--warehouse must be a folder that the driver and all workers see, or s3://, gs://, abfss://, hdfs://",
        )
    return place


def split_source(store: FileTables, split_id: str, **more: Any) -> GraphSource:
    """Return a split's training part as a bipartite graph.

    No held-out row is ever read.

    Args:
        store: the warehouse.
        split_id: the split's name.
        more: further settings for the source.

    Raises:
        ConfigError: there is no such split.
    """
    store.create(schemas.SPLITS)
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


def identify_graph(store: FileTables, source: GraphSource) -> tuple[str, str]:
    """Return a graph's name and the identity of its edges.

    The name is a hash of the inputs. It begins with the split's name, if there is one.
    """
    edges = ",".join(f"{name}={value}" for name, value in sorted(source.partitions.items()))
    # In the warehouse's tables a partition is named by a hash of all inputs of its rows.
    if not edges or source.edges not in map(store.location, schemas.TABLES):
        edges = " of ".join(filter(None, [edges, choose_identity(store)(absolute_place(source.edges))]))
    nodes = {side: choose_identity(store)(path) for side, path in source.nodes.items()}
    settings = source.model_dump(exclude={"edges", "nodes"})
    name = digest("graph", settings, edges, nodes, revisions.select_revisions("graphs"))
    return prefix_split_id(source, name), edges


def prefix_split_id(source: GraphSource, name: str) -> str:
    """Put the name of the graph's split before a name.

    Retention uses the prefix to find everything from a split.
    """
    walked = source.partitions.get("neighbourhood_id", "").rpartition("-")[0]
    split_id = source.partitions.get("split_id") or walked
    return f"{split_id}-{name}" if split_id else name


def find_graph(store: FileTables, graph_id: str, blocks: int | None, journal: Journal) -> Graph | None:
    """Find a complete graph in the warehouse, or return None.

    The graph is marked as used now.

    With `blocks` None any number of blocks will do, so the number of cores may change between runs. In a
    folder, tasks compare the files with the seal, and a damaged graph is removed. On object storage each
    object is compared when it is fetched.
    """
    root = files_folder(store)
    wanted = f"{graph_id}-{blocks or ''}"
    for name in list_folders(root):
        if name != wanted and (blocks or not name.startswith(wanted)):
            continue
        graph = _read_stored_graph(join_uri(root, name))
        if graph is None:
            continue
        refresh_time(graph.place(MANIFEST))
        damage = _find_graph_damage(store.engine, graph.folder)
        if not damage:
            return graph
        journal.say(f"warning: graph {graph_id} is damaged and is built again: {damage}")
        remove_objects(graph.folder)
    return None


def _read_stored_graph(target: str) -> Graph | None:
    folder = find_folder(target)
    return None if folder is None else read_graph(folder)


@pin_inputs()
def ensure_graph(
    store: FileTables,
    source: GraphSource,
    blocks: int | None,
    journal: Journal,
    nodes: bool = True,
    *,
    check: CheckNodes | None = None,
) -> Graph:
    """Return a source's graph, built once.

    Rows are written to `graphs`, `graph_nodes` and `checks`.

    Args:
        store: the warehouse.
        source: edges, node tables and their settings.
        blocks: blocks on each side; None: by the number of edges.
        journal: receives the progress.
        nodes: true if `graph_nodes` is written.
        check: as in `build.build_graph`; not called for an existing graph.

    Raises:
        ConfigError, DataError, SchemaError, StoreError: see `build.build_graph`.
    """
    graph_id, edges = identify_graph(store, source)
    graph = find_graph(store, graph_id, blocks, journal)
    if graph is not None:
        journal.say(f"graph {graph_id}: already built")
    else:
        graph = _build_graph(store, source, graph_id, blocks, journal, check=check)
    # Each is written once per graph. A killed run may not have written them.
    if nodes:
        store.create(schemas.GRAPH_NODES)
        write_node_table(store.engine, graph, store.location("graph_nodes"))
    _append_graph(store, source, graph, edges)
    return graph


def _build_graph(
    store: FileTables,
    source: GraphSource,
    graph_id: str,
    blocks: int | None,
    journal: Journal,
    *,
    check: CheckNodes | None,
) -> Graph:
    """Build, seal and publish a graph; another number of blocks has another folder.

    If another run builds it, wait for that one.
    """
    rows, engine = open_inputs(source).edges, store.engine
    if (warning := warn_unread_weights(source, rows)) is not None:
        journal.say(warning)
    wanted = blocks or default_block_count(rows.n, engine.cores)
    folder, title = join_uri(files_folder(store), f"{graph_id}-{wanted}"), f"build from {source.edges}"
    with journal.stage("graph", f"graph {graph_id}: {title}", graph_id=graph_id) as counts:
        with make_folder(folder, lambda: _read_stored_graph(folder) is not None, journal.say) as work:
            if work is not None:
                work.clear()
                build_graph(engine, source, graph_id, work.work, wanted, check=check)
                require_unchanged()
                if work.lease is not None:
                    _write_graph_seal(engine, work.lease.work)
                work.publish()
        graph = _read_stored_graph(folder)
        if graph is None:
            raise explain_missing_folder(folder)
        counts |= {"nodes": graph.nodes, "edges": graph.edges}
    rate = graph.checks["edges"] / max(graph.seconds, 1e-9)
    journal.say(f"graph {graph_id}: {graph.nodes:,} nodes, {graph.edges:,} edges, {rate:,.0f} a second")
    return graph


def _write_graph_seal(engine: Engine, folder: Path) -> None:
    """Write each file's length and digest to a folder's seal.

    Tasks read each file once. The driver holds a name, a number and a digest for each file; there are a
    few files for each block.
    """
    names = seals.list_files(folder)
    entries = engine.parallelize(names, len(names)).map(partial(seals.seal_entry, folder=folder)).collect()
    seals.write_entries(folder, dict(entries))


def _find_graph_damage(engine: Engine, folder: str) -> str:
    """Describe how a graph's files differ from their seal.

    The text is empty where they agree. Graphs from older versions have no seal and are not checked.
    """
    try:
        entries: list[tuple[str, seals.Entry]] = list(seals.read_seal(folder).items())
        look = partial(_find_file_damage, folder=Path(folder))
        damages = engine.parallelize(entries, len(entries)).map(look).collect() if entries else []
    except StoreError as error:
        return error.message
    return next(filter(None, damages), "")


def _find_file_damage(entry: tuple[str, seals.Entry], folder: Path) -> str:
    return seals.find_file_damage(folder, *entry, digests=True)


def warn_unread_weights(source: GraphSource, rows: RowSource) -> str | None:
    """Warn if the edges seem to have unused weights.

    The result is None where they have none.
    """
    if source.weighted or source.partitions:
        return None
    likely = source.column("weights" if source.lists else "weight")
    names = [name for name in (likely, THIRD_COLUMN) if name in rows.others]
    if not names:
        return None
    what = f"column {names[0]}" if names[0] == likely else "the third column"
    return f"warning: {what} of {source.edges} is not read: every edge weighs 1 (weights: --weighted)"


def _append_graph(store: FileTables, source: GraphSource, graph: Graph, edges: str) -> None:
    where = f", {json.dumps(source.where)}" if source.where else ""
    stored = source.model_copy(update={"edges": shorten_edges(store, source.edges)})
    row = {
        "graph_id": graph.graph_id,
        "sides": list(graph.sides),
        "nodes": graph.nodes,
        "edges": graph.edges,
        "blocks": len(graph.blocks),
        "weighted": graph.weighted,
        "source": stored.edges + where,
        "source_identity": edges,
        "settings_json": stored.model_dump_json(),
        "seconds": graph.seconds,
        "laid_out_at": datetime.now(UTC),
    }
    store.append([row], schemas.GRAPHS, once=graph.graph_id)
    write_graph_checks(store, graph.graph_id, graph.checks)


def shorten_edges(store: FileTables, edges: str) -> str:
    """Shorten the path of a graph's edges for rows.

    A table in the warehouse is shown by its name alone.
    """
    for table in (schemas.SPLITS, schemas.NEIGHBOURHOODS):
        edges = store.shorten_path(edges, table.name)
    return edges


FAULT_COUNTS = ("null_ids", "bad_weights", "negative_weights", "nodes_without_features")
"""Counts that should be 0."""


def write_graph_checks(store: FileTables, name: str, counts: Mapping[str, int], of: str = "") -> None:
    """Write counts of a graph or a model to `checks`.

    run_id is its name. The rows are written once for each name, or once for each name and part `of` it.
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
    store.append(rows, schemas.CHECKS, once=f"graph/{name}{of}")
