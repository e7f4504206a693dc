"""Export of a warehouse to one DuckDB file, without Java.

It is for SQL shells, notebooks and BI tools. The file holds every table with its comments, and every view
as SQL over these tables. It is a copy: later nights are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recbench_spark.errors import ConfigError, DataError, StoreError
from recbench_spark.query.local_engine import replace_backticks
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.publish import publish_file, remove_tree, replace_file
from recbench_spark.storage.sql_quotes import quote_sql
from recbench_spark.storage.table_sql import view_files

if TYPE_CHECKING:
    import duckdb

SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "storage_compatibility_version": "v1.2.0",
}
"""Settings of the writing connection. Nothing is fetched from the network. Shells and tools with a DuckDB
from 1.2 on read the file, not only those as new as the writer."""

LOG_FILE = ".wal"
"""Ending of a file's change log: beside another file, DuckDB refuses both."""

SIDE_FILES = (LOG_FILE, ".tmp")
"""Ends of names for what DuckDB keeps beside an open file, and leaves there after an error."""


@dataclass(frozen=True)
class Export:
    """Counts of an exported file's content.

    Attributes:
        rows: rows of each table with any.
        tables: all tables, also empty ones.
        views: all views.
        size: bytes of the file.
    """

    rows: dict[str, int]
    tables: int
    views: int
    size: int

    def describe(self) -> str:
        """Return the counts in one line."""
        return (
            f"{self.tables} tables ({len(self.rows)} with rows, {sum(self.rows.values()):,} rows), "
            f"{self.views} views, {self.size / 1e6:,.1f} MB"
        )


def export_warehouse(store: ArrowStore, target: Path, *, replace: bool = False) -> Export:
    """Write all tables and views to a DuckDB file.

    The file appears whole or not at all. Rows stream from Delta's files. A run becomes visible by its row
    in `runs`, so this table is read first: rows added by a later night meanwhile belong to no run in the
    file.

    Args:
        store: the warehouse.
        target: name of the file.
        replace: replace an existing file, in one step.

    Raises:
        ConfigError: the file is there already, or is a folder.
        StoreError: it cannot be written, or a file of the warehouse cannot be read.
        DataError: DuckDB does not take the rows of a table.
        FallbackToSpark: `deltalake` does not read a table.
    """
    _refuse_existing(target, replace)
    rows: dict[str, int] = {}

    def write(path: Path) -> None:
        rows.update(_write_alone(store, path))
        if replace:
            # Just before the new file gets its name: a reader meanwhile opens the old file without the
            # log's changes. After it, the new file beside an old log would not open.
            remove_tree(target.with_name(target.name + LOG_FILE))

    try:
        if replace:
            replace_file(target, write)
        elif not publish_file(target, write):
            _refuse_existing(target, replace)
    except OSError as error:
        raise StoreError(f"cannot export to {target}: {error}", "see that it can be written to") from None
    return Export(rows, len(TABLES), len(view_files()), target.stat().st_size)


def _refuse_existing(target: Path, replace: bool) -> None:
    if target.is_dir():
        raise ConfigError(f"--export {target} is a folder", "name a file, such as results.duckdb")
    if target.exists() and not replace:
        raise ConfigError(f"--export {target} is there already", "name another file, or add --replace")


def _write_alone(store: ArrowStore, path: Path) -> dict[str, int]:
    """Write the file, and remove DuckDB's files beside it."""
    import duckdb  # noqa: PLC0415

    try:
        return _write_file(store, path)
    except duckdb.Error as error:
        raise DataError(f"cannot export: {str(error).strip().splitlines()[0]}") from None
    finally:
        for end in SIDE_FILES:
            remove_tree(path.with_name(path.name + end))


def _write_file(store: ArrowStore, path: Path) -> dict[str, int]:
    """Write tables and views to a file; count rows.

    Empty tables are not counted.
    """
    import duckdb  # noqa: PLC0415

    rows = {}
    with duckdb.connect(str(path), config=dict(SETTINGS)) as connection:
        for table in sorted(TABLES.values(), key=lambda one: one.name != "runs"):
            rows[table.name] = _copy_table(connection, store, table)
        for name, sql in view_files().items():
            connection.execute(f"CREATE VIEW {name} AS {replace_backticks(sql)}")
            purpose = sql.splitlines()[0].lstrip("- ")
            connection.execute(f"COMMENT ON VIEW {name} IS {quote_sql(purpose)}")
    return {name: n for name, n in rows.items() if n}


def _copy_table(connection: duckdb.DuckDBPyConnection, store: ArrowStore, table: Table) -> int:
    """Copy a table with its comments; return its row count.

    A missing table is empty.
    """
    exists = store.exists(table.name)
    source = store.dataset(table) if exists else table.arrow_schema.empty_table()
    connection.register("source", source)
    # Each result is read to its end: an open one blocks the connection.
    connection.execute(f"CREATE TABLE {table.name} AS SELECT * FROM source").fetchall()
    connection.unregister("source")
    connection.execute(f"COMMENT ON TABLE {table.name} IS {quote_sql(table.comment)}")
    there = {name for (name, *_) in connection.execute(f"DESCRIBE {table.name}").fetchall()}
    for column in table.columns:
        if column.name in there:
            place = f'{table.name}."{column.name}"'
            connection.execute(f"COMMENT ON COLUMN {place} IS {quote_sql(column.comment)}")
    ((n,),) = connection.execute(f"SELECT COUNT(*) FROM {table.name}").fetchall()
    return int(n)
