"""A fit on two processes is that of one; how they meet, their errors, their end, their going on."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import ConfigError, DataError, RecbenchError, StoreError
from recbench_spark.models.adapters import multiprocess_fit, processes
from recbench_spark.models.adapters.multiprocess_fit import (
    fit_multiprocess,
    follow_lines,
    raise_first,
    require_common_folder,
    split_minibatch,
)
from recbench_spark.models.adapters.processes import FailureNote, Job, run_processes
from recbench_spark.models.networks.fitting import fit, read_checkpoint
from recbench_spark.models.networks.settings import TrainingPlan
from tests.models.networks.test_fitting import factor_task, pair_task
from tests.waiting import wait_until

PLAN = TrainingPlan(epochs=2, batch=50, rate=0.05)


def test_shares_meet() -> None:
    result = split_minibatch((1, 2, 1))
    assert [(s.begin, s.end) for s in result] == [(0, 0.25), (0.25, 0.75), (0.75, 1)]
    rows = list(range(11))
    assert [row for s in result for row in s.rows(rows)] == rows
    with pytest.raises(ConfigError, match="shares"):
        split_minibatch((1, 0))


def own_negatives_task():
    """A task with negatives per pair: their number depends on the whole minibatch, not on a share of it."""
    task = pair_task()
    task.how = type(task.how)(**{**task.how.__dict__, "per_pair": True, "negatives": 200})
    return task


@pytest.fixture
def engine(request) -> SparkEngine | None:
    """The runner whose tasks run the processes; None: they run on the driver's host."""
    return None if request.param else SparkEngine(request.getfixturevalue("spark"))


TASKS = pytest.param(False, marks=pytest.mark.spark, id="tasks of Spark")
WAYS = pytest.mark.parametrize(
    "engine", [pytest.param(True, id="processes of the driver"), TASKS], indirect=True
)


def compare_with_one(tmp_path: Path, capfd, make, alone, engine=None) -> None:
    """Fit a task by two processes, and by one as `alone`: the same lines, losses and weights."""
    report, expected_told, both = [], [], alone()
    alone = alone()
    expected = fit(alone, PLAN, tmp_path / "one", expected_told.append)
    result = fit_multiprocess(make, PLAN, tmp_path / "two", (1, 3), report.append, engine=engine)
    assert [e.loss for e in result.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)
    assert [line[:21] for line in report] == [line[:21] for line in expected_told]
    assert not capfd.readouterr().out
    read_checkpoint(tmp_path / "two" / "best.safetensors", both.module, None)
    for name, w in alone.module.state_dict().items():
        assert torch.allclose(both.module.state_dict()[name], w, atol=1e-4)


@pytest.mark.full
def test_two_processes_fit_pairs_as_one_does(tmp_path, capfd) -> None:
    compare_with_one(tmp_path, capfd, own_negatives_task, own_negatives_task)


class Ending:
    """A task of which a process ends in the second epoch, the first time that it gets there."""

    def __init__(self, folder: str, how: str) -> None:
        self.inner, self.folder, self.how = factor_task(2), Path(folder), how

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def batch(self, at, row_b, seed):
        (self.folder / f"pid-{os.getpid()}").touch()
        ended = self.folder / "ended-here"
        if at[:2] == (2, 1) and torch.distributed.get_rank() == 1 and not ended.exists():
            ended.touch()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                sys.exit(0)
            raise DataError("no more", "rest")
        return self.inner.batch(at, row_b, seed)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def running(folder: Path) -> list[int]:
    pids = [int(path.name[4:]) for path in folder.glob("pid-*")]
    assert len(pids) == 2
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("killed", RecbenchError, r"ended without a message: signal 9\n"),
        ("exit", RuntimeError, r"a process of the fit: SystemExit: 0\n"),
    ],
)
def test_a_process_that_ends_is_told_leaves_nobody_behind_and_the_fit_goes_on(
    tmp_path, how, kind, words
) -> None:
    expected = fit(factor_task(2), PLAN, tmp_path / "one", str)
    make, report = partial(Ending, str(tmp_path), how), []
    with pytest.raises(kind, match=words):
        fit_multiprocess(make, PLAN, tmp_path / "two", (1, 1), report.append)
    assert not running(tmp_path)
    assert names(tmp_path / "two") == {"best.safetensors", "last.safetensors"}
    if how == "exit":
        return
    result = fit_multiprocess(make, PLAN, tmp_path / "two", (1, 1), report.append)
    assert [line.partition(":")[0] for line in report] == [
        "epoch 1",
        "resuming at epoch 2, step 0",
        "epoch 2",
    ]
    assert [e.loss for e in result.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)


