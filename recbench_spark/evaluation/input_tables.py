"""An evaluation's tables: opened, checked, and dealt by user.

The call's runner does it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.versions import is_frame
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.evaluation import task_tables
from recbench_spark.evaluation.ground_truth import POPULARITY
from recbench_spark.evaluation.request_checks import EvaluationPlan, check_queries
from recbench_spark.evaluation.task_tables import (
    CANDIDATES,
    FEATURES,
    ITEM_VECTORS,
    LISTED,
    TRAIN,
    TRUTH,
    USER_GROUPS,
    TaskTables,
)
from recbench_spark.metrics.item_labels import list_labels
from recbench_spark.metrics.kernels.chunk import check_gains
from recbench_spark.metrics.predictions import refuse_many_slices
from recbench_spark.schemas import ID_NAMES, IDS, QUERY_ID
from recbench_spark.sources.arrow_rows import spell_values
from recbench_spark.sources.input_rows import (
    CheckedInput,
    InputRows,
    check_input,
    check_vectors,
    count_distinct,
    open_input,
    refuse_twice,
)
from recbench_spark.sources.input_rules import refuse_different_widths, value_columns
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import (
    Blocks,
    ChangedRows,
    Engine,
    Side,
    TaskRows,
    deal_sides,
    return_rows,
)

# ------------------------------------------------------------------------------------------ places


@dataclass(frozen=True)
class RunPlace:
    """The runner, and a folder readable by all its tasks."""

    engine: Engine
    folder: str

    @property
    def is_here(self) -> bool:
        """Tell whether this process is the only task."""
        return isinstance(self.engine, LocalEngine) and self.engine.cores == 1

    def hold(self, rows: TaskRows) -> TaskRows:
        """Return rows for repeated reading: computed once in this process.

        Other runners' rows stay unchanged.
        """
        if not self.is_here:
            return rows
        return Blocks(
            self.engine.parallelize(rows.each(return_rows), 1), return_rows, rows.names, read=iter
        )


@contextmanager
def open_place(table: Any, scratch: str | None) -> Iterator[RunPlace]:
    """Open a table's runner.

    A folder of this process is removed afterwards.
    """
    frame = table.rows.frame if isinstance(table, InputRows) and hasattr(table.rows, "frame") else table
    if is_frame(frame):
        from recbench_spark.engine.sessions import SparkEngine  # noqa: PLC0415

        engine: Any = SparkEngine(frame.sparkSession)
    else:
        engine = getattr(getattr(table, "rows", None), "engine", None)
    if spark := getattr(engine, "spark", None):
        from recbench_spark.storage.frame_blocks import base_folder  # noqa: PLC0415

        yield RunPlace(engine, scratch or base_folder(spark))
        return
    folder = Path(tempfile.mkdtemp(prefix="recbench-"))
    try:
        yield RunPlace(LocalEngine(str(folder)), str(folder))
    finally:
        for file in folder.iterdir():
            shared_arrays.remove_arrays(file.stem)
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class CheckedTables:
    """An evaluation's typed tables by number, and the truth's grades.

    The grades are the lowest and the highest one.
    """

    tables: Mapping[int, CheckedInput]
    grades: tuple[float, ...]

    def has(self, number: int) -> bool:
        """Tell whether the call has a table."""
        return number in self.tables

    @property
    def item_kinds(self) -> dict[str, str]:
        """Kinds of item ids in the catalogue, by side."""
        owners = {
            "truth": TRUTH,
            "train": TRAIN,
            "listed": ITEM_VECTORS if self.has(ITEM_VECTORS) else LISTED,
        }
        return {
            side: self.tables[number].kinds["item_id"][0]
            for side, number in owners.items()
            if self.has(number)
        }

    @property
    def numeric(self) -> bool | None:
        """Tell whether item ties are ordered as numbers.

        None: the ids in text files decide.
        """
        kinds = {*self.item_kinds.values()}
        return None if "text" in kinds and kinds <= {"text", "integer"} else kinds == {"integer"}


def read_tables(place: RunPlace, plan: EvaluationPlan, given: Mapping[str, Any]) -> CheckedTables:
    """Open, check and type all tables.

    Raises:
        SchemaError, DataError: unusable columns or rows.
    """
    truth = read_truth(place, given["truth"])
    ids = tuple(truth.kinds)
    check_queries(plan, QUERY_ID in ids)
    tables = read_system(place, plan, ids)
    tables[TRUTH] = truth
    if not tables[TRUTH].n:
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    grades = next(iter(tables[TRUTH].ranges.values()), ())
    check_gains(np.array(grades, np.float64), plan.definition)
    for number, name in ((TRAIN, "train"), (CANDIDATES, "candidates")):
        if given[name] is not None:
            opened = open_input(place.engine, given[name], (), name)
            tables[number] = check_input(opened, {}, name, ids=IDS if number == TRAIN else ids)
    if given["features"] is not None:
        opened = open_input(place.engine, given["features"], (), "features")
        tables[FEATURES] = check_vectors(opened, "item_id", "features", biased=False)
        refuse_twice(place.engine, tables[FEATURES], "item_id", "features")
    if given.get("user_groups") is not None:
        tables[USER_GROUPS] = read_user_groups(place, given["user_groups"])
    return CheckedTables(tables, grades)


def read_user_groups(place: RunPlace, table: Any) -> CheckedInput:
    """Read groups of users: user_id, and a column of labels for each slice.

    Raises:
        SchemaError: no column of labels, or it has the key of another slice.
        DataError: a user stands twice, or a column has more than MAX_SLICES labels.
    """
    opened = open_input(place.engine, table, ("user_id",), "user_groups")
    names = [name for name in opened.schema.names if name != "user_id"]
    if not names or POPULARITY in names:
        hint = f"give columns of labels, such as country; {POPULARITY} is a slice already"
        raise SchemaError(f"user_groups has {', '.join(opened.schema.names)}", hint)
    checked = check_input(opened, {}, "user_groups", ids=("user_id",), others=names)
    if count_distinct(place.engine, checked, "user_id") < checked.n:
        raise DataError("user_groups: a user stands twice", "give one row for each user")
    kept = ("user_id", *names)
    rows = ChangedRows(checked.rows, kept, spell_labels, kept)
    labels_by_task = filter(None, rows.each(names, list_labels))
    for name, labels in zip(names, zip(*labels_by_task, strict=True), strict=False):
        refuse_many_slices(name, len(set().union(*labels)), "user_groups")
    return replace(checked, rows=rows, table=checked.table and spell_labels(checked.table))


def spell_labels(rows: pa.Table) -> pa.Table:
    """Return groups of users with labels as text."""
    labels = {name: spell_values(rows.column(name)) for name in rows.column_names if name != "user_id"}
    return pa.table({"user_id": rows.column("user_id"), **labels})


def read_system(place: RunPlace, plan: EvaluationPlan, ids: Sequence[str]) -> dict[int, CheckedInput]:
    """Read lists or scores, or user and item vectors.

    ids: the truth's id columns.

    Raises:
        SchemaError: one side alone has queries, or as `check_input`.
    """
    if plan.kind != "embeddings":
        opened = open_input(place.engine, plan.system, (), plan.kind)
        names = opened.schema.names
        if {*IDS, QUERY_ID} <= {*names} and QUERY_ID not in ids:
            raise SchemaError(
                f"{plan.kind} has {QUERY_ID} beside user_id, and truth has none",
                f"give both {QUERY_ID}, or leave the column out where a user has one list",
            )
        return {LISTED: check_input(opened, value_columns(names, plan.kind), plan.kind, ids=ids)}
    names = ("user embeddings", "item embeddings")
    users, items = (
        check_vectors(open_input(place.engine, side, (), what), id_name, what)
        for side, id_name, what in zip(plan.system, IDS, names, strict=True)
    )
    for rows, id_name, what in zip((users, items), IDS, names, strict=True):
        refuse_twice(place.engine, rows, id_name, what)
    refuse_different_widths((users.dims, items.dims), names)
    return {LISTED: users, ITEM_VECTORS: items}


def read_truth(place: RunPlace, truth: Any) -> CheckedInput:
    """Read the truth; its relevance may be called a rating.

    Beside user_id, query_id is read.
    """
    opened = open_input(place.engine, truth, (), "truth")
    ids = ID_NAMES if QUERY_ID in opened.schema.names else IDS
    name = "relevance" if "relevance" in opened.schema.names else "rating"
    values = {name: "double"} if name in opened.schema.names else {}
    return check_input(opened, values, "truth", ids=ids, empty_items=True)


def deal_tables(place: RunPlace, tables: CheckedTables) -> TaskRows:
    """Deal all tables by user; a task's value is `TaskTables`.

    Items with vectors are dealt by item.
    """
    columns = {number: _list_columns(number, table) for number, table in tables.tables.items()}
    if place.is_here:
        held = {n: _rename(table.table, columns[n]) for n, table in tables.tables.items()}
        task = TaskTables(held, tables.numeric)
        return Blocks(place.engine.parallelize([task], 1), return_rows, read=iter)
    sides = [
        Side(n, ChangedRows(table.rows, tuple(columns[n].values()), partial(_rename, columns=columns[n]),
                            tuple(columns[n])), tuple(columns[n]))
        for n, table in tables.tables.items()
    ]  # fmt: skip
    types = {n: _list_types(columns[n]) for n in columns}
    if USER_GROUPS in types:
        types[USER_GROUPS] = pa.schema(dict.fromkeys(columns[USER_GROUPS], pa.string()))
    tasks = place.engine.count_tasks(sum(table.n for table in tables.tables.values()))
    change = partial(task_tables.open_tables, columns=types, numeric=tables.numeric)
    return deal_sides(place.engine, sides, tasks).then(change, ())


VALUE_TYPES = {"rank": pa.int64(), "vector": pa.list_(pa.float32())}
"""Types for columns other than ids and float64."""


def _list_columns(number: int, table: CheckedInput) -> dict[str, str]:
    """Return the tasks' columns: the task's name -> the table's."""
    if number in (ITEM_VECTORS, FEATURES):
        return {"user_id": "item_id"}
    names = {name: name for name in table.names if name != "bias"}
    if number == TRUTH:
        return {("rating" if name == "relevance" else name): name for name in names}
    return names


def _list_types(columns: Mapping[str, str]) -> pa.Schema:
    kinds = {
        name: pa.string() if name in ID_NAMES else VALUE_TYPES.get(name, pa.float64()) for name in columns
    }
    return pa.schema(kinds)


def _rename(rows: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    return rows.select(list(columns.values())).rename_columns(list(columns))
