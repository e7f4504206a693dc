"""Statements of SQL that create and migrate tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recbench_spark.errors import StoreError
from recbench_spark.schemas import OLDEST_SCHEMA, SCHEMA_VERSION, Table
from recbench_spark.storage.table_sql import TOO_OLD, VERSION_PROPERTY, quote_text, table_properties

SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
"""Types that SQL calls otherwise than a log of Delta."""


def name_types(fields: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the type of each column in SQL, from the fields of a schema in a log of Delta."""
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
    """Return the SQL that creates a table; Delta's own builder does not know names of three parts."""
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
    """Return the SQL that changes an existing table to its present schema; empty if nothing is to do.

    Args:
        table: the present schema.
        existing: the type of each column, as `name_types`.
        properties: those of the table.
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
