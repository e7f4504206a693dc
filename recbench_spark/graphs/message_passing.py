"""Run the tasks of a pass under three plans.

They give the same bits, with an exception below.

R (replicated): every host maps all blocks' vectors as one array. A task reads what it needs, and nothing
is shuffled.

G (gathered): the task with a block's vectors sends each destination block the distinct ones it needs.

S (scattered): a task adds up its vectors for each destination and sends the sums. Linear and max
aggregators allow this.

Under R and G a destination adds its sources' vectors one after the other by ascending dense id, from a
file or from the gathered vectors in that order, so the additions are the same. Under S it adds block sums
in order: the bits are the same where additions are exact and for max; else numbers are equal to float32's
precision.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from recbench_spark.graphs.build import read_ids
from recbench_spark.graphs.folders import Graph, NodeBlock
from recbench_spark.graphs.kernels.aggregate import count_edges, finish_sums, sum_sources
from recbench_spark.graphs.kernels.csr import Csr, select_rows, tile, window
from recbench_spark.graphs.kernels.dense import Dense, check_finite, store
from recbench_spark.graphs.kernels.layers import Layer
from recbench_spark.graphs.vectors import BlockFile, write_embeddings, write_vectors
from recbench_spark.storage import block_arrays
from recbench_spark.storage.block_arrays import ArrayPart, PartMaker
from recbench_spark.storage.delta_files import File

PassPlan = Literal["G", "R", "S"]


@dataclass(frozen=True)
class Target:
    """The Delta table a pass writes, one file per block.

    Attributes:
        folder: the table's folder.
        partition: columns in no file. `side` is added for each block.
        kind: `vectors` (bytes, as they are stored) or `embeddings` (ids and float32 arrays).
    """

    folder: str
    partition: Mapping[str, str]
    kind: Literal["vectors", "embeddings"]

    def block_partition(self, graph: Graph, block: NodeBlock) -> dict[str, str]:
        """Return the partition for a block's file."""
        more = {"side": graph.sides[block.side]} if self.kind == "embeddings" else {}
        return {**self.partition, **more}


@dataclass(frozen=True)
class Pass:
    """One aggregation over some destinations: what it reads and writes.

    Attributes:
        layer: layer number, from 1.
        kind: `layer` combines the aggregate with a node's own vector; `pool` only pools.
        side: side of the destinations; None: all nodes.
        sources: side of the sources; None: all nodes.
        module: the layer.
        projects: true if messages must be projected from h first; else `z` holds them.
        output_layers: dense layers after it.
        h: place of the nodes' own vectors (`block_arrays`).
        z: place of the messages; h itself where nothing is projected.
        out: place for the new vectors; None: only the target is written.
        dtype: type of stored vectors.
        target: table for the new vectors; None: only `out` is written.
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
        """Dimensions of the new vectors; a pool has the module's."""
        return len(self.output_layers[-1].bias) if self.output_layers else self.module.width


@dataclass(frozen=True)
class ReusedFiles:
    """Arrays from the night before that a pass reuses.

    `incremental` makes them.

    Attributes:
        touched: place of flags: nodes to compute.
        needed: place of flags: sources whose messages these nodes need.
        before: place of last night's vectors in this layer, by last night's dense ids. It is empty where
            no vectors are reused: then nodes that are not computed are not read either.
        places: place of last night's dense id for each node.
    """

    touched: str
    needed: str
    before: str
    places: str


class BlockResult(NamedTuple):
    """A block's computed vectors, with counts and files.

    Attributes:
        number: block number.
        nodes: computed nodes.
        edges: edges into them.
        received: bytes of vectors or sums received by a shuffle.
        file: file for the table; None without one.
        part: object of the block's vectors; None if the pass has no `out`.
    """

    number: int
    nodes: int
    edges: int
    received: int
    file: File | None
    part: ArrayPart | None


@dataclass(frozen=True)
class PassWork:
    """The inputs every task in a pass needs.

    Attributes:
        graph: the graph.
        step: the pass.
        batch: destinations computed together.
        destinations: destination blocks that receive messages, in order.
        reused: files from the night before; None: all nodes are computed.
    """

    graph: Graph
    step: Pass
    batch: int
    destinations: tuple[NodeBlock, ...] = field(default=())
    reused: ReusedFiles | None = None


