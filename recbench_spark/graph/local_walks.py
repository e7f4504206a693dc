"""Find the most visited neighbours of every node by walks over a mapped adjacency. Tasks are blocks of
nodes.

The results are rows of `neighbourhoods`. local: all hosts map the whole adjacency (8 bytes a node, 4 an
edge), a task walks from the nodes of its block, and nothing is shuffled. join (`distributed_walks`): edges
are in files by the hash of (node, position), and walkers are sent to the file that holds the position they
drew, so a hub's walkers spread over all files. Both make the same draws and the same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import SparkContext

from recbench_spark.graph.build import read_ids
from recbench_spark.graph.folders import (
    Graph,
    NodeBlock,
    create_matrix,
    make_file_path,
    map_array,
    map_writable,
)
from recbench_spark.kernels.graph.ids import unhash_numbers
from recbench_spark.kernels.graph.walks import MostVisited, Walks, find_neighbourhoods, visit_shares
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.leases import make_folder_once

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


class NeighbourFile(NamedTuple):
    """NeighbourFile is a written file with its nodes, its nodes without neighbours, and its neighbours."""

    file: File
    nodes: int
    alone: int
    neighbours: int


def adjacency_bytes(graph: Graph) -> int:
    """Return the bytes that a host maps for local walks."""
    return 8 * (graph.nodes + 1) + 4 * graph.edges


def map_adjacency(graph: Graph) -> tuple[Any, Any]:
    """Return (nodes + 1,) offsets and (edges,) sources of `write_adjacency`, mapped."""
    folder = Path(graph.folder, "walks")
    return map_array(folder / "indptr.npy"), map_array(folder / "src.npy")


def write_adjacency(context: SparkContext, graph: Graph) -> None:
    """Write the adjacency of all blocks end to end, once for each graph.

    Each task fills its block's part.
    """
    make_folder_once(Path(graph.folder, "walks"), partial(_fill_adjacency, context, graph))


def _fill_adjacency(context: SparkContext, graph: Graph, folder: Path) -> None:
    create_matrix(folder / "indptr.npy", (graph.nodes + 1,), np.int64)
    create_matrix(folder / "src.npy", (graph.edges,), np.uint32)
    before = np.cumsum([0, *(block.edges for block in graph.blocks)])
    parts = list(zip(graph.blocks, before.tolist(), strict=False))
    context.parallelize(parts, len(parts)).foreach(
        partial(_write_adjacency_part, graph=graph, folder=folder)
    )


def _write_adjacency_part(part: tuple[NodeBlock, int], graph: Graph, folder: Path) -> None:
    block, before = part
    csr = graph.csr(block)
    map_writable(folder / "indptr.npy")[block.first + 1 : block.end + 1] = csr.indptr[1:] + before
    if csr.edges:
        map_writable(folder / "src.npy")[before : before + csr.edges] = csr.src[: csr.edges]


# ------------------------------------------------------------------------------------------ names


def write_names(context: SparkContext, graph: Graph) -> None:
    """Write the texts of all ids end to end with their offsets, once for each graph."""
    if not all(graph.numeric):
        make_folder_once(Path(graph.folder, "names"), partial(_fill_names, context, graph))


def _fill_names(context: SparkContext, graph: Graph, folder: Path) -> None:
    blocks = [block for block in graph.blocks if not graph.numeric[block.side] and block.rows]
    sizes = context.parallelize(blocks, len(blocks)).map(partial(_count_name_bytes, graph=graph)).collect()
    create_matrix(folder / "offsets.npy", (graph.nodes + 1,), np.int64)
    create_matrix(folder / "bytes.npy", (max(sum(sizes), 1),), np.uint8)
    begins = np.cumsum([0, *sizes]).tolist()
    parts = list(zip(blocks, begins, strict=False))
    context.parallelize(parts, len(parts)).foreach(partial(_write_names_part, graph=graph, folder=folder))


def _encode_names(graph: Graph, block: NodeBlock) -> tuple[Any, Any]:
    """Return offsets from 0 and the bytes of a block's texts."""
    words = read_ids(graph, block).cast(pa.large_binary())
    offsets = np.frombuffer(words.buffers()[1], np.int64)[words.offset : words.offset + len(words) + 1]
    text = np.frombuffer(words.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], text


