"""Run the tasks of a pass over a graph, under three plans that give the same bits.

R (replicated): vectors are in one file that every host maps. A task reads what it needs, and nothing is
shuffled.

G (gathered): the task that has a block's vectors sends each block of destinations the distinct ones that it
needs.

S (scattered): a task adds up what it has for each destination and sends the sums. Linear and max
aggregators allow this.

Under R and G a destination adds its sources' vectors one after the other by ascending dense id, from a file
or from the gathered vectors in that order, so the additions are the same. Under S it adds sums of blocks in
order: the bits are the same where additions are exact and for max, and else equal to the precision of
float32.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from recbench_spark.graph.build import read_ids
from recbench_spark.graph.folders import Graph, NodeBlock, map_array, map_writable
from recbench_spark.graph.vectors import write_embeddings, write_vectors
from recbench_spark.kernels.graph.aggregate import count_edges, finish_sums, sum_sources
from recbench_spark.kernels.graph.csr import Csr, select_rows, tile, window
from recbench_spark.kernels.graph.dense import Dense, check_finite, store
from recbench_spark.kernels.graph.layers import Layer
from recbench_spark.storage.delta_files import File

PassPlan = Literal["G", "R", "S"]


@dataclass(frozen=True)
class Target:
    """Target is a Delta table that a pass writes to, one file for each block.

    Attributes:
        folder: folder of the table.
        partition: columns that no file holds. `side` is added for each block.
        kind: `vectors` (bytes, as they are stored) or `embeddings` (ids and float32 arrays).
    """

    folder: str
    partition: Mapping[str, str]
    kind: Literal["vectors", "embeddings"]

    def block_partition(self, graph: Graph, block: NodeBlock) -> dict[str, str]:
        """Return the partition of a block's file."""
        more = {"side": graph.sides[block.side]} if self.kind == "embeddings" else {}
        return {**self.partition, **more}


@dataclass(frozen=True)
class Pass:
    """Pass is one aggregation over some destinations.

    Attributes:
        layer: number of the layer, from 1.
        kind: `layer` combines the aggregate with a node's own vector; `pool` only pools.
        side: side of the destinations; None: all nodes.
        sources: side of the sources; None: all nodes.
        module: the layer.
        projects: true if messages must be projected from h first; else `z` holds them.
        output_layers: dense layers after it.
        h: file of the nodes' own vectors.
        z: file of the messages; h itself where nothing is projected.
        out: file that the vectors are written to; None: only the target is written.
        dtype: type of stored vectors.
        target: table that the vectors are committed to; None: only the file is written.
    """

    layer: int
    kind: Literal["layer", "pool"]
    side: int | None
    sources: int | None
    module: Layer
    projects: bool
    h: str
    z: str
    dtype: str
    output_layers: tuple[Dense, ...] = ()
    out: str | None = None
    target: Target | None = None

    @property
    def width(self) -> int:
        """Return the dimensions of the new vectors. For a pool these are the dimensions of the module."""
        return len(self.output_layers[-1].bias) if self.output_layers else self.module.width


@dataclass(frozen=True)
class ReusedFiles:
    """ReusedFiles are the files that a pass reuses of the night before (see `incremental`).

    Attributes:
        touched: file of flags: nodes to compute.
        needed: file of flags: sources whose messages these nodes need.
        before: file of last night's vectors of this layer, by last night's dense ids. It is empty where no
            vectors are reused: then nodes that are not computed are not read either.
        places: file of last night's dense id of each node.
    """

    touched: str
    needed: str
    before: str
    places: str


class BlockResult(NamedTuple):
    """BlockResult describes what a task computed for a block."""

    number: int
    nodes: int
    edges: int
    received: int
    file: File | None


@dataclass(frozen=True)
class PassWork:
    """PassWork holds the inputs of every task of a pass.

    Attributes:
        graph: the graph.
        step: the pass.
        batch: destinations that are computed together.
        destinations: blocks of destinations that tasks send to, in order.
        reused: files of the night before; None: all nodes are computed.
    """

    graph: Graph
    step: Pass
    batch: int
    destinations: tuple[NodeBlock, ...] = field(default=())
    reused: ReusedFiles | None = None


