"""Find neighbourhoods by random walks over a graph.

They are written to the table `neighbourhoods`. Where the adjacency does not fit on a host, walkers travel:
a walk is an equi-join on (node, position), edge after edge. The hash of its position decides which file an
edge is in, with its source's degree. A walker draws its next position and is sent to that file, whether
its node is a hub or not. A task holds one edge file (some 64 MB) and a few hundred thousand walkers:
20 bytes each, plus 4 for each hop. Each edge of a walk takes one shuffle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from recbench_spark.core.compiling import readonly
from recbench_spark.graphs.folders import SEPARATE, Graph, NodeBlock, Parts, publish_arrays
from recbench_spark.graphs.kernels import walks
from recbench_spark.graphs.local_walks import (
    NODES_A_PIECE,
    NeighbourFile,
    WalkTable,
    WalkWay,
    walk_locally,
    write_lists,
)
from recbench_spark.graphs.settings import GraphSource, NeighbourhoodSettings
from recbench_spark.graphs.stored_graphs import ensure_graph, prefix_split_id, write_graph_checks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import NEIGHBOURHOODS
from recbench_spark.storage import delta_files
from recbench_spark.storage.block_arrays import has_parts, map_part, map_whole, write_part
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import hold_private_folder
from recbench_spark.storage.retries import commit_files
from recbench_spark.storage.uris import join_uri

MAPPED_SHARE = 0.5
"""Share of a host's memory the adjacency may take for local walks."""


class WalkMethod(NamedTuple):
    """A way to walk, and the reason in words."""

    way: WalkWay
    words: str


def make_walks(settings: NeighbourhoodSettings) -> walks.Walks:
    """Turn settings into walks for the kernels."""
    edges = 2 if settings.graph.bipartite else 1
    rules = (settings.restart, edges, settings.top, settings.seed)
    return walks.Walks(settings.walks, settings.hops, *rules)


def choose_walk_method(graph: Graph, requested: str) -> WalkMethod:
    """Choose how to walk.

    A requested way is taken. By default the way is `local` where the adjacency fits into this host's
    memory, else `join`.
    """
    needs = (8 * (graph.nodes + 1) + 4 * graph.edges) / 2**30
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
    what, choice = make_walks(settings), choose_walk_method(graph, settings.way)
    journal.say(f"walks {choice.words}")
    started = time.monotonic()
    walk = walk_locally if choice.way == "local" else walk_distributed
    partition = {"neighbourhood_id": name}
    with journal.stage("neighbourhoods", f"neighbourhoods {name}: walk") as counts:
        written = walk(store.engine, graph, settings.place, what, WalkTable(folder, partition))
        files = [file.file for file in written]
        delta_files.require_visible(folder, files)
        nodes, alone = sum(file.nodes for file in written), sum(file.alone for file in written)
        neighbours = sum(file.neighbours for file in written)
        totals = {"nodes": nodes, "nodes_without_neighbours": alone, "neighbours": neighbours}
        totals["steps_at_most"] = nodes * what.steps
        counts.update(totals)
        # The checks come first: if the run is killed in between, a second run writes both.
        write_graph_checks(store, name, totals)
        commit_files(folder, files, partition, name)
    rate = totals["steps_at_most"] / max(time.monotonic() - started, 1e-9) / 1e6
    journal.say(
        f"{nodes:,} nodes, {alone:,} of them without neighbours; "
        f"{neighbours:,} neighbours, {rate:.1f} million steps a second"
    )
    return name


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


# --------------------------------------------------------------------------------- walks that travel

EDGES_A_FILE = 1 << 22
WALKERS_AT_ONCE = 1 << 18

Packed = tuple[int, bytes]


class WalkContext(NamedTuple):
    """The inputs every task needs: graph, walks and files."""

    graph: Graph
    what: walks.Walks
    files: int
    pieces: tuple[NodeBlock, ...]
    positions: str


