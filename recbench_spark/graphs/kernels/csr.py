"""Store a destination block's adjacency as CSR.

CSR means offsets and sources. Edges are partitioned by block and then sorted. An edge is shuffled as one
number: its destination within the block in the high half, its source's dense id in the low half. Sorting
these numbers sorts edges by destination, then by source; they are added in this order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES

Keys = npt.NDArray[np.uint64]
Weights = npt.NDArray[np.float32]


class Csr(NamedTuple):
    """Edges into the destinations of one block.

    Attributes:
        indptr: (rows + 1,) place where each destination's edges begin.
        src: (edges + PREFETCH_EDGES,) the sources' dense ids, ascending within a destination; then zeros,
            which are fetched ahead and never used.
        weight: (edges,) float32, or None: every edge weighs 1. Repeated edges of a pair are sorted by
            rising weight.
    """

    indptr: npt.NDArray[np.int64]
    src: npt.NDArray[np.uint32]
    weight: Weights | None

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.indptr[-1])


def count_offsets(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the place where each row begins, then the end, (r + 1,)."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def pick_edges(csr: Csr, indptr: npt.NDArray[np.int64], places: npt.NDArray[Any], low: int = 0) -> Csr:
    """Return some of a block's edges; sources are counted from `low`.

    Args:
        csr: the block.
        indptr: (rows + 1,) offsets of the new destinations.
        places: (e,) the edges' places in the block.
        low: dense id that becomes source 0.
    """
    src = np.zeros(len(places) + PREFETCH_EDGES, np.uint32)
    src[: len(places)] = csr.src[places] - np.uint32(low)
    return Csr(indptr, src, None if csr.weight is None else csr.weight[places])


def _pick_ranges(csr: Csr, begins: npt.NDArray[Any], counts: npt.NDArray[Any], low: int = 0) -> Csr:
    """Return the edges in ranges of places, one for each new destination."""
    indptr = count_offsets(counts)
    return pick_edges(csr, indptr, np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], counts), low)


def edge_keys(local_e: npt.NDArray[np.uint32], src_e: npt.NDArray[np.uint32]) -> Keys:
    """Pack block-local destination and source into one number, (e,)."""
    return (local_e.astype(np.uint64) << np.uint64(32)) | src_e.astype(np.uint64)


class GroupedEdges(NamedTuple):
    """Edges sorted by block.

    Those of block b are `ends[b - 1]` to `ends[b]`.
    """

    keys: Keys
    weight: Weights | None
    ends: npt.NDArray[np.int64]


def group_edges(
    block_e: npt.NDArray[np.int32], keys: Keys, weight: Weights | None, blocks: int
) -> GroupedEdges:
    """Group edges by block and keep their order within each.

    Args:
        block_e: (e,) block of each edge.
        keys: (e,) from `edge_keys`.
        weight: (e,) or None.
        blocks: number of blocks.
    """
    ends = np.cumsum(np.bincount(block_e, minlength=blocks)).astype(np.int64)
    begins = np.insert(ends[:-1], 0, 0)
    keys_out = np.empty_like(keys)
    weight_out = np.empty(0 if weight is None else len(keys), np.float32)
    weights = np.empty(0, np.float32) if weight is None else weight
    _group_edges(readonly(block_e), readonly(keys), readonly(weights), begins, keys_out, weight_out)
    return GroupedEdges(keys_out, None if weight is None else weight_out, ends)


@compile_kernel
def _group_edges(block_e: Any, keys: Any, weight: Any, at: Any, keys_out: Any, weight_out: Any) -> None:
    for e in range(len(keys)):
        place = at[block_e[e]]
        at[block_e[e]] = place + 1
        keys_out[place] = keys[e]
        if len(weight_out):
            weight_out[place] = weight[e]


def build_csr(
    rows: int, keys: Keys, weight: Weights | None, drop_duplicates: bool = False
) -> tuple[Csr, int]:
    """Return a block's edges as CSR, and its repeats.

    An edge is a repeat if the edge before it joins the same two nodes.

    Args:
        rows: destinations in the block.
        keys: (e,) edges in any order; sorted in place where they have no weights.
        weight: (e,) or None.
        drop_duplicates: keep one edge of each pair, the one with the largest weight.
    """
    if weight is None:
        keys.sort()
    else:
        order = np.lexsort((weight, keys))
        keys, weight = keys[order], weight[order]
    repeats = keys[1:] == keys[:-1]
    duplicates = int(np.count_nonzero(repeats))
    if drop_duplicates and duplicates:
        last_of_pair = np.append(~repeats, True)
        keys, weight = keys[last_of_pair], None if weight is None else weight[last_of_pair]
    firsts = np.arange(rows + 1, dtype=np.uint64) << np.uint64(32)
    indptr = np.searchsorted(keys, firsts).astype(np.int64)
    src = np.zeros(len(keys) + PREFETCH_EDGES, np.uint32)
    src[: len(keys)] = keys & np.uint64(0xFFFFFFFF)
    return Csr(indptr, src, weight), duplicates


class Halo(NamedTuple):
    """The sources a block needs from all blocks.

    Attributes:
        need: (u,) its distinct sources by ascending dense id, so those from one block stand together.
        place: (edges + PREFETCH_EDGES,) place of each edge's source in `need`.
    """

    need: npt.NDArray[np.uint32]
    place: npt.NDArray[np.uint32]


def build_halo(csr: Csr) -> Halo:
    """Return a block's distinct sources, with each edge's place."""
    sources = csr.src[: csr.edges]
    need = np.sort(sources)
    need = need[np.append(True, need[1:] != need[:-1])] if len(need) else need
    place = np.zeros(len(csr.src), np.uint32)
    place[: csr.edges] = np.searchsorted(need, sources)
    return Halo(need, place)


def select_rows(csr: Csr, row_r: npt.NDArray[np.integer]) -> Csr:
    """Select the edges into rows `row_r`, in this order.

    Args:
        csr: the block.
        row_r: rows of the block.
    """
    begins, ends = csr.indptr[row_r], csr.indptr[np.asarray(row_r) + 1]
    return _pick_ranges(csr, begins, ends - begins)


def drop_edges(csr: Csr, row_r: npt.NDArray[np.bool_]) -> Csr:
    """Return the same destinations; the chosen ones lose their edges.

    Args:
        csr: edges into r destinations.
        row_r: (r,) true for destinations that lose their edges.
    """
    if not row_r.any():
        return csr
    counts = np.diff(csr.indptr)
    places = np.flatnonzero(np.repeat(~row_r, counts)) + csr.indptr[0]
    return pick_edges(csr, count_offsets(np.where(row_r, 0, counts)), places)


def window(csr: Csr, first: int, end: int) -> Csr:
    """Return the edges into destinations `first` to `end`.

    Only offsets are copied.
    """
    a, b = int(csr.indptr[first]), int(csr.indptr[end])
    weight = None if csr.weight is None else csr.weight[a:b]
    return Csr(csr.indptr[first : end + 1] - a, csr.src[a : b + PREFETCH_EDGES], weight)


def tile(csr: Csr, low: int, high: int) -> tuple[npt.NDArray[np.int64], Csr]:
    """Return the edges from sources `low` to `high`.

    Sources are counted from `low`.

    Returns:
        (t,) destinations with such edges, and the edges.
    """
    begins, ends = (np.empty(len(csr.indptr) - 1, np.int64) for _ in range(2))
    _find_ranges(readonly(csr.indptr), readonly(csr.src), low, high, begins, ends)
    rows = np.flatnonzero(ends > begins)
    return rows, _pick_ranges(csr, begins[rows], (ends - begins)[rows], low)


@compile_kernel
def _find_ranges(indptr: Any, src: Any, low: int, high: int, begins: Any, ends: Any) -> None:
    for r in range(len(begins)):
        row = src[indptr[r] : indptr[r + 1]]
        begins[r] = indptr[r] + np.searchsorted(row, low)
        ends[r] = indptr[r] + np.searchsorted(row, high)


def count_sources(csr: Csr, nodes: int, ends: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Count a block's sources.

    Args:
        csr: the block.
        nodes: number of nodes in the whole graph.
        ends: (blocks,) dense id after each block's last node.

    Returns:
        Number of distinct sources, and number of pairs (destination, source block).
    """
    seen = np.zeros(nodes, np.bool_)
    seen[csr.src[: csr.edges]] = True
    starts, shift = _find_block_starts(ends)
    parts = _count_parts(readonly(csr.indptr), readonly(csr.src), readonly(ends), starts, shift)
    return int(np.count_nonzero(seen)), int(parts)


