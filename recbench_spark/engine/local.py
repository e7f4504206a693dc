"""Tasks in this process or in this machine's worker processes.

They need no Spark and no port. A shuffle keeps up to SENT_BYTES of its blocks in memory, and writes the
others to a file per sending task, in the folder for mapped arrays. Where several processes work, all blocks
go through such files.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

import pyarrow as pa

from recbench_spark.engine.pipes import PipedTasks, cut_parts, decode_value, encode_value, run_pipes
from recbench_spark.errors import StoreError

SENT_BYTES = 1 << 28
"""Bytes of a shuffle in one process's memory."""

ROWS_PER_TASK = 1 << 20
"""Rows in a task at once, some 100 MB; a log gets as many tasks as this needs."""

ROWS_PER_WORKER = 1 << 20
"""Rows from which a second process is worth its start of about two seconds."""

Result = TypeVar("Result")


class Place(NamedTuple):
    """A block sent to a task: bytes in a file."""

    file: str
    start: int
    length: int


Sent = dict[int, list[bytes | Place]]
"""Each task's blocks."""


@dataclass(frozen=True)
class LocalEngine:
    """Local runner of tasks, with the methods of a Spark context.

    Attributes:
        folder: folder for shuffle files.
        workers: processes at work together; 1: this process alone.
    """

    folder: str
    workers: int = 1

    is_here: ClassVar[bool] = True

    @property
    def cores(self) -> int:
        """Number of tasks at once."""
        return self.workers

    def count_tasks(self, n: int) -> int:
        """Return a number of tasks for n rows.

        On average, a task has at most ROWS_PER_TASK rows.
        """
        return max(self.workers, -(-n // ROWS_PER_TASK))

    def count_hosts(self) -> int:
        """Return the number of machines."""
        return 1

    def read_setting(self, name: str) -> str | None:
        """Return one of Spark's settings: none is set."""
        return None

    def parallelize(self, items: Iterable[Any], parts: int | None = None) -> LocalTasks:
        """Return tasks over a list's parts."""
        return LocalTasks(engine=self, parts=tuple(cut_parts(tuple(items), parts or self.workers)))

    def run_alone(self, work: Callable[[Any], Result], argument: Any) -> Result:
        """Run one task in its own process.

        An engine with one process uses this one.

        Raises:
            BrokenProcessPool: the process was killed; tasks beside it go on.
        """
        if self.workers == 1:
            return work(argument)
        with _make_pool(1) as pool:
            return pool.submit(work, argument).result()

    def run(self, work: Callable[[Any], Result], arguments: Sequence[Any]) -> Iterator[Result]:
        """Yield the result for each argument, in order.

        Raises:
            BrokenProcessPool: a worker process was killed, for example because memory ran out.
        """
        if self.workers == 1 or len(arguments) == 1:
            yield from map(work, arguments)
            return
        pool = _open_pool(self.workers)
        try:
            yield from pool.map(work, arguments)
        except BaseException:
            _open_pool.cache_clear()  # a broken pool runs nothing more
            for process in list((pool._processes or {}).values()):  # its own: others may run fits
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def choose_workers(n: int) -> int:
    """Return the number of processes for n rows."""
    return max(1, min(len(os.sched_getaffinity(0)), n // ROWS_PER_WORKER))


def _make_pool(workers: int) -> ProcessPoolExecutor:
    """Make a pool of worker processes.

    Workers are copies of one process, which has imported all modules of the package that this one has:
    by their names of today, since an old path would warn there once more.
    """
    context = get_context("forkserver")
    modules = sys.modules.copy().items()  # one step: another thread may import
    own = [module.__name__ for name, module in modules if name.startswith("recbench_spark.")]
    context.set_forkserver_preload(["__main__", *own])
    return ProcessPoolExecutor(workers, context, _start_worker)


_open_pool = cache(_make_pool)


def _start_worker() -> None:
    """Prepare a worker: it ends with its parent.

    A worker uses one thread, and ends without a word on Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pa.set_cpu_count(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass(frozen=True)
class LocalTasks(PipedTasks):
    """Functions over a list's parts, or over a shuffle's pairs.

    Attributes:
        engine: runs the tasks.
        parts: each task's items; empty after a shuffle.
        before, tasks: the tasks before a shuffle, and how many come after it.
        sent: the parts tell the places of a shuffle's blocks.
        kept: numbers of the tasks to run; None: all.
    """

    engine: LocalEngine = field(kw_only=True)
    parts: tuple[Sequence[Any], ...] = ()
    before: LocalTasks | None = None
    tasks: int = 0
    sent: bool = False
    kept: tuple[int, ...] | None = None

    def keep(self, places: Sequence[int]) -> LocalTasks:
        """Run only the tasks with these numbers."""
        return replace(self, kept=tuple(places))

    def partitionBy(self, tasks: int, number: object = None) -> LocalTasks:  # noqa: N802
        """Shuffle pairs (task, value): the number chooses the task."""
        return LocalTasks(engine=self.engine, before=self, tasks=tasks)

    def iterate(self) -> Iterator[Any]:
        """Yield all items, task by task."""
        with self.hold() as held:
            yield from held._run()

    @contextmanager
    def hold(self) -> Iterator[LocalTasks]:
        """Run the tasks before a shuffle; keep their pairs.

        Several runs can read them.
        """
        if self.before is None:
            yield self
            return
        folder = Path(self.engine.folder, f"shuffle-{uuid.uuid4().hex}")
        try:
            sent = self.before._send(self.tasks, folder)
            parts = tuple([(task, sent.pop(task, []))] for task in range(self.tasks))
            yield replace(self, before=None, parts=parts, sent=True)
        finally:
            _remove_files(folder)

    def beside(self, others: Sequence[LocalTasks], tasks: int) -> LocalTasks:
        """Return kept tasks with the pairs of others, which are kept, too."""
        sent = [[block for one in (self, *others) for block in one.parts[n][0][1]] for n in range(tasks)]
        return replace(self, parts=tuple([(task, blocks)] for task, blocks in enumerate(sent)))

    def collect(self) -> list[Any]:
        """Return all items, task by task."""
        return list(self.iterate())

    def _run(self) -> Iterator[Any]:
        work, numbered = partial(_run_task, pipes=self.pipes, sent=self.sent), list(enumerate(self.parts))
        chosen = numbered if self.kept is None else [numbered[n] for n in self.kept]
        for items in self.engine.run(work, chosen):
            yield from items

    def _send(self, tasks: int, folder: Path) -> Sent:
        """Run the tasks before a shuffle; return their pairs' places."""
        memory = SENT_BYTES // max(len(self.parts), self.tasks, 1) if self.engine.workers == 1 else 0
        send = partial(_send_pairs, tasks=tasks, folder=folder, memory=memory)
        whole: Sent = {}
        for sent in self.mapPartitionsWithIndex(send).iterate():
            for task, blocks in sent.items():
                whole.setdefault(task, []).extend(blocks)
        return whole


def _run_task(numbered: tuple[int, Sequence[Any]], pipes: Any, sent: bool) -> list[Any]:
    task, items = numbered
    return list(run_pipes(task, _read_sent(items[0]) if sent else iter(items), pipes))


def _read_sent(sent: tuple[int, list[bytes | Place]]) -> Iterator[tuple[int, Any]]:
    """Yield a task's pairs; each file is opened once."""
    task, blocks = sent
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for block in blocks:
            data = block if isinstance(block, bytes) else _read_place(block, files, stack)
            yield task, decode_value(data)


def _read_place(place: Place, files: dict[str, BinaryIO], stack: ExitStack) -> bytes:
    if place.file not in files:
        file = Path(place.file).open("rb")  # noqa: SIM115 (the stack closes it)
        files[place.file] = stack.enter_context(file)
    files[place.file].seek(place.start)
    return files[place.file].read(place.length)


def _send_pairs(
    part: int, pairs: Iterator[tuple[int, Any]], tasks: int, folder: Path, memory: int
) -> Iterator[Sent]:
    """Keep a task's pairs or write them; yield their places.

    Raises:
        StoreError: the folder's disk is full, or nobody may write there.
    """
    sent: Sent = {}
    path, held, end, file = folder / str(part), 0, 0, None
    try:
        for number, value in pairs:
            data = encode_value(value)
            block: bytes | Place = data
            held += len(data)
            if held > memory:
                if file is None:
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    file = path.open("wb")
                file.write(data)
                block, end = Place(str(path), end, len(data)), end + len(data)
            sent.setdefault(int(number) % tasks, []).append(block)
        if file is not None:
            file.close()
    except OSError as error:
        raise StoreError(
            f"{folder}: a shuffle cannot write its rows: {error.strerror}",
            "set SPARK_LOCAL_DIRS or TMPDIR to a folder with room",
        ) from None
    yield sent


def _remove_files(folder: Path) -> None:
    with suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
