"""Delta tables without a row in Java: tasks write Parquet files, the driver commits them, and small rows.

Spark's own writer takes each value out of Arrow into a row and from there into a column again, and its
first commit in a process compiles for seconds. Here a task writes the table that it holds, and
`deltalake` appends the files to the log, all or none of them. Rows that the driver holds are written and
read by `deltalake` too: no job, some ten milliseconds. For folders that the driver and all workers
see under one path; where the folder is remote, Spark reads and writes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import filters_to_expression

from recbench_spark.errors import StoreError
from recbench_spark.storage.blocks import Blocks
from recbench_spark.storage.delta_tables import list_files, open_for_write, open_table, read_dataset

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

WRITER_VERSION = 2
"""Tables of a later version may ask for what is not done here (constraints, deletion vectors). NOT NULL is
of version 2, and labelled rows keep it: their readers let no NULL pass."""


class ConflictError(Exception):
    """Another writer was there first, so that the same commit may succeed now."""


class File(NamedTuple):
    """A Parquet file: path inside the table's folder, bytes, rows; partition, where not its commit's."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str] | None = None


def can_commit(folder: str) -> bool:
    """Whether files may be added to a table by this module."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        return bool(open_table(folder).protocol().min_writer_version <= WRITER_VERSION)
    except DeltaError:  # a feature that this library does not know
        return False


def is_committed(folder: str, once: str) -> bool:
    """Whether an append of this name has been committed."""
    return open_table(folder).transaction_version(once) is not None


def write_files(blocks: Blocks, folder: str, partition: Mapping[str, str]) -> list[File]:
    """What comes of the blocks as Parquet files in one partition of a table: one per task.

    A task that is tried again writes a file of another name; those that are not returned belong to no
    version of the table, and VACUUM removes them. The driver holds three values per file.

    Args:
        blocks: the shuffle and what each task makes of its rows.
        folder: of the table.
        partition: column -> value, which no file holds.
    """
    names = tuple(name for name in blocks.schema.names if name not in partition)
    files = blocks.each(partial(write_file, folder=folder, partition=partition, names=names))
    require_visible(folder, files)
    return files


def require_visible(folder: str, files: Sequence[File]) -> None:
    """StoreError where the driver does not see a file: a worker's host wrote it to a disk of its own."""
    for path, size in ((Path(folder, file.path), file.size) for file in files):
        if not path.is_file() or path.stat().st_size != size:
            raise StoreError(
                f"{path} was written by a worker, and the driver does not see it",
                "--warehouse must be a folder that all hosts share, or remote storage",
            )


def commit(folder: str, files: Sequence[File], partition: Mapping[str, str], once: str) -> bool:
    """Append files to the table in one version, unless an append of this name is there.

    Files that are not added stay where they are until VACUUM: a commit whose answer was lost may name them.

    Args:
        folder: of the table.
        files: as `write_files` returns them.
        partition: column -> value of all files that do not say theirs.
        once: the append's name (Delta's transaction identifier).

    Returns:
        Whether the files were added: False where another writer was there first.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: the folder is not a place for a log.
    """
    # Here: workers import this module and need none of it.
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415

    table = open_table(folder)
    if table.transaction_version(once) is not None:
        return False
    try:
        append(table, files, partition, once)
    except CommitFailedError as error:
        raise ConflictError(str(error)) from None
    except DeltaError as error:
        hint = "is it a disk that links and renames files?"
        raise StoreError(f"cannot write {folder}: {error}", hint) from None
    return True