def find_blocks(node_r: npt.NDArray[np.uint32], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Find the block of each dense id, (r,).

    Args:
        node_r: dense ids below the last end.
        ends: (blocks,) dense id after each block's last node.
    """
    block_r = np.empty(len(node_r), np.int32)
    _find_blocks(readonly(node_r), readonly(ends), *_find_block_starts(ends), block_r)
    return block_r


def _find_block_starts(ends: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the block of every 2^shift-th node, and the shift.

    A block has some tens of these places.
    """
    shift = max(0, int(ends[-1] // (32 * len(ends))).bit_length() - 1)
    firsts = np.arange((int(ends[-1]) >> shift) + 1, dtype=np.int64) << shift
    return np.minimum(np.searchsorted(ends, firsts, side="right"), len(ends) - 1), shift


@compile_kernel
def _find_block(node: np.int64, ends: Any, starts: Any, shift: int) -> int:
    block = int(starts[node >> shift])
    while node >= ends[block]:
        block += 1
    return block


@compile_kernel
def _find_blocks(node_r: Any, ends: Any, starts: Any, shift: int, block_r: Any) -> None:
    for r in range(len(node_r)):
        block_r[r] = _find_block(np.int64(node_r[r]), ends, starts, shift)


@compile_kernel
def _count_parts(indptr: Any, src: Any, ends: Any, starts: Any, shift: int) -> int:
    parts = 0
    for r in range(len(indptr) - 1):
        block = -1
        for e in range(indptr[r], indptr[r + 1]):
            if block < 0 or src[e] >= ends[block]:
                block = _find_block(np.int64(src[e]), ends, starts, shift)
                parts += 1
    return parts


def mark_touched(
    csr: Csr, flag_n: npt.NDArray[np.bool_], own_r: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mark destinations that are flagged, or have a flagged source, (r,).

    Args:
        csr: edges into the destinations.
        flag_n: (nodes,) by dense id.
        own_r: (r,) the destinations' own flags.
    """
    touched_r = own_r.copy()
    _mark_touched(readonly(csr.indptr), readonly(csr.src), readonly(np.asarray(flag_n)), touched_r)
    return touched_r


@compile_kernel
def _mark_touched(indptr: Any, src: Any, flag_n: Any, touched_r: Any) -> None:
    for r in range(len(touched_r)):
        e = indptr[r]
        while not touched_r[r] and e < indptr[r + 1]:
            touched_r[r] = flag_n[src[e]]
            e += 1
