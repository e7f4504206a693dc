"""Calls with another spelling in some Spark, 3.5 to 4.2.

They cover classic sessions and Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import reduce
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:  # modules that also work without Spark import this one
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as T


def is_old() -> bool:
    """Check whether the client is older than Spark 4.

    Such a client hands tables of Arrow over in other ways.
    """
    import pyspark  # noqa: PLC0415

    return pyspark.__version__.startswith("3.")


def has_call(owner: Any, name: str) -> bool:
    """Check whether this Spark has a method."""
    return hasattr(owner, name)


def is_frame(value: object) -> TypeGuard[DataFrame]:
    """Check whether a value is a frame.

    By Connect, a frame of Spark 3.5 is no DataFrame.
    """
    return has_call(value, "mapInArrow")


def union_rows(frames: Iterable[DataFrame], *, by_name: bool = False) -> DataFrame:
    """Put frames under each other.

    In Spark 3.5 only classic frames have `DataFrame.union`.
    """
    return reduce(lambda one, other: one.unionByName(other) if by_name else one.union(other), frames)


def collect_arrow(frame: Any) -> pa.Table:
    """Return all rows; the driver holds them.

    `toArrow` came with Spark 4.0.
    """
    if has_call(frame, "toArrow"):
        return frame.toArrow()
    schema = arrow_schema(frame)
    if not has_call(frame, "_collect_as_arrow"):  # by Connect
        client = frame.sparkSession.client
        rows, _ = client.to_table(frame._plan.to_proto(client))
        return rows.cast(schema)
    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return a frame's schema in Arrow's types.

    Times are in UTC, which Spark 4.2 wants to be told.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    knows_zone = "timezone" in signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if knows_zone else {}
    schema: pa.Schema = to_arrow_schema(frame.schema, **zone)
    return schema


def make_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the driver's table as a frame.

    Spark takes tables of Arrow from 4.0 on.
    """
    if not is_old():
        return spark.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    rows = [tuple(row.values()) for row in table.to_pylist()]
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


def try_cast(column: Column, kind: str | T.DataType) -> Column:
    """Return the column as another type, else NULL.

    `Column.try_cast` came with 4.0.
    """
    if not is_old():
        return column.try_cast(kind)
    from pyspark.sql import functions as F  # noqa: PLC0415

    old: Any = column
    name = kind if isinstance(kind, str) else kind.simpleString()
    if hasattr(old, "_jc"):
        return F.expr(f"try_cast({old._jc.expr().sql()} AS {name})")
    cast = F.expr(f"value -> try_cast(value AS {name})")  # by Connect no column has its text
    return F.call_function("transform", F.array(column), cast)[0]


def add_columns(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return the frame with more columns, perhaps none.

    `withColumns` by Connect takes no empty set of them.
    """
    return frame.withColumns(dict(columns)) if columns else frame


# ------------------------------------------------------------------------- settings


def read_setting(spark: SparkSession, key: str, default: str | None = None) -> str | None:
    """Return a setting; the default if unset or hidden."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        return spark.conf.get(key, default)
    except PySparkException:
        return default


def change_setting(spark: SparkSession, key: str, value: str) -> None:
    """Change a session's setting, if the platform allows it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    with suppress(PySparkException):
        spark.conf.set(key, value)


def count_shuffle_tasks(spark: SparkSession) -> int:
    """Return a shuffle's number of tasks; 0: automatic.

    Then the platform chooses it, as `auto` says.
    """
    text = read_setting(spark, "spark.sql.shuffle.partitions") or ""
    return int(text) if text.isdecimal() else 0


# ------------------------------------------------------------------------- rows to numbered tasks


def send_to_tasks(frame: DataFrame, tasks: int, task: Column) -> DataFrame:
    """Send each row to its number's partition, below `tasks`.

    `repartitionById` came with Spark 4.1. Before, and where a server lacks it, each number is replaced by
    one which Spark's hash sends to that partition.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    if has_call(frame, "repartitionById"):
        return frame.repartitionById(tasks, task)
    keys = F.array(*map(F.lit, find_partition_keys(tasks)))
    return frame.repartition(tasks, F.element_at(keys, task.cast("int") + F.lit(1)))


def find_partition_keys(tasks: int) -> list[int]:
    """Return for each partition a number which hashes there."""
    keys, start = np.full(tasks, -1), 0
    while (keys < 0).any():
        numbers = np.arange(start, start + 16 * tasks + 64)
        places, first = np.unique(_hash_numbers(numbers).astype(np.int64) % tasks, return_index=True)
        free = keys[places] < 0
        keys[places[free]] = numbers[first[free]]
        start += len(numbers)
    return [int(key) for key in keys]


def _hash_numbers(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return Spark's hash of 32-bit numbers.

    The hash is Murmur3 by Austin Appleby, seed 42.
    """
    with np.errstate(over="ignore"):
        k = numbers.astype(np.uint32) * np.uint32(0xCC9E2D51)
        k = ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
        h = np.uint32(42) ^ k
        h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return (h ^ (h >> np.uint32(16))).astype(np.int32)
