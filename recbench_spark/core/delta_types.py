"""Arrow types in Delta's JSON, where Spark reads its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

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
