"""Tables written without Java, in a folder or object storage."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Dataset

from recbench_spark.core.strict_settings import digest
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.errors import FallbackToSpark
from recbench_spark.schemas import RESULT_TABLES, RUNS, TABLES, Table, arrow_rows
from recbench_spark.storage import delta_files, marks, table_upkeep
from recbench_spark.storage.blocks import Engine, PieceRows, StoredRows, TaskRows
from recbench_spark.storage.delta_files import File, Filters, Since
from recbench_spark.storage.delta_tables import count_rows, list_files, read_dataset
from recbench_spark.storage.leases import Report, take_turns
from recbench_spark.storage.object_access import map_together
from recbench_spark.storage.objects import read_object_clock
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.publish import read_clock
from recbench_spark.storage.retries import is_delta_conflict, retry_while
from recbench_spark.storage.scratch import drop_scratch, scratch_folder
from recbench_spark.storage.shared_arrays import host_folder
from recbench_spark.storage.table_folders import create_local_table, create_object_table, has_commit
from recbench_spark.storage.table_upkeep import explain_lost
from recbench_spark.storage.uris import is_object_storage, join_uri, shorten_path

T = TypeVar("T")

RowReader = Callable[..., list[dict[str, Any]]]
"""`FileTables.rows` of a warehouse, for readers without other needs."""

MAX_DELETIONS = 10
"""Times for which a name's rows can be deleted and appended again."""

RUN_ID_START = re.compile(r"\d{8}T")
"""Start of a run id: its day. Checks on graphs and models have other names."""


@dataclass(frozen=True)
class TaskParts:
    """Rows for tasks to compute and write, with their partitions."""

    parts: Sequence[tuple[TaskRows, Mapping[str, str]]]


class TaskFiles(NamedTuple):
    """Files written by tasks to a folder (`FileTables.choose_folder`)."""

    files: Sequence[File]
    folder: str