class Sources(NamedTuple):
    """Sources are the messages that a block of destinations aggregates.

    Attributes:
        csr: edges into the destinations; `src` are rows of z.
        z: messages.
        hashes: hashes of the sources' ids, one for each row of z.
        own: the destinations' own messages (GCN), or the whole of z by dense id.
    """

    csr: Csr
    z: Any
    hashes: Any
    own: Any


def project_messages(block: NodeBlock, work: PassWork) -> int:
    """Write the messages of a block's nodes to the file of messages (plan R) and return their number."""
    step = work.step
    h, out = map_array(Path(step.h)), map_writable(Path(step.z))
    wanted = np.arange(block.first, block.end)
    if work.reused is not None:
        wanted = wanted[map_array(Path(work.reused.needed))[block.first : block.end]]
    for at in range(0, len(wanted), work.batch):
        nodes = wanted[at : at + work.batch]
        z = np.empty((len(nodes), out.shape[1]), out.dtype)
        store(step.module.messages(h[nodes]), z, f"layer {step.layer}, messages")
        out[nodes] = z
    return len(wanted)


def aggregate_replicated(block: NodeBlock, work: PassWork) -> BlockResult:
    """Compute a block of destinations under plan R.

    The map of messages is shared by all blocks of a process.
    """
    z = _map_cached(work.step.z, Path(work.step.z).stat().st_ino)
    csr = work.graph.csr(block)
    if work.reused is not None:
        flags = map_array(Path(work.reused.touched))[block.first : block.end]
        edges, nodes = int(np.diff(csr.indptr)[flags].sum()), int(np.count_nonzero(flags))
        return _write_result(
            block, work, _merge_with_reused(block, work, csr, z, work.reused), nodes, edges, received=0
        )
    own = z[block.first : block.end]
    return _aggregate_block(block, work, Sources(csr, z, work.graph.hashes(), own), csr.edges, 0)


@lru_cache(maxsize=1)
def _map_cached(path: str, inode: int) -> Any:
    """Map a file that most blocks read all over, once for each process.

    If it were mapped again for each block, its pages would fault in again each time.
    """
    del inode  # part of the cache key: a new file under this path is mapped again
    return map_array(Path(path))


def _merge_with_reused(
    block: NodeBlock, work: PassWork, csr: Csr, z: Any, reused: ReusedFiles
) -> Iterator[tuple[int, Any]]:
    """Yield last night's vectors, with new ones for the changed nodes."""
    flags = map_array(Path(reused.touched))[block.first : block.end]
    places = map_array(Path(reused.places))[block.first : block.end]
    before = map_array(Path(reused.before)) if reused.before else None
    hashes, step, h = work.graph.hashes(), work.step, map_array(Path(work.step.h))
    for first in range(0, block.rows, work.batch):
        flag = np.asarray(flags[first : first + work.batch])
        rows = first + np.flatnonzero(flag)
        nodes = block.first + rows
        n = step.module.aggregate(select_rows(csr, rows), z, z[nodes], hashes[nodes], hashes)
        new = compute_vectors(step, h[nodes] if step.kind == "layer" else None, n)
        out = np.zeros((len(flag), new.shape[1]), np.float32)
        out[flag] = new
        if before is not None:
            out[~flag] = before[places[first : first + work.batch][~flag]]
        yield block.first + first, out


def _compute_messages(block: NodeBlock, work: PassWork) -> Any:
    """Return the (rows, m) messages of a block of sources, as they are stored.

    Each vector is projected once.
    """
    step = work.step
    h = map_array(Path(step.h))[block.first : block.end]
    if not step.projects:
        return h if step.h == step.z else map_array(Path(step.z))[block.first : block.end]
    z = np.empty((block.rows, step.module.message_width(h.shape[1])), step.dtype)
    for first in range(0, block.rows, work.batch):
        part = slice(first, first + work.batch)
        store(step.module.messages(h[part]), z[part], f"layer {step.layer}, messages")
    return z


