"""The probe before a run: seconds of reading, of edges that are there, at its own expense alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import DataError
from recbench_spark.graphs import machine_speed
from recbench_spark.graphs.build import build_graph
from recbench_spark.graphs.features import fill_generated
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels import costs
from recbench_spark.graphs.settings import GraphSource
from tests.graphs.local import Context


def build_small_graph(
    folder: Path, edges: int, nodes: int, loops: str = "keep", nodes_of: Any = None
) -> tuple[Graph, str]:
    rng = np.random.default_rng(1)
    ends = rng.integers(nodes, size=(2, edges)) if nodes > 1 else np.zeros((2, edges), np.int64)
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), folder / "edges.parquet")
    source = GraphSource(edges=str(folder / "edges.parquet"), self_loops=loops, nodes=nodes_of or {})
    graph, h = build_graph(Context(), source, "g", folder / "g", 3), str(folder / "h")
    fill_generated(Context(), graph, "hashed", 8, 1, place=h, dtype="float16")
    return graph, h


def test_a_pace_is_found_and_files_stay_as_they_are(tmp_path) -> None:
    graph, features = build_small_graph(tmp_path, 5000, 3000)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.npy")}
    assert 1e-13 < machine_speed.measure_read_throughput(Context(), graph, features) < 1e-3
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.npy")}


def test_windows_of_all_tasks_hold_every_edge_once_and_no_more_than_requested(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(machine_speed, "WINDOW_ROWS", 7)
    graph, features = build_small_graph(tmp_path, 500, 100)
    parts = [part for number in range(2) for part in machine_speed._make_windows(graph, number, 2)]
    assert sum(part.edges for part in parts) == graph.edges
    assert all(0 < len(part.indptr) - 1 <= 7 for part in parts)
    monkeypatch.setattr(machine_speed, "PROBE_EDGES", 1)
    taken = []
    monkeypatch.setattr(machine_speed, "pooled_part", lambda kind, part, z: taken.append(part))
    machine_speed._probe_task(0, graph, features, 2)
    assert len(taken) == 2, "one that loads the kernel, one that is timed"


def test_a_graph_without_edges_has_the_pace_that_is_built_in(tmp_path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "nodes.parquet")
    graph, features = build_small_graph(
        tmp_path, 3, 1, loops="drop", nodes_of={"node": str(tmp_path / "nodes.parquet")}
    )
    assert (
        graph.nodes == 2
        and machine_speed.measure_read_throughput(Context(), graph, features) == costs.DEFAULT_READ_SECONDS
    )


def test_nothing_but_loops_that_are_left_out_is_no_graph(tmp_path) -> None:
    with pytest.raises(DataError, match="all edges are self loops"):
        build_small_graph(tmp_path, 3, 1, loops="drop")
