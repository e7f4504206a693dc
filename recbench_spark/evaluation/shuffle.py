"""Batched evaluation: one shuffle joins users and models' data.

Users, vectors and lists are dealt by user in blocks (`blocks.deal_sides`): one value for a thousand rows,
for any number of models. Each task then ranks by one model after the other (`task`). User rows go to files;
the driver receives a few rows per model. No Spark is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from recbench_spark.engine.measures import Measures, read_results
from recbench_spark.evaluation import task
from recbench_spark.evaluation.task import (
    CANDIDATES_MEMBER,
    FAILED,
    RANKINGS,
    SECONDS,
    USERS_MEMBER,
    VALUES,
    BatchedWork,
    Member,
)
from recbench_spark.evaluation.task_devices import choose_device
from recbench_spark.ranking.candidates import Candidates
from recbench_spark.ranking.inputs import VECTOR_ROWS, GivenRows, RankingInput
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.storage.blocks import Engine, NamedRows, Side, deal_sides, finish_dealt
from recbench_spark.storage.delta_files import File

PAIRS_PER_TASK = 1 << 12
"""Fewest (user, model) pairs in a task, where there are fewer tasks than the runner would make."""

TASK_BYTES = 1 << 27
"""A task's bytes for users, with their vectors and lists; it takes several times as much."""

USER_BYTES, LIST_BYTES = 1 << 11, 1 << 12
"""A user's estimated bytes: the row, and one model's list."""

VECTOR = pa.schema([VECTOR_ROWS.field("vector")])


@dataclass(frozen=True)
class BatchedResult:
    """Results of a pass for one model.

    Attributes:
        measured: rows by the measure's name.
        rankings, values: files for the tables `rankings` and `user_metrics`.
        seconds: all tasks' time together.
        error: message, where a task failed.
    """

    measured: dict[str, pa.Table]
    rankings: list[File]
    values: list[File]
    seconds: float
    error: str | None = None


class PassInputs(NamedTuple):
    """Users in a pass, and the models to rank.

    Attributes:
        users: rows from `part_users.select_part_users`.
        ranked: models and lists.
        n_users: approximate number of user rows.
        candidates: each user's candidates, for scoring models; None: the catalogue.
    """

    users: NamedRows
    ranked: Sequence[RankingInput]
    n_users: int
    candidates: Candidates | None = None


def to_member(run_id: str, ranked: RankingInput, request: RankingRequest) -> Member:
    """Describe a model for tasks."""
    if isinstance(ranked, GivenRows):
        return Member(run_id, None, ranked.mask, ranked.list_columns(request))
    return Member(run_id, ranked.source, columns=VECTOR if ranked.vectors is not None else pa.schema({}))


def evaluate(engine: Engine, inputs: PassInputs, work: BatchedWork) -> list[BatchedResult]:
    """Rank and measure every model in one pass.

    User rows are written to files, but not committed. Shuffles users, vectors and lists by user once, then
    the tasks' sums by model and cell. The driver holds each model's results, and its file names.

    Args:
        engine: the runner.
        inputs: users, models and lists, in the order of `work.members`.
        work: request, measures and folders.
    """
    tasks = count_tasks(engine, work.members, inputs.n_users)
    finishing = min(tasks, engine.count_tasks(0))
    device, work = choose_device(engine), replace(work, repeats=hasattr(engine, "spark"))
    measure = partial(task.deal_results, work=work, device=device, tasks=finishing)
    sums = deal_sides(engine, list_sides(inputs, work.request), tasks).deal(measure, finishing)
    cells = finish_dealt(work.measures, sums)
    return [_member_result(work.measures, cells, number) for number in range(len(work.members))]


def count_tasks(engine: Engine, members: Sequence[Member], n_users: int) -> int:
    """Return the number of tasks, by the amount of work.

    The runner's number, fewer for small work, more for large work.
    """
    user_bytes = USER_BYTES + sum(_bytes_per_user(member) for member in members)
    few = n_users * len(members) // PAIRS_PER_TASK
    return max(min(engine.count_tasks(0), few), n_users * user_bytes // TASK_BYTES, min(engine.cores, 2))


def _bytes_per_user(member: Member) -> int:
    return LIST_BYTES if member.source is None else 4 * member.source.dims


def list_sides(inputs: PassInputs, request: RankingRequest) -> list[Side]:
    """List the tables needed by tasks about their users.

    The sides are users, candidates, and what models know about them.
    """
    models = [one for one in inputs.ranked if not isinstance(one, GivenRows)]
    names = inputs.users.names
    wants_history = request.profiles or any(model.source.wants_history for model in models)
    if not wants_history:  # as long as all other columns together
        names = tuple(name for name in names if name != "history")
    sides = [Side(USERS_MEMBER, inputs.users, names)]
    if inputs.candidates is not None:
        rows, rule = inputs.candidates
        sides += [] if rows is None else [Side(CANDIDATES_MEMBER, rows, rule.columns)]
    for number, one in enumerate(inputs.ranked):
        if isinstance(one, GivenRows):
            lists = one.key_lists(request)
            sides.append(Side(number, lists, lists.names))
        elif one.vectors is not None:
            sides.append(Side(number, one.vectors, VECTOR_ROWS.names))
    return sides


def _member_result(measures: Measures, cells: pa.Table, member: int) -> BatchedResult:
    """Collect one model's results.

    One task's error is the model's error.
    """
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