Sent = tuple[int, tuple[int, bytes, bytes, bytes]]
"""Place of the destinations' block, then: number of the sources' block, rows, vectors, own vectors."""


def send_messages(blocks: Iterator[NodeBlock], work: PassWork) -> Iterator[Sent]:
    """Send each block of destinations the messages that it needs from blocks of sources (plan G)."""
    for block in blocks:
        z = _compute_messages(block, work)
        for place, into in enumerate(work.destinations):
            need = work.graph.halo(into).need
            low, high = np.searchsorted(need, [block.first, block.end])
            own = z.tobytes() if into == block and work.step.module.aggregator == "gcn" else b""
            if high > low or own:
                wanted = np.ascontiguousarray(z[need[low:high].astype(np.int64) - block.first])
                yield place, (block.number, b"", wanted.tobytes(), own)


def aggregate_messages(place: int, sent: Iterator[Sent], work: PassWork) -> Iterator[BlockResult]:
    """Aggregate the messages that a block of destinations received (plan G).

    They are in the order of blocks.
    """
    block = work.destinations[place]
    parts = sorted(value for _, value in sent)
    width = _message_width(work)
    z = np.frombuffer(b"".join(part[2] for part in parts), work.step.dtype).reshape(-1, width)
    halo, csr = work.graph.halo(block), work.graph.csr(block)
    own = _unpack_own_messages(parts, block, width, work)
    hashes = work.graph.hashes()[halo.need]
    received = sum(len(part[2]) + len(part[3]) for part in parts)
    sources = Sources(Csr(csr.indptr, halo.place, csr.weight), z, hashes, own)
    yield _aggregate_block(block, work, sources, csr.edges, received)


def _unpack_own_messages(
    parts: list[tuple[int, bytes, bytes, bytes]], block: NodeBlock, width: int, work: PassWork
) -> Any:
    """Return the (rows, m) messages of the destinations themselves for `gcn`, else None.

    A block without nodes received none.
    """
    if work.step.module.aggregator != "gcn":
        return None
    packed = b"".join(part[3] for part in parts)
    return np.frombuffer(packed, work.step.dtype).reshape(block.rows, width)


def _message_width(work: PassWork) -> int:
    step = work.step
    stored = map_array(Path(step.h if step.projects else step.z)).shape[1]
    return step.module.message_width(stored) if step.projects else int(stored)


def send_sums(blocks: Iterator[NodeBlock], work: PassWork) -> Iterator[Sent]:
    """Send each block of destinations the sums over blocks of sources (plan S)."""
    kind = work.step.module.aggregator
    for block in blocks:
        z = _compute_messages(block, work)
        for place, into in enumerate(work.destinations):
            rows, edges = tile(work.graph.csr(into), block.first, block.end)
            own = z.tobytes() if into == block and kind == "gcn" else b""
            if len(rows) or own:
                sums = sum_sources(kind, edges, z)
                yield place, (block.number, rows.astype(np.uint32).tobytes(), sums.tobytes(), own)


def aggregate_sums(place: int, sent: Iterator[Sent], work: PassWork) -> Iterator[BlockResult]:
    """Add up the sums that a block of destinations received, in the order of blocks (plan S)."""
    block, kind = work.destinations[place], work.step.module.aggregator
    parts, width = sorted(value for _, value in sent), _message_width(work)
    acc = np.full((block.rows, width), -np.inf if kind == "max" else 0.0, np.float32)
    for _, packed, sums, _ in parts:
        rows, values = np.frombuffer(packed, np.uint32), np.frombuffer(sums, np.float32).reshape(-1, width)
        with np.errstate(over="ignore", invalid="ignore"):  # `compute_vectors` reports it
            acc[rows] = np.maximum(acc[rows], values) if kind == "max" else acc[rows] + values
    csr = work.graph.csr(block)
    finish_sums(kind, acc, *count_edges(csr), _unpack_own_messages(parts, block, width, work))
    received = sum(len(part[1]) + len(part[2]) + len(part[3]) for part in parts)
    yield _write_result(
        block, work, _combine_sums(block, work, acc), block.rows, csr.edges, received=received
    )


