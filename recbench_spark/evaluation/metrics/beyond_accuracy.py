"""What lists are like beside being right, from `rankings.top_items` and the catalogue.

Of each user: novelty, mean popularity, diversity. Of all lists together: coverage and Gini.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.kernels.arrays import Floats
from recbench_spark.kernels.metrics import beyond_accuracy
from recbench_spark.shared_files import flat

DIVERSITY = "diversity"
"""See `kernels.metrics.beyond_accuracy.intra_list_diversity`; needs vectors of the items."""

PER_USER = (*beyond_accuracy.POPULARITY, DIVERSITY)
"""List metrics with a value for each user."""

OVERALL = tuple(beyond_accuracy.OVERALL)
"""List metrics of all lists together."""

LIST_METRICS = (*OVERALL, *PER_USER)

AXES = ("candidates", "duplicates")
"""What list metrics depend on of a definition: what may stand in a list."""


@dataclass(frozen=True)
class Catalogue:
    """What list metrics know of a split; the numbers are counted when first asked for.

    items: item_id, n_train of every item.
    train_users: one row per user with training rows.
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
        return Facts(self.n_users if set(names) & set(beyond_accuracy.POPULARITY) else 1, self.features)


@dataclass(frozen=True)
class Facts:
    """What travels with a task: training users, and where the vectors of the items lie."""

    n_users: int
    features: DotSource | None


# ------------------------------------------------------------------------------- of each user


def listed(rankings: DataFrame, catalogue: Catalogue, threshold: float | None) -> DataFrame:
    """One row per user with a list: how many training users have each item of it.

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


def values_of(
    batch: pa.RecordBatch, names: Sequence[str], facts: Facts, ks: Sequence[int]
) -> dict[str, Floats]:
    """Each metric of the users in a batch of `listed`: float64 (u, c)."""
    offsets, counts = flat(batch.column("counts"))
    values = {}
    for name in names:
        if name == DIVERSITY:
            items, vectors = _listed_vectors(flat(batch.column("item_index"))[1], facts)
            values[name] = beyond_accuracy.intra_list_diversity(offsets, items, vectors, ks)
        else:
            values[name] = beyond_accuracy.POPULARITY[name](offsets, counts, facts.n_users, ks)
    return values


def _listed_vectors(items_n: npt.NDArray[np.int64], facts: Facts) -> tuple[npt.NDArray[np.int64], Floats]:
    """The vectors of the listed items alone, and the row of each item among them; -1 stays -1."""
    source = facts.features
    if source is None:
        raise ConfigError("diversity needs vectors of the items", "give features (--features PATH)")
    mapped = source.rows.arrays(source.build)["vectors"]
    known = np.unique(items_n[items_n >= 0])
    row_n = np.where(items_n >= 0, np.searchsorted(known, items_n), -1)
    return row_n, mapped[known].astype(np.float64)


# ------------------------------------------------------------------------------- of all lists


def overall(
    rankings: DataFrame, catalogue: Catalogue, names: Sequence[str], ks: Sequence[int]
) -> DataFrame:
    """Coverage and Gini at each cut-off: part, metric, k, value, n (users with a list).

    See `kernels.metrics.beyond_accuracy.OVERALL`. Items outside of the catalogue do not count.

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
        return _measure(histogram, wanted, cuts, n_items)

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


def _measure(histogram: pa.Table, names: Sequence[str], ks: Sequence[int], n_items: int) -> pa.Table:
    c, times, items = (histogram.column(name).to_numpy() for name in ("c", "times", "items"))
    rows = []
    for at, k in enumerate(ks):
        times_x, items_x = times[c == at], items[c == at]
        shown = times_x.tolist(), items_x.tolist(), n_items
        value = {name: beyond_accuracy.OVERALL[name](*shown) for name in names}
        rows += [(histogram.column("part")[0].as_py(), name, k, float(value[name])) for name in names]
    columns = zip(*rows, strict=True)
    kinds = (pa.string(), pa.string(), pa.int32(), pa.float64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=["part", "metric", "k", "value"])
