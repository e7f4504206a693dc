"""Retention of the files of graphs and of models over them."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from recbench_spark import cli
from recbench_spark.commands import embed, maintain
from recbench_spark.steps.embedding import NIGHT
from recbench_spark.steps.keeping_fits import drop_old_fits, find_old_fits
from recbench_spark.steps.keeping_graphs import find_old_graphs

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=40)


class Warehouse:
    """What retention asks a store: its folder, and which splits are there."""

    def __init__(self, folder: Path, *splits: str) -> None:
        self.folder, self.splits = folder, splits

    def read(self, _: Any) -> Any:
        return self

    select = distinct = lambda self, *_: self

    def collect(self) -> list[Any]:
        return [type("Row", (), {"split_id": split}) for split in self.splits]


def made(root: Path, folder: str, mark: str | None, used: datetime) -> None:
    place = root / "graph_files" / folder
    place.mkdir(parents=True)
    for name in ("data.npy", *([mark] if mark else [])):
        (place / name).write_text("{}")
        os.utime(place / name, (used.timestamp(),) * 2)
    os.utime(place, (used.timestamp(),) * 2)


def test_a_folder_goes_with_its_split_or_when_nothing_uses_it(tmp_path) -> None:
    fresh = NOW - timedelta(hours=2)
    for folder, mark, used in (
        ("s1-aaa-4", "graph.json", LONG_AGO),  # of a kept split, however old
        ("s2.1-bbb-4", "graph.json", LONG_AGO),  # of one that goes
        ("s3-ccc-4", "graph.json", LONG_AGO),  # of one that is gone
        ("s3-ddd-4", "graph.json", fresh),  # a night may be at work
        ("eee-4", "graph.json", LONG_AGO),  # of an edge list that nobody uses
        ("fff-4", "graph.json", NOW - timedelta(days=3)),  # used since
        ("ggg-4", None, LONG_AGO),  # a layout that was killed
        ("hhh-4", None, fresh),  # one that may be at work
        ("models/s1-m", NIGHT, LONG_AGO),
        ("models/s2.1-m", NIGHT, LONG_AGO),
        ("models/nnn", NIGHT, LONG_AGO),
        ("models/ooo", None, LONG_AGO),  # killed: no layers of it are anybody's
        ("models/ppp", None, fresh),
    ):
        made(tmp_path, folder, mark, used)
    store = Warehouse(tmp_path, "s1", "s2.1")
    before = (NOW - timedelta(days=30)).date()
    old = find_old_graphs(store, before, (), ["s2.1"])
    wanted = ["eee-4", "ggg-4", "models/nnn", "models/ooo", "models/s2.1-m", "s2.1-bbb-4", "s3-ccc-4"]
    assert list(old.folders) == wanted
    assert old.models == ("nnn",) and old.size == 7 * 2 + 5 * 2
    kept = find_old_graphs(store, before, [LONG_AGO.date()], ["s2.1"])
    assert list(kept.folders) == ["models/s2.1-m", "s2.1-bbb-4", "s3-ccc-4"]


def test_files_of_a_fit_go_with_its_split_or_when_nothing_writes_to_them(tmp_path) -> None:
    for folder, used in (
        ("fits/_delta_log", LONG_AGO),  # a table, however old
        ("fit_files/s1-m", LONG_AGO),
        ("fit_files/s1-m-f", LONG_AGO),  # of a model with a table of features
        ("fit_files/s2.1-m-f", LONG_AGO),
        ("fit_files/s2.1-m", LONG_AGO),
        ("fit_files/s2.1-n", NOW),  # a night may be at work
        ("fit_files/abc", LONG_AGO),  # of jobs/benchmark.py
        ("fit_files/def", NOW - timedelta(days=3)),
        ("fit_files/logs/xyz", LONG_AGO),
        ("fit_files/bundles/uvw", LONG_AGO),
    ):
        made(tmp_path, f"../{folder}", None, used)
    store = Warehouse(tmp_path, "s1", "s2.1")
    before = (NOW - timedelta(days=30)).date()
    old = find_old_fits(store, before, (), ["s2.1"])
    wanted = [
        "fit_files/abc",
        "fit_files/bundles/uvw",
        "fit_files/logs/xyz",
        "fit_files/s2.1-m",
        "fit_files/s2.1-m-f",
    ]
    assert [str(folder.relative_to(tmp_path)) for folder in old] == wanted
    drop_old_fits(old)
    assert (
        find_old_fits(store, before, (), ["s2.1"]) == () and (tmp_path / "fit_files/def/data.npy").is_file()
    )


def run(job: Any, *flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), flags)
    return int(ended.value.code or 0)


@pytest.mark.spark
def test_old_layers_go_and_what_is_made_stays_made(spark, tmp_path, capsys) -> None:
    place = ("--warehouse", str(tmp_path / "w"))
    (tmp_path / "edges.csv").write_text("1,2\n2,3\n")
    model = (*place, "--edges", str(tmp_path / "edges.csv"), "--widths", "3,2", "--blocks", "1")
    assert run(embed, *model) == 0
    name = capsys.readouterr().out.split("model ", 1)[1].split(maxsplit=1)[0]
    vectors = DeltaTable(tmp_path / "w" / "embeddings").file_uris()

    # Compaction leaves alone what is known by its files' names.
    assert run(maintain, *place, "--optimize") == 0
    assert DeltaTable(tmp_path / "w" / "embeddings").file_uris() == vectors
    flags = (*place, "--keep-days", "5", "--logical-date", str(date.today() + timedelta(days=1)))
    assert run(maintain, *flags) == 0
    assert "graph_files: 0 folders" in capsys.readouterr().out

    root = tmp_path / "w" / "graph_files"
    for file in root.rglob("*"):
        os.utime(file, (time.time() - 10 * 86400,) * 2)
    assert run(maintain, *flags, "--dry-run") == 0
    told = capsys.readouterr().out
    assert "graph_files: 2 folders" in told and f"models/{name}" in told
    assert (root / "models" / name).is_dir()
    assert run(maintain, *flags) == 0
    assert not (root / "models" / name).exists() and not list(root.glob("*/graph.json"))
    assert not DeltaTable(tmp_path / "w" / "graph_vectors").file_uris()
    assert DeltaTable(tmp_path / "w" / "embeddings").file_uris() == vectors

    capsys.readouterr()
    assert run(embed, *model) == 0
    told = capsys.readouterr()
    assert "made before" in told.err and name in told.out
