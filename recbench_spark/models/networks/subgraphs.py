"""Build a minibatch's small graph: only needed nodes, renumbered.

The deepest layer comes first. A minibatch's layers see the same edges as layer-by-layer inference, in the
same order, so both give the same vectors (to float32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from recbench_spark.core.arrays import Ints
from recbench_spark.core.hashing import Hashes
from recbench_spark.errors import DataError
from recbench_spark.graphs.kernels.aggregate import order_for_lstm
from recbench_spark.graphs.kernels.csr import Csr, drop_edges, select_rows
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.samples import draw_nodes, sample_neighbours
from recbench_spark.graphs.kernels.simd import PREFETCH_EDGES

Neighbours = Callable[[int, Ints], Csr]
"""Function returning a layer's edges into some nodes; layers count from 0, sources are dense ids."""


class Hop(NamedTuple):
    """Edges of one minibatch layer.

    Attributes:
        indptr: (r + 1,) place where each destination's edges begin.
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
        """Return each destination's number of edges, (r,)."""
        return self.indptr.diff()


class Subgraph(NamedTuple):
    """Everything some layers need to embed some nodes.

    Attributes:
        inputs: (n,) dense ids whose features are the input, ascending.
        hops: one for each layer, in layer order.
        outputs: (r,) dense ids in the output, ascending.
    """

    inputs: Ints
    hops: tuple[Hop, ...]
    outputs: Ints


@dataclass(frozen=True)
class Adjacency:
    """A graph in destination blocks, mapped or in memory.

    Attributes:
        firsts: (b,) first dense id of each block with nodes, ascending.
        blocks: edges of the blocks.
        hashes: (nodes,) hashes of raw ids.
    """

    firsts: Ints
    blocks: tuple[Csr, ...]
    hashes: Hashes

    def edges_into(self, node_r: Ints) -> Csr:
        """Return the edges into some nodes, block after block.

        `node_r` ascends.
        """
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
    """A graph where hashed nodes lose their neighbours in all layers.

    Attributes:
        share: probability of a node losing its neighbours, between 0 and 1.
        nodes: first dense id of the nodes which may lose them, and the one after the last.
        seed: seed of the draws, another one for each minibatch.
    """

    share: float
    nodes: tuple[int, int]
    seed: int

    def edges_into(self, node_r: Ints) -> Csr:
        """Return the edges into some nodes, none into drawn ones.

        `node_r` ascends.
        """
        first, end = self.nodes
        alone_r = draw_nodes(self.hashes[node_r], self.share, self.seed)
        return drop_edges(super().edges_into(node_r), alone_r & (node_r >= first) & (node_r < end))


def join_blocks(parts: Sequence[Csr]) -> Csr:
    """Join the blocks' edges, one after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = [np.diff(part.indptr) for part in parts]
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([[], *counts]))]).astype(np.int64)
    src = np.concatenate([*(part.src[: part.edges] for part in parts), np.zeros(PREFETCH_EDGES, np.uint32)])
    weights = [part.weight for part in parts if part.weight is not None]
    return Csr(indptr, src, np.concatenate(weights) if weights else None)


def all_neighbours(adjacency: Adjacency, forms: Sequence[LayerForm], seed: int) -> Neighbours:
    """Return a function for each layer's full neighbourhoods, as in inference.

    The LSTM gets those it reads, in order.

    Args:
        adjacency: the graph.
        forms: settings of the layers.
        seed: seed of the LSTM's order.
    """

    def neighbours(layer: int, node_r: Ints) -> Csr:
        csr, form = adjacency.edges_into(node_r), forms[layer]
        if form.aggregator != "lstm":
            return csr
        hashes = adjacency.hashes
        return order_for_lstm(csr, hashes[node_r], hashes, form.most, seed + layer)

    return neighbours


def draw_neighbours(
    adjacency: Adjacency, forms: Sequence[LayerForm], sizes: Sequence[int], seed: int
) -> Neighbours:
    """Return a function drawing fresh neighbour samples for each layer.

    Draws are even.

    Args:
        adjacency: the graph.
        forms: settings of the layers.
        sizes: neighbours in each layer, the first layer first.
        seed: seed of the draws, another one for each minibatch.

    Raises:
        DataError: there is not one size for each layer.
    """
    if len(sizes) != len(forms):
        raise DataError(f"{len(sizes)} sizes of samples and {len(forms)} layers", "one per layer")

    def neighbours(layer: int, node_r: Ints) -> Csr:
        hashes = adjacency.hashes
        own_seed = (seed * len(forms) + layer) % 2**64
        sample = sample_neighbours(adjacency.edges_into(node_r), hashes[node_r], sizes[layer], own_seed)
        if forms[layer].aggregator != "lstm":
            return sample
        return order_for_lstm(sample, hashes[node_r], hashes, sizes[layer], seed)

    return neighbours


def build_subgraph(node_r: Ints, layers: int, neighbours: Neighbours) -> Subgraph:
    """Build the small graph around some nodes.

    Args:
        node_r: dense ids, in any order, any number of times.
        layers: number of layers.
        neighbours: edges of each layer.
    """
    outputs = np.unique(node_r)
    hops: list[Hop] = []
    nodes = outputs
    for layer in reversed(range(layers)):
        csr = neighbours(layer, nodes)
        sources = csr.src[: csr.edges].astype(np.int64)
        weight = None if csr.weight is None else _to_tensor(csr.weight[: csr.edges])
        need, place, own = (_to_tensor(array) for array in renumber_nodes(sources, nodes))
        hops.insert(0, Hop(_to_tensor(csr.indptr), place, weight, own))
        nodes = need.numpy()
    return Subgraph(nodes, tuple(hops), outputs)


def renumber_nodes(source_e: Ints, node_r: Ints) -> tuple[Ints, Ints, Ints]:
    """Return two arrays' distinct nodes, and where each node went.

    Nodes ascend; places count among them. With many edges a table over all ids is used, else sorting; the
    result is the same.
    """
    most = int(max(source_e.max(initial=-1), node_r.max(initial=-1))) + 1
    if most > 8 * len(source_e):
        need = np.unique(np.concatenate([node_r, source_e]))
        return need, np.searchsorted(need, source_e), np.searchsorted(need, node_r)
    seen = np.zeros(most, np.bool_)
    seen[source_e] = seen[node_r] = True
    need, place = np.flatnonzero(seen), np.cumsum(seen) - 1
    return need, place[source_e], place[node_r]


def _to_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def find_places(outputs: Ints, node_r: Ints) -> torch.Tensor:
    """Return some nodes' rows in the output, (r,)."""
    return _to_tensor(np.searchsorted(outputs, node_r))
