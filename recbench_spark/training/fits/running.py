"""Many tasks at once, each in a Spark job of its own, so a task that dies takes no other with it.

This module knows nothing of models: a task is any input of `work`, and its result is a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recbench_spark.engine.sessions import Py4JError, count_cores
from recbench_spark.errors import Interrupted, is_cancelled
from recbench_spark.kernels.streams import Batches
from recbench_spark.training.fits.tasks import Row

Task = TypeVar("Task")


class TaskResult(NamedTuple):
    """Result of a task: its row, or the error that ended its process before it could write one."""

    place: int
    row: Row | None
    error: Exception | None


def count_slots(spark: SparkSession, threads: int = 1) -> int:
    """Return the number of tasks with this number of threads that can run at once."""
    return max(1, count_cores(spark) // threads)


def run_tasks(
    spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Row], at_once: int
) -> Generator[TaskResult, None, None]:
    """Yield the results of tasks as they end; tasks start in order, and `place` is the index of the task.

    The driver holds all tasks and rows. If the caller stops reading, tasks that have not started are
    cancelled.

    Args:
        spark: the session.
        tasks: any objects that can be pickled.
        work: runs a task in a worker and returns its row.
        at_once: tasks at a time.

    Raises:
        Interrupted: Spark's jobs were cancelled.
    """
    pool = ThreadPoolExecutor(max_workers=at_once)
    waiting: set[Future[TaskResult]] = set()
    try:
        waiting = {pool.submit(_run_task, spark, place, task, work) for place, task in enumerate(tasks)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_task(spark: SparkSession, place: int, task: Task, work: Callable[[Task], Row]) -> TaskResult:
    try:
        one = spark.range(0, 1, 1, 1).mapInArrow(partial(_work_batches, task=task, work=work), "row STRING")
        return TaskResult(place, json.loads(one.collect()[0].row), None)
    except (PySparkException, Py4JError) as error:
        if is_cancelled(error):
            raise Interrupted from error
        return TaskResult(place, None, error)


def _work_batches(batches: Batches, task: Task, work: Callable[[Task], Row]) -> Batches:
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([pa.array([json.dumps(work(task))])], ["row"])
