"""SQL of tables: statements that create or migrate them, literals, conditions, and the files of views."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from importlib import resources
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from recbench_spark.errors import StoreError
from recbench_spark.schemas import SCHEMA_VERSION, Table
from recbench_spark.storage import delta_files

VERSION_PROPERTY = "recbench.schema_version"


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


def create_statement(table: Table, identifier: str) -> str:
    """Return the SQL that creates a table; Delta's own builder does not know names of three parts."""
    null = {True: "", False: "NOT NULL"}
    columns = (
        f"`{c.name}` {c.type.simpleString()} {null[c.nullable]} COMMENT {quote_text(c.comment)}"
        for c in table.columns
    )
    properties = [f"{quote_text(k)} = {quote_text(v)}" for k, v in table_properties(table).items()]
    layout = f"PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
    return "\n".join(
        [
            f"CREATE TABLE IF NOT EXISTS {identifier} ({', '.join(columns)}) USING delta",
            layout,
            f"COMMENT {quote_text(table.comment)}",
            f"TBLPROPERTIES ({', '.join(properties)})",
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
    columns = [f"`{c.name}` {c.type.simpleString()} COMMENT {quote_text(c.comment)}" for c in missing]
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
        assignment = f"{quote_text(VERSION_PROPERTY)} = {quote_text(str(SCHEMA_VERSION))}"
        statements.append(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({assignment})")
    return statements


# ------------------------------------------------------------------------- names, literals, conditions


def quote_text(text: str) -> str:
    """Return a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_folder(folder: str) -> str:
    """Return a table's folder as the name of a table in Spark SQL."""
    return "delta.`" + folder.replace("`", "``") + "`"


def timestamp_literal(value: datetime) -> str:
    """Return a moment as a literal of Spark SQL."""
    return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"


def equality_condition(table: Table, name: str) -> str:
    """Return SQL for equality of a column in `there` and `new`; maps are compared as text."""
    if isinstance(name, delta_files.Presence):
        return f"(there.{name} IS NULL) = (new.{name} IS NULL)"
    is_map = any(c.name == name and isinstance(c.type, MapType) for c in table.columns)
    there, new = (f"to_json({side}.{name})" if is_map else f"{side}.{name}" for side in ("there", "new"))
    return f"{there} <=> {new}"


def filter_condition(column: str, operator: str, value: Any) -> Column:
    """Return a filter of `Store.rows` as a Spark column."""
    at = F.col(column)
    if operator == "in":
        return at.isin(list(value))
    tests: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    return cast(Column, tests[operator](at, F.lit(value)))


# ------------------------------------------------------------------------- SQL files


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
