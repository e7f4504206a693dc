"""Task of a batched evaluation: ranks and measures its users by one model after the other. Without Spark.

A task holds its users once, and the vectors (or lists) that the models have of these users. The item side
(mapped) and the rankings are held for one model at a time. The task writes rows of users to Parquet files
and returns sums. A model that fails leaves one row with its error and no other row. If it is the only model
it raises, so that Spark tries the task again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.evaluation.batch_schemas import RANKED_USERS, USER_VALUES, USERS, RankingMeasure
from recbench_spark.evaluation.batched import progress
from recbench_spark.evaluation.ranking.given import rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.delta_files import File, write_file
from recbench_spark.storage.packed_blocks import unpack_blocks

USERS_MEMBER = -1
"""Number of the member whose blocks are the users themselves."""

RESULT_SCHEMA = pa.schema(
    {"member": pa.int32(), "kind": pa.string(), "cell": pa.string(), "rows": pa.binary()}
)
"""One row per model, kind of result and cell: serialized rows with the schema of the kind. Rows that agree
in the first three columns are finished together."""

FAILED, RANKINGS, VALUES, SECONDS = "failed", "rankings", "user_metrics", "seconds"
"""Kinds beside the names of measures: an error, files of two tables, seconds of a task for a model."""

DICTIONARY_COLUMNS = (
    *(
        f"{name}.list.element"
        for name in ("item_ids", "relevance", "tied", "before", "top_items", "propensity")
    ),
    "slices.key_value.key",
    "slices.key_value.value.list.element",
)
"""Columns of rankings with repeated values; dictionaries save half of the bytes."""

BATCH_USERS = 4096
"""Users that are ranked at once."""


@dataclass(frozen=True)
class Member:
    """A model as tasks see it.

    Attributes:
        run_id: run of its rows.
        source: source of its scores; None for lists or scores of another system.
        mask: training items are taken out of these lists or scores.
        columns: schema of the model's columns about users: `vector`, or those of lists (`LISTED_USERS`).
    """

    run_id: str
    source: Source | None
    mask: bool = True
    columns: pa.Schema = field(default_factory=lambda: pa.schema({}))


@dataclass(frozen=True)
class BatchedWork:
    """Models of a batched evaluation, and what tasks compute of each.

    Attributes:
        members: the models.
        request: definition, length of lists, largest rank that is counted.
        measures: measures by name.
        values: functions from rankings to rows of `USER_VALUES`; without any, such rows are not written.
        folders: folders of the tables `rankings` and `user_metrics`, whose partitions are runs.
        progress: a folder where tasks record their progress (`progress.record_progress`); empty: none.
    """

    members: tuple[Member, ...]
    request: RankingRequest
    measures: Mapping[str, RankingMeasure]
    values: tuple[Callable[[Batches], Batches], ...]
    folders: tuple[str, str]
    progress: str = ""


def run_task(work: BatchedWork, device: Callable[[], str], batches: Batches) -> Batches:
    """Evaluate all models on a task's blocks (member, rows), and yield rows of `RESULT_SCHEMA`."""
    blocks: dict[int, list[pa.Buffer]] = {}
    task = 0
    for batch in batches:
        task = batch.column("task")[0].as_py() if batch.num_rows else task
        for member, rows in zip(batch.column("member").to_pylist(), batch.column("rows"), strict=True):
            blocks.setdefault(member, []).append(rows.as_buffer())
    users = unpack_blocks(blocks.pop(USERS_MEMBER, []))
    if users is None:
        return
    users, task_device = users.sort_by("user_id").combine_chunks(), device()
    values_by_measure: dict[str, dict[int, Any]] = {
        name: {} for name, measure in work.measures.items() if measure.batched
    }
    for number, member in enumerate(work.members):
        started = time.perf_counter()
        member_rows = unpack_blocks(blocks.pop(number, []))
        try:
            result_rows, member_values = _evaluate_member(work, member, users, member_rows, task_device)
        # An error of one model must not stop the others; the driver tries this model again alone.
        except Exception as error:
            if len(work.members) == 1:
                raise
            result_rows = [
                _result_row(FAILED, "", pa.table({"error": [f"{type(error).__name__}: {error}"]}))
            ]
            member_values = {}
        result_rows.append(_result_row(SECONDS, "", pa.table({"seconds": [time.perf_counter() - started]})))
        progress.record_progress(work.progress, task, users.num_rows * (number + 1))
        yield from (_set_member(number, row) for row in result_rows)
        for name, values in member_values.items():
            values_by_measure[name][number] = values
            if len(values_by_measure[name]) == MODELS_PER_SUM:
                yield from _sum_models(name, work.measures[name], values_by_measure[name])
    for name, values in values_by_measure.items():
        yield from _sum_models(name, work.measures[name], values)


MODELS_PER_SUM = 64
"""Models whose values of users a task holds until they are added up: 100 bytes per user and model."""


def _set_member(number: int, row: pa.RecordBatch) -> pa.RecordBatch:
    return row.set_column(0, RESULT_SCHEMA.field(0), pa.array([number], pa.int32()))


def _sum_models(name: str, measure: RankingMeasure, model_values: dict[int, Any]) -> Batches:
    """Yield the sums of models from their values, and clear the values."""
    assert measure.batched is not None
    for number, batches in zip(
        list(model_values), measure.batched[1](list(model_values.values())), strict=True
    ):
        for rows in batches:
            yield from (_set_member(number, row) for row in _split_by_cell(name, measure.key, rows))
    model_values.clear()


