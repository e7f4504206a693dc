"""Vectors of many nodes, layer by layer: each node once a layer, which minibatches take again and again.

The work is that of `kernels.graph.layers`, on the net's weights: sums and largest values are taken edge by
edge, so that nothing is as large as edges times dimensions. Held are vectors and messages of all nodes of
one layer, and the edges of `at_once` nodes.
"""

from __future__ import annotations

import numpy as np

from recbench_spark.kernels.graph.dense import Matrix
from recbench_spark.kernels.graph.layers import Layer, make_layers
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.subgraphs import Nodes
from recbench_spark.models.networks.tasks import GraphInput

AT_ONCE = 1 << 16


def embed_by_layer(net: GraphNetwork, given: GraphInput, node_r: Nodes, at_once: int = AT_ONCE) -> Matrix:
    """(r, o) vectors of some nodes, by all their neighbours: those of `tasks.embed_by_minibatch`, to float32.

    All nodes go through each layer but the last, which only the nodes asked for go through.

    Args:
        net: the model.
        given: the graph; its samples are not used.
        node_r: dense ids, ascending.
        at_once: nodes whose edges are held at a time.
    """
    layers, ends = make_layers(net.forms, net.ends, net.given(), net.dims, given.seed)
    h = np.asarray(given.features)
    every = np.arange(len(h))
    for number, layer in enumerate(layers):
        wanted = node_r if number + 1 == len(layers) else every
        h = apply_layer(layer, given, h, wanted, at_once)
    h = h if layers else np.ascontiguousarray(h[node_r], np.float32)
    for end in ends:
        h = end.of(h)
    return h


def apply_layer(layer: Layer, given: GraphInput, h: np.ndarray, node_r: Nodes, at_once: int) -> Matrix:
    """(r, width) new vectors of some nodes (ascending), of (n, d) vectors of all."""
    hashes = given.adjacency.hashes
    z = h if layer.project is None else _compute_messages(layer, h, at_once)
    out = np.empty((len(node_r), layer.width), np.float32)
    for begin in range(0, len(node_r), at_once):
        nodes = node_r[begin : begin + at_once]
        csr = given.adjacency.edges_into(nodes)
        n = layer.aggregate(csr, z, z[nodes], hashes[nodes], hashes)
        out[begin : begin + len(nodes)] = layer.combine(h[nodes], n)
    return out


def _compute_messages(layer: Layer, h: np.ndarray, at_once: int) -> Matrix:
    found = np.empty((len(h), layer.message_width(h.shape[1])), np.float32)
    for begin in range(0, len(h), at_once):
        found[begin : begin + at_once] = layer.messages(h[begin : begin + at_once])
    return found
