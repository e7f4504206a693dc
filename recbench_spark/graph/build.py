"""Build a graph on disk from an edge list: dense ids, degrees, and adjacency in blocks.

Each graph is built once.

The edges are read twice, with one shuffle each time, and shuffled in blocks of bytes. In the first pass
tasks partition the distinct hashes of ids by range. Each sorted range is a block of nodes, and a node's
place among all is its dense id. Whole numbers that are close together are collected as bits, so a task
sends each of them once (`NumberSet`). In the second pass tasks look up both ends of each edge in a mapped
file, without a join, and partition the edges by the block of their destination, which then sorts them.

A task holds a chunk of edges, or the edges into one block: 12 bytes an edge, three times. The driver holds
a few numbers for each block. The files of a shuffle are removed as soon as they are read.
"""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import RDD, SparkContext

from recbench_spark.errors import DataError, StoreError
from recbench_spark.graph.edges import (
    Piece,
    RowSource,
    count_tasks,
    expand_lists,
    open_rows,
    parse_weights,
    require_one_kind,
)
from recbench_spark.graph.folders import (
    Graph,
    NodeBlock,
    create_matrix,
    make_file_path,
    map_array,
    map_writable,
    save_array,
)
from recbench_spark.kernels.graph.csr import build_csr, count_sources, edge_keys, find_blocks, group_edges
from recbench_spark.kernels.graph.ids import (
    MOST_NODES,
    NumberSet,
    assign_blocks,
    build_index,
    hash_node_ids,
    hash_texts,
    look_up_hashes,
    look_up_numbers,
    sort_distinct,
    unhash_numbers,
)
from recbench_spark.kernels.hashing import Hashes
from recbench_spark.storage import delta_files
from recbench_spark.storage.blocks import Block as Packed
from recbench_spark.storage.blocks import partition_rows, unpack_blocks
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.publish import replace_file

if TYPE_CHECKING:  # workers import this module and do not need the settings
    from recbench_spark.config.graph import GraphSource

EDGES_A_BLOCK = 1 << 22
"""Approximate number of edges into a block. The task that sorts them needs some 100 MB."""

SPARSEST_NUMBERS = 8
"""Largest range of whole numbers for each node. Below it a file of dense ids by number serves the build."""

LOW_PLACES = 2
"""Places at the start of that file that hold the least number, which has 64 bits."""

TASKS_A_CORE = 2
"""Tasks that read a graph of whole numbers, for each core. Each of them may send all ids."""


@dataclass(frozen=True)
class GraphInputs:
    """GraphInputs are the edges to read, and tables of nodes by side.

    Attributes:
        edges: rows with both ends of each edge.
        names: columns of source, destination and weight; with lists, of neighbours, node and weights.
        nodes: side, its table of ids, and the name of the column of ids.
        numeric: by side, whether ids are whole numbers.
        sides: names of the sides.
        both_ways: whether messages also go from destination to source.
        lists: whether a row is a node with its neighbours.
        loops: whether self loops stay.
        seed: seed of the hashes.
    """

    edges: RowSource
    names: tuple[str, str, str | None]
    nodes: tuple[tuple[int, RowSource, str], ...]
    numeric: tuple[bool, ...]
    sides: tuple[str, ...]
    both_ways: bool
    lists: bool
    loops: bool
    seed: int

    @property
    def bipartite(self) -> bool:
        """Tell whether there are two sides."""
        return len(self.sides) == 2


class EdgeCounts(NamedTuple):
    """EdgeCounts are the counts of the edges that a task read."""

    edges: int = 0
    null_ids: int = 0
    bad_weights: int = 0
    negative_weights: int = 0
    zero_weights: int = 0
    self_loops: int = 0


