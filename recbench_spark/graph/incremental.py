"""Compare tonight's graph with that of the night before and mark the nodes that a layer must compute again.

A node's vector after a pass depends on its sources' vectors before it, on its own vector (in a layer, not
in a pool), and on its list of neighbours. With A_0 the nodes that are new or have new features, and C those
with another list,

    A_p = C u (A_(p-1) where the pass reads a node's own vector) u {v : N(v) meets A_(p-1)},

over the side that the pass computes. In mode projected these are the layers' A_k. Flags are files of one
byte for each node, filled by one task for each block. A node that is not in A_p keeps last night's vector,
which is looked up by the hash of its id: the bits of a full run. Pools between two layers of mode bipartite
are in no table. Those that the next layer reads are pooled again, changed or not, and no others.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from recbench_spark.graph.build import NodeFinder
from recbench_spark.graph.folders import Graph, NodeBlock, create_matrix, map_array, map_writable
from recbench_spark.graph.message_passing import Pass, ReusedFiles
from recbench_spark.graph.nodes import collect_edges
from recbench_spark.graph.vectors import list_committed, read_vectors
from recbench_spark.kernels.graph.csr import Csr, mark_touched
from recbench_spark.kernels.graph.ids import MOST_NODES


@dataclass(frozen=True)
class LayerFiles:
    """LayerFiles tell where the vectors of a layer are.

    Attributes:
        folder: folder of the table.
        partition: all partition columns but the side.
        sides: sides of these vectors, by place in the graph.
        by_side: true if the table has a partition for each side.
    """

    folder: str
    partition: dict[str, str]
    sides: tuple[int, ...]
    by_side: bool

    def files(self, graph: Graph) -> dict[int, str]:
        """Return the file of each block that is in the table."""
        files: dict[int, str] = {}
        for side in self.sides if self.by_side else (None,):
            more = {} if side is None else {"side": graph.sides[side]}
            files |= list_committed(self.folder, {**self.partition, **more}, len(graph.blocks))
        return files

    def blocks(self, graph: Graph) -> list[NodeBlock]:
        """Return the blocks that a complete table has."""
        return [block for block in graph.blocks if block.side in self.sides]


@dataclass(frozen=True)
class GraphNight:
    """GraphNight is a finished run: its graph, its features, and the tables that hold its layers.

    Attributes:
        graph: the graph on disk.
        features: file of its nodes' first vectors.
        places: files of each layer's vectors, from layer 1.
    """

    graph: Graph
    features: str
    places: tuple[LayerFiles, ...]


@dataclass(frozen=True)
class LayerChanges:
    """LayerChanges are the changed nodes of a layer, the edges into them, and the sources that
    they need.
    """

    nodes: int
    edges: int
    sources: int


def mark_changes(
    context: SparkContext, graph: Graph, steps: Sequence[Pass], before: GraphNight, folder: Path
) -> list[LayerChanges]:
    """Write the flags of all passes to files, and count the work of each pass.

    Args:
        context: the Spark context.
        graph: tonight's graph.
        steps: passes of the model, in order; the first reads tonight's features.
        before: the night before; its sides, kinds of ids and seed are the same.
        folder: folder for the files.
    """
    create_matrix(folder / "places.npy", (graph.nodes,), np.uint32)
    for name in (
        "lists",
        *(f"{kind}-{p}" for kind in ("touched", "needed") for p in range(len(steps) + 1)),
    ):
        (folder / f"{name}.npy").unlink(missing_ok=True)
        create_matrix(folder / f"{name}.npy", (graph.nodes,), np.bool_)
    blocks = context.parallelize(graph.blocks, len(graph.blocks))
    blocks.foreach(
        partial(_mark_changed_inputs, graph=graph, features=steps[0].h, before=before, folder=folder)
    )
    writers = {steps[0].h: 0}
    for p, step in enumerate(steps, 1):
        sources = writers[step.h if step.projects or step.z == step.h else step.z]
        own = writers[step.h] if step.kind == "layer" else None
        into = context.parallelize(destinations := graph.side_blocks(step.side), len(destinations))
        into.foreach(partial(_spread_changes, graph=graph, p=p, sources=sources, own=own, folder=folder))
        if step.out is not None:
            writers[step.out] = p
    return _mark_needed(context, graph, steps, folder)


def _mark_needed(
    context: SparkContext, graph: Graph, steps: Sequence[Pass], folder: Path
) -> list[LayerChanges]:
    """Mark the sources that each pass reads, from the last pass to the first.

    A pool must compute them for the next pass.
    """
    changes: list[LayerChanges] = []
    for p, step in reversed(list(enumerate(steps, 1))):
        if step.target is None:
            shutil.copyfile(folder / f"needed-{p + 1}.npy", folder / f"touched-{p}.npy")
        into, whole = (context.parallelize(b, len(b)) for b in (graph.side_blocks(step.side), graph.blocks))
        parts = into.map(partial(_mark_sources, graph=graph, p=p, folder=folder)).collect()
        sources = sum(whole.map(partial(_count_flags, path=folder / f"needed-{p}.npy")).collect())
        changes.append(LayerChanges(sum(n for n, _ in parts), sum(e for _, e in parts), sources))
    return changes[::-1]


def _mark_changed_inputs(
    block: NodeBlock, graph: Graph, features: str, before: GraphNight, folder: Path
) -> None:
    """Write last night's dense ids of a block. Mark nodes that are new or have other neighbours
    or features.
    """
    hashes = graph.hashes()[block.first : block.end]
    old_r = NodeFinder(before.graph)(hashes, block.side)
    map_writable(folder / "places.npy")[block.first : block.end] = old_r
    there = np.flatnonzero(old_r < MOST_NODES)
    fresh = old_r >= MOST_NODES
    old = np.asarray(old_r[there], np.int64)
    now, then = map_array(Path(features)), map_array(Path(before.features))
    fresh[there] = (now[block.first + there] != then[old]).any(axis=1)
    lists = np.ones(block.rows, np.bool_)
    lists[there] = compare_lists(
        collect_edges(graph, block.first + there),
        graph.hashes(),
        collect_edges(before.graph, old),
        before.graph.hashes(),
    )
    map_writable(folder / "lists.npy")[block.first : block.end] = lists
    map_writable(folder / "touched-0.npy")[block.first : block.end] = fresh


def compare_lists(one: Csr, one_hash: Any, other: Csr, other_hash: Any) -> npt.NDArray[np.bool_]:
    """Return (r,) whether two lists of neighbours differ in an id, a weight or their length.

    Args:
        one: edges into some nodes.
        one_hash: hashes of ids by dense id.
        other: edges into the same nodes, the night before.
        other_hash: hashes of ids by dense id, the night before.
    """
    counts = np.diff(one.indptr)
    differ: npt.NDArray[np.bool_] = counts != np.diff(other.indptr)
    same = np.flatnonzero(~differ & (counts > 0))
    place_one, place_other = (
        np.arange(counts[same].sum())
        + np.repeat(csr.indptr[same] - _find_starts(counts[same]), counts[same])
        for csr in (one, other)
    )
    unequal = one_hash[one.src[place_one]] != other_hash[other.src[place_other]]
    if one.weight is not None and other.weight is not None:
        unequal |= one.weight[place_one] != other.weight[place_other]
    if len(same):
        differ[same] = np.logical_or.reduceat(unequal, _find_starts(counts[same]))
    return differ


def _find_starts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.cumsum(counts) - counts


def _spread_changes(
    block: NodeBlock, graph: Graph, p: int, sources: int, own: int | None, *, folder: Path
) -> None:
    """Mark A_p of a block. `sources` and `own` are the numbers of the passes that computed what pass p
    reads.
    """
    part = slice(block.first, block.end)
    flags = map_array(folder / "lists.npy")[part].copy()
    if own is not None:
        flags |= map_array(folder / f"touched-{own}.npy")[part]
    before = map_array(folder / f"touched-{sources}.npy")
    map_writable(folder / f"touched-{p}.npy")[part] = mark_touched(graph.csr(block), before, flags)


def _mark_sources(block: NodeBlock, graph: Graph, p: int, folder: Path) -> tuple[int, int]:
    """Mark the changed nodes of a block and the sources that they read.

    Return the number of nodes and of edges.
    """
    flags = map_array(folder / f"touched-{p}.npy")[block.first : block.end]
    csr = graph.csr(block)
    counts = np.diff(csr.indptr)
    needed = map_writable(folder / f"needed-{p}.npy")
    needed[csr.src[: csr.edges][np.repeat(flags, counts)]] = True
    needed[block.first + np.flatnonzero(flags)] = True
    return int(np.count_nonzero(flags)), int(counts[flags].sum())


def _count_flags(block: NodeBlock, path: Path) -> int:
    return int(np.count_nonzero(map_array(path)[block.first : block.end]))


def restore_vectors(
    context: SparkContext, before: GraphNight, places: Sequence[LayerFiles], path: Path, dtype: str
) -> None:
    """Write last night's vectors of a layer to a file, by last night's dense ids.

    Args:
        context: the Spark context.
        before: the night before.
        places: files of the vectors. Sides without files get zeros.
        path: file to write.
        dtype: type of the numbers.
    """
    wanted = []
    for place in places:
        files = place.files(before.graph)
        wanted += [(block, files[block.number]) for block in place.blocks(before.graph) if block.rows]
    block, file = wanted[0]
    width = next(vectors.shape[1] for _, vectors in read_vectors(file, block))
    path.unlink(missing_ok=True)
    create_matrix(path, (before.graph.nodes, width), dtype)
    context.parallelize(wanted, len(wanted)).foreach(partial(_restore_block, path=path))


def _restore_block(wanted: tuple[NodeBlock, str], path: Path) -> None:
    block, file = wanted
    out = map_writable(path)
    for first, vectors in read_vectors(file, block):
        out[first : first + len(vectors)] = vectors


def has_all_vectors(before: GraphNight) -> bool:
    """Tell whether all vectors of all layers of a night exist."""
    return all(
        {block.number for block in place.blocks(before.graph)} <= place.files(before.graph).keys()
        for place in before.places
    )


def list_reused_files(folder: Path, p: int, step: Pass) -> ReusedFiles:
    """Return the files that a pass reuses."""
    before = "" if step.target is None else str(folder / f"before-{step.layer}.npy")
    touched_p, needed_p = (str(folder / f"{kind}-{p}.npy") for kind in ("touched", "needed"))
    return ReusedFiles(touched_p, needed_p, before, str(folder / "places.npy"))
