"""Two nights of a bipartite graph without a JVM: both modes, both tables, to the bits of a full run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.graphs import features
from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.incremental import (
    GraphNight,
    LayerFiles,
    has_all_vectors,
    list_reused_files,
    mark_changes,
    restore_vectors,
)
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.kernels.layers import make_layers, model_weight_shapes, random_weights
from recbench_spark.graphs.runner import Model, plan_passes, run_model
from recbench_spark.graphs.settings import GraphSource
from tests.graphs.local import Context, warehouse

DIMS, SC = 5, Context()
FORMS = (LayerForm("convolve", "importance", 6, 6), LayerForm("convolve", "importance", 4, 4))
PAIRS = [(b, p) for b in range(40) for p in (b, b + 1)]
DRAWN = np.random.default_rng(3).standard_normal((60, DIMS)).astype(np.float32)
H = {p: DRAWN[p] for p in range(41)}
# A pin with other features, a new pin on a new board, a pin more on an old one, one that nobody likes.
LATER = [*PAIRS, (45, 50), (45, 5), (20, 30)]
H_LATER = {**H, 0: H[0] + 1, 50: DRAWN[50], 51: DRAWN[51]}


def build_small_graph(folder: Path, pairs: list[tuple[int, int]], h: dict[int, Any], blocks: int) -> Graph:
    folder.mkdir()
    pq.write_table(
        pa.table({"src": [b for b, _ in pairs], "dst": [p for _, p in pairs]}), folder / "e.parquet"
    )
    pq.write_table(pa.table({"id": list(h), "vector": list(h.values())}), folder / "h.parquet")
    edges, pins = str(folder / "e.parquet"), {"pin": str(folder / "h.parquet")}
    source = GraphSource(edges=edges, sides=("board", "pin"), nodes=pins)
    return build_graph(SC, source, folder.name, folder / "graph", blocks)  # type: ignore[arg-type]


def model(graph: Graph, place: Path, mode: str, wire: str, output: str) -> Model:
    folder = Path(graph.folder).parent
    h, rows = str(folder / wire), features.open_features(str(folder / "h.parquet"), "id", "numeric")
    features.read_table(SC, features.TableWork(graph, rows, 1, DIMS, h, np.dtype(wire)), "error")
    layers, ends = make_layers(FORMS, (), random_weights(model_weight_shapes(FORMS, (), DIMS), 1), DIMS, 1)
    name, embeddings = folder.name, str(place / "embeddings") if output == "embeddings" else None
    files, table = str(place / "models" / name), str(place / "graph_vectors")
    return Model(name, layers, ends, mode, wire, h, files, table, embeddings, 7)


def places(made: Model, mode: str) -> tuple[LayerFiles, ...]:
    result = []
    for k in range(1, 4 if mode == "bipartite" else 3):
        sides = (0, 1) if mode != "bipartite" else (0,) if k > 2 else (1,)
        if k >= 2 and made.embeddings:
            result.append(LayerFiles(made.embeddings, {"model_id": made.model_id}, sides, True))
        else:
            result.append(
                LayerFiles(made.vectors, {"model_id": made.model_id, "layer": str(k)}, sides, False)
            )
    return tuple(result)


def results(made: Model, graph: Graph) -> dict[Any, bytes]:
    """Bits of each node's vector after the last layer, by side and id."""
    partition = [("model_id", "=", made.model_id)]
    if made.embeddings:
        rows = DeltaTable(made.embeddings).to_pandas(partitions=partition)
        vectors = (np.array(v, np.float32).tobytes() for v in rows["vector"])
        return dict(zip(zip(rows["side"], rows["id"], strict=True), vectors, strict=True))
    names = [(block.side, i) for block in graph.blocks for i in read_ids(graph, block).to_pylist()]
    rows, result = DeltaTable(made.vectors).to_pandas(partitions=partition), {}
    for row in rows[rows["layer"] >= 2].itertuples():
        packed = np.frombuffer(row.vectors, row.dtype).reshape(row.nodes, row.dims)
        result |= {names[row.first + k]: vector.tobytes() for k, vector in enumerate(packed)}
    return result


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph, Graph]:
    root = tmp_path_factory.mktemp("graphs")
    first = build_small_graph(root / "first", PAIRS, H, 3)
    return (
        first,
        build_small_graph(root / "again", LATER, H_LATER, 4),
        build_small_graph(root / "full", LATER, H_LATER, 2),
    )


