"""User blocks: one row per user with training and held-out items as arrays, built once for all models."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.schemas import HELD_OUT
from recbench_spark.storage.spark_types import spark_type

Labels = dict[str, Column | None]
"""Slice key -> label of a row of the log joined with its item; None: warm or cold, by training rows."""

HISTORY = ("train", "given")
"""Parts that are a user's history: models see them, and they are never ranked. Models train on `train`."""


def build_user_blocks(
    splits: DataFrame, items: DataFrame, parts: Sequence[str], labels: Labels
) -> DataFrame:
    """Group the labelled log into one row per user.

    Shuffles: the log by item (none where the catalogue is small enough to broadcast), then by user.
    A task holds the rows of one user at a time.

    Args:
        splits: labelled log of one split.
        items: its catalogue (item_id, item_index, popularity ...).
        parts: held-out parts to keep.
        labels: slice labels of a row, over the columns of the log and of the catalogue.

    Returns:
        user_id, user_key, train_items, train_ratings (by item_index ascending), held_out (part ->
        item_ids, items, relevance, slices, by item_index ascending).
    """
    catalogue = items.select("item_id", "item_index", "n_train", "popularity")
    row = F.struct(
        F.col("item_index").alias("item"),
        F.col("item_id").alias("id"),
        F.col("rating").alias("rating"),
        "part",
        F.array(*(_or_null(label) for label in labels.values())).cast("array<string>").alias("labels"),
    )
    users = splits.join(catalogue, "item_id").groupBy("user_id")
    blocks = users.agg(F.sort_array(F.collect_list(row)).alias("rows"))
    known = F.filter("rows", lambda r: r["part"].isin(*HISTORY))
    cold = ~F.exists("rows", lambda r: r["part"] == "train")
    return blocks.select(
        "user_id",
        F.xxhash64("user_id").alias("user_key"),
        F.transform(known, lambda r: r["item"]).alias("train_items"),
        F.transform(known, lambda r: r["rating"]).alias("train_ratings"),
        _truth_by_part(parts, labels, cold).alias("held_out"),
    )


def _or_null(label: Column | None) -> Column:
    return F.lit(None) if label is None else label


def _truth_by_part(parts: Sequence[str], labels: Labels, cold: Column) -> Column:
    """Map each part to its truth, without parts in which the user has none."""
    entries = F.array(*(F.struct(F.lit(part), _truth(part, labels, cold)) for part in parts))
    return F.map_from_entries(F.filter(entries, lambda e: F.size(e["col2"]["items"]) > 0))


def _truth(part: str, labels: Labels, cold: Column) -> Column:
    rows = F.filter("rows", lambda r: r["part"] == part)
    values = [
        F.transform(rows, lambda _: F.when(cold, "cold").otherwise("warm"))
        if label is None
        else _labels(rows, n)
        for n, label in enumerate(labels.values())
    ]
    keys = F.array(*(F.lit(key) for key in labels)).cast("array<string>")
    return F.struct(
        F.transform(rows, lambda r: r["id"]).alias("item_ids"),
        F.transform(rows, lambda r: r["item"]).alias("items"),
        F.transform(rows, lambda r: r["rating"]).alias("relevance"),
        F.map_from_arrays(keys, F.array(*values).cast("array<array<string>>")).alias("slices"),
    ).cast(spark_type(HELD_OUT))


def _labels(rows: Column, n: int) -> Column:
    return F.transform(rows, lambda r: r["labels"][n])
