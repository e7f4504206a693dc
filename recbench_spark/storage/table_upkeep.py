"""Upkeep of tables: compaction, unused and lost files, migration.

Migration adds columns and constraints. Spark commits to object storage by a plain write, so it could
overwrite another job's commit. Here `deltalake`, or this module, commits by a conditional write, so other
jobs may write at the same time.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from recbench_spark.core.streams import chunks
from recbench_spark.errors import StoreError
from recbench_spark.schemas import Table
from recbench_spark.storage import delta_files, objects, table_sql
from recbench_spark.storage.delta_files import CHECKED_VERSION, ConflictError, File, explain_delta_errors
from recbench_spark.storage.delta_tables import (
    has_odd_name,
    hold_table,
    list_stored_files,
    open_for_write,
    open_table,
    read_dataset,
)
from recbench_spark.storage.object_access import open_filesystem, open_path
from recbench_spark.storage.uris import LOG, arrow_uri, is_object_storage, join_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable


FILE_BYTES = 100 << 20
"""Largest size of a file for a compaction to combine."""

ROWS_AT_ONCE = 1 << 18
"""Rows in memory during a compaction, and in a row group."""


def compact_files(place: str, column: str = "", without: Sequence[str] = ()) -> None:
    """Combine a table's small files, partition by partition.

    The new files have some 100 MB, and one commit adds them. The rows go through this process in streams. A
    table may grow meanwhile. `deltalake`'s own compaction is not used: two at once both commit, and each
    row is there twice.

    Args:
        place: URI of the table.
        column: a partition column; empty where no partition is left alone.
        without: values of that column whose files stay as they are.

    Raises:
        ConflictError: another job deleted rows or compacted meanwhile, or an answer was cut; try again.
        StoreError: the storage does not answer, or refuses.
        FallbackToSpark: with the table's features, the files alone are not the rows.
    """
    with explain_delta_errors("compact", place):
        table = open_table(place)
        columns, now = list(table.metadata().partition_columns), int(time.time() * 1000)
        schema = read_dataset(place, table.version()).schema
        inside = pa.schema([field for field in schema if field.name not in columns])
        gone, actions = set(), []
        for group in _group_files(list_stored_files(table, place), columns, column, without):
            first = next(iter(group.values()))
            values = {name: first[f"partition.{name}"] for name in columns}
            file = _combine_files(place, list(group), inside, values)
            added = {"path": quote(file.path, safe="/="), "partitionValues": values, "size": file.size}
            stats = {"modificationTime": now, "stats": json.dumps({"numRecords": file.rows})}
            actions.append({"add": {**added, **stats, "dataChange": False}})
            gone |= {known["path"] for known in group.values()}
        if actions:
            _replace_files(place, gone, actions)


def _replace_files(place: str, gone: set[str], added: Sequence[Mapping[str, Any]]) -> None:
    """Commit a compaction if its sources are still there.

    Later files stay. `deltalake` would encode the names of removed files anew, and Delta compares names as
    they are written.
    """
    latest, now = open_table(place), int(time.time() * 1000)
    if not gone <= {known["path"] for known in list_stored_files(latest, place).values()}:
        raise ConflictError(f"{place}: another job removed rows of the files that a compaction combined")
    about = {"timestamp": now, "operation": "OPTIMIZE", "operationParameters": {}}
    removed = [
        {"remove": {"path": path, "deletionTimestamp": now, "dataChange": False}} for path in sorted(gone)
    ]
    _commit_actions(place, latest.version() + 1, [{"commitInfo": about}, *added, *removed])


def _commit_actions(place: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write a version of the log, in Delta's terms.

    Raises ConflictError where there is one.
    """
    lines = "\n".join(map(json.dumps, actions)) + "\n"
    if not objects.put_if_absent(join_uri(place, LOG, f"{version:020}.json"), lines.encode()):
        raise ConflictError(f"{place}: another commit became version {version}")


def _group_files(
    files: Mapping[str, dict[str, Any]], columns: Sequence[str], column: str, without: Sequence[str]
) -> list[dict[str, dict[str, Any]]]:
    """List groups of small files to combine, by path.

    A group has two or more, from one partition.
    """
    open_groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    groups = []
    for path, known in files.items():
        if known["size_bytes"] >= FILE_BYTES or (without and known[f"partition.{column}"] in without):
            continue
        partition = tuple(known[f"partition.{name}"] for name in columns)
        group = open_groups.setdefault(partition, {})
        if sum(one["size_bytes"] for one in group.values()) + known["size_bytes"] > FILE_BYTES:
            groups.append(group)
            group = open_groups[partition] = {}
        group[path] = known
    return [group for group in (*groups, *open_groups.values()) if len(group) > 1]


def _combine_files(place: str, files: Sequence[str], schema: pa.Schema, values: Mapping[str, str]) -> File:
    """Write some files' rows as one, in streams.

    All belong to one partition.
    """
    system, _ = open_filesystem(files[0])
    dataset = ds.dataset(list(map(open_path, files)), schema=schema, filesystem=system, format="parquet")
    folders = [f"{name}={value}" for name, value in values.items()]
    path, n = "/".join((*folders, f"part-{uuid.uuid4()}.zstd.parquet")), 0
    with objects.open_output(join_uri(place, path)) as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd", store_schema=False) as writer:
            for rows in chunks(dataset.to_batches(), ROWS_AT_ONCE):
                writer.write_table(rows)
                n += rows.num_rows
        return File(path, stream.tell(), n)