def walk_distributed(
    engine: Engine, graph: Graph, side: int, what: walks.Walks, table: WalkTable
) -> list[NeighbourFile]:
    """Walk from all nodes on a side, sending walkers around.

    Some thousand nodes become a file.
    """
    _write_degrees(engine, graph)
    pieces = tuple(  # a piece keeps the block's number
        replace(block, first=first, rows=min(NODES_A_PIECE, block.end - first))
        for block in graph.side_blocks(side)
        for first in range(block.first, block.end, NODES_A_PIECE)
    )
    # Each run has its own position files: several runs may walk over one graph at once.
    with hold_private_folder(graph.place("positions")) as positions:
        files = _write_position_files(engine, graph, positions)
        return _run_walk(engine, WalkContext(graph, what, files, pieces, positions), table)


def _run_walk(engine: Engine, journey: WalkContext, table: WalkTable) -> list[NeighbourFile]:
    what, pieces = journey.what, journey.pieces
    start = partial(_start_walkers, journey=journey)
    moving = engine.parallelize(range(len(pieces)), len(pieces)).mapPartitions(start)
    for number in range(what.hops * what.edges):
        move = partial(_move_walkers, journey=journey, number=number)
        moving = moving.partitionBy(journey.files, int).mapPartitionsWithIndex(move)
    write = partial(_write_neighbours, journey=journey, table=table)
    return list(moving.partitionBy(len(pieces), int).mapPartitionsWithIndex(write).collect())


# ------------------------------------------------------------------------------------------ edges


DEGREES = "degrees"
"""Array (nodes,) with the number of edges into each node."""


def _write_degrees(engine: Engine, graph: Graph) -> None:
    """Write each node's number of edges, once per graph."""
    if has_parts(graph.place(DEGREES)):
        return
    write = partial(_write_block_degrees, graph=graph)
    written = engine.parallelize(graph.blocks, len(graph.blocks)).map(write).collect()
    publish_arrays(graph.folder, written, {DEGREES: ((graph.nodes,), np.uint32)})


def _write_block_degrees(block: NodeBlock, graph: Graph) -> Parts:
    degrees = np.diff(graph.csr(block).indptr).astype(np.uint32)
    return {DEGREES: write_part(graph.place(DEGREES), block.number, degrees, block.first)}


def map_degrees(graph: Graph) -> Any:
    """Map the degrees from `_write_degrees`, (nodes,)."""
    return map_whole(graph.place(DEGREES))


POSITIONS = {"keys": np.uint64, "src": np.uint32, "degree": np.uint32}
"""Arrays in a position file, sorted by position.

For each edge: its position, its source, and the source's degree.
"""


