"""Put users' rows in the order of time, for models that read a history."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import DataError


class OrderFacts(NamedTuple):
    """OrderFacts say how well times order the items of users.

    Attributes:
        users: users with a history.
        tied: users with several items of their last time, whose order is that of ids.
        still: users with several items, all of one time.
        longer: users with more items than a model reads.
    """

    users: int
    tied: int
    still: int
    longer: int


def order_items(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Return each user's items from the oldest to the newest.

    Items of one time are in the order of `item_index`, as ties of splits and of rankings are: so the order
    is a function of the rows. One shuffle of the rows by user; a task holds the rows of one user at a time.

    Args:
        rows: user_id, item_id, event_time.
        items: item_id, item_index.

    Returns:
        user_id, items (item_index), times (microseconds).
    """
    row = F.struct(F.col("event_time").alias("time"), F.col("item_index").alias("item"))
    indexed = rows.join(items.select("item_id", "item_index"), "item_id")
    users = indexed.groupBy("user_id").agg(F.sort_array(F.collect_list(row)).alias("rows"))
    return users.select("user_id", F.col("rows.item").alias("items"), F.col("rows.time").alias("times"))


def require_times(rows: DataFrame, model: str, kind: str) -> None:
    """Check that each row has a time.

    Raises:
        DataError: a row has none.
    """
    (counts,) = rows.agg(F.count("*").alias("rows"), F.count("event_time").alias("timed")).collect()
    if counts.timed < counts.rows:
        raise DataError(
            f"model {model}: kind '{kind}' reads histories in the order of time, and "
            f"{counts.rows - counts.timed:,} of {counts.rows:,} rows have no event_time",
            "map dataset.columns.event_time, or use a kind that needs no order",
        )


def count_order(sequences: DataFrame, memory: int) -> OrderFacts:
    """Count users by the order of their items; the driver gets four numbers."""
    several = F.size("items") > 1
    last = F.element_at("times", -1)
    (counts,) = sequences.agg(
        F.count("*").alias("users"),
        F.count_if(several & (F.element_at("times", -2) == last)).alias("tied"),
        F.count_if(several & (F.element_at("times", 1) == last)).alias("still"),
        F.count_if(F.size("items") > memory).alias("longer"),
    ).collect()
    return OrderFacts(counts.users, counts.tied, counts.still, counts.longer)
