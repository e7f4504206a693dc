"""Graphs and layers without a JVM: dense algebra, a hub, another library, the Weisfeiler-Lehman test."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.aggregate import pool_neighbours
from recbench_spark.graphs.kernels.forms import LINEAR, LayerForm
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.layers import make_layer
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage.block_arrays import map_whole
from tests.graphs import oracle
from tests.graphs.local import Context
from tests.graphs.oracle import build_csr
from tests.graphs.test_layers import CUTS, FORMS, by_dense_id, compute_expected, make_model, run_layers

HUB = 30_000
KINDS = (
    "sage sum",
    "sage mean",
    "sage importance",
    "sage max",
    "sage gcn",
    "convolve importance",
)


def build_graphs(folder: Path, drawn: oracle.Drawn, **source: object) -> dict[int, Graph]:
    """A multigraph cut into 1, 3 and 17 blocks."""
    edges, nodes = drawn.write(folder, pieces=5)
    requests = GraphSource(**{"edges": edges, "weighted": True, "nodes": {"node": nodes}, **source})
    return {cut: build_graph(Context(), requests, "g", folder / str(cut), cut) for cut in CUTS}


@pytest.fixture(scope="module")
def with_hub(tmp_path_factory) -> tuple[oracle.Drawn, dict[int, Graph]]:
    drawn = oracle.multigraph(n=80, edges=300, hub=HUB, seed=11)
    return drawn, build_graphs(tmp_path_factory.mktemp("hub"), drawn)


@pytest.mark.parametrize("name", KINDS)
def test_a_hub_of_thirty_thousand_edges_under_every_plan_and_cut(name, with_hub, tmp_path) -> None:
    drawn, laid = with_hub
    assert laid[3].checks["most_edges_of_a_node"] >= HUB
    result = {}
    for cut, graph in laid.items():
        for plan in ("R", "G", "S"):
            model, weights = make_model(
                graph, drawn, (FORMS[name],), tmp_path / f"{cut}{plan}", batch=3 + cut
            )
            result[cut, plan] = run_layers(graph, model, plan)
    want = compute_expected(laid[1], drawn, (FORMS[name],), weights)[by_dense_id(laid[1], drawn)]
    assert len({value.tobytes() for (_, plan), value in result.items() if plan != "S"}) == 1
    for value in result.values():  # a hub's sum in float32, over what its summands cancel
        np.testing.assert_allclose(value, want, rtol=3e-5, atol=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_random_multigraphs_of_random_layers(seed, tmp_path) -> None:
    """Two layers of any forms; where ids are permuted, rows move with them and are otherwise equal."""
    draw = random.Random(seed)
    drawn = oracle.multigraph(draw.randrange(12, 50), draw.randrange(1, 200), draw.randrange(60), seed)
    forms = tuple(
        LayerForm(form, kind, draw.randrange(1, 30), draw.randrange(1, 20), relu=draw.random() < 0.7)
        for form, kind in draw.choices([(f.form, f.aggregator) for f in FORMS.values()], k=2)
    )
    laid = build_graphs(tmp_path / "g", drawn)
    result = []
    for cut, plan in ((1, "R"), (3, "G"), (17, "R")):
        model, weights = make_model(laid[cut], drawn, forms, tmp_path / f"{cut}{plan}", batch=cut + 1)
        result.append(run_layers(laid[cut], model, plan))
    assert len({value.tobytes() for value in result}) == 1
    want = compute_expected(laid[1], drawn, forms, weights)[by_dense_id(laid[1], drawn)]
    np.testing.assert_allclose(result[0], want, rtol=1e-4, atol=1e-5)
    if "lstm" in {form.aggregator for form in forms}:
        return  # its order is of ids
    permuted = oracle.Drawn(draw.sample(drawn.ids, len(drawn.ids)), drawn.edges)
    others = build_graphs(tmp_path / "p", permuted)
    model, _ = make_model(others[3], permuted, forms, tmp_path / "other")
    again = run_layers(others[3], model, "G")
    a, b = np.empty((2, *again.shape), again.dtype)
    a[by_dense_id(laid[1], drawn)], b[by_dense_id(others[3], permuted)] = result[0], again
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------- another library


@pytest.mark.parametrize("kind", [*LINEAR, "max"])
def test_layers_of_torch_geometric(kind, with_hub, tmp_path) -> None:
    """SAGEConv, with self loops for the GCN form; GraphConv of normalised weights for importance."""
    nn = pytest.importorskip("torch_geometric.nn")
    import torch

    drawn, laid = with_hub
    form = LayerForm("sage", kind, 12, 9, relu=False)
    model, w = make_model(laid[3], drawn, (form,), tmp_path / "m")
    w = {name.removeprefix("layers.0."): torch.from_numpy(v).double() for name, v in w.items()}
    h = torch.from_numpy(np.array(map_whole(model.features))).double()
    places = {int(p): n for n, p in enumerate(by_dense_id(laid[3], drawn))}
    src, dst = (torch.tensor([places[edge[end]] for edge in drawn.edges]) for end in (0, 1))
    d = h.shape[1]
    if kind == "importance":
        weight = torch.tensor([edge[2] for edge in drawn.edges]).double()
        sums = torch.zeros(len(h)).double().index_add(0, dst, weight)
        conv = nn.GraphConv(d, 12, aggr="add").double()
        conv.load_state_dict({"lin_rel.weight": w["W.weight"][:, d:], "lin_rel.bias": w["W.bias"],
                              "lin_root.weight": w["W.weight"][:, :d]})  # fmt: skip
        share = weight / torch.where(sums == 0, 1, sums)[dst]
        want = torch.nn.functional.normalize(conv(h, torch.stack([src, dst]), share), dim=1)
    else:
        loops = torch.arange(len(h)) if kind == "gcn" else torch.empty(0, dtype=torch.long)
        edges = torch.stack([torch.cat([src, loops]), torch.cat([dst, loops])])
        state = {
            "lin_l.weight": w["W.weight"][:, -(9 if kind == "max" else d) :],
            "lin_l.bias": w["W.bias"],
        }
        conv = nn.SAGEConv(d if kind != "max" else (9, d), 12, aggr="mean" if kind == "gcn" else kind,
                           normalize=True, root_weight=kind != "gcn").double()  # fmt: skip
        if kind != "gcn":
            state["lin_r.weight"] = w["W.weight"][:, :d]
        conv.load_state_dict(state)
        z = torch.relu(h @ w["pool.weight"].T + w["pool.bias"]) if kind == "max" else h
        want = conv((z, h) if kind == "max" else h, edges)
    for plan in ("R", "G", "S"):
        more, _ = make_model(laid[17], drawn, (form,), tmp_path / plan)
        result = run_layers(laid[17], more, plan)
        np.testing.assert_allclose(result, want.detach().numpy(), rtol=3e-5, atol=2e-5)


# ----------------------------------------------------------------------------- Weisfeiler and Lehman

COLUMNS = 4
"""Hashes of 17 bits of a label: their sums over seven neighbours are exact in float32."""


def look_alikes() -> list[nx.Graph]:
    """Pairs of different graphs that the WL test cannot tell apart: regular ones of one degree."""
    rook = nx.line_graph(nx.complete_bipartite_graph(4, 4))
    steps = ((0, 1), (1, 0), (1, 1))
    shrikhande = nx.Graph(
        ((a, b), ((a + s) % 4, (b + t) % 4)) for a in range(4) for b in range(4) for s, t in steps
    )
    pairs = [nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))]
    pairs += [nx.cycle_graph(8), nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(3))]
    pairs += [nx.circular_ladder_graph(5), nx.petersen_graph()]
    return [nx.convert_node_labels_to_integers(one) for one in (*pairs, rook, shrikhande)]


def test_layers_with_a_hash_tell_graphs_apart_as_weisfeiler_and_lehman_do() -> None:
    """All graphs of one to seven nodes (Hamilton et al. 2017, section 3.2): no more apart, and no fewer."""
    graphs = [one for one in nx.graph_atlas_g() if one.number_of_nodes()] + look_alikes()
    sizes = np.array([one.number_of_nodes() for one in graphs])
    firsts = np.cumsum(sizes) - sizes
    both = [(int(a) + s, int(b) + s) for one, s in zip(graphs, firsts, strict=True) for a, b in one.edges]
    union = build_csr(int(sizes.sum()), [*both, *((b, a) for a, b in both)])
    form = LayerForm("sage", "sum", 2 * COLUMNS, 1, relu=False, normalise=False)
    identity = {
        "W.weight": np.eye(2 * COLUMNS, dtype=np.float32),
        "W.bias": np.zeros(2 * COLUMNS, np.float32),
    }
    layer = make_layer(form, identity, COLUMNS)
    labels = np.ones(len(union.indptr) - 1, np.int64)
    hashes = labels.view(np.uint64)
    for _ in range(16):
        z = np.stack([hash_numbers(labels, c) >> np.uint64(47) for c in range(COLUMNS)], 1).astype(
            np.float32
        )
        out = layer.combine(z, layer.aggregate(union, z, None, hashes, hashes)).astype(np.int64)
        labels = np.zeros(len(out), np.int64)
        for column in out.T:
            labels = hash_numbers(labels * 1_000_003 + column, 7).view(np.int64)
    ours = [tuple(sorted(part.tolist())) for part in np.split(labels, firsts[1:])]
    theirs = []
    for one in graphs:
        nx.set_node_attributes(one, "any", "label")
        theirs.append(
            nx.weisfeiler_lehman_graph_hash(one, iterations=16, node_attr="label", digest_size=16)
        )
    assert len(set(ours)) == len(set(theirs)) == len(set(zip(ours, theirs, strict=True)))
    apart = Counter(zip(sizes.tolist(), ours, strict=True))
    assert len(graphs) > len(apart) > 900 and ours[-1] == ours[-2] and ours[-7] == ours[-8]
    largest = build_csr(2, [(0, 0), (0, 1)])
    assert pool_neighbours("sum", largest, np.full((2, 1), 2.0**17 - 1, np.float32))[0, 0] == 2.0**18 - 2


def test_ids_come_back_from_a_layout_without_a_jvm(with_hub) -> None:
    drawn, laid = with_hub
    for graph in laid.values():
        assert sorted(i for b in graph.blocks for i in read_ids(graph, b).to_pylist()) == sorted(drawn.ids)
        assert graph.edges == len(drawn.edges)
