"""Rows of any runner in tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from recbench_spark.storage.blocks import Rows


def read_rows(rows: Rows, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read all rows of all tasks."""
    return [row for table in rows.each(columns, collect) if table is not None for row in table.to_pylist()]


def collect(tables: Iterable[pa.Table]) -> pa.Table | None:
    """Put the tables of a task under each other."""
    listed = list(tables)
    return pa.concat_tables(listed) if listed else None
