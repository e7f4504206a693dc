"""Commits of a night's steps to their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from recbench_spark.core.checks import Check
from recbench_spark.schemas import CHECKS, Table
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.delta_files import File
from recbench_spark.storage.file_tables import FileTables, TaskParts


@dataclass(frozen=True)
class Addition:
    """Rows for one table, ready for `FileTables.append`.

    The attributes are its arguments.
    """

    table: Table
    once: str = ""
    rows: Any = ()
    named_by: str = ""


def commit(store: FileTables, *additions: Addition) -> list[File]:
    """Append a step's results, one commit for each addition.

    Returns:
        The files written now by tasks, with their notes.
    """
    return [file for one in additions for file in store.append(one.rows, one.table, one.once, one.named_by)]


def commit_together(store: FileTables, *additions: Addition) -> None:
    """Append to several tables side by side.

    This is for tables of which none tells that the others are complete.
    """
    store.run_together(
        [partial(store.append, one.rows, one.table, one.once, one.named_by) for one in additions]
    )


def add_blocks(table: Table, name: str, blocks: TaskRows) -> Addition:
    """Return tasks' results as an addition to the partition `name`."""
    (column,) = table.partition_by
    return Addition(table, name, TaskParts([(blocks, {column: name})]))


def add_checks(run_id: str, checks: Sequence[Check]) -> Addition:
    """Return a run's checks as an addition to `checks`."""
    return Addition(CHECKS, rows=check_rows(run_id, checks))


def check_rows(run_id: str, checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return rows of `checks`; a passed check is `info`."""
    return [
        {
            "run_id": run_id,
            "check": c.check,
            "severity": c.severity if not c.passed else "info",
            "observed": float(c.observed),
            "threshold": c.threshold,
            "passed": c.passed,
            "detail": c.detail,
        }
        for c in checks
    ]
