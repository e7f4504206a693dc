"""Mark the nodes a layer must compute again tonight.

Tonight's graph is compared with the one from the night before. A node's vector after a pass depends on
its sources' vectors before it, on its own vector (in a layer, not in a pool), and on its neighbour list.
With A_0 the nodes that are new or have new features, and C those with another list,

    A_p = C u (A_(p-1) where the pass reads a node's own vector) u {v : N(v) meets A_(p-1)},

over the side computed by the pass. In mode projected these are the layers' A_k. Flags are arrays with one
byte for each node; one task writes a block. The tasks for a pass's destinations mark the sources they
need, so source ids are shuffled once, to the source blocks. A node outside A_p keeps last night's vector,
looked up by id hash: it has the bits of a full run. Pools between two layers in mode bipartite are in no
table. Those read by the next layer are pooled again, changed or not, and no others.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.graphs.build import NodeFinder
from recbench_spark.graphs.build_nodes import run_shuffle
from recbench_spark.graphs.folders import Graph, NodeBlock, Parts, publish_arrays
from recbench_spark.graphs.kernels.csr import Csr, mark_touched
from recbench_spark.graphs.kernels.ids import MOST_NODES
from recbench_spark.graphs.message_passing import Pass, ReusedFiles
from recbench_spark.graphs.nodes import collect_edges
from recbench_spark.graphs.runner import restore_block
from recbench_spark.graphs.vectors import list_committed, read_vectors
from recbench_spark.storage.block_arrays import map_part, map_whole, publish_parts, write_part
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.uris import join_uri


@dataclass(frozen=True)
class LayerFiles:
    """The place of a layer's vectors in its table.

    Attributes:
        folder: the table's folder.
        partition: all partition columns but the side.
        sides: sides of these vectors, by place in the graph.
        by_side: true if the table has a partition for each side.
    """

    folder: str
    partition: dict[str, str]
    sides: tuple[int, ...]
    by_side: bool

    def files(self, graph: Graph) -> dict[int, str]:
        """Return the file of each block in the table."""
        files: dict[int, str] = {}
        for side in self.sides if self.by_side else (None,):
            more = {} if side is None else {"side": graph.sides[side]}
            files |= list_committed(self.folder, {**self.partition, **more}, len(graph.blocks))
        return files

    def blocks(self, graph: Graph) -> list[NodeBlock]:
        """Return the blocks in a complete table."""
        return [block for block in graph.blocks if block.side in self.sides]


@dataclass(frozen=True)
class GraphNight:
    """A finished run that tonight's run can reuse.

    Attributes:
        graph: the graph on disk.
        features: place of its nodes' first vectors.
        places: files of each layer's vectors, from layer 1.
    """

    graph: Graph
    features: str
    places: tuple[LayerFiles, ...]


@dataclass(frozen=True)
class LayerChanges:
    """A layer's work: changed nodes, their edges and sources."""

    nodes: int
    edges: int
    sources: int


def mark_changes(
    engine: Engine, graph: Graph, steps: Sequence[Pass], before: GraphNight, folder: str
) -> list[LayerChanges]:
    """Write all passes' flags, and count each pass's work.

    Args:
        engine: the runner.
        graph: tonight's graph.
        steps: the model's passes, in order; the first reads tonight's features.
        before: the night before; its sides, kinds of ids and seed are the same.
        folder: folder for the flags, a path or a URI.
    """
    blocks = engine.parallelize(graph.blocks, len(graph.blocks))
    mark = partial(_mark_changed_inputs, graph=graph, features=steps[0].h, before=before, folder=folder)
    flags = ((graph.nodes,), np.bool_)
    arrays = {PLACES: ((graph.nodes,), np.uint32), LISTS: flags, _name_touched(0): flags}
    publish_arrays(folder, blocks.map(mark).collect(), arrays)
    writers = {steps[0].h: 0}
    for p, step in enumerate(steps, 1):
        sources = writers[step.h if step.projects or step.z == step.h else step.z]
        own = writers[step.h] if step.kind == "layer" else None
        into = engine.parallelize(destinations := graph.side_blocks(step.side), len(destinations))
        spread = partial(_spread_changes, graph=graph, p=p, sources=sources, own=own, folder=folder)
        publish_arrays(folder, into.map(spread).collect(), {_name_touched(p): flags})
        if step.out is not None:
            writers[step.out] = p
    return _mark_needed(engine, graph, steps, folder)


