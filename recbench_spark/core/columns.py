"""Classes for tables and columns, and columns shared by tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from recbench_spark.errors import SchemaError, nearest

SCHEMA_VERSION = 8
"""Raised when a column is added or changes its meaning, or a layout changes; a property of each table."""

OLDEST_SCHEMA = 4
"""Oldest version which can be migrated; older ones have tables in clusters, which must be written again."""

STRING: pa.DataType = pa.string()
INT: pa.DataType = pa.int32()
LONG: pa.DataType = pa.int64()
FLOAT: pa.DataType = pa.float32()
DOUBLE: pa.DataType = pa.float64()
BOOLEAN: pa.DataType = pa.bool_()
BINARY: pa.DataType = pa.binary()
TIMESTAMP: pa.DataType = pa.timestamp("us", "UTC")
DATE: pa.DataType = pa.date32()


def array_type(element: pa.DataType) -> pa.DataType:
    """Return a list type; its elements are nullable.

    Delta has no NOT NULL inside arrays and maps.
    """
    return pa.list_(pa.field("element", element))


def map_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return a map type; its values are nullable."""
    return pa.map_(key, value)


@dataclass(frozen=True)
class TableColumn:
    """One column: name, type, and its meaning for readers."""

    name: str
    type: pa.DataType
    comment: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One table: its columns, a row's meaning, its files' layout."""

    name: str
    comment: str
    columns: tuple[TableColumn, ...]
    partition_by: tuple[str, ...] = ()
    constraints: dict[str, str] = field(default_factory=dict)

    @property
    def schema_json(self) -> str:
        """The schema with comments, as in a log of Delta.

        `storage.spark_types` reads it.
        """
        fields = [field_json(c.name, c.type, c.nullable, {"comment": c.comment}) for c in self.columns]
        return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema, with comments as Spark notes them."""
        return pa.schema(
            [
                pa.field(c.name, c.type, c.nullable, {NOTES: json.dumps({"comment": c.comment})})
                for c in self.columns
            ]
        )

    @property
    def names(self) -> list[str]:
        """The column names, in order."""
        return [column.name for column in self.columns]


def text_column(name: str, comment: str) -> TableColumn:
    """Return a text column without NULL."""
    return TableColumn(name, STRING, comment, nullable=False)


RUN_ID: TableColumn = text_column(
    "run_id", "Attempt of one model on one night; visible once `runs` says succeeded."
)
SPLIT_ID: TableColumn = text_column("split_id", "Hash of the log's identity and the split's settings.")
USER_ID: TableColumn = text_column("user_id", "Original user id, as text.")
ITEM_ID: TableColumn = text_column("item_id", "Original item id, as text.")
PART: TableColumn = text_column("part", "Held-out part evaluated: valid, test or open_loop.")
METRIC: TableColumn = text_column("metric", "Metric, lower case: ndcg, recall, auc ...")
DEFINITION: TableColumn = text_column(
    "definition", "Version of the defaults and the axes in which this number differs from them."
)
ESTIMATOR: TableColumn = text_column("estimator", "How exposure is corrected for; holdout means it is not.")
K: TableColumn = TableColumn("k", INT, "Cut-off; NULL for a value over the whole ranking.")
SUITE: TableColumn = text_column("suite", "Name of the benchmark file.")

ID_KIND = "recbench.id"
"""Column metadata: the stored type of ids: `integer`, `string`, or `text` in a text file."""

ABSENT = "recbench.absent"
"""Column metadata: the log has no such column, so every value is the same."""

IDS = ("user_id", "item_id")

QUERY_ID = "query_id"
"""Column beside `user_id` in tables with several rankings for a user."""

ID_NAMES = (*IDS, QUERY_ID)
"""All columns with ids."""


def require_names(names: Sequence[str], columns: Sequence[str], what: str) -> None:
    """Check that the required columns are among the names.

    Raises:
        SchemaError: a name is missing; the message has the existing names and the nearest one.
    """
    missing = [name for name in columns if name not in names]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(names)}",
            nearest(missing[0], names),
        )


def arrow_rows(rows: Sequence[Mapping[str, Any]] | pa.Table, table: Table) -> pa.Table:
    """Return rows as Arrow, with the table's columns and types.

    Missing columns are NULL.
    """
    schema = table.arrow_schema
    if not isinstance(rows, pa.Table):
        return pa.Table.from_pylist(list(rows), schema)
    existing = rows.column_names
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in existing
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


# ---------------------------------------- Arrow types in Delta's JSON, where Spark reads its own

NOTES = "SPARK::metadata::json"
"""Spark's key in an Arrow field's metadata, for a column's notes."""

PRIMITIVES: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}
"""Names of types without parts."""


def type_json(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a type as a Delta log's schema names it.

    Raises:
        KeyError: no table in this package has a column of this type.
    """
    if pa.types.is_list(kind):
        element = kind.value_field
        return {
            "type": "array", "elementType": type_json(element.type), "containsNull": element.nullable
        }  # fmt: skip
    if pa.types.is_map(kind):
        value = kind.item_field
        parts = {"keyType": type_json(kind.key_type), "valueType": type_json(value.type)}
        return {"type": "map", **parts, "valueContainsNull": value.nullable}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [field_json(f.name, f.type, f.nullable, {}) for f in kind]}
    return PRIMITIVES[kind]


def field_json(name: str, kind: pa.DataType, nullable: bool, notes: Mapping[str, str]) -> dict[str, Any]:
    """Return a column or field as in Delta's log."""
    return {"name": name, "type": type_json(kind), "nullable": nullable, "metadata": dict(notes)}
