"""Spark's types, derived from the Arrow schemas of tables, as pyspark itself converts them. No JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from recbench_spark.core.columns import BINARY, FLOAT, map_type
from recbench_spark.schemas import (
    BOOLEAN,
    DATE,
    DOUBLE,
    HELD_OUT,
    INT,
    LONG,
    STRING,
    TABLES,
    TIMESTAMP,
    Table,
    array_type,
)
from recbench_spark.storage.spark_types import spark_schema, spark_type
from tests.log_schema import LOG_SCHEMA

TEXTS = T.ArrayType(T.StringType(), True)
TYPES = [
    (STRING, T.StringType()),
    (INT, T.IntegerType()),
    (LONG, T.LongType()),
    (FLOAT, T.FloatType()),
    (DOUBLE, T.DoubleType()),
    (BOOLEAN, T.BooleanType()),
    (BINARY, T.BinaryType()),
    (DATE, T.DateType()),
    (TIMESTAMP, T.TimestampType()),
    (array_type(array_type(DOUBLE)), T.ArrayType(T.ArrayType(T.DoubleType(), True), True)),
    (map_type(STRING, array_type(STRING)), T.MapType(T.StringType(), TEXTS, True)),
    (
        HELD_OUT,
        T.StructType(
            [
                T.StructField("item_ids", TEXTS),
                T.StructField("items", T.ArrayType(T.IntegerType(), True)),
                T.StructField("relevance", T.ArrayType(T.DoubleType(), True)),
                T.StructField("slices", T.MapType(T.StringType(), TEXTS, True)),
            ]
        ),
    ),
]


@pytest.mark.parametrize(("kind", "expected"), TYPES, ids=str)
def test_types(kind: pa.DataType, expected: T.DataType) -> None:
    assert spark_type(kind) == expected


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_the_same_in_spark_in_arrow_and_in_a_log_of_delta(table: Table) -> None:
    schema = spark_schema(table)
    assert [(f.name, f.nullable, f.metadata) for f in schema] == [
        (c.name, c.nullable, {"comment": c.comment}) for c in table.columns
    ]
    assert to_arrow_schema(schema, timezone="UTC").equals(table.arrow_schema, check_metadata=True)
    assert schema.json() == table.schema_json


def test_interactions() -> None:
    fields = "user_id:string,item_id:string,rating:double,event_time:bigint,part:string"
    assert LOG_SCHEMA.simpleString() == f"struct<{fields},attributes:map<string,string>>"
    assert all(field.nullable for field in LOG_SCHEMA)
