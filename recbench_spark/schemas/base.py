"""Classes of tables and columns, and columns that many tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from recbench_spark.errors import SchemaError, nearest

SCHEMA_VERSION = 5
"""Raised when a column is added or changes its meaning, or a layout changes; a property of each table."""

STRING: T.DataType = T.StringType()
INT: T.DataType = T.IntegerType()
LONG: T.DataType = T.LongType()
DOUBLE: T.DataType = T.DoubleType()
BOOLEAN: T.DataType = T.BooleanType()
TIMESTAMP: T.DataType = T.TimestampType()
DATE: T.DataType = T.DateType()


def array_type(element: T.DataType) -> T.ArrayType:
    """Return an array type; Delta has no NOT NULL inside arrays and maps, so elements are nullable."""
    return T.ArrayType(element)


@dataclass(frozen=True)
class TableColumn:
    """A column: name, type, and its meaning for the person who queries it."""

    name: str
    type: T.DataType
    comment: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """A table: columns, the meaning of a row, and the layout of its files."""

    name: str
    comment: str
    columns: tuple[TableColumn, ...]
    partition_by: tuple[str, ...] = ()
    constraints: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> T.StructType:
        """The Spark schema, with comments."""
        return T.StructType(
            [T.StructField(c.name, c.type, c.nullable, {"comment": c.comment}) for c in self.columns]
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema, without comments."""
        return to_arrow_schema(self.schema, timezone="UTC")

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]


def text_column(name: str, comment: str) -> TableColumn:
    """Return a text column that is never NULL."""
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
"""Column metadata: the stored type of ids: `integer`, `string`, or `text` of a text file."""

ABSENT = "recbench.absent"
"""Column metadata: the log has no such column, so every value is the same."""

COMPLETE = "recbench.complete"
"""Column metadata: the reader has checked that no value is missing."""

IDS = ("user_id", "item_id")


def require(frame: DataFrame, columns: list[str], what: str) -> None:
    """Check that a frame has columns.

    Raises:
        SchemaError: a column is missing; the message names the existing columns and the nearest one.
    """
    require_names(frame.columns, columns, what)


def require_names(names: Sequence[str], columns: Sequence[str], what: str) -> None:
    """Check names of columns as `require`.

    Raises:
        SchemaError: a name is missing.
    """
    missing = [name for name in columns if name not in names]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(names)}",
            nearest(missing[0], names),
        )


def cast_ids_to_text(log: DataFrame) -> DataFrame:
    """Return the log with its ids as text; the metadata of its columns stays."""
    text = {
        name: F.col(name).cast("string").alias(name, metadata=log.schema[name].metadata)
        for name in IDS
        if log.schema[name].dataType != STRING
    }
    return log.select(*(text.get(name, name) for name in log.columns)) if text else log


def conform(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame with the table's columns, in its order and types; missing nullable ones are NULL."""
    require(frame, [c.name for c in table.columns if not c.nullable], f"rows for '{table.name}'")
    return frame.select(
        *(
            (F.col(c.name) if c.name in frame.columns else F.lit(None)).cast(c.type).alias(c.name)
            for c in table.columns
        )
    )


def arrow_rows(rows: Sequence[Mapping[str, Any]] | pa.Table, table: Table) -> pa.Table:
    """Return rows as Arrow with the table's columns, in its order and types; missing ones are NULL."""
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