def append(table: DeltaTable, files: Sequence[File], partition: Mapping[str, str], once: str) -> None:
    """Append files to the table as it was opened.

    Raises:
        CommitFailedError: an append of this name has been committed since then; `deltalake` compares names.
    """
    from deltalake import CommitProperties, PostCommitHookProperties  # noqa: PLC0415
    from deltalake.transaction import AddAction, RemoveAction, Transaction  # noqa: PLC0415

    now = int(time.time() * 1000)
    adds: list[AddAction | RemoveAction] = []
    for file in files:
        values, rows = file.partition or partition, json.dumps({"numRecords": file.rows})
        adds.append(AddAction(file.path, file.size, values, now, True, rows))
    table.create_write_transaction(
        adds,
        "append",
        table.schema(),
        list(files[0].partition or partition) if files else list(partition),
        commit_properties=CommitProperties(app_transactions=[Transaction(once, 1)]),
        # Old logs are Spark's to remove, by the table's properties.
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )


def write_file(
    rows: pa.Table,
    folder: str,
    partition: Mapping[str, str],
    names: Sequence[str],
    inside: Sequence[str] = (),
) -> File:
    """Rows as a new file of a table's partition; of the columns named those that there are.

    `inside`: what repeats itself within lists and maps, as Parquet names it; of others dictionaries say it.
    """
    rows = rows.select([name for name in names if name in rows.column_names])
    # Other values are written as they are: a dictionary is tried for each otherwise, and given up.
    repeated = [field.name for field in rows.schema if pa.types.is_dictionary(field.type)]
    repeated += inside
    place = "/".join(f"{name}={value}" for name, value in partition.items())
    file = f"{place}/part-{uuid.uuid4()}.snappy.parquet"
    path = Path(folder, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, use_dictionary=repeated, write_statistics=False, store_schema=False)
    return File(file, path.stat().st_size, rows.num_rows, dict(partition))


# ------------------------------------------------------------------------- rows that the driver holds

CHECKED_VERSION = 3
"""Tables with CHECK constraints: `deltalake` holds the rows that it writes against them."""


Since = tuple[str, datetime] | None
"""A column of moments, and a moment that counts itself no more."""

Filters = Sequence[tuple[str, str, Any]]
"""All of (column, operator, value), as Parquet's readers have it."""


def can_append(folder: str) -> bool:
    """Whether rows may be written to a table by `append_rows`."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        return bool(open_table(folder).protocol().min_writer_version <= CHECKED_VERSION)
    except DeltaError:
        return False


def append_rows(folder: str, rows: pa.Table, once: str) -> bool:
    """Append rows to the table in one version, unless an append of this name is there; as `commit`.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: a row that a constraint of the table forbids, or a folder that cannot be written to.
    """
    from deltalake import CommitProperties  # noqa: PLC0415
    from deltalake.transaction import Transaction  # noqa: PLC0415

    with _hold_version(folder) as table:
        if table.transaction_version(once) is not None:
            return False
        _write_rows(table, folder, rows, CommitProperties(app_transactions=[Transaction(once, 1)]))
    return True


@contextmanager
def _hold_version(folder: str) -> Iterator[DeltaTable]:
    """Open a table for one write; ConflictError where another writer's commit came first."""
    try:
        with open_for_write(folder) as table:
            yield table
    except FileExistsError as error:
        raise ConflictError(str(error)) from None


def _write_rows(
    table: DeltaTable,
    folder: str,
    rows: pa.Table,
    properties: CommitProperties,
    predicate: str | None = None,
) -> None:
    """Append rows; or put them in the place of those that fulfil a condition of SQL."""
    from deltalake import PostCommitHookProperties, write_deltalake  # noqa: PLC0415
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415

    refuse_nulls(folder, rows)
    hooks = PostCommitHookProperties(cleanup_expired_logs=False)
    write = partial(
        write_deltalake, table, rows, commit_properties=properties, post_commithook_properties=hooks
    )
    try:
        if predicate is None:
            write(mode="append")
        else:
            write(mode="overwrite", predicate=predicate)
    except CommitFailedError as error:
        raise ConflictError(str(error)) from None
    except DeltaError as error:
        raise StoreError(f"cannot write {folder}: {str(error).splitlines()[0]}") from None


class Presence(str):
    """Name of a column in a key of which only counts whether its value is NULL."""


