"""What a task of a night does: its users ranked and measured by one model after the other. Without Spark.

A task holds its users once, and of the models the vectors (or lists) of these users; of one model at a
time the item side (mapped) and the rankings. Rows of users go to Parquet files from here, sums to whoever
called. A model that fails leaves one row that says so, and no other; where it is the only one it raises, so
that Spark tries again.
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

from recbench_spark.evaluation.batch_schemas import RANKED_USERS, USER_VALUES, USERS
from recbench_spark.evaluation.batched import progress
from recbench_spark.evaluation.measure import RankingMeasure
from recbench_spark.evaluation.ranking.given import rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.blocks import unpack_blocks
from recbench_spark.storage.delta_files import File, write_file

USERS_MEMBER = -1
"""The member whose blocks are the users themselves."""

RESULT_SCHEMA = pa.schema(
    {"member": pa.int32(), "kind": pa.string(), "cell": pa.string(), "rows": pa.binary()}
)
"""One row a model, kind of finding and cell of it: rows of that kind's own schema, packed. Rows that agree
in the first three are finished together."""

FAILED, RANKINGS, VALUES, SECONDS = "failed", "rankings", "user_metrics", "seconds"
"""Kinds beside the names of measures: an error, files of two tables, how long a task was at a model."""

DICTIONARY_COLUMNS = (
    *(
        f"{name}.list.element"
        for name in ("item_ids", "relevance", "tied", "before", "top_items", "propensity")
    ),
    "slices.key_value.key",
    "slices.key_value.value.list.element",
)
"""What repeats itself in rankings: half of the bytes."""

BATCH_USERS = 4096
"""Users ranked at once."""


@dataclass(frozen=True)
class Member:
    """A model as tasks know it.

    Attributes:
        run_id: of its rows.
        source: what it scores with; None: lists or scores are given.
        mask: of given ones: training items are taken out.
        theirs: columns that it brings of each user: `vector`, or those of lists (`LISTED_USERS`).
    """

    run_id: str
    source: Source | None
    mask: bool = True
    theirs: pa.Schema = field(default_factory=lambda: pa.schema({}))


@dataclass(frozen=True)
class BatchedWork:
    """What is done with every model.

    Attributes:
        members: the models.
        request: definition, length of lists, up to where ranks are counted.
        measures: name -> sums of users.
        values: from rankings to rows of `USER_VALUES`; none: they are not kept.
        folders: of the tables `rankings` and `user_metrics`, whose partitions are runs.
        progress: a folder where tasks note how far they are (`progress.record_progress`); empty: they do not.
    """

    members: tuple[Member, ...]
    request: RankingRequest
    measures: Mapping[str, RankingMeasure]
    values: tuple[Callable[[Batches], Batches], ...]
    folders: tuple[str, str]
    progress: str = ""


def run_task(work: BatchedWork, device: Callable[[], str], batches: Batches) -> Batches:
    """Rows of `RESULT_SCHEMA` of a task's blocks (member, rows): of users, and of what models know of them."""
    blocks: dict[int, list[pa.Buffer]] = {}
    task = 0
    for batch in batches:
        task = batch.column("task")[0].as_py() if batch.num_rows else task
        for member, rows in zip(batch.column("member").to_pylist(), batch.column("rows"), strict=True):
            blocks.setdefault(member, []).append(rows.as_buffer())
    users = unpack_blocks(blocks.pop(USERS_MEMBER, []))
    if users is None:
        return
    users, where = users.sort_by("user_id").combine_chunks(), device()
    kept: dict[str, dict[int, Any]] = {name: {} for name, one in work.measures.items() if one.batched}
    for place, member in enumerate(work.members):
        started = time.perf_counter()
        theirs = unpack_blocks(blocks.pop(place, []))
        try:
            found, keep = _evaluate_member(work, member, users, theirs, where)
        # Whatever a model does, the others are ranked; the driver tries this one again by itself.
        except Exception as error:
            if len(work.members) == 1:
                raise
            found = [_result_row(FAILED, "", pa.table({"error": [f"{type(error).__name__}: {error}"]}))]
            keep = {}
        found.append(_result_row(SECONDS, "", pa.table({"seconds": [time.perf_counter() - started]})))
        progress.record_progress(work.progress, task, users.num_rows * (place + 1))
        yield from (_set_member(place, row) for row in found)
        for name, values in keep.items():
            kept[name][place] = values
            if len(kept[name]) == MODELS_PER_SUM:
                yield from _sum_models(name, work.measures[name], kept[name])
    for name, values in kept.items():
        yield from _sum_models(name, work.measures[name], values)


MODELS_PER_SUM = 64
"""Models whose values of users a task keeps until they are added up: a hundred bytes a user and model."""


def _set_member(place: int, row: pa.RecordBatch) -> pa.RecordBatch:
    return row.set_column(0, RESULT_SCHEMA.field(0), pa.array([place], pa.int32()))


def _sum_models(name: str, measure: RankingMeasure, kept: dict[int, Any]) -> Batches:
    """What the models add whose values were kept; nothing is kept of them then."""
    assert measure.batched is not None
    for place, batches in zip(list(kept), measure.batched[1](list(kept.values())), strict=True):
        for rows in batches:
            yield from (_set_member(place, row) for row in _split_by_cell(name, measure.key, rows))
    kept.clear()