class Sources(NamedTuple):
    """The messages a destination block aggregates.

    Attributes:
        csr: edges into the destinations; `src` are rows of z.
        z: messages.
        hashes: source id hashes, one for each row of z.
        own: the destinations' own messages (GCN), or all of z by dense id.
    """

    csr: Csr
    z: Any
    hashes: Any
    own: Any


class ProjectedBlock(NamedTuple):
    """A block's written messages, and the number of projected vectors."""

    part: ArrayPart
    nodes: int


def project_messages(block: NodeBlock, work: PassWork) -> ProjectedBlock:
    """Write a block's messages (plan R).

    Messages no pass needs are zeros.
    """
    step, reused = work.step, work.reused
    h = block_arrays.map_part(step.h, block.number, block.rows)
    shape = (block.rows, step.module.message_width(h.shape[1]))
    with block_arrays.make_part(step.z, block.number, shape, step.dtype, block.first) as maker:
        if reused is None:
            for first in range(0, block.rows, work.batch):
                maker.append(project_rows(step, h[first : first + work.batch]))
            projected = block.rows
        else:
            wanted = np.flatnonzero(block_arrays.map_part(reused.needed, block.number, block.rows))
            out = maker.map_rows()
            for at in range(0, len(wanted), work.batch):
                nodes = wanted[at : at + work.batch]
                out[nodes] = project_rows(step, h[nodes])
            projected = len(wanted)
    return ProjectedBlock(maker.entry, projected)


def project_rows(step: Pass, h: Any) -> Any:
    """Project some nodes to messages, (r, m), as stored."""
    z = np.empty((len(h), step.module.message_width(h.shape[1])), step.dtype)
    store(step.module.messages(h), z, f"layer {step.layer}, messages")
    return z


def aggregate_replicated(block: NodeBlock, work: PassWork) -> BlockResult:
    """Compute a destination block under plan R."""
    z, csr = block_arrays.map_whole(work.step.z), work.graph.csr(block)
    if work.reused is not None:
        flags = block_arrays.map_part(work.reused.touched, block.number, block.rows)
        edges, nodes = int(np.diff(csr.indptr)[flags].sum()), int(np.count_nonzero(flags))
        merged = _merge_with_reused(block, work, csr, z, work.reused)
        return _write_result(block, work, merged, (nodes, edges, 0))
    own = z[block.first : block.end]
    return _aggregate_block(block, work, Sources(csr, z, _source_hashes(work), own), csr.edges, 0)


def _source_hashes(work: PassWork) -> Any:
    """Return the sources' id hashes, (nodes,).

    The array is empty for an aggregator that reads no hashes.
    """
    ordered = work.step.module.aggregator == "lstm"
    return work.graph.hashes() if ordered else np.empty(0, np.uint64)


def _merge_with_reused(
    block: NodeBlock, work: PassWork, csr: Csr, z: Any, reused: ReusedFiles
) -> Iterator[tuple[int, Any]]:
    """Yield last night's vectors, with new ones for changed nodes."""
    flags = block_arrays.map_part(reused.touched, block.number, block.rows)
    places = block_arrays.map_part(reused.places, block.number, block.rows)
    before = block_arrays.map_whole(reused.before) if reused.before else None
    hashes, own_hash = _source_hashes(work), work.graph.block_hashes(block)
    step, h = work.step, _map_own(block, work.step)
    for first in range(0, block.rows, work.batch):
        flag = np.asarray(flags[first : first + work.batch])
        rows = first + np.flatnonzero(flag)
        own = z[block.first + rows]
        n = step.module.aggregate(select_rows(csr, rows), z, own, own_hash[rows], hashes)
        new = compute_vectors(step, None if h is None else h[rows], n)
        out = np.zeros((len(flag), new.shape[1]), np.float32)
        out[flag] = new
        if before is not None:
            out[~flag] = before[places[first : first + work.batch][~flag]]
        yield block.first + first, out


