"""Users and what all models know of them, brought together in one shuffle; a task ranks by each model.

Users, vectors and lists are dealt out in blocks (`blocks`): Spark moves a value for a thousand rows,
whatever the number of models. What grows with users goes to files (`task`); the driver gets a few rows a
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
from recbench_spark.evaluation.ranking.rank import GivenRows, RankingInput, group_lists, task_device
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.blocks import chunks, partition_rows
from recbench_spark.storage.delta_files import File

PACKED = "task INT, member INT, rows BINARY"
RESULT_COLUMNS = "member INT, kind STRING, cell STRING, rows BINARY"

PAIRS_PER_TASK = 1 << 12
"""(user, model) pairs of a task at least, where there are fewer tasks than Spark would make."""

TASK_BYTES = 1 << 28
"""Bytes of users, with their vectors and lists, that a task holds about: a quarter of a GiB."""

USER_BYTES, LIST_BYTES = 1 << 11, 1 << 12
"""What a user is counted as: the row, and a list of one model."""

PARTITION_BYTES = 1 << 26
"""Bytes of rows that a task holds while it deals them out."""

VECTOR = pa.schema({"vector": pa.list_(pa.float32())})
LIST_TYPES = {
    "list_items": pa.list_(pa.int64()),
    "list_ids": pa.list_(pa.string()),
    "list_ranks": pa.list_(pa.int64()),
    "list_scores": pa.list_(pa.float64()),
}


@dataclass(frozen=True)
class BatchedResult:
    """What a pass found of one model: rows by name of the measure, files of both tables, or an error.

    `seconds`: of all tasks together.
    """

    measured: dict[str, pa.Table]
    rankings: list[File]
    values: list[File]
    seconds: float
    error: str | None = None


def to_member(run_id: str, ranked: RankingInput, request: RankingRequest) -> Member:
    """A model as tasks know it."""
    if isinstance(ranked, GivenRows):
        there = {"list_items", *(["list_ids"] if request.top else [])}
        there |= {f"list_{name}s" for name in ("rank", "score") if name in ranked.rows.columns}
        theirs = pa.schema({name: kind for name, kind in LIST_TYPES.items() if name in there})
        return Member(run_id, None, ranked.mask, theirs)
    return Member(run_id, ranked.source, theirs=VECTOR if ranked.vectors is not None else pa.schema({}))


def evaluate(
    users: DataFrame,
    ranked: Sequence[RankingInput],
    work: BatchedWork,
    n_users: int,
    candidates: Candidates | None = None,
) -> list[BatchedResult]:
    """Every model ranked and measured, in one job; files of rows of users are written, not committed.

    Shuffles users, vectors and lists by user, once; then a row a task, model and cell of what is measured.

    Args:
        users: rows of `users_of_parts`.
        ranked: what is ranked, in the order of `work.members`.
        work: what is done with each.
        n_users: about how many rows of users there are.
        candidates: what users' items are ranked among, by models that score.
    """
    tasks = count_tasks(users, work, n_users)
    if not any(member.source is not None and member.source.wants_history for member in work.members):
        users = users.drop("history")
    blocks = [_partition_rows(add_candidates(users, candidates), USERS_MEMBER, tasks, USER_BYTES)]
    blocks += _vector_blocks(ranked, tasks)
    blocks += [
        _partition_rows(_list_rows(one, member), place, tasks, LIST_BYTES)
        for place, (one, member) in enumerate(zip(ranked, work.members, strict=True))
        if isinstance(one, GivenRows)
    ]
    together = reduce(DataFrame.union, blocks).repartitionById(tasks, F.col("task"))
    share = float(users.sparkSession.conf.get("spark.task.resource.gpu.amount", "1") or 1)
    rows = together.mapInArrow(partial(task.run_task, work, partial(task_device, share)), RESULT_COLUMNS)
    measures = work.measures

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return task.finish_cell(measures, table)

    found = rows.groupBy("member", "kind", "cell").applyInArrow(finish, RESULT_COLUMNS).toArrow()
    return [_member_result(found, place) for place in range(len(work.members))]


def count_tasks(users: DataFrame, work: BatchedWork, n_users: int) -> int:
    """Tasks that users are dealt out to: as many as Spark makes, fewer for small work, more for large."""
    wanted = int(users.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    one = USER_BYTES + sum(_bytes_per_user(member) for member in work.members)
    return max(min(wanted, n_users * len(work.members) // PAIRS_PER_TASK), n_users * one // TASK_BYTES, 2)


def _bytes_per_user(member: Member) -> int:
    return LIST_BYTES if member.source is None else 4 * member.source.dims


def _vector_blocks(ranked: Sequence[RankingInput], tasks: int) -> list[DataFrame]:
    """The blocks of all models' vectors of users, dealt out by one function of the whole table."""
    frames = [
        one.vectors.select("user_id", "vector", F.lit(place).alias("_member"))
        for place, one in enumerate(ranked)
        if not isinstance(one, GivenRows) and one.vectors is not None
    ]
    if not frames:
        return []
    dims = max(one.source.dims for one in ranked if not isinstance(one, GivenRows))
    return [_partition_rows(reduce(DataFrame.union, frames), None, tasks, 64 + 4 * dims)]


def _list_rows(given: RankingInput, member: Member) -> DataFrame:
    assert isinstance(given, GivenRows)
    return group_lists(given.rows, given.items).select("user_id", *member.theirs.names)


def _partition_rows(rows: DataFrame, member: int | None, tasks: int, row_bytes: int) -> DataFrame:
    """The rows as blocks (PACKED), by user; of a member, or of those that a column `_member` names."""
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
            theirs = table.filter(pc.equal(table.column("_member"), member)).combine_chunks()
            blocks = partition_rows(
                theirs.drop_columns(["_task", "_member"]), theirs.column("_task").to_numpy()
            )
            tasks, packed = zip(*blocks, strict=True)
            columns = [
                pa.array(tasks, pa.int32()),
                pa.array([member] * len(tasks), pa.int32()),
                pa.array(packed, pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["task", "member", "rows"])


def _member_result(found: pa.Table, place: int) -> BatchedResult:
    """What was found of one model; an error of one task is one of the model."""
    mine = found.filter(pc.equal(found.column("member"), place))
    tables: dict[str, list[pa.Table]] = {}
    for kind, rows in zip(mine.column("kind").to_pylist(), mine.column("rows"), strict=True):
        tables.setdefault(kind, []).append(pa.ipc.open_stream(rows.as_buffer()).read_all())
    whole = {kind: pa.concat_tables(parts) for kind, parts in tables.items()}
    error = whole.pop(FAILED, None)
    files = {
        kind: [task.row_to_file(row) for row in whole.pop(kind).to_pylist()] if kind in whole else []
        for kind in (RANKINGS, VALUES)
    }
    seconds = float(whole.pop(SECONDS).column("seconds").to_numpy().sum()) if SECONDS in whole else 0.0
    said = None if error is None else str(error.column("error")[0])
    return BatchedResult(whole, files[RANKINGS], files[VALUES], seconds, said)
