"""Delta tables written by tasks and committed by the driver.

Spark's own writer takes each value out of Arrow into a row and from there into a column again, and its
first commit in a process compiles for seconds. Here a task writes its Arrow table as a Parquet file, and
`deltalake` appends the files to the log, all or none. It also writes and reads the driver's own rows: no
Spark job, some ten milliseconds. This works for folders that the driver and all workers see under one
path, for object storage and for HDFS; elsewhere (catalogs that commit themselves) Spark reads and writes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import filters_to_expression

from recbench_spark.core.streams import NOTES
from recbench_spark.errors import StoreError
from recbench_spark.storage.append_names import find_append
from recbench_spark.storage.delta_tables import (
    hold_table,
    list_stored_files,
    list_table_files,
    open_for_write,
    read_dataset,
)
from recbench_spark.storage.drivers import is_cut_answer
from recbench_spark.storage.object_access import storage_error
from recbench_spark.storage.objects import measure_files, open_output
from recbench_spark.storage.packed_blocks import SIDES, name_whole
from recbench_spark.storage.sql_quotes import quote_sql
from recbench_spark.storage.uris import is_hdfs, is_object_storage, join_uri

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyarrow.dataset import Dataset

    from recbench_spark.storage.blocks import TaskRows

WRITER_VERSION = 2
"""Highest writer version for `can_commit`. Later ones may require constraints or deletion vectors; this
module lacks them. NOT NULL belongs to version 2; readers of labelled rows let no NULL pass."""


class ConflictError(Exception):
    """Error of a lost race or cut answer: try again."""


class File(NamedTuple):
    """One Parquet file in a table, with its partition.

    `size` is in bytes; `notes` come from the file's task (NOTES).
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str] | None = None
    notes: bytes | None = None


TEXTS = pa.map_(pa.string(), pa.string())
"""Type of attributes."""


def can_commit(folder: str) -> bool:
    """Check whether this module may add files to a table."""
    return can_append(folder, WRITER_VERSION)


def is_committed(folder: str, once: str) -> bool:
    """Check whether an append of this name was committed."""
    with hold_table(folder) as table:
        return find_append(table, folder, once) is not None


def write_files(blocks: TaskRows, folder: str, partition: Mapping[str, str]) -> list[File]:
    """Write each result as a Parquet file in one partition.

    A repeated task writes another file. VACUUM removes files not returned.

    Args:
        blocks: each task's rows, and the function to apply to them.
        folder: folder of the table.
        partition: column -> value; no file holds these columns.
    """
    names = [name for name in blocks.names if name not in partition]
    write = partial(write_file, folder=folder, partition=partition, names=names, whole=blocks.whole)
    files = blocks.each(write)
    require_visible(folder, files)
    return files


def require_visible(folder: str, files: Sequence[File]) -> None:
    """Check that the driver sees the files written by tasks.

    Raises:
        StoreError: a file is missing: a worker's host wrote it to its own disk.
    """
    # One file proves that workers reach the same object storage. On HDFS each host may mean another
    # cluster.
    alike = is_object_storage(folder) and not is_hdfs(folder)
    checked = files[:1] if alike else files
    places = [join_uri(folder, file.path) for file in checked]
    for place, file, size in zip(places, checked, measure_files(places), strict=True):
        if size != file.size:
            raise StoreError(
                f"{place} was written by a worker, and the driver does not see it",
                "--warehouse must be a folder that all hosts share, or remote storage",
            )


Select = Callable[[Sequence[File], Sequence[str]], Sequence[File]]
"""Chooses the new files to add to a partition, given the paths of its present files."""


