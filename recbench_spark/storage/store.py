"""The warehouse: Delta tables under a directory, or in a `catalog.schema`.

Results are appended under a fresh `run_id` and become visible when the row of `runs`, written last, says
succeeded: a killed run leaves nothing that the views show. Intermediate tables are named by the hash of
their inputs and appended once per name (Delta's transaction identifiers), so two nights at once cannot
append them twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from graphlib import TopologicalSorter
from importlib import resources
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from recbench_spark import schemas
from recbench_spark.errors import StoreError
from recbench_spark.schemas import RESULT_TABLES, SCHEMA_VERSION, TABLES, Table, arrow_rows, conform
from recbench_spark.storage import delta_files, shared_rows
from recbench_spark.storage.ages import age_seconds, read_clock
from recbench_spark.storage.blocks import Blocks
from recbench_spark.storage.delta_files import ConflictError
from recbench_spark.storage.leases import take_turns
from recbench_spark.storage.marks import end_runs, note_run, oldest_work, runs_at_work
from recbench_spark.storage.paths import IN_SCRATCH
from recbench_spark.storage.publish import NO_LINKS, remove_tree

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    ConflictError,
)
"""Delta's Python classes are siblings, not subclasses of one another."""

VERSION_PROPERTY = "recbench.schema_version"
STATISTICS = "delta.dataSkippingStatsColumns"
MAX_DRIVER_BYTES = 1 << 28
"""Bytes of files that the driver reads itself; tasks read larger ones."""
MIGRATION_FOLDER = "_migrating"
"""Folder beside the tables for a migration; no table has a name like this."""
ATTEMPTS = 6
MAX_DELETIONS = 10
"""Number of times that the rows of one name can be deleted and appended again."""
HINT_ROOT = "two names and a dot are catalog.schema: write ./NAME for a folder of such a name"
CREATE_CONFLICT = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Error class for a half-seen first commit of another writer: the folder exists, its log does not yet."""
RUN_ID_START = re.compile(r"\d{8}T")
"""Start of a run id: its day. Checks of graphs and models have other names."""
FIRST_COMMIT_SECONDS = 15
"""After this time a missing first commit will not come; it is shorter than all retries together."""
T = TypeVar("T")


class Store:
    """Tables by name under one root; everything in a warehouse is written through this class."""

    def __init__(
        self, spark: SparkSession, root: str, read_only: bool = False, any_version: bool = False
    ) -> None:
        self.spark = spark
        self.in_catalog = is_catalog_schema(root)
        self.root = root if self.in_catalog or "://" in root else str(Path(root).resolve())
        self._existing: set[str] = set()
        if self.in_catalog:
            _check_schema(spark, root)
        elif self.folder is not None and not read_only:
            check_writable(self.folder)
        if not any_version:
            self._check_version()

    @property
    def folder(self) -> Path | None:
        """The root as a local folder; None if it is remote or a catalog."""
        return None if self.in_catalog or "://" in self.root else Path(self.root)

    @property
    def scratch(self) -> str:
        """Folder for rows that workers map (see `shared_rows.base_folder`)."""
        return shared_rows.base_folder(self.spark, None if self.in_catalog else self.root)

    @property
    def files_root(self) -> str:
        """Root of files that later jobs need: the warehouse's folder, where retention looks for them.

        A catalog has no folder of its own; its files are in scratch.
        """
        return self.scratch if self.in_catalog else self.root

    def format_path(self, relative: str) -> str:
        """Return a path below `files_root` as tables store it, with a prefix if that root is scratch."""
        return f"{IN_SCRATCH if self.in_catalog else ''}{relative}"

    def location(self, name: str) -> str:
        """Return the directory of a table, or its name in the catalog."""
        return f"{self.root}.{name}" if self.in_catalog else f"{self.root}/{name}"

    def identifier(self, name: str) -> str:
        """Return the name of a table in SQL."""
        return self.location(name) if self.in_catalog else quote_folder(self.location(name))

    def exists(self, name: str) -> bool:
        """Return whether the table has been created.

        Raises:
            StoreError: its folder holds files and its log no commit, for example during a restore; such a
                table does not count as empty.
        """
        if name not in self._existing:
            is_table = (
                self.spark.catalog.tableExists(self.location(name))
                if self.in_catalog
                else DeltaTable.isDeltaTable(self.spark, self.location(name))
            )
            if not self.in_catalog:
                is_table = self._has_commit(name, is_table)
            if is_table:
                self._existing.add(name)
        return name in self._existing

    def _has_commit(self, name: str, is_table: bool) -> bool:
        """Return whether a table's folder holds a commit; `is_table`: Delta's answer."""
        location = self.location(name)
        list_files = partial(_files_in, self.folder / name) if self.folder else None
        committed = _find_commit(location, list_files or partial(_remote_files_in, self.spark, location))
        if committed and not is_table:
            raise StoreError(f"{location}: Delta does not take its {LOG} for one", HINT_RESTORE)
        return committed

    def create(self, *tables: Table) -> None:
        """Create those tables that do not exist yet, with comments, layout and constraints."""
        missing = [table for table in tables if not self.exists(table.name)]
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(self._create, missing))

    def _create(self, table: Table) -> None:
        if self.folder is None or not _try_create_local(self.folder / table.name, table):
            statement = create_statement(table, self.identifier(table.name))
            retry_conflicts(f"create {table.name}", partial(self.spark.sql, statement))
        self._existing.add(table.name)

    def read(self, table: Table) -> DataFrame:
        """Return all rows of a table, visible or not; an empty frame if it does not exist yet."""
        if not self.exists(table.name):
            return self.spark.createDataFrame([], table.schema)
        if self.in_catalog:
            return self.spark.read.table(self.location(table.name))
        return self.spark.read.format("delta").load(self.location(table.name))

    def visible(self, table: Table) -> DataFrame:
        """Return the rows of a result table whose run has succeeded."""
        succeeded = self.read(schemas.RUNS).where("status = 'succeeded'").select("run_id")
        return self.read(table).join(F.broadcast(succeeded), "run_id", "left_semi")

    def read_run(self, name: str, run_id: str) -> DataFrame:
        """Return the rows of one run in a result table."""
        return self.read(TABLES[name]).where(F.col("run_id") == run_id)

    def append(self, frame: DataFrame, table: Table, once: str = "") -> None:
        """Append rows; with `once`, a second append under the same name does nothing.

        Appends never conflict with one another. A conflict with the creation of the table, or with another
        writer of the same `once`, is tried again; Delta then skips rows that exist.
        """
        self.create(table)
        writer = conform(frame, table).write.format("delta").mode("append")
        # Each append has a name, so that one whose answer was lost is not repeated. Delta skips a version
        # that is not above the last version of a name.
        once = once or uuid.uuid4().hex
        writer = writer.option("txnAppId", f"{table.name}/{once}").option("txnVersion", "1")
        name = self.location(table.name)
        save = writer.saveAsTable if self.in_catalog else writer.save
        retry_conflicts(f"write {table.name}", lambda: save(name))

    def append_named(self, frame: DataFrame, table: Table, column: str, name: str) -> None:
        """Append rows that carry `name` in `column`, unless such rows exist.

        The table's log remembers the name of an append whose rows somebody deleted, and would not accept
        them again under this name. They are appended under the next one.
        """
        for n in range(MAX_DELETIONS):
            self.append(frame, table, once=f"{name}-{n}" if n else name)
            if self.has(table, column, name) or frame.isEmpty():
                return

    def append_blocks(self, blocks: Blocks, table: Table, once: str) -> None:
        """Append the results of blocks to a table's partition `once`; a second call does nothing.

        Tasks write the files themselves (`delta_files`) if all of them see the warehouse's folder; else the
        rows go through Spark's writer.
        """
        self.create(table)
        (column,) = table.partition_by
        location, name = self.location(table.name), f"{table.name}/{once}"
        if self.folder is None or not delta_files.can_commit(location):
            self.append(blocks.rows().withColumn(column, F.lit(once)), table, once)
        elif not delta_files.is_committed(location, name):
            files = delta_files.write_files(blocks, location, {column: once})
            commit = partial(delta_files.commit, location, files, {column: once}, name)
            retry_conflicts(f"write {table.name}", commit)

    def append_rows(
        self, rows: Sequence[Mapping[str, Any]] | pa.Table, table: Table, once: str = ""
    ) -> None:
        """Append rows that the driver holds, as `append`; without a Spark job if the warehouse is a folder.

        Args:
            rows: column -> value, or an Arrow table; missing columns are NULL.
            table: a table of small rows, such as `runs`, `metrics`, `checks`.
            once: see `append`.
        """
        arrow_table = arrow_rows(rows, table)
        if not arrow_table.num_rows:
            return
        self.create(table)
        location, name = self.location(table.name), f"{table.name}/{once or uuid.uuid4().hex}"
        if not self._uses_deltalake(table):
            self.append(self.spark.createDataFrame(arrow_table), table, once)
            return
        commit = partial(delta_files.append_rows, location, arrow_table, name)
        retry_conflicts(f"write {table.name}", commit)

    def rows(
        self, table: Table, filters: delta_files.Filters = (), columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return rows that fulfil all filters; few, since the driver holds them. No Spark job if possible.

        Args:
            table: a table of small rows.
            filters: (column, operator, value), the operator one of =, !=, <, <=, >, >=, in.
            columns: the wanted columns; None: all.
        """
        if not self.exists(table.name):
            return []
        if self._uses_deltalake(table):
            matches = delta_files.read_rows(self.location(table.name), filters, columns)
            return cast(list[dict[str, Any]], matches.to_pylist())
        frame = self.read(table)
        for column, operator, value in filters:
            frame = frame.where(_filter_condition(column, operator, value))
        matches = frame.select(*(columns or table.names)).toArrow()
        return cast(list[dict[str, Any]], matches.to_pylist())

    def commit_files(self, files: Sequence[delta_files.File], table: Table, once: str) -> None:
        """Append files that tasks wrote to a table's folder, once per name, in one version."""
        if not files:
            return
        place = self.location(table.name)
        delta_files.require_visible(place, files)
        commit = partial(delta_files.commit, place, files, {}, f"{table.name}/{once}")
        retry_conflicts(f"write {table.name}", commit)

    def list_partition_files(
        self, table: Table, partition: Mapping[str, str], *, max_bytes: float = MAX_DRIVER_BYTES
    ) -> list[str]:
        """Return the Parquet files of a partition; empty if they are remote or too large.

        `max_bytes`: their largest size together, by default what the driver reads itself.
        """
        if self.folder is None or not self.exists(table.name) or not self._uses_deltalake(table):
            return []
        files = delta_files.list_partition_files(self.location(table.name), partition)
        return files if sum(Path(file).stat().st_size for file in files) <= max_bytes else []

    def can_add_files(self, *tables: Table) -> bool:
        """Create the tables, and return whether tasks may write their files."""
        if self.folder is None:
            return False
        self.create(*tables)
        return all(delta_files.can_commit(self.location(table.name)) for table in tables)

    def append_all(self, frames: Sequence[tuple[DataFrame, Table]]) -> None:
        """Append to several tables at once: the driver plans one while executors work on another."""
        self.create(*{table.name: table for _, table in frames}.values())
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda pair: self.append(*pair), frames))

    def has(self, table: Table, column: str, value: str) -> bool:
        """Return whether any row has this value."""
        if not self.exists(table.name):
            return False
        if self._uses_deltalake(table):
            return value in self._values(table, column)
        return not self.read(table).where(F.col(column) == value).limit(1).isEmpty()

    def _values(self, table: Table, column: str) -> set[str]:
        """Return the distinct values of a text column; of a partition column from the log alone."""
        location = self.location(table.name)
        if not self._uses_deltalake(table):
            return {row[0] for row in self.read(table).select(column).distinct().collect()}
        if column in table.partition_by:
            return set(delta_files.partition_values(location, column))
        return delta_files.read_column_values(location, column)

    def _uses_deltalake(self, table: Table) -> bool:
        """Return whether `deltalake` can read and write an existing table, without a Spark job."""
        return self.folder is not None and delta_files.can_append(self.location(table.name))

    def append_missing(
        self,
        rows: Sequence[Mapping[str, Any]],
        table: Table,
        key: Sequence[str],
        since: delta_files.Since = None,
    ) -> None:
        """Append rows that the driver holds, except those whose key a row of the table has.

        Of two jobs that append equal rows at the same moment, one reads the table again and leaves them
        out.

        Args:
            rows: column -> value.
            table: a table of small rows.
            key: columns whose values together identify a row; the first is never NULL.
            since: a column and a moment; only later rows of the table count. None: all count.
        """
        new = delta_files.drop_repeated_keys(arrow_rows(rows, table), key)
        if not new.num_rows:
            return
        self.create(table)
        merge = partial(self._merge, new, table, key, since)
        append = partial(delta_files.append_missing, self.location(table.name), new, key, since)
        retry_conflicts(f"write {table.name}", append if self._uses_deltalake(table) else merge)

    def _merge(
        self, rows: pa.Table, table: Table, key: Sequence[str], since: delta_files.Since = None
    ) -> None:
        """Append rows by MERGE: it reads the table, so Delta refuses it if another writer was first."""
        view = f"missing_{uuid.uuid4().hex}"
        conform(self.spark.createDataFrame(rows), table).createOrReplaceTempView(view)
        same = [_equality_condition(table, name) for name in key]
        later = [] if since is None else [f"there.{since[0]} > {_timestamp_literal(since[1])}"]
        try:
            self.spark.sql(
                f"MERGE INTO {self.identifier(table.name)} AS there USING {view} AS new"
                f" ON {' AND '.join([*same, *later])} WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self.spark.catalog.dropTempView(view)

    def replace_rows(
        self, rows: Sequence[Mapping[str, Any]], table: Table, column: str, value: str
    ) -> None:
        """Replace all rows that have a value in a column, in one version."""
        new = arrow_rows(rows, table)
        self.create(table)
        location = self.location(table.name)
        if self._uses_deltalake(table):
            action = partial(delta_files.replace_rows, location, new, column, value)
        else:
            frame = conform(self.spark.createDataFrame(new), table)
            writer = frame.write.format("delta").mode("overwrite")
            writer = writer.option("replaceWhere", f"{column} = {_quote(value)}")
            action = partial(writer.saveAsTable if self.in_catalog else writer.save, location)
        retry_conflicts(f"write {table.name}", action)

    def note_run(self, run_id: str) -> None:
        """Mark a run of this process as at work, so that cleaning keeps its rows."""
        if self.folder is not None:
            note_run(self.folder, run_id)

    def end_runs(self) -> None:
        """Remove the marks of this process: its runs have ended."""
        if self.folder is not None:
            end_runs(self.folder)

    def delete_orphans(self, older_than: str) -> None:
        """Delete rows of runs that never succeeded, began before a time stamp, and are not at work.

        The time stamps in run ids come from the clock of the run's host. A living process names its runs at
        work.
        """
        at_work = set() if self.folder is None else runs_at_work(self.folder)
        names = [name for name in RESULT_TABLES if self.exists(name)]
        ids_by_table = {name: self._values(TABLES[name], "run_id") for name in names}
        succeeded = {
            row["run_id"] for row in self.rows(schemas.RUNS, [("status", "=", "succeeded")], ["run_id"])
        }
        for name, run_ids in ids_by_table.items():
            unknown = filter(RUN_ID_START.match, run_ids - succeeded - at_work)
            lost = sorted(name for name in unknown if name < older_than)
            if lost:
                self.delete(name, "run_id", lost)

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete the rows whose column, or SQL expression of columns, has one of the values."""
        listed = ", ".join(map(_quote, values))
        statement = f"DELETE FROM {self.identifier(name)} WHERE {column} IN ({listed})"
        retry_conflicts(f"clean {name}", lambda: self.spark.sql(statement))

    def optimize(self, name: str, without: tuple[str, Sequence[str]] = ("", ())) -> None:
        """Compact small files into large ones, in the table's layout; `without`: partitions left alone."""
        column, values = without
        listed = ", ".join(map(_quote, values))
        where = f" WHERE {column} NOT IN ({listed})" if values else ""
        statement = f"OPTIMIZE {self.identifier(name)}{where}"
        retry_conflicts(f"optimize {name}", lambda: self.spark.sql(statement))

    def vacuum(self, name: str, hours: int) -> None:
        """Remove files that no version of the last hours uses, also those of killed writers.

        Files that were written since the start of the oldest run at work stay. Delta compares times of
        files with this host's clock, so the difference is added where it is ahead of the storage's clock.
        """
        if self.folder is not None:
            hours = _hours_to_keep(self.folder, hours)
        # Delta would require a week, but a night ends within a day.
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self.spark.sql(f"VACUUM {self.identifier(name)} RETAIN {hours} HOURS")

    def install_views(self) -> list[str]:
        """Register tables and the SQL files as views of this session; return the views' names."""
        for table in TABLES.values():
            self.read(table).createOrReplaceTempView(table.name)
        files = view_files()
        for name, text in files.items():
            self.spark.sql(text).createOrReplaceTempView(name)
        return list(files)

    def _check_version(self) -> None:
        if not self.exists("runs"):
            return
        check_version(self.root, self._properties("runs"))

    def _properties(self, name: str) -> dict[str, str]:
        detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier(name)}").select("properties").first()
        return dict(detail.properties) if detail else {}

    def migrate(self) -> list[str]:
        """Give an older warehouse the columns, constraints and layouts that it lacks.

        New columns are NULL in old rows. Rows are written again only if the layout of a table has changed.
        `runs` comes last, since its version is that of the warehouse: a killed migration is started again.

        Returns:
            The statements and actions that were carried out.

        Raises:
            StoreError: newer code made the warehouse, or a column cannot be added or has another type.
        """
        if self.folder is None:
            return self._migrate(None)
        # A waiting job must not look at a table: it could see it between its two names.
        with take_turns(self.folder / MIGRATION_FOLDER / "tables", keep_work=True) as lease:
            self._forget_logs()
            return self._migrate(lease.work)

    def _migrate(self, work: Path | None) -> list[str]:
        """Migrate under the lease; `work`: the folder for tables that are written again."""
        done = [
            self._swap_table(name, work) for name in RESULT_TABLES if work and self._is_half_swapped(name)
        ]
        for table in self._existing_tables():
            for statement in self._migration_statements(table):
                retry_conflicts(f"migrate {table.name}", partial(self.spark.sql, statement))
                done.append(statement)
            if self._layout(table.name) != (table.partition_by, ()):
                done.append(self._rewrite_table(table, work))
        return done

    def _existing_tables(self) -> list[Table]:
        """Return the tables of the warehouse, `runs` last."""
        tables = [table for table in TABLES.values() if self.exists(table.name)]
        return sorted(tables, key=lambda table: table.name == "runs")

    def _migration_statements(self, table: Table) -> list[str]:
        schema, properties = self.read(table).schema, self._properties(table.name)
        return migration_statements(table, schema, properties, self.identifier(table.name))

    def _forget_logs(self) -> None:
        """Make Delta read all logs again: it caches a table by its folder, with its version."""
        self.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def _layout(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the partition columns and the clustering columns of a table."""
        detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier(name)}").first()
        assert detail is not None
        return tuple(detail.partitionColumns), tuple(detail.clusteringColumns)

    def _rewrite_table(self, table: Table, work: Path | None) -> str:
        """Write a table again in its present layout; return a description.

        It is written in the folder of the migration's lease and then takes the table's name. Delta itself
        cannot change a table from clusters to partitions without keeping a feature that other writers do
        not have. The history of the table is lost.
        """
        rows, layout = self.read(table), ", ".join(table.partition_by)
        description = f"write {table.name} again, partitioned by {layout}"
        if self.folder is None or work is None:
            name = self.identifier(table.name)
            self.spark.sql(f"ALTER TABLE {name} CLUSTER BY NONE")
            self.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{STATISTICS}')")
            writer = conform(rows, table).write.format("delta").mode("overwrite")
            writer = writer.option("overwriteSchema", "true").partitionBy(*table.partition_by)
            (writer.saveAsTable if self.in_catalog else writer.save)(self.location(table.name))
            return description
        place = work / table.name
        remove_tree(place)  # of a migration that was killed
        self.spark.sql(create_statement(table, quote_folder(str(place))))
        conform(rows, table).write.format("delta").mode("append").save(str(place))
        (self.folder / table.name).rename(self._old_location(table.name))
        return f"{description}; {self._swap_table(table.name, work)}"

    def _old_location(self, name: str) -> Path:
        """Return the place of an old table whose name another one takes."""
        assert self.folder is not None
        return self.folder / MIGRATION_FOLDER / f"{name}.before"

    def _is_half_swapped(self, name: str) -> bool:
        """Return whether a migration was killed between the two renames of `_rewrite_table`."""
        return self.folder is not None and self._old_location(name).is_dir()

    def _swap_table(self, name: str, work: Path) -> str:
        """Give the rewritten table its name, and remove the old one."""
        assert self.folder is not None
        target = self.folder / name
        older = self.folder / MIGRATION_FOLDER / name  # older versions wrote the new table there
        if not target.exists():
            (work / name if (work / name).exists() else older).rename(target)
        self._forget_logs()
        shutil.rmtree(self._old_location(name))
        return f"remove {name} as it was"


def retry_conflicts(what: str, action: Callable[[], T], wait: float = 0.4) -> T:
    """Run an action, and run it again while another writer is first; return its result.

    Args:
        what: name of the action, for the error.
        action: succeeds as a whole or not at all.
        wait: seconds before the second attempt; the time doubles before each further one.

    Raises:
        StoreError: another writer was first each time.
    """
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except (PySparkException, ConflictError) as error:
            if not _is_conflict(error):
                raise
            if attempt == ATTEMPTS - 1:
                raise StoreError(f"cannot {what}: {_first_line(error)}", "run again") from None
            # Jitter without a random number: two processes differ in their ids.
            time.sleep(wait * 2**attempt * (1 + os.getpid() % 97 / 97))
    raise AssertionError("unreachable")


def _equality_condition(table: Table, name: str) -> str:
    """Return SQL for equality of a column in `there` and `new`; maps are compared as text."""
    if isinstance(name, delta_files.Presence):
        return f"(there.{name} IS NULL) = (new.{name} IS NULL)"
    is_map = any(c.name == name and isinstance(c.type, MapType) for c in table.columns)
    there, new = (f"to_json({side}.{name})" if is_map else f"{side}.{name}" for side in ("there", "new"))
    return f"{there} <=> {new}"


def _timestamp_literal(value: datetime) -> str:
    """Return a moment as a literal of Spark SQL."""
    return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"


def _hours_to_keep(folder: Path, hours: int) -> int:
    now = read_clock(folder)
    since = oldest_work(folder)
    at_work = 0.0 if since is None else now - since
    ahead = max(0.0, time.time() - now)
    return math.ceil(max(hours, at_work / 3600 + 1) + ahead / 3600) if at_work or ahead > 1 else hours


def _filter_condition(column: str, operator: str, value: Any) -> Column:
    """Return a filter of `Store.rows` as a Spark column."""
    at = F.col(column)
    if operator == "in":
        return at.isin(list(value))
    tests: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    return cast(Column, tests[operator](at, F.lit(value)))


def check_version(root: str, properties: Mapping[str, str | None]) -> None:
    """Check the schema version in the properties of the table `runs` of a warehouse.

    Raises:
        StoreError: the version is not the one of this code.
    """
    version = properties.get(VERSION_PROPERTY) or "none"
    if version != str(SCHEMA_VERSION):
        newer = version.isdigit() and int(version) > SCHEMA_VERSION
        raise StoreError(
            f"warehouse {root} has schema version {version}, this code writes {SCHEMA_VERSION}",
            "update recbench-spark, or use another --warehouse"
            if newer
            else f"jobs/maintain.py --warehouse {shlex.quote(root)} --migrate",
        )


def _is_conflict(error: Exception) -> bool:
    """Return whether another writer was first, so that the same action may succeed now."""
    return isinstance(error, CONFLICTS) or CREATE_CONFLICT in str(error)


def create_statement(table: Table, identifier: str) -> str:
    """Return the SQL that creates a table; Delta's own builder does not know names of three parts."""
    null = {True: "", False: "NOT NULL"}
    columns = (
        f"`{c.name}` {c.type.simpleString()} {null[c.nullable]} COMMENT {_quote(c.comment)}"
        for c in table.columns
    )
    properties = table_properties(table)
    layout = f"PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
    return "\n".join(
        [
            f"CREATE TABLE IF NOT EXISTS {identifier} ({', '.join(columns)}) USING delta",
            layout,
            f"COMMENT {_quote(table.comment)}",
            f"TBLPROPERTIES ({', '.join(f'{_quote(k)} = {_quote(v)}' for k, v in properties.items())})",
        ]
    )


def table_properties(table: Table) -> dict[str, str]:
    """Return Delta's properties of a table: the version of its schema, and its constraints."""
    checks = {f"delta.constraints.{name}": condition for name, condition in table.constraints.items()}
    return {VERSION_PROPERTY: str(SCHEMA_VERSION), **statistics_property(table), **checks}


def statistics_property(table: Table) -> dict[str, str]:
    """Return the property that turns off statistics in partitioned tables.

    Smallest and largest values skip no file there, and to compute them takes as long as to write the rows.
    """
    return {"delta.dataSkippingNumIndexedCols": "0"} if table.partition_by else {}


def migration_statements(
    table: Table, schema: StructType, properties: Mapping[str, str], identifier: str
) -> list[str]:
    """Return the SQL that changes an existing table to its present schema; empty if nothing is to do.

    Raises:
        StoreError: newer code made the table, or a column cannot be added or has another type.
    """
    version = properties.get(VERSION_PROPERTY, "none")
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        raise StoreError(
            f"{identifier} has schema version {version}: newer code made it", "update this one"
        )
    existing = {field.name: field.dataType.simpleString() for field in schema.fields}
    changed = [
        c.name
        for c in table.columns
        if existing.get(c.name, c.type.simpleString()) != c.type.simpleString()
    ]
    missing = [column for column in table.columns if column.name not in existing]
    refused = [*changed, *(column.name for column in missing if not column.nullable)]
    if refused:
        raise StoreError(
            f"{identifier}: column {refused[0]} cannot be brought to this schema",
            "use another --warehouse, or the version of recbench-spark that made this one",
        )
    columns = [f"`{c.name}` {c.type.simpleString()} COMMENT {_quote(c.comment)}" for c in missing]
    statements = [f"ALTER TABLE {identifier} ADD COLUMNS ({', '.join(columns)})"] if columns else []
    for name, condition in table.constraints.items():
        old_condition = properties.get(f"delta.constraints.{name}")
        # Delta keeps a condition with blanks between its words.
        if old_condition is not None and "".join(old_condition.split()) == "".join(condition.split()):
            continue
        if old_condition is not None:
            statements.append(f"ALTER TABLE {identifier} DROP CONSTRAINT {name}")
        statements.append(f"ALTER TABLE {identifier} ADD CONSTRAINT {name} CHECK ({condition})")
    if version != str(SCHEMA_VERSION):
        assignment = f"{_quote(VERSION_PROPERTY)} = {_quote(str(SCHEMA_VERSION))}"
        statements.append(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({assignment})")
    return statements


def _quote(text: str) -> str:
    """Return a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_folder(folder: str) -> str:
    """Return a table's folder as the name of a table in Spark SQL."""
    return "delta.`" + folder.replace("`", "``") + "`"


def is_catalog_schema(root: str) -> bool:
    """Return whether a root is `catalog.schema`: two names and a dot, and no such directory."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", root)) and not Path(root).exists()


def view_files() -> dict[str, str]:
    """Return the SQL of each view by name, those that others need first."""
    folder = resources.files("recbench_spark") / "sql"
    texts = {Path(f.name).stem: f.read_text() for f in folder.iterdir() if f.name.endswith(".sql")}
    needs = {name: re.findall(r"-- needs: (\w+)", text) for name, text in texts.items()}
    return {name: texts[name] for name in TopologicalSorter(dict(sorted(needs.items()))).static_order()}


def query_files() -> dict[str, str]:
    """Return the SQL of the prepared queries, by name."""
    folder = resources.files("recbench_spark") / "sql" / "queries"
    return {Path(f.name).stem: f.read_text() for f in sorted(folder.iterdir(), key=lambda f: f.name)}


def check_writable(root: Path) -> None:
    """Make the folder of a warehouse.

    Raises:
        StoreError: nothing can be written to it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create warehouse {root}: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write to warehouse {root}", "choose another --warehouse")


def check_would_write(root: Path) -> None:
    """Check what `check_writable` would check, without making anything.

    Raises:
        StoreError: `check_writable` would fail.
    """
    place = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise StoreError(f"cannot create warehouse {root}: {place} is a file", "choose another --warehouse")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write to {place}", "choose another --warehouse")


LOG = "_delta_log"

HINT_RESTORE = f"restore all of its {LOG}, or choose another --warehouse"

COMMIT = re.compile(rf"{LOG}/[0-9]{{20}}\.(json|checkpoint.*\.parquet)")
"""A file that proves that the table exists; Delta reports other missing files of its log."""

LEFTOVER = re.compile(rf"{LOG}/(.*/)?(\.[^/]*|[^/]*\.tmp)")
"""A file that the first commit of a killed writer leaves: hidden (as Hadoop does), or ending in .tmp."""


def _files_in(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files in a folder; those of the log come first."""
    for place in (folder / LOG, folder):
        for base, folders, names in os.walk(place):
            if place == folder and Path(base) == folder:
                folders[:] = [name for name in folders if name != LOG]
            yield from (str(Path(base, name).relative_to(folder)) for name in names)


def _remote_files_in(spark: SparkSession, folder: str) -> Iterator[str]:
    """Yield paths as `_files_in`, by Hadoop's file system."""
    context = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    system = hadoop.Path(folder).getFileSystem(context._jsc.hadoopConfiguration())
    whole = system.makeQualified(hadoop.Path(folder)).toString()
    for place in (f"{folder}/{LOG}", folder):
        entries = system.listFiles(hadoop.Path(place), True) if system.exists(hadoop.Path(place)) else None
        while entries is not None and entries.hasNext():
            yield entries.next().getPath().toString().removeprefix(f"{whole}/")


def _find_commit(folder: str, list_files: Callable[[], Iterable[str]]) -> bool:
    """Return whether the folder of a table holds a commit; False if it holds only leftovers.

    Raises:
        StoreError: it holds files and no commit. Nothing is removed: they may be all that is left of a
            table.
    """
    for file in list_files():
        if COMMIT.fullmatch(file):
            return True
        if LEFTOVER.fullmatch(file):
            continue
        if any(map(COMMIT.fullmatch, list_files())):  # another writer has created the table meanwhile
            return True
        raise StoreError(
            f"{folder} holds {file} and is not a Delta table: its {LOG} has no commit", HINT_RESTORE
        )
    return False


def has_commit(folder: Path) -> bool:
    """Return whether a local folder holds a table; errors as `Store.exists`."""
    return _find_commit(str(folder), partial(_files_in, folder))


def remove_uncommitted(folder: Path) -> None:
    """Remove what a killed job left before a table's first commit: Delta would refuse to create the table.

    Only leftovers are removed, file by file, and then empty folders.

    Raises:
        StoreError: there are other files. They would become part of the table, and a VACUUM would delete
            them.
    """
    log = folder / LOG
    if has_commit(folder) or not log.is_dir():
        return
    if age_seconds(log) < FIRST_COMMIT_SECONDS:
        return
    for file in filter(LEFTOVER.fullmatch, list(_files_in(folder))):
        (folder / file).unlink(missing_ok=True)
    for base, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # another writer uses the folder by now
            Path(base).rmdir()


def create_local_table(folder: Path, table: Table) -> None:
    """Create a table in a local folder with the first commit that Spark would write, all or nothing.

    Raises:
        OSError: the disk has no hard links.
        StoreError: as `remove_uncommitted`.
    """
    remove_uncommitted(folder)
    log = folder / LOG
    log.mkdir(parents=True, exist_ok=True)
    draft = log / f".{uuid.uuid4().hex}.tmp"
    # A hard link appears with its whole content, and never replaces the commit of another writer.
    try:
        draft.write_text("\n".join(map(json.dumps, first_commit(table))) + "\n", encoding="utf-8")
        os.link(draft, log / f"{0:020}.json")
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def _try_create_local(folder: Path, table: Table) -> bool:
    """Create a table without a Spark job; return False on a disk without hard links.

    Raises:
        StoreError: the disk is full, or cannot be written to.
    """
    try:
        create_local_table(folder, table)
    except OSError as error:
        for place in (folder / LOG, folder):
            with suppress(OSError):  # Spark would take an empty folder for an existing table
                place.rmdir()
        if error.errno not in NO_LINKS:
            raise StoreError(
                f"cannot create table {folder}: {error.strerror}",
                "make space or give rights, and run again",
            ) from None
        return False
    return True


def first_commit(table: Table) -> list[dict[str, Any]]:
    """Return the actions that create a table, in the terms of Delta's protocol."""
    now = int(time.time() * 1000)
    metadata = {
        "id": str(uuid.uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema.json(),
        "partitionColumns": list(table.partition_by),
        "configuration": table_properties(table),
        "createdTime": now,
    }
    version = delta_files.CHECKED_VERSION if table.constraints else delta_files.WRITER_VERSION
    return [
        {"commitInfo": {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": version}},
        {"metaData": metadata},
    ]


def _check_schema(spark: SparkSession, root: str) -> None:
    try:
        exists = spark.catalog.databaseExists(root)
    except PySparkException as error:
        raise StoreError(f"cannot open warehouse {root}: {_first_line(error)}", HINT_ROOT) from None
    if not exists:
        raise StoreError(f"no schema {root}", f"CREATE SCHEMA {root}; {HINT_ROOT}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


OWN_ERROR = r"^recbench_spark\.errors\.\w+: (.+(?:\n  hint: .+)?)$"
"""Form of an error of this package in the trace that a worker sent."""


def explain_spark_error(error: PySparkException | Exception) -> str:
    """Return the last cause of an error from Spark in one line, without the Java stack trace.

    An error of this package that a worker raised keeps its hint, on a second line.
    """
    if isinstance(error, AnalysisException):
        return _first_line(error)
    text = str(error)
    own = re.findall(OWN_ERROR, text, flags=re.MULTILINE)
    if own:
        return str(own[-1].strip())
    python = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    causes = re.findall(r"^(?:Caused by)?: (?:\w+\.)*(\w+: .+)$", text, flags=re.MULTILINE)
    if causes and "PythonException" in causes[-1]:
        causes = python  # the worker's own error is at the end of the trace that it sent
    cause = (causes or python or [_first_line(error)])[-1]
    return str(cause).strip()[:500]
