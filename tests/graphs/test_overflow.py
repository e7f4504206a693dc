"""Numbers that leave float32 on their way end a run in words, under every plan, for every table. No JVM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable

from recbench_spark.errors import DataError
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels import dense
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.graphs.runner import Model, run_model
from tests.graphs.local import Context, warehouse, write_matrix
from tests.graphs.test_empty_blocks import ONE, TWO, small_graph

DIMS, SC = 5, Context()
OUTPUTS = ("embeddings", "vectors")


@pytest.fixture(scope="module", params=[ONE, TWO], ids=len)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("small") / "g", request.param, 2)


def large_model(graph: Graph, place: Path, forms: tuple[LayerForm, ...], size: float) -> Model:
    """A model over features of one size and both signs."""
    signs = np.where(np.random.default_rng(2).random((graph.nodes, DIMS)) < 0.5, -1, 1)
    h = write_matrix(place / "h", graph, (size * signs).astype(np.float32))
    layers, ends = make_layers(forms, (), random_weights(model_weight_shapes(forms, (), DIMS), 1), DIMS, 1)
    tables = str(place / "graph_vectors"), str(place / "embeddings")
    twice = len(graph.sides) == 2 and forms[0].aggregator != "gcn"
    mode = "bipartite" if twice else "projected"
    return Model("m", layers, ends, mode, "float32", h, str(place / "m"), *tables)


FORMS = {
    "narrow": LayerForm("sage", "sum", 3, 3),
    "wide": LayerForm("sage", "sum", 8, 8),
    "plain": LayerForm("sage", "sum", 8, 8, relu=False, normalise=False),
    "convolved": LayerForm("convolve", "sum", 8, 8),
    "with itself": LayerForm("sage", "gcn", 8, 8),
}


@pytest.mark.parametrize("plan", ["R", "G", "S"])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", FORMS)
def test_sums_beyond_float32_are_reported_and_nothing_is_committed(
    graph, tmp_path, plan, output, name
) -> None:
    place = warehouse(tmp_path)
    model = large_model(graph, place, (FORMS[name],), 3e38)
    model = model if output == "embeddings" else replace(model, embeddings=None)
    with pytest.raises(DataError, match=r"layer 1.* not finite"):
        run_model(SC, graph, model, lambda _: plan)  # type: ignore[arg-type, return-value]
    assert [DeltaTable(place / table).to_pyarrow_table().num_rows for table in ("embeddings",)] == [0]
    with pytest.raises(DataError, match=r"layer 1.* not finite"):
        embed_nodes(graph, model, np.arange(graph.nodes))


def test_a_pool_is_reported_too(tmp_path) -> None:
    """The last pass of mode bipartite pools what the layers made: vectors that fit, whose sum does not."""
    graph, place = small_graph(tmp_path / "g", TWO, 2), warehouse(tmp_path)
    form = LayerForm("sage", "sum", 8, 8, relu=False, normalise=False)
    model = large_model(graph, place, (form,), 1.0)
    huge = replace(model.layers[0], bias=np.full(8, 2e38, np.float32))
    for plan in ("R", "G", "S"):
        with pytest.raises(DataError, match=r"layer 2.* not finite"):
            run_model(SC, graph, replace(model, model_id=plan, layers=(huge,)), lambda _, plan=plan: plan)
    rows = DeltaTable(place / "embeddings").to_pandas()
    assert set(rows["side"]) == {"pin"} and np.isfinite(np.vstack(rows["vector"])).all()


def test_a_vector_whose_length_is_beyond_float32_gets_length_one() -> None:
    x = np.array([[3e38, -3e38, 3e38], [3, 4, 0]], np.float32)
    result = dense.normalise(x.copy())
    np.testing.assert_allclose(result[0], np.array([1, -1, 1]) / np.sqrt(3), rtol=1e-6)
    assert result[1].tolist() == [float(np.float32(0.6)), float(np.float32(0.8)), 0]
