"""Build a graph on disk from an edge list.

The result holds dense ids, degrees, and adjacency in blocks. The edges are read twice; each time they are
shuffled once, in byte blocks. In the first pass (`build_nodes`) tasks partition the distinct id hashes by
range. Each sorted range is a block of nodes, and a node's place among all is its dense id. Whole numbers
close together are collected as bits, so a task sends each of them once (`NumberSet`). In the second pass
tasks look up both ends of each edge in a mapped file, without a join, and partition the edges by
destination block. The block then sorts them.

A task holds a chunk of edges, or the edges into one block: 12 bytes an edge, three times. The driver
holds a few numbers for each block. Shuffle files are removed as soon as they are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.core.hashing import Hashes
from recbench_spark.errors import DataError, StoreError
from recbench_spark.graphs.build_inputs import EdgeCounts, GraphInputs, Weight, open_inputs, read_edges
from recbench_spark.graphs.build_nodes import (
    NODES,
    TEXT_BYTES,
    TEXT_ENDS,
    NodeBlockCounts,
    build_nodes,
    run_shuffle,
)
from recbench_spark.graphs.edges import count_tasks
from recbench_spark.graphs.folders import SEPARATE, Graph, NodeBlock, Parts, make_file_place, publish_arrays
from recbench_spark.graphs.kernels.csr import build_csr, count_sources, edge_keys, find_blocks, group_edges
from recbench_spark.graphs.kernels.ids import (
    MOST_NODES,
    build_index,
    hash_node_ids,
    look_up_hashes,
    look_up_numbers,
    unhash_numbers,
)
from recbench_spark.storage import block_arrays, delta_files
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.objects import open_output, remove_objects
from recbench_spark.storage.retries import commit_files

if TYPE_CHECKING:  # workers import this module and do not need the settings
    from recbench_spark.graphs.settings import GraphSource

EDGES_A_BLOCK = 1 << 22
"""Edges into a block, approximately.

The task that sorts them needs some 100 MB.
"""

SPARSEST_NUMBERS = 8
"""Largest range of whole numbers for each node.

Below it, a file with dense ids by number serves the build.
"""

LOW_PLACES = 2
"""Places at the file's start for the least number (64 bits)."""