PLACES, LISTS = "places", "lists"
"""Arrays with last night's dense ids, and flags of changed neighbour lists."""


def _name_touched(p: int) -> str:
    """Name the flags A_p."""
    return f"touched-{p}"


def _name_needed(p: int) -> str:
    """Name the flags of the sources read by pass p."""
    return f"needed-{p}"


def _name_computed(p: int, step: Pass) -> str:
    """Name the flags of the nodes computed by pass p.

    A pool that is in no table computes the nodes read by the next pass.
    """
    return _name_needed(p + 1) if step.target is None else _name_touched(p)


def _mark_needed(engine: Engine, graph: Graph, steps: Sequence[Pass], folder: str) -> list[LayerChanges]:
    """Mark the sources each pass reads, last pass first.

    A pool must compute them for the next pass.
    """
    changes: list[LayerChanges] = []
    for p, step in reversed(list(enumerate(steps, 1))):
        into = engine.parallelize(destinations := graph.side_blocks(step.side), len(destinations))
        send = partial(_send_needed, graph=graph, flags=join_uri(folder, _name_computed(p, step)))
        write = partial(_write_needed, graph=graph, p=p, folder=folder)
        results = run_shuffle(into.mapPartitions(send).partitionBy(len(graph.blocks) + 1, int), write)
        counts = [result for result in results if isinstance(result, ChangedEdges)]
        written = [result for result in results if isinstance(result, NeededBlock)]
        parts = [block.parts for block in written]
        publish_arrays(folder, parts, {_name_needed(p): ((graph.nodes,), np.bool_)})
        sums = (sum(count.nodes for count in counts), sum(count.edges for count in counts))
        changes.append(LayerChanges(*sums, sum(block.nodes for block in written)))
    return changes[::-1]


def _mark_changed_inputs(
    block: NodeBlock, graph: Graph, features: str, before: GraphNight, folder: str
) -> Parts:
    """Mark a block's changed nodes.

    A node is marked if it is new, or has other neighbours or features. Last night's dense ids are written
    too.
    """
    old_r = NodeFinder(before.graph)(graph.block_hashes(block), block.side)
    there = np.flatnonzero(old_r < MOST_NODES)
    fresh = old_r >= MOST_NODES
    old = np.asarray(old_r[there], np.int64)
    now, then = map_part(features, block.number, block.rows), map_whole(before.features)
    fresh[there] = (now[there] != then[old]).any(axis=1)
    lists = np.ones(block.rows, np.bool_)
    tonight = (collect_edges(graph, block.first + there), graph.hashes())
    lists[there] = compare_lists(*tonight, collect_edges(before.graph, old), before.graph.hashes())
    arrays = {PLACES: old_r, LISTS: lists, _name_touched(0): fresh}
    return {
        name: write_part(join_uri(folder, name), block.number, array, block.first)
        for name, array in arrays.items()
    }


def compare_lists(one: Csr, one_hash: Any, other: Csr, other_hash: Any) -> npt.NDArray[np.bool_]:
    """Tell where two lists of neighbours differ, (r,).

    Lists may differ in an id, a weight or their length.

    Args:
        one: edges into some nodes.
        one_hash: id hashes by dense id.
        other: edges into the same nodes, the night before.
        other_hash: id hashes by dense id, the night before.
    """
    counts = np.diff(one.indptr)
    differ: npt.NDArray[np.bool_] = counts != np.diff(other.indptr)
    same = np.flatnonzero(~differ & (counts > 0))
    starts = np.cumsum(counts[same]) - counts[same]
    place_one, place_other = (
        np.arange(counts[same].sum()) + np.repeat(csr.indptr[same] - starts, counts[same])
        for csr in (one, other)
    )
    unequal = one_hash[one.src[place_one]] != other_hash[other.src[place_other]]
    if one.weight is not None and other.weight is not None:
        unequal |= one.weight[place_one] != other.weight[place_other]
    if len(same):
        differ[same] = np.logical_or.reduceat(unequal, starts)
    return differ


