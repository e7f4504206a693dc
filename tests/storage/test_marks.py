from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from recbench_spark.errors import StoreError
from recbench_spark.night.night import hold_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RUNS
from recbench_spark.storage import marks, uris
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.publish import read_clock
from recbench_spark.storage.table_folders import try_create_local
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys, time
from pathlib import Path
from recbench_spark.storage.marks import note_run
note_run(Path(sys.argv[1]), "20200101T000000-run-a")
note_run(Path(sys.argv[1]), "20200101T000000-run-b")
print("works", flush=True)
sys.stdin.read()
"""


def start_worker(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "works\n"
    return process


def test_runs_of_a_living_process_are_at_work_and_those_of_a_killed_one_are_not(tmp_path: Path) -> None:
    worker = start_worker(tmp_path)
    assert marks.runs_at_work(tmp_path) == {"20200101T000000-run-a", "20200101T000000-run-b"}
    since = marks.oldest_work(tmp_path)
    assert since is not None and abs(since - read_clock(tmp_path)) < 60
    worker.kill()
    worker.wait()
    assert marks.runs_at_work(tmp_path) == set() and marks.oldest_work(tmp_path) is None


def test_a_process_whose_runs_are_over_leaves_no_mark_while_it_lives_on(tmp_path: Path) -> None:
    marks.note_run(tmp_path, "20200101T000000-run-c")
    assert marks.runs_at_work(tmp_path) == {"20200101T000000-run-c"}
    marks.end_runs(tmp_path)
    assert marks.runs_at_work(tmp_path) == set() and not (tmp_path / marks.MARKS_FOLDER).exists()


def test_a_process_that_ends_leaves_no_mark(tmp_path: Path) -> None:
    worker = start_worker(tmp_path)
    assert worker.communicate("")[0] == "" and worker.returncode == 0
    assert not (tmp_path / marks.MARKS_FOLDER).exists()


def test_a_process_of_another_container_is_another_one_though_host_and_number_are_equal(
    tmp_path: Path,
) -> None:
    marks.note_run(tmp_path, "20200101T000000-run-d")
    assert marks.list_others_at_work(tmp_path) == []
    (mark,) = (tmp_path / marks.MARKS_FOLDER).iterdir()
    lines = mark.read_text().splitlines()
    elsewhere = {**json.loads(lines[0]), "namespace": "pid:[1]"}
    mark.with_name("elsewhere").write_text("\n".join([json.dumps(elsewhere), *lines[1:]]))
    others = f"process {os.getpid()} of host {elsewhere['host']}"
    assert marks.list_others_at_work(tmp_path) == [others]
    mark.with_name("elsewhere").unlink()
    marks.end_runs(tmp_path)


def test_a_vacuum_spares_what_was_written_since_the_oldest_run_began(tmp_path: Path) -> None:
    assert marks.count_hours_to_keep(tmp_path, 24) == 24
    worker = start_worker(tmp_path)
    (mark,) = (tmp_path / marks.MARKS_FOLDER).iterdir()
    lines = mark.read_text().splitlines()
    since = read_clock(tmp_path) - 40 * 3600
    first = json.dumps({**json.loads(lines[0]), "since": since})
    mark.write_text("\n".join([first, *lines[1:]]) + "\n")
    assert marks.count_hours_to_keep(tmp_path, 24) == 42
    worker.communicate("")


def test_a_host_whose_clock_is_ahead_keeps_as_many_hours_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = marks_time() + 30 * 3600
    monkeypatch.setattr("recbench_spark.storage.marks.time.time", lambda: ahead)
    assert 53 <= marks.count_hours_to_keep(tmp_path, 24) <= 55


def marks_time() -> float:

    return time.time()


def test_a_full_disk_leaves_no_table_without_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(StoreError, match="No space left"):
        try_create_local(tmp_path / "runs", RUNS)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ("fit_files/ab", "/new/wh/fit_files/ab"),
        ("/old/wh/fit_files/ab", "/new/wh/fit_files/ab"),
        ("file:///old/fit_files/x/fit_files/ab", "/new/wh/fit_files/ab"),
        ("/new/wh/fit_files/ab", "/new/wh/fit_files/ab"),
        ("/elsewhere/ab", "/elsewhere/ab"),
    ],
)
def test_a_stored_path_means_a_place_below_todays_root(stored: str, meant: str) -> None:
    assert uris.resolve_path(stored, Path("/new/wh"), "fit_files") == Path(meant)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/wh/fit_files/logs/a", "fit_files/logs/a"),
        ("file:///wh/fit_files/logs/a", "fit_files/logs/a"),
        ("/wh/logs/a", "/wh/logs/a"),
        ("/elsewhere/fit_files/a", "/elsewhere/fit_files/a"),
        ("s3a://bucket/fit_files/a", "s3a://bucket/fit_files/a"),
        ("log.csv", "log.csv"),
    ],
)
def test_a_row_names_a_log_of_the_warehouse_relative_to_it(path: str, shown: str) -> None:
    assert uris.shorten_path(path, Path("/wh"), "fit_files") == shown
    assert uris.shorten_path(path, None, "fit_files") == path


def test_of_two_jobs_that_run_one_night_the_second_waits_and_leaves_nothing(tmp_path: Path) -> None:
    named = SimpleNamespace(name="suite")
    night: Any = SimpleNamespace(
        store=ArrowStore(str(tmp_path)), benchmark=named, logical_date=date(2026, 1, 1)
    )
    lines, order, inside = io.StringIO(), list[str](), Barrier(2)

    def first() -> None:
        with hold_night(night, Journal(lines)):
            inside.wait()
            wait_until(lambda: "another run is making" in lines.getvalue())
            order.append("first")

    def second(part: str) -> None:
        with hold_night(night, Journal(lines), part):
            order.append(f"second {part}")

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(first)
        inside.wait()
        second("other models")
        second("")
        running.result()
    assert order == ["second other models", "first", "second "]
    assert "another run is making night-suite-2026-01-01" in lines.getvalue()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="x"), hold_night(night, Journal(lines)):
        raise ValueError("x")
    assert not list(tmp_path.iterdir())
