"""One fit on several processes: gradients are those of one process.

Each process makes the task anew, from files that all of them see, and takes its share of each minibatch;
what is drawn (order, negatives, samples) hangs on seed, epoch and step and is the same in all. Where
Spark's master is local they are processes of the driver's host; else each is started by a task of a barrier
stage, all at once. `processes` tells how they meet.

An attempt at a fit has a folder of its own within the fit's folder, under its maker's name
(`storage.publish.private_path`), so that no attempt meets what a killed one left. Lines of the first
process and errors of any of them go through files of that folder: a line is told while the fit runs, and
an error comes out as it does in a fit of one process.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from recbench_spark import errors
from recbench_spark.errors import ConfigError, RecbenchError, StoreError
from recbench_spark.models.networks.fitting import FitResult, Report, Shard, Task, fit, read_checkpoint
from recbench_spark.models.networks.plans import TrainingPlan
from recbench_spark.models.networks.settings import FittedModel
from recbench_spark.runtime.session import is_local
from recbench_spark.storage.ages import remove_leftovers
from recbench_spark.storage.makers import private_name
from recbench_spark.storage.publish import private_path
from recbench_spark.training.processes import FailureNote, Job, ProcessEnd, parse_result, run_processes

MEETING = "meeting"
"""Folder in which the processes of an attempt meet; `private_path` makes the name the attempt's own."""

LINES = "lines.txt"
"""File of a meeting: lines of the first process."""


def split_minibatch(shares: Sequence[float]) -> list[Shard]:
    """Each process's part of a minibatch, from shares of any sum.

    Raises:
        ConfigError: no shares, or one that is not above 0.
    """
    if not shares or min(shares) <= 0:
        raise ConfigError(f"shares {list(shares)}: each process needs one above 0", "e.g. 1, 1")
    ends = [end / sum(shares) for end in accumulate(shares)]
    ends[-1] = 1.0
    return [
        Shard(rank, len(shares), begin, end)
        for rank, (begin, end) in enumerate(zip([0.0, *ends], ends, strict=False))
    ]


def fit_as_configured(
    settings: FittedModel, task: Task, make: Callable[[], Task], folder: Path, report: Report
) -> FitResult:
    """Fit in this process, or on as many as the settings say; the task's module has the best weights then.

    Args:
        settings: of the model.
        task: the task in this process.
        make: the same one in another process; see `fit_multiprocess`.
        folder: of checkpoints.
        tell: called with a line an epoch.

    Raises:
        RecbenchError: what a fit raises, wherever it runs.
    """
    if settings.processes == 1:
        return fit(task, settings.plan(), folder, report)
    shares = (1,) * settings.processes
    fitted = fit_multiprocess(make, settings.plan(), folder, shares, report, _is_local_session())
    read_checkpoint(folder / "best.safetensors", task.module, None)
    return fitted


def _is_local_session() -> bool:
    return is_local({"spark.master": str(SparkSession.active().conf.get("spark.master"))})


def fit_multiprocess(
    make: Callable[[], Task],
    plan: TrainingPlan,
    folder: Path,
    shares: Sequence[float],
    report: Report,
    local: bool = True,
) -> FitResult:
    """Fit by as many processes as there are shares; go on from the folder's checkpoint.

    Args:
        make: the task, from files that all processes see; importable, or a `functools.partial` of what is.
        plan: how; `batch` is that of all processes together; each computes on the CPU.
        folder: of checkpoints, seen by all; `best.safetensors` holds the weights. The caller has its lease.
        shares: of each minibatch.
        tell: called, by another thread, with a line an epoch.
        local: processes of the driver's host; else tasks of Spark.

    Raises:
        RecbenchError: what a process raised, or that one died without a word.
        StoreError: a host does not see the folder.
        RuntimeError: an error of a process that nobody foresaw, with its trace.
    """
    folder = folder.absolute()
    parts = tuple(split_minibatch(shares))
    with open_rendezvous(folder) as meeting:
        lines = meeting / LINES
        job = Job(make, plan, str(folder), str(meeting), str(lines), parts)
        with follow_lines(lines, report):
            outcomes = run_here(job) if local else run_as_tasks(job)
    raise_first([outcome.note for outcome in outcomes if outcome.note is not None])
    return parse_result(next(outcome.result for outcome in outcomes if outcome.result is not None))