def _write_position_files(engine: Engine, graph: Graph, folder: str) -> int:
    """Write edges to files by position hash.

    Returns the number of files.
    """
    files = max(2 * engine.cores, -(-graph.edges // EDGES_A_FILE))
    cut = partial(_partition_positions, graph=graph, files=files)
    partitioned = engine.parallelize(graph.blocks, len(graph.blocks)).flatMap(cut)
    write = partial(_write_position_file, graph=graph, folder=folder)
    written = partitioned.partitionBy(files, int).mapPartitionsWithIndex(write).collect()
    publish_arrays(folder, written, {name: (SEPARATE, dtype) for name, dtype in POSITIONS.items()})
    return files


def _partition_positions(
    block: NodeBlock, graph: Graph, files: int
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    csr, rows = graph.csr(block), NODES_A_PIECE
    for at in range(0, block.rows, rows):
        begins = np.asarray(csr.indptr[at : at + rows + 1])
        counts = np.diff(begins)
        node = np.repeat(np.arange(block.first + at, block.first + at + len(counts)), counts)
        place = np.arange(begins[0], begins[-1]) - np.repeat(begins[:-1], counts)
        keys = (node.astype(np.uint64) << np.uint64(32)) | place.astype(np.uint64)
        src = csr.src[begins[0] : begins[-1]]
        for file, chosen in _group_by_file(walks.assign_files(readonly(keys), files), files):
            yield file, (keys[chosen].tobytes(), src[chosen].tobytes())


def _group_by_file(file_e: Any, files: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows for each file."""
    order = np.argsort(file_e, kind="stable")
    ends = np.cumsum(np.bincount(file_e, minlength=files)).tolist()
    begin = 0
    for file, end in enumerate(ends):
        if end > begin:
            yield file, order[begin:end]
        begin = end


def _write_position_file(
    number: int, packets: Iterable[tuple[int, tuple[bytes, bytes]]], graph: Graph, folder: str
) -> Iterator[Parts]:
    received = [packed for _, packed in packets]
    keys = np.frombuffer(b"".join(keys for keys, _ in received), np.uint64)
    src = np.frombuffer(b"".join(src for _, src in received), np.uint32)
    order = np.argsort(keys, kind="stable")
    arrays = {"keys": keys[order], "src": src[order], "degree": map_degrees(graph)[src[order]]}
    yield {name: write_part(join_uri(folder, name), number, array) for name, array in arrays.items()}


# ------------------------------------------------------------------------------------------ walkers


def _start_walkers(numbers: Iterator[int], journey: WalkContext) -> Iterator[Packed]:
    """Yield a piece's walkers, addressed to their first positions."""
    graph, what = journey.graph, journey.what
    size = max(1, WALKERS_AT_ONCE // what.walks)
    for number in numbers:
        piece = journey.pieces[number]
        for first in range(piece.first, piece.end, size):
            starts = np.arange(first, min(first + size, piece.end), dtype=np.uint32)
            yield from _send_walkers(
                walks.make_walkers(starts, map_degrees(graph)[starts], what), 0, journey
            )


def _send_walkers(group: Any, number: int, journey: WalkContext) -> Iterator[Packed]:
    """Yield walkers, each addressed to its next file.

    The next file is the drawn edge's, or at the end the piece with the walkers' start.
    """
    graph, what = journey.graph, journey.what
    hop, part = divmod(number, what.edges)
    if hop == what.hops:
        firsts = np.array([piece.first for piece in journey.pieces])
        to = (np.searchsorted(firsts, group["start"], side="right") - 1).astype(np.int32)
        targets = len(firsts)
    else:
        hashes = graph.hashes()[group["start"]]
        if part == 0:
            walks.begin_hop(group, hashes, hop, what)
        position_w, targets = walks.draw_positions(group, hashes, hop, part + 1, what), journey.files
        to = walks.assign_files(readonly(position_w), targets)
    for file, chosen in _group_by_file(to, targets):
        yield file, group[chosen].tobytes()


def _receive_walkers(packed: Iterable[Packed], hops: int) -> Iterator[Any]:
    """Yield received walkers, some hundred thousand at a time."""
    buffer: list[bytes] = []
    size, kind = 0, np.dtype(walks.walker_type(hops))
    for _, data in packed:
        buffer.append(data)
        size += len(data)
        if size >= WALKERS_AT_ONCE * kind.itemsize:
            yield np.frombuffer(b"".join(buffer), kind).copy()
            buffer, size = [], 0
    if buffer:
        yield np.frombuffer(b"".join(buffer), kind).copy()


def _move_walkers(
    file: int, packed: Iterable[Packed], journey: WalkContext, number: int
) -> Iterator[Packed]:
    """Move walkers along one edge, towards their next file."""
    graph, what = journey.graph, journey.what
    hop, part = divmod(number, what.edges)
    keys, src, degree = (map_part(join_uri(journey.positions, name), file) for name in POSITIONS)
    for group in _receive_walkers(packed, what.hops):
        key_w = walks.draw_positions(group, graph.hashes()[group["start"]], hop, part + 1, what)
        has_edge = (group["degree"] > 0) & (group["at"] != walks.NOWHERE)
        place = np.searchsorted(keys, key_w[has_edge])
        node_w, degrees_w = np.full(len(group), walks.NOWHERE), np.zeros(len(group), np.uint32)
        node_w[has_edge], degrees_w[has_edge] = src[place], degree[place]
        walks.move_walkers(group, node_w, degrees_w, hop, part + 1 == what.edges)
        yield from _send_walkers(group, number + 1, journey)


def _write_neighbours(
    number: int, packed: Iterable[Packed], journey: WalkContext, table: WalkTable
) -> Iterator[NeighbourFile]:
    piece, what = journey.pieces[number], journey.what
    visits = np.full((piece.rows, what.walks, what.hops), walks.NOWHERE)
    for group in _receive_walkers(packed, what.hops):
        visits[group["start"] - piece.first, group["walk"]] = group["path"]
    most: walks.MostVisited = walks.find_most_visited(visits.reshape(piece.rows, -1), what.top)
    yield write_lists(journey.graph, piece, [(piece.first, most)], table)
