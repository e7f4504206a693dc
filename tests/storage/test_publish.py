from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from recbench_spark.errors import StoreError
from recbench_spark.storage import leases, makers, publish, seals
from recbench_spark.storage.leases import Lease, hold_lease

ROOT = Path(__file__).resolve().parents[2]


def publish_folder(target: Path, text: str) -> bool:
    with publish.private_path(target) as path:
        path.mkdir()
        (path / "a.txt").write_text(text)
        seals.write_seal(path)
        return publish.rename_folder(path, target)


def test_of_many_makers_of_a_file_one_wins_and_its_file_stays(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def make(n: int) -> bool:
        barrier.wait()
        return publish.publish_file(tmp_path / "x", lambda path: path.write_text(str(n) * 1000))

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(make, range(8)))
    assert won.count(True) == 1
    assert (tmp_path / "x").read_text() == str(won.index(True)) * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_disk_that_links_no_files_gets_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert publish.publish_file(tmp_path / "x", lambda path: path.write_text("1"))
    assert not publish.publish_file(tmp_path / "x", lambda path: path.write_text("2"))
    assert (tmp_path / "x").read_text() == "1"


def test_of_two_makers_of_a_folder_the_second_uses_the_first_ones(tmp_path: Path) -> None:
    assert publish_folder(tmp_path / "d", "one")
    assert not publish_folder(tmp_path / "d", "two")
    assert (tmp_path / "d" / "a.txt").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_maker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publish.publish_file(tmp_path / "d", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "and 4 were written"),
        (lambda path: path.write_bytes(b"abcX"), "other bytes"),
    ],
)
def test_a_seal_tells_damage_of_every_kind(tmp_path: Path, spoil, words: str) -> None:
    publish_folder(tmp_path / "d", "abcd")
    assert seals.find_damage(tmp_path / "d", digests=True) == ""
    spoil(tmp_path / "d" / "a.txt")
    assert words in seals.find_damage(tmp_path / "d", digests=True)


def test_a_seal_itself_may_be_cut_short(tmp_path: Path) -> None:
    publish_folder(tmp_path / "d", "x")
    (tmp_path / "d" / seals.SEAL).write_text('{"a.txt": [1')
    assert "cannot be read" in seals.find_damage(tmp_path / "d")


def test_a_uri_of_a_file_is_a_path_and_a_remote_one_is_refused() -> None:
    assert publish.local_path("file:///a/b c") == Path("/a/b c")
    assert publish.local_path("/a%20b") == Path("/a%20b")
    with pytest.raises(StoreError, match="s3://bucket/x is not a folder"):
        publish.local_path("s3://bucket/x")


# ---------------------------------------------------------------------------------------- leases


def is_there(target: Path):
    return target.exists


def test_a_lease_publishes_its_work_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "g"
    with hold_lease(target, is_there(target)) as lease:
        assert lease is not None and leases.is_held(target)
        (lease.work / "a").write_text("1")
        lease.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    with hold_lease(target, is_there(target)) as second:
        assert second is None


def test_work_of_a_failed_owner_is_taken_over_at_once(tmp_path: Path) -> None:
    target = tmp_path / "g"
    with pytest.raises(ValueError, match="half"), hold_lease(target, is_there(target)) as lease:
        assert lease is not None
        (lease.work / "checkpoint").write_text("7")
        raise ValueError("half")
    with hold_lease(target, is_there(target)) as lease:
        assert lease is not None and lease.epoch == 2
        assert (lease.work / "checkpoint").read_text() == "7"
        lease.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow: as on a full disk, names can be made, bytes cannot.

    The limit ends with the context: pytest may report to a file.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_lease_that_a_full_disk_cannot_take_is_held_by_nobody(tmp_path: Path) -> None:
    target = tmp_path / "g"
    with full_disk(), pytest.raises(OSError, match="File too large"), hold_lease(target, is_there(target)):
        pytest.fail("there is no lease without room")
    assert list(tmp_path.iterdir()) == []


def test_work_of_an_owner_that_a_full_disk_ended_is_taken_over_at_once(tmp_path: Path) -> None:
    target, failed = tmp_path / "g", pytest.raises(OSError, match="File too large")
    with ExitStack() as disk, failed, hold_lease(target, is_there(target)) as lease:
        assert lease is not None
        disk.enter_context(full_disk())
        (lease.work / "checkpoint").write_text("7")
    assert not leases.is_held(target)


