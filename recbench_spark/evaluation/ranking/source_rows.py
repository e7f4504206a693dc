"""Rows of a model's catalogue, mapped by workers (`sources`), as frames of Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.evaluation.ranking.known_items import find_shared_items
from recbench_spark.schemas import ITEMS
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.shared_rows import share_rows
from recbench_spark.storage.warehouse import WarehouseTables


def vector_rows(items: DataFrame, vectors: DataFrame) -> DataFrame:
    """Return the catalogue with each item's vector and bias, NULL where the model has none.

    Args:
        items: item_id, item_index.
        vectors: item_id, vector, bias.
    """
    return items.select("item_id", "item_index").join(
        vectors.select("item_id", "vector", "bias"), "item_id", "left"
    )


def neighbour_rows(items: DataFrame, similarities: DataFrame, means: DataFrame | None = None) -> DataFrame:
    """Return the catalogue with the items whose scores each item raises, the weights, and its mean.

    Items without training rows are not scored.

    Args:
        items: item_id, item_index, n_train.
        similarities: item_id, neighbour_id, weight.
        means: item_id, mean: the value that entries of a history are compared with (None: 0).
    """
    index = items.select("item_id", "item_index")
    known = items.select("item_id", "item_index", (F.col("n_train") > 0).alias("scored"))
    centre = known.withColumn("mean", F.lit(0.0)) if means is None else known.join(means, "item_id", "left")
    pairs = similarities.join(index, "item_id").withColumnRenamed("item_index", "item")
    entry = F.struct("item", "weight")
    by_neighbour = pairs.groupBy(F.col("neighbour_id").alias("item_id")).agg(
        F.sort_array(F.collect_list(entry)).alias("entries")
    )
    joined = centre.join(by_neighbour, "item_id", "left")
    entries = F.coalesce("entries", F.array().cast("array<struct<item:int,weight:double>>"))
    return joined.select(
        "item_id",
        "item_index",
        "scored",
        entries["item"].alias("speaks_for"),
        entries["weight"].alias("weights"),
        F.coalesce("mean", F.lit(0.0)).alias("mean"),
    )


def share_items(store: WarehouseTables, split_id: str) -> SharedRows:
    """Share a split's item_id, item_index and n_train with workers.

    They read the table's files, or a copy in scratch where Spark must read it.
    """
    shared = find_shared_items(store, split_id)
    if shared is not None:
        return shared
    items = store.read_partition(ITEMS, "split_id", split_id)
    return share_rows(store.scratch, items.select("item_id", "item_index", "n_train"))
