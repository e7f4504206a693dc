"""One fit by several processes, with one process's gradients.

Each process makes the task from commonly visible files, and computes its share of each minibatch. Random
draws (order, negatives, samples) depend on seed, epoch and step, so they are the same in all processes. If
Spark's master is local, they are processes on the driver's host; else a barrier stage starts one under each
of its tasks. `processes` says how they find each other.

Each attempt at a fit has its own rendezvous folder within the fit's folder
(`storage.publish.private_path`), so it never reads a killed attempt's files. That folder has files with the
first process's lines and all processes' errors. Lines are reported while the fit runs, and errors are
raised as in a fit by one process.
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
from typing import TYPE_CHECKING, Any

from recbench_spark import errors
from recbench_spark.errors import ConfigError, RecbenchError, StoreError
from recbench_spark.models.adapters.processes import (
    FailureNote,
    Job,
    ProcessEnd,
    parse_result,
    run_processes,
)
from recbench_spark.models.networks.fitting import FitResult, Report, Shard, Task, fit, read_checkpoint
from recbench_spark.models.networks.settings import FittedModel, TrainingPlan
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.makers import private_name
from recbench_spark.storage.publish import private_path, remove_leftovers

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

MEETING = "meeting"
"""Rendezvous folder for an attempt's processes; `private_path` makes its name unique."""

LINES = "lines.txt"
"""File in the rendezvous folder: the first process's lines."""


def split_minibatch(shares: Sequence[float]) -> list[Shard]:
    """Return each process's part of a minibatch, as the shares say.

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
    settings: FittedModel,
    task: Task,
    make: Callable[[], Task],
    folder: Path,
    report: Report,
    *,
    engine: Engine | None = None,
) -> FitResult:
    """Fit in this process, or in as many as configured.

    The task's module gets the best weights.

    Args:
        settings: settings of the model.
        task: the task in this process.
        make: makes the same task in another process; see `fit_multiprocess`.
        folder: folder of checkpoints.
        report: called with one line per epoch.
        engine: the runner; None: this host.

    Raises:
        RecbenchError: any error in a fit, wherever it runs.
    """
    if settings.processes == 1:
        return fit(task, settings.plan(), folder, report)
    shares = (1,) * settings.processes
    fitted = fit_multiprocess(make, settings.plan(), folder, shares, report, engine=find_tasks(engine))
    read_checkpoint(folder / "best.safetensors", task.module, None)
    return fitted


def find_tasks(engine: Engine | None) -> Engine | None:
    """Return the runner for a fit's processes; None: this host."""
    return None if engine is None or engine.is_here else engine


def fit_multiprocess(
    make: Callable[[], Task],
    plan: TrainingPlan,
    folder: Path,
    shares: Sequence[float],
    report: Report,
    *,
    engine: Engine | None = None,
) -> FitResult:
    """Fit with one process per share, continuing from a checkpoint.

    Args:
        make: makes the task from commonly visible files; importable, or a `functools.partial` of an
            importable function.
        plan: plan of the fit; `batch` counts all processes together; each computes on the CPU.
        folder: checkpoint folder for all; `best.safetensors` holds the weights. The caller holds its lease.
        shares: shares of each minibatch, one per process.
        report: called, by another thread, with one line per epoch.
        engine: runs them under Spark tasks; None: they are processes on the driver's host.

    Raises:
        RecbenchError: a process raised this error, or died without a message.
        StoreError: a host does not see the folder.
        RuntimeError: an unexpected error in a process, with its trace.
    """
    folder = folder.absolute()
    parts = tuple(split_minibatch(shares))
    with open_rendezvous(folder) as rendezvous:
        lines = rendezvous / LINES
        job = Job(make, plan, str(folder), str(rendezvous), str(lines), parts)
        with follow_lines(lines, report):
            outcomes = run_here(job) if engine is None else run_as_tasks(job, engine)
    raise_first([outcome.note for outcome in outcomes if outcome.note is not None])
    return parse_result(next(outcome.result for outcome in outcomes if outcome.result is not None))


