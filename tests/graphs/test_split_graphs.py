"""A split's training part as a graph, embedded and evaluated: no held-out pair is an edge."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark import cli
from recbench_spark.commands import embed, split
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.graphs.build import read_ids
from recbench_spark.graphs.folders import read_graph


def run(job, *flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), flags)
    return int(ended.value.code or 0)


def read_pairs(warehouse: Path) -> set[tuple[str, str]]:
    """(user, item) of every edge of the one graph."""
    (manifest,) = (warehouse / "graph_files").glob("*/graph.json")
    graph = read_graph(str(manifest.parent))
    names = [str(i) for b in graph.blocks for i in read_ids(graph, b).to_pylist()]
    result = set()
    for block in graph.side_blocks(1):
        csr = graph.csr(block)
        for r in range(block.rows):
            result |= {
                (names[s], names[block.first + r]) for s in csr.src[csr.indptr[r] : csr.indptr[r + 1]]
            }
    return result


def test_no_held_out_pair_is_an_edge(tmp_path, capsys) -> None:
    draw = random.Random(4)
    rows = sorted({(draw.randrange(12), draw.randrange(20)) for _ in range(120)})
    log = {
        "user_id": [u for u, _ in rows],
        "item_id": [i for _, i in rows],
        "event_time": list(range(len(rows))),
    }
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    place = ("--warehouse", str(tmp_path / "w"))
    assert run(split, "--log", str(tmp_path / "log.parquet"), "--protocol", "TO_LS", *place) == 0
    split_id = capsys.readouterr().out.split("split ", 1)[1].split(":", 1)[0]
    splits = DeltaTable(tmp_path / "w" / "splits").to_pandas()
    train, test = (
        set(zip(part["user_id"], part["item_id"], strict=True))
        for part in (splits[splits["part"] == name] for name in ("train", "test"))
    )
    assert train and test and not train & test

    flags = ("--split", split_id, "--mode", "bipartite", "--features", "hashed:8", "--widths", "6")
    assert run(embed, *flags, *place) == 0
    output = capsys.readouterr().out
    assert read_pairs(tmp_path / "w") == train
    (graph,) = DeltaTable(tmp_path / "w" / "graphs").to_pyarrow_table().to_pylist()
    assert graph["source"].startswith("splits, ") and '"part": "train"' in graph["source"]
    assert json.loads(graph["settings_json"])["edges"] == "splits", "a moved warehouse has its own tables"

    name = output.split("model ", 1)[1].split(maxsplit=1)[0]
    assert name.startswith(f"{split_id}-")
    rows = DeltaTable(tmp_path / "w" / "embeddings").to_pandas(partitions=[("model_id", "=", name)])
    users, items = (
        rows[rows["side"] == side].rename(columns={"id": f"{side}_id"})[[f"{side}_id", "vector"]]
        for side in ("user", "item")
    )
    truth = pd.DataFrame(sorted(test), columns=["user_id", "item_id"])
    result = evaluate(truth, embeddings=(users, items), k=(5,), metrics=("recall",))
    values = [one for one in result.metrics.to_pylist() if one["metric"] == "recall" and one["k"] == 5]
    (value,) = (one["value"] for one in values if one["slice_key"] is None)
    vectors = dict(zip(users["user_id"], map(np.array, users["vector"]), strict=True))
    catalogue = sorted(zip(map(int, items["item_id"]), map(np.array, items["vector"]), strict=True))
    hits = []
    for user, item in test:
        scores = sorted((-float(vectors[user] @ v), i) for i, v in catalogue)
        hits.append(int(item) in [i for _, i in scores[:5]])
    assert value == pytest.approx(np.mean(hits))
