"""Spark types for the Arrow types of `schemas`, and frames."""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.core.columns import field_json
from recbench_spark.schemas import Table, require_names


def spark_schema(table: Table) -> T.StructType:
    """Return the Spark schema of a table, with comments."""
    return T.StructType.fromJson(json.loads(table.schema_json))


def spark_type(kind: pa.DataType) -> T.DataType:
    """Return the Spark type for a column of our tables."""
    return T.StructField.fromJson(field_json("column", kind, True, {})).dataType


def spark_columns(schema: pa.Schema) -> T.StructType:
    """Return the Spark schema for our own rows."""
    return T.StructType([T.StructField(field.name, spark_type(field.type)) for field in schema])


def require(frame: DataFrame, columns: list[str], what: str) -> None:
    """Check that a frame has columns.

    Raises:
        SchemaError: a column is missing; the message names the existing columns and the nearest one.
    """
    require_names(frame.columns, columns, what)


def conform(frame: DataFrame, table: Table) -> DataFrame:
    """Return a frame's columns in the table's order and types.

    Nullable columns may be missing: they become NULL.
    """
    require(frame, [c.name for c in table.columns if not c.nullable], f"rows for '{table.name}'")
    existing = frame.columns
    return frame.select(
        *(
            (F.col(field.name) if field.name in existing else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in spark_schema(table)
        )
    )


def raise_breaches(frame: DataFrame, table: Table) -> DataFrame:
    """Return a frame whose tasks fail at a breached constraint.

    The error names the table and the constraint.
    """
    first = spark_schema(table)[0]
    for name, condition in table.constraints.items():
        message = F.lit(f"cannot write {table.name}: a row breaks the constraint {name}: {condition}")
        holds = F.coalesce(F.expr(condition), F.lit(False))
        value = F.when(holds, F.col(first.name)).otherwise(F.raise_error(message).cast(first.dataType))
        frame = frame.withColumn(first.name, value)
    return frame
