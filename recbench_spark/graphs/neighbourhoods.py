"""Find neighbourhoods by random walks over a graph.

They are written to the table `neighbourhoods`.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from recbench_spark.graphs.distributed_walks import walk_distributed
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.walks import Walks
from recbench_spark.graphs.local_walks import NeighbourFile, WalkWay, adjacency_bytes, walk_locally
from recbench_spark.graphs.settings import GraphSource, NeighbourhoodSettings
from recbench_spark.graphs.stored_graphs import ensure_graph, prefix_split_id, write_graph_checks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import NEIGHBOURHOODS
from recbench_spark.storage import delta_files
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.retries import commit_files

MAPPED_SHARE = 0.5
"""Share of a host's memory the adjacency may take for local walks."""


class WalkMethod(NamedTuple):
    """A way to walk, and the reason in words."""

    way: WalkWay
    words: str


def make_walks(settings: NeighbourhoodSettings) -> Walks:
    """Turn settings into walks for the kernels."""
    edges = 2 if settings.graph.bipartite else 1
    return Walks(settings.walks, settings.hops, settings.restart, edges, settings.top, settings.seed)


def choose_walk_method(graph: Graph, requested: str) -> WalkMethod:
    """Choose how to walk.

    A requested way is taken. By default the way is `local` where the adjacency fits into this host's
    memory, else `join`.
    """
    needs = adjacency_bytes(graph) / 2**30
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    fits = needs < MAPPED_SHARE * has
    way: WalkWay = "local" if requested == "local" or (requested == "auto" and fits) else "join"
    why = (
        "as requested"
        if requested != "auto"
        else f"{'below' if fits else 'not below'} {MAPPED_SHARE:.0%} of it"
    )
    return WalkMethod(way, f"{way}: adjacency of {needs:.3f} GiB, memory of {has:.1f} GiB a host ({why})")


def ensure_neighbourhoods(store: FileTables, settings: NeighbourhoodSettings, journal: Journal) -> str:
    """Compute neighbourhoods once, and return their name.

    All rows are committed together. Local walks shuffle nothing, and a task holds some thousand nodes'
    neighbours. Distributed walks (`join`) shuffle each walker once for each edge, and a task holds one
    edge file and some hundred thousand walkers.

    Raises:
        ConfigError, DataError, SchemaError, StoreError: see `ensure_graph`.
    """
    graph = ensure_graph(store, settings.graph, settings.blocks, journal)
    name = prefix_split_id(settings.graph, settings.key(graph.graph_id))
    store.create(NEIGHBOURHOODS)
    folder = store.location("neighbourhoods")
    if delta_files.is_committed(folder, name):
        journal.say(f"neighbourhoods {name}: already made")
        return name
    walks, choice = make_walks(settings), choose_walk_method(graph, settings.way)
    journal.say(f"walks {choice.words}")
    started = time.monotonic()
    walk = walk_locally if choice.way == "local" else walk_distributed
    partition = {"neighbourhood_id": name}
    with journal.stage("neighbourhoods", f"neighbourhoods {name}: walk") as counts:
        written = walk(store.engine, graph, settings.place, walks, folder, partition=partition)
        files = [file.file for file in written]
        delta_files.require_visible(folder, files)
        counts.update(_count_walks(written, walks))
        # The checks come first: if the run is killed in between, a second run writes both.
        write_graph_checks(store, name, _count_walks(written, walks))
        commit_files(folder, files, partition, name)
    _report_counts(journal, written, walks, time.monotonic() - started)
    return name


def _count_walks(written: list[NeighbourFile], walks: Walks) -> dict[str, int]:
    return {
        "nodes": sum(file.nodes for file in written),
        "nodes_without_neighbours": sum(file.alone for file in written),
        "neighbours": sum(file.neighbours for file in written),
        "steps_at_most": sum(file.nodes for file in written) * walks.steps,
    }


def _report_counts(journal: Journal, written: list[NeighbourFile], walks: Walks, seconds: float) -> None:
    counts = _count_walks(written, walks)
    rate = counts["steps_at_most"] / max(seconds, 1e-9) / 1e6
    journal.say(
        f"{counts['nodes']:,} nodes, {counts['nodes_without_neighbours']:,} of them without neighbours; "
        f"{counts['neighbours']:,} neighbours, {rate:.1f} million steps a second"
    )


def neighbourhood_source(store: FileTables, name: str) -> GraphSource:
    """Return neighbourhoods as a graph source.

    The source's edges are weighted by visits, and `recbench embed` pools over them.
    """
    return GraphSource(
        edges=store.location("neighbourhoods"),
        format="delta",
        lists=True,
        weighted=True,
        partitions={"neighbourhood_id": name},
    )