OWNER = """
import os, sys, time
from pathlib import Path
from recbench_spark.storage.leases import hold_lease
target = Path(sys.argv[1])
with hold_lease(target, target.exists) as lease:
    (lease.work / "checkpoint").write_text("7")
    print("holds", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    lease.publish()
"""


def start_owner(target: Path, signal: str) -> subprocess.Popen[str]:
    """Start a process that holds the lease of a target until a file beside it exists."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(target), str(target.with_name(signal))],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    return process


def test_the_second_of_two_processes_waits_and_uses_the_first_ones(tmp_path: Path) -> None:
    target, lines = tmp_path / "g", list[str]()
    owner = start_owner(target, "go")
    assert leases.is_held(target)

    def report(line: str) -> None:
        lines.append(line)
        (tmp_path / "go").touch()

    with hold_lease(target, is_there(target), report) as lease:
        assert lease is None
    assert owner.wait() == 0 and (target / "checkpoint").read_text() == "7"
    assert lines and f"process {owner.pid}" in lines[0]


def test_who_waits_is_told_for_whom_how_long_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner hangs: its lease is touched, and it makes nothing. When it is ended the second goes on."""
    monkeypatch.setattr(leases, "REPORT_SECONDS", 1.0)
    target, lines = tmp_path / "g", list[str]()
    owner = start_owner(target, "never")

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            owner.kill()
            owner.wait()

    with hold_lease(target, is_there(target), report) as lease:
        assert lease is not None and (lease.work / "checkpoint").read_text() == "7"
    assert len(lines) == 3 and all(f"process {owner.pid} of host" in line for line in lines)
    assert "since" not in lines[0] and "waiting for it since 0.0 minutes" in lines[1]
    assert "if it hangs, end that process, and this run goes on" in lines[2]


def test_a_killed_process_loses_its_lease_at_once_and_its_work_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "g"
    owner = start_owner(target, "never")
    owner.kill()
    owner.wait()
    began = time.monotonic()
    with hold_lease(target, is_there(target)) as lease:
        assert lease is not None and (lease.work / "checkpoint").read_text() == "7"
    assert time.monotonic() - began < leases.DEAD_SECONDS / 2


def test_an_owner_of_another_host_is_dead_after_a_minute_by_the_storages_clock(tmp_path: Path) -> None:
    target = tmp_path / "g"
    file = Path(Lease(str(target), 1).file)
    other = makers.Maker("elsewhere", "another boot", "pid:[1]", 1, "5")
    file.write_text(leases.json.dumps(other.to_json()))
    assert leases.is_held(target)
    past = file.stat().st_mtime - leases.DEAD_SECONDS - 1
    os.utime(file, (past, past))
    assert not leases.is_held(target)


def test_the_clock_of_a_host_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert 0 <= publish.age_seconds(tmp_path / "x") < 30


def test_an_owner_that_slept_finds_out_that_it_was_replaced(tmp_path: Path) -> None:
    target = tmp_path / "g"
    with hold_lease(target, is_there(target)) as sleeper:
        assert sleeper is not None
        (sleeper.work / "a").write_text("1")
        successor = Lease(str(target), 2)
        assert successor.files.put(successor.file, b"of the successor")
        successor.files.take_over(successor.target, 2)
        with pytest.raises(StoreError, match="another run has taken over"):
            sleeper.publish()
        assert not sleeper.work.exists() and (successor.work / "a").exists()


def test_of_many_processes_one_takes_over_and_the_others_use_its_work(tmp_path: Path) -> None:
    """Threads stand for processes: an epoch is taken by exclusive creation, whoever asks."""
    target = tmp_path / "g"
    owner = start_owner(target, "never")
    owner.kill()
    owner.wait()
    barrier, epochs = Barrier(6), list[int]()

    def run(_: int) -> None:
        barrier.wait()
        with hold_lease(target, is_there(target), lambda _: None) as lease:
            if lease is not None:
                epochs.append(lease.epoch)
                time.sleep(0.2)
                lease.publish()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    assert len(epochs) == 1 and [path.name for path in tmp_path.iterdir()] == ["g"]


def test_leftovers_go_when_all_in_them_is_old(tmp_path: Path) -> None:
    old, fresh = tmp_path / makers.private_name("old"), tmp_path / makers.private_name("fresh")
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "part").write_text("x")
    past = old.stat().st_mtime - publish.LEFTOVER_SECONDS - 1
    for path in (old / "part", old, fresh):
        os.utime(path, (past, past))
    assert publish.remove_leftovers(tmp_path) == 1
    assert fresh.exists() and not old.exists()