def _evaluate_member(
    work: BatchedWork, member: Member, users: pa.Table, theirs: pa.Table | None, device: str
) -> tuple[list[pa.RecordBatch], dict[str, Any]]:
    """What is found of one model, all of it or an error; what is kept to be added up with others'."""
    ranked = list(_rank_users(work.request, member, users, theirs, device))
    found: list[pa.RecordBatch] = []
    kept: dict[str, Any] = {}
    for name, measure in work.measures.items():
        if measure.batched:
            kept[name] = measure.batched[0](iter(ranked))
            continue
        for rows in measure.sums(iter(ranked)):
            found += _split_by_cell(name, measure.key, rows)
    partition = {"run_id": member.run_id}
    table = _to_stored_table(ranked, ("part",))
    file = write_file(table, work.folders[0], partition, RANKED_USERS.names, DICTIONARY_COLUMNS)
    found.append(_result_row(RANKINGS, "", _file_row(file)))
    values = [batch for rows in work.values for batch in rows(iter(ranked))]
    if values:
        # Rows of a metric side by side: readers of one skip the others.
        values.sort(key=lambda batch: (batch.column("metric")[0].as_py(), batch.column("part")[0].as_py()))
        table = _to_stored_table(values, ("part", "metric", "definition", "estimator"))
        file = write_file(table, work.folders[1], partition, USER_VALUES.names, ("ks.list.element",))
        found.append(_result_row(VALUES, "", _file_row(file)))
    return found, kept


# ------------------------------------------------------------------------------- ranking


def _rank_users(
    request: RankingRequest, member: Member, users: pa.Table, theirs: pa.Table | None, device: str
) -> Batches:
    batches = _user_batches(users.select(_ranking_columns(request, member, users)), member, theirs)
    if member.source is None:
        return rank_batches(request, batches)
    return score_batches(member.source, request, batches, device=device)


def _ranking_columns(request: RankingRequest, member: Member, users: pa.Table) -> list[str]:
    """The columns of users that a model is ranked by; given lists are their own candidates."""
    names = [*USERS.names, "propensity"]
    if member.source is None:
        names = [name for name in names if member.mask or name != "masked"]
    else:
        names += ["candidates", "drawn", "pool"] + (["history"] if member.source.wants_history else [])
    return [name for name in names if name in users.column_names]


def _user_batches(users: pa.Table, member: Member, theirs: pa.Table | None) -> Batches:
    """The users some thousand at a time, each with what the model knows of it (NULL: nothing)."""
    for batch in users.to_batches(max_chunksize=BATCH_USERS):
        place = None if theirs is None else pc.index_in(batch.column("user_id"), theirs.column("user_id"))
        for wanted in member.theirs:
            column = pa.nulls(batch.num_rows, wanted.type)
            if theirs is not None:
                column = theirs.column(wanted.name).take(place).combine_chunks()
            batch = batch.append_column(wanted.name, column)  # noqa: PLW2901
        yield batch


# ------------------------------------------------------------------------------- what is found


def _split_by_cell(name: str, key: Sequence[str], rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of sums, those that are finished together in one row of `RESULT_SCHEMA`."""
    code_n = np.zeros(rows.num_rows, np.int64)
    for column in key:
        codes = rows.column(column).dictionary_encode(null_encoding="encode")
        code_n = code_n * len(codes.dictionary) + codes.indices.to_numpy()
    for code in np.unique(code_n):
        mine = rows.filter(pa.array(code_n == code))
        cell = json.dumps([mine.column(column)[0].as_py() for column in key])
        yield _result_row(name, cell, pa.Table.from_batches([mine]))


def _result_row(kind: str, cell: str, rows: pa.Table) -> pa.RecordBatch:
    values = [None, kind, cell, serialize_table(rows)]
    columns = [pa.array([value], field.type) for value, field in zip(values, RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT_SCHEMA)


def serialize_table(rows: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def deserialize_tables(rows: pa.ChunkedArray) -> pa.Table:
    """All rows that were packed, as one table."""
    return pa.concat_tables([pa.ipc.open_stream(value.as_buffer()).read_all() for value in rows])


def finish_cell(measures: Mapping[str, RankingMeasure], found: pa.Table) -> pa.Table:
    """Rows of `RESULT_SCHEMA` of one model, kind and cell, of all tasks, as one row: sums are finished."""
    kind, rows = found.column("kind")[0].as_py(), deserialize_tables(found.column("rows"))
    done = measures[kind].finish(rows.combine_chunks()) if kind in measures else rows
    first = found.slice(0, 1).select(["member", "kind", "cell"])
    return first.append_column("rows", pa.array([serialize_table(done)], pa.binary()))


# ------------------------------------------------------------------------------- files


def _to_stored_table(batches: Sequence[pa.RecordBatch], repeated: Sequence[str]) -> pa.Table:
    """The rows as they are written; of columns that repeat themselves each value once."""
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
    """A file of a row of the kinds RANKINGS and VALUES."""
    return File(row["path"], row["size"], row["rows"], {"run_id": row["run_id"]})
