"""One fit on several processes, started by PySpark's TorchDistributor: gradients are those of one process.

Each process makes the task anew, from files that all of them see, and takes its share of each minibatch;
what is drawn (order, negatives, samples) hangs on seed, epoch and step and is the same in all.
`torch.distributed` adds the gradients (gloo). The first process writes checkpoints and the best weights.

What the first one tells, and what any of them died of, goes through files of the fit's folder: a line is
told while the fit runs, and an error comes out as it is in a fit of one process.
"""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import torch
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

from recbench_spark import errors
from recbench_spark.errors import ConfigError, RecbenchError
from recbench_spark.models.networks.fitting import Fitted, Shard, Task, Tell, fit, read_checkpoint
from recbench_spark.models.networks.plans import Plan
from recbench_spark.models.networks.settings import FittedModel
from recbench_spark.session import is_local

Result = TypeVar("Result")

TOLD, ENDED = "told.txt", "ended-{rank}.json"
"""Files of a fit's folder: lines of the first process; what a process died of."""

OF_PROCESSES = ("TorchDistributor failed", "torch_run_process_wrapper")
"""In the words of TorchDistributor where a process failed."""

PATIENCE = timedelta(hours=2)
"""How long a process waits for another one's numbers; one that died is noticed at once."""


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
        RuntimeError: an error of a process that nobody foresaw, with its trace.
    """
    shards(shares)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(ENDED.format(rank="*")):
        left.unlink()
    with following(folder / TOLD, tell):
        found, error, said = _run(make, plan, folder, shares, local)
    raise_first(folder, error, said)
    assert found is not None
    return found


def _run(
    make: Callable[[], Task], plan: Plan, folder: Path, shares: Sequence[float], local: bool
) -> tuple[Fitted | None, Exception | None, str]:
    """What came of the processes, and what their launcher said on the way."""
    runner = TorchDistributor(num_processes=len(shares), local_mode=local, use_gpu=False)
    runner.logger.setLevel(logging.WARNING)
    said = io.StringIO()
    one = carried(partial(_one, make, plan, str(folder), tuple(shares)), py_files())
    try:
        with redirect_stdout(said):
            return runner.run(one), None, ""
    except (RuntimeError, PySparkException, Py4JJavaError) as error:
        return None, error, f"{error}\n{said.getvalue()}"


def py_files() -> tuple[str, ...]:
    """Names of the archives that spark-submit was given by --py-files."""
    given = SparkSession.active().conf.get("spark.submit.pyFiles", "") or ""
    return tuple(Path(name).name for name in given.split(",") if name)


def carried(job: Callable[[], Result], archives: Sequence[str]) -> Callable[[], Result]:
    """A job that an interpreter without our package can read, and then finds it among the archives.

    A task of Spark knows what --py-files brought, and the launcher's processes that it starts do not:
    these lie in their folder. A nested function is pickled with its code: nothing is imported before.
    """
    packed = pickle.dumps(job)

    def start() -> Result:
        sys.path[1:1] = [str(Path(name).resolve()) for name in archives if Path(name).exists()]
        return pickle.loads(packed)()  # type: ignore[no-any-return]

    return start


# ------------------------------------------------------------------------------- in each process


def _one(make: Callable[[], Task], plan: Plan, folder: str, shares: tuple[float, ...]) -> Fitted | None:
    """A process. Where all end by the same error it is written down and nothing else goes wrong; one that
    ends alone breaks its connections, by which the others end."""
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    rank = int(os.environ["RANK"])
    try:
        return _fit(make, plan, Path(folder), shards(shares)[rank])
    except RecbenchError as error:
        _note(Path(folder), rank, error)
        return None
    except Exception as error:
        if "gloo" not in str(error):  # of a connection: another process has ended, and knows more
            _note(Path(folder), rank, error)
        raise


def _fit(make: Callable[[], Task], plan: Plan, folder: Path, shard: Shard) -> Fitted:
    from torch import distributed  # noqa: PLC0415

    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if here > 1:  # the launcher leaves each process one thread
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // here))
    if here == shard.of and sys.platform == "linux":  # all on one host, which talks to itself alone
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        tell = _teller(folder / TOLD) if shard.rank == 0 else _silent
        return fit(make(), replace(plan, device="cpu"), folder, tell, shard)
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
    """End this process when its parent has ended: a launcher that is killed leaves its processes behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _note(folder: Path, rank: int, error: Exception) -> None:
    """What this process dies of, for the driver."""
    own = isinstance(error, RecbenchError)
    note = {
        "kind": type(error).__name__ if own else "",
        "message": error.message
        if isinstance(error, RecbenchError)
        else f"{type(error).__name__}: {error}",
        "hint": error.hint if isinstance(error, RecbenchError) else "",
        "trace": "".join(traceback.format_exception(error)),
        "time": time.time(),
    }
    (folder / ENDED.format(rank=rank)).write_text(json.dumps(note), encoding="utf-8")


# ------------------------------------------------------------------------------- in the driver


def raise_first(folder: Path, error: Exception | None, said: str) -> None:
    """The error that a fit ended by, if any: one that has words for it, else the earliest.

    Args:
        folder: of the fit.
        error: what TorchDistributor raised.
        said: all that its launcher said.
    """
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(ENDED.format(rank="*"))]
    for note in sorted(notes, key=lambda note: (not note["kind"], note["time"])):
        if note["kind"]:
            raise getattr(errors, note["kind"], RecbenchError)(note["message"], note["hint"])
        raise RuntimeError(f"a process of the fit: {note['message']}\n{note['trace']}")
    if error is not None and not any(words in said for words in OF_PROCESSES):
        raise error  # of Spark
    if error is not None:
        raise RecbenchError(
            f"a process of the fit ended without a word{last_words(said)}",
            "enough memory? is the package found (PYTHONPATH)? Run again: it goes on from its checkpoint",
        ) from None


def last_words(output: str) -> str:
    """What the launcher tells of processes that left no note: the signal that ended one, or an error."""
    killed = re.search(r"exitcode\s*: -(\d+)", output)
    if killed:
        return f": signal {killed[1]}"
    words = re.findall(
        r"^\W*(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception): .*)$", output, re.MULTILINE
    )
    return f": {words[-1]}" if words else ""


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
