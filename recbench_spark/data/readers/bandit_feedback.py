"""Read logged rounds of a policy: Open Bandit (Saito et al., NeurIPS 2021, Datasets and Benchmarks)."""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.readers.files import column, read_fields
from recbench_spark.data.readers.paths import find_file, is_folder
from recbench_spark.data.readers.values import Checks, Value
from recbench_spark.data.text_layouts import Layout
from recbench_spark.data.text_pieces import HIDDEN
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import DataError
from recbench_spark.storage.spark_types import require

ROUND_COLUMN = "_c0"
"""Spark's name of the first column, which has none in the files."""

ROUNDS = T.StructType(
    [
        T.StructField("round", T.LongType(), False, {"comment": "Number of the round in its file."}),
        T.StructField("event_time", T.LongType(), False, {"comment": "Microseconds since 1970 UTC."}),
        T.StructField("item_id", T.StringType(), False, {"comment": "Item shown."}),
        T.StructField("position", T.IntegerType(), False, {"comment": "Where it was shown, from 1."}),
        T.StructField("click", T.DoubleType(), False, {"comment": "1 if clicked, else 0: the reward."}),
        T.StructField(
            "propensity_score",
            T.DoubleType(),
            False,
            {"comment": "Probability that the logging policy shows this item at this position, above 0."},
        ),
        T.StructField(
            "user_features", T.ArrayType(T.StringType()), False, {"comment": "user_feature_0, 1 ..."}
        ),
        T.StructField(
            "affinities",
            T.ArrayType(T.DoubleType()),
            False,
            {"comment": "user-item_affinity_0, 1 ...: the user's past clicks on each item."},
        ),
    ]
)
"""Schema of the rounds that `read_rounds` returns."""

REQUIRED = ("timestamp", "item_id", "position", "click", "propensity_score")


def read_rounds(spark: SparkSession, path: str, time_zone: str = "UTC") -> DataFrame:
    """Read rounds in `ROUNDS` from a CSV file with a header, or from the one CSV of rounds in a folder.

    Each policy has its own folder: `random` and `bts` are read separately. Unusable rows are counted
    at once, in one pass; the rounds are lazy.

    Args:
        spark: the session.
        path: `all.csv` (`men.csv`, `women.csv`; `.gz`), or its folder.
        time_zone: the zone of timestamps without an offset.

    Raises:
        ConfigError: no such file.
        SchemaError: a column is missing.
        DataError: no rows; a click that is not 0 or 1, a propensity outside (0, 1], a position below 1.
    """
    names = ("all.csv", "men.csv", "women.csv")
    file = find_file(spark, path, names) if is_folder(spark, path) else path
    text = read_fields(spark, file, Layout())
    frame = _add_arrays(text.frame)
    visible = frame.drop(*HIDDEN)
    require(visible, [ROUND_COLUMN, *REQUIRED], file)
    values = _round_values(frame, file, time_zone)
    needed = [checked for value in values for checked in value.refuse_nulls()]
    needed.append(values[1].check_year())
    checks = Checks(frame, [Value.line(text.line), *needed], file)
    counted = checks.count()
    checks.refuse(counted)
    if not counted.rows:
        raise DataError(f"{file}: no rows")
    return frame.select(*_select_columns(values))


def _round_values(frame: DataFrame, where: str, zone: str) -> list[Value]:
    """Return the columns in the order of ROUNDS."""
    affinities = F.transform("affinities", lambda text: try_cast(text, "double"))
    holes = F.exists(affinities, lambda x: x.isNull() | F.isnan(x))
    position = Value.whole(frame, "position", where)
    click = Value.number(frame, "click", where)
    return [
        Value.whole(frame, ROUND_COLUMN, where),
        Value.time(frame, "timestamp", where, zone),
        Value.ids(frame, "item_id", where, text_file=True),
        Value("position", position.column, ~(position.column >= 1), "a position from 1"),
        Value("click", click.column, ~click.column.isin(0.0, 1.0), "0 or 1"),
        Value.within(frame, "propensity_score", where, 0.0, "a probability above 0"),
        Value("user_features", F.col("user_features")),
        Value("affinities", affinities, holes, "an array of numbers"),
    ]


def _add_arrays(frame: DataFrame) -> DataFrame:
    """Add the numbered columns as arrays of text."""
    prefixes = {"user_features": "user_feature_", "affinities": "user-item_affinity_"}
    arrays = {
        name: F.array(*map(column, _list_numbered(frame, prefix))).cast("array<string>")
        for name, prefix in prefixes.items()
    }
    return frame.withColumns(arrays)


def _list_numbered(frame: DataFrame, prefix: str) -> list[str]:
    """List the columns prefix0, prefix1 ... in the order of their numbers."""
    names = [name for name in frame.columns if re.fullmatch(re.escape(prefix) + "[0-9]+", name)]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


def _select_columns(values: list[Value]) -> list[Column]:
    return [
        value.column.cast(field.dataType).alias(field.name, metadata=dict(value.notes))
        for field, value in zip(ROUNDS, values, strict=True)
    ]
