"""A moved or copied warehouse: jobs go on in the new place alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from recbench_spark.commands import benchmark, bundle, maintain, nightly, query, report, tune
from recbench_spark.graphs.folders import MANIFEST
from recbench_spark.schemas import FITS
from recbench_spark.storage.arrow_store import ArrowStore

SGD = {"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 2, "rates": 0.02}
KNN = {"name": "knn", "kind": "item_knn", "neighbours": 3}
OLD_DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
POISON = b"not what was kept"


def run(job: Any, *flags: str) -> None:
    assert job.main(job.parser().parse_args([*flags])) == 0, flags


def write_files(folder: Path) -> tuple[str, str]:
    """Write a log and two benchmark files: ratings over folds, and rankings of a night."""
    rows = [(u, i, 1 + (u * i + i) % 5, u * 9 + i) for u in range(20) for i in range(12) if (u + i) % 3]
    lines = ["user_id,item_id,rating,event_time", *(",".join(map(str, row)) for row in rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    dataset = {"name": "tiny", "reader": "csv", "path": str(folder / "log.csv")}
    rating = {"task": "rating", "metrics": ["rmse"], "bootstrap": {"replicates": 5}}
    ranking = {"metrics": ["ndcg"], "k": [10], "slices": [], "bootstrap": {"replicates": 5}}
    space = {"budget": 2, "seeds": 1, "share": 0.3}
    documents = {
        "folds": {
            "split": {"holdout": "folds", "folds": 2}, "models": [SGD], "evaluation": rating,
            "search": {**space, "spaces": {"sgd": {"dims": {"values": [1, 2]}}}},
        },
        "ranks": {
            "split": {"ratio": [0.6, 0.1, 0.3]}, "models": [KNN], "evaluation": ranking,
            "search": {**space, "spaces": {"knn": {"neighbours": {"values": [2, 3]}}}},
        },
    }  # fmt: skip
    for name, document in documents.items():
        text = yaml.safe_dump({"name": name, "dataset": dataset, **document})
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / "folds.yaml"), str(folder / "ranks.yaml")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("built")
    folds, ranks = write_files(folder)
    place = str(folder / "warehouse")
    run(benchmark, "--config", folds, "--warehouse", place)
    run(tune, "--config", folds, "--warehouse", place)
    run(tune, "--config", ranks, "--warehouse", place)
    run(nightly, "--config", ranks, "--warehouse", place, "--logical-date", OLD_DAY)
    return folder / "warehouse", folds, ranks


def name_old_paths(store: ArrowStore, old: Path) -> None:
    """Make rows and files say what older versions wrote: absolute paths of the old place."""
    rows = [{**row, "files": row["files"] and f"{old}/{row['files']}"} for row in store.rows(FITS)]
    store.delete("fits", "purpose", ["benchmark", "search"])
    store.append(rows, FITS)
    for file in Path(store.root).glob("fit_files/*/fit.json"):
        facts = json.loads(file.read_text())
        facts["files"] = f"{old}/fit_files/{file.parent.name}"
        file.write_text(json.dumps(facts))


def poison(folder: Path) -> None:
    """Put other content into every file."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(POISON)


def use(new: Path, folds: str, ranks: str, output: Path, capsys: Any) -> None:
    """Run each job that goes on from what a warehouse keeps."""
    capsys.readouterr()
    run(benchmark, "--config", folds, "--warehouse", str(new))
    assert "2 fits, 2 of them already done" in capsys.readouterr().err
    run(benchmark, "--config", folds, "--warehouse", str(new), "--seeds", "0,1")
    run(bundle, "pack", "--config", folds, "--warehouse", str(new), "--model", "sgd",
        "--output", str(output), "--who", "us")  # fmt: skip
    for config in (folds, ranks):
        run(tune, "--config", config, "--warehouse", str(new))
    run(query, "--engine=local", "--warehouse", str(new), "SELECT count(*) FROM fits")
    run(nightly, "--config", ranks, "--warehouse", str(new), "--logical-date", NEXT_DAY)
    run(report, "--config", ranks, "--warehouse", str(new), "--logical-date", NEXT_DAY)
    run(maintain, "--warehouse", str(new), "--keep-days", "30", "--logical-date", NEXT_DAY)


@pytest.mark.full
def test_what_a_warehouse_keeps_names_no_place(built) -> None:
    place = built[0]
    stored = {row["files"] for row in ArrowStore(str(place)).rows(FITS)} - {None}
    assert stored and all(files.startswith("fit_files/") for files in stored)
    noted = [*place.rglob("*.json"), *place.rglob(MANIFEST)]
    kept = [file for file in noted if "fit_files" in file.parts or "graph_files" in file.parts]
    assert kept and not [file for file in kept if str(place) in file.read_text()]


@pytest.mark.full
def test_a_moved_warehouse_goes_on(built, tmp_path, capsys) -> None:
    old, folds, ranks = built
    first, new = tmp_path / "first", tmp_path / "new"
    shutil.copytree(old, first)
    shutil.move(first, new)
    use(new, folds, ranks, tmp_path / "bundle", capsys)
    assert not first.exists()


@pytest.mark.full
def test_a_copy_never_reads_from_the_old_place(built, tmp_path, capsys) -> None:
    """Its rows name the old place, where other files stand: an older version wrote absolute paths."""
    old, folds, ranks = built
    first, new = tmp_path / "first", tmp_path / "new"
    shutil.copytree(old, first)
    name_old_paths(ArrowStore(str(first)), first)
    shutil.copytree(first, new, copy_function=shutil.copyfile)  # with new times, as `cp -r`
    poison(first)
    use(new, folds, ranks, tmp_path / "bundle", capsys)
    assert all(file.read_bytes() == POISON for file in first.rglob("*") if file.is_file())