def _compute_messages(block: NodeBlock, work: PassWork) -> Any:
    """Compute a source block's messages, (rows, m), as stored.

    Each source vector is projected once.
    """
    step = work.step
    if not step.projects:
        return block_arrays.map_part(step.z, block.number, block.rows)
    h = block_arrays.map_part(step.h, block.number, block.rows)
    z = np.empty((block.rows, step.module.message_width(h.shape[1])), step.dtype)
    for first in range(0, block.rows, work.batch):
        z[first : first + work.batch] = project_rows(step, h[first : first + work.batch])
    return z


Sent = tuple[int, tuple[int, bytes, bytes, bytes]]
"""Place of the destination block, then the message.

The message has the source block's number, rows, vectors and own vectors.
"""


def send_messages(blocks: Iterator[NodeBlock], work: PassWork) -> Iterator[Sent]:
    """Send each destination block the messages it needs (plan G)."""
    for block in blocks:
        z = _compute_messages(block, work)
        for place, into in enumerate(work.destinations):
            need = work.graph.map_sources(into)
            low, high = np.searchsorted(need, [block.first, block.end])
            own = z.tobytes() if into == block and work.step.module.aggregator == "gcn" else b""
            if high > low or own:
                wanted = np.ascontiguousarray(z[need[low:high].astype(np.int64) - block.first])
                yield place, (block.number, b"", wanted.tobytes(), own)


def aggregate_messages(place: int, sent: Iterator[Sent], work: PassWork) -> Iterator[BlockResult]:
    """Aggregate the messages received by a destination block (plan G).

    Messages come in block order.
    """
    block = work.destinations[place]
    parts = sorted(value for _, value in sent)
    width = message_width(work.step)
    z = np.frombuffer(b"".join(part[2] for part in parts), work.step.dtype).reshape(-1, width)
    halo, csr = work.graph.halo(block), work.graph.csr(block)
    own = _unpack_own_messages(parts, block, width, work)
    hashes = _source_hashes(work)
    hashes = hashes[halo.need] if len(hashes) else hashes
    received = sum(len(part[2]) + len(part[3]) for part in parts)
    sources = Sources(Csr(csr.indptr, halo.place, csr.weight), z, hashes, own)
    yield _aggregate_block(block, work, sources, csr.edges, received)


def _unpack_own_messages(
    parts: list[tuple[int, bytes, bytes, bytes]], block: NodeBlock, width: int, work: PassWork
) -> Any:
    """Return the destinations' own messages (rows, m), for `gcn`.

    Other aggregators get None. A block without nodes received none.
    """
    if work.step.module.aggregator != "gcn":
        return None
    packed = b"".join(part[3] for part in parts)
    return np.frombuffer(packed, work.step.dtype).reshape(block.rows, width)


def message_width(step: Pass) -> int:
    """Return a message's dimensions, from the arrays it is in or made of."""
    stored = block_arrays.read_parts(step.h if step.projects else step.z).shape[1]
    return step.module.message_width(stored) if step.projects else int(stored)


def send_sums(blocks: Iterator[NodeBlock], work: PassWork) -> Iterator[Sent]:
    """Send destination blocks their sums over source blocks (plan S)."""
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
    """Add up a destination block's received sums (plan S).

    Sums are added in block order.
    """
    block, kind = work.destinations[place], work.step.module.aggregator
    parts, width = sorted(value for _, value in sent), message_width(work.step)
    acc = np.full((block.rows, width), -np.inf if kind == "max" else 0.0, np.float32)
    for _, packed, sums, _ in parts:
        row_r, values = np.frombuffer(packed, np.uint32), np.frombuffer(sums, np.float32).reshape(-1, width)
        with np.errstate(over="ignore", invalid="ignore"):  # `compute_vectors` reports it
            acc[row_r] = np.maximum(acc[row_r], values) if kind == "max" else acc[row_r] + values
    csr = work.graph.csr(block)
    finish_sums(kind, acc, *count_edges(csr), _unpack_own_messages(parts, block, width, work))
    received = sum(len(part[1]) + len(part[2]) + len(part[3]) for part in parts)
    pooled = ((block.first + at, acc[at : at + work.batch]) for at in range(0, block.rows, work.batch))
    rows = _combine_batches(block, work, pooled)
    yield _write_result(block, work, rows, (block.rows, csr.edges, received))


