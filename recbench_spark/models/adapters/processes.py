"""The processes of one fit: start, connection and end.

`torch.distributed` connects them. They find each other through torch's FileStore in a folder visible to
all, so no process listens for strangers. Gradients travel by gloo, over the loopback interface if all
processes are on one host. A process gets its job by a pipe from its parent. Errors, results and printed
lines are files in the rendezvous folder.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from recbench_spark.errors import RecbenchError
from recbench_spark.models.networks.fitting import EpochResult, FitResult, Shard, Task, fit
from recbench_spark.models.networks.settings import TrainingPlan
from recbench_spark.runtime.journal import write_json

STORE, RESULT, NOTE, OUTPUT = "store", "result.json", "note-{rank}.json", "output-{rank}.txt"
"""Files in the rendezvous folder: torch's store, the fit's result, a failure's reason, the printed text."""

PATIENCE = timedelta(hours=2)
"""Longest wait for another process's numbers; a dead process is noticed at once."""

GRACE_SECONDS = 10.0
"""Seconds other processes have to end by themselves after a failure."""

POLL_SECONDS = 0.1
PARENT_SECONDS = 0.5
"""Seconds between two checks on the parent process."""

START = """
import json, pickle, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
pickle.load(sys.stdin.buffer)()
"""
"""Program of a process. It imports modules, also those in --py-files, from its parent's paths."""

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""Loopback interface by operating system."""

LOST_PEER = "third_party/gloo"
"""Part of gloo's errors. They say a connection broke: another process has ended, and has the real error."""


@dataclass(frozen=True)
class Job:
    """A fit as one process gets it.

    Attributes:
        make: makes the task, from commonly visible files.
        plan: plan of the fit; `batch` counts all processes together.
        folder: folder of checkpoints.
        rendezvous: rendezvous folder; it belongs to this attempt alone.
        lines: file to which the first process appends its lines.
        shards: part of each minibatch, by process.
        rank: number of the process.
        threads: number of torch's threads; 0: as many as the environment says.
        one_host: true if all processes are on this host.
    """

    make: Callable[[], Task]
    plan: TrainingPlan
    folder: str
    rendezvous: str
    lines: str
    shards: tuple[Shard, ...]
    rank: int = 0
    threads: int = 0
    one_host: bool = True


@dataclass(frozen=True)
class FailureNote:
    """Reason for the failure of a process.

    Attributes:
        kind: class in `errors`; empty for an unexpected error and for a process without a message.
        message: text of the error.
        hint: advice on what to do.
        trace: trace of an unexpected error.
        signal: true if a signal ended the process.
        time: when the note was written, by the storage's clock, in seconds since 1970.
    """

    kind: str = ""
    message: str = ""
    hint: str = ""
    trace: str = ""
    signal: bool = False
    time: float = 0.0


@dataclass(frozen=True)
class ProcessEnd:
    """End of a process: with a result, a note, or neither.

    Only the first process has the fit's result.
    """

    result: dict[str, Any] | None = None
    note: FailureNote | None = None


# -------------------------------------------------------------------------------- start and watch


def run_processes(jobs: Sequence[Job]) -> list[ProcessEnd]:
    """Run processes on this host until all have ended.

    None is left behind.

    Args:
        jobs: one per process; their rendezvous folder exists.
    """
    rendezvous = Path(jobs[0].rendezvous)
    children: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for job in jobs:
            children[job.rank] = _start_process(job)
        _watch(children, rendezvous)
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return [_read_outcome(rendezvous, job.rank) for job in jobs]


def _start_process(job: Job) -> subprocess.Popen[bytes]:
    threads = {"OMP_NUM_THREADS": "1"} if job.threads else {}  # until the process sets its own number
    with Path(job.rendezvous, OUTPUT.format(rank=job.rank)).open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", START, f"process {job.rank} of a fit by torch"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads},
            process_group=0,  # Ctrl-C is for the watching process
        )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as pipe:  # the process may have ended already
        pipe.write(json.dumps(sys.path).encode() + b"\n")
        pickle.dump(partial(_start, job, os.getpid()), pipe)
    return child


