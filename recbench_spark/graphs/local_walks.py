"""Find every node's most visited neighbours by mapped walks.

Tasks are node blocks, and the results are rows of `neighbourhoods`. local: all hosts map the whole
adjacency (8 bytes a node, 4 an edge), a task walks from its block's nodes, and nothing is shuffled. join
(`neighbourhoods`): edges are in files by the hash of (node, position), and a walker is sent to the
file with its drawn position, so a hub's walkers spread over all files. Both make the same draws and the
same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.graphs.build import map_texts
from recbench_spark.graphs.folders import Graph, NodeBlock, Parts, make_file_place, publish_arrays
from recbench_spark.graphs.kernels.ids import unhash_numbers
from recbench_spark.graphs.kernels.walks import MostVisited, Walks, find_neighbourhoods, visit_shares
from recbench_spark.storage.block_arrays import has_parts, map_whole, write_part
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.objects import open_output

WalkWay = Literal["local", "join"]

NODES_A_PIECE = 1 << 12
"""Nodes whose neighbours a task holds at once."""

LISTS = pa.schema(
    [
        ("side", pa.string()),
        ("node", pa.string()),
        ("neighbours", pa.list_(pa.string())),
        ("weights", pa.list_(pa.float32())),
        ("visits", pa.list_(pa.int32())),
        ("visited", pa.int32()),
    ]
)


class WalkTable(NamedTuple):
    """The table's folder, and the partition for the rows."""

    folder: str
    partition: Mapping[str, str]


class NeighbourFile(NamedTuple):
    """A written file, and its counts.

    Counted are its nodes, its nodes without neighbours, and its neighbours.
    """

    file: File
    nodes: int
    alone: int
    neighbours: int


ADJACENCY = ("walk-indptr", "walk-src")
"""Arrays with all blocks' adjacency end to end.

They are (nodes + 1,) offsets and (edges,) sources.
"""


def map_adjacency(graph: Graph) -> tuple[Any, Any]:
    """Map the arrays of `write_adjacency`.

    The arrays are (nodes + 1,) offsets and (edges,) sources.
    """
    indptr, src = (map_whole(graph.place(name)) for name in ADJACENCY)
    return indptr, src


def write_adjacency(engine: Engine, graph: Graph) -> None:
    """Write all blocks' adjacency end to end, once per graph.

    Two runs at the same time write the same objects.
    """
    if all(has_parts(graph.place(name)) for name in ADJACENCY):
        return
    before = np.cumsum([0, *(block.edges for block in graph.blocks)])
    pieces = list(zip(graph.blocks, before.tolist(), strict=False))
    write = partial(_write_adjacency_parts, graph=graph)
    written = engine.parallelize(pieces, len(pieces)).map(write).collect()
    shapes = ((graph.nodes + 1,), np.int64), ((graph.edges,), np.uint32)
    publish_arrays(graph.folder, written, dict(zip(ADJACENCY, shapes, strict=True)))


def _write_adjacency_parts(piece: tuple[NodeBlock, int], graph: Graph) -> Parts:
    """Write a block's part, after `before` edges of other blocks."""
    block, before = piece
    csr = graph.csr(block)
    ends: Any = csr.indptr[1:] + before
    written = ((ends, block.first + 1), (csr.src[: csr.edges], before))
    return {
        name: write_part(graph.place(name), block.number, array, first)
        for name, (array, first) in zip(ADJACENCY, written, strict=True)
    }


# ------------------------------------------------------------------------------------------ names


def look_up_names(graph: Graph, node_e: Any, side: int) -> pa.Array:
    """Look up raw ids, as text, by dense id.

    All nodes are on one side.
    """
    if graph.numeric[side]:
        hashes = np.ascontiguousarray(graph.hashes()[node_e])
        return pa.array(unhash_numbers(hashes, graph.seed)).cast(pa.string())
    distinct, place = np.unique(node_e, return_inverse=True)
    words = [word for block in graph.side_blocks(side) for word in _read_names(graph, block, distinct)]
    return pa.array(words, pa.string()).take(pa.array(place))


def _read_names(graph: Graph, block: NodeBlock, node_r: Any) -> list[str]:
    """Return the texts of the nodes in a block."""
    low, high = np.searchsorted(node_r, [block.first, block.end])
    if high == low:
        return []
    ends, text = map_texts(graph, block)
    local = node_r[low:high] - block.first
    bounds = zip(ends[local].tolist(), ends[local + 1].tolist(), strict=True)
    return [text[first:end].tobytes().decode() for first, end in bounds]


# ------------------------------------------------------------------------------------------ tables


def make_list_rows(graph: Graph, block: NodeBlock, first: int, most: MostVisited) -> pa.RecordBatch:
    """Return rows for a block's nodes from dense id `first`."""
    n = len(most.distinct)
    offsets, neighbours = (
        pa.array(most.indptr.astype(np.int32)),
        look_up_names(graph, most.node, block.side),
    )
    values = (neighbours, pa.array(visit_shares(most)), pa.array(most.visits.astype(np.int32)))
    columns = [
        pa.array([graph.sides[block.side]] * n, pa.string()),
        look_up_names(graph, np.arange(first, first + n), block.side),
        *(pa.ListArray.from_arrays(offsets, one) for one in values),
        pa.array(most.distinct.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTS)


def write_lists(
    graph: Graph, block: NodeBlock, pieces: Iterable[tuple[int, MostVisited]], table: WalkTable
) -> NeighbourFile:
    """Write a block's nodes to a table file, piecewise."""
    file, place = make_file_place(*table)
    nodes = alone = neighbours = 0
    options: dict[str, Any] = {"use_dictionary": ["side"], "write_statistics": False}
    options |= {"store_schema": False, "write_page_checksum": True}
    with open_output(place) as stream:
        with pq.ParquetWriter(stream, LISTS, **options) as out:
            for first, most in pieces:
                out.write_batch(make_list_rows(graph, block, first, most))
                nodes += len(most.distinct)
                alone += int(np.count_nonzero(most.distinct == 0))
                neighbours += len(most.node)
        size = stream.tell()
    return NeighbourFile(File(file, size, nodes), nodes, alone, neighbours)


def walk_locally(
    engine: Engine, graph: Graph, side: int, what: Walks, table: WalkTable
) -> list[NeighbourFile]:
    """Walk from all nodes on a side, over mapped adjacency.

    Each block becomes a file.
    """
    write_adjacency(engine, graph)
    blocks = [block for block in graph.side_blocks(side) if block.rows]
    task = partial(_walk_block, graph=graph, what=what, table=table)
    return list(engine.parallelize(blocks, len(blocks)).map(task).collect())


def _walk_block(block: NodeBlock, graph: Graph, what: Walks, table: WalkTable) -> NeighbourFile:
    (indptr, src), hashes = map_adjacency(graph), graph.hashes()

    def walk() -> Iterator[tuple[int, MostVisited]]:
        for first in range(block.first, block.end, NODES_A_PIECE):
            own = np.ascontiguousarray(hashes[first : min(first + NODES_A_PIECE, block.end)])
            yield first, find_neighbourhoods(indptr, src, own, first, what)

    return write_lists(graph, block, walk(), table)