def append_missing(folder: str, rows: pa.Table, key: Sequence[str], since: Since = None) -> int:
    """Append those rows whose key no row of the table has, in one version; returns how many.

    All such commits to a table bear one transaction identifier. `deltalake` refuses a commit when another
    one of that identifier came in after the table was opened, so of two writers that looked at the same
    version one must look again. Rows that somebody deleted can be appended again.

    Args:
        folder: of the table.
        rows: few, no two of them with one key.
        key: columns whose values together say that two rows are the same; the first is never NULL.
        since: a column and a moment; only rows of the table that are later count. None: all count.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: as `append_rows`.
    """
    filters: list[tuple[str, str, Any]] = [(key[0], "in", rows.column(key[0]).unique().to_pylist())]
    filters += [] if since is None else [(since[0], ">", since[1])]
    with _hold_version(folder) as table:
        known = set(_row_keys(read_rows(folder, filters, key, table.version()), key))
        fresh = [n for n, name in enumerate(_row_keys(rows, key)) if name not in known]
        if fresh:
            _write_rows(table, folder, rows.take(fresh), _next_commit(table, "missing rows"))
    return len(fresh)


def drop_repeated_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows without those whose key an earlier one has."""
    first = {name: n for n, name in reversed(list(enumerate(_row_keys(rows, key))))}
    return rows.take(pa.array(sorted(first.values()), pa.int64()))


def _row_keys(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Return the key of each row as text: lists and maps have no hash."""
    return [
        repr([row[name] is not None if isinstance(name, Presence) else row[name] for name in key])
        for row in rows.select(key).to_pylist()
    ]


def _next_commit(table: DeltaTable, token: str) -> CommitProperties:
    """Return properties of a commit that no other one of the same token may precede unseen."""
    from deltalake import CommitProperties  # noqa: PLC0415
    from deltalake.transaction import Transaction  # noqa: PLC0415

    version = (table.transaction_version(token) or 0) + 1
    return CommitProperties(app_transactions=[Transaction(token, version)])


def replace_rows(folder: str, rows: pa.Table, column: str, value: str) -> None:
    """Put rows in the place of all that have a value in a column, in one version.

    Raises:
        ConflictError, StoreError: as `append_missing`.
    """
    quoted = value.replace("'", "''")
    with _hold_version(folder) as table:
        properties = _next_commit(table, f"{column}={value}")
        _write_rows(table, folder, rows, properties, f"{column} = '{quoted}'")


def refuse_nulls(folder: str, rows: pa.Table) -> None:
    """Raise StoreError for a NULL where none may be: the writer finds it under one error or another."""
    for field in rows.schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise StoreError(f"cannot write {folder}: column '{field.name}' holds NULL, which it may not")


def read_rows(
    folder: str,
    filters: Filters = (),
    columns: Iterable[str] | None = None,
    version: int | None = None,
) -> pa.Table:
    """The rows of a table that fulfil all filters; the caller knows that they are few."""
    names = None if columns is None else list(columns)
    if any(operator == "in" and not value for _, operator, value in filters):  # Arrow knows no type of it
        nothing = read_dataset(folder, version).schema.empty_table()
        return nothing if names is None else nothing.select(names)
    wanted = filters_to_expression([list(filters)]) if filters else None
    return read_dataset(folder, version).to_table(columns=names, filter=wanted)


def partition_values(folder: str, column: str) -> list[str]:
    """The values of a partition column that hold files, from the log alone."""
    return sorted({partition[column] for partition in open_table(folder).partitions()})


def read_column_values(folder: str, column: str) -> set[str]:
    """The values of a column of text, each once; one batch of that column in memory."""
    found: set[str] = set()
    for batch in read_dataset(folder).to_batches(columns=[column]):
        found.update(batch.column(0).unique().to_pylist())
    return found


def list_partition_files(folder: str, partition: Mapping[str, str]) -> list[str]:
    """Return the paths of a partition's files on the disk."""
    return list_files(folder, partition)
