"""The warehouse with Spark, in a folder or catalog.

A catalog's schema is called `catalog.schema`. Results are appended under a fresh `run_id`. They become
visible when the row of `runs`, written last, says succeeded: a killed run leaves nothing which the views
show. Intermediate tables are named by the hash of their inputs and appended once per name (Delta's
transaction identifiers), so two nights at once cannot append them twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import change_setting, collect_arrow, is_frame, make_frame
from recbench_spark.errors import StoreError
from recbench_spark.schemas import RUNS, TABLES, Table
from recbench_spark.storage import delta_files, frame_blocks, spark_places, table_folders, table_sql
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.delta_files import File, Filters, Since
from recbench_spark.storage.delta_tables import hold_table
from recbench_spark.storage.file_tables import FileTables, TaskFiles
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.marks import count_hours_to_keep
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.retries import retry_conflicts
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.spark_types import conform, raise_breaches, spark_schema
from recbench_spark.storage.task_files import write_table_rows
from recbench_spark.storage.uris import IN_SCRATCH, LOG, is_object_storage, join_uri, trim_uri

T = TypeVar("T")


class Store(FileTables):
    """A warehouse with Spark, and its one writer.

    Tables have names below one root.

    Attributes:
        root: folder or URI of the tables, or a `catalog.schema` whose tables Spark alone writes.
        schema: `catalog.schema` in which the tables have names; empty: in none.
        in_catalog: true if the root is a `catalog.schema`, where Spark writes.
    """

    spark: SparkSession

    def __init__(
        self, spark: SparkSession, root: str, read_only: bool = False, any_version: bool = False
    ) -> None:
        self.spark = spark
        self.schema = root if table_folders.is_catalog_schema(root) else ""
        root = (spark_places.find_schema_place(spark, root) if self.schema else None) or root
        self.in_catalog = bool(self.schema) and root == self.schema
        self.root = root if self.in_catalog or "://" in root else str(Path(root).resolve())
        if is_object_storage(root):
            if self.schema and not read_only:  # before `share_access`, which sets the address
                spark_places.require_address(spark, self.schema, root)
            self.root = spark_places.hadoop_uri(spark, trim_uri(root))
            spark_places.share_access(spark, self.root)
            spark_places.check_storage(spark, self.root, read_only)
        self._existing: set[str] = set()
        self._registered: set[str] = set()
        if self.folder is not None and not read_only:
            table_folders.check_writable(self.folder)
        if not any_version:
            self._check_version()

    @property
    def engine(self) -> SparkEngine:
        """Runner of tasks."""
        return SparkEngine(self.spark)

    @property
    def folder(self) -> Path | None:
        """The root as a local folder, else None.

        The result is None for remote storage, and for a catalog where Spark writes.
        """
        return None if self.in_catalog or "://" in self.root else Path(self.root)

    @property
    def scratch(self) -> str:
        """Folder for workers' mapped rows (see `frame_blocks.base_folder`)."""
        return frame_blocks.base_folder(self.spark, None if self.in_catalog else self.root)

    @property
    def files_root(self) -> str:
        """Root for files needed by later jobs.

        The root is the warehouse's folder, where retention looks for them. A catalog where Spark writes has
        no folder of its own; its files are in scratch.
        """
        return self.scratch if self.in_catalog else self.root

    def format_path(self, relative: str) -> str:
        """Return a path below `files_root` as tables store it.

        A prefix marks scratch as the root.
        """
        return f"{IN_SCRATCH if self.in_catalog else ''}{relative}"

    def require_access(self) -> None:
        """Check that tasks reach scratch, and Spark the warehouse.

        Raises ConfigError, StoreError.
        """
        _ = self.scratch
        spark_places.require_jars(self.spark, self.root)

    def drop_scratch(self) -> None:
        """Remove rows shared with tasks by this or killed jobs."""
        frame_blocks.drop_scratch(self.spark, self.scratch)

    def location(self, name: str) -> str:
        """Return a table's directory, or its name in the catalog."""
        return f"{self.root}.{name}" if self.in_catalog else f"{self.root}/{name}"

    def identifier(self, name: str) -> str:
        """Return the name of a table in SQL."""
        return self.location(name) if self.in_catalog else table_sql.quote_folder(self.location(name))

    def exists(self, name: str) -> bool:
        """Check whether the table exists.

        Raises:
            StoreError: its folder holds files and its log no commit, for example during a restore; such a
                table does not count as empty.
        """
        if name not in self._existing and self._is_table(self.location(name)):
            self._existing.add(name)
        return name in self._existing

    def _is_table(self, location: str) -> bool:
        """Check whether a table is there; errors as `exists`."""
        if self.in_catalog:
            return self.spark.catalog.tableExists(location)
        list_files = partial(table_folders.remote_files_in, self.spark, location)
        has_commit, find_commit = table_folders.has_commit, table_folders.find_commit
        committed = has_commit(location) if self.is_file_storage else find_commit(location, list_files)
        asks_delta = committed and not is_object_storage(location)
        if asks_delta and not spark_places.is_delta(self.spark, location):
            raise StoreError(
                f"{location}: Delta does not take its {LOG} for one", table_folders.HINT_RESTORE
            )
        return committed

    def create(self, *tables: Table) -> None:
        """Create missing tables with comments, layout and constraints.

        A catalog with names for tables written by tasks gets them, once in this process.

        Raises:
            StoreError: another table of the catalog has a new table's name.
        """
        self._renew_access()
        has_names = bool(self.schema) and not self.in_catalog
        with ThreadPoolExecutor(max_workers=4) as pool:
            known = list(pool.map(self.exists, [table.name for table in tables]))
            missing = [table for table, exists in zip(tables, known, strict=True) if not exists]
            for table in missing if has_names else ():
                spark_places.is_registered(self.spark, self.schema, table.name, self.location(table.name))
            list(pool.map(self._create, missing))
        for name in (table.name for table in tables if has_names and table.name not in self._registered):
            spark_places.register_table(self.spark, self.schema, name, self.location(name))
            self._registered.add(name)

    def _renew_access(self) -> None:
        """Read the object storage's keys again.

        A profile's keys expire and are replaced.
        """
        spark_places.share_access(self.spark, self.root)

    def _create(self, table: Table) -> None:
        if is_object_storage(self.root):
            table_folders.create_object_table(self.location(table.name), table)
        elif self.folder is None or not table_folders.try_create_local(self.folder / table.name, table):
            statement = table_sql.create_statement(table, self.identifier(table.name))
            retry_conflicts(f"create {table.name}", partial(self.spark.sql, statement))
        self._existing.add(table.name)

    def read(self, table: Table) -> DataFrame:
        """Return all rows of a table, visible or not.

        A missing table gives an empty frame.
        """
        self._renew_access()
        if not self.exists(table.name):
            return self.spark.createDataFrame([], spark_schema(table))
        if self.in_catalog:
            return self.spark.read.table(self.location(table.name))
        spark_places.require_jars(self.spark, self.root)
        return self.spark.read.format("delta").load(self.location(table.name))

    def read_partition(self, table: Table, column: str, value: str) -> DataFrame:
        """Return the rows with a value in a column."""
        return self.read(table).where(F.col(column) == value)

    def _open_frame(self, table: Table, values: Mapping[str, Sequence[str]], most: int) -> FrameRows:
        rows = self.read(table)
        for name, wanted in values.items():
            rows = rows.where(F.col(name).isin(list(wanted)))
        return FrameRows(rows, most)

    def visible(self, table: Table) -> DataFrame:
        """Return a result table's rows whose run has succeeded."""
        succeeded = self.read(RUNS).where("status = 'succeeded'").select("run_id")
        return self.read(table).join(F.broadcast(succeeded), "run_id", "left_semi")

    def read_rows(
        self, table: Table, filters: Filters = (), columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return rows as `FileTables.read_rows`, without Spark if possible."""
        if not self.exists(table.name) or self._uses_deltalake(table):
            return super().read_rows(table, filters, columns)
        frame = self.read(table)
        for column, operator, value in filters:
            frame = frame.where(filter_condition(column, operator, value))
        return collect_arrow(frame.select(*(columns or table.names)))

    def count_rows(self, table: Table, column: str, value: str) -> int:
        """Count a partition's rows.

        The log is enough if its files have statistics.
        """
        if not self.exists(table.name) or self._uses_deltalake(table):
            return super().count_rows(table, column, value)
        return self.read(table).where(F.col(column) == value).count()

    def has(self, table: Table, column: str, value: str) -> bool:
        """Check whether any row has this value."""
        if not self.exists(table.name) or self._uses_deltalake(table):
            return super().has(table, column, value)
        return not self.read(table).where(F.col(column) == value).limit(1).isEmpty()

    def list_values(self, table: Table, column: str) -> set[str]:
        """Return a text column's distinct values.

        For a partition column the log is enough.
        """
        if not self.exists(table.name) or self._uses_deltalake(table):
            return super().list_values(table, column)
        return {row[0] for row in self.read(table).select(column).distinct().collect()}

    def _uses_deltalake(self, table: Table) -> bool:
        """Check whether `deltalake` can read and write an existing table.

        The check needs no Spark job.
        """
        return self.is_file_storage and super()._uses_deltalake(table)

    def install_views(self, names: Sequence[str] | None = None) -> list[str]:
        """Register tables and SQL files as views of this session.

        Args:
            names: views to register, each after its needs; all by default.

        Returns:
            The views' names.
        """
        files = table_sql.view_files()
        chosen = [*TABLES, *files] if names is None else names
        for name in chosen:
            rows = self.spark.sql(files[name]) if name in files else self.read(TABLES[name])
            rows.createOrReplaceTempView(name)
        return [name for name in chosen if name in files]

    def _check_version(self) -> None:
        if not self.exists("runs"):
            return
        if self._uses_deltalake(RUNS):  # in milliseconds; Spark needs a job
            with hold_table(self.location("runs"), latest=False) as table:
                table_sql.check_version(self.root, table.metadata().configuration)
        else:
            table_sql.check_version(self.root, self.properties("runs"))

    def properties(self, name: str) -> dict[str, str]:
        """Return a table's Delta properties."""
        if is_object_storage(self.root):
            with hold_table(self.location(name)) as table:
                known = table.metadata().configuration
            return {key: value for key, value in known.items() if value is not None}
        detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier(name)}").select("properties").first()
        return dict(detail.properties) if detail else {}

    # ------------------------------------------------------------------------------- writing

    def append(self, rows: Any, table: Table, once: str = "", named_by: str = "") -> list[File]:
        """Append rows, as `FileTables.append`; also frames of Spark.

        On object storage tasks write a frame's rows. Elsewhere Spark does, and Delta skips a version which
        is not above the name's last one.
        """
        if not is_frame(rows):
            return super().append(rows, table, once, named_by)
        self.create(table)
        frame, once, name = conform(rows, table), once or uuid.uuid4().hex, self.location(table.name)
        if is_object_storage(self.root):
            if not delta_files.is_committed(name, f"{table.name}/{once}"):
                files = write_table_rows(
                    FrameRows(raise_breaches(frame, table), frame_blocks.BATCHES), table, name
                )
                super().append(TaskFiles(files, name), table, once)
            return []
        writer = frame.write.format("delta").mode("append")
        writer = writer.option("txnAppId", f"{table.name}/{once}").option("txnVersion", "1")
        save = writer.saveAsTable if self.in_catalog else writer.save
        self.retry(f"write {table.name}", lambda: save(name))
        return []

    def run_together(self, actions: Sequence[Callable[[], object]]) -> None:
        """Run actions side by side.

        The driver plans one while executors work on another.
        """
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(lambda action: action(), actions))

    def _open_spare_folder(self, table: Table) -> str:
        return scratch_folder(self.scratch)

    def _append_spare(self, written: TaskFiles, table: Table, once: str) -> None:
        """Let Spark append files written beside a table by tasks.

        The table's catalog or rules need Spark.
        """
        pieces = [(join_uri(written.folder, file.path), file.partition or {}) for file in written.files]
        rows = PieceRows(self.engine, pieces, partial(read_partition_files, schema=table.arrow_schema))
        self.append(frame_blocks.open_frame(self.spark, rows, spark_schema(table)), table, once)

    def _append_arrow(self, rows: pa.Table, table: Table, once: str) -> None:
        if self._uses_deltalake(table):
            super()._append_arrow(rows, table, once)
        else:
            self.append(make_frame(self.spark, rows), table, once)

    def _append_missing(self, rows: pa.Table, table: Table, key: Sequence[str], since: Since) -> None:
        """Append rows by MERGE where Spark commits.

        MERGE reads the table, so Delta sees other writers.
        """
        if self._uses_deltalake(table):
            super()._append_missing(rows, table, key, since)
            return
        view = f"missing_{uuid.uuid4().hex}"
        conform(self.spark.createDataFrame(rows), table).createOrReplaceTempView(view)
        same = [table_sql.equality_condition(table, name) for name in key]
        later = [] if since is None else [f"there.{since[0]} > {table_sql.timestamp_literal(since[1])}"]
        try:
            self.spark.sql(
                f"MERGE INTO {self.identifier(table.name)} AS there USING {view} AS new"
                f" ON {' AND '.join([*same, *later])} WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self.spark.catalog.dropTempView(view)

    def _replace_rows(self, rows: pa.Table, table: Table, column: str, value: str) -> None:
        if self._uses_deltalake(table):
            super()._replace_rows(rows, table, column, value)
            return
        writer = conform(self.spark.createDataFrame(rows), table).write.format("delta").mode("overwrite")
        writer = writer.option("replaceWhere", f"{column} = {table_sql.quote_text(value)}")
        (writer.saveAsTable if self.in_catalog else writer.save)(self.location(table.name))

    def retry(self, what: str, action: Callable[[], T]) -> T:
        """Run an action again while another writer is first."""
        return retry_conflicts(what, action)

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows with one of these values in a column."""
        if self._keeps_files(name):
            super().delete(name, column, values)
            return
        listed = ", ".join(map(table_sql.quote_text, values))
        statement = f"DELETE FROM {self.identifier(name)} WHERE {column} IN ({listed})"
        retry_conflicts(f"clean {name}", partial(self.spark.sql, statement))

    def optimize(self, name: str, without: tuple[str, Sequence[str]] = ("", ())) -> None:
        """Compact small files, as `FileTables.optimize`."""
        if self._keeps_files(name):
            super().optimize(name, without)
            return
        column, values = without
        listed = ", ".join(map(table_sql.quote_text, values))
        where = f" WHERE {column} NOT IN ({listed})" if values else ""
        statement = f"OPTIMIZE {self.identifier(name)}{where}"
        retry_conflicts(f"optimize {name}", partial(self.spark.sql, statement))

    def vacuum(self, name: str, hours: int) -> None:
        """Remove files no recent version uses, as `FileTables.vacuum`."""
        if self._keeps_files(name):
            super().vacuum(name, hours)
            return
        kept = hours if self.folder is None else count_hours_to_keep(self.folder, hours)
        # Delta would require a week, but a night ends within a day.
        change_setting(self.spark, "spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self.spark.sql(f"VACUUM {self.identifier(name)} RETAIN {kept} HOURS")

    def _keeps_files(self, name: str) -> bool:
        """Check whether the driver may exchange a table's files.

        In object storage Spark never does it.
        """
        return is_object_storage(self.root) or self.keeps_files(TABLES[name])


def filter_condition(column: str, operator: str, value: Any) -> Column:
    """Return a filter of `Store.rows` as a Spark column."""
    at = F.col(column)
    if operator == "in":
        return at.isin(list(value))
    tests: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    return cast(Column, tests[operator](at, F.lit(value)))
