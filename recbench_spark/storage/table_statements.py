"""Statements of Spark SQL that create and migrate tables, and filters of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from recbench_spark.errors import StoreError
from recbench_spark.schemas import SCHEMA_VERSION, Table, TableColumn
from recbench_spark.storage.spark_types import spark_type
from recbench_spark.storage.table_sql import VERSION_PROPERTY, quote_text, table_properties


def _name_type(column: TableColumn) -> str:
    return spark_type(column.type).simpleString()


def create_statement(table: Table, identifier: str) -> str:
    """Return the SQL that creates a table; Delta's own builder does not know names of three parts."""
    null = {True: "", False: "NOT NULL"}
    columns = (
        f"`{c.name}` {_name_type(c)} {null[c.nullable]} COMMENT {quote_text(c.comment)}"
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
    changed = [c.name for c in table.columns if existing.get(c.name, _name_type(c)) != _name_type(c)]
    missing = [column for column in table.columns if column.name not in existing]
    refused = [*changed, *(column.name for column in missing if not column.nullable)]
    if refused:
        raise StoreError(
            f"{identifier}: column {refused[0]} cannot be brought to this schema",
            "use another --warehouse, or the version of recbench-spark that made this one",
        )
    columns = [f"`{c.name}` {_name_type(c)} COMMENT {quote_text(c.comment)}" for c in missing]
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


def filter_condition(column: str, operator: str, value: Any) -> Column:
    """Return a filter of `Store.rows` as a Spark column."""
    at = F.col(column)
    if operator == "in":
        return at.isin(list(value))
    tests: dict[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    return cast(Column, tests[operator](at, F.lit(value)))
