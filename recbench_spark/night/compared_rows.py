"""Rows that comparisons of a night read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recbench_spark.schemas import METRICS, Table
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.object_access import map_together

if TYPE_CHECKING:
    from recbench_spark.storage.blocks import Rows


def open_runs(store: FileTables, table: Table, run_ids: Sequence[str]) -> tuple[Rows, int]:
    """Return runs' rows, and the tasks for their shuffle."""
    n = sum(map_together(store.root, partial(store.count_rows, table, "run_id"), run_ids))
    return store.open_rows(table, "run_id", run_ids), store.engine.count_tasks(n)


def add_facts(rows: pa.Table, facts: Mapping[str, Any], table: Table) -> pa.Table:
    """Add one-value columns to a table's rows."""
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    for name, value in facts.items():
        kind = table.arrow_schema.field(name).type
        columns[name] = pa.repeat(pa.scalar(value, kind), len(rows))
    return pa.table(columns)


def read_numbers(store: FileTables, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Read the runs' rows of `metrics`: one for each number and slice."""
    columns = [field.name for field in METRICS.arrow_schema]
    rows: list[dict[str, Any]] = store.rows(METRICS, [("run_id", "in", list(run_ids))], columns)
    return rows
