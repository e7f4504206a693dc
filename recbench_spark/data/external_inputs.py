"""Read and check tables of other systems (lists, scores, embeddings, candidates), with ids as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
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
from recbench_spark.storage.spark_types import cast_ids_to_text, require


@dataclass(frozen=True)
class CheckedRows:
    """Rows that can be used, with ids as text or as the whole numbers that were stored.

    Attributes:
        rows: the typed rows.
        n: number of rows.
        ranges: the smallest and largest value of each column over rows with an item; missing where there is
            none.
    """

    rows: DataFrame
    n: int
    ranges: Mapping[str, tuple[float, ...]]


def convert_rows(
    rows: DataFrame, values: Mapping[str, str], what: str, *, empty_items: bool = False
) -> DataFrame:
    """Convert user_id and item_id to text and the value columns to their types; see `check_input_rows`."""
    checked = check_input_rows(rows, values, what, empty_items=empty_items)
    return cast_ids_to_text(checked.rows)


def check_input_rows(
    rows: DataFrame, values: Mapping[str, str], what: str, *, empty_items: bool = False
) -> CheckedRows:
    """Check user_id, item_id and the value columns, and convert them to their types.

    One pass counts the values that cannot be used. Ids that are stored as whole numbers stay numbers;
    Python later converts only the distinct ones to text.

    Args:
        rows: user_id, item_id and the values.
        values: column -> Spark type.
        what: the name of the rows in messages.
        empty_items: whether a NULL item_id is allowed (a user with an empty truth).

    Raises:
        SchemaError: a column is missing.
        DataError: NULL ids, or values that are NULL, NaN, infinite, not a number, or ranks below 1.
    """
    require(rows, ["user_id", "item_id", *values], what)
    ids = {name: convert_ids(rows, name, what) for name in IDS}
    converted = {name: _convert_value(rows, name, kind) for name, kind in values.items()}
    has_item = ids["item_id"].text.isNotNull()
    wrong = {name: _is_unusable(name, column) for name, column in converted.items()}
    if empty_items:
        wrong = {name: test & has_item for name, test in wrong.items()}
    else:
        wrong["item_id"] = ~has_item
    wrong["user_id"] = ids["user_id"].text.isNull()
    item_values = {name: F.when(has_item, column) for name, column in converted.items()}
    ends = [F.min(column).alias(f"min_{name}") for name, column in item_values.items()]
    ends += [F.max(column).alias(f"max_{name}") for name, column in item_values.items()]
    row = _refuse_rows(rows, wrong, what, ids, [F.count("*").alias("n"), *ends])
    ranges = {name: (row[f"min_{name}"], row[f"max_{name}"]) for name in values}
    columns = [column.alias(name) for name, column in converted.items()]
    typed = rows.select(*(_select_ids(rows, ids, name) for name in IDS), *columns)
    return CheckedRows(
        typed, row["n"], {name: ends for name, ends in ranges.items() if ends[0] is not None}
    )


def _select_ids(rows: DataFrame, ids: Mapping[str, IdColumn], name: str) -> Column:
    if isinstance(rows.schema[name].dataType, T.IntegralType):
        return F.col(name).cast("long").alias(name, metadata=ids[name].notes)
    return _text_ids(ids, name)


def _text_ids(ids: Mapping[str, IdColumn], name: str) -> Column:
    return ids[name].text.alias(name, metadata=ids[name].notes)


def convert_numbers(rows: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """Convert these columns to float64.

    Raises:
        SchemaError: a column is missing. DataError: values that are NULL, NaN, infinite or not a number.
    """
    require(rows, list(names), what)
    typed = {name: _convert_value(rows, name, "double") for name in names}
    _refuse_rows(rows, {name: _is_unusable(name, column) for name, column in typed.items()}, what)
    return rows.withColumns(typed)


def _convert_value(rows: DataFrame, name: str, kind: str) -> Column:
    """Convert a column; NULL where a value does not fit, or float64 cannot represent it."""
    raw, stored = F.col(name), rows.schema[name].dataType
    if kind == "double":
        exact = isinstance(stored, T.LongType) or (isinstance(stored, T.DecimalType) and not stored.scale)
        number = try_cast(raw, "double")
        if isinstance(stored, T.StringType):
            large = F.trim(raw).rlike(WHOLE_NUMBER) & (F.abs(number) >= EXACT_LIMIT)
            return F.when(~F.coalesce(large, F.lit(False)), number)
        return F.when(F.abs(number) < EXACT_LIMIT, number) if exact else number
    if isinstance(stored, T.FloatType | T.DoubleType | T.DecimalType):
        return F.when(raw == F.floor(raw), try_cast(raw, "bigint"))
    return try_cast(raw.cast("string"), kind)


def _is_unusable(name: str, column: Column) -> Column:
    bad = column.isNull() | F.isnan(column) | (F.abs(column) == float("inf"))
    return bad | (column < 1) | (column >= EXACT_LIMIT) if name == "rank" else bad


def _refuse_rows(
    rows: DataFrame,
    wrong: Mapping[str, Column],
    what: str,
    ids: Mapping[str, IdColumn] | None = None,
    extra: Sequence[Column] = (),
) -> Row:
    """Raise DataError where a test holds, or where an id column has a value that is no id.

    Otherwise return the counts of the same pass, with the `extra` aggregates.
    """
    columns = {name: rule for name, rule in (ids or {}).items() if _is_unchecked(rows, name)}
    counts = [F.count_if(test).alias(f"n_{name}") for name, test in wrong.items()]
    examples = [
        F.min(F.when(F.coalesce(rule.bad, F.lit(False)), F.col(name).cast("string"))).alias(f"bad_{name}")
        for name, rule in columns.items()
        if rule.bad is not None
    ]
    if not (counts or examples or extra):
        return Row()
    (row,) = rows.agg(*counts, *examples, *extra).collect()
    for name, rule in columns.items():
        if rule.bad is not None and row[f"bad_{name}"] is not None:
            raise DataError(
                f"{what}: {name} ({rule.stored}) is not {rule.expected}, e.g. {row[f'bad_{name}']!r}",
                rule.hint,
            )
    refuse_unusable({name: row[f"n_{name}"] for name in wrong}, what)
    return row


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
