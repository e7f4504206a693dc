"""Build a large catalogue on Spark: every item with its dense position and its popularity class."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.indexing import add_dense_index
from recbench_spark.protocol.item_counts import Catalogue
from recbench_spark.protocol.popularity import COLD, class_bounds
from recbench_spark.runtime.session import cache_frame


def id_sort_key(numeric: bool) -> Column:
    """Return the sort key of item ids in tie order: as numbers, or by UTF-8 bytes."""
    return F.col("item_id").cast("long") if numeric else F.col("item_id")


def build_catalogue(splits: DataFrame, numeric: bool) -> Catalogue:
    """Build one row per item: item_id, item_index, n_train, popularity.

    Spark shuffles one row per item twice (count, sort by range); the driver then holds the distinct
    training counts (at most sqrt(2 rows) of them).

    Args:
        splits: the labelled log.
        numeric: true if ids are ordered as numbers.
    """
    trained = F.sum(F.when(F.col("part") == "train", 1).otherwise(0)).cast("long")
    items = index_items(splits.groupBy("item_id").agg(trained.alias("n_train")), numeric)
    bounds = find_class_bounds(items)
    return Catalogue(items.withColumn("popularity", _popularity_class(bounds)), items.count(), bounds)


def index_items(items: DataFrame, numeric: bool) -> DataFrame:
    """Add item_index to items (item_id, each once), and cache them. One shuffle, a sort by range."""
    return cache_frame(add_dense_index(items, id_sort_key(numeric), "item_index"))


def find_class_bounds(items: DataFrame) -> tuple[int, int]:
    """Return the training counts from which an item is torso, and head: a third of the training rows each.

    Items of equal count share a class: the class of the middle of their rows, where all training rows
    are in the order from the rarest item to the most popular one.
    """
    histogram = items.where("n_train > 0").groupBy("n_train").count().orderBy("n_train").collect()
    return class_bounds([row["n_train"] for row in histogram], [row["count"] for row in histogram])


def _popularity_class(bounds: tuple[int, int]) -> Column:
    n = F.col("n_train")
    return F.when(n == 0, COLD).when(n < bounds[0], "tail").when(n < bounds[1], "torso").otherwise("head")
