"""Small graphs of a minibatch: the nodes that some layers need, numbered anew, deepest layer first.

The layers of a minibatch see the edges that layer-by-layer inference sees, in its order, so that both give
the same vectors (to float32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.errors import DataError
from recbench_spark.kernels.graph.aggregate import order_for_lstm
from recbench_spark.kernels.graph.csr import Csr, drop_edges, select_rows
from recbench_spark.kernels.graph.forms import LayerForm
from recbench_spark.kernels.graph.samples import draw_nodes, sample_neighbours
from recbench_spark.kernels.graph.simd import PREFETCH_EDGES
from recbench_spark.kernels.hashing import Hashes

Nodes = npt.NDArray[np.int64]
Neighbours = Callable[[int, Nodes], Csr]
"""Edges into some nodes for a layer (from 0); sources are dense ids."""


class Hop(NamedTuple):
    """Edges of one layer of a minibatch.

    Attributes:
        indptr: (r + 1,) where each destination's edges begin.
        place: (e,) rows of the sources among the nodes of the layer before.
        weight: (e,) or None.
        own: (r,) rows of the destinations themselves.
    """

    indptr: torch.Tensor
    place: torch.Tensor
    weight: torch.Tensor | None
    own: torch.Tensor

    @property
    def counts(self) -> torch.Tensor:
        """(r,) edges."""
        return self.indptr.diff()


class Subgraph(NamedTuple):
    """What some layers need to embed some nodes.

    Attributes:
        inputs: (n,) dense ids whose features go in, ascending.
        hops: a layer each, in the order of their work.
        outputs: (r,) dense ids that come out, ascending.
    """

    inputs: Nodes
    hops: tuple[Hop, ...]
    outputs: Nodes


@dataclass(frozen=True)
class Adjacency:
    """A graph in blocks of destinations, mapped or in memory.

    Attributes:
        firsts: (b,) first dense id of each block that has nodes, ascending.
        blocks: their edges.
        hashes: (nodes,) hashes of raw ids.
    """

    firsts: Nodes
    blocks: tuple[Csr, ...]
    hashes: Hashes

    def edges_into(self, node_r: Nodes) -> Csr:
        """The edges into some nodes (ascending), one block after the other."""
        parts = []
        ends = [*np.searchsorted(node_r, self.firsts)[1:].tolist(), len(node_r)]
        begin = 0
        for first, csr, end in zip(self.firsts.tolist(), self.blocks, ends, strict=True):
            if end > begin:
                parts.append(select_rows(csr, node_r[begin:end] - first))
            begin = end
        return join_blocks(parts)


@dataclass(frozen=True)
class ThinnedAdjacency(Adjacency):
    """A graph in which some nodes have no neighbours, drawn by hash: the same ones in all layers.

    Attributes:
        share: of the nodes that may lose their neighbours, between 0 and 1.
        nodes: first dense id of these and the one after the last.
        seed: of the draws, another one for each minibatch.
    """

    share: float
    nodes: tuple[int, int]
    seed: int

    def edges_into(self, node_r: Nodes) -> Csr:
        """Return the edges into some nodes (ascending), none into those that lose them."""
        first, end = self.nodes
        alone_r = draw_nodes(self.hashes[node_r], self.share, self.seed)
        return drop_edges(super().edges_into(node_r), alone_r & (node_r >= first) & (node_r < end))


def join_blocks(parts: Sequence[Csr]) -> Csr:
    """Edges of blocks one after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.diff(part.indptr) for part in parts]
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([[], *counts]))]).astype(np.int64)
    src = np.concatenate([*(part.src[: part.edges] for part in parts), np.zeros(PREFETCH_EDGES, np.uint32)])
    weights = [part.weight for part in parts if part.weight is not None]
    return Csr(indptr, src, np.concatenate(weights) if weights else None)


def all_neighbours(adjacency: Adjacency, forms: Sequence[LayerForm], seed: int) -> Neighbours:
    """All neighbours in each layer (the LSTM: those it reads, in its order), as inference has them.

    Args:
        adjacency: the graph.
        forms: the layers.
        seed: of the LSTM's order.
    """

    def neighbours(layer: int, node_r: Nodes) -> Csr:
        csr, form = adjacency.edges_into(node_r), forms[layer]
        if form.aggregator != "lstm":
            return csr
        hashes = adjacency.hashes
        return order_for_lstm(csr, hashes[node_r], hashes, form.most, seed + layer)

    return neighbours


def draw_neighbours(
    adjacency: Adjacency, forms: Sequence[LayerForm], sizes: Sequence[int], seed: int
) -> Neighbours:
    """Neighbours drawn evenly, so many in each layer, a fresh sample a layer.

    Args:
        adjacency: the graph.
        forms: the layers.
        sizes: neighbours in each, the first layer first.
        seed: another one for each minibatch.
    """
    if len(sizes) != len(forms):
        raise DataError(f"{len(sizes)} sizes of samples and {len(forms)} layers", "one a layer")

    def neighbours(layer: int, node_r: Nodes) -> Csr:
        hashes = adjacency.hashes
        own_seed = (seed * len(forms) + layer) % 2**64
        found = sample_neighbours(adjacency.edges_into(node_r), hashes[node_r], sizes[layer], own_seed)
        if forms[layer].aggregator != "lstm":
            return found
        return order_for_lstm(found, hashes[node_r], hashes, sizes[layer], seed)

    return neighbours


def build_subgraph(node_r: Nodes, layers: int, neighbours: Neighbours) -> Subgraph:
    """The small graph of some nodes.

    Args:
        node_r: dense ids, in any order, any number of times.
        layers: their number.
        neighbours: edges of each.
    """
    outputs = np.unique(node_r)
    hops: list[Hop] = []
    nodes = outputs
    for layer in reversed(range(layers)):
        csr = neighbours(layer, nodes)
        sources = csr.src[: csr.edges].astype(np.int64)
        weight = None if csr.weight is None else _to_tensor(csr.weight[: csr.edges])
        need, place, own = (_to_tensor(some) for some in renumber_nodes(sources, nodes))
        hops.insert(0, Hop(_to_tensor(csr.indptr), place, weight, own))
        nodes = need.numpy()
    return Subgraph(nodes, tuple(hops), outputs)


def renumber_nodes(source_e: Nodes, node_r: Nodes) -> tuple[Nodes, Nodes, Nodes]:
    """Different nodes of two arrays, ascending, and where each node of either stands among them.

    By a table over all ids where edges are not many fewer than these, else by sorting; the same result.
    """
    most = int(max(source_e.max(initial=-1), node_r.max(initial=-1))) + 1
    if most > 8 * len(source_e):
        need = np.unique(np.concatenate([node_r, source_e]))
        return need, np.searchsorted(need, source_e), np.searchsorted(need, node_r)
    met = np.zeros(most, np.bool_)
    met[source_e] = met[node_r] = True
    need, place = np.flatnonzero(met), np.cumsum(met) - 1
    return need, place[source_e], place[node_r]


def _to_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def find_places(outputs: Nodes, node_r: Nodes) -> torch.Tensor:
    """(r,) rows of some nodes among those that come out."""
    return _to_tensor(np.searchsorted(outputs, node_r))
