"""Migration of an older warehouse to the present columns, constraints and layouts."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from recbench_spark.errors import FallbackToSpark, StoreError
from recbench_spark.schemas import RESULT_TABLES, TABLES, Table
from recbench_spark.storage.delta_tables import open_table, read_dataset
from recbench_spark.storage.leases import take_turns
from recbench_spark.storage.marks import list_others_at_work
from recbench_spark.storage.publish import remove_tree
from recbench_spark.storage.retries import ATTEMPTS
from recbench_spark.storage.table_sql import quote_folder
from recbench_spark.storage.table_statements import create_statement, migration_statements, name_types
from recbench_spark.storage.table_upkeep import change_table
from recbench_spark.storage.uris import LOG

if TYPE_CHECKING:
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.warehouse import WarehouseTables

STATISTICS = "delta.dataSkippingStatsColumns"
MIGRATION_FOLDER = "_migrating"
"""Folder beside the tables for a migration; no table has a name like this."""


def migrate(warehouse: FileTables) -> list[str]:
    """Give an older warehouse the columns, constraints and layouts that it lacks.

    New columns are NULL in old rows. Rows are written again only if the layout of a table has changed.
    `runs` comes last, since its version is that of the warehouse: a killed migration is started again.

    Returns:
        The statements and actions that were carried out.

    Raises:
        StoreError: newer code made the warehouse, a column cannot be added or has another type, or a run is
            at work.
        FallbackToSpark: the warehouse has no Spark, which must change a table; nothing is changed then.
    """
    if warehouse.folder is None:
        return _migrate(warehouse, None)
    # A waiting job must not look at a table: it could see it between its two names.
    with take_turns(warehouse.folder / MIGRATION_FOLDER / "tables", keep_work=True) as lease:
        _forget_logs(warehouse)
        return _migrate(warehouse, lease.work)


def _forget_logs(warehouse: FileTables) -> None:
    """Let a session, where there is one, read the logs of all tables again."""
    if (session := getattr(warehouse, "spark", None)) is not None:
        from recbench_spark.engine.sessions import forget_delta_logs  # noqa: PLC0415

        forget_delta_logs(session)


def _require_spark(warehouse: FileTables, table: Table) -> WarehouseTables:
    """Return a warehouse with a session. Raises FallbackToSpark."""
    if not hasattr(warehouse, "spark"):
        raise FallbackToSpark(f"table {table.name} of the warehouse has another layout")
    return cast("WarehouseTables", warehouse)


def _migrate(warehouse: FileTables, work: Path | None) -> list[str]:
    """Migrate under the lease; `work`: the folder for tables that are written again."""
    for table in _existing_tables(warehouse):
        if not _is_laid_out(warehouse, table):
            _require_spark(warehouse, table)
    done = [
        _swap_table(warehouse, name, work)
        for name in RESULT_TABLES
        if work and _is_half_swapped(warehouse, name)
    ]
    for table in _existing_tables(warehouse):
        statements = _migration_statements(warehouse, table)
        is_laid_out = _is_laid_out(warehouse, table)
        if statements or not is_laid_out:
            _refuse_beside_runs(warehouse)
        if statements and warehouse.keeps_files(table):
            warehouse.retry(f"migrate {table.name}", partial(_change_table, warehouse, table))
        else:
            for statement in statements:
                run = partial(_require_spark(warehouse, table).spark.sql, statement)
                warehouse.retry(f"migrate {table.name}", run)
        done += statements
        if not is_laid_out:
            done.append(_rewrite_table(_require_spark(warehouse, table), table, work))
    return done


def _change_table(warehouse: FileTables, table: Table) -> None:
    """Carry out the statements of a table by one conditional write, after a look at its rows.

    Raises:
        ConflictError: another job has committed meanwhile; try again.
        StoreError: a row breaks a constraint; the storage does not answer, or refuses.
    """
    place = warehouse.location(table.name)
    version = open_table(place).version()
    if not _migration_statements(warehouse, table):
        return  # another migration was first
    for name, condition in table.constraints.items():
        if _has_breach(place, version, table, condition):
            message = f"{place} cannot be migrated: a row breaks the constraint {name}: {condition}"
            raise StoreError(message, "remove these rows, and run --migrate again")
    change_table(place, table, version)


def _has_breach(place: str, version: int, table: Table, condition: str) -> bool:
    """Return whether a row of a table breaks a condition; columns that it lacks are NULL."""
    import duckdb  # noqa: PLC0415

    rows = read_dataset(place, version)
    missing = [f", NULL AS {name}" for name in table.names if name not in rows.schema.names]
    with duckdb.connect() as database:
        database.register("rows", rows)
        whole = f"(SELECT *{''.join(missing)} FROM rows)"
        sql = f"SELECT 1 FROM {whole} WHERE NOT coalesce(({condition}), false) LIMIT 1"
        return bool(database.execute(sql).fetchall())


def _refuse_beside_runs(warehouse: FileTables) -> None:
    """Refuse to change tables while a run writes to them.

    A night of the older code would lose what it appends to a table that is written again, and a night of
    this code does not start before the migration has ended.

    Raises:
        StoreError: a run is at work.
    """
    others = list_others_at_work(warehouse.folder) if warehouse.folder else []
    if others:
        message = f"{warehouse.root} cannot be migrated while a run is at work: {', '.join(others)}"
        raise StoreError(message, "wait until it has ended, or end it, and run --migrate again")


def _existing_tables(warehouse: FileTables) -> list[Table]:
    """Return the tables of the warehouse, `runs` last."""
    tables = [table for table in TABLES.values() if warehouse.exists(table.name)]
    return sorted(tables, key=lambda table: table.name == "runs")


def _migration_statements(warehouse: FileTables, table: Table) -> list[str]:
    place = warehouse.location(table.name)
    if warehouse.keeps_files(table):
        opened = open_table(place)
        known, properties = opened.schema().to_json(), opened.metadata().configuration
        identifier = quote_folder(place)
    else:
        by_spark = _require_spark(warehouse, table)
        known, properties = by_spark.read(table).schema.json(), by_spark.properties(table.name)
        identifier = by_spark.identifier(table.name)
    return migration_statements(table, name_types(json.loads(known)["fields"]), properties, identifier)


def _is_laid_out(warehouse: FileTables, table: Table) -> bool:
    """Return whether a table has the present partitions, and no clusters."""
    if warehouse.keeps_files(table):  # `deltalake` writes to no table of clusters
        return (
            tuple(open_table(warehouse.location(table.name)).metadata().partition_columns)
            == table.partition_by
        )
    by_spark = _require_spark(warehouse, table)
    detail: Any = by_spark.spark.sql(f"DESCRIBE DETAIL {by_spark.identifier(table.name)}").first()
    return (tuple(detail.partitionColumns), tuple(detail.clusteringColumns)) == (table.partition_by, ())


def _rewrite_table(warehouse: WarehouseTables, table: Table, work: Path | None) -> str:
    """Write a table again in its present layout; return a description.

    It is written in the folder of the migration's lease and then takes the table's name. Delta itself
    cannot change a table from clusters to partitions without keeping a feature that other writers do
    not have. The history of the table is lost.
    """
    layout = ", ".join(table.partition_by)
    description = f"write {table.name} again, partitioned by {layout}"
    if warehouse.folder is None or work is None:
        from recbench_spark.storage.spark_types import conform  # noqa: PLC0415

        name, rows = warehouse.identifier(table.name), warehouse.read(table)
        warehouse.spark.sql(f"ALTER TABLE {name} CLUSTER BY NONE")
        warehouse.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{STATISTICS}')")
        writer = conform(rows, table).write.format("delta").mode("overwrite")
        writer = writer.option("overwriteSchema", "true").partitionBy(*table.partition_by)
        (writer.saveAsTable if warehouse.in_catalog else writer.save)(warehouse.location(table.name))
        return description
    for _ in range(ATTEMPTS):
        if _replace_table(warehouse, table, work):
            return f"{description}; {_swap_table(warehouse, table.name, work)}"
    raise StoreError(
        f"cannot {description}: another process wrote to it each time", "run again when no job is at work"
    )


def _replace_table(warehouse: WarehouseTables, table: Table, work: Path) -> bool:
    """Write a table again and put the old one aside; return False if it grew meanwhile, and leave it then.

    A writer without a mark (an older version, another system) can append at any moment.
    """
    from recbench_spark.storage.spark_types import conform  # noqa: PLC0415

    assert warehouse.folder is not None
    target, aside, place = (
        warehouse.folder / table.name,
        _old_location(warehouse, table.name),
        work / table.name,
    )
    version = _last_version(target)
    rows = warehouse.spark.read.format("delta").option("versionAsOf", version).load(str(target))
    remove_tree(place)  # of a migration that was killed
    warehouse.spark.sql(create_statement(table, quote_folder(str(place))))
    conform(rows, table).write.format("delta").mode("append").save(str(place))
    if _last_version(target) != version:
        return False
    target.rename(aside)
    if _last_version(aside) == version:
        return True
    aside.rename(target)
    return False


def _last_version(folder: Path) -> int:
    """Return the last version of a table. Its log is listed: `deltalake` cannot open every older table."""
    return max(int(path.stem) for path in (folder / LOG).glob("*.json") if path.stem.isdigit())


def _old_location(warehouse: FileTables, name: str) -> Path:
    """Return the place of an old table whose name another one takes."""
    assert warehouse.folder is not None
    return warehouse.folder / MIGRATION_FOLDER / f"{name}.before"


def _is_half_swapped(warehouse: FileTables, name: str) -> bool:
    """Return whether a migration was killed between the two renames of `_rewrite_table`."""
    return warehouse.folder is not None and _old_location(warehouse, name).is_dir()


def _swap_table(warehouse: FileTables, name: str, work: Path) -> str:
    """Give the rewritten table its name, and remove the old one."""
    assert warehouse.folder is not None
    target = warehouse.folder / name
    older = warehouse.folder / MIGRATION_FOLDER / name  # older versions wrote the new table there
    if not target.exists():
        (work / name if (work / name).exists() else older).rename(target)
    _forget_logs(warehouse)
    shutil.rmtree(_old_location(warehouse, name))
    return f"remove {name} as it was"
