"""Spark's context words over frames, without RDDs.

By Spark Connect there is no context and no RDD. Each task is a row of `spark.range`, functions run in
`mapInArrow`, a shuffle is a frame of (task, bytes). The names are those of Spark's RDDs, so the same code
runs in both kinds of session.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import functions as F

from recbench_spark.engine.pipes import (
    PipedTasks,
    cut_parts,
    decode_value,
    encode_value,
    number_items,
    run_pipes,
)
from recbench_spark.engine.versions import collect_arrow, send_to_tasks, union_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS = "task INT, place INT, result BINARY"
BLOCKS = "task INT, rows BINARY"
BATCH_BYTES = 1 << 24
"""Bytes of pairs in a task before it sends a batch."""

_cores: dict[str, int] = {}


@dataclass(frozen=True)
class FrameContext:
    """Source of tasks for a session without a Spark context."""

    spark: SparkSession

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        """Number of tasks at once, by a default range's parts."""
        session = str(self.spark.session_id)  # type: ignore[attr-defined]
        if session not in _cores:
            parts = self.spark.range(1 << 16).select(F.spark_partition_id().alias("part"))
            _cores[session] = max(1, parts.distinct().count())
        return _cores[session]

    def parallelize(self, items: Iterable[Any], parts: int | None = None) -> Tasks:
        """Return tasks over a list's parts; all get the list."""
        cut = cut_parts(list(items), parts or self.defaultParallelism)
        return Tasks(spark=self.spark, parts=tuple(map(cloudpickle.dumps, cut)))


@dataclass(frozen=True)
class Tasks(PipedTasks):
    """Functions over a list's parts, or over a shuffle's pairs.

    Nothing runs before `collect`.

    Attributes:
        spark: the session.
        parts: each task's pickled items; empty after a shuffle.
        shuffled: BLOCKS, with a task's rows in one partition.
        kept: numbers of the tasks to run; None: all.
        together: all tasks run at once, or none (a barrier stage).
    """

    spark: SparkSession = field(kw_only=True)
    parts: tuple[bytes, ...] = ()
    shuffled: DataFrame | None = None
    kept: tuple[int, ...] | None = None
    together: bool = False

    def barrier(self) -> Tasks:
        """Run all tasks at once, or none."""
        return replace(self, together=True)

    def keep(self, places: Sequence[int]) -> Tasks:
        """Run only the tasks with these numbers."""
        shuffled = self.shuffled.cache() if self.shuffled is not None else None
        return replace(self, kept=tuple(places), shuffled=shuffled)

    @contextmanager
    def hold(self) -> Iterator[Tasks]:
        """Keep a shuffle's pairs, for several runs."""
        assert self.shuffled is not None
        shuffled = self.shuffled.cache()
        try:
            yield replace(self, shuffled=shuffled)
        finally:
            shuffled.unpersist()

    def partitionBy(self, tasks: int, number: object = None) -> Tasks:  # noqa: N802
        """Shuffle pairs (task, value): the number chooses the task."""
        return self._shuffle([self.pairs(tasks)], tasks)

    def beside(self, others: Sequence[Tasks], tasks: int) -> Tasks:
        """Shuffle the items of several shuffles together."""
        sides = [one.mapPartitionsWithIndex(number_items).pairs(tasks) for one in (self, *others)]
        return self._shuffle(sides, tasks).values()

    def _shuffle(self, sides: Sequence[DataFrame], tasks: int) -> Tasks:
        # A row without a block for each task: even tasks without pairs run.
        marks = self.spark.range(0, tasks, 1, 1).select(
            F.col("id").cast("int").alias("task"), F.lit(None).cast("binary").alias("rows")
        )
        shuffled = send_to_tasks(union_rows([*sides, marks]), tasks, F.col("task"))
        return Tasks(spark=self.spark, shuffled=shuffled)

    def pairs(self, tasks: int) -> DataFrame:
        """Return pairs (task, value) as BLOCKS, in this module's coding."""
        return self._run(partial(_send_pairs, tasks=tasks), BLOCKS)

    def blocks(self) -> DataFrame:
        """Return pairs (task, bytes) as BLOCKS, bytes unchanged."""
        return self._run(_yield_blocks, BLOCKS)

    def collect(self) -> list[Any]:
        """Return all items, task by task; the driver holds them."""
        rows = collect_arrow(self._run(_yield_results, RESULTS))
        results = zip(*(rows.column(name).to_pylist() for name in ("task", "place", "result")), strict=True)
        return [pickle.loads(value) for _, _, value in sorted(results, key=lambda row: row[:2])]

    def _run(self, finish: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        # A caller's functions go by value where they must, which plain pickle cannot do.
        packed: bytes = cloudpickle.dumps((self.parts, self.pipes, finish))  # type: ignore[no-untyped-call]
        rows = self.shuffled
        if rows is None:
            rows = self.spark.range(0, len(self.parts), 1, len(self.parts))
        if self.kept is not None:
            rows = rows.where(F.col(rows.columns[0]).isin(list(self.kept)))
        return rows.mapInArrow(partial(_run_tasks, packed=packed), schema, self.together)


def _run_tasks(batches: Iterator[pa.RecordBatch], packed: bytes) -> Iterator[pa.RecordBatch]:
    parts, pipes, finish = pickle.loads(packed)
    for task, items in _read_parts(batches, parts) if parts else _read_blocks(batches):
        yield from finish(task, run_pipes(task, items, pipes))


def _read_parts(
    batches: Iterator[pa.RecordBatch], parts: Sequence[bytes]
) -> Iterator[tuple[int, Iterator[Any]]]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield number, iter(pickle.loads(parts[number]))


def _read_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[Any]]]:
    """Yield each task's pairs; a partition holds one task's."""
    rows = (
        (task.as_py(), block)
        for batch in batches
        for task, block in zip(batch.column(0), batch.column(1), strict=True)
    )
    for task, own in groupby(rows, key=lambda row: row[0]):
        yield task, ((task, decode_value(block.as_buffer())) for _, block in own if block.is_valid)


# ------------------------------------------------------------------------- ends of tasks


def _send_pairs(_: int, pairs: Iterator[Any], tasks: int) -> Iterator[pa.RecordBatch]:
    held: list[tuple[int, bytes]] = []
    size = 0
    for number, value in pairs:
        held.append((int(number) % tasks, encode_value(value)))
        size += len(held[-1][1])
        if size > BATCH_BYTES:
            yield _make_batch(held)
            held, size = [], 0
    if held:
        yield _make_batch(held)


def _make_batch(pairs: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    numbers, values = zip(*pairs, strict=True)
    columns = [pa.array(numbers, pa.int32()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["task", "rows"])


def _yield_blocks(_: int, pairs: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for number, value in pairs:
        yield _make_batch([(int(number), value)])


def _yield_results(task: int, items: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for place, value in enumerate(items):
        columns = [
            pa.array([task], pa.int32()),
            pa.array([place], pa.int32()),
            pa.array([pickle.dumps(value)], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["task", "place", "result"])
