"""SQL for tables: statements, literals, conditions, and files of views."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa

from recbench_spark.errors import StoreError
from recbench_spark.schemas import OLDEST_SCHEMA, SCHEMA_VERSION, Table
from recbench_spark.storage import delta_files
from recbench_spark.storage.sql_quotes import quote_sql

VERSION_PROPERTY = "recbench.schema_version"

TOO_OLD = "read it with recbench-spark 0.1, which made it, and use another --warehouse from now on"
"""Hint for a warehouse before OLDEST_SCHEMA."""


def check_version(root: str, properties: Mapping[str, str | None]) -> None:
    """Check a warehouse's schema version, in the properties of `runs`.

    Raises:
        StoreError: this code has another version.
    """
    version = properties.get(VERSION_PROPERTY) or "none"
    if version == str(SCHEMA_VERSION):
        return
    hint = f"recbench maintain --warehouse {shlex.quote(root)} --migrate"
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        hint = "update recbench-spark, or use another --warehouse"
    elif version.isdigit() and int(version) < OLDEST_SCHEMA:
        hint = TOO_OLD
    raise StoreError(
        f"warehouse {root} has schema version {version}, this code writes {SCHEMA_VERSION}", hint
    )


def table_properties(table: Table) -> dict[str, str]:
    """Return a table's Delta properties: schema version and constraints.

    Partitioned tables have no statistics: smallest and largest values skip no file there, and to compute
    them takes as long as to write the rows.
    """
    checks = {f"delta.constraints.{name}": condition for name, condition in table.constraints.items()}
    plain = {"delta.dataSkippingNumIndexedCols": "0"} if table.partition_by else {}
    return {VERSION_PROPERTY: str(SCHEMA_VERSION), **plain, **checks}


# ------------------------------------------------------------------------- names, literals, conditions


def quote_text(text: str) -> str:
    """Return a string literal of Spark SQL, which reads backslashes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_folder(folder: str) -> str:
    """Return a table's folder as the name of a table in Spark SQL."""
    return f"delta.{quote_sql(folder, '`')}"


def timestamp_literal(value: datetime) -> str:
    """Return a moment as a literal of Spark SQL."""
    return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"


def equality_condition(table: Table, name: str) -> str:
    """Return SQL to compare a column in `there` and `new`.

    Maps are compared as text.
    """
    if isinstance(name, delta_files.Presence):
        return f"(there.{name} IS NULL) = (new.{name} IS NULL)"
    is_map = any(c.name == name and pa.types.is_map(c.type) for c in table.columns)
    there, new = (f"to_json({side}.{name})" if is_map else f"{side}.{name}" for side in ("there", "new"))
    return f"{there} <=> {new}"


def has_breach(rows: Any, table: Table, condition: str) -> bool:
    """Check whether a row of Arrow breaks a table's condition.

    Missing columns are NULL.
    """
    import duckdb  # noqa: PLC0415

    missing = [f", NULL AS {name}" for name in table.names if name not in rows.schema.names]
    with duckdb.connect() as database:
        database.register("rows", rows)
        whole = f"(SELECT *{''.join(missing)} FROM rows)"
        sql = f"SELECT 1 FROM {whole} WHERE NOT coalesce(({condition}), false) LIMIT 1"
        return bool(database.execute(sql).fetchall())


# ------------------------------------------------------------------------- SQL files


@cache
def view_files() -> Mapping[str, str]:
    """Return each view's SQL by name, needed views first."""
    folder = resources.files("recbench_spark") / "sql"
    texts = {Path(f.name).stem: f.read_text() for f in folder.iterdir() if f.name.endswith(".sql")}
    needs = {name: re.findall(r"-- needs: (\w+)", text) for name, text in texts.items()}
    return {name: texts[name] for name in TopologicalSorter(dict(sorted(needs.items()))).static_order()}


def query_files() -> dict[str, str]:
    """Return the prepared queries' SQL, by name."""
    folder = resources.files("recbench_spark") / "sql" / "queries"
    return {Path(f.name).stem: f.read_text() for f in sorted(folder.iterdir(), key=lambda f: f.name)}


# ---------------------------------------- statements that create and migrate

SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
"""Types with another name in SQL than in a log of Delta."""


def name_types(fields: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return columns' SQL types from a Delta log's fields."""
    return {field["name"]: _name_type(field["type"]) for field in fields}


def _name_type(kind: Any) -> str:
    if isinstance(kind, str):
        return SQL_NAMES.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_name_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_name_type(kind['keyType'])},{_name_type(kind['valueType'])}>"
    return f"struct<{','.join(f'{name}:{text}' for name, text in name_types(kind['fields']).items())}>"


def create_statement(table: Table, identifier: str) -> str:
    """Return the SQL to create a table.

    Delta's own builder does not know names in three parts.
    """
    null, types = {True: "", False: "NOT NULL"}, name_types(json.loads(table.schema_json)["fields"])
    columns = (
        f"`{c.name}` {types[c.name]} {null[c.nullable]} COMMENT {quote_text(c.comment)}"
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


def migration_statements(
    table: Table, existing: Mapping[str, str], properties: Mapping[str, str], identifier: str
) -> list[str]:
    """Return the SQL to migrate a table; empty: nothing to do.

    Args:
        table: the present schema.
        existing: the type of each column, as `name_types`.
        properties: the table's properties.
        identifier: its name in SQL.

    Raises:
        StoreError: newer code made the table, or version 0.1; a column cannot be added, or has another
            type.
    """
    version = properties.get(VERSION_PROPERTY, "none")
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        raise StoreError(
            f"{identifier} has schema version {version}: newer code made it", "update this one"
        )
    if version.isdigit() and int(version) < OLDEST_SCHEMA:
        raise StoreError(f"{identifier} has schema version {version}: recbench-spark 0.1 made it", TOO_OLD)
    types = name_types(json.loads(table.schema_json)["fields"])
    changed = [name for name, kind in types.items() if existing.get(name, kind) != kind]
    missing = [column for column in table.columns if column.name not in existing]
    refused = [*changed, *(column.name for column in missing if not column.nullable)]
    if refused:
        raise StoreError(
            f"{identifier}: column {refused[0]} cannot be brought to this schema",
            "use another --warehouse, or the version of recbench-spark that made this one",
        )
    columns = [f"`{c.name}` {types[c.name]} COMMENT {quote_text(c.comment)}" for c in missing]
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
