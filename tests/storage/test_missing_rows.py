"""Rows that equal jobs append at the same moment stand once: by two processes, and by Spark's MERGE."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.boards.entries import Entry
from recbench_spark.boards.verdicts import TuningReason, TuningVerdict
from recbench_spark.models.fits.table import ROW_KEY, append_fits
from recbench_spark.schemas import BOARDS, FITS, TRIALS, VERDICTS, arrow_rows
from recbench_spark.storage import delta_files
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import open_table
from recbench_spark.storage.store import Store
from recbench_spark.storage.table_sql import equality_condition
from recbench_spark.tuning.board_update import append_entries, read_newest_entries, write_verdicts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = """
import time
from functools import partial
from pathlib import Path
from recbench_spark import cli
from recbench_spark.storage import delta_files, retries
from recbench_spark.schemas import TRIALS, arrow_rows
from tests.storage.test_missing_rows import trial
def main(args):
    Path(args.place, f"ready-{time.time_ns()}").touch()
    while len(list(Path(args.place).glob("ready-*"))) < 2:
        time.sleep(0.001)
    for n in range(8):
        rows = arrow_rows([trial(n), trial(n + 1)], TRIALS)
        append = partial(delta_files.append_missing, args.folder, rows, ["trial_id", "status"])
        retries.retry_while(retries.is_delta_conflict, "write", append, 0.05)
    return 0
parser = cli.Parser("A writer.")
for name in ("folder", "place"):
    parser.add_argument(name)
cli.run(main, parser)
"""
"""A job: at Python's own end, threads of Arrow on a busy machine abort the process."""


def trial(number: int, status: str = "succeeded") -> dict[str, Any]:
    texts = ("search_id", "extends", "log_id", "suite", "model", "kind", "method")
    return {
        "trial_id": f"t{number}", "number": number, "budget": 4, "status": status, "finished_at": NOW,
        "searched": {"rates": 0.1}, **dict.fromkeys(texts, "x"),
    }  # fmt: skip


@pytest.mark.full
def test_two_processes_that_append_equal_rows_leave_each_once(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path / "w"))
    store.create(TRIALS)
    command = [sys.executable, "-c", WORKER, store.location("trials"), str(tmp_path)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate(timeout=120)[1], process.returncode) for process in both] == [("", 0)] * 2
    assert Counter(row["trial_id"] for row in store.rows(TRIALS)) == Counter(f"t{n}" for n in range(9))


def test_a_writer_that_looked_before_another_one_wrote_must_look_again(tmp_path: Path, monkeypatch) -> None:
    store = ArrowStore(str(tmp_path))
    store.create(TRIALS)
    place, rows = store.location("trials"), arrow_rows([trial(1)], TRIALS)
    old = open_table(place)
    assert delta_files.append_missing(place, rows, ["trial_id"]) == 1
    monkeypatch.setattr(delta_files, "open_for_write", lambda _: nullcontext(old))
    with pytest.raises(delta_files.ConflictError):
        delta_files.append_missing(place, rows, ["trial_id"])
    monkeypatch.undo()
    assert delta_files.append_missing(place, rows, ["trial_id"]) == 0


def test_rows_that_somebody_deleted_come_again_and_earlier_rows_may_not_count(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path))
    store.create(TRIALS)
    place, rows = store.location("trials"), arrow_rows([trial(1)], TRIALS)
    assert delta_files.append_missing(place, rows, ["trial_id"]) == 1
    open_table(place).delete("trial_id = 't1'")
    assert delta_files.append_missing(place, rows, ["trial_id"]) == 1
    before = ("finished_at", NOW - timedelta(seconds=1))
    assert delta_files.append_missing(place, rows, ["trial_id"], before) == 0
    assert delta_files.append_missing(place, rows, ["trial_id"], ("finished_at", NOW)) == 1


@pytest.fixture(params=["folder", "MERGE"])
def store(spark, tmp_path: Path, request, monkeypatch) -> Store:
    """A warehouse that `deltalake` reaches, and one in which Spark writes, as in a catalog."""
    if request.param == "MERGE":
        monkeypatch.setattr(Store, "_uses_deltalake", lambda *_: False)
    return Store(spark, str(tmp_path / "w"))


