"""Graphs of more blocks than nodes: all plans, aggregators and modes give what one block gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.graphs import features
from recbench_spark.graphs.build import build_graph
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.forms import AGGREGATORS, LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.graphs.runner import Model, run_model
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage.block_arrays import map_whole
from tests.graphs.local import Context, warehouse
from tests.graphs.test_incremental import results
from tests.graphs.test_nights import run as run_embed

DIMS, SC = 5, Context()
CUTS = (1, 10)
"""Blocks a side; sides have 2 to 9 nodes."""

PAIRS = [(1, 1), (1, 3), (2, 3), (2, 7), (2, 9), (2, 3)]
CONVOLVED = ("sum", "mean", "importance", "max")


@dataclass(frozen=True)
class Case:
    """A model over a small graph: sides of the graph, mode, form and aggregator of its layers, wire."""

    sides: tuple[str, ...]
    mode: str
    form: str
    aggregator: str
    wire: str = "float32"

    def __str__(self) -> str:
        return "-".join(map(str, (len(self.sides), self.mode, self.form, self.aggregator, self.wire)))

    def plans(self) -> tuple[str, ...]:
        return ("R", "G") if self.aggregator == "lstm" else ("R", "G", "S")


ONE, TWO = ("node",), ("board", "pin")
CASES = [
    *(Case(sides, "projected", "sage", kind) for sides in (ONE, TWO) for kind in AGGREGATORS),
    *(Case(sides, "projected", "convolve", kind) for sides in (ONE, TWO) for kind in CONVOLVED),
    *(Case(TWO, "bipartite", form, kind) for form in ("sage", "convolve") for kind in CONVOLVED),
    *(Case(TWO, "projected", "sage", kind, "float16") for kind in ("importance", "lstm")),
]


QUICK = {
    "1-projected-sage-lstm-float32",
    "2-projected-sage-importance-float32",
    "2-bipartite-sage-mean-float32",
    "2-projected-convolve-max-float32",
}
"""Cases of `make test`."""


def small_graph(folder: Path, sides: tuple[str, ...], blocks: int) -> Graph:
    """A graph of a few nodes, one of which has no edge."""
    folder.mkdir(parents=True)
    columns = {"src": [s for s, _ in PAIRS], "dst": [d for _, d in PAIRS], "weight": [0.5, 1, 2, 0, 3, 1]}
    pq.write_table(pa.table(columns), folder / "e.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3, 7, 9, 11]}), folder / "n.parquet")
    nodes = {sides[-1]: str(folder / "n.parquet")}
    source = GraphSource(edges=str(folder / "e.parquet"), weighted=True, sides=sides, nodes=nodes)
    return build_graph(SC, source, "g", folder / "graph", blocks)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[tuple[str, ...], int], Graph]:
    root = tmp_path_factory.mktemp("small")
    return {
        (sides, cut): small_graph(root / f"{len(sides)}-{cut}", sides, cut)
        for sides in (ONE, TWO)
        for cut in CUTS
    }


def small_model(case: Case, graph: Graph, place: Path, name: str) -> Model:
    """Two layers with weights by hash, over vectors by hash."""
    forms = tuple(LayerForm(case.form, case.aggregator, width, 6) for width in (6, 4))  # type: ignore[arg-type]
    h = str(place / f"{name}-h")
    features.fill_generated(SC, graph, "hashed", DIMS, 1, place=h, dtype=case.wire)  # type: ignore[arg-type]
    layers, ends = make_layers(forms, (), random_weights(model_weight_shapes(forms, (), DIMS), 1), DIMS, 1)
    tables = str(place / "graph_vectors"), str(place / "embeddings")
    return Model(name, layers, ends, case.mode, case.wire, h, str(place / name), *tables, 7, 100)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if str(case) in QUICK else pytest.mark.full) for case in CASES],
    ids=str,
)
def test_blocks_without_nodes_change_no_bit(case, graphs, tmp_path) -> None:
    place, result = warehouse(tmp_path), {}
    for cut in CUTS:
        graph = graphs[case.sides, cut]
        assert cut == 1 or any(not block.rows for block in graph.blocks)
        for plan in case.plans():
            model = small_model(case, graph, place, f"{plan}{cut}")
            run_model(SC, graph, model, lambda _, plan=plan: plan)  # type: ignore[arg-type]
            result[plan, cut] = results(model, graph)
    wanted = result.pop(("R", 1))
    assert wanted
    for (plan, _), rows in result.items():
        assert rows.keys() == wanted.keys()
        if plan != "S":
            assert rows == wanted
    for key in (key for key in result if key[0] == "S"):
        for name, vector in wanted.items():
            pair = (np.frombuffer(result[key][name], np.float32), np.frombuffer(vector, np.float32))
            np.testing.assert_allclose(*pair, atol=2e-3 if case.wire == "float16" else 1e-6)


@pytest.mark.parametrize("sides", [ONE, TWO], ids=len)
def test_some_nodes_of_a_graph_of_mostly_empty_blocks(sides, graphs, tmp_path) -> None:
    case = Case(sides, "projected", "sage", "gcn")
    several, one = graphs[sides, CUTS[1]], graphs[sides, 1]
    vectors = []
    for graph, name in ((several, "several"), (one, "one")):
        model = small_model(case, graph, tmp_path, name)
        vectors.append(embed_nodes(graph, model, np.arange(0, graph.nodes, 2)).tobytes())
        assert map_whole(model.features).shape == (graph.nodes, DIMS)
    assert vectors[0] == vectors[1]


@pytest.mark.slow
def test_spark_runs_every_plan_over_a_side_smaller_than_its_blocks(spark, tmp_path) -> None:
    folder, result = tmp_path / "g", {}
    small_graph(folder, TWO, 1)
    source = ("--edges", str(folder / "e.parquet"), "--weighted", "--sides", "board,pin")
    layers = ("--aggregator", "gcn", "--widths", "4", "--seed", "3")
    for plan in ("R", "G", "S"):
        place = tmp_path / plan
        flags = (*source, *layers, "--plan", plan, "--blocks", "12", "--warehouse", str(place))
        assert run_embed(*flags) == 0
        rows = DeltaTable(place / "embeddings").to_pandas()
        result[plan] = {(row.side, row.id): np.array(row.vector) for row in rows.itertuples()}
    assert len(result["R"]) == 6
    for plan in ("G", "S"):
        assert result[plan].keys() == result["R"].keys()
        for name, vector in result["R"].items():
            np.testing.assert_allclose(result[plan][name], vector, atol=1e-6)
