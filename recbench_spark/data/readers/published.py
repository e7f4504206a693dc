"""Read NCF's negatives: leave one out, with listed negatives."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.data.paths import check_path
from recbench_spark.data.readers.files import read_lines
from recbench_spark.data.readers.paths import find_file, is_folder
from recbench_spark.data.readers.values import Checks, Value
from recbench_spark.data.text_layouts import TEXT_NOTES
from recbench_spark.data.text_pieces import BAD_LINE, FILE

CANDIDATE_LINE = r"^\s*\([0-9]+,[0-9]+\)(\s+[0-9]+)+\s*$"


def _split_tokens(line: str | Column) -> Column:
    return F.regexp_extract_all(line, F.lit(r"\S+"), 0)


def _null_array() -> Column:
    """Return an array of one NULL: exploded, it leaves a row that reports a bad line."""
    return F.array(F.lit(None).cast("string"))


def _explode_items(lines: DataFrame, good: Column, user: Column, items: Column) -> DataFrame:
    """Return user_id, item_id, BAD_LINE and FILE: a row per item of a good line, one row for a bad line."""
    # Lines are parsed in a separate step; together with `explode` they would be parsed for each item.
    parsed = lines.select(
        F.when(good, user).alias("user_id"),
        F.when(good, items).otherwise(_null_array()).alias("items"),
        _bad_line(good),
        FILE,
    )
    return parsed.select("user_id", F.explode("items").alias("item_id"), BAD_LINE, FILE)


def _bad_line(good: Column) -> Column:
    return F.when(~good, F.col("line")).alias(BAD_LINE)


def _select_ids() -> list[Column]:
    return [F.col(name).alias(name, metadata=TEXT_NOTES) for name in ("user_id", "item_id")]


NEGATIVE_FILES = ("*.test.negative",)


def read_negatives(spark: SparkSession, path: str) -> DataFrame:
    """Read user_id, item_id of the listed negatives in `*.test.negative`, at or under a path.

    A line is `(user,item)`, the user's test item, and the negatives, separated by tabs. A test item
    among its own negatives (156 users of MovieLens 1M) is none, and an item counts once: such users
    have 98 competitors. A task holds a line.

    Raises:
        ConfigError: the file does not exist.
        DataError: lines have another layout.
    """
    check_path(path)
    file = find_file(spark, path, NEGATIVE_FILES) if is_folder(spark, path) else path
    lines, good = read_lines(spark, file), F.col("line").rlike(CANDIDATE_LINE)
    numbers = F.regexp_extract_all("line", F.lit("[0-9]+"), 0)
    negatives = F.array_except(F.slice(numbers, 3, F.size(numbers)), F.array(numbers[1]))
    frame = _explode_items(lines, good, numbers[0], negatives)
    checks = Checks(frame, [Value.line("'(user,item) negative negative ...' in whole numbers")], file)
    checks.refuse(checks.count())
    return frame.select(*_select_ids())
