"""Check frames of cells and rounds, with ids as text; and widths of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.input_rules import (
    EXACT_LIMIT,
    WHOLE_NUMBER,
    check_width,
    refuse_unusable,
)
from recbench_spark.data.readers.ids import IdColumn, convert_ids
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import DataError
from recbench_spark.schemas import ID_TYPE, IDS
from recbench_spark.storage.spark_types import require


def convert_rows(rows: DataFrame, values: Sequence[str], what: str) -> DataFrame:
    """Check user_id, item_id and the value columns in one pass; return ids as text, and values as float64.

    Args:
        rows: user_id, item_id and the values.
        values: columns of numbers.
        what: the name of the rows in messages.

    Raises:
        SchemaError: a column is missing.
        DataError: NULL ids, or values that are NULL, NaN, infinite or not a number.
    """
    require(rows, [*IDS, *values], what)
    ids = {name: convert_ids(rows, name, what) for name in IDS}
    converted = {name: _convert_value(rows, name) for name in values}
    wrong = {name: _is_unusable(column) for name, column in converted.items()}
    wrong |= {name: ids[name].text.isNull() for name in ("item_id", "user_id")}
    _refuse_rows(rows, wrong, what, ids)
    texts = (ids[name].text.alias(name, metadata=ids[name].notes) for name in IDS)
    return rows.select(*texts, *(column.alias(name) for name, column in converted.items()))


def convert_numbers(rows: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """Convert these columns to float64.

    Raises:
        SchemaError: a column is missing. DataError: values that are NULL, NaN, infinite or not a number.
    """
    require(rows, list(names), what)
    typed = {name: _convert_value(rows, name) for name in names}
    _refuse_rows(rows, {name: _is_unusable(column) for name, column in typed.items()}, what)
    return rows.withColumns(typed)


def _convert_value(rows: DataFrame, name: str) -> Column:
    """Convert a column; NULL where float64 cannot represent a value."""
    raw, stored = F.col(name), rows.schema[name].dataType
    exact = isinstance(stored, T.LongType) or (isinstance(stored, T.DecimalType) and not stored.scale)
    number = try_cast(raw, "double")
    if isinstance(stored, T.StringType):
        large = F.trim(raw).rlike(WHOLE_NUMBER) & (F.abs(number) >= EXACT_LIMIT)
        return F.when(~F.coalesce(large, F.lit(False)), number)
    return F.when(F.abs(number) < EXACT_LIMIT, number) if exact else number


def _is_unusable(column: Column) -> Column:
    return column.isNull() | F.isnan(column) | (F.abs(column) == float("inf"))


def _refuse_rows(
    rows: DataFrame,
    wrong: Mapping[str, Column],
    what: str,
    ids: Mapping[str, IdColumn] | None = None,
) -> None:
    """Raise DataError where a test holds, or where an id column has a value that is no id."""
    columns = {name: rule for name, rule in (ids or {}).items() if _is_unchecked(rows, name)}
    counts = [F.count_if(test).alias(f"n_{name}") for name, test in wrong.items()]
    examples = [
        F.min(F.when(F.coalesce(rule.bad, F.lit(False)), F.col(name).cast("string"))).alias(f"bad_{name}")
        for name, rule in columns.items()
        if rule.bad is not None
    ]
    (row,) = rows.agg(*counts, *examples).collect()
    for name, rule in columns.items():
        if rule.bad is not None and row[f"bad_{name}"] is not None:
            raise DataError(
                f"{what}: {name} ({rule.stored}) is not {rule.expected}, e.g. {row[f'bad_{name}']!r}",
                rule.hint,
            )
    refuse_unusable({name: row[f"n_{name}"] for name in wrong}, what)


def _is_unchecked(rows: DataFrame, name: str) -> bool:
    """Check whether the column does not come from our readers, which have checked it."""
    return ID_TYPE not in rows.schema[name].metadata


def count_dimensions(vectors: DataFrame, what: str) -> int:
    """Return the common length of all vectors.

    Raises:
        DataError: vectors of different lengths, a NULL vector, no vectors at all, or an id twice.
    """
    size = F.size("vector")
    ids = vectors.columns[0]
    (row,) = vectors.agg(
        F.min(size), F.max(size), F.count("*"), F.count("vector"), F.count_distinct(ids)
    ).collect()
    return check_width(*row, what=what)
