"""A fit on two processes that TorchDistributor starts is that of one; its errors, its end, its going on."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from pyspark import cloudpickle

from recbench_spark.errors import ConfigError, DataError, RecbenchError
from recbench_spark.models.networks.fitting import fit, read_checkpoint
from recbench_spark.models.networks.plans import Plan
from recbench_spark.training import several
from recbench_spark.training.several import fit_on_several, shards
from tests.models.networks.test_fitting import factor_task, pair_task

PLAN = Plan(epochs=2, batch=50, rate=0.05)


def test_shares_meet() -> None:
    found = shards((1, 2, 1))
    assert [(s.begin, s.end) for s in found] == [(0, 0.25), (0.25, 0.75), (0.75, 1)]
    rows = list(range(11))
    assert [row for s in found for row in s.rows(rows)] == rows
    with pytest.raises(ConfigError, match="shares"):
        shards((1, 0))


def own_negatives_task():
    """Of each pair: how many there are hangs on the whole minibatch, not on a process's share of it."""
    task = pair_task()
    task.how = type(task.how)(**{**task.how.__dict__, "per_pair": True, "negatives": 200})
    return task


@pytest.mark.spark
@pytest.mark.parametrize(
    ("make", "local"),
    [
        (partial(factor_task, 0), True),
        (own_negatives_task, True),
        (partial(factor_task, 2), False),
    ],
    ids=["MF-BPR, sparse", "pairs", "LightGCN, tasks of Spark"],
)
def test_two_processes_of_torch_distributor_fit_what_one_does(spark, tmp_path, capfd, make, local) -> None:
    alone, told, expected_told = make(), [], []
    expected = fit(alone, PLAN, tmp_path / "one", expected_told.append)
    found = fit_on_several(make, PLAN, tmp_path / "two", (1, 3), told.append, local)
    assert [e.loss for e in found.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)
    assert [line[:21] for line in told] == [line[:21] for line in expected_told]
    assert not capfd.readouterr().out
    both = make()
    read_checkpoint(tmp_path / "two" / "best.safetensors", both.module, None)
    for name, w in alone.module.state_dict().items():
        assert torch.allclose(both.module.state_dict()[name], w, atol=1e-4)


class Ending:
    """A task of which a process ends in the second epoch, the first time that it gets there."""

    def __init__(self, folder: str, how: str) -> None:
        self.inner, self.folder, self.how = factor_task(2), Path(folder), how

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def batch(self, at, row_b, seed):
        (self.folder / f"pid-{os.getpid()}").touch()
        ended = self.folder / "ended-here"
        if at[:2] == (2, 1) and os.environ["RANK"] == "1" and not ended.exists():
            ended.touch()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataError("no more", "rest")
        return self.inner.batch(at, row_b, seed)


def running(folder: Path) -> list[int]:
    pids = [int(path.name[4:]) for path in folder.glob("pid-*")]
    assert len(pids) == 2
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.spark
def test_a_process_that_is_killed_is_told_leaves_nobody_behind_and_the_fit_goes_on(spark, tmp_path) -> None:
    expected = fit(factor_task(2), PLAN, tmp_path / "one", str)
    make, told, begun = partial(Ending, str(tmp_path), "killed"), [], time.monotonic()
    with pytest.raises(RecbenchError, match=r"ended without a word: signal 9\n"):
        fit_on_several(make, PLAN, tmp_path / "two", (1, 1), told.append)
    assert time.monotonic() - begun < 120 and not running(tmp_path)
    found = fit_on_several(make, PLAN, tmp_path / "two", (1, 1), told.append)
    assert [line.partition(":")[0] for line in told] == [
        "epoch 1",
        "going on at epoch 2, step 0",
        "epoch 2",
    ]
    assert [e.loss for e in found.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-5)


@pytest.mark.spark
@pytest.mark.parametrize("local", [True, False], ids=["processes of the driver", "tasks of Spark"])
def test_an_error_of_one_process_comes_out_as_it_is(spark, tmp_path, capfd, local) -> None:
    make = partial(Ending, str(tmp_path), "refused")
    with pytest.raises(DataError, match=r"^no more\n  hint: rest$"):
        fit_on_several(make, PLAN, tmp_path / "two", (1, 1), str, local)
    assert not running(tmp_path) and not capfd.readouterr().out


def test_what_is_carried_needs_no_package_to_be_read_and_finds_it_among_the_archives(tmp_path) -> None:
    """By an interpreter without our package, in the folder that holds the archive."""
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("only_there.py", "def job(n): return n + 1\n")
    sys.path.append(str(tmp_path / "theirs.zip"))
    try:
        job = partial(importlib.import_module("only_there").job, 6)
    finally:
        sys.path.pop()
    (tmp_path / "job").write_bytes(cloudpickle.dumps(several.carried(job, ["theirs.zip", "not_there.zip"])))
    read = (
        "import pickle, sys; f = pickle.load(open('job', 'rb')); assert 'recbench_spark' not in sys.modules"
    )
    command = [sys.executable, "-c", f"{read}; print(f())"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "7\n", found.stderr


def test_which_error_is_told(tmp_path) -> None:
    """One with words of its own before others, the earliest of these; else what the launcher says."""
    for rank, error in enumerate((KeyError("first"), ValueError("second"), ConfigError("third", "mend"))):
        several._note(tmp_path, rank, error)
    with pytest.raises(ConfigError, match=r"^third\n  hint: mend$"):
        several.raise_first(tmp_path, RuntimeError("TorchDistributor failed"), "")
    (tmp_path / "ended-2.json").unlink()
    with pytest.raises(RuntimeError, match=r"KeyError: 'first'\nKeyError"):
        several.raise_first(tmp_path, None, "")
    empty = tmp_path / "empty"
    several.raise_first(empty, None, "")
    with pytest.raises(
        RecbenchError, match="without a word: ModuleNotFoundError: No module named 'ours'\n"
    ):
        words = "TorchDistributor failed\n  [rank0]: ModuleNotFoundError: No module named 'ours'\n"
        several.raise_first(empty, RuntimeError(), words)
    with pytest.raises(RuntimeError, match="TLS"):
        several.raise_first(empty, RuntimeError("TLS"), "TLS")


ORPHAN = """
import os, sys, threading, time
from recbench_spark.training.several import leave_with
threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_process_ends_with_its_parent() -> None:
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ORPHAN!r}])"
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_lines_are_told_whole_and_in_their_order(tmp_path) -> None:
    path, told = tmp_path / "told.txt", []
    path.write_text("of a fit before\n")
    with several.following(path, told.append), path.open("a", encoding="utf-8") as file:
        for part in ("one\ntw", "o\n", "three: ½\nhal"):
            file.write(part)
            file.flush()
            time.sleep(0.4)
    assert told == ["one", "two", "three: ½"]
