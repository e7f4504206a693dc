"""Tasks of a batched evaluation: rank and measure their users.

A task takes one model after the other, without Spark. It holds its users once, and the models' vectors (or
lists) about them. The item side (mapped) and the rankings are held for one model at a time. The task writes
user rows to Parquet files and returns sums. A failing model leaves one row with its error and no other row.
If it is the only model, it raises, so a runner that repeats tasks tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure, Measures, pack_rows
from recbench_spark.errors import RecbenchError
from recbench_spark.evaluation import progress
from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS, USER_VALUES, USERS
from recbench_spark.ranking.candidates import CandidateRule, add_candidates
from recbench_spark.ranking.given import QUESTION, group_lists, rank_batches, read_questions
from recbench_spark.ranking.moments import AS_OF
from recbench_spark.ranking.request import RankingRequest, add_profiles
from recbench_spark.ranking.scored import score_batches
from recbench_spark.ranking.sources import Source
from recbench_spark.schemas import QUERY_ID
from recbench_spark.storage.blocks import Sides, pack_sums
from recbench_spark.storage.delta_files import File, write_file
from recbench_spark.storage.packed_blocks import Block, unpack_blocks

USERS_MEMBER, CANDIDATES_MEMBER = -1, -2
"""Numbers for two sides: the users themselves, and their candidates."""

FAILED, RANKINGS, VALUES, SECONDS = "failed", "rankings", "user_metrics", "seconds"
"""Kinds beside measures' names: an error, two tables' files, a task's seconds for a model."""

DICTIONARY_COLUMNS = (
    *(
        f"{name}.list.element"
        for name in ("item_ids", "relevance", "tied", "before", "top_items", "propensity")
    ),
    "slices.key_value.key",
    "slices.key_value.value.list.element",
)
"""Ranking columns with repeated values; dictionaries save half of the bytes."""

BATCH_USERS = 4096
"""Users ranked at once."""


@dataclass(frozen=True)
class Member:
    """A model as tasks see it.

    Attributes:
        run_id: the run for its rows.
        source: source of its scores; None for another system's lists or scores.
        mask: training items are taken out of these lists or scores.
        columns: schema of the model's columns about users: `vector`, or those for lists (`LISTED_USERS`).
    """

    run_id: str
    source: Source | None
    mask: bool = True
    columns: pa.Schema = field(default_factory=lambda: pa.schema({}))


@dataclass(frozen=True)
class BatchedWork:
    """Models to evaluate together, and what tasks compute for each.

    Attributes:
        members: the models.
        request: definition, list length, largest rank to count.
        measures: measures by name.
        values: computes rows of `USER_VALUES` from rankings; None: such rows are not written.
        folders: folders for the tables `rankings` and `user_metrics`, whose partitions are runs.
        candidates: what rows of CANDIDATES_MEMBER mean; None: there are none.
        repeats: the runner tries a failed task again.
        progress: a folder where tasks record their progress (`progress.record_progress`); empty: none.
    """

    members: tuple[Member, ...]
    request: RankingRequest
    measures: Measures
    values: Callable[[Batches], Batches] | None
    folders: tuple[str, str]
    candidates: CandidateRule | None = None
    repeats: bool = False
    progress: str = ""


@dataclass(frozen=True)
class RankedAlone:
    """Request, device and candidates to rank one model without measuring."""

    request: RankingRequest
    device: Callable[[], str]
    candidates: CandidateRule | None = None


def deal_results(
    sides: Iterable[Sides], work: BatchedWork, device: Callable[[], str], tasks: int
) -> Iterator[Block]:
    """Evaluate all models on a task's users; send sums on.

    Other tasks finish them.
    """
    for task_sides in sides:
        yield from pack_sums(run_task(work, device, task_sides), work.measures, tasks)


def run_task(work: BatchedWork, device: Callable[[], str], sides: Sides) -> Batches:
    """Evaluate all models on a task's blocks: rows of `CELLS`."""
    users = read_users(sides, work.candidates)
    if users is None:
        return
    pa.default_memory_pool().release_unused()  # blocks took as much as the users do, and ranking takes more
    task, task_device = users.column("user_key")[0].as_py() % 2**63, device()
    values_by_measure: dict[str, dict[int, Any]] = {
        name: {} for name, measure in work.measures.items() if measure.grouped
    }
    for number, member in enumerate(work.members):
        started = time.perf_counter()
        member_rows = unpack_blocks(sides.pop(number, []))
        try:
            results, member_values = _evaluate_member(work, member, users, member_rows, task_device)
        # One model's error must not stop the others; the driver tries this model again alone.
        except Exception as error:
            if len(work.members) == 1 and work.repeats:
                raise
            own = isinstance(error, RecbenchError)
            message = str(error) if own else f"{type(error).__name__}: {error}"
            results, member_values = [(FAILED, pa.table({"error": [message]}))], {}
        results.append((SECONDS, pa.table({"seconds": [time.perf_counter() - started]})))
        progress.record_progress(work.progress, task, users.num_rows * (number + 1))
        yield from (pack_rows(kind, rows, number) for kind, rows in results)
        for name, values in member_values.items():
            values_by_measure[name][number] = values
            if len(values_by_measure[name]) == MODELS_PER_SUM:
                yield from _sum_models(name, work.measures[name], values_by_measure[name])
    for name, values in values_by_measure.items():
        yield from _sum_models(name, work.measures[name], values)


