"""Layers over a laid-out graph: dense algebra in float64, and the same bits under every plan and cut."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.core.hashing import stream
from recbench_spark.graphs import features
from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.build_inputs import count_edges
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.graphs.runner import Model, plan_passes, run_pass
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage.block_arrays import map_whole
from tests.graphs import oracle
from tests.graphs.local import Context, write_matrix

DIMS = 20
pytestmark = pytest.mark.full  # `test_empty_blocks` has every plan in `make test`

CUTS = (1, 3, 17)

FORMS = {
    **{f"sage {kind}": LayerForm("sage", kind, 12, 9) for kind in AGGREGATORS},
    **{
        f"convolve {kind}": LayerForm("convolve", kind, 12, 9)
        for kind in ("sum", "mean", "importance", "max")
    },
    "wider": LayerForm("sage", "mean", 24, 9),
    "added": LayerForm("sage", "importance", 12, 9, join="add"),
    "added and raw": LayerForm("convolve", "max", 12, DIMS, join="add", relu=False, normalise=False),
}


@pytest.fixture(scope="module")
def drawn() -> oracle.Drawn:
    return oracle.multigraph()


@pytest.fixture(scope="module")
def graphs(drawn, tmp_path_factory) -> dict[int, Graph]:
    """The same graph cut into 1, 3 and 17 blocks."""
    folder = tmp_path_factory.mktemp("graph")
    edges, nodes = drawn.write(folder)
    source = GraphSource(edges=edges, weighted=True, nodes={"node": nodes})
    return {cut: build_graph(Context(), source, "g", folder / str(cut), cut) for cut in CUTS}


def vectors(n: int, dims: int = DIMS) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((n, dims)).astype(np.float32)


def by_dense_id(graph: Graph, drawn: oracle.Drawn) -> np.ndarray:
    """(n,) place in `drawn.ids` of each dense id."""
    places = {value: place for place, value in enumerate(drawn.ids)}
    return np.array([places[i] for block in graph.blocks for i in read_ids(graph, block).to_pylist()])


def make_model(
    graph: Graph, drawn: oracle.Drawn, forms: tuple[LayerForm, ...], folder: Path, dtype: str = "float32",
    final: tuple[int, ...] = (), mode: str = "projected", batch: int = 7,
) -> tuple[Model, dict[str, np.ndarray]]:  # fmt: skip
    weights = random_weights(model_weight_shapes(forms, final, DIMS), seed=5)
    weights = {k: v + np.float32(0.1) if "bias" in k else v for k, v in weights.items()}
    layers, ends = make_layers(forms, final, weights, DIMS, seed=9)
    folder.mkdir(parents=True)
    h = vectors(len(drawn.ids))[by_dense_id(graph, drawn)].astype(dtype)
    place = write_matrix(folder / "h", graph, h)
    model = Model("m", layers, ends, mode, dtype, place, str(folder), str(folder), None, batch)
    return model, weights


def run_layers(graph: Graph, model: Model, plan: str) -> np.ndarray:
    """Return what the tasks of all passes write, without Spark and without tables."""
    for one in plan_passes(model, graph):
        out = one.out or f"{model.folder}/out-{one.layer}-{one.kind}"
        step = replace(one, out=out, target=None)
        blocks, sources = graph.side_blocks(step.side), graph.side_blocks(step.sources)
        _, projected = run_pass(Context(), graph, step, blocks, plan, model=model)
        assert projected == (sum(block.rows for block in sources) if step.projects else 0)
    return map_whole(out)


def compute_expected(graph: Graph, drawn: oracle.Drawn, forms, weights, final=()) -> np.ndarray:
    """Compute the layers by their equations, in the order of `drawn.ids`."""
    h = vectors(len(drawn.ids)).astype(np.float64)
    for k, form in enumerate(forms):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{k}.")}
        pools = None
        if form.aggregator == "lstm":
            order = lstm_order(graph, drawn, form.most, seed=9 + k)
            pools = lambda z, own=own, order=order: oracle.lstm_states(own, order, z)  # noqa: E731
        h = oracle.layer(form, own, drawn, h, pools)
    for k in range(len(final)):
        h = h @ weights[f"final.{k}.weight"].T.astype(float) + weights[f"final.{k}.bias"]
        h = np.maximum(h, 0) if k < len(final) - 1 else h
    return h


def lstm_order(graph: Graph, drawn: oracle.Drawn, most: int, seed: int) -> list[list[int]]:
    place = by_dense_id(graph, drawn)
    hashes = dict(zip(place.tolist(), graph.hashes(), strict=True))
    sources = defaultdict(list)
    for s, d, _ in drawn.edges:
        key = stream(np.uint64(stream(np.uint64(seed), hashes[d])), hashes[s])
        sources[d].append((int(key), s))
    return [[s for _, s in sorted(sources[v])][:most] for v in range(len(drawn.ids))]


@pytest.mark.parametrize("name", FORMS)
def test_a_layer_is_its_equation_under_every_plan_and_cut(name, graphs, drawn, tmp_path) -> None:
    result = {}
    for cut, graph in graphs.items():
        for plan in ("R", "G", "S"):
            if plan == "S" and FORMS[name].aggregator == "lstm":
                continue
            folder = tmp_path / f"{cut}{plan}"
            model, weights = make_model(graph, drawn, (FORMS[name],), folder, batch=3 + cut)
            result[cut, plan] = run_layers(graph, model, plan)
    place = by_dense_id(graphs[1], drawn)
    want = compute_expected(graphs[1], drawn, (FORMS[name],), weights)[place]
    exact = {key: value.tobytes() for key, value in result.items() if key[1] != "S"}
    assert len(set(exact.values())) == 1
    for (_, plan), value in result.items():
        np.testing.assert_allclose(value, want, rtol=3e-5, atol=3e-6)
        if plan == "S" and FORMS[name].aggregator == "max":
            assert value.tobytes() == exact[1, "R"]


def test_sums_that_are_exact_have_the_same_bits_scattered(graphs, drawn, tmp_path) -> None:
    form = LayerForm("sage", "sum", DIMS + 1, 9, relu=False, normalise=False)
    result = set()
    for cut, graph in graphs.items():
        for plan in ("R", "S"):
            model, _ = make_model(graph, drawn, (form,), tmp_path / f"{cut}{plan}")
            write_matrix(Path(model.features), graph, np.round(map_whole(model.features) * 4))
            result.add(run_layers(graph, model, plan).tobytes())
    assert len(result) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_layers_and_dense_ends_on_the_wire(dtype, graphs, drawn, tmp_path) -> None:
    forms = (LayerForm("convolve", "importance", 16, 12), LayerForm("sage", "gcn", 11, 9))
    result, single = set(), set()
    for cut, graph in graphs.items():
        for plan in ("R", "G"):
            model, weights = make_model(
                graph, drawn, forms, tmp_path / f"{cut}{plan}", dtype, final=(10, 6)
            )
            result.add(run_layers(graph, model, plan).tobytes())
            few = np.arange(0, graph.nodes, 4)
            single.add(embed_nodes(graph, model, few).astype(dtype).tobytes())
    assert len(result) == len(single) == 1
    graph = graphs[1]
    value = np.frombuffer(result.pop(), dtype).reshape(graph.nodes, 6)
    assert single.pop() == np.ascontiguousarray(value[::4]).tobytes()
    place = by_dense_id(graph, drawn)
    want = compute_expected(graph, drawn, forms, weights, (10, 6))[place]
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(value.astype(float), want, atol=tolerance)


def test_ids_in_another_order_change_rows_alone(drawn, graphs, tmp_path) -> None:
    """Texts for numbers: other hashes, another order of additions, the same embeddings but for rounding."""
    named = oracle.Drawn([f"id {value}" for value in drawn.ids], drawn.edges)
    edges, nodes = named.write(tmp_path / "text")
    source = GraphSource(edges=edges, weighted=True, nodes={"node": nodes})
    other = build_graph(Context(), source, "t", tmp_path / "laid", 3)
    form = LayerForm("convolve", "importance", 12, 9)
    one, _ = make_model(graphs[3], drawn, (form,), tmp_path / "one")
    two, _ = make_model(other, named, (form,), tmp_path / "two")
    a, b = np.empty((2, 60, 12))
    a[by_dense_id(graphs[3], drawn)] = run_layers(graphs[3], one, "R")
    b[by_dense_id(other, named)] = run_layers(other, two, "G")
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert (by_dense_id(graphs[3], drawn) != by_dense_id(other, named)).any()


def test_weights_may_be_scaled(graphs, drawn, tmp_path) -> None:
    """L1-normalised: all weights times 4 are the same importance."""
    four = oracle.Drawn(drawn.ids, [(s, d, 4 * w) for s, d, w in drawn.edges])
    edges, nodes = four.write(tmp_path / "four")
    source = GraphSource(edges=edges, weighted=True, nodes={"node": nodes})
    other = build_graph(Context(), source, "f", tmp_path / "laid", 3)
    form = LayerForm("convolve", "importance", 12, 9)
    one, _ = make_model(graphs[3], drawn, (form,), tmp_path / "one")
    two, _ = make_model(other, four, (form,), tmp_path / "two")
    np.testing.assert_array_equal(run_layers(graphs[3], one, "R"), run_layers(other, two, "R"))


# ----------------------------------------------------------------------------- bipartite


@pytest.fixture(scope="module")
def boards(tmp_path_factory) -> tuple[oracle.Drawn, dict[int, Graph]]:
    drawn, folder = oracle.bipartite(), tmp_path_factory.mktemp("boards")
    edges, _ = drawn.write(folder)
    for side, ids in (("board", drawn.ids[:20]), ("pin", drawn.ids[20:])):
        pq.write_table(pa.table({"id": ids}), folder / f"{side}.parquet")
    nodes = {side: str(folder / f"{side}.parquet") for side in ("board", "pin")}
    source = GraphSource(edges=edges, weighted=True, sides=("board", "pin"), nodes=nodes)
    return drawn, {cut: build_graph(Context(), source, "b", folder / str(cut), cut) for cut in CUTS}


def test_pins_over_boards_over_pins(boards, tmp_path) -> None:
    drawn, graphs = boards
    form = LayerForm("convolve", "importance", 12, 9)
    result = set()
    for cut, graph in graphs.items():
        for plan in ("R", "G"):
            model, weights = make_model(graph, drawn, (form,), tmp_path / f"{cut}{plan}", mode="bipartite")
            last = run_layers(graph, model, plan)
            pins = map_whole(f"{model.folder}/layer-1")
            few = np.arange(graph.nodes)
            again = embed_nodes(graph, model, few)
            cut_at = graph.side_range(1)[0]
            np.testing.assert_array_equal(again[:cut_at], last[:cut_at])
            np.testing.assert_array_equal(again[cut_at:], pins[cut_at:])
            result.add((last[:cut_at].tobytes(), pins[cut_at:].tobytes()))
    assert len(result) == 1
    graph = graphs[1]
    steps = two_steps(drawn)
    own = {name.split(".", 2)[2]: w for name, w in weights.items()}
    want = oracle.layer(form, own, drawn, vectors(50).astype(float), lambda z: steps @ z)
    place = by_dense_id(graph, drawn)
    np.testing.assert_allclose(pins[graph.side_range(1)[0] :], want[place][20:], atol=1e-6)


def two_steps(drawn: oracle.Drawn) -> np.ndarray:
    """(n, n) chance to come from a pin to another by one of its boards, by weight."""
    weights = drawn.matrix(weighted=True) + drawn.matrix(weighted=True).T
    sums = weights.sum(axis=1, keepdims=True)
    chances = weights / np.where(sums == 0, 1, sums)
    return chances @ chances


def test_projected_over_whole_neighbourhoods_is_bipartite(boards, tmp_path) -> None:
    """Sections 3.2 and 3.4 of the paper agree where neighbours' weights are the two-step probabilities."""
    drawn, graphs = boards
    steps = two_steps(drawn)
    lists = {"node": [], "neighbours": [], "weights": []}
    for v in range(20, 50):
        there = np.flatnonzero(steps[v])
        lists["node"].append(drawn.ids[v])
        lists["neighbours"].append([drawn.ids[u] for u in there])
        lists["weights"].append([float(steps[v, u]) for u in there])
    (tmp_path / "n").mkdir()
    pq.write_table(pa.table(lists), tmp_path / "n" / "lists.parquet", row_group_size=7)
    path = str(tmp_path / "n" / "lists.parquet")
    source = GraphSource(edges=path, lists=True, weighted=True, nodes={"node": path}, node_column="node")
    pins = oracle.Drawn(drawn.ids, drawn.edges)
    graph = build_graph(Context(), source, "p", tmp_path / "laid", 3)
    assert graph.nodes == 30
    assert count_edges(source) == sum(max(len(there), 1) for there in lists["neighbours"])
    form = LayerForm("convolve", "importance", 12, 9)
    one, _ = make_model(graph, pins, (form,), tmp_path / "one")
    two, _ = make_model(graphs[3], drawn, (form,), tmp_path / "two", mode="bipartite")
    a, b = np.zeros((2, 50, 12))
    a[by_dense_id(graph, pins)] = run_layers(graph, one, "R")
    run_layers(graphs[3], two, "R")
    b[by_dense_id(graphs[3], drawn)] = map_whole(f"{two.folder}/layer-1")
    np.testing.assert_allclose(a[20:], b[20:], atol=1e-6)


# ----------------------------------------------------------------------------- features


def test_features_by_hash_degree_and_constant(graphs, drawn, tmp_path) -> None:
    result = {}
    for cut, graph in graphs.items():
        for kind, dims in (("hashed", 5), ("degrees", 1), ("constant", 1)):
            place = str(tmp_path / f"{kind}{cut}")
            features.fill_generated(Context(), graph, kind, dims, 3, place=place, dtype=np.float32)
            result[kind, cut] = map_whole(place)
    for kind in ("hashed", "degrees", "constant"):
        assert len({result[kind, cut].tobytes() for cut in CUTS}) == 1
    degrees = drawn.matrix().sum(axis=1)[by_dense_id(graphs[1], drawn)]
    np.testing.assert_array_equal(result["degrees", 1][:, 0], degrees)
    hashed = result["hashed", 1]
    assert np.unique(hashed).size == hashed.size and -1 <= hashed.min() < -0.9 and 0.9 < hashed.max() < 1