def _evaluate_member(
    work: BatchedWork, member: Member, users: pa.Table, member_rows: pa.Table | None, device: str
) -> tuple[list[pa.RecordBatch], dict[str, Any]]:
    """Return all rows of results of one model, and values to add up with those of other models."""
    ranked = list(_rank_users(work.request, member, users, member_rows, device))
    result_rows: list[pa.RecordBatch] = []
    member_values: dict[str, Any] = {}
    for name, measure in work.measures.items():
        if measure.batched:
            member_values[name] = measure.batched[0](iter(ranked))
            continue
        for rows in measure.sums(iter(ranked)):
            result_rows += _split_by_cell(name, measure.key, rows)
    partition = {"run_id": member.run_id}
    table = _to_stored_table(ranked, ("part",))
    file = write_file(table, work.folders[0], partition, RANKED_USERS.names, DICTIONARY_COLUMNS)
    result_rows.append(_result_row(RANKINGS, "", _file_row(file)))
    values = [batch for rows in work.values for batch in rows(iter(ranked))]
    if values:
        # Rows of a metric are contiguous, so that readers of one metric skip the others.
        values.sort(key=lambda batch: (batch.column("metric")[0].as_py(), batch.column("part")[0].as_py()))
        table = _to_stored_table(values, ("part", "metric", "definition", "estimator"))
        file = write_file(table, work.folders[1], partition, USER_VALUES.names, ("ks.list.element",))
        result_rows.append(_result_row(VALUES, "", _file_row(file)))
    return result_rows, member_values


# ------------------------------------------------------------------------------- ranking


def _rank_users(
    request: RankingRequest, member: Member, users: pa.Table, member_rows: pa.Table | None, device: str
) -> Batches:
    batches = _user_batches(users.select(_ranking_columns(member, users)), member, member_rows)
    if member.source is None:
        return rank_batches(request, batches)
    return score_batches(member.source, request, batches, device=device)


def _ranking_columns(member: Member, users: pa.Table) -> list[str]:
    """Return the columns of users that a model needs; lists of other systems need no candidates."""
    names = [*USERS.names, "propensity"]
    if member.source is None:
        names = [name for name in names if member.mask or name != "masked"]
    else:
        names += ["candidates", "drawn", "pool"] + (["history"] if member.source.wants_history else [])
    return [name for name in names if name in users.column_names]


def _user_batches(users: pa.Table, member: Member, member_rows: pa.Table | None) -> Batches:
    """Yield some thousand users at a time with the model's columns about them (NULL: none)."""
    for batch in users.to_batches(max_chunksize=BATCH_USERS):
        row_indices = (
            None
            if member_rows is None
            else pc.index_in(batch.column("user_id"), member_rows.column("user_id"))
        )
        for wanted_field in member.columns:
            column = pa.nulls(batch.num_rows, wanted_field.type)
            if member_rows is not None:
                column = member_rows.column(wanted_field.name).take(row_indices).combine_chunks()
            batch = batch.append_column(wanted_field.name, column)  # noqa: PLW2901
        yield batch


# ------------------------------------------------------------------------------- rows of results


def _split_by_cell(name: str, key: Sequence[str], rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield one row of `RESULT_SCHEMA` per cell: the rows of sums that are finished together."""
    code_n = np.zeros(rows.num_rows, np.int64)
    for column in key:
        codes = rows.column(column).dictionary_encode(null_encoding="encode")
        code_n = code_n * len(codes.dictionary) + codes.indices.to_numpy()
    for code in np.unique(code_n):
        cell_rows = rows.filter(pa.array(code_n == code))
        cell = json.dumps([cell_rows.column(column)[0].as_py() for column in key])
        yield _result_row(name, cell, pa.Table.from_batches([cell_rows]))


def _result_row(kind: str, cell: str, rows: pa.Table) -> pa.RecordBatch:
    values = [None, kind, cell, serialize_table(rows)]
    columns = [pa.array([value], field.type) for value, field in zip(values, RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT_SCHEMA)


def serialize_table(rows: pa.Table) -> bytes:
    """Write a table as bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def deserialize_tables(rows: pa.ChunkedArray) -> pa.Table:
    """Read serialized tables as one table."""
    return pa.concat_tables([pa.ipc.open_stream(value.as_buffer()).read_all() for value in rows])


def finish_cell(measures: Mapping[str, RankingMeasure], result_rows: pa.Table) -> pa.Table:
    """Finish the rows of one model, kind and cell of all tasks: one row of `RESULT_SCHEMA`."""
    kind, rows = result_rows.column("kind")[0].as_py(), deserialize_tables(result_rows.column("rows"))
    finished = measures[kind].finish(rows.combine_chunks()) if kind in measures else rows
    key = result_rows.slice(0, 1).select(["member", "kind", "cell"])
    return key.append_column("rows", pa.array([serialize_table(finished)], pa.binary()))


# ------------------------------------------------------------------------------- files


def _to_stored_table(batches: Sequence[pa.RecordBatch], repeated: Sequence[str]) -> pa.Table:
    """Combine the rows for writing; columns with repeated values become dictionaries."""
    table = pa.Table.from_batches(batches)
    for name in repeated:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).dictionary_encode())
    return table


def _file_row(file: File) -> pa.Table:
    assert file.partition is not None
    row = {"path": file.path, "size": file.size, "rows": file.rows, **file.partition}
    return pa.Table.from_pylist([row])


def row_to_file(row: Mapping[str, Any]) -> File:
    """Return the file of a row of the kinds RANKINGS and VALUES."""
    return File(row["path"], row["size"], row["rows"], {"run_id": row["run_id"]})