@contextmanager
def open_rendezvous(folder: Path) -> Iterator[Path]:
    """Make a folder that this attempt alone has, within the fit's folder; remove it in the end.

    Meetings of killed attempts go with the fit's folder, or here when they are a day old.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    with private_path(folder / MEETING) as meeting:
        meeting.mkdir()
        yield meeting


def run_here(job: Job) -> list[ProcessEnd]:
    """Run all processes of a fit on this host, which share its processors."""
    ranks = range(len(job.shards))
    threads = max(1, (os.cpu_count() or 1) // len(ranks)) if len(ranks) > 1 else 0
    return run_processes([replace(job, rank=rank, threads=threads) for rank in ranks])


# ------------------------------------------------------------------------------- tasks of Spark


def require_common_folder(folder: Path, processes: int) -> None:
    """Check that each host on which a process of a fit may run can write to the fit's folder.

    A barrier stage of `processes` tasks looks, each at one file of some bytes. Nothing is checked where the
    processes will be on the driver's host.

    Args:
        folder: of the fit.
        processes: of the fit.

    Raises:
        StoreError: a host cannot; its name, and what to do.
    """
    if processes == 1 or _is_local_session():
        return
    with open_rendezvous(folder.absolute()) as meeting:
        _require_shared(folder, _run_stage(partial(probe_folder_task, meeting=str(meeting)), processes))


def run_as_tasks(job: Job) -> list[ProcessEnd]:
    """Run each process of a fit under a task of Spark, all at once.

    Raises:
        StoreError: a host does not see the folder of the fit.
    """
    reports = _run_stage(partial(run_task, packed=pickle.dumps(job)), len(job.shards))
    _require_shared(Path(job.folder), reports)
    return [_parse_outcome(report) for report in reports]


def _run_stage(run: Callable[[Iterable[int]], Iterable[str]], tasks: int) -> list[dict[str, Any]]:
    """Run a barrier stage; return the report of each task."""
    rows = SparkSession.active().sparkContext.parallelize(range(tasks), tasks)
    return [json.loads(report) for report in rows.barrier().mapPartitions(run).collect()]


def _require_shared(folder: Path, reports: Sequence[dict[str, Any]]) -> None:
    hosts = sorted({host for report in reports for host in report.get("strangers", ())})
    if hosts:
        raise StoreError(
            f"{folder} is no folder that {', '.join(hosts)} shares with the driver, and a fit on several "
            "processes needs one",
            "--warehouse must be a folder that the driver and all workers see; or processes: 1",
        )


def _parse_outcome(report: dict[str, Any]) -> ProcessEnd:
    note = report["note"]
    return ProcessEnd(report["result"], None if note is None else FailureNote(**note))


def probe_folder_task(_numbers: Iterable[int], meeting: str) -> Iterator[str]:
    """Yield, under a task of Spark, which hosts cannot write to a meeting's folder."""
    _, strangers = _compare_hosts(BarrierTaskContext.get(), meeting)
    yield json.dumps({"strangers": strangers})


def run_task(_numbers: Iterable[int], packed: bytes) -> Iterator[str]:
    """Run one process of a fit under this task; yield its outcome, or hosts that do not see the folder.

    Args:
        packed: the job, pickled.
    """
    context, job = BarrierTaskContext.get(), pickle.loads(packed)
    attempt, strangers = _compare_hosts(context, job.meeting)
    if strangers:
        yield json.dumps({"strangers": strangers})
        return
    # A stage that Spark runs again, after it lost a host, must not meet what is left of the first.
    meeting = Path(job.meeting, attempt)
    meeting.mkdir(exist_ok=True)
    hosts = {info.address.rpartition(":")[0] for info in context.getTaskInfos()}
    own = replace(job, meeting=str(meeting), rank=context.partitionId(), one_host=len(hosts) == 1)
    (outcome,) = run_processes([own])
    yield json.dumps(asdict(outcome))


def _compare_hosts(context: BarrierTaskContext, meeting: str) -> tuple[str, list[str]]:
    """Return a name of this attempt at the stage, and the hosts that cannot write to a meeting's folder.

    The driver made the folder under a new name: a host has it only where it shares the disk.
    """
    stranger = "" if _can_write(Path(meeting)) else socket.gethostname()
    words = json.dumps({"attempt": uuid.uuid4().hex, "stranger": stranger})
    answers = [json.loads(answer) for answer in context.allGather(words)]
    return answers[0]["attempt"], sorted({answer["stranger"] for answer in answers} - {""})


def _can_write(folder: Path) -> bool:
    path = folder / private_name("look")
    try:
        path.touch()
        path.unlink()
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------- in the driver


def raise_first(notes: Sequence[FailureNote]) -> None:
    """Raise the error that a fit ended by, if any: one that has words for it, else the earliest.

    Of processes without a word one that a signal ended comes first: the others ended because of it.

    Args:
        notes: of processes that failed.

    Raises:
        RecbenchError: as a process raised it, or that one ended without a word.
        RuntimeError: an error that nobody foresaw, with its trace.
    """
    if not notes:
        return
    note = min(notes, key=lambda note: (not note.kind, not note.trace, not note.signal, note.time))
    if note.kind:
        raise getattr(errors, note.kind, RecbenchError)(note.message, note.hint)
    if note.trace:
        raise RuntimeError(f"a process of the fit: {note.message}\n{note.trace}")
    raise RecbenchError(
        f"a process of the fit ended without a word: {note.message}",
        "enough memory? is the package found (PYTHONPATH)? Run again: it goes on from its checkpoint",
    )


@contextmanager
def follow_lines(path: Path, report: Report) -> Iterator[None]:
    """Tell the lines that others append to a file, by a thread of its own, until the end."""
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, report, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(path: Path, report: Report, over: threading.Event) -> None:
    at, last = 0, False
    while not last:
        last = over.wait(0.3)  # once more after the end
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                whole, _, _ = file.read().rpartition(b"\n")
            at += len(whole) + 1 if whole else 0
            for line in whole.decode().splitlines():
                report(line)
