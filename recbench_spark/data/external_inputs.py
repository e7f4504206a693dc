"""Read and check tables of other systems (lists, scores, embeddings, candidates), with ids as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.checks import Check
from recbench_spark.data.column_names import ColumnNames
from recbench_spark.data.input_rules import (
    EXACT_LIMIT,
    VALUE_TYPES,
    WHOLE_NUMBER,
    check_width,
    refuse_different_widths,
    refuse_unusable,
    report_common_ids,
)
from recbench_spark.data.readers.ids import IdColumn, convert_ids
from recbench_spark.data.readers.tables import read_table
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import DataError
from recbench_spark.kernels.ids import CANONICAL_INTEGER, LETTER_CASE, SPELLINGS, IdArray, IdOverlap
from recbench_spark.schemas import ID_TYPE, IDS
from recbench_spark.storage.spark_types import cast_ids_to_text, require


def read_scored_rows(
    spark: SparkSession, path: str, kind: str, columns: Mapping[str, str] | None = None
) -> DataFrame:
    """Read lists (with rank or score) or scores at a path; `columns`: our names and those of the table."""
    what = f"{kind} {path}"
    rows = read_table(spark, path, ["user_id", "item_id"], kind, ColumnNames(columns or {}))
    types = {name: VALUE_TYPES[name] for name in VALUE_TYPES if name in rows.columns}
    if kind == "scores" or not types:
        require(rows, ["score"], what)
    return convert_rows(rows, types, what)


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


def read_embeddings(
    spark: SparkSession, users: str, items: str, columns: Mapping[str, str] | None = None
) -> tuple[DataFrame, DataFrame]:
    """Read (user_id, vector) and (item_id, vector, bias) at two paths."""
    names = ColumnNames(columns or {})
    frames = [
        read_table(spark, path, [f"{side}_id", "vector"], f"{side} embeddings", names)
        for side, path in (("user", users), ("item", items))
    ]
    return convert_embeddings(frames[0], frames[1], (users, items))


def read_item_embeddings(
    spark: SparkSession, path: str, columns: Mapping[str, str] | None = None
) -> DataFrame:
    """Read (item_id, vector, bias) of a model that brings no vectors of users.

    Raises:
        DataError: vectors that cannot be used, as in `convert_embeddings`.
    """
    names = ColumnNames(columns or {})
    rows = read_table(spark, path, ["item_id", "vector"], "item embeddings", names)
    return _convert_side(rows, "item", path)


def convert_embeddings(
    users: DataFrame, items: DataFrame, what: tuple[str, str]
) -> tuple[DataFrame, DataFrame]:
    """Convert to (user_id, vector) and (item_id, vector, bias) with the same number of dimensions.

    Raises:
        DataError: vectors that are NULL, of different lengths or hold NaN, an id that is NULL or twice.
    """
    sides = [_convert_side(users, "user", what[0]), _convert_side(items, "item", what[1])]
    dims = [count_dimensions(rows, name) for rows, name in zip(sides, what, strict=True)]
    refuse_different_widths(dims, what)
    return sides[0].drop("bias"), sides[1]


def _convert_side(rows: DataFrame, side: str, where: str) -> DataFrame:
    """Return id, vector and bias (0 where there is no such column) of users or items."""
    require(rows, [f"{side}_id", "vector"], where)
    bias = F.col("bias").cast("double") if "bias" in rows.columns else F.lit(0.0)
    return _convert_vectors(rows, f"{side}_id", bias, where)


def convert_features(rows: DataFrame, what: str) -> DataFrame:
    """Convert item features to (item_id, vector, bias 0).

    Raises:
        SchemaError: a column is missing. DataError: vectors that cannot be used.
    """
    require(rows, ["item_id", "vector"], what)
    return _convert_vectors(rows, "item_id", F.lit(0.0), what)


def _convert_vectors(rows: DataFrame, name: str, bias: Column, what: str) -> DataFrame:
    ids = {name: convert_ids(rows, name, what)}
    _refuse_rows(rows, {}, what, ids)
    vector = F.col("vector").cast("array<float>").alias("vector")
    typed = rows.select(_text_ids(ids, name), vector, bias.alias("bias"))
    _refuse_rows(typed, _vector_tests(name), what)
    return typed


def _vector_tests(ids: str) -> dict[str, Column]:
    holes = F.exists("vector", lambda x: x.isNull() | F.isnan(x) | (F.abs(x) == float("inf")))
    bias = F.isnan("bias") | (F.abs("bias") == float("inf"))
    return {ids: F.col(ids).isNull(), "vector": holes, "bias": bias}


def group_candidates(rows: DataFrame, items: DataFrame, users: DataFrame) -> DataFrame:
    """Group rows (user_id, item_id) by user: user_id, candidates (item indices).

    Raises:
        DataError: no item is in the catalogue, or no user is among `users`.
    """
    typed = convert_rows(rows, {}, "candidates")
    check_common_ids(typed, users, "user_id", ("candidates", "truth"))
    check_common_ids(typed, items, "item_id", ("candidates", "catalogue"))
    indexed = typed.join(items.select("item_id", "item_index"), "item_id")
    listed = F.sort_array(F.collect_set("item_index"))
    return indexed.groupBy("user_id").agg(listed.alias("candidates"))


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


# ----------------------------------------------------------------------------- ids without a match


def check_common_ids(
    left: DataFrame, right: DataFrame, name: str, what: tuple[str, str], *, must: bool = True
) -> list[Check]:
    """Warn where hardly any id of one frame is in the other. The distinct ids of both are shuffled.

    Args:
        left: a frame with the column `name`, ids as text; NULL is ignored.
        right: the frame to compare it with.
        name: user_id or item_id.
        what: the names of the frames in messages.
        must: whether it is an error that no id is common. Otherwise it is an error only for ids of two
            kinds (whole numbers and text), which can never be equal.

    Raises:
        DataError: no id is common; the message shows three ids of each side and both types.
    """
    sides = FrameSides(left, right, name, what)
    return report_common_ids(_count_common_ids(left, right, name), sides, name, what, must=must)


@dataclass(frozen=True)
class FrameSides:
    """Two frames with ids, as `kernels.ids.IdSides`; attributes as in `check_common_ids`."""

    left: DataFrame
    right: DataFrame
    name: str
    what: tuple[str, str]

    def count_respelled(self, changes: Sequence[str]) -> IdOverlap:
        """Count the ids in common after changes of `SPELLINGS`. The distinct ids of both are shuffled."""
        ids = _respell(F.col(self.name).cast("string"), changes).alias(self.name)
        return _count_common_ids(self.left.select(ids), self.right.select(ids), self.name)

    def drop_common(self) -> FrameSides:
        """Return the ids of each side that the other side lacks."""
        left, right = (
            frame.withColumn(self.name, F.col(self.name).cast("string")).select(self.name)
            for frame in (self.left, self.right)
        )
        apart = left.join(right, self.name, "left_anti"), right.join(left, self.name, "left_anti")
        return FrameSides(apart[0], apart[1], self.name, self.what)

    def read_examples(self) -> tuple[IdArray, IdArray]:
        """Return the smallest three ids of each side."""
        return (
            _describe_side(self.left, self.what[0], self.name),
            _describe_side(self.right, self.what[1], self.name),
        )


def _respell(ids: Column, changes: Sequence[str]) -> Column:
    """Return the column that `kernels.ids.respell` returns for Arrow."""
    for change in changes:
        pattern, text = SPELLINGS[change]
        java = re.sub(r"\\(\d)", r"$\1", text)
        ids = F.lower(ids) if change == LETTER_CASE else F.regexp_replace(ids, pattern, java)
    return ids


def _count_common_ids(left: DataFrame, right: DataFrame, name: str) -> IdOverlap:
    marked = [
        frame.where(F.col(name).isNotNull()).select(
            F.col(name).alias("id"), F.lit(n == 0).alias("left"), F.lit(n == 1).alias("right")
        )
        for n, frame in enumerate((left, right))
    ]
    both = (
        marked[0]
        .unionByName(marked[1])
        .groupBy("id")
        .agg(F.max("left").alias("left"), F.max("right").alias("right"))
    )
    number = F.col("id").rlike(CANONICAL_INTEGER)
    (row,) = both.agg(
        F.count_if(F.col("left") & F.col("right")).alias("common"),
        *(F.count_if(side).alias(side) for side in ("left", "right")),
        *(F.count_if(F.col(side) & number).alias(f"{side}_numbers") for side in ("left", "right")),
    ).collect()
    return IdOverlap((row.left, row.right), row.common, (row.left_numbers, row.right_numbers))


def _describe_side(frame: DataFrame, what: str, name: str) -> IdArray:
    """Read the smallest three ids, and their type as it was stored."""
    field = frame.schema[name]
    ids = F.col(name).cast("string").alias(name)
    ordered = frame.where(F.col(name).isNotNull()).select(ids).distinct().orderBy(name)
    kind = field.metadata.get(ID_TYPE, field.dataType.simpleString())
    return IdArray(f"{name} of {what}", kind, [row[0] for row in ordered.limit(3).collect()])