def commit(
    folder: str,
    files: Sequence[File],
    partition: Mapping[str, str],
    once: str,
    select: Select | None = None,
) -> bool:
    """Append files in one version, once under this name.

    Files left out stay until VACUUM: a commit whose answer was lost may name them.

    Args:
        folder: folder of the table.
        files: as `write_files` returns them.
        partition: column -> value, for files without their own partition.
        once: the append's name (Delta's transaction identifier).
        select: chooses the files to add, given the partition's files; None: all. Of two writers which
            choose by the same version one must choose again, as in `append_missing`.

    Returns:
        True where files were added; False where an append of this name existed, or none were chosen.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: the folder cannot hold a log.
    """
    hint = "the disk must support hard links and renames"
    with hold_table(folder) as table:
        if find_append(table, folder, once) is not None:
            return False
        if table.protocol().min_writer_version > CHECKED_VERSION:
            raise StoreError(
                f"{folder} got features while this run was at work that it cannot write", "run it again"
            )
        names = [once]
        if select is not None:
            files = select(files, list_table_files(table, folder, partition))
            names.append("/".join(["chosen files", *partition.values()]))
            if not files:
                return False
        with explain_delta_errors("write", folder, hint):
            append(table, files, partition, *names)
        _sum_up_log(table, folder)
    return True


def append(table: DeltaTable, files: Sequence[File], partition: Mapping[str, str], *names: str) -> None:
    """Append files to the table as it was opened.

    Raises:
        CommitFailedError: an append under one of the names was committed since then; `deltalake` compares
            names.
    """
    from deltalake import CommitProperties  # noqa: PLC0415
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
        commit_properties=CommitProperties(app_transactions=[Transaction(name, 1) for name in names]),
        post_commithook_properties=keep_logs(),
    )


def keep_logs() -> Any:
    """Return commit properties for leaving old logs to Spark."""
    from deltalake import PostCommitHookProperties  # noqa: PLC0415

    return PostCommitHookProperties(cleanup_expired_logs=False)


COMMITS_A_CHECKPOINT = 20
"""Commits after which the log of a table in object storage is summed up in a file. To open a table is two
requests for each commit since then."""


def _sum_up_log(table: DeltaTable, folder: str) -> None:
    """Write a checkpoint when it is time; failures are harmless.

    The log is whole without one. The table is at the version from before the commit; a new table's is not
    summed up.
    """
    version = table.version()
    if is_object_storage(folder) and version and version % COMMITS_A_CHECKPOINT == 0:
        with suppress(Exception):
            table.create_checkpoint()


def write_file(
    rows: pa.Table,
    folder: str,
    partition: Mapping[str, str],
    names: Sequence[str],
    inside: Sequence[str] = (),
    *,
    whole: str = "",
) -> File:
    """Write named columns of rows as a partition's new file.

    `inside`: columns within lists and maps whose values repeat, as Parquet names them; maps of texts are
    taken to repeat, and for other columns a dictionary type says so. `whole`: a column of ids with all
    their rows in this file.
    """
    notes = (rows.schema.metadata or {}).get(NOTES)
    rows = rows.select([name for name in names if name in rows.column_names]).replace_schema_metadata(None)
    # Only these columns get dictionaries: Parquet would try one for every column and then drop it.
    repeated = [*(one.name for one in rows.schema if pa.types.is_dictionary(one.type)), *inside]
    repeated += [f"{one.name}.{side}" for one in rows.schema if one.type == TEXTS for side in SIDES]
    folders = [f"{name}={value}" for name, value in partition.items()]
    file = "/".join((*folders, f"part-{name_whole(whole)}{uuid.uuid4()}.snappy.parquet"))
    with open_output(join_uri(folder, file)) as stream:
        pq.write_table(rows, stream, use_dictionary=repeated, write_statistics=False, store_schema=False)
        size = stream.tell()
    return File(file, size, rows.num_rows, dict(partition), notes)


# ------------------------------------------------------------------------- rows that the driver holds

CHECKED_VERSION = 3
"""Writer version of tables with CHECK constraints; `deltalake` checks them for the rows it writes."""

Since = tuple[str, datetime] | None
"""A column of moments, and a moment: only later rows count."""

Filters = Sequence[tuple[str, str, Any]]
"""Triples (column, operator, value), which must all hold, as Parquet readers take them."""