@pytest.mark.full
@WAYS
def test_an_error_of_one_process_comes_out_as_it_is(tmp_path, capfd, engine) -> None:
    make = partial(Ending, str(tmp_path), "refused")
    with pytest.raises(DataError, match=r"^no more\n  hint: rest$"):
        fit_multiprocess(make, PLAN, tmp_path / "two", (1, 1), str, engine=engine)
    assert not running(tmp_path) and not capfd.readouterr().out


@pytest.mark.full
def test_a_process_finds_modules_where_the_one_that_starts_it_does(tmp_path, capfd, monkeypatch) -> None:
    """In an archive, as tasks of Spark find what --py-files brought: MF-BPR, sparse."""
    code = "from tests.models.networks.test_fitting import factor_task\ndef make(): return factor_task(0)\n"
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("only_there.py", code)
    monkeypatch.syspath_prepend(str(tmp_path / "theirs.zip"))
    make = importlib.import_module("only_there").make
    compare_with_one(tmp_path, capfd, make, make)


def test_which_error_is_told() -> None:
    """One with words of its own before others, the earliest of these; else what a process printed last."""
    silent = FailureNote(message="ModuleNotFoundError: No module named 'ours'", time=1)
    killed = FailureNote(message="signal 9", signal=True, time=9)
    odd = [FailureNote("", f"KeyError: '{n}'", "", "the trace", time=n) for n in (2, 1)]
    with pytest.raises(ConfigError, match=r"^third\n  hint: mend$"):
        raise_first([killed, *odd, FailureNote("ConfigError", "third", "mend", time=3)])
    with pytest.raises(RuntimeError, match=r"KeyError: '1'\nthe trace"):
        raise_first([killed, *odd])
    with pytest.raises(RecbenchError, match="without a message: signal 9\n"):
        raise_first([silent, killed])
    with pytest.raises(
        RecbenchError, match="without a message: ModuleNotFoundError: No module named 'ours'\n"
    ):
        raise_first([silent])
    raise_first([])


def unreadable() -> None:
    raise AssertionError("a process never comes so far")


def test_a_process_that_cannot_begin_is_told_and_the_others_do_not_wait_for_it(
    tmp_path, monkeypatch
) -> None:
    """The second process does not find the package, and so never comes to the meeting."""
    first = Job(unreadable, PLAN, str(tmp_path), str(tmp_path), "", tuple(split_minibatch((1, 1))))
    monkeypatch.setattr(processes, "GRACE_SECONDS", 1.0)
    start = processes._start_process

    def start_one_without_modules(job: Job) -> subprocess.Popen[bytes]:
        with monkeypatch.context() as changed:
            if job.rank == 1:
                changed.setattr(sys, "path", [one for one in sys.path if "site-packages" not in one])
            return start(job)

    monkeypatch.setattr(processes, "_start_process", start_one_without_modules)
    ends = run_processes([first, replace(first, rank=1)])
    assert ends[1].note and "ModuleNotFoundError: No module named" in ends[1].note.message
    assert ends[0].result is None


def test_a_folder_that_tasks_do_not_share_with_the_driver_is_refused(spark, tmp_path, monkeypatch) -> None:
    """/proc/self/cwd is another folder in each process: the driver's is not the one of Spark's workers."""
    monkeypatch.chdir(tmp_path)
    folder, make = Path("/proc/self/cwd/fit"), partial(Ending, str(tmp_path), "")
    engine = SparkEngine(spark)
    monkeypatch.setattr(multiprocess_fit, "find_tasks", lambda engine: engine)  # the stage runs, here
    words = rf"^/proc/self/cwd/fit is no folder that {socket.gethostname()} shares .*\n  hint: --warehouse "
    with pytest.raises(StoreError, match=words):
        require_common_folder(folder, 2, engine)
    with pytest.raises(StoreError, match=words):
        fit_multiprocess(make, PLAN, folder, (1, 1), str, engine=engine)
    require_common_folder(tmp_path / "shared", 2, engine)
    assert (
        not list(tmp_path.glob("pid-*")) and names(tmp_path / "fit") == names(tmp_path / "shared") == set()
    )


