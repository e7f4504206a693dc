"""Neighbourhoods by random walks over a laid-out graph: the table `neighbourhoods`."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from recbench_spark.config.graph import GraphSource, NeighbourhoodSettings
from recbench_spark.graph.distributed_walks import walk_distributed
from recbench_spark.graph.folders import Graph
from recbench_spark.graph.local_walks import NeighbourFile, WalkWay, adjacency_bytes, walk_locally
from recbench_spark.graph.pipeline import ensure_graph, prefix_split_id, write_graph_checks
from recbench_spark.kernels.graph.walks import Walks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import NEIGHBOURHOODS
from recbench_spark.storage import delta_files
from recbench_spark.storage.store import Store

MAPPED_SHARE = 0.5
"""Of a host's memory that the adjacency may take to be walked on locally."""


class WalkMethod(NamedTuple):
    """How walks are done, and why in words."""

    way: WalkWay
    words: str


def make_walks(settings: NeighbourhoodSettings) -> Walks:
    """The walks as the kernels take them."""
    edges = 2 if settings.graph.bipartite else 1
    return Walks(settings.walks, settings.hops, settings.restart, edges, settings.top, settings.seed)


def choose_walk_method(graph: Graph, asked: str) -> WalkMethod:
    """`local` where the adjacency fits into a share of this host's memory, else `join`; or as asked."""
    needs = adjacency_bytes(graph) / 2**30
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    fits = needs < MAPPED_SHARE * has
    way: WalkWay = "local" if asked == "local" or (asked == "auto" and fits) else "join"
    why = "as asked" if asked != "auto" else f"{'below' if fits else 'not below'} {MAPPED_SHARE:.0%} of it"
    return WalkMethod(way, f"{way}: adjacency of {needs:.3f} GiB, memory of {has:.1f} GiB a host ({why})")


def ensure_neighbourhoods(store: Store, settings: NeighbourhoodSettings, journal: Journal) -> str:
    """The name of the neighbourhoods; made once, all rows in one commit.

    Nothing is shuffled (local), or one walker an edge of a walk (join). A task holds some thousand nodes'
    neighbours (local), or one file of edges and some hundred thousand walkers.

    Raises:
        ConfigError, DataError, SchemaError, StoreError: as `graph_of`.
    """
    graph = ensure_graph(store, settings.graph, settings.blocks, journal)
    name = prefix_split_id(settings.graph, settings.key(graph.graph_id))
    store.create(NEIGHBOURHOODS)
    folder = store.location("neighbourhoods")
    if delta_files.is_committed(folder, name):
        journal.say(f"neighbourhoods {name}: made before")
        return name
    what, choice = make_walks(settings), choose_walk_method(graph, settings.way)
    journal.say(f"walks {choice.words}")
    started = time.monotonic()
    walk = walk_locally if choice.way == "local" else walk_distributed
    partition = {"neighbourhood_id": name}
    with journal.stage("neighbourhoods", f"neighbourhoods {name}: walk") as counts:
        found = walk(store.spark.sparkContext, graph, settings.place, what, folder, partition)
        files = [listed.file for listed in found]
        delta_files.require_visible(folder, files)
        counts.update(_count_walks(found, what))
        write_graph_checks(
            store, name, _count_walks(found, what)
        )  # before: a run killed between lacks neither
        delta_files.commit(folder, files, partition, name)
    _report_counts(journal, found, what, time.monotonic() - started)
    return name


def _count_walks(found: list[NeighbourFile], what: Walks) -> dict[str, int]:
    return {
        "nodes": sum(listed.nodes for listed in found),
        "nodes_without_neighbours": sum(listed.alone for listed in found),
        "neighbours": sum(listed.neighbours for listed in found),
        "steps_at_most": sum(listed.nodes for listed in found) * what.steps,
    }


def _report_counts(journal: Journal, found: list[NeighbourFile], what: Walks, seconds: float) -> None:
    counts = _count_walks(found, what)
    rate = counts["steps_at_most"] / max(seconds, 1e-9) / 1e6
    journal.say(
        f"{counts['nodes']:,} nodes, {counts['nodes_without_neighbours']:,} of them without neighbours; "
        f"{counts['neighbours']:,} neighbours, {rate:.1f} million steps a second"
    )


def neighbourhood_source(store: Store, name: str) -> GraphSource:
    """Neighbourhoods as a graph whose edges are weighed by visits: what `jobs/embed.py` pools over."""
    return GraphSource(
        edges=store.location("neighbourhoods"),
        format="delta",
        lists=True,
        weighted=True,
        partitions={"neighbourhood_id": name},
    )