def _aggregate_block(
    block: NodeBlock, work: PassWork, sources: Sources, edges: int, received: int
) -> BlockResult:
    def rows() -> Iterator[tuple[int, Any]]:
        own_hash = work.graph.block_hashes(block)
        for first in range(0, block.rows, work.batch):
            end = min(first + work.batch, block.rows)
            own = None if sources.own is None else sources.own[first:end]
            part = window(sources.csr, first, end)
            n = work.step.module.aggregate(part, sources.z, own, own_hash[first:end], sources.hashes)
            yield block.first + first, n

    combined = _combine_batches(block, work, rows())
    return _write_result(block, work, combined, (block.rows, edges, received))


def _combine_batches(
    block: NodeBlock, work: PassWork, pooled: Iterator[tuple[int, Any]]
) -> Iterator[tuple[int, Any]]:
    """Yield new float32 vectors from a block's aggregates."""
    h = _map_own(block, work.step)
    for first, n in pooled:
        at = first - block.first
        yield first, compute_vectors(work.step, None if h is None else h[at : at + len(n)], n)


def _map_own(block: NodeBlock, step: Pass) -> Any:
    """Map a block's vectors before a layer, (rows, d).

    A pool gets None.
    """
    return block_arrays.map_part(step.h, block.number, block.rows) if step.kind == "layer" else None


def compute_vectors(step: Pass, own: Any, n: Any) -> Any:
    """Compute some nodes' new vectors, (r, o) float32.

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
    block: NodeBlock, work: PassWork, rows: Iterator[tuple[int, Any]], counts: tuple[int, int, int]
) -> BlockResult:
    """Write a block's new vectors; `counts` are nodes, edges and received bytes."""
    _freeze_garbage()
    step = work.step
    if step.out is None:
        file = _write_file(block, work, _store_rows(rows, step, None))
        return BlockResult(block.number, *counts, file, None)
    shape = (block.rows, output_width(step))
    with block_arrays.make_part(step.out, block.number, shape, step.dtype, block.first) as maker:
        file = _write_file(block, work, _store_rows(rows, step, maker))
    return BlockResult(block.number, *counts, file, maker.entry)


def output_width(step: Pass) -> int:
    """Return the dimensions of a pass's new vectors."""
    return step.width if step.kind == "layer" else message_width(step)


def _write_file(block: NodeBlock, work: PassWork, rows: Iterator[tuple[int, Any]]) -> File | None:
    """Write a block's rows to a table file.

    Without a table only iterate over them.
    """
    target, blocks = work.step.target, len(work.graph.blocks)
    if target is None:
        for _ in rows:
            pass
        return None
    into = BlockFile(target.folder, target.block_partition(work.graph, block), block, blocks)
    if target.kind == "vectors":
        return write_vectors(into, rows)
    return write_embeddings(into, read_ids(work.graph, block), rows)


@lru_cache(maxsize=1)
def _freeze_garbage() -> None:
    """Exempt all existing objects from garbage collection.

    PySpark collects after every task, and numba and torch have made many objects.
    """
    gc.freeze()


def _store_rows(
    rows: Iterator[tuple[int, Any]], step: Pass, maker: PartMaker | None
) -> Iterator[tuple[int, Any]]:
    """Yield rows as the table holds them, and append them to the block."""
    as_float = step.target is not None and step.target.kind == "embeddings"
    for first, vectors in rows:
        if as_float and maker is None:
            yield first, np.ascontiguousarray(check_finite(vectors, f"layer {step.layer}"))
            continue
        stored = np.empty(vectors.shape, step.dtype)
        store(vectors, stored, f"layer {step.layer}")
        if maker is not None:
            maker.append(stored)
        yield first, np.ascontiguousarray(vectors) if as_float else stored
