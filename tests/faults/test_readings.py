"""The slow readings of warehouses, splits and ends of jobs report faults made on purpose. No JVM."""

from __future__ import annotations

import copy
import math
import random
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from recbench_spark.config import Benchmark, make_benchmark, parse
from recbench_spark.core.definitions import make_definition
from tests.cluster.processes import start_process
from tests.faults import (
    cells,
    disks,
    jobs,
    kills,
    machine,
    moved,
    names,
    nights,
    pairs,
    spark,
    starting,
    times,
    undisturbed,
    warehouses,
)
from tests.faults.campaign import Case
from tests.faults.inputs import TINY
from tests.faults.parts import PARTS
from tests.faults.warm import End

DAY = datetime(2026, 1, 1, tzinfo=UTC).date()


def warehouse(folder: Path, values: dict[str, list[float]], statuses: dict[str, str]) -> Path:
    """Write runs by id with a status, and rows of `metrics` by run."""
    runs = [
        {"run_id": run, "suite": "s", "logical_date": DAY, "model": run[-1], "status": status, "attempt": 1}
        for run, status in statuses.items()
    ]
    rows = [{"run_id": run, "value": value} for run, run_values in values.items() for value in run_values]
    write_deltalake(str(folder / "runs"), pa.Table.from_pylist(runs))
    write_deltalake(str(folder / "metrics"), pa.Table.from_pylist(rows))
    return folder


RUNS = {"20260101T000000-20260101-a": "succeeded", "20260101T000000-20260101-b": "succeeded"}
A, B = RUNS
VALUES = {A: [0.5, 0.25], B: [0.125]}


def test_rows_of_two_equal_runs_stand_twice_and_others_once(tmp_path: Path) -> None:
    one, other, again = (
        f"2026010{n}T000000-20260101-{name}-0000000{name}" for n, name in ((1, "a"), (1, "b"), (2, "a"))
    )
    values, runs = {one: [0.5, 0.25], other: [0.125]}, {one: "succeeded", other: "succeeded"}
    both = {**runs, again: "succeeded"}
    wanted = warehouses.read_rows(warehouse(tmp_path / "right", values, runs))

    def compare(folder: str, values: dict[str, list[float]], runs: dict[str, str]) -> list[str]:
        folder_made = warehouse(tmp_path / folder, values, runs)
        return warehouses.compare_repeated(
            wanted, warehouses.read_rows(folder_made), warehouses.count_runs(folder_made)
        )

    assert compare("twice", {**values, again: [0.5, 0.25]}, both) == []
    (wrong,) = compare("half", {**values, again: [0.5]}, both)
    assert wrong.startswith("metrics: 0 rows that no single run shows, 0 lost, 1 doubled")
    (wrong,) = compare("other", {one: [0.5], other: [0.25]}, runs)
    assert wrong.startswith("metrics: 1 rows that no single run shows, 2 lost, 0 doubled")
    assert warehouses.compare_repeated({"fits": Counter("a")}, {"fits": Counter("aa")}, Counter()) == [
        "fits: 0 rows that no single run shows, 0 lost, 1 doubled, e.g. a"
    ], "what belongs to no run stands there once"


def test_a_job_that_asks_for_more_than_to_be_run_again_is_seen() -> None:
    job = jobs.JOBS[0]
    again = End(1, "error: another run is at work\n  hint: run the same command again", 1.0)
    repair = End(1, "error: no table\n  hint: delete the folder", 1.0)
    assert pairs.ends_wrong([job, job], [End(0, "", 1.0), again]) is None
    assert "asks for more" in str(pairs.ends_wrong([job, job], [again, repair]))
    assert "exit code -9" in str(pairs.ends_wrong([job, job], [again, End(-9, "hangs", 1.0)]))
    assert pairs.too_few([jobs.NAMED["evaluate-local"]] * 2, [again, again], Counter({"m": 1}))
    assert not pairs.too_few([jobs.NAMED["evaluate-local"]] * 2, [again, again], Counter({"m": 2}))


def test_every_job_meets_itself_and_every_name() -> None:
    assert {job.title for job in jobs.JOBS} == {one for one, other in pairs.PAIRS if one == other}
    assert {name for pair in pairs.PAIRS for name in pair} == {job.title for job in names.ALL}
    assert set(disks.JOBS) == set(jobs.NAMED)
    cases = range(len(names.ODD_NAMES) * len(names.ALL))
    met = {(names.choose_job(n)[0], names.choose_job(n)[1].title) for n in cases}
    assert len(met) == len(cases) == PARTS["names"].aim


