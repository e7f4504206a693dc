"""Read Parquet as the union of its files, with columns that only some have, mixed number types and odd
types.

Spark applies the columns of one file to all files, makes numbers of the names of partition folders, and
reads neither times in nanoseconds nor float16. So the columns of local files are first read from their
footers; the columns of remote files are merged by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from recbench_spark.data.list_columns import is_list
from recbench_spark.data.readers.files import (
    column,
    input_files,
    note_partitions,
    partition_names,
    union_by_name,
)
from recbench_spark.data.readers.paths import explain_errors, local_path, plain_path
from recbench_spark.data.table_pieces import cut_name, plain_type
from recbench_spark.data.text_pieces import FILE
from recbench_spark.engine.versions import add_columns
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.storage.local_files import refuse_case
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.table_scans import read_schemas

Types = dict[str, pa.DataType]
"""Columns of a file, by name."""


def read_parquet(
    spark: SparkSession, path: str, wanted: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read the rows of all files at a path, with the columns that any of them has, and FILE.

    A column that a file lacks is NULL in its rows. A column of whole numbers in one file and of floats in
    another is float64, and infinite where that is not exact. Names of partition folders are text as
    written. Footers are read by the driver; nothing is shuffled.

    Args:
        spark: the session.
        path: a file or a folder; a name, not a pattern.
        wanted: columns that are used. Others are left out where their types have no common type.
        options: options of Spark's reader.

    Raises:
        SchemaError: a column has no common type, or names differ only in case.
        DataError: a file cannot be read.
    """
    settings = {"mergeSchema": "true", **(options or {})}
    with explain_errors(path):
        files = input_files(spark, path, settings)
    if not files:
        raise DataError(
            f"{path}: cannot be read: it has no files", "files whose names begin with _ or . are ignored"
        )
    parts = partition_names(path, files)
    local = [place for file in files if (place := local_path(file)) is not None]
    if len(local) < len(files) or settings["mergeSchema"].lower() != "true":
        return _read_group(spark, path, settings, parts, [], types={})
    schemas = _read_file_schemas(local, path)
    targets = _common_types(local, schemas, path, wanted)
    groups = _group_by_types(schemas, targets)
    frames = []
    for numbers in groups:
        group_files = [] if len(groups) == 1 else [files[number] for number in numbers]
        types = {name: kind for number in numbers for name, kind in schemas[number].items()}
        merges = {
            **settings,
            "mergeSchema": str(_columns_differ(schemas[number] for number in numbers)).lower(),
        }
        frames.append(
            _cast_columns(_read_group(spark, path, merges, parts, group_files, types=types), targets)
        )
    return union_by_name(frames)


def _read_file_schemas(files: Sequence[str], path: str) -> list[Types]:
    schemas = read_schemas(files, path)
    for schema in schemas:
        refuse_case(schema.names, path)
    return [dict(zip(schema.names, schema.types, strict=True)) for schema in schemas]


def _columns_differ(schemas: Iterable[Types]) -> bool:
    return len({tuple(schema) for schema in schemas}) > 1


def _group_by_types(schemas: Sequence[Types], targets: Mapping[str, T.DataType | None]) -> list[list[int]]:
    """Group the numbers of the files that Spark reads together: those with equal mixed and odd columns."""
    odd = {name for schema in schemas for name, kind in schema.items() if _lacks_spark_type(kind)}
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, schema in enumerate(schemas):
        key = tuple(str(schema.get(name)) for name in sorted({*targets, *odd}))
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _common_types(
    files: Sequence[str], schemas: Sequence[Types], path: str, wanted: Sequence[str]
) -> dict[str, T.DataType | None]:
    """Return common types of columns whose type differs between files; None for unused columns without one.

    Raises:
        SchemaError: a used column has no common type, or names of two files differ only in case.
    """
    seen: dict[str, tuple[str, str, pa.DataType]] = {}
    targets: dict[str, T.DataType | None] = {}
    for file, schema in zip(files, schemas, strict=True):
        for name, kind in schema.items():
            other, place, known_kind = seen.setdefault(name.lower(), (name, file, kind))
            if other != name and {name, other} & {*wanted}:
                names = f"column {other} in {cut_name(place)} and {name} in {cut_name(file)}"
                raise SchemaError(f"{path}: {names} differ in case alone", "one spelling in all files")
            if plain_type(kind) == plain_type(known_kind):
                continue
            targets[name] = _common_type(known_kind, kind, targets.get(name))
            if targets[name] is None and name in wanted:
                names = f"{known_kind} in {cut_name(place)}, {kind} in {cut_name(file)}"
                raise SchemaError(f"{path}: column {name} is of type {names}", "write files of one type")
            if pa.types.is_null(known_kind):
                seen[name.lower()] = (name, file, kind)
    return targets


def _common_type(one: pa.DataType, other: pa.DataType, before: T.DataType | None) -> T.DataType | None:
    """Return the type of a column that files hold in these two types; None where there is none."""
    if pa.types.is_null(one) or pa.types.is_null(other):
        kind = plain_type(other if pa.types.is_null(one) else one)
        return before or (T.FloatType() if pa.types.is_float16(kind) else _spark_type(kind))
    if is_list(one) and is_list(other):
        inner = _common_type(one.value_type, other.value_type, None)
        return T.ArrayType(inner) if inner else None
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not all(any(test(kind) for test in tests) for kind in (one, other)):
        return None
    whole = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (one, other))
    return T.LongType() if whole and before in (None, T.LongType()) else T.DoubleType()