def at_once(times: int, action: Any) -> None:
    with ThreadPoolExecutor(times) as pool:
        list(pool.map(lambda _: action(), range(times)))


def fit(status: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {
        "fit_id": "f", "model": "m", "kind": "means", "seed": 1, "status": status, "files": "/w/f",
        "rmse_by_part": {"test": 0.5}, "rmse_by_step": [0.6, 0.5], "started_at": NOW.isoformat(), **more,
    }  # fmt: skip


def test_equal_fits_trials_entries_and_verdicts_stand_once(store: Store) -> None:
    facts = {"log_id": "l", "suite": "s", "dataset": "d", "split": "p", "purpose": "benchmark"}
    entry = Entry(
        "b", "ours", "d", "p", "rmse", True, "m", "m", 0.5, year=2026, fold_values={0: 0.4, 1: 0.6}
    )
    verdict = TuningVerdict("m", (TuningReason("edge", "lies on the edge"),))

    def end_job() -> None:
        append_fits(store, [fit(), fit("failed")], facts)
        store.append_missing([trial(1)], TRIALS, ("trial_id", "status"))
        append_entries(store, [entry])
        write_verdicts(store, "b", {"e": verdict})

    at_once(2, end_job)
    assert {table.name: store.read(table).count() for table in (FITS, TRIALS, BOARDS, VERDICTS)} == {
        "fits": 2, "trials": 1, "boards": 1, "verdicts": 1,
    }  # fmt: skip
    row = (
        store.read(FITS)
        .where("status = 'succeeded'")
        .selectExpr("rmse_by_part", "CAST(started_at AS STRING)")
    )
    assert tuple(row.first()) == ({"test": 0.5}, "2026-01-01 00:00:00")
    append_fits(store, [fit("failed", started_at="2026-01-02T00:00:00+00:00")], facts)
    append_fits(store, [fit()], {**facts, "suite": "other"})
    assert store.read(FITS).count() == 4, "another attempt that failed, another benchmark"

    (entry_id,) = read_newest_entries(store, ["b"])
    for seconds in (2.0, 1.0, 2.0):
        searched = Entry(**{**vars(entry), "budget_settings": 4, "budget_seconds": seconds})
        assert append_entries(store, [searched]) == 1
        assert read_newest_entries(store, ["b"])[entry_id].budget_seconds == seconds, (
            "also one that was there"
        )
    assert append_entries(store, [searched]) == 0
    write_verdicts(store, "b", {})
    assert store.read(VERDICTS).count() == 0


def test_a_fit_whose_old_row_has_an_absolute_path_stands_once(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path))
    store.create(FITS)
    place = store.location("fits")

    def append(files: str | None) -> int:
        facts = dict.fromkeys(("log_id", "suite", "dataset", "split", "purpose", "code_version"), "x")
        row = fit(files=files, started_at=NOW, finished_at=NOW, **facts)
        return delta_files.append_missing(place, arrow_rows([row], FITS), ROW_KEY)

    assert append("/old/fit_files/f") == 1
    assert append("fit_files/f") == 0
    assert append(None) == 1, "a fit of which nothing is left is another row"


def test_sql_compares_the_files_of_fits_by_whether_they_are_there() -> None:
    conditions = [equality_condition(FITS, name) for name in ROW_KEY]
    assert conditions[-1] == "(there.files IS NULL) = (new.files IS NULL)"
    assert "there.fit_id <=> new.fit_id" in conditions


def test_rows_beside_deleted_ones_can_be_filtered(tmp_path: Path) -> None:
    """A deletion writes a file again; Arrow had no filter for its type of texts where all are equal."""
    store = ArrowStore(str(tmp_path))
    store.append([trial(n) for n in (1, 2, 3)], TRIALS)
    store.delete(TRIALS.name, "trial_id", ["t1"])
    (suite,) = {row["suite"] for row in store.rows(TRIALS)}
    kept = store.rows(TRIALS, [("suite", "=", suite), ("trial_id", "!=", "t2")], ["trial_id"])
    assert [row["trial_id"] for row in kept] == ["t3"]
