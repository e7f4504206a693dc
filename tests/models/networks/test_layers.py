"""Layers in torch: those of inference, a loop over nodes, torch-geometric's, and their gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from jobs.studies.layerwise import embed_by_layer
from recbench_spark.errors import ConfigError
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.kernels.samples import draw_nodes
from recbench_spark.models.networks import tasks
from recbench_spark.models.networks.layers import GraphNetwork, unit_rows
from recbench_spark.models.networks.subgraphs import (
    Adjacency,
    all_neighbours,
    build_subgraph,
    draw_neighbours,
    renumber_nodes,
)
from tests.graphs import oracle
from tests.models.networks.worlds import adjacency

DIMS = 10
FORMS = {
    **{f"sage {kind}": LayerForm("sage", kind, 7, 6, most=4) for kind in AGGREGATORS},
    **{f"convolve {k}": LayerForm("convolve", k, 7, 6) for k in ("sum", "mean", "importance", "max")},
    "added": LayerForm("sage", "mean", 7, 6, join="add"),
    "added and raw": LayerForm("convolve", "max", 7, DIMS, join="add", relu=False, normalise=False),
}


def make_net(forms: tuple[LayerForm, ...], final: tuple[int, ...] = ()) -> tuple[GraphNetwork, dict]:
    weights = random_weights(model_weight_shapes(forms, final, DIMS), 3)
    weights = {name: w + np.float32(0.1) if "bias" in name else w for name, w in weights.items()}
    net = GraphNetwork(forms, final, DIMS)
    net.load_weights(weights, "test")
    return net, weights


def features(n: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((n, DIMS)).astype(np.float32)


def infer_all(graph: Adjacency, forms, final, weights, x: np.ndarray) -> np.ndarray:
    """Layer by layer over all nodes, by the kernels."""
    layers, ends = make_layers(forms, final, weights, DIMS, 9)
    csr = graph.edges_into(np.arange(len(graph.hashes)))
    h = x
    for layer in layers:
        z = h if layer.project is None else layer.messages(h)
        h = layer.combine(h, layer.aggregate(csr, z, z, graph.hashes, graph.hashes))
    for end in ends:
        h = end.apply(h)
    return h


def embed_nodes(net: GraphNetwork, graph: Adjacency, nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    batch = build_subgraph(nodes, len(net.forms), all_neighbours(graph, net.forms, 9))
    with torch.no_grad():
        result = net(torch.from_numpy(x[batch.inputs]), batch).numpy()
    return result[np.searchsorted(batch.outputs, nodes)]


@pytest.mark.full
@pytest.mark.parametrize("name", FORMS)
def test_minibatches_are_layer_wise_inference(name) -> None:
    graph = adjacency(oracle.multigraph(), blocks=3, weighted=True)
    forms = (FORMS[name], LayerForm(FORMS[name].form, FORMS[name].aggregator, 5, 4, most=4))
    net, weights = make_net(forms, (6, 3))
    x = features(60)
    expected = infer_all(graph, forms, (6, 3), weights, x)
    nodes = np.array([3, 59, 17, 3, 0, 58])  # a hub, nodes without edges, one twice
    assert np.abs(embed_nodes(net, graph, nodes, x) - expected[nodes]).max() < 1e-5
    assert np.abs(embed_nodes(net, graph, np.arange(60), x) - expected).max() < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_a_layer_is_its_equation_one_node_at_a_time(name) -> None:
    drawn, form = oracle.multigraph(), FORMS[name]
    graph = adjacency(drawn, weighted=True)
    net, weights = make_net((form,))
    own = {key.removeprefix("layers.0."): w for key, w in weights.items()}
    x = features(60).astype(np.float64)
    pools = None
    if form.aggregator == "lstm":
        read = all_neighbours(graph, (form,), 9)(0, np.arange(60))
        order = [read.src[a:b].tolist() for a, b in zip(read.indptr, read.indptr[1:], strict=False)]
        pools = lambda z: oracle.lstm_states(own, order, z)  # noqa: E731
    expected = oracle.layer(form, own, drawn, x, pools)
    net.double()
    for node in (3, 7, 17, 58):
        assert np.abs(embed_nodes(net, graph, np.array([node]), x) - expected[node]).max() < 1e-6


def geometric(form: LayerForm, weights: dict, drawn: oracle.Drawn, x: np.ndarray) -> np.ndarray:
    nn = pytest.importorskip("torch_geometric.nn")
    kind = {"mean": "mean", "max": "max", "sum": "sum"}[form.aggregator]
    inner = form.hidden if kind == "max" else DIMS
    conv = nn.SAGEConv((DIMS, DIMS), form.width, aggr=kind, normalize=False, project=False)
    w = torch.from_numpy(weights["layers.0.W.weight"])
    h = torch.from_numpy(x)
    if kind == "max":
        z = torch.relu(h @ torch.from_numpy(weights["layers.0.pool.weight"]).T
                       + torch.from_numpy(weights["layers.0.pool.bias"]))  # fmt: skip
        conv = nn.SAGEConv((inner, DIMS), form.width, aggr=kind)
    else:
        z = h
    with torch.no_grad():
        conv.lin_l.weight.copy_(w[:, DIMS:])
        conv.lin_l.bias.copy_(torch.from_numpy(weights["layers.0.W.bias"]))
        conv.lin_r.weight.copy_(w[:, :DIMS])
        edges = torch.tensor([[s, d] for s, d, _ in drawn.edges]).T
        return unit_rows(torch.relu(conv((z, h), edges))).numpy()


@pytest.mark.parametrize("kind", ["mean", "max", "sum"])
def test_a_layer_is_torch_geometrics(kind) -> None:
    drawn, form = oracle.multigraph(), FORMS[f"sage {kind}"]
    net, weights = make_net((form,))
    x = features(60)
    result = embed_nodes(net, adjacency(drawn), np.arange(60), x)
    assert np.abs(result - geometric(form, weights, drawn, x)).max() < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_those_of_differences(name) -> None:
    graph = adjacency(oracle.multigraph(n=14, edges=30, hub=6), weighted=True)
    net, _ = make_net((FORMS[name],), (4, 3))
    net.double()
    batch = build_subgraph(np.array([0, 3, 12]), 1, all_neighbours(graph, net.forms, 9))
    x = torch.from_numpy(features(14)[batch.inputs]).double().requires_grad_()
    names = [key for key, _ in net.named_parameters()]

    def compute_output(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, dict(zip(names, weights, strict=True)), (x, batch))

    weights = [w.detach().requires_grad_() for w in net.parameters()]
    assert torch.autograd.gradcheck(compute_output, (x, *weights), atol=1e-5, fast_mode=True)


def sparse_graph(blocks: int) -> Adjacency:
    """A weighted multigraph of which every third node has lost its edges."""
    drawn = oracle.multigraph()
    return adjacency(replace(drawn, edges=[e for e in drawn.edges if e[1] % 3]), blocks, weighted=True)


@pytest.mark.parametrize("name", FORMS)
def test_nodes_without_edges_are_the_same_in_minibatches_and_in_inference(name) -> None:
    form = FORMS[name]
    forms = (form, LayerForm(form.form, form.aggregator, 5, 4, most=4))
    net, weights = make_net(forms, (6, 3))
    graph, x, every = sparse_graph(3), features(60), np.arange(60)
    alone = np.flatnonzero(np.diff(graph.edges_into(every).indptr) == 0)
    assert 20 <= len(alone) < 40
    expected = infer_all(graph, forms, (6, 3), weights, x)
    assert np.abs(embed_nodes(net, graph, alone, x) - expected[alone]).max() < 1e-6
    given = tasks.GraphInput(graph, x, (), 9, dropout=0.5)  # of fits alone
    assert np.abs(tasks.embed_by_minibatch(net, given, every) - expected).max() < 1e-5
    assert np.abs(embed_by_layer(net, given, alone) - expected[alone]).max() < 1e-6


@pytest.mark.parametrize("samples", [(), (4, 3)])
@pytest.mark.parametrize("name", FORMS)
def test_a_minibatch_with_dropout_is_one_of_the_graph_without_these_edges(name, samples) -> None:
    """In all layers, whether a node comes out or is a neighbour; by whatever blocks."""
    forms, seed = (FORMS[name], LayerForm(FORMS[name].form, FORMS[name].aggregator, 5, 4, most=4)), 11
    net, _ = make_net(forms)
    drawn, x = oracle.multigraph(), features(60)
    hashes = adjacency(drawn).hashes
    lost = draw_nodes(hashes, 0.4, seed) & (np.arange(60) >= 10)
    assert 10 < lost.sum() < 35
    rest = adjacency(replace(drawn, edges=[e for e in drawn.edges if not lost[e[1]]]), 1, weighted=True)
    nodes = np.array([3, 59, 17, 3, 0, 58, 12, 13, 14, 15, 16])
    vectors = []
    for graph, share in ((rest, 0.0), *((adjacency(drawn, b, weighted=True), 0.4) for b in (1, 3))):
        given = tasks.GraphInput(graph, x, samples, 9, share, (10, 60))
        batch, rows = given.build_minibatch(net, nodes, seed)
        with torch.no_grad():
            vectors.append(net(rows, batch).numpy().tobytes())
    assert vectors[0] == vectors[1] == vectors[2]


def test_who_loses_neighbours_hangs_on_node_and_seed_alone() -> None:
    hashes = hash_numbers(np.arange(20_000), 0)
    result = draw_nodes(hashes, 0.1, 5)
    assert abs(result.mean() - 0.1) < 0.01
    assert np.array_equal(result[::7], draw_nodes(hashes[::7], 0.1, 5))
    other = draw_nodes(hashes, 0.1, 6)
    assert abs((result & other).mean() - 0.01) < 0.004
    assert not draw_nodes(hashes, 0.0, 5).any() and draw_nodes(hashes, 1.0, 5).all()


def test_samples_of_many_layers_take_every_seed() -> None:
    """Seeds of a fit have 62 bits, and that of a layer is several times as large."""
    graph, forms = adjacency(oracle.multigraph(), blocks=3), (FORMS["sage mean"],) * 8
    draw = draw_neighbours(graph, forms, (3,) * 8, seed=2**62 - 1)
    assert np.diff(draw(7, np.array([1, 3, 9])).indptr).tolist() == [3, 3, 3]


def test_samples_in_a_minibatch_hang_on_nodes_layer_and_seed_alone() -> None:
    graph = adjacency(oracle.multigraph(), blocks=3)
    forms = (FORMS["sage mean"], FORMS["sage mean"])
    draw = draw_neighbours(graph, forms, (4, 3), seed=5)
    alone, together = draw(0, np.array([3])), draw(0, np.array([1, 3, 9]))
    a, b = together.indptr[1:3]
    assert alone.src[:4].tolist() == together.src[a:b].tolist()
    assert draw(0, np.array([3])).src.tolist() != draw(1, np.array([3])).src.tolist()
    assert (
        draw(0, np.array([3])).src.tolist()
        != draw_neighbours(graph, forms, (4, 3), 6)(0, np.array([3])).src.tolist()
    )
    assert np.diff(together.indptr).tolist() == [4, 4, 4]


def test_an_unknown_aggregator_is_refused() -> None:
    with pytest.raises(ConfigError, match="no aggregator 'median'"):
        GraphNetwork((LayerForm("sage", "median", 3, 3),), (), DIMS)
    with pytest.raises(ConfigError, match="has no weight"):
        make_net((FORMS["added"],))[0].load_weights({"layers.0.V.weight": np.zeros(3)}, "file")


@pytest.mark.parametrize("name", FORMS)
def test_layer_by_layer_gives_the_vectors_of_minibatches(name) -> None:
    form = FORMS[name]
    last = LayerForm("sage", "mean", 7, 7)
    for forms in ((form, last), (form,)):
        net, _ = make_net(forms, (8, 3))
        graph = adjacency(oracle.multigraph(), 3, weighted=True)
        given = tasks.GraphInput(graph, features(60), (), 9)
        for nodes in (np.arange(60), np.array([0, 7, 8, 31, 59]), np.arange(0)):
            result = embed_by_layer(net, given, nodes, at_once=7)
            assert result.shape == (len(nodes), 3)
            expected = tasks.embed_by_minibatch(net, given, nodes, at_once=11).reshape(-1, 3)
            assert np.abs(result - expected).max(initial=0) < 1e-6


def test_nodes_are_numbered_the_same_by_table_and_by_sorting() -> None:
    draw = np.random.default_rng(1)
    for most, size in ((50, 400), (10**6, 400), (5, 0)):
        sources, nodes = draw.integers(0, most, size), np.unique(draw.integers(0, most, 9))
        need, place, own = renumber_nodes(sources, nodes)
        assert need.tolist() == sorted({*sources.tolist(), *nodes.tolist()})
        assert (need[place] == sources).all() and (need[own] == nodes).all()
