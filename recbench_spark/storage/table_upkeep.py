"""Upkeep of tables on object storage: compaction, removal of unused files, new columns and constraints.

Spark commits to object storage by a plain write, so it could overwrite the commit of another job. Here
`deltalake`, or this module, commits by a conditional write, so other jobs may write at the same time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recbench_spark.schemas import Table
from recbench_spark.storage.delta_files import CHECKED_VERSION, ConflictError, explain_delta_errors
from recbench_spark.storage.delta_tables import open_table
from recbench_spark.storage.objects import put_if_absent, read_object_clock
from recbench_spark.storage.table_sql import table_properties
from recbench_spark.storage.uris import LOG, join_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

TASKS_AT_ONCE = 2
"""Files that a compaction writes at once: each holds some row groups in memory."""


def compact_files(place: str, column: str = "", without: Sequence[str] = ()) -> None:
    """Combine small files of a table into files of some 100 MB, partition by partition.

    The rows go through this process in streams. A table may grow meanwhile.

    Args:
        place: URI of the table.
        column: a partition column; empty where no partition is left alone.
        without: values of that column whose files stay as they are.

    Raises:
        ConflictError: another job deleted rows meanwhile, or an answer was cut; try again.
        StoreError: the storage does not answer, or refuses.
    """
    filters: Any = [(column, "not in", list(without))] if without else None
    with explain_delta_errors("compact", place):
        table = open_table(place)
        table.optimize.compact(
            partition_filters=filters,
            max_concurrent_tasks=TASKS_AT_ONCE,
            post_commithook_properties=_hooks(),
        )


def vacuum_files(place: str, hours: float) -> None:
    """Remove files that no version of the last hours uses, also those of killed writers.

    `deltalake` compares the times of objects with this host's clock, so the difference is added where that
    is ahead of the storage's clock.

    Raises:
        ConflictError, StoreError: as `compact_files`.
    """
    ahead = max(0.0, time.time() - read_object_clock(place)) / 3600
    with explain_delta_errors("vacuum", place):
        open_table(place).vacuum(
            math.ceil(hours + ahead),
            dry_run=False,
            enforce_retention_duration=False,  # Delta would require a week, but a night ends within a day
            full=True,
            post_commithook_properties=_hooks(),
        )


def _hooks() -> Any:
    """Return properties of a commit that leave old logs to the table's own rule."""
    from deltalake import PostCommitHookProperties  # noqa: PLC0415

    return PostCommitHookProperties(cleanup_expired_logs=False)


# ---------------------------------------------------------------------- columns and constraints


def change_table(place: str, table: Table, version: int) -> None:
    """Give an existing table the columns, constraints and version of its schema, in one commit.

    The caller has checked the rows of this version against new constraints. Rows that are there have NULL
    in new columns.

    Args:
        place: URI of the table.
        table: the present schema.
        version: version of the table that the caller has looked at.

    Raises:
        ConflictError: another job has committed since this version; look again.
        StoreError: the storage does not answer, or refuses.
    """
    opened = open_table(place, version)
    actions = "\n".join(map(json.dumps, _change_actions(opened, table))) + "\n"
    if not put_if_absent(join_uri(place, LOG, f"{version + 1:020}.json"), actions.encode()):
        raise ConflictError(f"{place}: another commit became version {version + 1}")


def _change_actions(opened: DeltaTable, table: Table) -> list[dict[str, Any]]:
    """Return the actions of the log, in the terms of Delta's protocol."""
    metadata, protocol, now = opened.metadata(), opened.protocol(), int(time.time() * 1000)
    fields = json.loads(opened.schema().to_json())["fields"]
    names = {field["name"] for field in fields}
    added = [field for field in json.loads(table.schema_json)["fields"] if field["name"] not in names]
    change = {"timestamp": now, "operation": "CHANGE COLUMNS", "operationParameters": {}}
    actions: list[dict[str, Any]] = [{"commitInfo": change}]
    if table.constraints and protocol.min_writer_version < CHECKED_VERSION:
        versions = {
            "minReaderVersion": protocol.min_reader_version, "minWriterVersion": CHECKED_VERSION,
        }  # fmt: skip
        actions.append({"protocol": versions})
    described = {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [*fields, *added]}),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": _merge_properties(metadata.configuration, table),
        "createdTime": metadata.created_time,
    }
    return [*actions, {"metaData": {k: v for k, v in described.items() if v is not None}}]


def _merge_properties(known: Mapping[str, str | None], table: Table) -> dict[str, str]:
    """Return the properties of a table with those of its present schema."""
    kept = {key: value for key, value in known.items() if value is not None}
    return {**kept, **table_properties(table)}
