"""Processes of one fit: how they are started on a host, joined by `torch.distributed`, and watched.

They meet in a folder that all of them see, by torch's FileStore: nobody listens for strangers. Gradients go
from process to process by gloo, over the loopback interface where all are on one host. A job comes by a
pipe from the process that starts them; errors, results and what was printed lie in the folder as text.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch

from recbench_spark.errors import RecbenchError
from recbench_spark.models.networks.fitting import Epoch, Fitted, Shard, Task, Tell, fit
from recbench_spark.models.networks.plans import Plan

STORE, FITTED, ENDED, OUTPUT = "store", "fitted.json", "ended-{rank}.json", "output-{rank}.txt"
"""Files of a meeting: torch's store; what came of the fit; why a process ended; what it printed."""

LINES = "lines.txt"
"""File of a fit's folder: lines of the first process."""

PATIENCE = timedelta(hours=2)
"""Time that a process waits for another one's numbers; one that died is noticed at once."""

GRACE = 10.0
"""Seconds that other processes have to end by themselves when one has failed."""

START = """
import json, pickle, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
pickle.load(sys.stdin.buffer)()
"""
"""Program of a process: it finds modules, of --py-files too, where the process that starts it does."""

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""Name of the interface by which a host talks to itself alone."""


@dataclass(frozen=True)
class Job:
    """A fit as one of its processes is told of it.

    Attributes:
        make: the task, from files that all processes see.
        plan: of the fit; `batch` is that of all processes together.
        folder: of checkpoints.
        meeting: folder in which the processes meet; of this attempt alone.
        shards: part of each minibatch, by process.
        rank: number of the process.
        here: processes on its host.
    """

    make: Callable[[], Task]
    plan: Plan
    folder: str
    meeting: str
    shards: tuple[Shard, ...]
    rank: int = 0
    here: int = 1

    @property
    def on_one_host(self) -> bool:
        """Whether all processes are on this host."""
        return self.here == len(self.shards)


@dataclass(frozen=True)
class Note:
    """Why a process ended.

    Attributes:
        kind: class of `errors`; empty for what nobody foresaw and for a process without a word.
        message: in words; hint: what to do.
        trace: of an error that nobody foresaw.
        time: when it was written, seconds since 1970.
    """

    kind: str = ""
    message: str = ""
    hint: str = ""
    trace: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a process ended: what came of the fit, if it tells that, or a note."""

    fitted: dict[str, Any] | None = None
    note: Note | None = None


# ---------------------------------------------------------------------- where processes are started


def run_processes(jobs: Sequence[Job]) -> list[Ended]:
    """Run some processes of a fit on this host until all have ended; none is left behind.

    Args:
        jobs: one a process.
    """
    meeting = Path(jobs[0].meeting)
    meeting.mkdir(parents=True, exist_ok=True)
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for job in jobs:
            started[job.rank] = _start(job)
        _watch(started, meeting)
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    return [_read_end(meeting, job.rank) for job in jobs]


def _start(job: Job) -> subprocess.Popen[bytes]:
    output = Path(job.meeting, OUTPUT.format(rank=job.rank))
    threads = {"OMP_NUM_THREADS": "1"} if job.here > 1 else {}  # until the process sets its own number
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", START, f"process {job.rank} of a fit by torch"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads},
            process_group=0,  # Ctrl-C is for the process that watches
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # of one that has ended already
        pipe.write(json.dumps(sys.path).encode() + b"\n")
        pickle.dump(_Start(job, os.getpid()), pipe)
    return process


def _watch(started: dict[int, subprocess.Popen[bytes]], meeting: Path) -> None:
    """Wait until processes have ended; when one of the fit fails, wherever it is, the rest have to."""
    last = None
    while any(process.poll() is None for process in started.values()):
        for rank, process in started.items():
            if process.poll():
                _note_silent(meeting, rank, process.returncode)
        if last is None and next(meeting.glob(ENDED.format(rank="*")), None) is not None:
            last = time.monotonic() + GRACE
        if last is not None and time.monotonic() > last:
            return
        time.sleep(0.1)
    for rank, process in started.items():
        if process.returncode:
            _note_silent(meeting, rank, process.returncode)


