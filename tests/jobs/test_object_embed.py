"""Embeddings and neighbourhoods that jobs write on a real S3 server: those of a folder, to the bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.commands import embed, neighbourhoods
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.objects import list_objects

NEAREST = ("--nearest", "3", "--nearest-index", "lsh")
LAYERS = ("--features", "hashed:6", "--widths", "5,4", "--wire", "float16", "--blocks", "3", "--seed", "2")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edges of two nights; the second has a few more."""
    folder, draw = tmp_path_factory.mktemp("edges"), np.random.default_rng(5)
    ends = np.unique(draw.integers(0, 60, (200, 2)), axis=0)
    for name, rows in (("first", ends[:-3]), ("again", ends)):
        pq.write_table(pa.table({"src": rows[:, 0], "dst": rows[:, 1]}), folder / f"{name}.parquet")
    return folder


def run(module: Any, root: str, *flags: str) -> None:
    assert module.main(module.parser().parse_args(["--warehouse", root, *flags])) == 0


def read_vectors(root: str) -> dict[str, dict[str, bytes]]:
    """Bits of each vector by model and node."""
    vectors: dict[str, dict[str, bytes]] = {}
    for row in read_dataset(f"{root}/embeddings").to_table().to_pylist():
        vectors.setdefault(row["model_id"], {})[row["id"]] = np.array(row["vector"], np.float32).tobytes()
    return vectors


def test_embeddings_on_s3_have_the_bits_of_a_folder(
    spark, bucket, inputs, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    first, again = (str(inputs / f"{name}.parquet") for name in ("first", "again"))
    results, printed = [], []
    for root in (str(tmp_path / "w"), f"{bucket}/team/w"):
        run(embed, root, "--edges", first, *LAYERS, "--plan", "G")
        (name,) = read_vectors(root)
        # A second run embeds nothing.
        run(
            embed,
            root,
            "--edges",
            first,
            *LAYERS,
            "--plan",
            "G",
            "--nearest",
            "3",
            "--nearest-index",
            "lsh",
        )
        assert "already made" in capsys.readouterr().err
        run(embed, root, "--edges", again, *LAYERS, "--previous", name)
        printed.append(re.findall(r"of \d+ nodes, affected are [^;]*;", capsys.readouterr().out))
        run(embed, root, "--edges", again, *LAYERS, "--nodes", "3,5,7")
        printed.append(capsys.readouterr().out.splitlines())
        run(neighbourhoods, root, "--edges", first, "--undirected", "--walks", "20", "--top", "3")
        walked = read_dataset(f"{root}/neighbourhoods").to_table()
        run(embed, root, "--neighbourhoods", walked["neighbourhood_id"][0].as_py(), *LAYERS)
        rows = walked.drop_columns(["neighbourhood_id"]).sort_by("node").to_pylist()
        near = read_dataset(f"{root}/nearest_nodes").to_table().sort_by("node").to_pylist()
        results.append((read_vectors(root), rows, near))
    assert len(results[0][0]) == 3 and results[0] == results[1]
    assert len(results[0][2]) == 60 and any(row["neighbours"] for row in results[0][2])
    assert printed[:2] == printed[2:] and len(printed[1]) == 3 and printed[0]
    left = [name for name in list_objects(f"{bucket}/team/w/graph_files") if "partial" in name]
    assert not left, "private folders are removed"
    models = {
        name.split("/")[1] for name in list_objects(f"{bucket}/team/w/graph_files") if "models/" in name
    }
    assert models == set(results[0][0])
    names = [f"embed-{name}" for name in models] + ["neighbourhoods"]
    logs = list(list_objects(f"{bucket}/team/w/logs"))
    assert all(any(log.startswith(f"{name}-") for log in logs) for name in names)


def test_runs_are_recorded_on_s3(spark, bucket, inputs, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    run(embed, bucket, "--edges", str(inputs / "first.parquet"), *LAYERS, "--plan", "R")
    runs = read_dataset(f"{bucket}/graph_runs").to_table()
    assert sorted(runs["layer"].to_pylist()) == [1, 2] and set(runs["plan"].to_pylist()) == {"R"}
    assert runs["nodes"].to_pylist() == [len(next(iter(read_vectors(bucket).values())))] * 2
