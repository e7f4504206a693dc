"""Tonight's graph beside that of the night before: which nodes a layer must compute again.

A node's vector after k layers hangs on its neighbours' vectors after k - 1, its own, and its list of
neighbours. With A_0 the nodes that are new or have new features, and C those with another list,

    A_k = C u A_(k-1) u {v : N(v) meets A_(k-1)}.

Flags are files of one byte a node, filled by a task a block. Whoever is not in A_k keeps last night's
vector, found by the hash of the id: the bits of a full run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from recbench_spark.graph.folders import Block, Graph, mapped, new_matrix, writable
from recbench_spark.graph.layout import Finder
from recbench_spark.graph.nodes import edges_into
from recbench_spark.graph.passes import Kept
from recbench_spark.graph.vectors import committed, read_back
from recbench_spark.kernels.graph.csr import Csr, touched
from recbench_spark.kernels.graph.ids import MOST_NODES


@dataclass(frozen=True)
class Night:
    """A night that is done: graph, features, and the tables that hold its layers.

    Attributes:
        graph: laid out.
        features: file of its nodes' first vectors.
        places: of each layer's vectors, from 1: folder of the table and its partitions, by side where the
            table has sides.
    """

    graph: Graph
    features: str
    places: tuple[tuple[str, tuple[dict[str, str], ...]], ...]


@dataclass(frozen=True)
class Touched:
    """How much of a layer must be computed: nodes, edges into them, sources that they need."""

    nodes: int
    edges: int
    sources: int


def compare(
    context: SparkContext, graph: Graph, features: str, before: Night, layers: int, folder: Path
) -> list[Touched]:
    """Flags of all layers as files, and how much each must compute.

    Args:
        context: Spark's.
        graph: tonight's.
        features: file of tonight's first vectors.
        before: the night before; sides, kinds of ids and seed are the same.
        layers: their number.
        folder: for the files.
    """
    new_matrix(folder / "places.npy", (graph.nodes,), np.uint32)
    for name in ("lists", *(f"{kind}-{k}" for kind in ("touched", "needed") for k in range(layers + 1))):
        (folder / f"{name}.npy").unlink(missing_ok=True)
        new_matrix(folder / f"{name}.npy", (graph.nodes,), np.bool_)
    blocks = context.parallelize(graph.blocks, len(graph.blocks))
    blocks.foreach(partial(_changed, graph=graph, features=features, before=before, folder=folder))
    found = []
    for k in range(1, layers + 1):
        parts = blocks.map(partial(_spread, graph=graph, k=k, folder=folder)).collect()
        sources = blocks.map(partial(_count, path=folder / f"needed-{k}.npy")).collect()
        found.append(Touched(sum(n for n, _ in parts), sum(e for _, e in parts), sum(sources)))
    return found


def _changed(block: Block, graph: Graph, features: str, before: Night, folder: Path) -> None:
    """Of a block: last night's dense ids, whose list differs, and who is new or has other features."""
    hashes = graph.hashes()[block.first : block.end]
    old_r = Finder(before.graph)(hashes, block.side)
    writable(folder / "places.npy")[block.first : block.end] = old_r
    there = np.flatnonzero(old_r < MOST_NODES)
    fresh = old_r >= MOST_NODES
    old = np.asarray(old_r[there], np.int64)
    now, then = mapped(Path(features)), mapped(Path(before.features))
    fresh[there] = (now[block.first + there] != then[old]).any(axis=1)
    lists = np.ones(block.rows, np.bool_)
    lists[there] = lists_differ(
        edges_into(graph, block.first + there),
        graph.hashes(),
        edges_into(before.graph, old),
        before.graph.hashes(),
    )
    writable(folder / "lists.npy")[block.first : block.end] = lists
    writable(folder / "touched-0.npy")[block.first : block.end] = fresh


def lists_differ(one: Csr, one_hash: Any, other: Csr, other_hash: Any) -> npt.NDArray[np.bool_]:
    """(r,) whether two lists of neighbours differ, in an id, a weight or their number.

    Args:
        one: edges into some nodes; other: into the same nodes, the night before.
        one_hash: hashes of ids by dense id; other_hash: those of the night before.
    """
    counts = np.diff(one.indptr)
    differ: npt.NDArray[np.bool_] = counts != np.diff(other.indptr)
    same = np.flatnonzero(~differ & (counts > 0))
    mine, theirs = (
        np.arange(counts[same].sum()) + np.repeat(csr.indptr[same] - _starts(counts[same]), counts[same])
        for csr in (one, other)
    )
    unequal = one_hash[one.src[mine]] != other_hash[other.src[theirs]]
    if one.weight is not None and other.weight is not None:
        unequal |= one.weight[mine] != other.weight[theirs]
    if len(same):
        differ[same] = np.logical_or.reduceat(unequal, _starts(counts[same]))
    return differ


def _starts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.cumsum(counts) - counts


def _spread(block: Block, graph: Graph, k: int, folder: Path) -> tuple[int, int]:
    """A_k of a block, the sources that it needs; nodes and edges of it."""
    before = mapped(folder / f"touched-{k - 1}.npy")
    own = before[block.first : block.end] | mapped(folder / "lists.npy")[block.first : block.end]
    csr = graph.csr(block)
    flags = touched(csr, before, own)
    writable(folder / f"touched-{k}.npy")[block.first : block.end] = flags
    counts = np.diff(csr.indptr)
    needed = writable(folder / f"needed-{k}.npy")
    needed[csr.src[: csr.edges][np.repeat(flags, counts)]] = True
    needed[block.first + np.flatnonzero(flags)] = True
    return int(np.count_nonzero(flags)), int(counts[flags].sum())


def _count(block: Block, path: Path) -> int:
    return int(np.count_nonzero(mapped(path)[block.first : block.end]))


def last_night(context: SparkContext, before: Night, layer: int, path: Path, dtype: str) -> None:
    """Last night's vectors of a layer as a file, by last night's dense ids."""
    folder, partitions = before.places[layer - 1]
    files: dict[int, str] = {}
    for partition in partitions:
        files |= committed(folder, partition, len(before.graph.blocks))
    blocks = [block for block in before.graph.blocks if block.rows]
    width = next(v.shape[1] for _, v in read_back(files[blocks[0].number], blocks[0]))
    path.unlink(missing_ok=True)
    new_matrix(path, (before.graph.nodes, width), dtype)
    wanted = [(block, files[block.number]) for block in blocks]
    context.parallelize(wanted, len(wanted)).foreach(partial(_restore, path=path))


def _restore(wanted: tuple[Block, str], path: Path) -> None:
    block, file = wanted
    out = writable(path)
    for first, vectors in read_back(file, block):
        out[first : first + len(vectors)] = vectors


def is_whole(before: Night) -> bool:
    """Whether all vectors of all layers of a night are there."""
    numbers = {block.number for block in before.graph.blocks}
    for folder, partitions in before.places:
        there = {n for part in partitions for n in committed(folder, part, len(before.graph.blocks))}
        if there != numbers:
            return False
    return True


def kept_of(folder: Path, layer: int) -> Kept:
    """Where the files of a layer are."""
    return Kept(
        str(folder / f"touched-{layer}.npy"),
        str(folder / f"needed-{layer}.npy"),
        str(folder / f"before-{layer}.npy"),
        str(folder / "places.npy"),
    )
