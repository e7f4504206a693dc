"""`recbench embed --nearest`: lists of nearest nodes against a sort of all pairs, under any cut."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.retrieval import nearest_nodes
from tests.conftest import forbid_spark
from tests.graphs import oracle
from tests.jobs.test_embed import run

FAISS = pytest.mark.skipif(
    "not __import__('importlib').util.find_spec('faiss')", reason="faiss is not installed"
)
LAYERS = ("--features", "hashed:4", "--widths", "5")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--nearest-index", "ivf"), "lists of nearest nodes have no length"),
        (("--nearest-side", "node"), "lists of nearest nodes have no length"),
        (("--nearest", "5", "--nodes", "1"), "--nearest is for all nodes"),
        (("--nearest", "5", "--nearest-index", "annoy"), "annoy"),
        (
            ("--nearest", "5", "--nearest-index", "ivf:probes"),
            "probes: expected SETTING=VALUE",
        ),
        (("--nearest", "5", "--nearest-index", "ivf:probe=3"), "probe"),
        (("--nearest", "5", "--nearest-index", "lsh:bits=64"), "bits"),
        (("--nearest", "5", "--nearest-index", "lsh:bands=4,theta=5"), "theta 5 is more than 4 bands"),
        (("--nearest", "20000"), "count"),
        (("--nearest", "5", "--nearest-side", "item"), "no side item"),
    ],
)
def test_mistakes_are_refused_before_spark_starts(flags, message, monkeypatch, tmp_path, capsys) -> None:
    forbid_spark(monkeypatch)
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n")
    assert run("--edges", str(tmp_path / "e.csv"), "--warehouse", str(tmp_path / "w"), *flags) == 2
    assert message in capsys.readouterr().err


def test_an_index_without_its_library_is_refused_before_spark_starts(monkeypatch, tmp_path, capsys) -> None:
    forbid_spark(monkeypatch)
    monkeypatch.setitem(sys.modules, "faiss", None)
    importlib.import_module("recbench_spark.retrieval.faiss_indexes")._import_faiss.cache_clear()
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n")
    given = ("--edges", str(tmp_path / "e.csv"), "--warehouse", str(tmp_path / "w"), "--nearest", "3")
    assert run(*given) == 1
    assert "pip install 'faiss-cpu>=1.12'" in capsys.readouterr().err
    assert run(*given, "--nearest-index", "lsh", "--dry-run") == 0
    assert "nearest    3 of each node through lsh, cosine" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ lists


def read_lists(warehouse: Path) -> dict[str, dict[tuple[str, str], list[tuple[str, float]]]]:
    """Lists of (neighbour, score) by name of the lists, side and node."""
    lists: dict[str, dict[tuple[str, str], list[tuple[str, float]]]] = {}
    for row in DeltaTable(warehouse / "nearest_nodes").to_pyarrow_table().to_pylist():
        own = list(zip(row["neighbours"], row["scores"], strict=True))
        lists.setdefault(row["nearest_id"], {})[row["side"], row["node"]] = own
    return lists


def list_by_brute_force(warehouse: Path, count: int, kind: str) -> dict[Any, list[tuple[str, float]]]:
    """Sort all other nodes of the side by a sum in plain Python, number by number; ties by node_index."""
    nodes = DeltaTable(warehouse / "graph_nodes").to_pyarrow_table().to_pylist()
    place = {(row["side"], row["id"]): row["node_index"] for row in nodes}
    rows = DeltaTable(warehouse / "embeddings").to_pyarrow_table().to_pylist()
    vectors = {(row["side"], row["id"]): row["vector"] for row in rows}

    def measure(vector: list[float]) -> float:
        total = 0.0
        for x in vector:
            total += x * x
        return total**0.5 or 1.0

    lists = {}
    for (side, node), own in vectors.items():
        entries = []
        for (other_side, other), vector in vectors.items():
            if other_side == side and other != node:
                score = 0.0
                for x, y in zip(own, vector, strict=True):
                    score += x * y
                entries.append((-score / (measure(vector) if kind == "cosine" else 1.0), other))
        entries.sort(key=lambda entry: (entry[0], place[side, entry[1]]))
        divisor = measure(own) if kind == "cosine" else 1.0
        lists[side, node] = [(other, -score / divisor) for score, other in entries[:count]]
    return lists


@pytest.mark.full
@FAISS
@pytest.mark.parametrize("kind", ["cosine", "dot"])
@pytest.mark.parametrize("sides", [False, True], ids=["one side, text ids", "two sides"])
def test_exact_lists_are_those_of_a_sort_of_all_pairs_under_any_cut(
    tmp_path, monkeypatch, kind, sides
) -> None:
    """Isolated nodes have equal vectors, so there are ties; other blocks and pieces give the same rows."""
    drawn = oracle.bipartite() if sides else oracle.multigraph(text=True)
    edges, nodes = drawn.write(tmp_path)
    shape = ("--sides", "user,item") if sides else ("--node-table", nodes)
    flags = ("--edges", edges, *shape, "--features", "degrees", "--widths", "4", "--nearest", "7")
    made = []
    for cut, piece in ((1, 4096), (4, 5)):
        monkeypatch.setattr(nearest_nodes, "NODES_A_PIECE", piece)
        place = tmp_path / f"w{cut}"
        more = ("--nearest-similarity", kind, "--blocks", str(cut))
        assert run(*flags, *more, "--warehouse", str(place)) == 0
        ((name, lists),) = read_lists(place).items()
        made.append((name, lists))
    assert made[0] == made[1]
    wanted = list_by_brute_force(place, 7, kind)
    assert lists.keys() == wanted.keys() and len(lists) == (46 if sides else 60)
    assert lists == wanted
    scores = [score for entries in lists.values() for _, score in entries]
    assert len(set(scores)) < len(scores), "no ties"


@pytest.mark.full
@FAISS
def test_lists_of_each_kind_are_made_once(tmp_path, capsys) -> None:
    edges, nodes = oracle.multigraph().write(tmp_path)
    place = tmp_path / "w"
    flags = ("--edges", edges, "--node-table", nodes, *LAYERS, "--warehouse", str(place), "--nearest", "5")
    ivf = [f"ivf:cells=8,probes={probes}" for probes in (8, 1)]
    names = []
    for index in ("flat:index_parts=3", *ivf, "hnsw", "lsh:bits=3"):
        capsys.readouterr()
        assert run(*flags, "--nearest-index", index) == 0
        names.append(capsys.readouterr().out.split("nearest nodes ")[1].split(":")[0])
    lists_by_name = read_lists(place)
    first, *others = (lists_by_name[name] for name in names)
    scores = {key: dict(entries) for key, entries in list_by_brute_force(place, 99, "cosine").items()}
    assert first == list_by_brute_force(place, 5, "cosine")
    for key, entries in others[0].items():  # all cells are looked into; which of tied nodes is left open
        assert [score for _, score in entries] == [score for _, score in first[key]]
    assert len(lists_by_name) == 5
    for lists in others:
        assert lists.keys() == first.keys()
        for key, entries in lists.items():
            assert key[1] not in [node for node, _ in entries]
            assert dict(entries).items() <= scores[key].items()
    capsys.readouterr()
    assert run(*flags, "--nearest-index", "hnsw") == 0
    output = capsys.readouterr()
    assert "already made" in output.err and "table nearest_nodes in" in output.out
    assert len(read_lists(place)) == 5
    left = [path.name for path in (place / "graph_files" / "models").iterdir()]
    assert len(left) == 1, "vectors and indexes are removed"
    schema = DeltaTable(place / "nearest_nodes").schema()
    assert all(field.metadata.get("comment") for field in schema.fields)


@pytest.mark.full
@FAISS
def test_few_nodes_and_vectors_of_zeros(tmp_path) -> None:
    """A list holds all others where there are fewer; the cosine with zeros is 0, and ties go by index."""
    pq.write_table(pa.table({"src": [1, 1, 2], "dst": ["a", "b", "b"]}), tmp_path / "e.parquet")
    pq.write_table(pa.table({"id": ["a", "b"], "vector": [[0.0, 0.0], [0.0, 0.0]]}), tmp_path / "h.parquet")
    flags = ("--edges", str(tmp_path / "e.parquet"), "--sides", "user,item", "--widths", "2")
    features = ("--features", str(tmp_path / "h.parquet"), "--nearest", "9")
    assert run(*flags, *features, "--warehouse", str(tmp_path / "w")) == 0
    (lists,) = read_lists(tmp_path / "w").values()
    assert lists == list_by_brute_force(tmp_path / "w", 9, "cosine")
    assert {key: [node for node, _ in entries] for key, entries in lists.items()} == {
        ("user", "1"): ["2"], ("user", "2"): ["1"], ("item", "a"): ["b"], ("item", "b"): ["a"],
    }  # fmt: skip
    assert {score for entries in lists.values() for _, score in entries} <= {0.0, 1.0}
    (tmp_path / "one.csv").write_text("src,dst\n1,1\n")
    one = ("--edges", str(tmp_path / "one.csv"), *LAYERS, "--nearest", "2")
    assert run(*one, "--warehouse", str(tmp_path / "v")) == 0
    assert list(read_lists(tmp_path / "v").values()) == [{("node", "1"): []}]
    checks = DeltaTable(tmp_path / "v" / "checks").to_pandas().set_index("check")["observed"]
    assert checks["graph: short lists"] == 1


@pytest.mark.full
@FAISS
def test_a_run_that_ends_in_the_lists_is_run_again(tmp_path, monkeypatch) -> None:
    edges, nodes = oracle.multigraph().write(tmp_path)
    flags = ("--edges", edges, "--node-table", nodes, *LAYERS, "--nearest", "4")
    assert run(*flags, "--warehouse", str(tmp_path / "w")) == 0

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(nearest_nodes, "write_graph_checks", end)
        assert run(*flags, "--warehouse", str(tmp_path / "v")) == 130
    assert not read_lists(tmp_path / "v")
    assert run(*flags, "--warehouse", str(tmp_path / "v")) == 0
    assert read_lists(tmp_path / "v") == read_lists(tmp_path / "w")


@pytest.mark.full
def test_one_side_alone(tmp_path) -> None:
    edges, _ = oracle.bipartite().write(tmp_path)
    flags = ("--edges", edges, "--sides", "user,item", *LAYERS, "--nearest", "3", "--nearest-side", "item")
    assert run(*flags, "--nearest-index", "lsh:bits=1,theta=1", "--warehouse", str(tmp_path / "w")) == 0
    (lists,) = read_lists(tmp_path / "w").values()
    assert {side for side, _ in lists} == {"item"} and len(lists) > 20
