"""Graphs as they are laid out: dense ids, degrees, edges, checks; whatever form the edges lie in."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from networkx import Graph as Plain
from networkx import weisfeiler_lehman_subgraph_hashes

from recbench_spark.errors import DataError, MissingError, SchemaError
from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.edges import open_rows
from recbench_spark.graphs.folders import Graph, read_graph
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.settings import GraphSource
from tests.graphs import oracle
from tests.graphs.local import Context


def count_edges(graph: Graph) -> Counter:
    """(source id, destination id, weight) of every stored edge."""
    names = [(b.side, i) for b in graph.blocks for i in read_ids(graph, b).to_pylist()]
    result: Counter = Counter()
    for block in graph.blocks:
        csr = graph.csr(block)
        for r in range(block.rows):
            sources = csr.src[csr.indptr[r] : csr.indptr[r + 1]]
            assert (np.diff(sources.astype(np.int64)) >= 0).all()
            for e, s in enumerate(sources, csr.indptr[r]):
                weight = 1.0 if csr.weight is None else float(csr.weight[e])
                result[names[s][1], names[block.first + r][1], weight] += 1
    return result


def count_expected(drawn: oracle.Drawn, weighted: bool = True) -> Counter:
    return Counter((drawn.ids[s], drawn.ids[d], w if weighted else 1.0) for s, d, w in drawn.edges)


@pytest.fixture(scope="module")
def lay(tmp_path_factory):
    """Lay a source out in a new folder, in 3 blocks unless told otherwise."""

    def build(blocks: int = 3, **source: object) -> Graph:
        folder = tmp_path_factory.mktemp("laid") / "g"
        return build_graph(Context(), GraphSource(**source), "g", folder, blocks)

    return build


@pytest.mark.parametrize("text", [False, True])
def test_every_edge_and_node_once_in_the_order_of_hashes(lay, tmp_path, text) -> None:
    drawn = oracle.multigraph(text=text)
    edges, nodes = drawn.write(tmp_path)
    orders = set()
    for blocks in (1, 3, 17):
        graph = lay(blocks, edges=edges, weighted=True, nodes={"node": nodes})
        assert count_edges(graph) == count_expected(drawn)
        names = [i for b in graph.blocks for i in read_ids(graph, b).to_pylist()]
        assert sorted(names) == sorted(drawn.ids)
        assert (np.diff(graph.hashes().astype(object)) > 0).all()
        orders.add(tuple(names))
        degrees = np.concatenate([np.diff(graph.csr(b).indptr) for b in graph.blocks])
        assert degrees.tolist() == [sum(drawn.ids[d] == i for _, d, _ in drawn.edges) for i in names]
        assert read_graph(graph.folder) == graph
    assert len(orders) == 1
    loops = sum(s == d for s, d, _ in drawn.edges)
    pairs = Counter((s, d) for s, d, _ in drawn.edges)
    assert graph.checks["self_loops"] == loops and graph.checks["isolated_nodes"] == 5
    assert graph.checks["duplicate_edges"] == sum(n - 1 for n in pairs.values())
    assert graph.checks["zero_weights"] == sum(w == 0 for _, _, w in drawn.edges)
    assert graph.checks["most_edges_of_a_node"] == max(degrees)


def test_both_ways_without_loops_and_doubles(lay, tmp_path) -> None:
    drawn = oracle.multigraph()
    edges, _ = drawn.write(tmp_path)
    assert count_edges(lay(edges=edges, directed=False)) == count_expected(
        drawn.both_ways(), weighted=False
    )
    plain = lay(edges=edges, directed=False, self_loops="drop", duplicates="drop")
    pairs = {(s, d) for s, d, _ in drawn.both_ways().edges if s != d}
    assert count_edges(plain) == Counter((drawn.ids[s], drawn.ids[d], 1.0) for s, d in pairs)


def test_csv_delta_and_lists_are_one_graph(lay, tmp_path) -> None:
    drawn = oracle.multigraph(hub=10)
    rows = [(drawn.ids[s], drawn.ids[d], w) for s, d, w in drawn.edges]
    (tmp_path / "plain.csv").write_text("".join(f"{s},{d},{w}\n" for s, d, w in rows))
    (tmp_path / "named.tsv").write_text("w\tto\tfrom\n" + "".join(f"{w}\t{d}\t{s}\n" for s, d, w in rows))
    columns = dict(zip(("src", "dst", "weight"), zip(*rows, strict=True), strict=True))
    write_deltalake(tmp_path / "delta", pa.table({name: list(values) for name, values in columns.items()}))
    by_node: dict = {}
    for s, d, w in rows:
        by_node.setdefault(d, ([], []))[0].append(s)
        by_node[d][1].append(w)
    lists = {"node": list(by_node), "neighbours": [n for n, _ in by_node.values()]}
    pq.write_table(
        pa.table({**lists, "weights": [w for _, w in by_node.values()]}), tmp_path / "lists.parquet"
    )
    theirs = {"src": "from", "dst": "to", "weight": "w"}
    sources = (
        {"edges": str(tmp_path / "plain.csv")},
        {"edges": str(tmp_path / "named.tsv"), "columns": theirs},
        {"edges": str(tmp_path / "delta")},
        {"edges": str(tmp_path / "lists.parquet"), "lists": True},
    )
    for source in sources:
        assert count_edges(lay(weighted=True, **source)) == count_expected(drawn), source


def test_a_graph_of_a_split_holds_training_rows_alone(lay, tmp_path) -> None:
    rows = {
        "split_id": ["a"] * 4 + ["b"],
        "user_id": ["1", "1", "2", "2", "3"],
        "item_id": ["x", "y", "x", "z", "x"],
        "part": ["train", "test", "train", "valid", "train"],
    }
    write_deltalake(tmp_path / "splits", pa.table(rows), partition_by=["split_id"])
    graph = lay(
        edges=str(tmp_path / "splits"), sides=("user", "item"), where={"part": "train"},
        columns={"src": "user_id", "dst": "item_id"}, partitions={"split_id": "a"},
    )  # fmt: skip
    both = [("1", "x"), ("2", "x"), ("x", "1"), ("x", "2")]
    assert count_edges(graph) == Counter((s, d, 1.0) for s, d in both)
    assert graph.sides == ("user", "item") and graph.side_range(1) == (2, 3)


def test_what_no_graph_is_made_of_is_refused_or_left_out(lay, tmp_path) -> None:
    rows = {
        "src": [1, None, 3, 4, 5],
        "dst": [2, 2, 2, 2, 2],
        "weight": [1.0, 1.0, float("nan"), -1.0, 0.0],
    }
    pq.write_table(pa.table(rows), tmp_path / "bad.parquet")
    path = str(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="1 of 5 edges with an id that is NULL"):
        lay(edges=path)
    graph = lay(edges=path, weighted=True, bad_rows="drop")
    assert count_edges(graph) == {(1, 2, 1.0): 1, (5, 2, 0.0): 1}
    counted = {name: graph.checks[name] for name in ("null_ids", "bad_weights", "negative_weights")}
    assert counted == {"null_ids": 1, "bad_weights": 1, "negative_weights": 1}
    pq.write_table(pa.table({"src": pa.array([None], pa.int64()), "dst": [1]}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no edges that can be used"):
        lay(edges=str(tmp_path / "none.parquet"), bad_rows="drop")


def test_lists_in_which_nobody_has_a_neighbour_are_refused_as_that(lay, tmp_path) -> None:
    nothing = pa.array([[], []], pa.list_(pa.int64()))
    pq.write_table(pa.table({"node": [1, 2], "neighbours": nothing}), tmp_path / "alone.parquet")
    with pytest.raises(DataError, match="none of the 2 nodes has a neighbour"):
        lay(edges=str(tmp_path / "alone.parquet"), lists=True)


def test_what_cannot_be_read_is_told(tmp_path) -> None:
    pq.write_table(pa.table({"source": [1], "dst": [0.5]}), tmp_path / "e.parquet")
    path = str(tmp_path / "e.parquet")
    with pytest.raises(SchemaError, match="no column src; it has source, dst"):
        open_rows(path, ["src", "dst"], "edges")
    rows = open_rows(path, ["source", "dst"], "edges", ids={"dst": "auto"})
    with pytest.raises(DataError, match=r"edges: column dst: 1 rows \(double\) are not a whole number"):
        rows.ids(next(rows.chunks(rows.pieces)), "dst")
    pq.write_table(pa.table({"src": [datetime(2026, 1, 1)]}), tmp_path / "d.parquet")
    with pytest.raises(SchemaError, match=r"column src is timestamp.*, which holds no ids"):
        open_rows(str(tmp_path / "d.parquet"), ["src"], "edges", ids={"src": "auto"})
    with pytest.raises(MissingError, match="no such file or folder"):
        open_rows(str(tmp_path / "nowhere"), ["src"], "edges")
    (tmp_path / "no.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"no\.parquet"):
        open_rows(str(tmp_path / "no.parquet"), ["src"], "edges")


def test_sums_of_hashes_tell_graphs_apart_as_the_weisfeiler_lehman_test_does(lay, tmp_path) -> None:
    """With identity weights and a hash as aggregator (Hamilton et al. 2017, section 3.2)."""
    from recbench_spark.graphs.kernels.aggregate import pool_neighbours

    drawn = oracle.multigraph(n=40, edges=70, hub=4)
    simple = oracle.Drawn(drawn.ids, [(s, d, 1.0) for s, d in {(s, d) for s, d, _ in drawn.edges} if s < d])
    edges, nodes = simple.write(tmp_path)
    graph = lay(edges=edges, nodes={"node": nodes}, directed=False)
    labels = np.ones(graph.nodes, np.int64)
    for _ in range(4):
        # Whole numbers below 2^17 of each label: sums of 40 are exact in float32.
        z = (hash_numbers(labels, 1) >> np.uint64(47)).astype(np.float32)[:, None]
        n = np.concatenate([pool_neighbours("sum", graph.csr(b), z) for b in graph.blocks if b.rows])[:, 0]
        labels = hash_numbers(labels * 1_000_003 + n.astype(np.int64), 2).view(np.int64)
    named = dict(
        zip([i for b in graph.blocks for i in read_ids(graph, b).to_pylist()], labels, strict=True)
    )
    other = Plain()
    other.add_nodes_from(simple.ids, label="any")
    other.add_edges_from((simple.ids[s], simple.ids[d]) for s, d, _ in simple.edges)
    theirs = weisfeiler_lehman_subgraph_hashes(other, iterations=4, digest_size=16, node_attr="label")
    ours = [named[i] for i in simple.ids]
    last = [theirs[i][-1] for i in simple.ids]
    same = {
        (a == b) == (c == d)
        for a, c in zip(ours, last, strict=True)
        for b, d in zip(ours, last, strict=True)
    }
    assert same == {True} and 1 < len(set(ours)) < 40
