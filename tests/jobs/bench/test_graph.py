"""The bench of layers over graphs runs, predicts before it runs, and draws one graph under all ids."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.bench import graph
from recbench_spark.errors import ConfigError


def run(*flags):
    return graph.main(graph.parser().parse_args([*flags]))


def test_an_edge_list_is_one_graph_whatever_its_ids(tmp_path):
    drawn = {}
    for ids in ("dense", "compact", "raw", "text"):
        graph.draw(tmp_path / ids, 3000, 150, ids)
        rows = pq.read_table(tmp_path / ids)
        ends = [rows.column(name).to_numpy() for name in ("src", "dst")]
        drawn[ids] = np.unique(np.concatenate(ends), return_inverse=True)[1]
    assert np.array_equal(drawn["dense"], drawn["compact"])
    for ids in ("raw", "text"):  # other names, so another order of names, of the same nodes
        pairs = set(zip(drawn["dense"].tolist(), drawn[ids].tolist(), strict=True))
        assert len(pairs) == len(set(drawn["dense"].tolist())) == len(set(drawn[ids].tolist()))


def test_a_list_alone_is_drawn_in_few_bytes(tmp_path):
    assert run("--draw", str(tmp_path / "list"), "--edges", "2e4", "--nodes", "1000") == 0
    files = sorted((tmp_path / "list").iterdir())
    assert pq.read_table(files[0]).num_rows == 20_000
    assert sum(file.stat().st_size for file in files) < 4 * 20_000


def test_an_unknown_system_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no system ours-men"):
        run("--systems", "ours-men", "--folder", str(tmp_path))


@pytest.mark.slow
def test_what_is_predicted_is_told_before_it_is_run(spark, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(graph, "FIT_SIZES", (1000, 3000))
    output = tmp_path / "new.jsonl"
    flags = ["--predict", "4000", "--plans", "R,S", "--rounds", "1", "--folder", str(tmp_path / "b")]
    assert run(*flags, "--output", str(output)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all("predicted, " in line and "ns of a core a vector" in line for line in lines[0::2])
    assert [line.split(",")[0] for line in lines[0::2]] == ["plan R", "plan S"]
    assert all(line.strip().startswith("took") for line in lines[1::2])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 2 * 2 + 2
    last = [row for row in rows if row["edges"] == 4000]
    assert {row["plan"] for row in last} == set("RS") and all(row["probe"] > 0 for row in rows)
    assert all((row["bytes_shuffled"] > 0) == (row["plan"] != "R") for row in last)
