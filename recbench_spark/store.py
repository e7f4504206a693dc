"""The warehouse: Delta tables under a directory, or in a `catalog.schema`.

Results are appended under a fresh `run_id` and become visible when the row of `runs`, written last,
says succeeded: a killed run leaves nothing that the views show. Intermediates are named by the hash
of what they are made from and appended once per name (Delta's transaction identifiers), so two
nights at once cannot double them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from recbench_spark import delta_files, schemas, sharing
from recbench_spark.blocks import Blocks
from recbench_spark.delta_files import ConflictError
from recbench_spark.errors import StoreError
from recbench_spark.schemas import SCHEMA_VERSION, TABLES, Table, conform

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
ATTEMPTS = 6
HINT_ROOT = "two names and a dot are catalog.schema: write ./NAME for a folder of such a name"
BEING_CREATED = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Another writer's first commit seen half-way: its folder is there, its log not yet."""
UNBORN_SECONDS = 15
"""After so long a first commit that is not there will not come; shorter than all retries together."""
T = TypeVar("T")


class Store:
    """Tables by name under one root; all that is written goes through it."""

    def __init__(
        self, spark: SparkSession, root: str, read_only: bool = False, any_version: bool = False
    ) -> None:
        self.spark = spark
        self.in_catalog = is_catalog_schema(root)
        self.root = root if self.in_catalog or "://" in root else str(Path(root).resolve())
        self._known: set[str] = set()
        if self.in_catalog:
            _check_schema(spark, root)
        elif self.folder is not None and not read_only:
            _check_writable(self.folder)
        if not any_version:
            self._check_version()

    @property
    def folder(self) -> Path | None:
        """The root as a local folder; None where it is remote or a catalog."""
        return None if self.in_catalog or "://" in self.root else Path(self.root)

    @property
    def scratch(self) -> str:
        """Where rows lie that workers map (see `sharing.base_folder`)."""
        return sharing.base_folder(self.spark, None if self.in_catalog else self.root)

    def location(self, name: str) -> str:
        """The directory of a table, or its name in the catalog."""
        return f"{self.root}.{name}" if self.in_catalog else f"{self.root}/{name}"

    def identifier(self, name: str) -> str:
        """The table as it stands in SQL."""
        return self.location(name) if self.in_catalog else f"delta.`{self.location(name)}`"

    def exists(self, name: str) -> bool:
        """Whether the table has been created.

        Raises:
            StoreError: its folder holds files and its log no commit, as while a restore is under way: such
                a table is not an empty one.
        """
        if name not in self._known:
            found = (
                self.spark.catalog.tableExists(self.location(name))
                if self.in_catalog
                else DeltaTable.isDeltaTable(self.spark, self.location(name))
            )
            if not self.in_catalog:
                found = self._has_commit(name, found)
            if found:
                self._known.add(name)
        return name in self._known

    def _has_commit(self, name: str, is_table: bool) -> bool:
        """Whether a table's folder holds a commit; `is_table`: as Delta says."""
        location = self.location(name)
        list_files = partial(_files_in, self.folder / name) if self.folder else None
        born = _is_born(location, list_files or partial(_remote_files_in, self.spark, location))
        if born and not is_table:
            raise StoreError(f"{location}: Delta does not take its {LOG} for one", HINT_RESTORE)
        return born

    def create(self, *tables: Table) -> None:
        """Create those tables that do not exist yet, with comments, layout and constraints."""
        missing = [table for table in tables if not self.exists(table.name)]
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(self._create, missing))

    def _create(self, table: Table) -> None:
        folder = None if self.folder is None else self.folder / table.name
        statement = create_statement(table, self.identifier(table.name))

        def create() -> DataFrame:
            if folder is not None:
                _remove_unborn(folder)
            return self.spark.sql(statement)

        self._retried(f"create {table.name}", create)
        self._known.add(table.name)

    def read(self, table: Table) -> DataFrame:
        """All rows of a table, visible or not; an empty frame where it does not exist yet."""
        if not self.exists(table.name):
            return self.spark.createDataFrame([], table.schema)
        if self.in_catalog:
            return self.spark.read.table(self.location(table.name))
        return self.spark.read.format("delta").load(self.location(table.name))

    def visible(self, table: Table) -> DataFrame:
        """Rows of a result table whose run has succeeded."""
        succeeded = self.read(schemas.RUNS).where("status = 'succeeded'").select("run_id")
        return self.read(table).join(F.broadcast(succeeded), "run_id", "left_semi")

    def of_run(self, name: str, run_id: str) -> DataFrame:
        """The rows of one run in a result table."""
        return self.read(TABLES[name]).where(F.col("run_id") == run_id)

    def append(self, frame: DataFrame, table: Table, once: str = "") -> None:
        """Append rows; with `once`, a second append under the same name does nothing.

        Blind appends never conflict with one another; a conflict with a table's creation or with
        another writer of the same `once` is tried again, when Delta then skips what is there.
        """
        self.create(table)
        writer = conform(frame, table).write.format("delta").mode("append")
        if once:
            # A name of its own for each write: Delta skips a version that is not above the last.
            writer = writer.option("txnAppId", f"{table.name}/{once}").option("txnVersion", "1")
        name = self.location(table.name)
        save = writer.saveAsTable if self.in_catalog else writer.save
        self._retried(f"write {table.name}", lambda: save(name))

    def append_blocks(self, blocks: Blocks, table: Table, once: str) -> None:
        """Append what comes of blocks to a table's partition `once`; a second time does nothing.

        Tasks write the files themselves (`delta_files`) where all of them see the warehouse's folder;
        else the rows go through Spark's writer.
        """
        self.create(table)
        (column,) = table.partition_by
        location, name = self.location(table.name), f"{table.name}/{once}"
        if self.folder is None or not delta_files.can_commit(location):
            self.append(blocks.rows().withColumn(column, F.lit(once)), table, once)
        elif not delta_files.appended(location, name):
            files = delta_files.write_files(blocks, location, {column: once})
            commit = partial(delta_files.commit, location, files, {column: once}, name)
            self._retried(f"write {table.name}", commit)

    def append_all(self, frames: Sequence[tuple[DataFrame, Table]]) -> None:
        """Append to several tables at once: the driver plans one while executors work on another."""
        self.create(*{table.name: table for _, table in frames}.values())
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda pair: self.append(*pair), frames))

    def has(self, table: Table, column: str, value: str) -> bool:
        """Whether any row carries this value."""
        return not self.read(table).where(F.col(column) == value).limit(1).isEmpty()

    def delete_orphans(self, older_than: str) -> None:
        """Delete rows of runs that never succeeded and started before a run id's time stamp."""
        known = self.read(schemas.RUNS).where("status = 'succeeded'").select("run_id")
        for name in filter(self.exists, schemas.RESULT_TABLES):
            old = self.read(TABLES[name]).where(F.col("run_id") < older_than).select("run_id").distinct()
            lost = [row.run_id for row in old.join(F.broadcast(known), "run_id", "left_anti").collect()]
            if lost:
                self.delete(name, "run_id", lost)

    def delete(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete the rows whose column, or SQL of columns, is one of the values."""
        listed = ", ".join(map(_quoted, values))
        statement = f"DELETE FROM {self.identifier(name)} WHERE {column} IN ({listed})"
        self._retried(f"clean {name}", lambda: self.spark.sql(statement))

    def optimize(self, name: str) -> None:
        """Compact small files into large ones, in the table's layout."""
        self._retried(f"optimize {name}", lambda: self.spark.sql(f"OPTIMIZE {self.identifier(name)}"))

    def vacuum(self, name: str, hours: int) -> None:
        """Remove files that no version of the last hours uses, those of killed writers among them."""
        # Delta asks for a week; a night is over within a day.
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self.spark.sql(f"VACUUM {self.identifier(name)} RETAIN {hours} HOURS")

    def install_views(self) -> list[str]:
        """Register tables and the SQL files as views of this session; returns the views' names."""
        for table in TABLES.values():
            self.read(table).createOrReplaceTempView(table.name)
        files = view_files()
        for name, text in files.items():
            self.spark.sql(text).createOrReplaceTempView(name)
        return list(files)

    def _check_version(self) -> None:
        if not self.exists("runs"):
            return
        found = self._properties("runs").get(VERSION_PROPERTY, "none")
        if found != str(SCHEMA_VERSION):
            newer = found.isdigit() and int(found) > SCHEMA_VERSION
            raise StoreError(
                f"warehouse {self.root} has schema version {found}, this code writes {SCHEMA_VERSION}",
                "update recbench-spark, or use another --warehouse"
                if newer
                else f"jobs/maintain.py --warehouse {self.root} --migrate",
            )

    def _properties(self, name: str) -> dict[str, str]:
        detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier(name)}").select("properties").first()
        return dict(detail.properties) if detail else {}

    def migrate(self) -> list[str]:
        """Give an older warehouse the columns and constraints it lacks; returns the SQL that was run.

        No data is rewritten: new columns are NULL in old rows. Older code reads on. `runs` comes last,
        since its version is the warehouse's: a migration that was killed is begun again.

        Raises:
            StoreError: made by newer code, or a column that cannot be added or has another type.
        """
        there = [table for table in TABLES.values() if self.exists(table.name)]
        done: list[str] = []
        for table in sorted(there, key=lambda table: table.name == "runs"):
            schema, properties = self.read(table).schema, self._properties(table.name)
            for statement in migration(table, schema, properties, self.identifier(table.name)):
                self._retried(f"migrate {table.name}", partial(self.spark.sql, statement))
                done.append(statement)
        return done

    def _retried(self, what: str, action: Callable[[], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return action()
            except (PySparkException, ConflictError) as error:
                if not _is_conflict(error):
                    raise
                if attempt == ATTEMPTS:
                    raise StoreError(f"cannot {what}: {_first_line(error)}", "run again") from None
                # Jitter without a random number: two processes differ in their ids.
                time.sleep(0.2 * 2**attempt * (1 + os.getpid() % 97 / 97))
        raise AssertionError("unreachable")


def _is_conflict(error: Exception) -> bool:
    """Whether another writer was there first, so that the same action may succeed now."""
    return isinstance(error, CONFLICTS) or BEING_CREATED in str(error)


def create_statement(table: Table, identifier: str) -> str:
    """The table as SQL: Delta's own builder does not know names of three parts."""
    null = {True: "", False: "NOT NULL"}
    columns = (
        f"`{c.name}` {c.type.simpleString()} {null[c.nullable]} COMMENT {_quoted(c.comment)}"
        for c in table.columns
    )
    checks = {f"delta.constraints.{name}": condition for name, condition in table.constraints.items()}
    properties = {VERSION_PROPERTY: str(SCHEMA_VERSION), **_statistics(table), **checks}
    layout = {"PARTITIONED BY": table.partition_by, "CLUSTER BY": table.cluster_by}
    return "\n".join(
        [
            f"CREATE TABLE IF NOT EXISTS {identifier} ({', '.join(columns)}) USING delta",
            *(f"{words} ({', '.join(names)})" for words, names in layout.items() if names),
            f"COMMENT {_quoted(table.comment)}",
            f"TBLPROPERTIES ({', '.join(f'{_quoted(k)} = {_quoted(v)}' for k, v in properties.items())})",
        ]
    )


def _statistics(table: Table) -> dict[str, str]:
    """Smallest and largest values only of the columns that files are laid out by.

    Those of others skip no file, and working them out takes as long as writing the rows.
    """
    if table.cluster_by:
        return {"delta.dataSkippingStatsColumns": ",".join(table.cluster_by)}
    return {"delta.dataSkippingNumIndexedCols": "0"} if table.partition_by else {}


def migration(
    table: Table, schema: StructType, properties: Mapping[str, str], identifier: str
) -> list[str]:
    """The SQL that brings a table as it is found to its present schema; none where it is there."""
    version = properties.get(VERSION_PROPERTY, "none")
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        raise StoreError(
            f"{identifier} has schema version {version}: newer code made it", "update this one"
        )
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    changed = [
        c.name for c in table.columns if found.get(c.name, c.type.simpleString()) != c.type.simpleString()
    ]
    missing = [column for column in table.columns if column.name not in found]
    refused = [*changed, *(column.name for column in missing if not column.nullable)]
    if refused:
        raise StoreError(
            f"{identifier}: column {refused[0]} cannot be brought to this schema",
            "use another --warehouse, or the version of recbench-spark that made this one",
        )
    columns = [f"`{c.name}` {c.type.simpleString()} COMMENT {_quoted(c.comment)}" for c in missing]
    statements = [f"ALTER TABLE {identifier} ADD COLUMNS ({', '.join(columns)})"] if columns else []
    for name, condition in table.constraints.items():
        before = properties.get(f"delta.constraints.{name}")
        # Delta keeps a condition with blanks between its words.
        if before is not None and "".join(before.split()) == "".join(condition.split()):
            continue
        if before is not None:
            statements.append(f"ALTER TABLE {identifier} DROP CONSTRAINT {name}")
        statements.append(f"ALTER TABLE {identifier} ADD CONSTRAINT {name} CHECK ({condition})")
    if version != str(SCHEMA_VERSION):
        bumped = f"{_quoted(VERSION_PROPERTY)} = {_quoted(str(SCHEMA_VERSION))}"
        statements.append(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({bumped})")
    return statements


def _quoted(text: str) -> str:
    """A string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def is_catalog_schema(root: str) -> bool:
    """`catalog.schema` (two names and a dot, no such directory) rather than a directory."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", root)) and not Path(root).exists()


def view_files() -> dict[str, str]:
    """The SQL of each view, those that others need first."""
    folder = resources.files("recbench_spark") / "sql"
    texts = {Path(f.name).stem: f.read_text() for f in folder.iterdir() if f.name.endswith(".sql")}
    needs = {name: re.findall(r"-- needs: (\w+)", text) for name, text in texts.items()}
    return {name: texts[name] for name in TopologicalSorter(dict(sorted(needs.items()))).static_order()}


def query_files() -> dict[str, str]:
    """The SQL of the ready-made questions, by name."""
    folder = resources.files("recbench_spark") / "sql" / "queries"
    return {Path(f.name).stem: f.read_text() for f in sorted(folder.iterdir(), key=lambda f: f.name)}


def _check_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create warehouse {root}: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write to warehouse {root}", "choose another --warehouse")


LOG = "_delta_log"

HINT_RESTORE = f"restore all of its {LOG}, or choose another --warehouse"

COMMIT = re.compile(rf"{LOG}/[0-9]{{20}}\.(json|checkpoint.*\.parquet)")
"""A file that says that the table exists; what else is gone of its log is for Delta to say."""

LEFTOVER = re.compile(rf"{LOG}/(.*/)?(\.[^/]*|[^/]*\.tmp)")
"""A file that a killed writer's first commit leaves: hidden (Hadoop's way) or ending in .tmp."""


def _files_in(folder: Path) -> Iterator[str]:
    """Paths of all that is not a folder, from the folder on; the log's first."""
    for place in (folder / LOG, folder):
        for base, folders, names in os.walk(place):
            if place == folder and Path(base) == folder:
                folders[:] = [name for name in folders if name != LOG]
            yield from (str(Path(base, name).relative_to(folder)) for name in names)


def _remote_files_in(spark: SparkSession, folder: str) -> Iterator[str]:
    """As `_files_in`, by Hadoop's file system."""
    context = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    system = hadoop.Path(folder).getFileSystem(context._jsc.hadoopConfiguration())
    whole = system.makeQualified(hadoop.Path(folder)).toString()
    for place in (f"{folder}/{LOG}", folder):
        found = system.listFiles(hadoop.Path(place), True) if system.exists(hadoop.Path(place)) else None
        while found is not None and found.hasNext():
            yield found.next().getPath().toString().removeprefix(f"{whole}/")


def _is_born(folder: str, list_files: Callable[[], Iterable[str]]) -> bool:
    """Whether the folder of a table holds a commit; False where it holds nothing but leftovers.

    Raises:
        StoreError: it holds files and no commit. Nothing of them is removed: they may be all that is left.
    """
    for file in list_files():
        if COMMIT.fullmatch(file):
            return True
        if LEFTOVER.fullmatch(file):
            continue
        if any(map(COMMIT.fullmatch, list_files())):  # another writer's table was born meanwhile
            return True
        raise StoreError(
            f"{folder} holds {file} and is not a Delta table: its {LOG} has no commit", HINT_RESTORE
        )
    return False


def _remove_unborn(folder: Path) -> None:
    """Remove what a killed job left of a table before its first commit: Delta would refuse to create it.

    Only what such a job leaves, file by file, and folders that are empty then.

    Raises:
        StoreError: there are other files: they would become part of the table, and a VACUUM would delete
            them.
    """
    log = folder / LOG
    if _is_born(str(folder), partial(_files_in, folder)) or not log.is_dir():
        return
    if time.time() - log.stat().st_mtime < UNBORN_SECONDS:
        return
    for file in filter(LEFTOVER.fullmatch, list(_files_in(folder))):
        (folder / file).unlink(missing_ok=True)
    for base, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # another writer is there by now
            Path(base).rmdir()


def _check_schema(spark: SparkSession, root: str) -> None:
    try:
        found = spark.catalog.databaseExists(root)
    except PySparkException as error:
        raise StoreError(f"cannot open warehouse {root}: {_first_line(error)}", HINT_ROOT) from None
    if not found:
        raise StoreError(f"no schema {root}", f"CREATE SCHEMA {root}; {HINT_ROOT}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def explain(error: PySparkException | Exception) -> str:
    """The last cause of an error from Spark in one line, without the Java stack trace."""
    if isinstance(error, AnalysisException):
        return _first_line(error)
    text = str(error)
    python = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    causes = re.findall(r"^(?:Caused by)?: (?:\w+\.)*(\w+: .+)$", text, flags=re.MULTILINE)
    if causes and "PythonException" in causes[-1]:
        causes = python  # what a worker raised stands at the end of the trace it sent
    found = (causes or python or [_first_line(error)])[-1]
    return str(found).strip()[:500]