def open_inputs(source: GraphSource) -> GraphInputs:
    """Open the files of a graph. Only footers are read.

    Raises:
        DataError, SchemaError, ConfigError: a file or a column is missing, or ids are of two types.
    """
    canonical = ("neighbours", "node", "weights") if source.lists else ("src", "dst", "weight")
    src, dst, weight = (source.column(name) for name in canonical)
    rows = open_rows(
        source.edges,
        [src, dst, *([weight] if source.weighted else [])],
        "edges",
        fmt=source.format,
        ids={src: source.ids, dst: source.ids},
        where=source.where,
        partitions=source.partitions,
    )
    kinds = dict(rows.numeric)
    if not source.bipartite:
        require_one_kind(rows, (src, dst), "edges")
    numeric = tuple(kinds[name] for name in (src, dst)[: len(source.sides)])
    nodes = []
    for side, path in source.nodes.items():
        place, column = source.sides.index(side), source.node_column
        ids = "numeric" if numeric[place] else "text"
        nodes.append((place, open_rows(path, [column], f"nodes of {side}", ids={column: ids}), column))
    return GraphInputs(
        rows,
        (src, dst, weight if source.weighted else None),
        tuple(nodes),
        numeric,
        source.sides,
        source.bipartite or not source.directed,
        source.lists,
        source.self_loops == "keep",
        source.seed,
    )