@contextmanager
def open_rendezvous(folder: Path) -> Iterator[Path]:
    """Make an attempt's own folder, and remove it afterwards.

    The attempt's folder lies in the fit's folder. Folders left by killed attempts are removed with the
    fit's folder, or here when they are a day old.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    with private_path(folder / MEETING) as rendezvous:
        rendezvous.mkdir()
        yield rendezvous


def run_here(job: Job) -> list[ProcessEnd]:
    """Run all processes here; they share the host's processors."""
    ranks = range(len(job.shards))
    threads = max(1, (os.cpu_count() or 1) // len(ranks)) if len(ranks) > 1 else 0
    return run_processes([replace(job, rank=rank, threads=threads) for rank in ranks])


# ------------------------------------------------------------------------------- tasks of Spark


def require_common_folder(folder: Path, processes: int, engine: Engine | None) -> None:
    """Check that every possible host can write to a fit's folder.

    Each task in a barrier stage with `processes` tasks writes one small file. Nothing is checked if all
    processes run on the driver's host.

    Args:
        folder: folder of the fit.
        processes: number of processes.
        engine: the runner; None: this host.

    Raises:
        StoreError: a host cannot write there; the error names it and says what to do.
    """
    tasks = find_tasks(engine)
    if processes == 1 or tasks is None:
        return
    with open_rendezvous(folder.absolute()) as rendezvous:
        probe = partial(probe_folder_task, rendezvous=str(rendezvous))
        _require_shared(folder, _run_stage(tasks, probe, processes))


def run_as_tasks(job: Job, engine: Engine) -> list[ProcessEnd]:
    """Run each process under its own Spark task, all at once.

    Raises:
        StoreError: a host does not see the fit's folder.
    """
    reports = _run_stage(engine, partial(run_task, packed=pickle.dumps(job)), len(job.shards))
    _require_shared(Path(job.folder), reports)
    notes = (report["note"] and FailureNote(**report["note"]) for report in reports)
    return [ProcessEnd(report["result"], note) for report, note in zip(reports, notes, strict=True)]


def _run_stage(
    engine: Engine, run: Callable[[Iterable[int]], Iterable[str]], tasks: int
) -> list[dict[str, Any]]:
    """Run a barrier stage; return each task's report."""
    rows: Any = engine.parallelize(range(tasks), tasks)  # by Spark
    return [json.loads(report) for report in rows.barrier().mapPartitions(run).collect()]


def _require_shared(folder: Path, reports: Sequence[dict[str, Any]]) -> None:
    hosts = sorted({host for report in reports for host in report.get("strangers", ())})
    if hosts:
        raise StoreError(
            f"{folder} is no folder that {', '.join(hosts)} shares with the driver, and a fit on several "
            "processes needs one",
            "--warehouse must be a folder that the driver and all workers see; or processes: 1",
        )


def probe_folder_task(_numbers: Iterable[int], rendezvous: str) -> Iterator[str]:
    """Yield the hosts which cannot write to the rendezvous folder.

    The function runs under a Spark task.
    """
    from pyspark import BarrierTaskContext  # noqa: PLC0415

    _, strangers = _compare_hosts(BarrierTaskContext.get(), rendezvous)
    yield json.dumps({"strangers": strangers})


def run_task(_numbers: Iterable[int], packed: bytes) -> Iterator[str]:
    """Run one process under this task; yield its outcome.

    If hosts do not see the folder, it yields these.

    Args:
        packed: the pickled job.
    """
    from pyspark import BarrierTaskContext  # noqa: PLC0415

    context, job = BarrierTaskContext.get(), pickle.loads(packed)
    attempt, strangers = _compare_hosts(context, job.rendezvous)
    if strangers:
        yield json.dumps({"strangers": strangers})
        return
    # Spark runs a stage again after it lost a host. The second run must not read the first one's files.
    rendezvous = Path(job.rendezvous, attempt)
    rendezvous.mkdir(exist_ok=True)
    hosts = {info.address.rpartition(":")[0] for info in context.getTaskInfos()}
    own = replace(job, rendezvous=str(rendezvous), rank=context.partitionId(), one_host=len(hosts) == 1)
    (outcome,) = run_processes([own])
    yield json.dumps(asdict(outcome))


def _compare_hosts(context: BarrierTaskContext, rendezvous: str) -> tuple[str, list[str]]:
    """Return this attempt's name, and hosts which lack the folder.

    The driver made the folder under a new name, so a host has it only if it shares the disk.
    """
    stranger, path = "", Path(rendezvous, private_name("look"))
    try:
        path.touch()
        path.unlink()
    except OSError:
        stranger = socket.gethostname()
    words = json.dumps({"attempt": uuid.uuid4().hex, "stranger": stranger})
    answers = [json.loads(answer) for answer in context.allGather(words)]
    return answers[0]["attempt"], sorted({answer["stranger"] for answer in answers} - {""})


# ------------------------------------------------------------------------------- in the driver


def raise_first(notes: Sequence[FailureNote]) -> None:
    """Raise the error which ended a fit, if any.

    A known error comes first, else the earliest one. Among processes without an error of their own, one
    ended by a signal comes first: the others ended because of it.

    Args:
        notes: notes of the failed processes.

    Raises:
        RecbenchError: a process raised this error, or ended without a message.
        RuntimeError: an unexpected error, with its trace.
    """
    if not notes:
        return
    note = min(notes, key=lambda note: (not note.kind, not note.trace, not note.signal, note.time))
    if note.kind:
        raise getattr(errors, note.kind, RecbenchError)(note.message, note.hint)
    if note.trace:
        raise RuntimeError(f"a process of the fit: {note.message}\n{note.trace}")
    raise RecbenchError(
        f"a process of the fit ended without a message: {note.message}",
        "check its memory and PYTHONPATH; run again to continue from the checkpoint",
    )


@contextmanager
def follow_lines(path: Path, report: Report) -> Iterator[None]:
    """Report a file's new lines in a thread, during the context."""
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
