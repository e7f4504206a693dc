"""Adjacency of a block of destinations: edges dealt out, sorted, as offsets and sources (CSR).

An edge travels as one number, its destination within the block in the high half and its source's dense id
in the low one: sorting numbers sorts edges by destination, then by source, the order of adding them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.kernels.compiling import compile_kernel, readonly
from recbench_spark.kernels.graph.simd import PREFETCH_EDGES

Keys = npt.NDArray[np.uint64]
Weights = npt.NDArray[np.float32]


class Csr(NamedTuple):
    """The edges into a block of destinations.

    Attributes:
        indptr: (rows + 1,) where each destination's edges begin.
        src: (edges + AHEAD,) dense ids of sources, ascending within a destination; then AHEAD zeros, which
            are fetched ahead and never used.
        weight: (edges,) float32, or None: every edge weighs 1. Edges of one pair by rising weight.
    """

    indptr: npt.NDArray[np.int64]
    src: npt.NDArray[np.uint32]
    weight: Weights | None

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.indptr[-1])


def edge_keys(local_e: npt.NDArray[np.uint32], src_e: npt.NDArray[np.uint32]) -> Keys:
    """(e,) destination within the block and source in one number."""
    return (local_e.astype(np.uint64) << np.uint64(32)) | src_e.astype(np.uint64)


class GroupedEdges(NamedTuple):
    """Edges put together by block: those of block b are `ends[b - 1]` to `ends[b]`."""

    keys: Keys
    weight: Weights | None
    ends: npt.NDArray[np.int64]


def group_edges(
    block_e: npt.NDArray[np.int32], keys: Keys, weight: Weights | None, blocks: int
) -> GroupedEdges:
    """Edges by block, in the order given within each.

    Args:
        block_e: (e,) block of each edge.
        keys: (e,) as `edge_keys` makes them.
        weight: (e,) or None.
        blocks: their number.
    """
    ends = np.cumsum(np.bincount(block_e, minlength=blocks)).astype(np.int64)
    begins = np.insert(ends[:-1], 0, 0)
    keys_out = np.empty_like(keys)
    weight_out = np.empty(0 if weight is None else len(keys), np.float32)
    given = np.empty(0, np.float32) if weight is None else weight
    _group_edges(readonly(block_e), readonly(keys), readonly(given), begins, keys_out, weight_out)
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
    """The edges of a block as CSR, and how many repeat a pair.

    Args:
        rows: destinations of the block.
        keys: (e,) edges in any order; sorted in place where they have no weights.
        weight: (e,) or None.
        drop_duplicates: keep one edge a pair, the one of largest weight.
    """
    if weight is None:
        keys.sort()
    else:
        order = np.lexsort((weight, keys))
        keys, weight = keys[order], weight[order]
    repeats = keys[1:] == keys[:-1]
    duplicates = int(np.count_nonzero(repeats))
    if drop_duplicates and duplicates:
        kept = np.append(~repeats, True)
        keys, weight = keys[kept], None if weight is None else weight[kept]
    firsts = np.arange(rows + 1, dtype=np.uint64) << np.uint64(32)
    indptr = np.searchsorted(keys, firsts).astype(np.int64)
    src = np.zeros(len(keys) + PREFETCH_EDGES, np.uint32)
    src[: len(keys)] = keys & np.uint64(0xFFFFFFFF)
    return Csr(indptr, src, weight), duplicates


class Halo(NamedTuple):
    """What a block needs of other blocks.

    Attributes:
        need: (u,) distinct dense ids of its sources, ascending: those of one block stand together.
        place: (edges + AHEAD,) where each edge's source stands in `need`.
    """

    need: npt.NDArray[np.uint32]
    place: npt.NDArray[np.uint32]


def build_halo(csr: Csr) -> Halo:
    """The distinct sources of a block, and each edge's place among them."""
    sources = csr.src[: csr.edges]
    need = np.sort(sources)
    need = need[np.append(True, need[1:] != need[:-1])] if len(need) else need
    place = np.zeros(len(csr.src), np.uint32)
    place[: csr.edges] = np.searchsorted(need, sources)
    return Halo(need, place)


def select_rows(csr: Csr, row_r: npt.NDArray[np.integer]) -> Csr:
    """The edges into some destinations of a block, in the order asked for.

    Args:
        csr: the block.
        row_r: rows of it.
    """
    begins, ends = csr.indptr[row_r], csr.indptr[np.asarray(row_r) + 1]
    counts = ends - begins
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    places = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], counts)
    src = np.zeros(len(places) + PREFETCH_EDGES, np.uint32)
    src[: len(places)] = csr.src[places]
    return Csr(indptr, src, None if csr.weight is None else csr.weight[places])


