"""Jobs whose log, configuration and warehouse lie in one folder with every odd character in its name."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from deltalake import write_deltalake
from pyarrow import csv

from recbench_spark.commands import (
    benchmark,
    board,
    bundle,
    embed,
    evaluate,
    maintain,
    nightly,
    query,
    report,
    tune,
)
from recbench_spark.storage import delta_files
from recbench_spark.storage.delta_tables import list_files, open_table
from recbench_spark.storage.store import Store

ODD = "a b é %20 #1 [x] 'q' +& `b`"

LOG = [(u, i, 1 + (u * i + i) % 5) for u in range(12) for i in range(8) if (u + i) % 3]

NIGHT: dict[str, Any] = {
    "name": "odd",
    "models": [
        {"name": "popular", "kind": "popular"},
        {"name": "knn", "kind": "item_knn", "neighbours": 3},
        {
            "name": "graph",
            "kind": "graph",
            "features": {"kind": "hashed", "dims": 4},
            "layers": [{"form": "sage", "aggregator": "mean", "width": 4, "activation": "none"}],
        },
    ],
    "evaluation": {"metrics": ["ndcg"], "k": [3]},
}

RATINGS: dict[str, Any] = {
    "name": "rated",
    "split": {"holdout": "folds", "folds": 2, "seed": 1, "group": "global"},
    "models": [{"name": "means", "kind": "means"}],
    "evaluation": {"task": "rating", "metrics": ["rmse"]},
    "search": {"budget": 2, "share": 0.5, "spaces": {"means": {"user_shrinkage": {"low": 1, "high": 9}}}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder, with a log as CSV and two configurations."""
    place = tmp_path_factory.mktemp("jobs") / ODD
    place.mkdir()
    lines = [f"u{u},i{i},{r}" for u, i, r in LOG]
    (place / "log.csv").write_text("\n".join(["user_id,item_id,rating", *lines]) + "\n")
    log = {"name": "own", "reader": "csv", "path": str(place / "log.csv")}
    for settings in (NIGHT, RATINGS):
        text = yaml.safe_dump({**settings, "dataset": log})
        (place / f"{settings['name']}.yaml").write_text(text)
    return place


def run(job: ModuleType, *argv: str) -> int:
    return int(job.main(job.parser().parse_args(list(argv))))


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return delta_files.read_rows(str(folder / "w" / table)).to_pylist()


def test_a_night_with_a_graph_and_what_reads_it(spark, folder, capsys) -> None:
    warehouse = f"--warehouse={folder / 'w'}"
    night = [f"--config={folder / 'odd.yaml'}", warehouse, "--logical-date=2026-01-01"]
    assert run(nightly, *night) == 0
    assert {(row["model"], row["status"]) for row in read_rows(folder, "runs")} == {
        (name, "succeeded") for name in ("popular", "knn", "graph")
    }
    assert run(report, *night) == 0
    capsys.readouterr()
    said = []
    for engine in ("local", "spark"):
        question = "SELECT model, value FROM current_metrics ORDER BY model, value"
        assert run(query, question, warehouse, f"--engine={engine}", "--format=csv") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "graph" in said[0]
    before = read_rows(folder, "metrics")
    assert run(maintain, warehouse, "--migrate") == 0
    assert run(maintain, warehouse, "--keep-days=4000", "--logical-date=2026-01-02") == 0
    store = Store(spark, str(folder / "w"))
    for name in ("metrics", "rankings"):  # one whose rows are few, and one whose tasks write its files
        store.optimize(name)
        store.vacuum(name, hours=200)
    assert sorted(map(str, read_rows(folder, "metrics"))) == sorted(map(str, before))
    assert [entry.name for entry in folder.parent.iterdir()] == [ODD]