def _count_name_bytes(block: NodeBlock, graph: Graph) -> int:
    return int(_encode_names(graph, block)[0][-1])


def _write_names_part(part: tuple[NodeBlock, int], graph: Graph, folder: Path) -> None:
    block, begin = part
    offsets, text = _encode_names(graph, block)
    map_writable(folder / "offsets.npy")[block.first : block.end + 1] = offsets + begin
    map_writable(folder / "bytes.npy")[begin : begin + len(text)] = text


def look_up_names(graph: Graph, node_e: Any, side: int) -> pa.Array:
    """Return the raw ids, as text, of any nodes of a side, by dense id."""
    if graph.numeric[side]:
        hashes = np.ascontiguousarray(graph.hashes()[node_e])
        return pa.array(unhash_numbers(hashes, graph.seed)).cast(pa.string())
    folder = Path(graph.folder, "names")
    offsets, text = map_array(folder / "offsets.npy"), map_array(folder / "bytes.npy")
    distinct, place = np.unique(node_e, return_inverse=True)
    words = [text[offsets[v] : offsets[v + 1]].tobytes().decode() for v in distinct.tolist()]
    return pa.array(words, pa.string()).take(pa.array(place))


# ------------------------------------------------------------------------------------------ tables


def make_list_rows(graph: Graph, block: NodeBlock, first: int, most: MostVisited) -> pa.RecordBatch:
    """Return the rows of consecutive nodes of a block, from dense id `first`."""
    n = len(most.distinct)
    offsets = pa.array(most.indptr.astype(np.int32))
    lists = (
        pa.ListArray.from_arrays(offsets, values)
        for values in (
            look_up_names(graph, most.node, block.side),
            pa.array(visit_shares(most)),
            pa.array(most.visits.astype(np.int32)),
        )
    )
    columns = [
        pa.array([graph.sides[block.side]] * n, pa.string()),
        look_up_names(graph, np.arange(first, first + n), block.side),
        *lists,
        pa.array(most.distinct.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTS)


def write_lists(
    graph: Graph,
    block: NodeBlock,
    pieces: Iterator[tuple[int, MostVisited]],
    folder: str,
    partition: Mapping[str, str],
) -> NeighbourFile:
    """Write the nodes of a block to a file of the table, piece by piece."""
    file, path = make_file_path(folder, partition)
    nodes = alone = neighbours = 0
    options = {"use_dictionary": ["side"], "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(path, LISTS, **options) as out:
        for first, most in pieces:
            out.write_batch(make_list_rows(graph, block, first, most))
            nodes += len(most.distinct)
            alone += int(np.count_nonzero(most.distinct == 0))
            neighbours += len(most.node)
    return NeighbourFile(File(file, path.stat().st_size, nodes), nodes, alone, neighbours)


def walk_locally(
    context: SparkContext,
    graph: Graph,
    side: int,
    what: Walks,
    folder: str,
    *,
    partition: Mapping[str, str],
) -> list[NeighbourFile]:
    """Walk from all nodes of a side over the mapped adjacency. Each block becomes a file."""
    write_adjacency(context, graph)
    write_names(context, graph)
    blocks = [block for block in graph.side_blocks(side) if block.rows]
    task = partial(_walk_block, graph=graph, what=what, folder=folder, partition=partition)
    return context.parallelize(blocks, len(blocks)).map(task).collect()


def _walk_block(
    block: NodeBlock, graph: Graph, what: Walks, folder: str, partition: Mapping[str, str]
) -> NeighbourFile:
    return write_lists(graph, block, _walk_pieces(graph, block, what), folder, partition)


def _walk_pieces(graph: Graph, block: NodeBlock, what: Walks) -> Iterator[tuple[int, MostVisited]]:
    (indptr, src), hashes = map_adjacency(graph), graph.hashes()
    for first in range(block.first, block.end, NODES_A_PIECE):
        end = min(first + NODES_A_PIECE, block.end)
        yield first, find_neighbourhoods(indptr, src, np.ascontiguousarray(hashes[first:end]), first, what)
