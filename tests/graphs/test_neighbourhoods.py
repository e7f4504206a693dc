"""Neighbourhoods over laid-out graphs: the same rows by walks and by joins, under any cut, and by hand."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.commands import embed, neighbourhoods
from recbench_spark.errors import ConfigError
from recbench_spark.graphs import local_walks
from recbench_spark.graphs import neighbourhoods as travel
from recbench_spark.graphs.kernels.ids import hash_numbers
from recbench_spark.graphs.kernels.walks import Walks, list_visits
from tests.conftest import forbid_spark
from tests.graphs import oracle

HOUSE = ("--warehouse",)


def ran(*flags: str) -> None:
    result = neighbourhoods.parser().parse_args(list(map(str, flags)))
    assert neighbourhoods.main(result) == 0


def rows(warehouse: Path) -> list[pa.Table]:
    """Rows of each name, by side and node."""
    table = DeltaTable(warehouse / "neighbourhoods").to_pyarrow_table()
    names = sorted(set(table.column("neighbourhood_id").to_pylist()))
    result = []
    for name in names:
        own = table.filter(pa.compute.equal(table.column("neighbourhood_id"), name))
        result.append(
            own.sort_by([("side", "ascending"), ("node", "ascending")]).drop_columns("neighbourhood_id")
        )
    return result


@pytest.mark.parametrize(
    ("flag", "value", "word"),
    [("--top", 0, "top"), ("--walks", 0, "walks"), ("--restart", 1, "restart"), ("--hops", 0, "hops")],
)
def test_wrong_flags_are_refused_by_name_before_spark_starts(flag, value, word, monkeypatch) -> None:
    forbid_spark(monkeypatch)
    with pytest.raises(ConfigError, match=word):
        ran("--warehouse", "w", "--edges", "x", flag, value)
    with pytest.raises(ConfigError, match="side"):
        ran("--warehouse", "w", "--edges", "x", "--side", "item")
    with pytest.raises(ConfigError, match="no results in warehouse w"):
        ran("--warehouse", "w", "--split", "s", "--side", "item", "--dry-run")


@pytest.mark.parametrize("sides", [False, True], ids=["one side", "two sides"])
def test_walks_and_joins_give_the_same_rows_under_any_cut(spark, tmp_path, monkeypatch, sides) -> None:
    drawn = oracle.bipartite() if sides else oracle.multigraph(text=True)
    edges, nodes = drawn.write(tmp_path)
    monkeypatch.setattr(travel, "NODES_A_PIECE", 7)
    monkeypatch.setattr(local_walks, "NODES_A_PIECE", 5)
    monkeypatch.setattr(travel, "WALKERS_AT_ONCE", 60)
    flags = ["--edges", edges, "--walks", 30, "--hops", 3, "--top", 8, "--seed", 5]
    flags += ["--sides", "user,item"] if sides else ["--undirected", "--node-table", nodes]
    result = []
    # Joins take a job a hop and piece, and are most of the time: each graph has its own cut.
    cuts = (3, "join") if sides else (5, "join"), (3, "local")
    for cut, way in ((1, "local"), *cuts):
        engine = "local" if cut == 1 else "spark"
        place = ("--warehouse", tmp_path / f"{way}{cut}", "--engine", engine)
        ran(*place, *flags, "--way", way, "--blocks", cut)
        (table,) = rows(tmp_path / f"{way}{cut}")
        result.append(table)
    assert result[0].num_rows == (28 if sides else 60)
    assert all(table.equals(result[0]) for table in result[1:])
    ran("--warehouse", tmp_path / "local1", *flags, "--blocks", 1)  # a second time: nothing
    assert rows(tmp_path / "local1")[0].equals(result[0])
    alone = [row for row in result[0].to_pylist() if not row["visited"]]
    assert sides or len(alone) == 5
    assert all(row["neighbours"] == [] and row["weights"] == [] for row in alone)
    log = [
        json.loads(line) for line in (tmp_path / f"join{cuts[0][0]}" / "logs/neighbourhoods.jsonl").open()
    ]
    assert any(line.get("nodes") == result[0].num_rows for line in log)


@pytest.mark.contract("neighbourhoods")
def test_rows_are_those_of_the_kernel_and_feed_embed(tmp_path, capsys) -> None:
    pq.write_table(pa.table({"src": [1, 2, 2, 3, 9], "dst": [2, 3, 4, 4, 9]}), tmp_path / "e.parquet")
    flags = ["--edges", tmp_path / "e.parquet", "--undirected", "--walks", 40, "--top", 2]
    ran("--warehouse", tmp_path / "w", *flags)
    assert "local: adjacency of" in capsys.readouterr().err
    (table,) = rows(tmp_path / "w")
    ids = np.array([1, 2, 3, 4, 9])
    hashes = hash_numbers(ids, 0)
    order = np.argsort(hashes)
    near = {1: [2], 2: [1, 3, 4], 3: [2, 4], 4: [2, 3], 9: [9]}
    place = {int(i): p for p, i in enumerate(ids[order])}
    lists = [sorted(place[n] for n in near[int(i)]) for i in ids[order]]
    indptr = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64)
    src = np.array([n for near_one in lists for n in near_one], np.uint32)
    made = list_visits(indptr, src, hashes[order], 0, Walks(40, 5, 0.5, top=2, seed=42)).reshape(5, -1)
    for row in table.to_pylist():
        seen = made[place[int(row["node"])]]
        node, count = np.unique(seen[seen < 5], return_counts=True)
        best = sorted(zip(count, node, strict=True), key=lambda p: (-p[0], p[1]))
        assert row["visited"] == len(best)
        assert row["neighbours"] == [str(ids[order][n]) for _, n in best[:2]]
        assert row["visits"] == [c for c, _ in best[:2]]
    name = DeltaTable(tmp_path / "w" / "neighbourhoods").to_pandas()["neighbourhood_id"].iloc[0]
    given = ["--warehouse", tmp_path / "w", "--neighbourhoods", name, "--features", "hashed:4"]
    args = embed.parser().parse_args([*map(str, given), "--aggregator", "importance", "--widths", "3"])
    assert isinstance(args, argparse.Namespace) and embed.main(args) == 0
    vectors = DeltaTable(tmp_path / "w" / "embeddings").to_pandas()
    assert sorted(vectors["id"]) == ["1", "2", "3", "4", "9"]  # 9 has no neighbour but itself, and is there
