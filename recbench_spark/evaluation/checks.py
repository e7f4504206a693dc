"""Checks that tell the reader of a metric about the rows of lists and scores, on Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.evaluation.ranking_counts import row_checks, training_item_check


def list_checks(rows: DataFrame, users: DataFrame, items: DataFrame) -> list[Check]:
    """Check recommendation lists or scores for duplicates, unknown users and unknown items.

    Shuffles the rows by (user, item) for the exact count of duplicates.

    Args:
        rows: user_id, item_id of the lists.
        users: rows of `select_part_users`.
        items: catalogue.
    """
    pairs = rows.groupBy("user_id", "item_id").count()
    total = pairs.agg(F.sum("count"), F.count("*")).first()
    n_rows, n_pairs = (total[0] or 0, total[1]) if total else (0, 0)
    unknown_items = rows.join(items.select("item_id"), "item_id", "left_anti").count()
    unknown_users = rows.join(users.select("user_id"), "user_id", "left_anti")
    lost = unknown_users.select("user_id").distinct().count()
    return row_checks(n_rows, n_rows - n_pairs, unknown_items, lost)


def count_gaps(rows: DataFrame) -> int | None:
    """Count the places without a row before the last rank of each user; None without ranks.

    Shuffles the rows by user.
    """
    if "rank" not in rows.columns:
        return None
    place = F.rank().over(Window.partitionBy("user_id").orderBy("rank"))
    gaps = rows.select("user_id", (F.col("rank") - place).alias("gaps")).groupBy("user_id")
    total = gaps.agg(F.max("gaps").alias("gaps")).agg(F.sum("gaps")).first()
    return int(total[0] or 0) if total else 0


def count_training_items_in_lists(rows: DataFrame, train: DataFrame) -> Check:
    """Count listed rows that recommend an item which the user already has. One join by (user, item)."""
    known = rows.join(train.select("user_id", "item_id"), ["user_id", "item_id"], "left_semi").count()
    return training_item_check(known)