def default_block_count(edges: int, cores: int) -> int:
    """Return the number of blocks on a side.

    A block gets some 4 million edges, and all cores get work.
    """
    return max(2 * cores, -(-edges // EDGES_A_BLOCK))


CheckNodes = Callable[[Graph], None]
"""Check of other inputs against a graph's nodes, before its edges are built.

It raises DataError.
"""


def build_graph(
    engine: Engine,
    source: GraphSource,
    graph_id: str,
    folder: str | Path,
    blocks: int | None = None,
    *,
    check: CheckNodes | None = None,
) -> Graph:
    """Build a source's graph.

    Args:
        engine: the runner.
        source: edges, node tables and their settings.
        graph_id: the graph's name, a hash of its inputs.
        folder: folder for its files, a path or a URI; no other run writes to it.
        blocks: blocks on each side.
        check: called when the nodes are known and no edge is stored yet.

    Raises:
        DataError: ids or weights cannot be used, there are no edges, or two texts have one hash.
    """
    started = time.monotonic()
    inputs = open_inputs(source)
    cores = engine.cores
    per_side = blocks or default_block_count(inputs.edges.n, cores)
    counts, nodes = build_nodes(engine, inputs, str(folder), per_side)
    _check_inputs(counts, nodes, source)
    graph = _assemble_graph(inputs, graph_id, str(folder), nodes)
    _index_nodes(engine, graph)
    if check is not None:
        check(graph)
    into = _build_edges(engine, inputs, graph, source.duplicates == "drop")
    remove_objects(graph.place(NUMBERS))
    whole = tuple(
        replace(block, edges=own.edges, sources=own.sources, parts=own.parts)
        for block, own in zip(graph.blocks, sorted(into), strict=True)
    )
    checks = {
        **counts._asdict(),
        "nodes": graph.nodes,
        "isolated_nodes": sum(n.isolated for n in nodes),
        "duplicate_edges": sum(own.doubles for own in into),
        "stored_edges": sum(block.edges for block in whole),
        "most_edges_of_a_node": max(own.most for own in into),
    }
    done = replace(graph, blocks=whole, checks=checks, seconds=time.monotonic() - started)
    done.write()
    return done


def _check_inputs(counts: EdgeCounts, nodes: list[NodeBlockCounts], source: GraphSource) -> None:
    """Refuse inputs without a usable graph.

    With `bad_rows: drop` bad rows are left out and counted.
    """
    descriptions = {
        "null_ids": "edges with an id that is NULL",
        "bad_weights": "edges whose weight is NULL, NaN or infinite",
        "negative_weights": "edges of negative weight",
    }
    for name, what in descriptions.items():
        count = getattr(counts, name)
        if count and source.bad_rows == "error":
            raise DataError(
                f"{source.edges}: {count} of {counts.edges} {what}",
                "mend them, or leave them out: bad_rows: drop (--drop-bad-rows)",
            )
    if source.lists and not counts.edges:
        raise DataError(
            f"none of the {sum(block.rows for block in nodes):,} nodes has a neighbour, so there is nothing"
            f" to pool over ({source.edges})",
            "walks need items that share users: use another split, or a model without walks",
        )
    if counts.edges == counts.null_ids + counts.bad_weights + counts.negative_weights:
        raise DataError(f"{source.edges}: no edges that can be used", "check the path, columns and where")
    if not any(block.rows for block in nodes):
        hint = "keep them, or name nodes (--node-table)"
        raise DataError(f"{source.edges}: all edges are self loops, which are left out: no nodes", hint)


# --------------------------------------------------------------------------------- nodes


def _assemble_graph(inputs: GraphInputs, graph_id: str, folder: str, nodes: list[NodeBlockCounts]) -> Graph:
    total = sum(block.rows for block in nodes)
    if total >= MOST_NODES:
        message = f"{total} nodes, and a graph holds {MOST_NODES - 1}"
        raise StoreError(message, "split it into smaller graphs")
    per_side, at, blocks = len(nodes) // len(inputs.sides), 0, []
    for block in nodes:
        blocks.append(NodeBlock(block.number, block.number // per_side, at, block.rows))
        at += block.rows
    return Graph(
        graph_id, folder, inputs.sides, inputs.numeric, tuple(blocks),
        inputs.names[2] is not None, inputs.seed, {},
    )  # fmt: skip


NUMBERS = "numbers"
"""Dense ids plus 1 by whole number, during the build.

There is one object for each side whose numbers are close together.
"""


def _index_nodes(engine: Engine, graph: Graph) -> None:
    """Write node hashes by dense id, and each prefix index.

    Each side has an index.
    """
    hashes = engine.parallelize(graph.blocks, len(graph.blocks)).map(partial(_place_hashes, graph=graph))
    publish_arrays(graph.folder, hashes.collect(), {"hashes": ((graph.nodes,), np.uint64)})
    remove_objects(graph.place(NODES))
    sides = range(len(graph.sides))
    written = engine.parallelize(sides, len(sides)).map(partial(_index_side, graph=graph)).collect()
    arrays = {"index": (SEPARATE, np.int64), NUMBERS: (SEPARATE, np.uint32)}
    publish_arrays(graph.folder, written, arrays)


def _place_hashes(block: NodeBlock, graph: Graph) -> Parts:
    """Write a block's hashes again, now at their dense ids."""
    hashes = block_arrays.map_part(graph.place(NODES), block.number)
    return {"hashes": block_arrays.write_part(graph.place("hashes"), block.number, hashes, block.first)}


def _index_side(side: int, graph: Graph) -> Parts:
    first, end = graph.side_range(side)
    hashes = graph.hashes()
    parts = {"index": block_arrays.write_part(graph.place("index"), side, build_index(hashes[first:end]))}
    if graph.numeric[side] and end > first:
        parts |= _index_numbers(side, graph, hashes)
    return parts


def _index_numbers(side: int, graph: Graph, hashes: Hashes) -> Parts:
    """Write dense ids by number where numbers are close together.

    An edge's end is then found with one look into a small file.
    """
    blocks = [block for block in graph.side_blocks(side) if block.rows]
    numbers = (unhash_numbers(hashes[block.first : block.end], graph.seed) for block in blocks)
    lows, highs = zip(*((number_r.min(), number_r.max()) for number_r in numbers), strict=True)
    low, high = int(min(lows)), int(max(highs))
    if high - low >= SPARSEST_NUMBERS * sum(block.rows for block in blocks):
        return {}
    with block_arrays.make_part(
        graph.place(NUMBERS), side, (high - low + 1 + LOW_PLACES,), np.uint32
    ) as maker:
        table = maker.map_rows()
        table[:LOW_PLACES] = np.array([low], np.int64).view(np.uint32)
        for block in blocks:
            number_r = unhash_numbers(hashes[block.first : block.end], graph.seed)
            dense_r = np.arange(block.first + 1, block.end + 1, dtype=np.uint32)
            table[LOW_PLACES + number_r - low] = dense_r
    return {NUMBERS: maker.entry}


# --------------------------------------------------------------------------------- edges


class EdgeBlockCounts(NamedTuple):
    """A task's counts and parts for a block's edges.

    The counts are edges, repeated pairs, largest degree and sources; the parts are by array name.
    """

    number: int
    edges: int
    doubles: int
    most: int
    sources: int
    parts: int
    written: Parts


def _build_edges(engine: Engine, inputs: GraphInputs, graph: Graph, drop: bool) -> list[EdgeBlockCounts]:
    """Write each block's adjacency."""
    readers = count_tasks(inputs.edges, engine.cores)
    read = partial(_partition_edges, inputs=inputs, graph=graph, readers=readers)
    write = partial(_write_block, graph=graph, drop=drop)
    partitioned = engine.parallelize(range(readers), readers).mapPartitions(read)
    counts: list[EdgeBlockCounts] = run_shuffle(partitioned.partitionBy(len(graph.blocks), int), write)
    arrays: dict[str, Any] = {"indptr": (SEPARATE, np.int64), "src": (SEPARATE, np.uint32)}
    if graph.weighted:
        arrays["weight"] = (SEPARATE, np.float32)
    publish_arrays(graph.folder, (block.written for block in counts), arrays)
    return counts


def _partition_edges(
    numbers: Iterator[int], inputs: GraphInputs, graph: Graph, readers: int
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    firsts = np.array([block.first for block in graph.blocks], np.int64)
    lasts = np.array([block.end for block in graph.blocks], np.int64)
    find = NodeFinder(graph)
    for number in numbers:
        for ends, weight, _ in read_edges(inputs, inputs.edges.part(number, readers)):
            sides = (0, 1) if inputs.bipartite else (0, 0)
            dense = [find.ids(end, side) for end, side in zip(ends, sides, strict=True)]
            ways = [(0, 1), (1, 0)] if inputs.both_ways else [(0, 1)]
            for way, (one, other) in enumerate(ways):
                src, dst, w = dense[one], dense[other], weight
                block = find_blocks(dst, lasts)
                if way == 1 and not inputs.bipartite:  # a loop is the same edge in both directions
                    once = src != dst
                    src, dst, block = src[once], dst[once], block[once]
                    w = None if w is None else w[once]
                yield from _group_by_block(block, dst, src, w, firsts)


class NodeFinder:
    """Looks up dense ids by id hash, in mapped files."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.hashes = graph, graph.hashes()
        self.index = [graph.index(side) for side in range(len(graph.sides))]

    @cached_property
    def numbers(self) -> list[npt.NDArray[np.uint32] | None]:
        """Dense ids by number for each side.

        Only the build reads them, and removes them at its end.
        """
        place, sides = self.graph.place(NUMBERS), range(len(self.graph.sides))
        known = block_arrays.read_parts(place).parts if block_arrays.has_parts(place) else {}
        return [block_arrays.map_part(place, side) if side in known else None for side in sides]

    def ids(self, ids: pa.Array, side: int) -> npt.NDArray[np.uint32]:
        """Look up raw ids' dense ids, (r,).

        A dense id is `ids.NOT_THERE` where the side has no such node.
        """
        table = self.numbers[side]
        if table is None:
            return self(hash_node_ids(ids, self.graph.seed), side)
        low = int(table[:LOW_PLACES].view(np.int64)[0])
        return look_up_numbers(ids.to_numpy(), low, table[LOW_PLACES:])

    def __call__(self, hashes: Hashes, side: int) -> npt.NDArray[np.uint32]:
        """Look up hashes' dense ids, (r,).

        A dense id is `ids.NOT_THERE` where the side has no such node.
        """
        first, end = self.graph.side_range(side)
        dense_r = look_up_hashes(hashes, self.hashes[first:end], self.index[side])
        there = dense_r < MOST_NODES
        dense_r[there] += np.uint32(first)
        return dense_r


def _group_by_block(
    block: npt.NDArray[np.int32], dst: Any, src: Any, weight: Weight, firsts: npt.NDArray[np.int64]
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    local = (dst - firsts[block]).astype(np.uint32)
    grouped = group_edges(block, edge_keys(local, src), weight, len(firsts))
    begin = 0
    for number, end in enumerate(grouped.ends):
        if end > begin:
            weights = b"" if grouped.weight is None else grouped.weight[begin:end].tobytes()
            yield number, (grouped.keys[begin:end].tobytes(), weights)
        begin = end


def _write_block(
    number: int, blocks: Iterable[tuple[int, tuple[bytes, bytes]]], graph: Graph, drop: bool
) -> Iterator[EdgeBlockCounts]:
    received = [packed for _, packed in blocks]
    keys = np.frombuffer(b"".join(keys for keys, _ in received), np.uint64).copy()
    weight = np.frombuffer(b"".join(w for _, w in received), np.float32) if graph.weighted else None
    del received
    csr, doubles = build_csr(graph.blocks[number].rows, keys, weight, drop)
    written = {
        name: block_arrays.write_part(graph.place(name), number, array)
        for name, array in csr._asdict().items()
        if array is not None
    }
    most = int(np.diff(csr.indptr).max(initial=0))
    ends = np.array([block.end for block in graph.blocks], np.int64)
    sources, parts = count_sources(csr, graph.nodes, ends)
    yield EdgeBlockCounts(number, csr.edges, doubles, most, sources, parts, written)


# --------------------------------------------------------------------------------- a table of nodes


def write_node_table(engine: Engine, graph: Graph, folder: str) -> None:
    """Write a graph's nodes to `graph_nodes`, once per graph.

    The nodes take one commit, and one file for each block.
    """
    partition = {"graph_id": graph.graph_id}
    name = f"graph_nodes/{graph.graph_id}"
    if delta_files.is_committed(folder, name):
        return
    write = partial(_write_node_rows, graph=graph, folder=folder, partition=partition)
    files = engine.parallelize(graph.blocks, len(graph.blocks)).map(write).collect()
    delta_files.require_visible(folder, files)
    commit_files(folder, files, partition, name)


def _write_node_rows(block: NodeBlock, graph: Graph, folder: str, partition: dict[str, str]) -> File:
    nodes = np.arange(block.first, block.end)
    rows = pa.table(
        {
            "side": pa.array([graph.sides[block.side]] * block.rows, pa.string()).dictionary_encode(),
            "id": read_ids(graph, block).cast(pa.string()),
            "node_index": pa.array(nodes, pa.int64()),
            "block": pa.array(np.full(block.rows, block.number, np.int32)),
            "edges": pa.array(np.diff(graph.csr(block).indptr)),
        }
    )
    file, place = make_file_place(folder, partition)
    with open_output(place) as stream:
        pq.write_table(rows, stream, use_dictionary=["side"], write_statistics=False, store_schema=False)
        size = stream.tell()
    return File(file, size, rows.num_rows)


def read_ids(graph: Graph, block: NodeBlock) -> pa.Array:
    """Return a block's raw ids by dense id.

    Raw ids are whole numbers or texts.
    """
    if graph.numeric[block.side]:
        return pa.array(unhash_numbers(graph.block_hashes(block), graph.seed))
    if not block.rows:
        return pa.array([], pa.string())
    ends, content = map_texts(graph, block)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_string(), block.rows, buffers).cast(pa.string())


def map_texts(graph: Graph, block: NodeBlock) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Map a block's texts: offsets (rows + 1,) and bytes."""
    ends, content = (
        block_arrays.map_part(graph.place(name), block.number) for name in (TEXT_ENDS, TEXT_BYTES)
    )
    return ends, content
