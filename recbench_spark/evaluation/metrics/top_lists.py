"""The lists of rankings beside the catalogue: what metrics of lists (`beyond_accuracy`) are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.evaluation.metrics.beyond_accuracy import Facts, overall_values
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.kernels.metrics.beyond_accuracy import POPULARITY


@dataclass(frozen=True)
class SplitCatalogue:
    """What list metrics know of a split; the numbers are counted when first asked for.

    items: item_id, n_train of every item.
    train_users: one row a user with training rows.
    features: vectors of the items, for diversity.
    """

    items: DataFrame
    train_users: DataFrame
    features: DotSource | None = None

    @cached_property
    def n_items(self) -> int:
        """Items of the catalogue."""
        return self.items.count()

    @cached_property
    def n_users(self) -> int:
        """Users with training rows; at least 1."""
        return max(self.train_users.count(), 1)

    def facts(self, names: Sequence[str]) -> Facts:
        """What a task needs to measure these metrics of each user."""
        return Facts(self.n_users if set(names) & set(POPULARITY) else 1, self.features)


def count_listed_items(
    rankings: DataFrame, catalogue: SplitCatalogue, threshold: float | None
) -> DataFrame:
    """One row a user with a list: how many training users have each item of it.

    Shuffles the (user, place) rows by user, one row a place; by item before, where the catalogue is
    too large to be broadcast. Items outside of the catalogue count as nobody's.

    Args:
        rankings: rows with `top_items`.
        catalogue: items with their training counts.
        threshold: relevance from which an item is relevant; None: above 0.

    Returns:
        user_id, part, user_key, n_relevant; counts and item_index (-1: not in the catalogue), arrays
        in the order of the list.
    """
    relevant = F.filter("relevance", lambda r: r > 0 if threshold is None else r >= threshold)
    user = ("user_id", "part", "user_key", "n_relevant")
    places = rankings.withColumn("n_relevant", F.size(relevant)).select(
        *user, F.posexplode("top_items").alias("place", "item_id")
    )
    known = catalogue.items.select("item_id", "n_train", "item_index")
    counted = places.join(known, "item_id", "left")
    found = (F.coalesce("n_train", F.lit(0)).cast("long"), F.coalesce("item_index", F.lit(-1)).cast("long"))
    entry = F.struct("place", found[0].alias("n_train"), found[1].alias("item_index"))
    lists = counted.groupBy(*user).agg(F.sort_array(F.collect_list(entry)).alias("entries"))
    return lists.select(
        *user,
        F.transform("entries", lambda e: e["n_train"]).alias("counts"),
        F.transform("entries", lambda e: e["item_index"]).alias("item_index"),
    )


def compute_overall(
    rankings: DataFrame, catalogue: SplitCatalogue, names: Sequence[str], ks: Sequence[int]
) -> DataFrame:
    """Coverage and Gini at each cut-off: part, metric, k, value, n (users with a list).

    coverage: share of the catalogue in at least one user's first k; blind to how often an item is
    shown: one list in a million is enough. gini: see `kernels.metrics.beyond_accuracy.gini`. Items
        outside of the
    catalogue do not count.

    One shuffle of (item, times shown at each k), combined on the map side; then how many items were
    shown how often, a few thousand rows at most for each cut-off.

    Args:
        rankings: rows with `top_items`.
        catalogue: the items.
        names: of OVERALL.
        ks: cut-offs.
    """
    n_items, wanted, cuts = max(catalogue.n_items, 1), tuple(names), tuple(ks)

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def measure(histogram: pa.Table) -> pa.Table:
        return overall_values(histogram, wanted, cuts, n_items)

    values = _histogram(rankings, catalogue.items, cuts).groupBy("part").applyInArrow(measure, _VALUES)
    users = rankings.groupBy("part").agg(F.count_if(F.size("top_items") > 0).alias("n"))
    return values.join(users, "part")


_VALUES = "part STRING, metric STRING, k INT, value DOUBLE"


def _histogram(rankings: DataFrame, items: DataFrame, ks: Sequence[int]) -> DataFrame:
    """part, place in `ks`, times: how often an item is listed, items: how many are so often."""
    places = rankings.select("part", F.posexplode("top_items").alias("place", "item_id"))
    shown = F.array(*(F.count_if(F.col("place") < k) for k in ks)).alias("shown")
    known = (
        places.groupBy("part", "item_id").agg(shown).join(items.select("item_id"), "item_id", "left_semi")
    )
    times = known.select("part", F.posexplode("shown").alias("c", "times"))
    return times.groupBy("part", "c", "times").agg(F.count("*").alias("items"))