def drop_edges(csr: Csr, row_r: npt.NDArray[np.bool_]) -> Csr:
    """Return the same destinations, of which the chosen ones have no edges.

    Args:
        csr: edges into r destinations.
        row_r: (r,) the ones that lose their edges.
    """
    if not row_r.any():
        return csr
    counts = np.diff(csr.indptr)
    places = np.flatnonzero(np.repeat(~row_r, counts)) + csr.indptr[0]
    indptr = np.concatenate([[0], np.cumsum(np.where(row_r, 0, counts))]).astype(np.int64)
    src = np.zeros(len(places) + PREFETCH_EDGES, np.uint32)
    src[: len(places)] = csr.src[places]
    return Csr(indptr, src, None if csr.weight is None else csr.weight[places])


def window(csr: Csr, first: int, end: int) -> Csr:
    """The edges into destinations `first` to `end` of a block; nothing is copied but offsets."""
    a, b = int(csr.indptr[first]), int(csr.indptr[end])
    weight = None if csr.weight is None else csr.weight[a:b]
    return Csr(csr.indptr[first : end + 1] - a, csr.src[a : b + PREFETCH_EDGES], weight)


def tile(csr: Csr, low: int, high: int) -> tuple[npt.NDArray[np.int64], Csr]:
    """The edges of a block whose sources are `low` to `high`, sources counted from `low`.

    Returns:
        (t,) destinations that have any, and their edges.
    """
    begins, ends = (np.empty(len(csr.indptr) - 1, np.int64) for _ in range(2))
    _find_ranges(readonly(csr.indptr), readonly(csr.src), low, high, begins, ends)
    rows = np.flatnonzero(ends > begins)
    counts = (ends - begins)[rows]
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    places = np.arange(indptr[-1]) + np.repeat(begins[rows] - indptr[:-1], counts)
    src = np.zeros(len(places) + PREFETCH_EDGES, np.uint32)
    src[: len(places)] = csr.src[places] - np.uint32(low)
    return rows, Csr(indptr, src, None if csr.weight is None else csr.weight[places])


@compile_kernel
def _find_ranges(indptr: Any, src: Any, low: int, high: int, begins: Any, ends: Any) -> None:
    for r in range(len(begins)):
        row = src[indptr[r] : indptr[r + 1]]
        begins[r] = indptr[r] + np.searchsorted(row, low)
        ends[r] = indptr[r] + np.searchsorted(row, high)


def count_sources(csr: Csr, nodes: int, ends: npt.NDArray[np.int64]) -> tuple[int, int]:
    """How far a block's sources are spread.

    Args:
        csr: the block.
        nodes: of the whole graph.
        ends: (blocks,) dense id after each block's last node.

    Returns:
        Distinct sources; pairs of a destination and a block that holds sources of it.
    """
    seen = np.zeros(nodes, np.bool_)
    seen[csr.src[: csr.edges]] = True
    starts, shift = _find_block_starts(ends)
    parts = _count_parts(readonly(csr.indptr), readonly(csr.src), readonly(ends), starts, shift)
    return int(np.count_nonzero(seen)), int(parts)


def find_blocks(node_r: npt.NDArray[np.uint32], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """(r,) the block of each dense id.

    Args:
        node_r: below the last end.
        ends: (blocks,) dense id after each block's last node.
    """
    found = np.empty(len(node_r), np.int32)
    _find_blocks(readonly(node_r), readonly(ends), *_find_block_starts(ends), found)
    return found


def _find_block_starts(ends: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """The block of the first of each 2^shift nodes, some tens of these a block."""
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
def _find_blocks(node_r: Any, ends: Any, starts: Any, shift: int, found: Any) -> None:
    for r in range(len(node_r)):
        found[r] = _find_block(np.int64(node_r[r]), ends, starts, shift)


@compile_kernel
def _count_parts(indptr: Any, src: Any, ends: Any, starts: Any, shift: int) -> int:
    found = 0
    for r in range(len(indptr) - 1):
        block = -1
        for e in range(indptr[r], indptr[r + 1]):
            if block < 0 or src[e] >= ends[block]:
                block = _find_block(np.int64(src[e]), ends, starts, shift)
                found += 1
    return found


def mark_touched(
    csr: Csr, flag_n: npt.NDArray[np.bool_], own_r: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """(r,) destinations that are flagged themselves or have a flagged source.

    Args:
        csr: edges into them.
        flag_n: (nodes,) by dense id.
        own_r: (r,) the destinations' own flags.
    """
    found = own_r.copy()
    _mark_touched(readonly(csr.indptr), readonly(csr.src), readonly(np.asarray(flag_n)), found)
    return found


@compile_kernel
def _mark_touched(indptr: Any, src: Any, flag_n: Any, found: Any) -> None:
    for r in range(len(found)):
        e = indptr[r]
        while not found[r] and e < indptr[r + 1]:
            found[r] = flag_n[src[e]]
            e += 1
