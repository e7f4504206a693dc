"""Tables of vectors become a matrix by dense id: by hand, in any order and any pieces of the table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import DataError
from recbench_spark.graphs import build, features
from recbench_spark.graphs.build import NodeFinder, build_graph, read_ids
from recbench_spark.graphs.folders import MANIFEST, Graph, read_graph
from recbench_spark.graphs.kernels.ids import hash_node_ids
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.storage.block_arrays import has_parts, map_whole
from tests.graphs.local import Context

SC: Any = Context()
PAIRS = [("u1", "a"), ("u2", "b"), ("u2", "c"), ("u3", "d"), ("u4", "e"), ("u1", "f"), ("u2", "g")]
ITEMS = sorted({item for _, item in PAIRS})
VECTORS = {item: [float(n), float(-n), n / 2] for n, item in enumerate(ITEMS, 1)}


@pytest.fixture(scope="module", params=[1, 3, 11])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("graph")
    ends = {"src": [u for u, _ in PAIRS], "dst": [i for _, i in PAIRS]}
    pq.write_table(pa.table(ends), folder / "e.parquet")
    source = GraphSource(edges=str(folder / "e.parquet"), sides=("user", "item"))
    return build_graph(SC, source, "g", folder / "graph", request.param)


def fill(graph: Graph, folder: Path, rows: list[tuple[str, list[float]]], missing: str = "error") -> Any:
    """Fill the matrix from a table of three rows a piece; return it with the counts."""
    table = pa.table({"id": [name for name, _ in rows], "vector": [vector for _, vector in rows]})
    pq.write_table(table, folder / "h.parquet", row_group_size=3)
    source = features.open_features(str(folder / "h.parquet"), "id", "text")
    place = str(folder / "h")
    work = features.TableWork(graph, source, 1, 3, place, np.dtype("float16"))
    counts = features.read_table(SC, work, missing)
    return map_whole(place), counts


def by_name(graph: Graph, matrix: np.ndarray) -> dict[str, list[float]]:
    names = [name for block in graph.blocks for name in read_ids(graph, block).to_pylist()]
    return dict(zip(names, matrix.astype(float).tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_vectors_reach_their_nodes_in_any_order(graph: Graph, tmp_path: Path, seed: int) -> None:
    rows = [*VECTORS.items(), ("nobody", [9.0, 9.0, 9.0]), ("u1", [8.0, 8.0, 8.0])]
    random.Random(seed).shuffle(rows)
    matrix, counts = fill(graph, tmp_path, rows)
    users = {user: [0.0, 0.0, 0.0] for user, _ in PAIRS}
    assert by_name(graph, matrix) == {**VECTORS, **users}
    assert counts == {"features_of_no_node": 2, "nodes_without_features": 0}


def test_nodes_without_vectors_are_named_or_get_zeros(graph: Graph, tmp_path: Path) -> None:
    rows = [(name, vector) for name, vector in VECTORS.items() if name not in ("b", "f")]
    with pytest.raises(DataError, match=r"2 of 7 nodes of side item have none: [bf], [bf]\n"):
        fill(graph, tmp_path, rows)
    assert not has_parts(str(tmp_path / "h"))
    matrix, counts = fill(graph, tmp_path, rows, "zero")
    vectors = by_name(graph, matrix)
    assert vectors["b"] == vectors["f"] == [0, 0, 0] and vectors["a"] == VECTORS["a"]
    assert counts == {"features_of_no_node": 0, "nodes_without_features": 2}


@pytest.mark.parametrize("place", [1, 7], ids=["in one piece", "in two pieces"])
def test_an_id_with_two_vectors_is_named(graph: Graph, tmp_path: Path, place: int) -> None:
    rows = list(VECTORS.items())
    rows.insert(place, ("a", [0.0, 0.0, 0.0]))
    with pytest.raises(DataError, match=r"1 ids occur more than once, e\.g\. a\n"):
        fill(graph, tmp_path, rows)


def test_ids_of_another_side_are_quoted(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of 1 ids is one of side item: u1 \.\.\. against"):
        fill(graph, tmp_path, [("u1", [1.0, 2.0, 3.0])])


def test_a_graph_of_an_older_layout_is_built_again(graph: Graph, tmp_path: Path) -> None:
    manifest = json.loads(Path(graph.folder, MANIFEST).read_text(encoding="utf-8"))
    assert read_graph(graph.folder) == graph
    for older in ({k: v for k, v in manifest.items() if k != "layout"}, {**manifest, "layout": 2}):
        (tmp_path / MANIFEST).write_text(json.dumps(older), encoding="utf-8")
        assert read_graph(str(tmp_path)) is None


def test_large_tables_are_sent_in_small_pieces(graph: Graph, tmp_path: Path, monkeypatch) -> None:
    pq.write_table(
        pa.table({"id": list(VECTORS), "vector": list(VECTORS.values())}), tmp_path / "h.parquet"
    )
    rows = features.open_features(str(tmp_path / "h.parquet"), "id", "text")
    monkeypatch.setattr(features, "PIECE_BYTES", 2 * 3 * 2)  # two vectors of three numbers
    work = features.TableWork(graph, rows, 1, 3, "unused", np.dtype("float16"))
    sent = list(features._send_rows(iter([0]), work, readers=1))
    sizes = [len(vectors) for _, (places, vectors) in sent if places]
    assert sum(sizes) == len(VECTORS) * 3 * 2 and max(sizes) <= 12
    assert by_name(graph, fill(graph, tmp_path, list(VECTORS.items()))[0])["c"] == VECTORS["c"]


def test_names_are_found_without_the_numbers_that_a_build_removes(graph: Graph, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(build.block_arrays, "has_parts", opened.append)
    items = NodeFinder(graph)(hash_node_ids(pa.array(ITEMS), graph.seed), 1)
    assert len(set(items.tolist())) == len(ITEMS) and opened == []


FAULTS = {
    "missing": ([("a", [1.0, 2.0, 3.0])], "6 of 7 nodes of side item have none: [b-g], "),
    "repeated": ([*VECTORS.items(), ("a", [1.0, 2.0, 3.0])], "1 ids occur more than once, e.g. a"),
    "others": ([("u1", [1.0, 2.0, 3.0])], "none of 1 ids is one of side item: u1 "),
    "long": ([*VECTORS.items(), ("x", [1.0])], "vectors are not as long as the first"),
    "nan": ([*VECTORS.items(), ("x", [1.0, 2.0, float("nan")])], "vectors hold NULL, NaN or infinite"),
}


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_features_are_checked_before_edges_are_stored(fault: str, blocks: int, tmp_path: Path) -> None:
    rows, message = FAULTS[fault]
    table = pa.table({"id": [name for name, _ in rows], "vector": [vector for _, vector in rows]})
    pq.write_table(table, tmp_path / "h.parquet", row_group_size=3)
    ends = {"src": [u for u, _ in PAIRS], "dst": [i for _, i in PAIRS]}
    pq.write_table(pa.table(ends), tmp_path / "e.parquet")
    source = GraphSource(edges=str(tmp_path / "e.parquet"), sides=("user", "item"))
    opened = features.open_features(str(tmp_path / "h.parquet"), "id", "text")

    def check(graph: Graph) -> None:
        features.read_table(SC, features.TableWork(graph, opened, 1, 3), "error")

    folder = tmp_path / "graph"
    with pytest.raises(DataError, match=message):
        build_graph(SC, source, "g", folder, blocks, check=check)
    assert read_graph(str(folder)) is None and not (folder / "src").exists()


def test_nodes_that_may_be_without_features_pass_the_check(graph: Graph, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "vector": [[1.0, 2.0, 3.0]]}), tmp_path / "h.parquet")
    opened = features.open_features(str(tmp_path / "h.parquet"), "id", "text")
    features.read_table(SC, features.TableWork(graph, opened, 1, 3), "zero")
