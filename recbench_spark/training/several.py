"""One fit on several processes: gradients are those of one process.

Each process makes the task anew, from files that all of them see, and takes its share of each minibatch;
what is drawn (order, negatives, samples) hangs on seed, epoch and step and is the same in all. Where
Spark's master is local they are processes of the driver's host; else each is started by a task of a barrier
stage, all at once. `processes` tells how they meet.

Lines of the first process, and what any of them died of, go through files of the fit's folder: a line is
told while the fit runs, and an error comes out as it is in a fit of one process.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from recbench_spark.models.networks.fitting import Fitted, Shard, Task, Tell, fit, read_checkpoint
from recbench_spark.models.networks.plans import Plan
from recbench_spark.models.networks.settings import FittedModel
from recbench_spark.session import is_local
from recbench_spark.training.processes import LINES, Ended, Job, Note, fitted_from, run_processes

MEETING = "meeting-"
"""Folders of a fit's folder: where the processes of an attempt meet."""

UNSEEN = "unseen"
"""Key of what a task yields where its host does not see the folder of the fit."""


def shards(shares: Sequence[float]) -> list[Shard]:
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


def fit_as_set(
    settings: FittedModel, task: Task, make: Callable[[], Task], folder: Path, tell: Tell
) -> Fitted:
    """Fit in this process, or on as many as the settings say; the task's module has the best weights then.

    Args:
        settings: of the model.
        task: the task in this process.
        make: the same one in another process; see `fit_on_several`.
        folder: of checkpoints.
        tell: called with a line an epoch.

    Raises:
        RecbenchError: what a fit raises, wherever it runs.
    """
    if settings.processes == 1:
        return fit(task, settings.plan(), folder, tell)
    local = is_local({"spark.master": str(SparkSession.active().conf.get("spark.master"))})
    found = fit_on_several(make, settings.plan(), folder, (1,) * settings.processes, tell, local)
    read_checkpoint(folder / "best.safetensors", task.module, None)
    return found


def fit_on_several(
    make: Callable[[], Task],
    plan: Plan,
    folder: Path,
    shares: Sequence[float],
    tell: Tell,
    local: bool = True,
) -> Fitted:
    """Fit by as many processes as there are shares; go on from the folder's checkpoint.

    Args:
        make: the task, from files that all processes see; importable, or a `functools.partial` of what is.
        plan: how; `batch` is that of all processes together; each computes on the CPU.
        folder: of checkpoints, seen by all; `best.safetensors` holds the weights.
        shares: of each minibatch.
        tell: called, by another thread, with a line an epoch.
        local: processes of the driver's host; else tasks of Spark.

    Raises:
        RecbenchError: what a process raised, or that one died without a word.
        StoreError: a host does not see the folder.
        RuntimeError: an error of a process that nobody foresaw, with its trace.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    remove_meetings(folder)
    meeting = folder / f"{MEETING}{uuid.uuid4().hex}"
    job = Job(make, plan, str(folder), str(meeting), tuple(shards(shares)))
    try:
        with following(folder / LINES, tell):
            ends = run_here(job) if local else run_as_tasks(job)
    finally:
        remove_meetings(folder)
    raise_first([end.note for end in ends if end.note is not None])
    return fitted_from(next(end.fitted for end in ends if end.fitted is not None))


def remove_meetings(folder: Path) -> None:
    """Remove what attempts at a fit left in its folder; checkpoints stay."""
    for left in folder.glob(f"{MEETING}*"):
        shutil.rmtree(left, ignore_errors=True)


def run_here(job: Job) -> list[Ended]:
    """Run all processes of a fit on this host."""
    ranks = range(len(job.shards))
    return run_processes([replace(job, rank=rank, here=len(ranks)) for rank in ranks])


# ------------------------------------------------------------------------------- tasks of Spark


def run_as_tasks(job: Job) -> list[Ended]:
    """Run each process of a fit under a task of Spark, all at once.

    Raises:
        StoreError: a host does not see the folder of the fit.
    """
    seen = Path(job.meeting)
    seen.mkdir(parents=True)
    processes, context = len(job.shards), SparkSession.active().sparkContext
    tasks = context.parallelize(range(processes), processes).barrier()
    found = tasks.mapPartitions(partial(run_task, packed=pickle.dumps(job), folder=str(seen))).collect()
    unseen = sorted({one[UNSEEN] for one in map(json.loads, found) if UNSEEN in one})
    if unseen:
        raise StoreError(
            f"{job.folder} is not seen by {', '.join(unseen)}: processes of a fit meet there",
            "--warehouse must be a folder that the driver and all workers see; or processes: 1",
        )
    return [_ended(one) for one in map(json.loads, found)]


def _ended(found: dict[str, Any]) -> Ended:
    return Ended(found["fitted"], None if found["note"] is None else Note(**found["note"]))


def run_task(_: Iterator[int], packed: bytes, folder: str) -> Iterator[str]:
    """Run one process of a fit under this task; yield how it ended, or a host that does not see the folder.

    Args:
        packed: the job.
        folder: made by the driver under a new name, so that a host sees it only where it shares it.
    """
    context = BarrierTaskContext.get()
    rank, hosts = context.partitionId(), [info.address for info in context.getTaskInfos()]
    here = Counter(address.rpartition(":")[0] for address in hosts)[hosts[rank].rpartition(":")[0]]
    told = {"sees": Path(folder).is_dir(), "attempt": uuid.uuid4().hex, "host": socket.gethostname()}
    all_told = [json.loads(one) for one in context.allGather(json.dumps(told))]
    blind = [one["host"] for one in all_told if not one["sees"]]
    if blind:
        yield json.dumps({UNSEEN: blind[0] if told["sees"] else told["host"]})
        return
    # A stage that Spark runs again, after it lost a host, must not meet what is left of the first.
    meeting = f"{folder}/{all_told[0]['attempt']}"
    job: Job = replace(pickle.loads(packed), meeting=meeting, rank=rank, here=here)
    (ended,) = run_processes([job])
    yield json.dumps(asdict(ended))


# ------------------------------------------------------------------------------- in the driver


def raise_first(notes: Sequence[Note]) -> None:
    """Raise the error that a fit ended by, if any: one that has words for it, else the earliest.

    Args:
        notes: of processes that failed.

    Raises:
        RecbenchError: as a process raised it, or that one ended without a word.
        RuntimeError: an error that nobody foresaw, with its trace.
    """
    if not notes:
        return
    note = min(notes, key=lambda note: (not note.kind, not note.trace, note.time))
    if note.kind:
        raise getattr(errors, note.kind, RecbenchError)(note.message, note.hint)
    if note.trace:
        raise RuntimeError(f"a process of the fit: {note.message}\n{note.trace}")
    raise RecbenchError(
        f"a process of the fit ended without a word{f': {note.message}' if note.message else ''}",
        "enough memory? is the package found (PYTHONPATH)? Run again: it goes on from its checkpoint",
    )


@contextmanager
def following(path: Path, tell: Tell) -> Iterator[None]:
    """Lines that others append to a file are told, by a thread of its own, until the end."""
    path.unlink(missing_ok=True)
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, tell, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(path: Path, tell: Tell, over: threading.Event) -> None:
    at, last = 0, False
    while not last:
        last = over.wait(0.3)  # once more after the end
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                whole, _, _ = file.read().rpartition(b"\n")
            at += len(whole) + 1 if whole else 0
            for line in whole.decode().splitlines():
                tell(line)
