"""Call of each kernel for graphs, to compile it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recbench_spark.core.compiling import readonly
from recbench_spark.graphs.kernels import gathering, samples, walks
from recbench_spark.graphs.kernels.csr import (
    Csr,
    build_csr,
    build_halo,
    count_sources,
    edge_keys,
    find_blocks,
    group_edges,
    mark_touched,
    tile,
)
from recbench_spark.graphs.kernels.dense import store
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.graphs.kernels.ids import (
    NumberSet,
    assign_blocks,
    build_index,
    hash_numbers,
    look_up_hashes,
    look_up_numbers,
    unhash_numbers,
)
from recbench_spark.graphs.kernels.layers import make_layer, random_weights, weight_shapes


def warm() -> None:
    """Run each kind of layer over a small graph.

    The graph has four nodes.

    The graph is built first; numbers are in single and half precision.
    """
    hashes = np.sort(hash_numbers(np.arange(4), seed=1))
    unhash_numbers(hashes, seed=1)
    node_r = look_up_hashes(hashes, readonly(hashes), readonly(build_index(hashes)))
    for weight in (None, np.ones(4, np.float32)):
        edges = group_edges(assign_blocks(hashes, 1), edge_keys(node_r, node_r[::-1]), weight, 1)
        csr, _ = build_csr(4, edges.keys, edges.weight)
        build_halo(csr)
        _warm_blocks(csr, hashes)
        _warm_walks(csr, hashes)
        _warm_samples(csr, hashes)
        _warm_gathering(csr)
        mapped = Csr(
            readonly(csr.indptr), readonly(csr.src), weight if weight is None else readonly(weight)
        )
        for dtype in (np.float32, np.float16):
            for kind in AGGREGATORS:
                _warm_layer(kind, mapped, readonly(np.ones((4, 3), dtype)), readonly(hashes))


def _warm_layer(kind: Any, csr: Csr, h: npt.NDArray[Any], hashes: npt.NDArray[Any]) -> None:
    form = LayerForm("sage", kind, width=5, hidden=3)
    layer = make_layer(form, random_weights(weight_shapes(form, 3), seed=1), 3)
    z = h
    if layer.project is not None:
        z = np.empty((4, layer.message_width(3)), h.dtype)
        store(layer.messages(h), z, "messages")
    layer.combine(h, layer.aggregate(csr, z, z, hashes, hashes))


def _warm_blocks(csr: Csr, hash_r: Any) -> None:
    """Look up nodes and blocks, and take a block's edges apart."""
    numbers, nodes = NumberSet(), len(hash_r)
    numbers.add(np.arange(nodes))
    look_up_numbers(np.arange(nodes), 0, np.arange(1, nodes + 1, dtype=np.uint32))
    find_blocks(np.arange(nodes, dtype=np.uint32), np.array([nodes]))
    count_sources(csr, nodes, np.array([nodes]))
    tile(csr, 0, nodes)
    mark_touched(csr, np.ones(nodes, np.bool_), np.zeros(nodes, np.bool_))


def _warm_walks(csr: Csr, hash_r: Any) -> None:
    """Walk from each node, in one process and by hops between tasks."""
    indptr, src, what = readonly(csr.indptr), readonly(csr.src), walks.Walks(walks=2, hops=2)
    walks.find_neighbourhoods(indptr, src, hash_r, 0, what)
    walks.find_most_visited(walks.list_visits(indptr, src, hash_r, 0, what).reshape(len(hash_r), -1), 2)
    walkers = walks.make_walkers(np.arange(len(hash_r)), np.diff(csr.indptr), what)
    hash_w = hash_r[walkers["start"]]
    walks.begin_hop(walkers, hash_w, 1, what)
    walks.assign_files(readonly(walks.draw_positions(walkers, hash_w, 1, 1, what)), 2)


def _warm_samples(csr: Csr, hash_r: Any) -> None:
    """Sample neighbours and nodes, and rank one node by PageRank."""
    samples.sample_neighbours(csr, hash_r, 2, seed=1)
    samples.draw_nodes(hash_r, 0.5, seed=1)
    samples.rank_bands((csr.indptr, csr.src), np.arange(1), (0, len(hash_r)), (1, 2))


def _warm_gathering(csr: Csr) -> None:
    """Add up rows and take their maxima, with gradients."""
    rows, place = len(csr.indptr) - 1, csr.src[: csr.indptr[-1]].astype(np.int64)
    z = np.ones((rows, 2), np.float32)
    gathering.sum_rows_gradient(
        csr.indptr, place, None, gathering.sum_rows(csr.indptr, place, None, z), rows
    )
    maxima, row = gathering.max_rows(csr.indptr, place, z)
    gathering.max_rows_gradient(row, maxima, rows)