def default_block_count(edges: int, cores: int) -> int:
    """Return the number of blocks of a side: some 4 million edges each, and work for all cores."""
    return max(2 * cores, -(-edges // EDGES_A_BLOCK))


def build_graph(
    context: SparkContext, source: GraphSource, graph_id: str, folder: Path, blocks: int | None = None
) -> Graph:
    """Build the graph of a source.

    Args:
        context: the Spark context.
        source: edges, node tables and their settings.
        graph_id: name of the graph, a hash of its inputs.
        folder: folder of its files, which no other run writes to.
        blocks: blocks of each side.

    Raises:
        DataError: ids or weights cannot be used, there are no edges, or two texts have one hash.
    """
    started = time.monotonic()
    inputs = open_inputs(source)
    cores = context.defaultParallelism
    per_side = blocks or default_block_count(inputs.edges.n, cores)
    folder.mkdir(parents=True, exist_ok=True)
    counts, nodes = _build_nodes(context, inputs, folder, per_side)
    _check_inputs(counts, nodes, source)
    graph = _assemble_graph(inputs, graph_id, folder, nodes)
    _index_nodes(context, graph)
    into = _build_edges(context, inputs, graph, source.duplicates == "drop")
    for side in range(len(graph.sides)):
        graph.numbers(side).unlink(missing_ok=True)
    whole = tuple(
        replace(block, edges=block_counts.edges, sources=block_counts.sources, parts=block_counts.parts)
        for block, block_counts in zip(graph.blocks, sorted(into), strict=True)
    )
    checks = {
        **counts._asdict(),
        "nodes": graph.nodes,
        "isolated_nodes": sum(n.isolated for n in nodes),
        "duplicate_edges": sum(block_counts.doubles for block_counts in into),
        "stored_edges": sum(block.edges for block in whole),
        "most_edges_of_a_node": max(block_counts.most for block_counts in into),
    }
    done = replace(graph, blocks=whole, checks=checks, seconds=time.monotonic() - started)
    done.write()
    return done


def _check_inputs(counts: EdgeCounts, nodes: list[NodeBlockCounts], source: GraphSource) -> None:
    """Refuse inputs without a usable graph. With `bad_rows: drop` bad rows are left out and counted."""
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
            "walks find nobody where no two items share a user: another split, or a model without walks",
        )
    if counts.edges == counts.null_ids + counts.bad_weights + counts.negative_weights:
        raise DataError(f"{source.edges}: no edges that can be used", "check the path, columns and where")
    if not any(block.rows for block in nodes):
        hint = "keep them, or name nodes (--node-table)"
        raise DataError(f"{source.edges}: all edges are self loops, which are left out: no nodes", hint)


# --------------------------------------------------------------------------------- nodes


class NodeBlockCounts(NamedTuple):
    """NodeBlockCounts are the number of a block of nodes, its rows, and its nodes without any edge."""

    number: int
    rows: int
    isolated: int


def _build_nodes(
    context: SparkContext, inputs: GraphInputs, folder: Path, per_side: int
) -> tuple[EdgeCounts, list[NodeBlockCounts]]:
    """Write the sorted hashes of all nodes, one file for each block, and their texts beside them."""
    total = per_side * len(inputs.sides)
    readers = count_tasks(inputs.edges, context.defaultParallelism)
    if all(inputs.numeric):  # few tasks, because each one sends the hash of a node at most once
        readers = min(readers, TASKS_A_CORE * context.defaultParallelism)
    read = partial(_partition_nodes, inputs=inputs, readers=readers, per_side=per_side)
    packed = context.parallelize(range(readers), readers).mapPartitions(read)
    write = partial(_write_nodes, inputs=inputs, folder=str(folder), per_side=per_side)
    results = _run_shuffle(packed.partitionBy(total + 1, int), write)
    counts = [result for result in results if isinstance(result, EdgeCounts)]
    nodes = {result.number: result for result in results if isinstance(result, NodeBlockCounts)}
    return EdgeCounts(*map(sum, zip(*counts, strict=True))), [
        nodes.get(number, NodeBlockCounts(number, 0, 0)) for number in range(total)
    ]


def _run_shuffle(shuffled: RDD[Any], write: Callable[[int, Iterable[Any]], Iterable[Any]]) -> list[Any]:
    """Run the tasks after a shuffle and remove its files. The next step needs the disk."""
    results = shuffled.mapPartitionsWithIndex(write).collect()
    java: Any = shuffled._jrdd
    java.rdd().cleanShuffleDependencies(False)
    return results


def _partition_nodes(
    numbers: Iterator[int], inputs: GraphInputs, readers: int, per_side: int
) -> Iterator[Packed]:
    """Yield distinct ids by block. The counts go to the partition after the last block."""
    total = per_side * len(inputs.sides)
    for number in numbers:
        counted = EdgeCounts()
        seen = [NumberSet() for _ in inputs.sides]
        for ends, _, counts in _read_edges(inputs, inputs.edges.part(number, readers)):
            counted = EdgeCounts(*map(sum, zip(counted, counts, strict=True)))
            for side, ids in _pair_ids_with_side(inputs, ends):
                if not (inputs.numeric[side] and seen[side].add(ids.to_numpy())):
                    yield from _partition_ids(ids, side, per_side, inputs.seed, linked=True)
        for side, numbers_seen in enumerate(seen):
            for chunk in numbers_seen.numbers():
                yield from _partition_ids(pa.array(chunk), side, per_side, inputs.seed, linked=True)
        for side, ids in _read_extra_nodes(inputs, number, readers):
            yield from _partition_ids(ids, side, per_side, inputs.seed, linked=False)
        yield total, pickle.dumps(counted)


def _read_extra_nodes(inputs: GraphInputs, number: int, readers: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield nodes that belong to the graph even without an edge, by side.

    They come from lists that may be empty, and from tables of nodes.
    """
    if inputs.lists:
        for chunk in inputs.edges.chunks(inputs.edges.part(number, readers)):
            yield 0, inputs.edges.ids(chunk, inputs.names[1]).drop_null()
    for side, rows, column in inputs.nodes:
        for chunk in rows.chunks(rows.part(number, readers)):
            ids = rows.ids(chunk, column)
            if ids.null_count:
                raise DataError(
                    f"nodes of {inputs.sides[side]}: {ids.null_count} ids are NULL", "leave these rows out"
                )
            yield side, ids


def _pair_ids_with_side(
    inputs: GraphInputs, ends: tuple[pa.Array, pa.Array]
) -> Iterator[tuple[int, pa.Array]]:
    yield from zip((0, 1) if inputs.bipartite else (0, 0), ends, strict=True)


def _partition_ids(ids: pa.Array, side: int, per_side: int, seed: int, linked: bool) -> Iterator[Packed]:
    if pa.types.is_integer(ids.type):
        hashes = sort_distinct(hash_node_ids(ids, seed))
        columns: dict[str, Any] = {"hash": hashes}
    else:
        words = pc.unique(ids)
        hashes = hash_texts(words.cast(pa.large_binary()), seed)
        columns = {"hash": hashes, "text": words}
    table = pa.table({**columns, "linked": np.full(len(hashes), linked)})
    if len(hashes):
        yield from partition_rows(table, assign_blocks(hashes, per_side) + side * per_side)


def _write_nodes(
    partition: int,
    blocks: Iterable[Packed],
    inputs: GraphInputs,
    folder: str,
    per_side: int,
) -> Iterator[EdgeCounts | NodeBlockCounts]:
    if partition == per_side * len(inputs.sides):
        for _, counts in blocks:
            yield pickle.loads(counts)
        return
    table = unpack_blocks(block for _, block in blocks)
    if table is None:
        return
    hashes = table.column("hash").to_numpy()
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    first = np.append(True, hashes[1:] != hashes[:-1])
    if not inputs.numeric[partition // per_side]:
        _write_texts(table.column("text").combine_chunks(), order, hashes, first, folder, partition)
    linked = np.logical_or.reduceat(table.column("linked").to_numpy()[order], np.flatnonzero(first))
    save_array(Path(folder, "nodes", f"{partition:05d}.npy"), hashes[first])
    yield NodeBlockCounts(partition, int(first.sum()), int(np.count_nonzero(~linked)))


def _write_texts(
    texts: pa.Array, order: Any, hashes: Hashes, first: npt.NDArray[np.bool_], folder: str, number: int
) -> None:
    """Write the text of each hash by dense id.

    Raises:
        DataError: two texts have one hash, which happens once in 7,000 graphs of 50 million nodes.
    """
    in_order = texts.take(pa.array(order))
    pairs = np.flatnonzero(~first[1:])
    before, after = (in_order.take(pa.array(pairs + shift)) for shift in (0, 1))
    differ = np.flatnonzero(pc.not_equal(before, after).to_numpy(zero_copy_only=False))
    if len(differ):
        one, other = (texts[int(differ[0])].as_py() for texts in (before, after))
        raise DataError(f"ids '{one}' and '{other}' have one hash", "choose another seed: graph.seed: 1")
    path = Path(folder, "texts", f"{number:05d}.parquet")
    first_texts = in_order.take(pa.array(np.flatnonzero(first)))
    table = pa.table({"id": first_texts})
    replace_file(path, lambda private: pq.write_table(table, private, write_statistics=False))


def _assemble_graph(
    inputs: GraphInputs, graph_id: str, folder: Path, nodes: list[NodeBlockCounts]
) -> Graph:
    total = sum(block.rows for block in nodes)
    if total >= MOST_NODES:
        raise StoreError(f"{total} nodes, and a graph holds {MOST_NODES - 1}", "cut it into graphs")
    per_side, at, blocks = len(nodes) // len(inputs.sides), 0, []
    for block in nodes:
        blocks.append(NodeBlock(block.number, block.number // per_side, at, block.rows))
        at += block.rows
    return Graph(
        graph_id, str(folder), inputs.sides, inputs.numeric, tuple(blocks),
        inputs.names[2] is not None, inputs.seed, {},
    )  # fmt: skip


def _index_nodes(context: SparkContext, graph: Graph) -> None:
    """Write one file of the hashes of all nodes, and an index of their prefixes for each side."""
    create_matrix(Path(graph.folder, "hashes.npy"), (graph.nodes,), np.uint64)
    sides = range(len(graph.sides))
    context.parallelize(sides, len(sides)).foreach(partial(_index_side, graph=graph))
    shutil.rmtree(Path(graph.folder, "nodes"))


def _index_side(side: int, graph: Graph) -> None:
    out = map_writable(Path(graph.folder, "hashes.npy"))
    for block in graph.side_blocks(side):
        if block.rows:
            out[block.first : block.end] = np.load(Path(graph.folder, "nodes", f"{block.number:05d}.npy"))
    first, end = graph.side_range(side)
    save_array(Path(graph.folder, f"index-{side}.npy"), build_index(out[first:end]))
    if graph.numeric[side] and end > first:
        _index_numbers(side, graph, out)


def _index_numbers(side: int, graph: Graph, hashes: Hashes) -> None:
    """Write dense ids by number where the numbers are close together.

    The end of an edge is then found by one look into a small file.
    """
    blocks = [block for block in graph.side_blocks(side) if block.rows]
    ends = [
        (block_numbers.min(), block_numbers.max())
        for block_numbers in (
            unhash_numbers(hashes[block.first : block.end], graph.seed) for block in blocks
        )
    ]
    low, high = (int(pick(end)) for pick, end in zip((min, max), zip(*ends, strict=True), strict=True))
    rows = sum(block.rows for block in blocks)
    if high - low >= SPARSEST_NUMBERS * rows:
        return
    replace_file(graph.numbers(side), partial(_write_numbers, graph, blocks, hashes, low, high))


def _write_numbers(
    graph: Graph, blocks: Sequence[NodeBlock], hashes: Hashes, low: int, high: int, path: Path
) -> None:
    create_matrix(path, (high - low + 1 + LOW_PLACES,), np.uint32)
    table = map_writable(path)
    table[:LOW_PLACES] = np.array([low], np.int64).view(np.uint32)
    for block in blocks:
        number_r = unhash_numbers(hashes[block.first : block.end], graph.seed)
        table[LOW_PLACES + number_r - low] = np.arange(block.first + 1, block.end + 1, dtype=np.uint32)


# --------------------------------------------------------------------------------- edges


class EdgeBlockCounts(NamedTuple):
    """EdgeBlockCounts are counts of the edges into a block: edges, repeated pairs, largest
    degree, sources.
    """

    number: int
    edges: int
    doubles: int
    most: int
    sources: int
    parts: int


Ends = tuple[pa.Array, pa.Array]
Weight = npt.NDArray[np.float32] | None


def _read_edges(
    inputs: GraphInputs, pieces: tuple[Piece, ...]
) -> Iterator[tuple[Ends, Weight, EdgeCounts]]:
    """Yield ids of source and destination of usable edges, their weights, and counts, chunk by chunk."""
    src, dst, weight = inputs.names
    for chunk in inputs.edges.chunks(pieces):
        rows = chunk
        if inputs.lists:
            rows = expand_lists(chunk, dst, src, weight)
            names = ("src", "dst", None if weight is None else "weight")
        else:
            names = (src, dst, weight)
        ends = (inputs.edges.ids(rows, names[0], src), inputs.edges.ids(rows, names[1], dst))
        weights = (
            None if names[2] is None else parse_weights(rows.column(names[2]), f"edges: column {weight}")
        )
        yield _filter_edges(inputs, ends, weights)


def _filter_edges(
    inputs: GraphInputs, ends: Ends, weights: npt.NDArray[np.float64] | None
) -> tuple[Ends, Weight, EdgeCounts]:
    n = len(ends[0])
    if weights is None and inputs.loops and not ends[0].null_count + ends[1].null_count:
        return ends, None, EdgeCounts(n, self_loops=0 if inputs.bipartite else _count_loops(ends))
    missing = np.logical_or(*(pc.is_null(end).to_numpy(zero_copy_only=False) for end in ends))
    bad = negative = np.zeros(n, bool)
    weight: Weight = None
    if weights is not None:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused below
            weight = weights.astype(np.float32)
        bad = ~np.isfinite(weight) & ~missing
        negative = (weights < 0) & ~bad & ~missing
    usable = ~(missing | bad | negative)
    loops = np.zeros(n, bool)
    if not inputs.bipartite:
        loops = pc.fill_null(pc.equal(*ends), False).to_numpy(zero_copy_only=False) & usable
    zero = 0 if weight is None else int(np.count_nonzero((weight == 0) & usable))
    null, unusable, below = (int(np.count_nonzero(flags)) for flags in (missing, bad, negative))
    counts = EdgeCounts(n, null, unusable, below, zero, int(loops.sum()))
    if not inputs.loops:
        usable &= ~loops
    if not usable.all():
        mask = pa.array(usable)
        ends = (ends[0].filter(mask), ends[1].filter(mask))
        weight = None if weight is None else weight[usable]
    return ends, weight, counts


def _count_loops(ends: Ends) -> int:
    return int(pc.sum(pc.equal(*ends)).as_py() or 0)


def _build_edges(
    context: SparkContext, inputs: GraphInputs, graph: Graph, drop: bool
) -> list[EdgeBlockCounts]:
    """Write the adjacency of each block."""
    readers = count_tasks(inputs.edges, context.defaultParallelism)
    read = partial(_partition_edges, inputs=inputs, graph=graph, readers=readers)
    write = partial(_write_block, graph=graph, drop=drop)
    dealt_edges = context.parallelize(range(readers), readers).mapPartitions(read)
    return _run_shuffle(dealt_edges.partitionBy(len(graph.blocks), int), write)


def _partition_edges(
    numbers: Iterator[int], inputs: GraphInputs, graph: Graph, readers: int
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    firsts = np.array([block.first for block in graph.blocks], np.int64)
    lasts = np.array([block.end for block in graph.blocks], np.int64)
    find = NodeFinder(graph)
    for number in numbers:
        for ends, weight, _ in _read_edges(inputs, inputs.edges.part(number, readers)):
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
    """NodeFinder looks up dense ids by hash in the mapped files of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.hashes = graph, graph.hashes()
        self.index = [graph.index(side) for side in range(len(graph.sides))]
        tables = [graph.numbers(side) for side in range(len(graph.sides))]
        self.numbers = [map_array(table) if table.exists() else None for table in tables]

    def ids(self, ids: pa.Array, side: int) -> npt.NDArray[np.uint32]:
        """Return the (r,) dense ids of raw ids; `ids.NOT_THERE` where the side has no such node."""
        table = self.numbers[side]
        if table is None:
            return self(hash_node_ids(ids, self.graph.seed), side)
        return look_up_numbers(
            ids.to_numpy(), int(table[:LOW_PLACES].view(np.int64)[0]), table[LOW_PLACES:]
        )

    def __call__(self, hashes: Hashes, side: int) -> npt.NDArray[np.uint32]:
        """Return the (r,) dense ids of hashes; `ids.NOT_THERE` where the side has no such node."""
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
    place = Path(graph.folder, "blocks", f"{number:05d}")
    save_array(place / "indptr.npy", csr.indptr)
    save_array(place / "src.npy", csr.src)
    if csr.weight is not None:
        save_array(place / "weight.npy", csr.weight)
    most = int(np.diff(csr.indptr).max(initial=0))
    ends = np.array([block.end for block in graph.blocks], np.int64)
    sources, parts = count_sources(csr, graph.nodes, ends)
    yield EdgeBlockCounts(number, csr.edges, doubles, most, sources, parts)


# --------------------------------------------------------------------------------- a table of nodes


def write_node_table(context: SparkContext, graph: Graph, folder: str) -> None:
    """Write the nodes of a graph to `graph_nodes` in one commit, once for each graph: one file
    for each block.
    """
    partition = {"graph_id": graph.graph_id}
    name = f"graph_nodes/{graph.graph_id}"
    if delta_files.is_committed(folder, name):
        return
    write = partial(_write_node_rows, graph=graph, folder=folder, partition=partition)
    files = context.parallelize(graph.blocks, len(graph.blocks)).map(write).collect()
    delta_files.require_visible(folder, files)
    delta_files.commit(folder, files, partition, name)


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
    file, path = make_file_path(folder, partition)
    pq.write_table(rows, path, use_dictionary=["side"], write_statistics=False, store_schema=False)
    return File(file, path.stat().st_size, rows.num_rows)


def read_ids(graph: Graph, block: NodeBlock) -> pa.Array:
    """Return the raw ids of a block's nodes by dense id: whole numbers or texts."""
    if graph.numeric[block.side]:
        return pa.array(unhash_numbers(graph.hashes()[block.first : block.end], graph.seed))
    if not block.rows:
        return pa.array([], pa.string())
    return pq.read_table(graph.texts(block)).column("id").combine_chunks()