def test_a_job_that_writes_where_a_warehouse_was_is_seen(tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "runs").mkdir(parents=True)
    (old / "runs" / "a").write_bytes(b"12345")
    left = moved.poison(old, random.Random(1))
    assert len(left["runs/a"]) == 5 and left["runs/a"] != b"12345" and moved.find_writes(old, left) is None
    (old / "runs" / "b").touch()
    assert moved.find_writes(old, left) == "wrote at the old place: ['runs/b']"
    assert moved.find_writes(tmp_path / "gone", {}) is None


def test_another_number_of_rows_under_an_odd_name_is_seen() -> None:
    one, two = {"runs": Counter("ab")}, {"runs": Counter("cd"), "fits": Counter()}
    assert names.amounts_differ(one, {"runs": Counter("xy")}) is None
    assert "('fits', None, 0)" in str(names.amounts_differ(one, two))


@pytest.mark.skipif(shutil.which("cc") is None, reason="the library is compiled")
def test_a_clock_is_moved_and_the_times_of_files_are_not(tmp_path: Path) -> None:
    code = "import os, sys, time; open('f', 'w'); print(time.time() - os.stat('f').st_mtime)"
    env = {"LD_PRELOAD": str(times.build_clock_library(tmp_path)), "FAULTS_SHIFT": "-7200"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert abs(float(ran.stdout) + 7200) < 600


def test_rows_lost_doubled_and_moved_by_a_bit_are_seen(tmp_path: Path) -> None:
    wanted = warehouses.read_rows(warehouse(tmp_path / "right", VALUES, RUNS))
    same = warehouse(tmp_path / "same", {B: [0.125], A: [0.25, 0.5]}, RUNS)
    assert warehouses.find_differences(wanted, warehouses.read_rows(same)) == []
    for n, values in enumerate(({A: [0.5], B: [0.125]}, {A: [0.5, 0.25, 0.25], B: [0.125]},
                                {A: [0.5, 0.25 + 2**-54], B: [0.125]})):  # fmt: skip
        lines = warehouses.find_differences(
            wanted, warehouses.read_rows(warehouse(tmp_path / str(n), values, RUNS))
        )
        assert len(lines) == 1 and lines[0].startswith("metrics: "), lines
    assert (
        "1 new (1 doubled)"
        in warehouses.find_differences(
            wanted,
            warehouses.read_rows(warehouse(tmp_path / "twice", {A: [0.5, 0.25, 0.5], B: [0.125]}, RUNS)),
        )[0]
    )


def test_what_a_killed_run_left_shows_nowhere_unless_it_is_published(tmp_path: Path) -> None:
    wanted = warehouses.read_rows(warehouse(tmp_path / "right", VALUES, RUNS))
    orphan = "20260101T000000-20260101-c"
    left = warehouse(tmp_path / "left", {**VALUES, orphan: [1.0]}, RUNS)
    assert warehouses.find_differences(wanted, warehouses.read_rows(left)) == []
    known = undisturbed.Reference(wanted, set(), 1.0, {})
    half = warehouse(tmp_path / "half", {A: [0.5, 0.75]}, {A: "succeeded"})
    (problem,) = undisturbed.find_odd_rows(jobs.JOBS[0], known, {}, half)
    assert problem.startswith("metrics: 1 rows that no whole run shows")
    assert undisturbed.find_odd_rows(jobs.JOBS[0], known, {}, tmp_path / "none") == []


def test_only_what_differs_undisturbed_is_left_out(tmp_path: Path) -> None:
    one = warehouse(tmp_path / "one", {A: [0.5]}, RUNS)
    other = warehouse(tmp_path / "other", {A: [0.75]}, RUNS)
    assert warehouses.find_varying_columns(one, other) == {"metrics.value"}


ROWS = [("u", "a", 3.0, 100, "x"), ("u", "b", 4.0, 200, "x"), ("u", "b", 5.0, 300, "x")]


def split_rows(*parts: str) -> list[dict[str, Any]]:
    rows = [("u", "a", 3.0, 100), ("u", "b", 5.0, 300)]
    return [
        {
            "user_id": u,
            "item_id": i,
            "rating": r,
            "event_time": t * 1_000_000,
            "part": part,
        }
        for (u, i, r, t), part in zip(rows, parts, strict=True)
    ]


def test_a_lost_row_a_wrong_duplicate_and_a_leak_are_seen() -> None:
    last = SimpleNamespace(dataset=SimpleNamespace(duplicates="keep_last"))
    first = SimpleNamespace(dataset=SimpleNamespace(duplicates="keep_first"))
    right = split_rows("train", "test")
    assert nights.rows_are_wrong(last, ROWS, right) is None
    assert "1 rows lost" in str(nights.rows_are_wrong(last, ROWS, right[:1]))
    assert "1 new" in str(nights.rows_are_wrong(last, ROWS, [*right, right[0]]))
    assert nights.rows_are_wrong(first, ROWS, right) is not None
    split: Any = SimpleNamespace(
        group="user", parts=("test",), temporal=True, held_out=None, holdout="last_n", n=1
    )
    assert nights.labels_are_wrong(split, right) is None
    assert "later than a held-out one" in str(nights.labels_are_wrong(split, split_rows("test", "train")))
    split.temporal = False
    assert "0 of 2 rows are tested" in str(nights.labels_are_wrong(split, split_rows("train", "train")))


@pytest.mark.parametrize(("value", "n", "wrong"), [(1.0, 1, False), (0.5, 1, True), (1.0, 2, True)])
def test_a_wrong_mean_and_a_wrong_number_of_users_are_seen(value: float, n: int, wrong: bool) -> None:
    users: nights.Users = [({0: 2.0, 1: 1.0}, {0: 1.0})]
    row = {"metric": "recall", "k": 1, "value": value, "n": n}
    problem = nights.value_is_wrong(row, users, make_definition())
    assert (problem is not None) == wrong and (not wrong or "SILENTLY WRONG" in str(problem))


@pytest.mark.parametrize(
    ("code", "said", "wrong"),
    [
        (0, "fine", None),
        (1, "error: the disk is full\n  hint: make space", None),
        (1, "error: internal error: KeyError\n  hint: report it", "a trace"),
        (1, 'error: x\n  File "a.py", line 3\n  hint: y', "a trace"),
        (1, "killed", "without a sentence"),
        (-9, "", "exit code -9"),
    ],
)
def test_an_end_without_a_sentence_is_seen(code: int, said: str, wrong: str | None) -> None:
    problem = starting.find_bad_end(code, said)
    assert problem is None if wrong is None else wrong in str(problem)


def clear_deeply(node: Any) -> None:
    """Clear in place, down to the bottom: more than any mutation does."""
    for inner in list(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()):
        clear_deeply(inner)
    if isinstance(node, dict | list):
        node.clear()


def test_nights_that_are_drawn_load_and_share_nothing() -> None:
    def drawn() -> list[dict[str, Any]]:
        return [nights.draw_document(random.Random(seed), Path("log.csv")) for seed in range(30)]

    before = drawn()
    for document in drawn():
        make_benchmark(copy.deepcopy(document), (), "a drawn file")
        clear_deeply(document)
    assert drawn() == before


def test_what_validation_held_out_is_no_candidate_of_the_test() -> None:
    splits = [{"user_id": "u", "item_id": item, "part": part, "rating": 1.0}
              for item, part in (("a", "train"), ("b", "valid"), ("c", "test"))]  # fmt: skip
    place, count = {"a": 0, "b": 1, "c": 2, "d": 3}, Counter({"a": 1})
    for part, candidates in (("test", {2, 3}), ("valid", {1, 2, 3})):
        ((scores, _),) = nights.list_users(part, splits, count, place, make_definition())
        assert set(scores) == candidates


def test_lines_that_are_no_rows_are_seen() -> None:
    raw = b"user_id,item_id,rating\nu,a,1\nu,b,2\n"
    rows = [{"user_id": "u", "item_id": "a"}, {"user_id": "u", "item_id": "b"}]
    assert machine.find_wrong_lines(raw, rows) is None
    assert "1 lines lost" in str(machine.find_wrong_lines(raw, rows[:1]))
    assert "1 rows of no line" in str(
        machine.find_wrong_lines(raw, [*rows, {"user_id": "u", "item_id": "c"}])
    )


def test_rows_of_as_many_runs_as_were_published() -> None:
    assert undisturbed.multiply_rows({"metrics": Counter({"a": 1})}, 2) == {"metrics": Counter({"a": 2})}
    assert undisturbed.find_rows_without_run({"metrics": Counter({"a": 1}), "runs": Counter()}) == [
        "metrics shows rows without a run"
    ]


def test_what_a_job_did_is_counted_and_a_moment_lies_ahead() -> None:
    before = {"w/runs/_delta_log/00.json", "w/runs/a.parquet"}
    now = {"w/runs/_delta_log/00.json", "w/runs/_delta_log/01.json", "w/runs/b.parquet"}
    assert undisturbed.count_events(before, now, "one\ntwo\n") == {"commit": 1, "file": 2, "line": 2}
    known = undisturbed.Reference({}, set(), 10.0, {"commit": 9, "file": 40, "line": 5})
    chance, done = random.Random(1), {"commit": 6, "file": 40, "line": 0}
    moments = [kills.draw_moment(chance, known, done) for _ in range(400)]
    kinds = {(moment.kind, moment.nth) for moment in moments}
    lines, commits = {("line", n) for n in range(1, 6)}, {("commit", n) for n in range(1, 4)}
    assert kinds == {("seconds", 0), ("file", 1), *lines, *commits}
    assert all(0.2 <= m.delay <= 10 if m.kind == "seconds" else 0 <= m.delay < 1 for m in moments)


def test_a_kill_comes_after_its_event_and_spares_what_was_done(tmp_path: Path) -> None:
    script = "import os, time; "
    script += "os.posix_spawnp('sleep', ['sleep', '60'], os.environ, setpgroup=0); open('w/a', 'w')"
    for rest, alive in (("; time.sleep(60)", True), ("", False)):
        (tmp_path / "w").mkdir(exist_ok=True)
        command = [sys.executable, "-c", script + rest]
        with start_process(command, tmp_path / "log", tmp_path) as process:
            moment = kills.Moment("file", 1 if alive else 2, 0.1)
            assert kills.kill_at(process, moment, tmp_path / "w", set()) == alive
            assert process.children() == []  # also who had left the group
            assert process.popen.returncode == (-9 if alive else 0)


def test_retention_that_leaves_or_takes_too_much_is_seen(tmp_path: Path) -> None:
    before, nights_of = tmp_path / "three_nights" / "w", {"old": "2026-01-01", "new": jobs.LATE}
    runs = [{"run_id": run, "logical_date": day} for run, day in nights_of.items()]
    write_deltalake(str(before / "runs"), pa.Table.from_pylist(runs))
    for name in jobs.RESULTS:
        rows = [{"run_id": run, "value": 1.0} for run in (*nights_of, *jobs.ORPHANS)]
        write_deltalake(str(before / name), pa.Table.from_pylist(rows))
    gone = {("rankings", "old"), ("user_metrics", "old"), *((n, jobs.ORPHANS[0]) for n in jobs.RESULTS)}
    more, less = gone | {("metrics", "new")}, gone - {("metrics", jobs.ORPHANS[0])}
    for folder, removed, wrong in (("a", gone, 0), ("b", more, 1), ("c", less, 1), ("d", set(), 4)):
        shutil.copytree(before, tmp_path / folder)
        for name, run in removed:
            DeltaTable(tmp_path / folder / name).delete(f"run_id = '{run}'")
        assert len(jobs.check_retention(tmp_path, tmp_path / folder)) == wrong, folder


def test_the_night_that_is_killed_is_a_night() -> None:
    assert parse(Benchmark, TINY, "kills").comparisons is not None


@pytest.mark.parametrize(
    ("number", "code", "said", "wrong"),
    [
        (False, 1, "error: NaN\n  hint: leave it out", None),
        (False, 0, "", "taken"),
        (False, 1, "error: NaN", "no sentence with a hint"),
        (False, 1, "Traceback (most recent call last)", "a trace"),
        (True, 0, "", None),
        (True, 1, "error: x\n  hint: y", "a number is refused"),
    ],
)
def test_a_cell_that_is_taken_or_ends_without_a_sentence_is_seen(
    number: bool, code: int, said: str, wrong: str | None
) -> None:
    problem = cells.find_problem(number, code, said)
    assert problem is None if wrong is None else wrong in str(problem)


def test_users_that_do_not_make_the_mean_are_seen(tmp_path: Path) -> None:
    for n, (values, wrong) in enumerate((([1.0, 0.5, None], 0), ([1.0, 0.5, math.nan], 1), ([1.0, 0.5], 0),
                                         ([1.0, 0.5, 0.75], 1), ([1.0, 0.25, None], 1))):  # fmt: skip
        rows = [{"metric": "ndcg", "ks": [3], "values": [value]} for value in values]
        write_deltalake(str(tmp_path / str(n) / "user_metrics"), pa.Table.from_pylist(rows))
        problem = spark.users_differ({("ndcg", 3): (0.75, 2)}, tmp_path / str(n))
        assert bool(problem) == bool(wrong), values


def test_a_lock_that_does_not_lock_is_seen(monkeypatch, tmp_path: Path) -> None:
    """A copy of the package is tested without the one line that locks."""
    shutil.copytree(machine.ROOT / "recbench_spark", tmp_path / "recbench_spark")
    file = tmp_path / "recbench_spark" / "storage" / "shared_arrays.py"
    line = "        fcntl.flock(handle, fcntl.LOCK_EX)\n"
    assert line in file.read_text()
    file.write_text(file.read_text().replace(line, ""))
    for root, status in ((machine.ROOT, "passed"), (tmp_path, "failed")):
        monkeypatch.setattr(machine, "ROOT", root)
        folder = tmp_path / status
        folder.mkdir()
        verdict = machine.map_at_once(Case("machine", 1, 15, folder), random.Random(1), folder)
        assert verdict.status == status, verdict.message