def by_hand() -> list[int]:
    """Nodes that each pass computes: boards that touched pins read, pins whose boards or vector moved."""
    likes: dict[int, set[int]] = {}
    for b, p in LATER:
        likes.setdefault(b, set()).add(p)
    touched, result = {0, 50, 51}, []
    for _ in range(2):
        boards = {b for b, pins in likes.items() if pins & touched} | {20, 45}
        touched = {p for p in H_LATER if any(p in likes[b] for b in boards)} | touched | {5, 30}
        result += [sum(1 for pins in likes.values() if pins & touched), len(touched)]
    return [*result, len({b for b, pins in likes.items() if pins & touched} | {20, 45})]


@pytest.mark.parametrize("mode", ["bipartite", "projected"])
@pytest.mark.parametrize("wire", ["float16", "float32"])
@pytest.mark.parametrize("output", ["embeddings", "vectors"])
def test_what_is_touched_is_computed_to_the_bits_of_a_full_run(
    graphs, tmp_path, mode, wire, output
) -> None:
    first, again, full = graphs
    place = warehouse(tmp_path)
    one, two, whole = (model(graph, place, mode, wire, output) for graph in graphs)
    run_model(SC, first, one, lambda _: "R")
    run_model(SC, full, whole, lambda _: "G")
    before = GraphNight(first, one.features, places(one, mode))
    assert has_all_vectors(before)
    folder, steps = two.folder, plan_passes(two, again)
    mark_changes(SC, again, steps, before, folder)
    for k, result in enumerate(before.places, 1):
        restore_vectors(SC, before, [result], f"{folder}/before-{k}", "float32" if result.by_side else wire)
    kept = {(step.layer, step.kind): list_reused_files(folder, p, step) for p, step in enumerate(steps, 1)}
    done = run_model(SC, again, replace(two, reused=kept), lambda _: "R")
    computed = [one.nodes for one in done]
    assert computed == by_hand() if mode == "bipartite" else max(computed) < 20
    assert len(wanted := results(whole, full)) == 43 + 41
    assert results(two, again) == wanted


@pytest.mark.parametrize("mode", ["bipartite", "projected"])
def test_a_night_over_blocks_without_nodes_is_a_full_run(graphs, tmp_path, mode) -> None:
    """18 blocks a side of about forty nodes, on both nights."""
    place, full = warehouse(tmp_path), graphs[2]
    first, again = (
        build_small_graph(tmp_path / "1", PAIRS, H, 18),
        build_small_graph(tmp_path / "2", LATER, H_LATER, 18),
    )
    assert min(block.rows for block in first.blocks) == 0 == min(block.rows for block in again.blocks)
    one, two, whole = (
        replace(model(graph, place, mode, "float32", "embeddings"), group=1000)
        for graph in (first, again, full)
    )
    run_model(SC, first, one, lambda _: "R")
    run_model(SC, full, whole, lambda _: "R")
    before, folder = GraphNight(first, one.features, places(one, mode)), two.folder
    steps = plan_passes(two, again)
    mark_changes(SC, again, steps, before, folder)
    for k, result in enumerate(before.places, 1):
        restore_vectors(SC, before, [result], f"{folder}/before-{k}", "float32")
    kept = {(step.layer, step.kind): list_reused_files(folder, p, step) for p, step in enumerate(steps, 1)}
    done = run_model(SC, again, replace(two, reused=kept), lambda _: "R")
    assert sum(one.nodes for one in done) > 0
    assert results(two, again) == results(whole, full)
