"""Batched evaluation in one shuffle: users and the models' data about them are joined by user.

Users, vectors and lists are partitioned in blocks (`blocks`): Spark moves one value for a thousand rows,
for any number of models. Each task then ranks by one model after the other (`task`). Rows of users go to
files; the driver receives a few rows per model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.measures import CELL_COLUMNS, Measures, finish_cells, read_results
from recbench_spark.engine.versions import count_shuffle_tasks, send_to_tasks, union_rows
from recbench_spark.evaluation.batched import task
from recbench_spark.evaluation.batched.task import (
    FAILED,
    RANKINGS,
    SECONDS,
    USERS_MEMBER,
    VALUES,
    BatchedWork,
    Member,
)
from recbench_spark.evaluation.ranking.candidates import Candidates, add_candidates
from recbench_spark.evaluation.ranking.rank import (
    GivenRows,
    RankingInput,
    key_lists,
    list_columns,
    read_gpu_share,
    task_device,
)
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.streams import Batches, chunks
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.packed_blocks import partition_rows

PACKED = "task INT, member INT, rows BINARY"

PAIRS_PER_TASK = 1 << 12
"""Fewest (user, model) pairs of a task, where there are fewer tasks than Spark would make."""

TASK_BYTES = 1 << 28
"""Bytes of users, with their vectors and lists, that a task should hold: a quarter of a GiB."""

USER_BYTES, LIST_BYTES, LIST_ROW_BYTES = 1 << 11, 1 << 12, 1 << 6
"""Estimated bytes of a user: of the row, and of a list of one model; and of a row of such a list."""

PARTITION_BYTES = 1 << 26
"""Bytes of rows that a task holds while it partitions them."""

VECTOR = pa.schema({"vector": pa.list_(pa.float32())})


@dataclass(frozen=True)
class BatchedResult:
    """Result of a pass for one model.

    Attributes:
        measured: rows by name of the measure.
        rankings, values: files of the tables `rankings` and `user_metrics`.
        seconds: time of all tasks together.
        error: message, where a task failed.
    """

    measured: dict[str, pa.Table]
    rankings: list[File]
    values: list[File]
    seconds: float
    error: str | None = None


def to_member(run_id: str, ranked: RankingInput, request: RankingRequest) -> Member:
    """Describe a model for tasks."""
    if isinstance(ranked, GivenRows):
        return Member(run_id, None, ranked.mask, list_columns(ranked, request))
    return Member(run_id, ranked.source, columns=VECTOR if ranked.vectors is not None else pa.schema({}))


def evaluate(
    users: DataFrame,
    ranked: Sequence[RankingInput],
    work: BatchedWork,
    n_users: int,
    candidates: Candidates | None = None,
) -> list[BatchedResult]:
    """Rank and measure every model in one job; files of rows of users are written, but not committed.

    Shuffles users, vectors and lists by user once, then one row per task, model and cell of a measure.

    Args:
        users: rows of `rank.select_part_users`.
        ranked: models and lists, in the order of `work.members`.
        work: request, measures and folders.
        n_users: approximate number of rows of users.
        candidates: candidates of each user, for models that score.
    """
    tasks = count_tasks(users, work, n_users)
    if not any(member.source is not None and member.source.wants_history for member in work.members):
        users = users.drop("history")
    blocks = [_partition_rows(add_candidates(users, candidates), USERS_MEMBER, tasks, USER_BYTES)]
    blocks += _vector_blocks(ranked, tasks)
    blocks += [
        _partition_rows(key_lists(model, work.request), number, tasks, LIST_ROW_BYTES)
        for number, model in enumerate(ranked)
        if isinstance(model, GivenRows)
    ]
    partitioned = send_to_tasks(union_rows(blocks), tasks, F.col("task"))
    share = read_gpu_share(users.sparkSession)
    cells = partitioned.mapInArrow(partial(task.run_task, work, partial(task_device, share)), CELL_COLUMNS)
    result_rows = finish_cells(work.measures, cells)
    return [_member_result(work.measures, result_rows, number) for number in range(len(work.members))]


def count_tasks(users: DataFrame, work: BatchedWork, n_users: int) -> int:
    """Return the number of tasks: as many as Spark makes, fewer for small work, more for large work."""
    default = count_shuffle_tasks(users.sparkSession)
    user_bytes = USER_BYTES + sum(_bytes_per_user(member) for member in work.members)
    return max(
        min(default, n_users * len(work.members) // PAIRS_PER_TASK), n_users * user_bytes // TASK_BYTES, 2
    )


def _bytes_per_user(member: Member) -> int:
    return LIST_BYTES if member.source is None else 4 * member.source.dims


def _vector_blocks(ranked: Sequence[RankingInput], tasks: int) -> list[DataFrame]:
    """Partition the vectors of users of all models, in one pass over their union."""
    frames = [
        one.vectors.select("user_id", "vector", F.lit(number).alias("_member"))
        for number, one in enumerate(ranked)
        if not isinstance(one, GivenRows) and one.vectors is not None
    ]
    if not frames:
        return []
    dims = max(one.source.dims for one in ranked if not isinstance(one, GivenRows))
    return [_partition_rows(union_rows(frames), None, tasks, 64 + 4 * dims)]


def _partition_rows(rows: DataFrame, member: int | None, tasks: int, row_bytes: int) -> DataFrame:
    """Pack rows into blocks (PACKED) by user, of one member or of those in a column `_member`."""
    key = F.pmod(F.xxhash64("user_id"), F.lit(tasks)).cast("int")
    marked = rows.withColumn("_task", key)
    if member is not None:
        marked = marked.withColumn("_member", F.lit(member))
    return marked.mapInArrow(
        partial(_partition_batches, rows=max(PARTITION_BYTES // row_bytes, 1 << 10)), PACKED
    )


def _partition_batches(batches: Batches, rows: int) -> Batches:
    for table in chunks(batches, rows):
        for member in table.column("_member").unique().to_pylist():
            member_rows = table.filter(pc.equal(table.column("_member"), member)).combine_chunks()
            blocks = partition_rows(
                member_rows.drop_columns(["_task", "_member"]), member_rows.column("_task").to_numpy()
            )
            tasks, packed = zip(*blocks, strict=True)
            columns = [
                pa.array(tasks, pa.int32()),
                pa.array([member] * len(tasks), pa.int32()),
                pa.array(packed, pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["task", "member", "rows"])


def _member_result(measures: Measures, cells: pa.Table, member: int) -> BatchedResult:
    """Collect the results of one model; an error of one task is an error of the model."""
    results = read_results(measures, cells, member)
    error, seconds = (results.pop(kind, None) for kind in (FAILED, SECONDS))
    rankings, values = (
        [task.row_to_file(row) for row in results.pop(kind).to_pylist()] if kind in results else []
        for kind in (RANKINGS, VALUES)
    )
    return BatchedResult(
        results,
        rankings,
        values,
        0.0 if seconds is None else float(seconds.column("seconds").to_numpy().sum()),
        None if error is None else str(error.column("error")[0]),
    )
