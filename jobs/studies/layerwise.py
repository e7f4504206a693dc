"""Compute vectors for many nodes layer by layer.

Each node is computed once per layer, where minibatches would repeat nodes. The layers from
`graphs.kernels.layers` run with the network's weights. Sums and maxima are taken edge by edge, so no array
is as large as edges times dimensions. Memory holds one layer's vectors and messages for all nodes, and the
edges into `at_once` nodes.
"""

from __future__ import annotations

import numpy as np

from recbench_spark.core.arrays import Ints
from recbench_spark.graphs.kernels.dense import Matrix
from recbench_spark.graphs.kernels.layers import Layer, make_layers
from recbench_spark.models.networks.layers import GraphNetwork
from recbench_spark.models.networks.tasks import GraphInput

AT_ONCE = 1 << 16


def embed_by_layer(
    net: GraphNetwork, graph_input: GraphInput, node_r: Ints, at_once: int = AT_ONCE
) -> Matrix:
    """Return some nodes' vectors, (r, o), with all their neighbours.

    The vectors equal `tasks.embed_by_minibatch` to float32. All nodes go through each layer but the last
    one, which only `node_r` need.

    Args:
        net: the model.
        graph_input: the graph; its samples are not used.
        node_r: dense ids, ascending.
        at_once: nodes whose edges are held at a time.
    """
    layers, output_layers = make_layers(
        net.forms, net.output_layers, net.export_weights(), net.dims, graph_input.seed
    )
    h = np.asarray(graph_input.features)
    all_nodes = np.arange(len(h))
    for number, layer in enumerate(layers):
        wanted = node_r if number + 1 == len(layers) else all_nodes
        h = apply_layer(layer, graph_input, h, wanted, at_once)
    h = h if layers else np.ascontiguousarray(h[node_r], np.float32)
    for end in output_layers:
        h = end.apply(h)
    return h


def apply_layer(layer: Layer, graph_input: GraphInput, h: np.ndarray, node_r: Ints, at_once: int) -> Matrix:
    """Return some nodes' new vectors, (r, width), from all vectors.

    `node_r` ascends; `h` is (n, d).
    """
    hashes = graph_input.adjacency.hashes
    z = h if layer.project is None else _compute_messages(layer, h, at_once)
    out = np.empty((len(node_r), layer.width), np.float32)
    for begin in range(0, len(node_r), at_once):
        nodes = node_r[begin : begin + at_once]
        csr = graph_input.adjacency.edges_into(nodes)
        n = layer.aggregate(csr, z, z[nodes], hashes[nodes], hashes)
        out[begin : begin + len(nodes)] = layer.combine(h[nodes], n)
    return out


def _compute_messages(layer: Layer, h: np.ndarray, at_once: int) -> Matrix:
    messages = np.empty((len(h), layer.message_width(h.shape[1])), np.float32)
    for begin in range(0, len(h), at_once):
        messages[begin : begin + at_once] = layer.messages(h[begin : begin + at_once])
    return messages