# ------------------------------------------------------------------------------- who listens


class Slow:
    """A task whose minibatches take a while."""

    def __init__(self, folder: str) -> None:
        self.inner, self.folder = factor_task(2), Path(folder)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def batch(self, at, row_b, seed):
        (self.folder / f"pid-{os.getpid()}").touch()
        time.sleep(0.2)
        return self.inner.batch(at, row_b, seed)


def children(pid: int) -> list[int]:
    """A process's children and theirs, without the JVM and its own."""
    out, parents = [], {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            java = "java" in (entry / "comm").read_text()
        except OSError:
            continue
        if java:
            del parents[int(entry.name)]
    for child, parent in parents.items():
        if parent == pid:
            out += [child, *children(child)]
    return out


def listening(pids: list[int]) -> set[str]:
    """Addresses, in hexadecimal digits, on which some processes listen, by the system's own tables."""
    sockets, addresses = set(), set()
    for pid in pids:
        with suppress(OSError):  # a process may end while it is read
            sockets.update(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").glob("*"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                addresses.add(address.partition(":")[0])
    return addresses


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("interface", "engine"),
    [("eth0", True), pytest.param("", False, marks=pytest.mark.spark)],
    indirect=["engine"],
)
def test_during_a_fit_nobody_listens_but_on_the_loopback_address(
    tmp_path, capfd, monkeypatch, interface, engine
) -> None:
    """LightGCN, whose fit is that of one process; an interface that is set does not count on one host."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    addresses: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            pids = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
            addresses.update(listening([*pids, *children(os.getpid())]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        make = partial(Slow, str(tmp_path))
        compare_with_one(tmp_path, capfd, make, partial(factor_task, 2), engine)
    finally:
        over.set()
        thread.join()
    assert addresses == {"0100007F"}  # 127.0.0.1
    assert names(tmp_path / "two") == {"best.safetensors", "last.safetensors"}


class Stuck(Slow):
    """A task whose second epoch does not get anywhere."""

    def batch(self, at, row_b, seed):
        if (self.folder / "two" / "last.safetensors").exists():
            time.sleep(600)
        return super().batch(at, row_b, seed)


DRIVER = """
import sys
from functools import partial
from pathlib import Path
from tests.models.adapters.test_multiprocess_fit import PLAN, Stuck, fit_multiprocess
fit_multiprocess(partial(Stuck, sys.argv[1]), PLAN, Path(sys.argv[1], "two"), (1, 1), str)
"""


@pytest.mark.full
def test_processes_end_with_a_driver_that_is_killed_and_a_restart_goes_on(tmp_path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)]) as driver:
        while not (tmp_path / "two" / "last.safetensors").exists():
            assert driver.poll() is None
            time.sleep(0.05)
        pids = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
        driver.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert len(pids) == 2
    before = names(tmp_path / "two")  # with the meeting that nobody could remove
    assert len([name for name in before if name.startswith(".meeting.")]) == 1
    lines: list[str] = []
    fitted = fit_multiprocess(partial(factor_task, 2), PLAN, tmp_path / "two", (1, 1), lines.append)
    assert lines[0].startswith("resuming at epoch 2") and len(fitted.epochs) == 2
    assert names(tmp_path / "two") == before


def test_lines_are_told_whole_and_in_their_order(tmp_path) -> None:
    path, report = tmp_path / "lines.txt", []
    with follow_lines(path, report.append), path.open("a", encoding="utf-8") as file:
        for part in ("one\ntw", "o\n", "three: ½\nhal"):
            file.write(part)
            file.flush()
            time.sleep(0.4)
    assert report == ["one", "two", "three: ½"]
