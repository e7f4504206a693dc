"""A warehouse of Delta tables with Spark: places and reading.

It lies under a directory, or in a `catalog.schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import schemas
from recbench_spark.engine.sessions import (
    Py4JJavaError,
    SparkEngine,
    is_connect,
    open_java,
    open_task_environment,
    read_hadoop,
)
from recbench_spark.engine.versions import collect_arrow, read_setting
from recbench_spark.errors import StoreError
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage import delta_files, frame_blocks
from recbench_spark.storage.catalogs import (
    find_schema_place,
    is_delta,
    is_registered,
    register_table,
    require_address,
)
from recbench_spark.storage.delta_tables import hold_table
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.object_access import (
    HADOOP_ADDRESS,
    adopt_hadoop,
    read_access,
    renew_variables,
)
from recbench_spark.storage.objects import require_conditional_writes, require_storage
from recbench_spark.storage.spark_errors import retry_conflicts
from recbench_spark.storage.spark_types import spark_schema
from recbench_spark.storage.table_folders import (
    HINT_RESTORE,
    check_writable,
    create_object_table,
    find_commit,
    has_commit,
    is_catalog_schema,
    remote_files_in,
    try_create_local,
)
from recbench_spark.storage.table_sql import check_version, create_statement, quote_folder, view_files
from recbench_spark.storage.uris import (
    HDFS,
    IN_SCRATCH,
    LOG,
    arrow_uri,
    is_object_storage,
    read_scheme,
    trim_uri,
)


def hadoop_uri(spark: SparkSession, uri: str) -> str:
    """Return a URI as this session's Hadoop names it.

    Hadoop's `s3a` is the `s3` of all others. Where Hadoop has its own file system for `s3`, as on EMR, the
    URI stays. A URI of HDFS gets its host if it lacks one, since workers may have no configuration of
    Hadoop.
    """
    scheme, _, rest = uri.partition("://")
    hadoop = read_hadoop(spark)
    if scheme == HDFS and rest.startswith("/"):
        root = hadoop.get("fs.defaultFS") or ""
        return f"{root.rstrip('/')}{rest}" if root.startswith(f"{HDFS}://") else arrow_uri(uri)
    stays = read_scheme(uri) != "s3" or (scheme == "s3" and hadoop.get("fs.s3.impl"))
    return uri if stays else f"s3a://{rest}"


def share_access(spark: SparkSession, root: str) -> None:
    """Give Python workers the keys to an object storage.

    The keys go with each task, and stand in no setting: Spark shows its settings in its page, event log and
    plans, but not the workers' environment. The driver too uses keys from Hadoop's configuration
    (`fs.s3a.access.key`). A later call gives renewed keys to the tasks of later jobs, and removes the
    earlier ones. Hadoop itself looks for keys in the environment, but not for address and region, so it
    gets these from here.
    """
    hadoop = read_hadoop(spark)
    adopt_hadoop(root, hadoop.get)
    options = read_access(root).options
    renew_variables(open_task_environment(spark), options)
    for setting, name in HADOOP_ADDRESS.items():
        if name in options and not hadoop.get(setting):
            hadoop.set(setting, options[name])


JARS = {
    "s3": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.32",
}
"""Packages for Hadoop, and so for Spark, to read an object storage."""


def require_jars(spark: SparkSession, place: str) -> None:
    """Check that this session's Hadoop can read an object storage.

    By Connect, its server knows.

    Raises:
        StoreError: a jar is missing; the hint has the line to add.
    """
    if not is_object_storage(place) or is_connect(spark):
        return
    hadoop, scheme = open_java(spark).org.apache.hadoop, place.partition("://")[0]
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, read_hadoop(spark))
    except Py4JJavaError:
        package = JARS[read_scheme(place)].format(hadoop=hadoop.util.VersionInfo.getVersion())
        message = f"this session of Spark cannot read {scheme}://: the jar of {package} is missing"
        if read_scheme(place) == "s3":
            hint = (
                "spark-submit --properties-file conf/spark/s3.conf, or set RECBENCH_SPARK_PROPERTIES to it"
            )
        else:
            hint = f"add {package} to spark.jars.packages"
        raise StoreError(message, hint) from None


class WarehouseTables(FileTables):
    """Base of `Store`: it reads a warehouse's tables with Spark.

    `Store` adds writing.

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
        self.schema = root if is_catalog_schema(root) else ""
        root = (find_schema_place(spark, root) if self.schema else None) or root
        self.in_catalog = bool(self.schema) and root == self.schema
        self.root = root if self.in_catalog or "://" in root else str(Path(root).resolve())
        if is_object_storage(root):
            if self.schema and not read_only:  # before `share_access`, which sets the address
                require_address(spark, self.schema, root)
            self.root = hadoop_uri(spark, trim_uri(root))
            share_access(spark, self.root)
            _check_storage(spark, self.root, read_only)
        self._existing: set[str] = set()
        self._registered: set[str] = set()
        if self.folder is not None and not read_only:
            check_writable(self.folder)
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
    def has_names(self) -> bool:
        """True if the catalog names tables written by tasks.

        The driver writes such tables, too.
        """
        return bool(self.schema) and not self.in_catalog

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
        require_jars(self.spark, self.root)

    def drop_scratch(self) -> None:
        """Remove rows shared with tasks by this or killed jobs."""
        frame_blocks.drop_scratch(self.spark, self.scratch)

    def location(self, name: str) -> str:
        """Return a table's directory, or its name in the catalog."""
        return f"{self.root}.{name}" if self.in_catalog else f"{self.root}/{name}"

    def identifier(self, name: str) -> str:
        """Return the name of a table in SQL."""
        return self.location(name) if self.in_catalog else quote_folder(self.location(name))

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
        if self.is_file_storage:
            committed = has_commit(location)
        else:
            committed = find_commit(location, partial(remote_files_in, self.spark, location))
        asks_delta = committed and not is_object_storage(location)
        if asks_delta and not is_delta(self.spark, location):
            raise StoreError(f"{location}: Delta does not take its {LOG} for one", HINT_RESTORE)
        return committed

    def create(self, *tables: Table) -> None:
        """Create missing tables with comments, layout and constraints."""
        self._renew_access()
        with ThreadPoolExecutor(max_workers=4) as pool:
            known = list(pool.map(self.exists, [table.name for table in tables]))
            missing = [table for table, exists in zip(tables, known, strict=True) if not exists]
            self._check_names(missing)
            list(pool.map(self._create, missing))
        self._register(tables)

    def _check_names(self, missing: Sequence[Table]) -> None:
        """Raise StoreError where a new table's name means another table.

        The catalog has that table elsewhere.
        """
        for table in missing if self.has_names else ():
            is_registered(self.spark, self.schema, table.name, self.location(table.name))

    def _register(self, tables: Sequence[Table]) -> None:
        """Give tables their catalog names, once in this process."""
        for table in tables if self.has_names else ():
            if table.name not in self._registered:
                register_table(self.spark, self.schema, table.name, self.location(table.name))
                self._registered.add(table.name)

    def _renew_access(self) -> None:
        """Read the object storage's keys again.

        A profile's keys expire and are replaced.
        """
        if is_object_storage(self.root):
            share_access(self.spark, self.root)

    def _create(self, table: Table) -> None:
        if is_object_storage(self.root):
            create_object_table(self.location(table.name), table)
        elif self.folder is None or not try_create_local(self.folder / table.name, table):
            statement = create_statement(table, self.identifier(table.name))
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
        require_jars(self.spark, self.root)
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
        succeeded = self.read(schemas.RUNS).where("status = 'succeeded'").select("run_id")
        return self.read(table).join(F.broadcast(succeeded), "run_id", "left_semi")

    def read_rows(
        self, table: Table, filters: delta_files.Filters = (), columns: Sequence[str] | None = None
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
        if not self._uses_deltalake(table):
            return {row[0] for row in self.read(table).select(column).distinct().collect()}
        return super().list_values(table, column)

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
        files = view_files()
        chosen = [*TABLES, *files] if names is None else names
        for name in chosen:
            rows = self.spark.sql(files[name]) if name in files else self.read(TABLES[name])
            rows.createOrReplaceTempView(name)
        return [name for name in chosen if name in files]

    def _check_version(self) -> None:
        if not self.exists("runs"):
            return
        if self._uses_deltalake(schemas.RUNS):  # in milliseconds; Spark needs a job
            with hold_table(self.location("runs"), latest=False) as table:
                check_version(self.root, table.metadata().configuration)
        else:
            check_version(self.root, self.properties("runs"))

    def properties(self, name: str) -> dict[str, str]:
        """Return a table's Delta properties."""
        if is_object_storage(self.root):
            with hold_table(self.location(name)) as table:
                known = table.metadata().configuration
            return {key: value for key, value in known.items() if value is not None}
        detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier(name)}").select("properties").first()
        return dict(detail.properties) if detail else {}


def filter_condition(column: str, operator: str, value: Any) -> Column:
    """Return a filter of `Store.rows` as a Spark column."""
    at = F.col(column)
    if operator == "in":
        return at.isin(list(value))
    tests: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    return cast(Column, tests[operator](at, F.lit(value)))


def _check_storage(spark: SparkSession, root: str, read_only: bool) -> None:
    """Check that object storage can be read, or also written.

    Writing tables needs a conditional write.

    Raises:
        StoreError: it does not answer, refuses, or has no such write; or this session commits in another
            way.
    """
    require_storage(root)
    if read_only:
        return
    for key in (f"spark.delta.logStore.{scheme}.impl" for scheme in ("s3", "s3a", "s3n")):
        if "DynamoDB" in (read_setting(spark, key) or ""):
            raise StoreError(
                f"{key} keeps locks in DynamoDB, and tables of {root} have conditional writes",
                "remove this setting, and let no job with it write to the warehouse",
            )
    require_conditional_writes(root)
