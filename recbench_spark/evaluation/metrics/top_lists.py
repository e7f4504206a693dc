"""Lists of rankings joined with the catalogue on Spark, as the metrics of `beyond_accuracy` need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.versions import change_groups
from recbench_spark.evaluation.metrics.beyond_accuracy import Facts, overall_values
from recbench_spark.evaluation.ranking.relevant_rows import is_relevant
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.kernels.metrics.beyond_accuracy import POPULARITY


@dataclass(frozen=True)
class SplitCatalogue:
    """The catalogue of a split for list metrics; its numbers are counted on first use.

    items: item_id, n_train of every item.
    train_users: one row per user with training rows.
    features: vectors of the items, for diversity.
    """

    items: DataFrame
    train_users: DataFrame
    features: DotSource | None = None

    @cached_property
    def n_items(self) -> int:
        """Return the number of items in the catalogue."""
        return self.items.count()

    @cached_property
    def n_users(self) -> int:
        """Return the number of users with training rows, at least 1."""
        return self.train_users.count()

    def facts(self, names: Sequence[str]) -> Facts:
        """Return the inputs of these metrics that tasks need."""
        return Facts(self.n_users if set(names) & set(POPULARITY) else 1, self.features)


def count_listed_items(
    rankings: DataFrame, catalogue: SplitCatalogue, threshold: float | None
) -> DataFrame:
    """Count the training users of each listed item: one row per user with a list.

    Shuffles one row per user and place by user, and before that by item where the catalogue is too large
    to broadcast. Items outside of the catalogue have no training users.

    Args:
        rankings: rows with `top_items`.
        catalogue: items with their training counts.
        threshold: relevance from which an item is relevant; None: above 0.

    Returns:
        user_id, part, user_key, n_relevant; counts and item_index (-1: not in the catalogue, -2: no item),
        arrays in the order of the list.
    """
    relevant = F.filter("relevance", lambda r: is_relevant(r, threshold))
    user = ("user_id", "part", "user_key", "n_relevant")
    places = rankings.withColumn("n_relevant", F.size(relevant)).select(
        *user, F.posexplode("top_items").alias("place", "item_id")
    )
    catalogue_items = catalogue.items.select("item_id", "n_train", "item_index")
    joined = places.join(catalogue_items, "item_id", "left")  # NULL: a place without an item
    numbers = (
        F.coalesce("n_train", F.when(F.col("item_id").isNull(), -1).otherwise(0)).cast("long"),
        F.coalesce("item_index", F.when(F.col("item_id").isNull(), -2).otherwise(-1)).cast("long"),
    )
    entry = F.struct("place", numbers[0].alias("n_train"), numbers[1].alias("item_index"))
    lists = joined.groupBy(*user).agg(F.sort_array(F.collect_list(entry)).alias("entries"))
    return lists.select(
        *user,
        F.transform("entries", lambda e: e["n_train"]).alias("counts"),
        F.transform("entries", lambda e: e["item_index"]).alias("item_index"),
    )


def compute_overall(
    rankings: DataFrame, catalogue: SplitCatalogue, names: Sequence[str], ks: Sequence[int]
) -> DataFrame:
    """Compute coverage and Gini at each cut-off: part, metric, k, value, n (users with a list).

    coverage: share of the catalogue in at least one user's first k. It ignores frequencies: one list in a
    million is enough. gini: see `kernels.metrics.beyond_accuracy.gini`. Items outside of the catalogue do
    not count.

    One shuffle of (item, lists at each k), combined on the map side; then one of the histogram of these
    numbers, with at most a few thousand rows per cut-off.

    Args:
        rankings: rows with `top_items`.
        catalogue: the items.
        names: names from OVERALL.
        ks: cut-offs.
    """
    n_items, metric_names, cuts = max(catalogue.n_items, 1), tuple(names), tuple(ks)

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def measure(histogram: pa.Table) -> pa.Table:
        return overall_values(histogram.column("part")[0].as_py(), histogram, metric_names, cuts, n_items)

    values = change_groups(_histogram(rankings, catalogue.items, cuts), ("part",), measure, _VALUES)
    users = rankings.groupBy("part").agg(F.count_if(F.size("top_items") > 0).alias("n"))
    nothing = [F.struct(F.lit(name).alias("metric"), F.lit(k).alias("k")) for name in names for k in ks]
    wanted = users.select("part", "n", F.inline(F.array(*nothing)))
    # Of empty lists coverage is 0, and Gini is not defined.
    value = F.when(F.col("metric") == "coverage", F.coalesce("value", F.lit(0.0))).otherwise(F.col("value"))
    return wanted.join(values, ["part", "metric", "k"], "left").withColumn("value", value)


_VALUES = "part STRING, metric STRING, k INT, value DOUBLE"


def _histogram(rankings: DataFrame, items: DataFrame, ks: Sequence[int]) -> DataFrame:
    """Count items by part, c (index in `ks`) and times (lists that an item is in)."""
    places = rankings.select("part", F.posexplode("top_items").alias("place", "item_id"))
    shown = F.array(*(F.count_if(F.col("place") < k) for k in ks)).alias("shown")
    in_catalogue = (
        places.groupBy("part", "item_id").agg(shown).join(items.select("item_id"), "item_id", "left_semi")
    )
    times = in_catalogue.select("part", F.posexplode("shown").alias("c", "times"))
    return times.groupBy("part", "c", "times").agg(F.count("*").alias("items"))
