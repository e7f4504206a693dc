"""Measure how far embeddings moved since the night before.

The measures are cosine quantiles, and the share of neighbours kept. Nodes are matched by id hash. Cosines
are counted in bins of a thousandth, so no single node reaches the driver. Neighbours are those of the
first nodes by hash, which are a random sample.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.graphs.build import NodeFinder
from recbench_spark.graphs.folders import Graph, NodeBlock
from recbench_spark.graphs.kernels.dense import normalise
from recbench_spark.graphs.kernels.ids import MOST_NODES
from recbench_spark.storage.block_arrays import map_whole
from recbench_spark.storage.blocks import Engine

BINS = 2000
QUANTILES = (0.01, 0.1, 0.5)
SAMPLE_NODES, NEIGHBOURS = 200, 10


def measure_drift(
    engine: Engine, graph: Graph, vectors: str, before: Graph, old: str
) -> list[tuple[str, str, float]]:
    """Return facts by side: (side, fact, value).

    drift_common: share of nodes already there the night before. drift_cosine_p01, _p10, _p50: cosine
    quantiles between a node's two vectors, to 0.001 (a vector of zeros has 1 with itself, else 0).
    drift_neighbours_kept: how many of a node's ten nearest by cosine were among its ten nearest before,
    as a share.

    Args:
        engine: the runner.
        graph: tonight's graph.
        vectors: where tonight's vectors are, by dense id.
        before: last night's graph.
        old: where last night's vectors are, by dense id.
    """
    facts = []
    for side, name in enumerate(graph.sides):
        blocks = [block for block in graph.side_blocks(side) if block.rows]
        count = partial(_count_cosines, graph=graph, vectors=vectors, before=before, old=old)
        bins = sum(engine.parallelize(blocks, max(1, len(blocks))).map(count).collect(), np.zeros(BINS + 1))
        first, end = graph.side_range(side)
        facts.append((name, "drift_common", float(bins.sum()) / max(end - first, 1)))
        if bins.sum():
            for q in QUANTILES:  # the smallest bin with share `q` up to it
                place = int(np.searchsorted(np.cumsum(bins), q * bins.sum()))
                facts.append((name, f"drift_cosine_p{q * 100:02.0f}", place * 2 / BINS - 1))
            share = _measure_overlap(engine, graph, vectors, before, old, side=side)
            facts.append((name, "drift_neighbours_kept", share))
    return facts


def _normalise_rows(rows: Any) -> npt.NDArray[np.float32]:
    return normalise(np.ascontiguousarray(rows, np.float32).copy())


def _count_cosines(
    block: NodeBlock, graph: Graph, vectors: str, before: Graph, old: str
) -> npt.NDArray[Any]:
    """Count a block's nodes by cosine bin, (bins,)."""
    place = NodeFinder(before)(graph.hashes()[block.first : block.end], block.side)
    there = np.flatnonzero(place < MOST_NODES)
    counts = np.zeros(BINS + 1)
    for at in range(0, len(there), 1 << 14):
        rows = there[at : at + (1 << 14)]
        a = np.asarray(map_whole(vectors)[block.first + rows], np.float32)
        b = np.asarray(map_whole(old)[place[rows]], np.float32)
        cosine = (_normalise_rows(a) * _normalise_rows(b)).sum(axis=1, dtype=np.float64)
        cosine[(a == b).all(axis=1)] = 1.0
        counts += np.bincount(np.rint((cosine.clip(-1, 1) + 1) * BINS / 2).astype(int), minlength=BINS + 1)
    return counts


def _measure_overlap(
    engine: Engine, graph: Graph, vectors: str, before: Graph, old: str, *, side: int
) -> float:
    """Return the share of neighbours kept.

    The share is measured on the first SAMPLE_NODES nodes both nights have.
    """
    first, end = graph.side_range(side)
    hashes = np.asarray(graph.hashes()[first : min(end, first + 10 * SAMPLE_NODES)])
    place = NodeFinder(before)(hashes, side)
    rows = np.flatnonzero(place < MOST_NODES)[:SAMPLE_NODES]
    now = _find_nearest(engine, graph, vectors, side, first + rows)
    then = _find_nearest(engine, before, old, side, np.asarray(place[rows], np.int64))
    shares = [len(np.intersect1d(a, b)) / max(len(a), 1) for a, b in zip(now, then, strict=True)]
    return float(np.mean(shares)) if shares else 1.0


def _find_nearest(
    engine: Engine, graph: Graph, vectors: str, side: int, nodes: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.uint64]]:
    """Return the hashes of each node's nearest others.

    Ties go to the smaller dense id.
    """
    blocks = [block for block in graph.side_blocks(side) if block.rows]
    search = partial(_find_nearest_in_block, graph=graph, vectors=vectors, nodes=nodes)
    parts = engine.parallelize(blocks, len(blocks)).map(search).collect()
    scores, places = (np.concatenate([part[n] for part in parts], axis=1) for n in (0, 1))
    order = np.lexsort((places, -scores))[:, :NEIGHBOURS]
    nearest = np.take_along_axis(places, order, axis=1)
    hashes = graph.hashes()
    most = min(NEIGHBOURS, graph.side_range(side)[1] - graph.side_range(side)[0] - 1)
    return [hashes[row[:most]] for row in nearest]


def _find_nearest_in_block(
    block: NodeBlock, graph: Graph, vectors: str, nodes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    stored = map_whole(vectors)
    unit = _normalise_rows(stored[nodes]).astype(np.float64)
    others = _normalise_rows(stored[block.first : block.end]).astype(np.float64)
    scores = unit @ others.T
    places = np.broadcast_to(np.arange(block.first, block.end), scores.shape)
    scores = np.where(places == nodes[:, None], -np.inf, scores)
    order = np.lexsort((places, -scores))[:, :NEIGHBOURS]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(places, order, axis=1)