def _watch(children: Mapping[int, subprocess.Popen[bytes]], rendezvous: Path) -> None:
    """Wait until all children have ended.

    Once any process has failed, on any host, the others have some seconds.
    """
    deadline = None
    while any(child.poll() is None for child in children.values()):
        _note_deaths(children, rendezvous)
        if deadline is None and any(rendezvous.glob(NOTE.format(rank="*"))):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS)
    _note_deaths(children, rendezvous)


def _note_deaths(children: Mapping[int, subprocess.Popen[bytes]], rendezvous: Path) -> None:
    """Write notes for processes which died early without one."""
    for rank, child in children.items():
        code = child.poll()
        has_result = rank > 0 or (rendezvous / RESULT).exists()
        has_died = code is not None and (code != 0 or not has_result)
        if has_died and not (rendezvous / NOTE.format(rank=rank)).exists():
            _write_note(rendezvous, rank, _describe_death(rendezvous, rank, child.returncode))


def _describe_death(rendezvous: Path, rank: int, code: int) -> FailureNote:
    """Return a note on a process without one.

    The note has the signal, else the last error, else the exit code.
    """
    if code < 0:
        return FailureNote(message=f"signal {-code}", signal=True)
    output = Path(rendezvous, OUTPUT.format(rank=rank)).read_text("utf-8", errors="replace")
    errors = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .*)$", output, re.MULTILINE)
    return FailureNote(message=errors[-1] if errors else f"exit code {code}")


def _read_outcome(rendezvous: Path, rank: int) -> ProcessEnd:
    path, result = rendezvous / NOTE.format(rank=rank), rendezvous / RESULT
    if path.exists():
        return ProcessEnd(note=FailureNote(**{**_read_json(path), "time": path.stat().st_mtime}))
    return ProcessEnd(_read_json(result) if rank == 0 and result.exists() else None)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write_note(rendezvous: Path, rank: int, note: FailureNote) -> None:
    write_json(rendezvous / NOTE.format(rank=rank), asdict(note))


def parse_result(result: dict[str, Any]) -> FitResult:
    """Return a fit's result from the first process's JSON."""
    return FitResult(
        [EpochResult(**epoch) for epoch in result["epochs"]], result["best"], result["stopped"]
    )


# ------------------------------------------------------------------------------- in each process


def _start(job: Job, parent: int) -> None:
    """Watch the parent, and run the job: a process begins so."""
    threading.Thread(target=watch_parent, args=(parent,), daemon=True).start()
    run_job(job)


def watch_parent(parent: int) -> None:
    """End this process once its parent has ended.

    A killed parent cannot end it.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def run_job(job: Job) -> NoReturn:
    """Take part in a fit, then end the process.

    The exit code is 0, or 1 with a note. A process which ends alone breaks its connections, which ends the
    others. Threads of gloo may wait even then, and Python's own exit takes seconds, so the process exits at
    once.
    """
    code = 0
    try:
        fitted = _fit(job)
        if job.rank == 0:
            write_json(Path(job.rendezvous, RESULT), asdict(fitted))
    except BaseException as error:  # also `sys.exit`, after which the fit is not complete
        code = 1
        traceback.print_exc()
        if LOST_PEER not in str(error):
            _write_note(Path(job.rendezvous), job.rank, _describe_error(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _fit(job: Job) -> FitResult:
    from torch import distributed  # noqa: PLC0415

    if job.threads:
        torch.set_num_threads(job.threads)
    _join(job)

    def report(line: str) -> None:
        if job.rank == 0:
            with Path(job.lines).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    plan = replace(job.plan, device="cpu")
    fitted = fit(job.make(), plan, Path(job.folder), report, job.shards[job.rank])
    distributed.destroy_process_group()
    return fitted


def _join(job: Job) -> None:
    """Connect to the fit's other processes."""
    from torch import distributed  # noqa: PLC0415

    if job.one_host and sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    size, path = len(job.shards), str(Path(job.rendezvous, STORE))
    store = distributed.FileStore(path, size)  # type: ignore[attr-defined]
    store.set_timeout(PATIENCE)
    distributed.init_process_group("gloo", store=store, rank=job.rank, world_size=size, timeout=PATIENCE)


def _describe_error(error: BaseException) -> FailureNote:
    """Return a note on an error which ends a process."""
    if isinstance(error, RecbenchError):
        return FailureNote(type(error).__name__, error.message, error.hint)
    trace = "".join(traceback.format_exception(error))
    return FailureNote(message=f"{type(error).__name__}: {error}", trace=trace)
