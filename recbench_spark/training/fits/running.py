"""Many tasks at once: each a job of one task of Spark, so that one that dies takes nothing with it.

The machinery knows nothing of models: a task is whatever `work` takes, and its outcome a row. Fits of
ratings are the first to use it; models of graphs and of the zoo are to follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recbench_spark.errors import Interrupted, is_cancelled
from recbench_spark.kernels.streams import Batches
from recbench_spark.training.fits.tasks import Row

Task = TypeVar("Task")


class TaskResult(NamedTuple):
    """What came of a task: its row, or why its process ended before it could write one."""

    place: int
    row: Row | None
    error: Exception | None


def count_slots(spark: SparkSession, threads: int = 1) -> int:
    """How many tasks run at once, each with so many threads."""
    return max(1, spark.sparkContext.defaultParallelism // threads)


def run_tasks(
    spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Row], at_once: int
) -> Generator[TaskResult, None, None]:
    """Outcomes as they come, tasks begun in their order; `place` is that of the task.

    The driver holds tasks and rows. Whoever stops reading stops what has not begun.

    Args:
        spark: the session.
        tasks: anything that can be pickled.
        work: what to do with each, in a worker.
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