class FileTables:
    """Base of warehouses which read and write tables as files.

    Attributes:
        root: folder, URI, or `catalog.schema`.
        in_catalog: true if the root is a `catalog.schema`, where Spark writes.
        spark: session of Spark; None: the warehouse has none.
        wait: seconds before the second attempt at a write.
        workers: processes for tasks.
    """

    root: str
    in_catalog = False
    spark: Any = None
    wait = 0.4
    workers = 1
    _existing: set[str]

    @property
    def files_root(self) -> str:
        """Root for files needed by later jobs; retention looks there."""
        return self.root

    def file_place(self, *parts: str) -> str | None:
        """Return the place for a file beside the tables, if there is one."""
        return join_uri(self.root, *parts) if self.is_file_storage else None

    def lease_folder(self, copied: bool = False) -> Path | None:
        """Return this host's folder for a fit's lease, if there is one.

        `copied`: the fit keeps checkpoints, which object storage holds as copies.
        """
        if self.folder is None and self.is_file_storage and copied:
            return host_folder() / digest(self.root)
        return self.folder

    def format_path(self, relative: str) -> str:
        """Return a path below `files_root` as tables store it."""
        return relative

    @property
    def engine(self) -> Engine:
        """Runner of tasks."""
        return LocalEngine(str(host_folder()), self.workers)

    @property
    def is_file_storage(self) -> bool:
        """True if tasks and driver write files without Java."""
        return self.folder is not None or is_object_storage(self.root)

    @property
    def folder(self) -> Path | None:
        """The root as a local folder; None: it is elsewhere."""
        return None if is_object_storage(self.root) else Path(self.root)

    @property
    def scratch(self) -> str:
        """Folder for rows mapped by tasks."""
        return self.root if self.folder else str(host_folder())

    def require_access(self) -> None:
        """Check that tasks reach their input. Raises ConfigError, StoreError."""

    def drop_scratch(self) -> None:
        """Remove rows shared with tasks by this or killed jobs."""
        drop_scratch(self.scratch)

    def location(self, name: str) -> str:
        """Return a table's folder or URI."""
        return f"{self.root}/{name}"

    def create(self, *tables: Table) -> None:
        """Create missing tables with the first commit Spark would write."""
        for table in tables:
            if self.exists(table.name):
                continue
            if self.folder is None:
                create_object_table(self.location(table.name), table)
            else:
                create_local_table(self.folder / table.name, table)

    def read_rows(
        self, table: Table, filters: Filters = (), columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return filtered rows, few enough for the driver.

        A missing table has no rows.

        Args:
            table: a table of small rows.
            filters: (column, operator, value), the operator one of =, !=, <, <=, >, >=, in.
            columns: the wanted columns; None: all.

        Raises:
            FallbackToSpark: the table has features unknown to `deltalake`.
            StoreError: a file of the table is lost.
        """
        if not self.exists(table.name):
            return table.arrow_schema.empty_table().select(columns or table.names)
        with explain_lost(self.location(table.name)):
            return delta_files.select_rows(self.dataset(table), filters, columns)

    def read_run(self, name: str, run_id: str) -> pa.Table:
        """Read one run's result rows, as `read_rows`."""
        return self.read_rows(TABLES[name], [("run_id", "=", run_id)])

    def dataset(self, table: Table) -> Dataset:
        """Open an existing table without reading; errors as `read_rows`."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        try:
            return read_dataset(self.location(table.name))
        except (DeltaError, ValueError) as error:
            raise FallbackToSpark(f"table {table.name}: {str(error).splitlines()[0]}") from None

    def count_rows(self, table: Table, column: str, value: str) -> int:
        """Count a partition's rows, from the log if possible."""
        if not self.exists(table.name):
            return 0
        counted = count_rows(self.location(table.name), {column: value})
        if counted is None:
            return int(self.dataset(table).count_rows(filter=pc.field(column) == value))
        return counted

    def has(self, table: Table, column: str, value: str) -> bool:
        """Check whether any row has this value."""
        return value in self.list_values(table, column)

    def exists(self, name: str) -> bool:
        """Check whether the table exists.

        Raises:
            StoreError: its folder holds files and its log no commit, for example during a restore; such a
                table does not count as empty.
        """
        if name not in self._existing:
            if not has_commit(self.location(name)):
                return False
            if self.folder is None:  # a list is a request; a folder may be restored meanwhile
                self._existing.add(name)
        return True

    def rows(
        self, table: Table, filters: Filters = (), columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return filtered rows as objects; arguments as `read_rows`."""
        held = self.read_rows(table, filters, columns)
        rows = cast(list[dict[str, Any]], held.to_pylist())
        for name in (field.name for field in held.schema if pa.types.is_map(field.type)):
            for row in rows:
                row[name] = None if row[name] is None else dict(row[name])
        return rows

    def append(self, rows: Any, table: Table, once: str = "", named_by: str = "") -> list[File]:
        """Append rows in one version, once under a name.

        Appends never conflict with one another. A repeated attempt has the same name.

        Args:
            rows: rows of the driver (column -> value, or an Arrow table; missing columns are NULL),
                `TaskParts`, or `TaskFiles`.
            table: the table; it is created if it does not exist yet.
            once: name of the append; empty: a new one.
            named_by: column in which the driver's rows carry `once`. If somebody deleted them they are
                appended again under the next name, since the log remembers the first.

        Returns:
            The files written now by tasks, with their notes.

        Raises:
            StoreError: a constraint of the table forbids a row, or the folder is not writable.
            FallbackToSpark: as `choose_folder`.
        """
        if isinstance(rows, TaskFiles):
            self._commit_files(rows, table, once)
            return []
        if isinstance(rows, TaskParts):
            return self._append_parts(rows, table, once)
        new = arrow_rows(rows, table)
        if new.num_rows:
            self.create(table)
        for n in range(MAX_DELETIONS if new.num_rows else 0):
            self._append_arrow(new, table, f"{once}-{n}" if n else once or uuid.uuid4().hex)
            if not named_by or self.has(table, named_by, once):
                break
        return []

    def append_missing(
        self, rows: Sequence[Mapping[str, Any]], table: Table, key: Sequence[str], since: Since = None
    ) -> None:
        """Append the driver's rows whose key the table lacks.

        Of two jobs which append equal rows at the same moment, one reads the table again and leaves them
        out.

        Args:
            rows: column -> value.
            table: a table of small rows.
            key: columns whose values together identify a row; the first is never NULL.
            since: a column and a moment; only the table's later rows count. None: all count.
        """
        new = delta_files.drop_repeated_keys(arrow_rows(rows, table), key)
        if new.num_rows:
            self.create(table)
            self.retry(f"write {table.name}", partial(self._append_missing, new, table, key, since))

    def replace_rows(
        self, rows: Sequence[Mapping[str, Any]], table: Table, column: str, value: str
    ) -> None:
        """Replace all rows with a value, in one version."""
        self.create(table)
        new = arrow_rows(rows, table)
        self.retry(f"write {table.name}", partial(self._replace_rows, new, table, column, value))

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows with one of these values in a column."""
        place = self._open_files(name)
        self.retry(f"clean {name}", partial(delta_files.delete_rows, place, column, values))

    # ------------------------------------------------------------------------------- upkeep

    def optimize(self, name: str, without: tuple[str, Sequence[str]] = ("", ())) -> None:
        """Compact small files, in the table's layout.

        `without`: partitions to leave alone. The driver streams the rows (`table_upkeep`).
        """
        place, (column, values) = self._open_files(name), without
        self.retry(f"optimize {name}", partial(table_upkeep.compact_files, place, column, values))

    def vacuum(self, name: str, hours: int) -> None:
        """Remove files that no version of the last hours uses.

        Files from killed writers are removed, too. Files written since the start of the oldest run at work
        stay. Delta compares files' times with this host's clock, so the difference is added where the host
        is ahead of the storage. On object storage no mark tells since when a run is at work: `hours` must
        be longer than a night.
        """
        place = self._open_files(name)
        kept = hours if self.folder is None else marks.count_hours_to_keep(self.folder, hours)
        self.retry(f"vacuum {name}", partial(table_upkeep.vacuum_files, place, kept))

    def _open_files(self, name: str) -> str:
        """Return the place of exchangeable files. Raises FallbackToSpark."""
        if self.folder is not None and not self.keeps_files(TABLES[name]):
            raise FallbackToSpark(f"table {name} of the warehouse")
        return self.location(name)

    def keeps_files(self, table: Table) -> bool:
        """Check whether the driver may exchange an existing table's files."""
        return self._uses_deltalake(table)

    def _append_arrow(self, rows: pa.Table, table: Table, once: str) -> None:
        place, name = self.location(table.name), f"{table.name}/{once}"
        self.retry(f"write {table.name}", partial(delta_files.append_rows, place, rows, name))

    def _append_missing(self, rows: pa.Table, table: Table, key: Sequence[str], since: Since) -> None:
        delta_files.append_missing(self.location(table.name), rows, key, since)

    def _replace_rows(self, rows: pa.Table, table: Table, column: str, value: str) -> None:
        delta_files.replace_rows(self.location(table.name), rows, column, value)

    def retry(self, what: str, action: Callable[[], T]) -> T:
        """Run an action again while another writer is first."""
        return retry_while(is_delta_conflict, what, action, self.wait)

    def run_together(self, actions: Sequence[Callable[[], object]]) -> None:
        """Run actions on several tables or files, as `map_together`."""
        map_together(self.root, lambda action: action(), actions)

    def choose_folder(self, table: Table) -> str:
        """Create a table; return the folder for tasks' files.

        `append` takes them from there.

        Raises:
            FallbackToSpark: Spark must write the table, and this warehouse has none.
        """
        self.create(table)
        location = self.location(table.name)
        if self.is_file_storage and delta_files.can_commit(location):
            return location
        return self._open_spare_folder(table)

    def _open_spare_folder(self, table: Table) -> str:
        raise FallbackToSpark(f"table {table.name} of the warehouse has rules that tasks do not check")

    def shorten_path(self, path: str, subfolder: str) -> str:
        """Return a path as rows show it (`uris.shorten_path`)."""
        return shorten_path(path, None if self.in_catalog else self.root, subfolder)

    def list_lost_files(
        self, table: Table, is_owner: Callable[[str], bool] | None = None
    ) -> list[table_upkeep.LostFile]:
        """List a table's lost files, of all or some partitions.

        The values of the table's first column choose partitions. A catalog where Spark writes keeps its
        files' names to itself: there none is looked for.
        """
        if self.in_catalog or not self.exists(table.name):
            return []
        column = table.partition_by[0] if is_owner and table.partition_by else ""
        return table_upkeep.list_lost_files(self.location(table.name), column, is_owner)

    def take_turns(self, name: str, report: Report) -> AbstractContextManager[object]:
        """Hold a folder's lock for work of this name; others wait."""
        folder = self.folder
        return nullcontext() if folder is None else take_turns(folder / marks.MARKS_FOLDER / name, report)

    def open_progress_folder(self) -> Path | None:
        """Return a new folder for tasks' progress notes, if possible."""
        return None if self.folder is None else Path(scratch_folder(str(self.folder)))

    def note_run(self, run_id: str) -> None:
        """Mark this process's run, so that cleaning keeps it."""
        if self.folder is not None:
            marks.note_run(self.folder, run_id)

    def end_runs(self) -> None:
        """Remove this process's marks: its runs have ended."""
        if self.folder is not None:
            marks.end_runs(self.folder)

    def read_clock(self) -> float:
        """Return seconds since 1970, by the storage's or host's clock."""
        if self.folder is not None:
            return read_clock(self.folder)
        return read_object_clock(self.root) if is_object_storage(self.root) else time.time()

    def find_use_time(self, seconds: float) -> float:
        """Return since when data may be in use.

        The time is some seconds ago, or the start of the longest job at work, by the storage's clock. On
        object storage no mark tells what is at work.
        """
        began = marks.oldest_work(self.folder) if self.folder is not None else None
        ago = self.read_clock() - seconds
        return ago if began is None else min(began, ago)

    def delete_orphans(self, older_than: str) -> None:
        """Delete rows of old runs without success.

        Such runs began before a time stamp and are not at work, as living processes tell. A run id's time
        stamp is from its host's clock.
        """
        at_work = set() if self.folder is None else marks.runs_at_work(self.folder)
        tables = [TABLES[name] for name in RESULT_TABLES]
        values = map_together(self.root, lambda table: self.list_values(table, "run_id"), tables)
        succeeded = {row["run_id"] for row in self.rows(RUNS, [("status", "=", "succeeded")], ["run_id"])}
        for name, run_ids in zip(RESULT_TABLES, values, strict=True):
            unknown = filter(RUN_ID_START.match, run_ids - succeeded - at_work)
            lost = sorted(name for name in unknown if name < older_than)
            if lost:
                self.delete(name, "run_id", lost)

    def open_rows(
        self, table: Table, column: str, values: Sequence[str], most: int = PIECE_ROWS, **others: str
    ) -> StoredRows:
        """Return partitions' rows, which tasks open by themselves.

        Args:
            table: a table whose first partition column is `column`.
            column: a partition column; it can be read like the others.
            values: the partitions.
            most: rows read at once by a task.
            others: values of further partition columns.

        Raises:
            FallbackToSpark: Spark must read the table, and this warehouse has none.
        """
        exists = self.exists(table.name)
        if exists and not self._uses_deltalake(table):
            wanted = {column: values, **{name: [value] for name, value in others.items()}}
            return self._open_frame(table, wanted, most)
        pieces = [
            (file, partition)
            for partition in ({column: value, **others} for value in values if exists)
            for file in list_files(self.location(table.name), partition)
        ]
        read = partial(read_partition_files, most=most, schema=table.arrow_schema)
        return PieceRows(self.engine, pieces, read)

    def _open_frame(self, table: Table, values: Mapping[str, Sequence[str]], most: int) -> StoredRows:
        raise FallbackToSpark(f"table {table.name} of the warehouse")

    def _commit_files(self, written: TaskFiles, table: Table, once: str) -> None:
        files, folder = written
        if not files:
            return
        delta_files.require_visible(folder, files)
        if folder != self.location(table.name):
            self._append_spare(written, table, once)
            return
        names, name = dict.fromkeys(table.partition_by, ""), f"{table.name}/{once}"
        self.retry(f"write {table.name}", partial(delta_files.commit, folder, files, names, name))

    def _append_spare(self, written: TaskFiles, table: Table, once: str) -> None:
        raise NotImplementedError

    def _append_parts(self, rows: TaskParts, table: Table, once: str) -> list[File]:
        folder = self.choose_folder(table)
        if folder == self.location(table.name) and delta_files.is_committed(folder, f"{table.name}/{once}"):
            return []
        files = [
            file
            for blocks, partition in rows.parts
            for file in delta_files.write_files(blocks, folder, partition)
        ]
        self._commit_files(TaskFiles(files, folder), table, once)
        return files

    def list_values(self, table: Table, column: str) -> set[str]:
        """Return distinct values; a partition column's from the log.

        A missing table has none.
        """
        if not self.exists(table.name):
            return set()
        if column in table.partition_by:
            return set(delta_files.partition_values(self.location(table.name), column))
        return delta_files.read_column_values(self.location(table.name), column)

    def _uses_deltalake(self, table: Table) -> bool:
        """Check whether `deltalake` suffices for an existing table."""
        return delta_files.can_append(self.location(table.name))