# ------------------------------------------------------------------------------------- one group


def _read_group(
    spark: SparkSession,
    path: str,
    settings: Mapping[str, str],
    parts: Sequence[str],
    files: Sequence[str],
    *,
    types: Types,
) -> DataFrame:
    """Read all files of a path, or some of them, with these types (none: Spark infers them)."""
    reader = spark.read.options(**settings)
    places = [plain_path(file) for file in files] or [escape_path(path)]
    if files:
        reader = reader.option("basePath", escape_path(path))
    odd = {name for name, kind in types.items() if _lacks_spark_type(kind)}
    with explain_errors(path):
        schema = _declare_schema(types, path) if odd else reader.parquet(*places).schema
        text = [T.StructField(name, _partition_type(schema, name)) for name in parts]
        declared = T.StructType([field for field in schema if field.name not in parts] + text)
        frame = reader.schema(declared).parquet(*places) if odd or parts else reader.parquet(*places)
    frame = add_columns(frame, {name: _decode_column(name, types[name]) for name in odd - set(parts)})
    return note_partitions(frame.select("*", F.col("_metadata.file_path").alias(FILE)), parts)


def _partition_type(schema: T.StructType, name: str) -> T.DataType:
    """Return text for a partition column, but days and instants keep their type (one spelling)."""
    inferred = schema[name].dataType if name in schema.names else T.StringType()
    is_time = isinstance(inferred, T.DateType | T.TimestampType | T.TimestampNTZType)
    return inferred if is_time else T.StringType()


def _lacks_spark_type(kind: pa.DataType) -> bool:
    """Check whether Spark has no type for a Parquet column: times in nanoseconds, float16."""
    if is_list(kind):
        return bool(pa.types.is_float16(kind.value_type))
    return bool(pa.types.is_float16(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns"))


def _declare_schema(types: Types, path: str) -> T.StructType:
    """Declare the columns as Spark must read them."""
    fields = []
    for name, kind in types.items():
        try:
            fields.append(T.StructField(name, _spark_type(kind)))
        except Exception as error:
            raise SchemaError(
                f"{path}: column {name} is of type {kind}", str(error).splitlines()[0]
            ) from None
    return T.StructType(fields)


def _spark_type(kind: pa.DataType) -> T.DataType:
    """Return the type in which Spark reads a column; for odd types, the type that the file stores."""
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_float16(kind):
        return T.BinaryType()
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return T.LongType()
    return from_arrow_type(STORED_TYPES.get(kind, kind), prefer_timestamp_ntz=True)


STORED_TYPES = {
    **{pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()},
    pa.uint64(): pa.decimal128(20, 0),
    pa.string_view(): pa.string(),
}
"""Types of Arrow that Spark does not have, and the types that it reads from Parquet for them."""


def _decode_column(name: str, kind: pa.DataType) -> Column:
    """Convert a column of an odd type to a type of Spark: microseconds rounded down, float32."""
    raw = column(name)
    if pa.types.is_timestamp(kind):
        micros = F.floor((raw - F.pmod(raw, F.lit(1000))).cast("decimal(20,0)") / 1000).cast("bigint")
        instant = F.timestamp_micros(micros)
        if kind.tz is not None:
            return instant
        return F.to_utc_timestamp(instant, F.current_timezone()).cast("timestamp_ntz")
    if is_list(kind):
        return F.transform(raw, _decode_half)
    return _decode_half(raw)


def _decode_half(raw: Column) -> Column:
    """Convert float16 from its two bytes, the low one first (IEEE 754), to float32."""
    low, high = (F.conv(F.hex(F.substring(raw, at, 1)), 16, 10).cast("int") for at in (1, 2))
    sign = F.when(high >= 128, -1.0).otherwise(1.0)
    exponent = F.floor(F.pmod(high, F.lit(128)) / 4)
    fraction = (F.pmod(high, F.lit(4)) * 256 + low) / F.lit(1024.0)
    normal = F.pow(F.lit(2.0), exponent - 15) * (1 + fraction)
    special = F.when(fraction == 0, float("inf")).otherwise(float("nan"))
    number = F.when(exponent == 0, fraction * 2.0**-14).when(exponent == 31, special).otherwise(normal)
    return (sign * number).cast("float")


def _cast_columns(frame: DataFrame, targets: Mapping[str, T.DataType | None]) -> DataFrame:
    """Cast the columns to these types and drop those without one; infinite where not exact."""
    casts = {}
    for name, kind in targets.items():
        if name in frame.columns and kind is not None:
            raw = column(name)
            whole = isinstance(frame.schema[name].dataType, T.IntegralType | T.DecimalType)
            is_exact = raw.isNull() | (F.abs(raw) < 2**53)
            exact = whole and kind == T.DoubleType()
            casts[name] = (
                F.when(is_exact, raw.cast(kind)).otherwise(float("inf")) if exact else raw.cast(kind)
            )
    return add_columns(frame, casts).drop(*(name for name, kind in targets.items() if kind is None))
