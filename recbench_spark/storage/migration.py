"""Migration from version 0.2 to today's columns and constraints."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from recbench_spark.errors import StoreError
from recbench_spark.schemas import TABLES, Table
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.delta_tables import open_table, read_dataset
from recbench_spark.storage.marks import list_others_at_work
from recbench_spark.storage.table_sql import has_breach, migration_statements, name_types, quote_folder
from recbench_spark.storage.table_upkeep import change_table

if TYPE_CHECKING:
    from recbench_spark.storage.file_tables import FileTables


BY_SPARK = "table {} of the warehouse is changed by Spark alone"


def migrate(warehouse: FileTables) -> list[str]:
    """Add the columns and constraints that an older warehouse lacks.

    No row is written again. New columns are NULL in old rows. `runs` comes last, since its version is the
    warehouse's: a killed migration can be started again.

    Returns:
        The statements carried out.

    Raises:
        StoreError: newer code or version 0.1 made the warehouse; a column cannot be added or has another
            type, or a run is at work.
        FallbackToSpark: Spark must change a table, and the warehouse has none; nothing is changed then.
    """
    tables = [table for table in TABLES.values() if warehouse.exists(table.name)]
    tables.sort(key=lambda table: table.name == "runs")
    # `runs` first: it tells which version made the warehouse.
    todo = {one.name: lines for one in tables[::-1] if (lines := _migration_statements(warehouse, one))}
    others = list_others_at_work(warehouse.folder) if todo and warehouse.folder else []
    if others:  # later appends by these runs might break a new constraint
        message = f"{warehouse.root} cannot be migrated while a run is at work: {', '.join(others)}"
        raise StoreError(message, "wait until it has ended, or end it, and run --migrate again")
    done = []
    for table in (table for table in tables if table.name in todo):
        if warehouse.keeps_files(table):
            done += warehouse.retry(f"migrate {table.name}", partial(_change_table, warehouse, table))
            continue
        for statement in todo[table.name]:
            run = partial(require_session(warehouse, BY_SPARK.format(table.name)).spark.sql, statement)
            warehouse.retry(f"migrate {table.name}", run)
            done.append(statement)
    return done


def _change_table(warehouse: FileTables, table: Table) -> list[str]:
    """Change a table by one conditional write, if rows allow.

    Returns:
        The statements; none where another migration was first.

    Raises:
        ConflictError: another job has committed meanwhile; try again.
        StoreError: a row breaks a constraint; the storage does not answer, or refuses.
    """
    place = warehouse.location(table.name)
    version = open_table(place).version()
    statements = _migration_statements(warehouse, table)
    if not statements:
        return []
    for name, condition in table.constraints.items():
        if has_breach(read_dataset(place, version), table, condition):
            message = f"{place} cannot be migrated: a row breaks the constraint {name}: {condition}"
            raise StoreError(message, "remove these rows, and run --migrate again")
    change_table(place, table, version)
    return statements


def _migration_statements(warehouse: FileTables, table: Table) -> list[str]:
    place = warehouse.location(table.name)
    if warehouse.keeps_files(table):
        opened = open_table(place)
        known, properties = opened.schema().to_json(), opened.metadata().configuration
        identifier = quote_folder(place)
    else:
        by_spark = require_session(warehouse, BY_SPARK.format(table.name))
        known, properties = by_spark.read(table).schema.json(), by_spark.properties(table.name)
        identifier = by_spark.identifier(table.name)
    return migration_statements(table, name_types(json.loads(known)["fields"]), properties, identifier)