def _aggregate_block(
    block: NodeBlock, work: PassWork, sources: Sources, edges: int, received: int
) -> BlockResult:
    def rows() -> Iterator[tuple[int, Any]]:
        own_hash = work.graph.hashes()[block.first : block.end]
        for first in range(0, block.rows, work.batch):
            end = min(first + work.batch, block.rows)
            own = None if sources.own is None else sources.own[first:end]
            part = window(sources.csr, first, end)
            n = work.step.module.aggregate(part, sources.z, own, own_hash[first:end], sources.hashes)
            yield block.first + first, n

    return _write_result(
        block, work, _combine_batches(block, work, rows()), block.rows, edges, received=received
    )


def _combine_sums(block: NodeBlock, work: PassWork, n: Any) -> Iterator[tuple[int, Any]]:
    chunks = ((block.first + at, n[at : at + work.batch]) for at in range(0, block.rows, work.batch))
    return _combine_batches(block, work, chunks)


def _combine_batches(
    block: NodeBlock, work: PassWork, pooled: Iterator[tuple[int, Any]]
) -> Iterator[tuple[int, Any]]:
    """Yield new vectors of a block's nodes, float32, computed from their aggregates."""
    step = work.step
    h = map_array(Path(step.h)) if step.kind == "layer" else None
    for first, n in pooled:
        yield first, compute_vectors(step, None if h is None else h[first : first + len(n)], n)


def compute_vectors(step: Pass, own: Any, n: Any) -> Any:
    """Return the (r, o) float32 vectors that a pass computes for some nodes.

    Args:
        step: the pass.
        own: (r, d) the nodes' own vectors; None for a pool.
        n: (r, m) float32, the aggregate over their neighbours.

    Raises:
        DataError: a sum over neighbours is infinite or NaN. It is checked here, because `relu` would turn
            -inf into 0.
    """
    check_finite(n, f"layer {step.layer}, sums over neighbours")
    out = n if own is None else step.module.combine(own, n)
    for layer in step.output_layers:
        out = layer.apply(out)
    return out


def _write_result(
    block: NodeBlock,
    work: PassWork,
    rows: Iterator[tuple[int, Any]],
    nodes: int,
    edges: int,
    *,
    received: int,
) -> BlockResult:
    _freeze_garbage()
    step, target = work.step, work.step.target
    out = None if step.out is None else map_writable(Path(step.out))
    stored_rows = _store_rows(rows, step, out, as_float=target is not None and target.kind == "embeddings")
    if target is None:
        for _ in stored_rows:
            pass
        return BlockResult(block.number, nodes, edges, received, None)
    partition, blocks = target.block_partition(work.graph, block), len(work.graph.blocks)
    if target.kind == "vectors":
        file = write_vectors(target.folder, partition, block, blocks, stored_rows)
    else:
        ids = read_ids(work.graph, block)
        file = write_embeddings(target.folder, partition, block, blocks, ids, rows=stored_rows)
    return BlockResult(block.number, nodes, edges, received, file)


@lru_cache(maxsize=1)
def _freeze_garbage() -> None:
    """Exempt all existing objects from garbage collection, which PySpark runs after every task.

    numba and torch have made many.
    """
    gc.freeze()


def _store_rows(
    rows: Iterator[tuple[int, Any]], step: Pass, out: Any, as_float: bool
) -> Iterator[tuple[int, Any]]:
    """Yield rows as they are stored, and write them to the file."""
    for first, vectors in rows:
        place = None if out is None else out[first : first + len(vectors)]
        if as_float and place is None:
            yield first, np.ascontiguousarray(check_finite(vectors, f"layer {step.layer}"))
            continue
        stored = np.empty(vectors.shape, step.dtype)
        store(vectors, stored, f"layer {step.layer}")
        if place is not None:
            place[:] = stored
        yield first, np.ascontiguousarray(vectors) if as_float else stored