def _spread_changes(
    block: NodeBlock, graph: Graph, p: int, sources: int, own: int | None, *, folder: str
) -> Parts:
    """Mark A_p in a block.

    `sources` and `own` are the numbers of the passes that computed the input of pass p.
    """
    flags = map_part(join_uri(folder, LISTS), block.number, block.rows).copy()
    if own is not None:
        flags |= map_part(join_uri(folder, _name_touched(own)), block.number, block.rows)
    before = map_whole(join_uri(folder, _name_touched(sources)))
    touched = mark_touched(graph.csr(block), before, flags)
    name = _name_touched(p)
    return {name: write_part(join_uri(folder, name), block.number, touched, block.first)}


class ChangedEdges(NamedTuple):
    """Nodes to compute again in a block, and their edges."""

    nodes: int
    edges: int


class NeededBlock(NamedTuple):
    """A source block's flags: their number and array parts."""

    nodes: int
    parts: Parts


def _send_needed(blocks: Iterator[NodeBlock], graph: Graph, flags: str) -> Iterator[tuple[int, bytes]]:
    """Send each source block the dense ids changed nodes read.

    The ids are uint32. Counts go to the place after the last block.
    """
    ends = np.array([block.end for block in graph.blocks])
    for block in blocks:
        flag_r, csr = map_part(flags, block.number, block.rows), graph.csr(block)
        counts = np.diff(csr.indptr)
        changed = block.first + np.flatnonzero(flag_r)
        need = np.union1d(csr.src[: csr.edges][np.repeat(flag_r, counts)], changed).astype(np.uint32)
        for number, ids in enumerate(np.split(need, np.searchsorted(need, ends)[:-1])):
            if len(ids):
                yield number, ids.tobytes()
        yield len(ends), pickle.dumps(ChangedEdges(len(changed), int(counts[flag_r].sum())))


def _write_needed(
    number: int, sent: Iterable[tuple[int, bytes]], graph: Graph, p: int, folder: str
) -> Iterator[ChangedEdges | NeededBlock]:
    if number == len(graph.blocks):
        for _, counts in sent:
            yield pickle.loads(counts)
        return
    block = graph.blocks[number]
    flags = np.zeros(block.rows, np.bool_)
    for _, ids in sent:
        flags[np.frombuffer(ids, np.uint32) - block.first] = True
    part = write_part(join_uri(folder, _name_needed(p)), number, flags, block.first)
    yield NeededBlock(int(np.count_nonzero(flags)), {_name_needed(p): part})


def restore_vectors(
    engine: Engine, before: GraphNight, places: Sequence[LayerFiles], place: str, dtype: str
) -> None:
    """Write a layer's old vectors to an array.

    Old vectors are last night's, by last night's dense ids.

    Args:
        engine: the runner.
        before: the night before.
        places: files of the vectors. Sides without files get zeros.
        place: the array's path or URI.
        dtype: number type.
    """
    wanted = []
    for layer in places:
        files = layer.files(before.graph)
        wanted += [(block, files[block.number]) for block in layer.blocks(before.graph) if block.rows]
    block, file = wanted[0]
    width = next(vectors.shape[1] for _, vectors in read_vectors(file, block))
    restore = partial(restore_block, place=place, width=width, dtype=dtype)
    parts = engine.parallelize(wanted, len(wanted)).map(restore).collect()
    publish_parts(place, parts, (before.graph.nodes, width), dtype)


def has_all_vectors(before: GraphNight) -> bool:
    """Tell whether all vectors exist, in every layer."""
    return all(
        {block.number for block in place.blocks(before.graph)} <= place.files(before.graph).keys()
        for place in before.places
    )


def list_reused_files(folder: str, p: int, step: Pass) -> ReusedFiles:
    """Return the arrays a pass reuses."""
    before = "" if step.target is None else join_uri(folder, f"before-{step.layer}")
    touched, needed = (join_uri(folder, name) for name in (_name_computed(p, step), _name_needed(p)))
    return ReusedFiles(touched, needed, before, join_uri(folder, PLACES))
