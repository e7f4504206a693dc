"""Jobs on other data at other paths: by the command line, in one warehouse and one session."""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from deltalake import write_deltalake

from recbench_spark import cli
from recbench_spark.commands import benchmark, bundle, embed, nightly, tune
from recbench_spark.config import load_benchmark
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.schemas import EMBEDDINGS, FITS, METRICS, RUNS, TRIALS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.night.test_inputs import list_held_out, lists, rows
from tests.nights import read_rows

Printed = pytest.CaptureFixture[str]


def run(job: Any, *flags: object) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(job.main, job.parser(), [str(flag) for flag in flags])
    return end.value.code


def ratings(seed: int) -> pa.Table:
    """A log of 20 users and 12 items, a function of the seed."""
    rng = np.random.default_rng(seed)
    pairs = np.sort(rng.choice(240, 150, replace=False))
    columns = {"user_id": pairs // 12, "item_id": pairs % 12, "rating": rng.integers(1, 6, 150) * 1.0}
    return pa.table(columns)


@pytest.fixture
def requests(tmp_path: Path) -> list[object]:
    """Flags of a benchmark over folds of a rating log, all but its path."""
    file = {
        "name": "other",
        "dataset": {"name": "log", "reader": "csv", "path": "p", "scale": [1, 5]},
        "split": {"holdout": "folds", "folds": 2},
        "models": [{"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 2}],
        "evaluation": {"task": "rating", "metrics": ["rmse"]},
        "search": {"budget": 2, "spaces": {"sgd": {"rates": {"low": 0.001, "high": 0.02}}}},
    }
    (tmp_path / "file.yaml").write_text(json.dumps(file))
    return ["--config", tmp_path / "file.yaml", "--warehouse", tmp_path / "w"]


def move_log(log: Path, place: Path) -> Path:
    """The same file elsewhere, of another time; the first one is gone."""
    place.mkdir()
    shutil.copyfile(log, place / "copy.csv")
    os.utime(place / "copy.csv", (1_700_000_000, 1_700_000_000))
    log.unlink()
    return place / "copy.csv"


@pytest.mark.full
def test_a_benchmark_of_another_table_of_one_version_has_its_own_fits(
    tmp_path: Path, requests: list[object], capsys: Printed
) -> None:
    means = []
    for name, seed in (("a", 1), ("b", 2)):
        write_deltalake(tmp_path / name, ratings(seed))
        path = ["--set", "dataset.reader=delta", "--set", f"dataset.path={tmp_path / name}"]
        assert run(benchmark, *requests, *path) == 0
        assert "2 fits, 0 of them already done" in "".join(capsys.readouterr())
        means.append({row["log_id"]: row["rmse"] for row in fits(tmp_path)})
    assert len(means[0]) == 1 and len(means[1]) == 2
    assert run(benchmark, *requests, *path) == 0
    assert "2 fits, 2 of them already done" in "".join(capsys.readouterr())


def fits(folder: Path) -> list[dict[str, Any]]:
    return ArrowStore(str(folder / "w")).rows(FITS)


@pytest.mark.full
def test_a_bundle_is_scored_beside_a_copy_of_its_log_and_no_other(
    tmp_path: Path, requests: list[object], capsys: Printed
) -> None:
    log = tmp_path / "log.csv"
    pacsv.write_csv(ratings(1), log)
    here = ["--set", f"dataset.path={log}"]
    assert run(benchmark, *requests, *here) == 0
    assert run(bundle, "pack", *requests, *here, "--model", "sgd", "--output", tmp_path / "bundle") == 0
    copy = move_log(log, tmp_path / "elsewhere")
    there = [*requests[:2], "--warehouse", tmp_path / "other", "--set", f"dataset.path={copy}"]
    assert run(bundle, "score", *there, "--bundle", tmp_path / "bundle") == 0
    wanted = np.mean([row["rmse"] for row in fits(tmp_path)])
    assert f"rmse {wanted:.4f} on board" in capsys.readouterr().out

    lines = copy.read_text().splitlines()
    copy.write_text("\n".join([*lines[:-1], ""]))
    assert run(bundle, "score", *there, "--bundle", tmp_path / "bundle") != 0
    said = capsys.readouterr().err
    assert "bundle sgd was made from a log with other rows" in said and "Traceback" not in said


@pytest.mark.full
def test_a_search_is_found_again_where_its_log_was_moved_to(
    tmp_path: Path, requests: list[object], capsys: Printed
) -> None:
    log = tmp_path / "log.csv"
    pacsv.write_csv(ratings(1), log)
    assert run(tune, *requests, "--set", f"dataset.path={log}") == 0
    store = ArrowStore(str(tmp_path / "w"))
    before = {row["trial_id"] for row in store.rows(TRIALS)}
    copy = move_log(log, tmp_path / "elsewhere")
    assert run(tune, *requests, "--set", f"dataset.path={copy}") == 0
    assert {row["trial_id"] for row in store.rows(TRIALS)} == before and len(before) == 2
    pacsv.write_csv(ratings(2), copy)
    assert run(tune, *requests, "--set", f"dataset.path={copy}") == 0
    assert len({row["trial_id"] for row in store.rows(TRIALS)}) == 4


def test_embeddings_of_other_edges_are_made_and_of_equal_ones_found(
    spark: Any, tmp_path: Path, capsys: Printed
) -> None:
    flags = ["--warehouse", tmp_path / "w", "--name", "m", "--features", "constant", "--widths", "2"]
    edges = tmp_path / "edges.csv"

    def models_after(text: str) -> int:
        edges.write_text(text)
        os.utime(edges, (1_700_000_000, 1_700_000_000))
        assert run(embed, *flags, "--edges", edges) == 0
        return len(ArrowStore(str(tmp_path / "w")).list_values(EMBEDDINGS, "model_id"))

    assert models_after("src,dst\n1,2\n2,3\n") == 1
    assert models_after("src,dst\n1,3\n2,3\n") == 2
    shutil.copyfile(edges, tmp_path / "copy.csv")
    assert run(embed, *flags, "--edges", tmp_path / "copy.csv") == 0
    assert models_after("src,dst\n1,2\n2,3\n") == 2


@pytest.mark.full
def test_nights_of_tables_at_version_0_and_of_lists_written_anew(tmp_path: Path) -> None:
    model = {"name": "m", "kind": "lists", "path": str(tmp_path / "lists")}
    file = {
        "name": "nights",
        "dataset": {"name": "log", "reader": "delta", "path": str(tmp_path / "logs" / "{logical_date}")},
        "split": {"protocol": "TO_LS"},
        "models": [model],
        "evaluation": {"metrics": ["ndcg"], "k": [5], "slices": [], "bootstrap": {"replicates": 10}},
    }
    (tmp_path / "file.yaml").write_text(json.dumps(file))

    def after(day: str, *more: str) -> list[tuple[float, int]]:
        flags = ["--config", tmp_path / "file.yaml", "--warehouse", tmp_path / "w", "--logical-date", day]
        assert run(nightly, *flags, *more) == 0
        store = ArrowStore(str(tmp_path / "w"))
        runs = [row for row in store.rows(RUNS) if str(row["logical_date"]) == day]
        newest = max(runs, key=itemgetter("finished_at", "attempt"))["run_id"]
        metrics = read_rows(store, METRICS, run_id=newest, metric="ndcg", k=5)
        return [(row.value, row.n) for row in metrics]

    def is_finished(day: date) -> bool:
        benchmark = fill_placeholders(load_benchmark(str(tmp_path / "file.yaml"), []), day)
        return find_finished_night(str(tmp_path / "w"), benchmark, day) is not None

    lists(tmp_path / "lists", list_held_out(0), 10)
    write_deltalake(tmp_path / "logs" / "2026-01-01", rows(10))
    write_deltalake(tmp_path / "logs" / "2026-01-02", rows(7, shift=3))
    assert after("2026-01-01") == [(1.0, 10)] and after("2026-01-02") == [(0.0, 7)]
    second = date(2026, 1, 2)
    assert is_finished(second)
    lists(tmp_path / "lists", list_held_out(3), 10)
    assert not is_finished(second)
    assert after("2026-01-02") == [(1.0, 7)]
    for users, more in ((5, []), (4, ["--force"])):
        assert is_finished(second)
        shutil.rmtree(tmp_path / "logs" / "2026-01-02")
        write_deltalake(tmp_path / "logs" / "2026-01-02", rows(users, shift=3))
        assert not is_finished(second)
        assert after("2026-01-02", *more) == [(1.0, users)]