def can_append(folder: str, version: int = CHECKED_VERSION) -> bool:
    """Check whether `append_rows` may write, by the writer version.

    The table's version must not exceed `version`.
    """
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        with hold_table(folder, latest=False) as table:
            return bool(table.protocol().min_writer_version <= version)
    except DeltaError:  # a feature unknown to this library
        return False


def append_rows(folder: str, rows: pa.Table, once: str) -> bool:
    """Append rows in one version, once under this name.

    The result is that of `commit`.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: a constraint of the table forbids a row, or the folder is not writable.
    """
    from deltalake import CommitProperties  # noqa: PLC0415
    from deltalake.transaction import Transaction  # noqa: PLC0415

    with _hold_version(folder) as table:
        if find_append(table, folder, once) is not None:
            return False
        _write_rows(table, folder, rows, CommitProperties(app_transactions=[Transaction(once, 1)]))
    return True


@contextmanager
def _hold_version(folder: str) -> Iterator[DeltaTable]:
    """Open a table for one write; ConflictError: another was first."""
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
    """Append rows; with a SQL predicate, replace its rows."""
    from deltalake import write_deltalake  # noqa: PLC0415

    refuse_nulls(folder, rows)
    mode: Any = {"mode": "overwrite", "predicate": predicate} if predicate else {"mode": "append"}
    with explain_delta_errors("write", folder):
        write_deltalake(
            table, rows, commit_properties=properties, post_commithook_properties=keep_logs(), **mode
        )
    _sum_up_log(table, folder)


@contextmanager
def explain_delta_errors(action: str, place: str, hint: str = "run again") -> Iterator[None]:
    """Turn errors of `deltalake` into StoreError or ConflictError.

    After a cut answer each write may be tried again: its name tells whether it is in the log, or a second
    one changes nothing.

    Args:
        action: a verb, for the message.
        place: folder or URI of the table.
        hint: what to do after other errors.

    Raises:
        ConflictError: another writer was faster, or an answer was cut.
        StoreError: all other errors of `deltalake` and of an object storage.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415

    try:
        yield
    except CommitFailedError as error:
        raise ConflictError(str(error)) from None
    except (DeltaError, OSError) as error:
        if is_cut_answer(error):
            raise ConflictError(str(error)) from None
        if isinstance(error, DeltaError):
            raise StoreError(f"cannot {action} {place}: {str(error).splitlines()[0]}", hint) from None
        if not is_object_storage(place):
            raise
        raise storage_error(place, str(error)) from None


class Presence(str):
    """A key's column, compared only as NULL or not."""


def append_missing(folder: str, rows: pa.Table, key: Sequence[str], since: Since = None) -> int:
    """Append rows whose key the table lacks, in one version.

    All such commits to a table use one transaction identifier. `deltalake` refuses a commit if another one
    under that identifier was made after the table was opened. So of two writers that read the same
    version, one must read again. Deleted rows can be appended again.

    Args:
        folder: folder of the table.
        rows: few, no two with one key.
        key: columns whose values together identify a row; the first is never NULL.
        since: a column and a moment; only the table's later rows count. None: all count.

    Returns:
        The number of rows appended.

    Raises:
        ConflictError: another writer was faster; try again.
        StoreError: as `append_rows`.
    """
    filters: list[tuple[str, str, Any]] = [(key[0], "in", rows.column(key[0]).unique().to_pylist())]
    filters += [] if since is None else [(since[0], ">", since[1])]
    with _hold_version(folder) as table:
        existing = set(_row_keys(read_rows(folder, filters, key, table.version()), key))
        fresh = [n for n, row_key in enumerate(_row_keys(rows, key)) if row_key not in existing]
        if fresh:
            _write_rows(table, folder, rows.take(fresh), _next_commit(table, folder, "missing rows"))
    return len(fresh)


def drop_repeated_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Keep only the first row of several with one key."""
    first = {row_key: n for n, row_key in reversed(list(enumerate(_row_keys(rows, key))))}
    return rows.take(pa.array(sorted(first.values()), pa.int64()))


def _row_keys(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Return rows' keys as text: lists have no hash."""
    return [
        repr([row[name] is not None if isinstance(name, Presence) else row[name] for name in key])
        for row in rows.select(key).to_pylist()
    ]