def vacuum_files(place: str, hours: float) -> None:
    """Remove files that no version of the last hours uses.

    Files from killed writers are removed, too.

    `deltalake` compares objects' times with this host's clock, so the difference is added where the host is
    ahead of the storage. In a folder with an odd name it lists the files behind links.

    Raises:
        ConflictError, StoreError: as `compact_files`.
    """
    ahead = (
        max(0.0, time.time() - objects.read_object_clock(place)) / 3600 if is_object_storage(place) else 0.0
    )
    odd = has_odd_name(place)
    with explain_delta_errors("vacuum", place), open_for_write(place) as table:
        unused = table.vacuum(
            math.ceil(hours + ahead),
            dry_run=odd,
            enforce_retention_duration=False,  # Delta would require a week, but a night ends within a day
            full=True,
            post_commithook_properties=delta_files.keep_logs(),
        )
    for name in unused if odd else ():
        Path(place, name).unlink(missing_ok=True)


# ---------------------------------------------------------------------- columns and constraints


def change_table(place: str, table: Table, version: int) -> None:
    """Bring a table to its present schema in one commit.

    The commit also sets the schema's version. The caller has checked this version's rows against new
    constraints. Old rows have NULL in new columns.

    Args:
        place: URI of the table.
        table: the present schema.
        version: the table's version checked by the caller.

    Raises:
        ConflictError: another job has committed since this version; look again.
        StoreError: the storage does not answer, or refuses.
    """
    opened = open_table(place, version)
    _commit_actions(place, version + 1, _change_actions(opened, table))


def _change_actions(opened: DeltaTable, table: Table) -> list[dict[str, Any]]:
    """Return the log's actions, in Delta's terms."""
    metadata, protocol, now = opened.metadata(), opened.protocol(), int(time.time() * 1000)
    fields = json.loads(opened.schema().to_json())["fields"]
    names = {field["name"] for field in fields}
    added = [field for field in json.loads(table.schema_json)["fields"] if field["name"] not in names]
    change = {"timestamp": now, "operation": "CHANGE COLUMNS", "operationParameters": {}}
    actions: list[dict[str, Any]] = [{"commitInfo": change}]
    kept = {key: value for key, value in metadata.configuration.items() if value is not None}
    if table.constraints and protocol.min_writer_version < CHECKED_VERSION:
        reader = protocol.min_reader_version
        actions.append({"protocol": {"minReaderVersion": reader, "minWriterVersion": CHECKED_VERSION}})
    described = {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [*fields, *added]}),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": {**kept, **table_sql.table_properties(table)},
        "createdTime": metadata.created_time,
    }
    return [*actions, {"metaData": {k: v for k, v in described.items() if v is not None}}]


# ---------------------------------------- files that the log names and the folder lacks

HINT = "run its night again, which makes lost rows anew, or restore the file from a copy"


class LostFile(NamedTuple):
    """One lost file of a table, with its partition.

    `path` is a path or URI; `owner` is the partition's value, empty without a partition.
    """

    path: str
    owner: str


def list_lost_files(
    place: str, column: str = "", is_owner: Callable[[str], bool] | None = None
) -> list[LostFile]:
    """List an existing table's lost files, in the log's order.

    Args:
        place: folder or URI of the table.
        column: a partition column; empty: files of all partitions.
        is_owner: tells which values of that column count; None: all.

    Raises:
        DeltaError, StoreError: as `delta_tables.open_table`.
    """
    place = arrow_uri(place) if is_object_storage(place) else place
    with hold_table(place) as table:
        stored = list_stored_files(table, place)
    owners = {path: known[f"partition.{column}"] if column else "" for path, known in stored.items()}
    files = [path for path in stored if is_owner is None or is_owner(owners[path])]
    sizes = zip(files, _measure(place, files), strict=True)
    return [LostFile(path, owners[path]) for path, size in sizes if size != stored[path]["size_bytes"]]


def _measure(place: str, files: Sequence[str]) -> list[int | None]:
    """Return each file's bytes; object storage lists the table once."""
    if not files or not is_object_storage(place):
        return objects.measure_files(files)
    listed = {uri: one.size for uri, one in objects.stat_visible(place).items()}
    return [listed.get(file) for file in files]


def forget_files(place: str, files: Sequence[str]) -> None:
    """Remove lost files from a table's log, in one version.

    Other rows of the table stay.

    Raises:
        ConflictError, StoreError: as `delta_files.delete_rows`.
    """
    place = arrow_uri(place) if is_object_storage(place) else place
    delta_files.remove_files(place, frozenset(files))


def lost_error(name: str, files: Sequence[str]) -> StoreError:
    """Return the error naming a table's first lost file."""
    more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
    return StoreError(f"table {name} lacks files that its log names: {files[0]}{more}", HINT)


@contextmanager
def explain_lost(place: str) -> Iterator[None]:
    """Name a table whose file is missing during a read.

    Raises StoreError.
    """
    try:
        yield
    except FileNotFoundError:
        lost = [one.path for one in list_lost_files(place)]
        if not lost:
            raise
        raise lost_error(place.rstrip("/").rpartition("/")[2], lost) from None
