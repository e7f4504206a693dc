"""The manifest of a split: what it consists of, and whether it leaks."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

FACTS = T.StructType(
    [
        T.StructField("part", T.StringType()),
        T.StructField("fact", T.StringType()),
        T.StructField("value", T.DoubleType()),
        T.StructField("detail", T.StringType()),
    ]
)


def manifest(splits: DataFrame, log_rows: int, settings: str) -> DataFrame:
    """Facts of a labelled log: counts and content hash per part, overlap, leakage in time.

    Three aggregations: by part (with exact distinct counts: one shuffle of distinct users and of
    distinct items a part), by pair for the overlap, by user and by item for test-only ones.

    Args:
        splits: labelled log of one split.
        log_rows: rows read, before duplicates were dropped.
        settings: the split's settings as JSON.
    """
    spark = splits.sparkSession
    counts = [row.asDict() for row in _by_part(splits).collect()]
    facts: list[tuple[str, str, float | None, str | None]] = [
        (row["part"], fact, float(row[fact]), None) for row in counts for fact in ("rows", "users", "items")
    ]
    facts += [(row["part"], "content_hash", None, row["content_hash"]) for row in counts]
    kept = sum(row["rows"] for row in counts)
    facts += [("log", "rows_read", float(log_rows), None), ("log", "settings", None, settings)]
    facts += [("log", "duplicates_dropped", float(log_rows - kept), None)]
    facts += [("log", "overlap", float(_overlap(splits)), "pairs in more than one row")]
    facts += [("log", f"test_only_{of}s", float(_test_only(splits, of)), None) for of in ("user", "item")]
    facts += _leakage(counts, splits)
    return spark.createDataFrame(facts, FACTS)


def _by_part(splits: DataFrame) -> DataFrame:
    row_hash = F.xxhash64("user_id", "item_id", "rating", "event_time").cast("decimal(38,0)")
    return splits.groupBy("part").agg(
        F.count("*").alias("rows"),
        F.count_distinct("user_id").alias("users"),
        F.count_distinct("item_id").alias("items"),
        # A sum does not depend on the order of rows.
        F.sum(row_hash).cast("string").alias("content_hash"),
        F.min("event_time").alias("earliest"),
    )


def _overlap(splits: DataFrame) -> int:
    return splits.groupBy("user_id", "item_id").count().where("count > 1").count()


def _test_only(splits: DataFrame, of: str) -> int:
    """Users (or items) of the held-out parts that training has never seen."""
    seen = F.max(F.col("part") == "train").alias("seen")
    return splits.groupBy(f"{of}_id").agg(seen).where("NOT seen").count()


def _leakage(
    counts: list[dict[str, int]], splits: DataFrame
) -> list[tuple[str, str, float | None, str | None]]:
    """Share of training rows later than the earliest test row: the future seen while training."""
    earliest = {str(row["part"]): row["earliest"] for row in counts}
    if earliest.get("test") is None:
        return []
    train = splits.where("part = 'train'")
    late = train.where(F.col("event_time") > earliest["test"]).count()
    rows = next((row["rows"] for row in counts if str(row["part"]) == "train"), 0)
    share = late / rows if rows else 0.0
    return [("train", "future_share", share, "training rows later than the earliest test row")]
