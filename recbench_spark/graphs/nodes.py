"""Embed a few nodes on demand, in this process.

The embeddings equal the nightly run's bit for bit. Layer by layer, a node's neighbours tell which vectors
of the layer before it needs. Each vector of a layer is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.csr import Csr, count_offsets, select_rows
from recbench_spark.graphs.kernels.dense import check_finite, store
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES
from recbench_spark.graphs.message_passing import Pass, compute_vectors, project_rows
from recbench_spark.graphs.runner import Model, plan_passes
from recbench_spark.storage.block_arrays import map_whole

Nodes = npt.NDArray[np.int64]
Vectors = npt.NDArray[Any]


def collect_edges(graph: Graph, node_r: Nodes) -> Csr:
    """Return the edges into some nodes, in node order.

    Sources are dense ids.
    """
    blocks = [block for block in graph.blocks if block.rows]
    firsts = np.array([block.first for block in blocks])
    which = np.searchsorted(firsts, node_r, side="right") - 1
    counts = np.zeros(len(node_r), np.int64)
    parts: list[tuple[Nodes, Csr]] = []
    for number in np.unique(which):
        places = np.flatnonzero(which == number)
        part = select_rows(graph.csr(blocks[number]), node_r[places] - firsts[number])
        counts[places] = np.diff(part.indptr)
        parts.append((places, part))
    indptr = count_offsets(counts)
    src = np.zeros(indptr[-1] + PREFETCH_EDGES, np.uint32)
    weight = np.zeros(indptr[-1], np.float32) if graph.weighted else None
    for places, part in parts:
        lengths = np.diff(part.indptr)
        to = np.arange(part.edges) + np.repeat(indptr[places] - part.indptr[:-1], lengths)
        src[to] = part.src[: part.edges]
        if weight is not None and part.weight is not None:
            weight[to] = part.weight
    return Csr(indptr, src, weight)


def embed_nodes(graph: Graph, model: Model, node_r: Nodes) -> Vectors:
    """Embed some nodes, (r, o) float32.

    Args:
        graph: the graph on disk.
        model: the model with its features.
        node_r: dense ids, ascending.
    """
    steps = plan_passes(model, graph)
    embeddings: Vectors = np.empty((0, 0), np.float32)
    for side in range(len(graph.sides)):
        first, end = graph.side_range(side)
        own = node_r[(node_r >= first) & (node_r < end)]
        if len(own):
            last = [step for step in steps if step.side in (None, side)][-1]
            vectors = check_finite(_compute_vectors(graph, steps, last, own), f"layer {last.layer}")
            embeddings = vectors if not len(embeddings) else np.vstack([embeddings, vectors])
    return embeddings


def _compute_vectors(graph: Graph, steps: list[Pass], step: Pass, node_r: Nodes) -> Vectors:
    """Compute a pass's vectors for some destinations, (r, o) float32."""
    csr = collect_edges(graph, node_r)
    need = np.unique(csr.src[: csr.edges]).astype(np.int64)
    place = np.zeros(len(csr.src), np.uint32)
    place[: csr.edges] = np.searchsorted(need, csr.src[: csr.edges])
    read = _make_reader(graph, steps, step)
    gcn = step.module.aggregator == "gcn"
    wanted = np.union1d(need, node_r) if gcn else need
    z = project_rows(step, read(step.h, wanted)) if step.projects else read(step.z, wanted)
    own = z[np.searchsorted(wanted, node_r)] if gcn else None
    hashes = graph.hashes()
    sources = z[np.searchsorted(wanted, need)]
    edges = Csr(csr.indptr, place, csr.weight)
    n = step.module.aggregate(edges, sources, own, hashes[node_r], hashes[need])
    vectors: Vectors = compute_vectors(step, read(step.h, node_r) if step.kind == "layer" else None, n)
    return vectors


def _make_reader(graph: Graph, steps: list[Pass], step: Pass) -> Callable[[str, Nodes], Vectors]:
    """Make a function that returns stored vectors of some nodes.

    Stored vectors come from the features or from an earlier pass.
    """
    makers = {maker.out: maker for maker in steps if maker.out is not None}

    def read(place: str, node_r: Nodes) -> Vectors:
        maker = makers.get(place)
        if maker is None:
            return np.ascontiguousarray(map_whole(place)[node_r])
        computed = _compute_vectors(graph, steps, maker, node_r)
        stored = np.empty(computed.shape, maker.dtype)
        store(computed, stored, f"layer {maker.layer}")
        return stored

    return read