MODELS_PER_SUM = 64
"""Models whose user values a task holds until they are added up: 100 bytes per user and model."""


def read_users(sides: Sides, candidates: CandidateRule | None) -> pa.Table | None:
    """Take a task's users out of its blocks, in order.

    Users come with their candidates; None: the task has no users.
    """
    users, rows = (unpack_blocks(sides.pop(number, [])) for number in (USERS_MEMBER, CANDIDATES_MEMBER))
    if users is None:
        return None
    keys = [name for name in ("user_id", "part", QUERY_ID) if name in users.column_names]
    users = users.sort_by([(name, "ascending") for name in keys])
    return (users if candidates is None else add_candidates(users, rows, candidates)).combine_chunks()


def _sum_models(name: str, measure: Measure, model_values: dict[int, Any]) -> Batches:
    """Yield models' sums from their values, and clear the values."""
    assert measure.grouped is not None
    totals = measure.grouped[1](list(model_values.values()))
    for number, batches in zip(model_values, totals, strict=True):
        yield from (pack_rows(name, rows, number) for _, rows in _join_sums(name, batches))
    model_values.clear()


Results = list[tuple[str, pa.Table]]
"""One model's result rows, with their kind."""


def _join_sums(name: str, batches: Iterable[pa.RecordBatch]) -> Results:
    sums = [rows for rows in batches if rows.num_rows]
    return [(name, pa.Table.from_batches(sums))] if sums else []


def _evaluate_member(
    work: BatchedWork, member: Member, users: pa.Table, member_rows: pa.Table | None, device: str
) -> tuple[Results, dict[str, Any]]:
    """Return one model's result rows, and values to add up.

    The values are added up with those of other models.
    """
    ranked = list(rank_users(work.request, member, users, member_rows, device))
    results: Results = []
    member_values: dict[str, Any] = {}
    for name, measure in work.measures.items():
        if measure.grouped:
            member_values[name] = measure.grouped[0](iter(ranked))
        else:
            results += _join_sums(name, measure.sums(iter(ranked)))
    partition = {"run_id": member.run_id}
    table = _to_stored_table(ranked, ("part",))
    file = write_file(table, work.folders[0], partition, RANKED_USERS.names, DICTIONARY_COLUMNS)
    results.append((RANKINGS, _file_row(file)))
    values = list(work.values(iter(ranked))) if work.values else []
    if values:
        # A metric's rows are contiguous, so its readers skip the others.
        values.sort(key=lambda batch: (batch.column("metric")[0].as_py(), batch.column("part")[0].as_py()))
        table = _to_stored_table(values, ("part", "metric", "definition", "estimator"))
        file = write_file(table, work.folders[1], partition, USER_VALUES.names, ("ks.list.element",))
        results.append((VALUES, _file_row(file)))
    return results, member_values


def rank_sides(sides: Sides, member: Member, work: RankedAlone) -> pa.Table:
    """Rank task users by one model: rows of `RANKED_USERS`."""
    users = read_users(sides, work.candidates)
    if users is None:
        return RANKED_USERS.empty_table()
    member_rows = unpack_blocks(sides.pop(0, []))
    return pa.Table.from_batches(rank_users(work.request, member, users, member_rows, work.device()))


# ------------------------------------------------------------------------------- ranking


def rank_users(
    request: RankingRequest, member: Member, users: pa.Table, member_rows: pa.Table | None, device: str
) -> Batches:
    """Rank users by one model: rows of `RANKED_USERS`."""
    if member.source is None and member_rows is not None:
        member_rows = group_lists(member_rows)
    users = add_profiles(users, request, scored=member.source is not None)
    batches = join_member_rows(users.select(_ranking_columns(member, users)), member, member_rows)
    if member.source is None:
        return rank_batches(request, batches)
    return score_batches(member.source, request, batches, device=device)


def _ranking_columns(member: Member, users: pa.Table) -> list[str]:
    """Return the user columns needed by a model.

    Other systems' lists need no candidates.
    """
    names = [*USERS.names, *PROFILES.names, "propensity", QUERY_ID, AS_OF]
    if member.source is None:
        names = [name for name in names if member.mask or name != "masked"]
    else:
        names += ["candidates", "drawn", "pool"] + (["history"] if member.source.wants_history else [])
    return [name for name in names if name in users.column_names]


def join_member_rows(users: pa.Table, member: Member, member_rows: pa.Table | None) -> Batches:
    """Yield some thousand users, with the model's columns about them.

    NULL: none.
    """
    for batch in users.to_batches(max_chunksize=BATCH_USERS):
        row_indices = None
        if member_rows is not None:
            by_query = QUESTION in member_rows.column_names
            names = read_questions(batch) if by_query else batch.column("user_id")
            row_indices = pc.index_in(names, member_rows.column(QUESTION if by_query else "user_id"))
        for wanted_field in member.columns:
            column = pa.nulls(batch.num_rows, wanted_field.type)
            if member_rows is not None:
                column = member_rows.column(wanted_field.name).take(row_indices).combine_chunks()
            batch = batch.append_column(wanted_field.name, column)  # noqa: PLW2901
        yield batch


# ------------------------------------------------------------------------------- files


def _to_stored_table(batches: Sequence[pa.RecordBatch], repeated: Sequence[str]) -> pa.Table:
    """Combine rows for writing.

    Columns with repeated values become dictionaries.
    """
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
    """Return the file named by a RANKINGS or VALUES row."""
    return File(row["path"], row["size"], row["rows"], {"run_id": row["run_id"]})
