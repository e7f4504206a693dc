"""Many tasks at once; none dies with another one.

This module knows nothing about models: a task is any input to `work`, and its result is a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple, TypeVar

from recbench_spark.errors import Interrupted, is_cancelled
from recbench_spark.models.fits.tasks import Row
from recbench_spark.storage.blocks import Engine

Task = TypeVar("Task")


class TaskResult(NamedTuple):
    """A task's row, or the error which ended its process.

    With an error the process could not write a row.
    """

    place: int
    row: Row | None
    error: Exception | None


def count_slots(engine: Engine, threads: int = 1) -> int:
    """Return how many tasks with so many threads fit at once."""
    return max(1, engine.cores // threads)


def run_tasks(
    engine: Engine, tasks: Sequence[Task], work: Callable[[Task], Row], at_once: int
) -> Generator[TaskResult, None, None]:
    """Yield tasks' results as they end.

    Tasks start in order, and `place` is a task's index. The driver holds all tasks and rows. If the caller
    stops reading, waiting tasks are cancelled.

    Args:
        engine: the runner.
        tasks: any picklable objects.
        work: runs a task in a worker and returns its row.
        at_once: tasks at a time.

    Raises:
        Interrupted: Spark's jobs were cancelled.
    """
    if at_once == 1:  # no thread, so Ctrl-C ends a fit in this process
        for place, task in enumerate(tasks):
            yield _run_task(engine, place, task, work)
        return
    pool = ThreadPoolExecutor(max_workers=at_once)
    waiting: set[Future[TaskResult]] = set()
    try:
        waiting = {pool.submit(_run_task, engine, place, task, work) for place, task in enumerate(tasks)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_task(engine: Engine, place: int, task: Task, work: Callable[[Task], Row]) -> TaskResult:
    try:
        return TaskResult(place, json.loads(engine.run_alone(partial(_write_row, work=work), task)), None)
    except Exception as error:  # whatever ended the task's process
        if is_cancelled(error):
            raise Interrupted from error
        return TaskResult(place, None, error)


def _write_row(task: Task, work: Callable[[Task], Row]) -> str:
    return json.dumps(work(task))