def _next_commit(table: DeltaTable, folder: str, token: str) -> CommitProperties:
    """Return properties for a commit without an earlier rival.

    A commit with the same token is a rival.
    """
    from deltalake import CommitProperties  # noqa: PLC0415
    from deltalake.transaction import Transaction  # noqa: PLC0415

    version = (find_append(table, folder, token) or 0) + 1
    return CommitProperties(app_transactions=[Transaction(token, version)])


def replace_rows(folder: str, rows: pa.Table, column: str, value: str) -> None:
    """Replace a value's rows in one version (errors: `append_missing`)."""
    with _hold_version(folder) as table:
        properties = _next_commit(table, folder, f"{column}={value}")
        _write_rows(table, folder, rows, properties, f"{column} = {quote_sql(value)}")


def delete_rows(folder: str, column: str, values: Sequence[str]) -> None:
    """Delete rows with these values, in one version.

    Errors are those of `append_missing`. A file whose rows all go is only named in the log; others are
    written again here, in streams.
    """
    predicate = f"{column} IN ({', '.join(map(quote_sql, values))})"
    with _hold_version(folder) as table, explain_delta_errors("delete from", folder):
        properties = _next_commit(table, folder, f"delete {column}")
        schema = pa.schema(table.schema().to_arrow())
        if column in schema.names and column not in table.metadata().partition_columns:
            # `delete` would write texts in a type unknown to Arrow's filters.
            _write_rows(table, folder, schema.empty_table(), properties, predicate)
        else:
            table.delete(predicate, commit_properties=properties, post_commithook_properties=keep_logs())
            _sum_up_log(table, folder)


def remove_files(folder: str, lost: Set[str]) -> None:
    """Remove unread files from the log; errors as `append_missing`."""
    from deltalake.transaction import AddAction, RemoveAction  # noqa: PLC0415

    with _hold_version(folder) as table, explain_delta_errors("write", folder):
        columns, now = list(table.metadata().partition_columns), int(time.time() * 1000)
        removed: list[AddAction | RemoveAction] = []
        for path, known in list_stored_files(table, folder).items():
            if path in lost:
                values = {name: known[f"partition.{name}"] for name in columns}
                removed.append(RemoveAction(known["path"], True, now, known["size_bytes"], values))
        if removed:
            table.create_write_transaction(
                removed, "append", table.schema(), columns, post_commithook_properties=keep_logs()
            )


def refuse_nulls(folder: str, rows: pa.Table) -> None:
    """Refuse NULL where a column forbids it.

    The writer reports it under various errors.

    Raises:
        StoreError: such a column holds NULL.
    """
    for field in rows.schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise StoreError(f"cannot write {folder}: column '{field.name}' holds NULL, which it may not")


def read_rows(
    folder: str, filters: Filters = (), columns: Iterable[str] | None = None, version: int | None = None
) -> pa.Table:
    """Read a table's few filtered rows into memory."""
    return select_rows(read_dataset(folder, version), filters, columns)


def select_rows(rows: Dataset, filters: Filters = (), columns: Iterable[str] | None = None) -> pa.Table:
    """Read filtered rows into memory."""
    names = rows.schema.names if columns is None else list(columns)
    if any(operator == "in" and not value for _, operator, value in filters):
        return rows.schema.empty_table().select(names)  # Arrow infers no type for an empty list
    condition = filters_to_expression([list(filters)]) if filters else None
    return rows.to_table(columns=names, filter=condition)


def partition_values(folder: str, column: str) -> list[str]:
    """Return a partition column's values with files."""
    with hold_table(folder) as table:
        return sorted({partition[column] for partition in table.partitions()})


def read_column_values(folder: str, column: str) -> set[str]:
    """Return a text column's distinct values, holding one batch."""
    distinct: set[str] = set()
    for batch in read_dataset(folder).to_batches(columns=[column]):
        distinct.update(batch.column(0).unique().to_pylist())
    return distinct
