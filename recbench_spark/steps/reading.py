"""Tables that other systems hand over: lists, scores, embeddings, candidates. Checked, ids as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.data.readers import read_table
from recbench_spark.errors import DataError
from recbench_spark.evaluation import sources
from recbench_spark.schemas import require

VALUES = {"rank": "long", "score": "double"}


def read_scored_rows(spark: SparkSession, path: str, kind: str) -> DataFrame:
    """Lists (rank or score) or scores at a path."""
    what = f"{kind} {path}"
    rows = read_table(spark, path, ["user_id", "item_id"], kind)
    found = {name: VALUES[name] for name in VALUES if name in rows.columns}
    if kind == "scores" or not found:
        require(rows, ["score"], what)
    return typed_rows(rows, found, what)


def typed_rows(
    rows: DataFrame, values: Mapping[str, str], what: str, *, empty_items: bool = False
) -> DataFrame:
    """user_id and item_id as text, and the value columns by type.

    One pass counts what cannot be used.

    Args:
        rows: user_id, item_id and the values.
        values: column -> Spark type.
        what: how errors name the rows.
        empty_items: a NULL item_id is allowed (a user with an empty truth).

    Raises:
        SchemaError: a column is missing.
        DataError: NULL ids, or values that are NULL, NaN, infinite, no number, or ranks below 1.
    """
    require(rows, ["user_id", "item_id", *values], what)
    ids = [F.col(name).cast("string").alias(name) for name in ("user_id", "item_id")]
    typed = rows.select(*ids, *(_typed(name, kind).alias(name) for name, kind in values.items()))
    wrong = {name: _unusable(name) for name in values}
    if empty_items:
        wrong = {name: test & F.col("item_id").isNotNull() for name, test in wrong.items()}
    else:
        wrong["item_id"] = F.col("item_id").isNull()
    wrong["user_id"] = F.col("user_id").isNull()
    _refuse(typed, wrong, what)
    return typed


def typed_numbers(rows: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """The rows with these columns as float64.

    Raises:
        SchemaError: a column is missing. DataError: values that are NULL, NaN, infinite or no number.
    """
    require(rows, list(names), what)
    typed = rows.withColumns({name: _typed(name, "double") for name in names})
    _refuse(typed, {name: _unusable(name) for name in names}, what)
    return typed


def _typed(name: str, kind: str) -> Column:
    return F.col(name).cast("string").try_cast(kind) if kind == "long" else F.col(name).try_cast(kind)


def _unusable(name: str) -> Column:
    column = F.col(name)
    bad = column.isNull() | F.isnan(name) | (F.abs(name) == float("inf"))
    return bad | (column < 1) if name == "rank" else bad


def _refuse(rows: DataFrame, wrong: Mapping[str, Column], what: str) -> None:
    counts = [F.sum(F.when(test, 1).otherwise(0)).alias(name) for name, test in wrong.items()]
    (found,) = rows.agg(*counts).collect()
    for name in wrong:
        if found[name]:
            kind = "a rank below 1, NULL or no whole number" if name == "rank" else "NULL, NaN or infinite"
            raise DataError(
                f"{what}: {found[name]} rows whose {name} is {kind}",
                "leave these rows out, or mend the system that wrote them",
            )


def read_embeddings(spark: SparkSession, users: str, items: str) -> tuple[DataFrame, DataFrame]:
    """(user_id, vector) and (item_id, vector, bias) at two paths."""
    frames = [
        read_table(spark, path, [f"{side}_id", "vector"], f"{side} embeddings")
        for side, path in (("user", users), ("item", items))
    ]
    return typed_embeddings(frames[0], frames[1], (users, items))


def typed_embeddings(
    users: DataFrame, items: DataFrame, what: tuple[str, str]
) -> tuple[DataFrame, DataFrame]:
    """(user_id, vector) and (item_id, vector, bias) with one number of dimensions.

    Raises:
        DataError: vectors that are NULL, of different lengths or hold NaN, an id that is NULL or twice.
    """
    sides = []
    for side, rows, where in (("user", users, what[0]), ("item", items, what[1])):
        require(rows, [f"{side}_id", "vector"], where)
        bias = F.col("bias").cast("double") if "bias" in rows.columns else F.lit(0.0)
        vector = F.col("vector").cast("array<float>").alias("vector")
        typed = rows.select(F.col(f"{side}_id").cast("string"), vector, bias.alias("bias"))
        _refuse(typed, _unusable_vectors(f"{side}_id"), where)
        sides.append(typed)
    dims = [sources.dimensions(rows, name) for rows, name in zip(sides, what, strict=True)]
    if dims[0] != dims[1]:
        raise DataError(
            f"{what[0]} has {dims[0]} dimensions, {what[1]} has {dims[1]}", "both must be of one model"
        )
    return sides[0].drop("bias"), sides[1]


def typed_features(rows: DataFrame, what: str) -> DataFrame:
    """(item_id, vector, bias 0) of what items are like.

    Raises:
        SchemaError: a column is missing. DataError: vectors that cannot be used.
    """
    require(rows, ["item_id", "vector"], what)
    vector = F.col("vector").cast("array<float>").alias("vector")
    typed = rows.select(F.col("item_id").cast("string"), vector, F.lit(0.0).alias("bias"))
    _refuse(typed, _unusable_vectors("item_id"), what)
    return typed


def _unusable_vectors(ids: str) -> dict[str, Column]:
    holes = F.exists("vector", lambda x: x.isNull() | F.isnan(x) | (F.abs(x) == float("inf")))
    bias = F.isnan("bias") | (F.abs("bias") == float("inf"))
    return {ids: F.col(ids).isNull(), "vector": holes, "bias": bias}


def candidate_lists(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Rows (user_id, item_id) as one row a user: user_id, candidates (item indices)."""
    index = items.select("item_id", "item_index")
    known = typed_rows(rows, {}, "candidates").join(index, "item_id")
    listed = F.sort_array(F.collect_set("item_index"))
    return known.groupBy("user_id").agg(listed.alias("candidates"))