def _note_silent(meeting: Path, rank: int, code: int) -> None:
    """Note the end of a process that left no note itself."""
    if (meeting / ENDED.format(rank=rank)).exists():
        return
    output = Path(meeting, OUTPUT.format(rank=rank)).read_text("utf-8", errors="replace")
    why = f"signal {-code}" if code < 0 else last_words(output)
    _write_note(meeting, rank, Note(message=why, time=time.time() + (0 if code < 0 else GRACE)))


def last_words(output: str) -> str:
    """Return the last error that a process printed; empty where it printed none."""
    words = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .*)$", output, re.MULTILINE)
    return str(words[-1]) if words else ""


def _read_end(meeting: Path, rank: int) -> Ended:
    with suppress(FileNotFoundError):
        return Ended(note=Note(**_read_json(meeting / ENDED.format(rank=rank))))
    fitted = meeting / FITTED
    return Ended(_read_json(fitted) if rank == 0 and fitted.exists() else None)


def _read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    partial.replace(path)


def _write_note(meeting: Path, rank: int, note: Note) -> None:
    _write_json(meeting / ENDED.format(rank=rank), asdict(note))


def fitted_from(found: dict[str, Any]) -> Fitted:
    """Return what a process wrote of its fit."""
    return Fitted([Epoch(**epoch) for epoch in found["epochs"]], found["best"], found["stopped"])


# ------------------------------------------------------------------------------- in each process


@dataclass(frozen=True)
class _Start:
    """What a process does first of all, and the process that started it."""

    job: Job
    parent: int

    def __call__(self) -> None:
        threading.Thread(target=leave_with, args=(self.parent,), daemon=True).start()
        run_job(self.job)


def run_job(job: Job) -> NoReturn:
    """Take part in a fit, and end the process: with 0, or with a note and 1.

    One that ends alone breaks its connections, by which the others end. Threads of gloo may wait even then,
    and taking Python apart would take seconds: so the process leaves at once.
    """
    code = 0
    try:
        found = _fit(job)
        if job.rank == 0:
            _write_json(Path(job.meeting, FITTED), asdict(found))
    except Exception as error:
        code = 1
        traceback.print_exc()
        if isinstance(error, RecbenchError) or "gloo" not in str(error):  # else another process knows more
            _write_note(Path(job.meeting), job.rank, _note_of(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fit(job: Job) -> Fitted:
    from torch import distributed  # noqa: PLC0415

    if job.here > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // job.here))
    if job.on_one_host and sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    store = distributed.FileStore(  # type: ignore[attr-defined]
        str(Path(job.meeting, STORE)), len(job.shards)
    )
    store.set_timeout(PATIENCE)
    distributed.init_process_group(
        "gloo", store=store, rank=job.rank, world_size=len(job.shards), timeout=PATIENCE
    )
    try:
        folder = Path(job.folder)
        tell = _teller(folder / LINES) if job.rank == 0 else _silent
        return fit(job.make(), replace(job.plan, device="cpu"), folder, tell, job.shards[job.rank])
    finally:
        distributed.destroy_process_group()


def _teller(path: Path) -> Tell:
    def tell(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    return tell


def _silent(_: str) -> None:
    """The first process tells for all."""


def leave_with(parent: int) -> None:
    """End this process when the one that started it has ended: one that is killed ends nobody itself."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _note_of(error: Exception) -> Note:
    """Return what a process dies of, for the driver."""
    if isinstance(error, RecbenchError):
        return Note(type(error).__name__, error.message, error.hint, "", time.time())
    trace = "".join(traceback.format_exception(error))
    return Note("", f"{type(error).__name__}: {error}", "", trace, time.time())