@pytest.mark.contract("benchmark", "tune", "board", "bundle")
def test_fits_over_folds_and_a_search(folder, capsys) -> None:
    flags = [f"--config={folder / 'rated.yaml'}", f"--warehouse={folder / 'w'}"]
    assert run(benchmark, *flags) == 0
    assert run(tune, *flags, "--models=means", "--budget=2") == 0
    assert {row["status"] for row in read_rows(folder, "fits")} == {"succeeded"}
    assert len(read_rows(folder, "trials")) == 2
    assert run(board, *flags) == 0
    assert "means" in capsys.readouterr().out
    (entry,) = [row for row in read_rows(folder, "boards") if row["name"] == "means"]
    rmse = [row["rmse"] for row in read_rows(folder, "fits") if row["purpose"] == "benchmark"]
    assert len(rmse) == 2 and entry["value"] == pytest.approx(sum(rmse) / 2, rel=1e-12)
    output = folder / "bundle"
    assert run(bundle, "pack", *flags, "--model=means", f"--output={output}") == 0
    other = [f"--config={folder / 'rated.yaml'}", f"--warehouse={folder / 'other'}"]
    assert run(bundle, "score", *other, f"--bundle={output}") == 0
    assert f"rmse {entry['value']:.4f} on board" in capsys.readouterr().out


@pytest.mark.contract("embed")
def test_a_graph_of_each_format(spark, folder) -> None:
    edges = csv.read_csv(folder / "log.csv").select(["user_id", "item_id"]).rename_columns(["src", "dst"])
    csv.write_csv(edges, folder / "edges.csv")
    write_deltalake(folder.parent / "edges", edges)
    (folder.parent / "edges").rename(folder / "edges")
    for name, engine in (("edges.csv", "spark"), ("edges", "local")):
        flags = [f"--edges={folder / name}", f"--warehouse={folder / 'graphs'}", f"--name={name}"]
        flags.append(f"--engine={engine}")
        assert run(embed, *flags, "--features=hashed:4", "--widths=4") == 0
    table = delta_files.read_rows(str(folder / "graphs" / "embeddings"))
    assert table.num_rows == 2 * 20


@pytest.mark.contract("evaluate")
def test_lists_by_both_engines(spark, folder) -> None:
    truth = ["user_id,item_id", *(f"u{u},i{i}" for u, i, r in LOG if r > 3)]
    lists = ["user_id,item_id,score", *(f"u{u},i{i},{r}" for u, i, r in LOG)]
    (folder / "truth.csv").write_text("\n".join(truth) + "\n")
    (folder / "lists.csv").write_text("\n".join(lists) + "\n")
    flags = [f"--lists={folder / 'lists.csv'}", f"--truth={folder / 'truth.csv'}", "--k=3"]
    for engine in ("local", "spark"):
        where = [f"--warehouse={folder / 'handed'}", f"--model={engine}", f"--engine={engine}"]
        assert run(evaluate, *where, *flags) == 0
    metrics, runs = (
        delta_files.read_rows(str(folder / "handed" / name)).to_pylist() for name in ("metrics", "runs")
    )
    model = {row["run_id"]: row["model"] for row in runs}
    values: dict[str, list[Any]] = {"local": [], "spark": []}
    for row in metrics:
        values[model[row["run_id"]]].append((row["metric"], row["k"] or 0, row["value"]))
    assert values["local"] and sorted(values["local"]) == sorted(values["spark"])


def test_files_that_spark_wrote_are_where_the_list_says(spark, folder) -> None:
    rows = spark.createDataFrame([(1, "a b"), (2, "é%20[1]"), (3, "c")], "x int, p string")
    place = str(folder / "spark")
    rows.write.format("delta").partitionBy("p").save(place)
    for value, x in (("a b", 1), ("é%20[1]", 2), ("c", 3)):
        (file,) = list_files(place, {"p": value})
        assert Path(file).is_file()
        assert delta_files.read_rows(place, [("p", "=", value)]).column("x").to_pylist() == [x]
    assert open_table(place).version() == 0
    assert Store(spark, str(folder / "spark_w")).folder == folder / "spark_w"
