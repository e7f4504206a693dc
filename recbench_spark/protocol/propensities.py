"""Estimate exposure propensities of items from how often a log shows them, for a log of any size.

A propensity is a function of an item's count. The histogram of counts, which has at most sqrt(2 n) rows for
n interactions, goes to the driver, is fitted there, and returns to the tasks as a small table by count.
Axes: x different counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Propensities
from recbench_spark.engine.versions import collect_arrow, make_frame
from recbench_spark.errors import DataError
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.estimators import power_law, propensities
from recbench_spark.kernels.estimators.power_law import PowerLaw


@dataclass(frozen=True)
class Histogram:
    """Histogram of item counts: counts ascending, number of items with each count, users of the log."""

    count_x: Ints
    items_x: Ints
    users: int

    @property
    def interactions(self) -> int:
        """Return the number of rows of the log."""
        return int(self.count_x @ self.items_x)


@dataclass(frozen=True)
class FittedPropensities:
    """Propensity of each different count, fitted law, scale factor, and numbers of clipped items."""

    propensity_x: Floats
    law: PowerLaw | None
    factor: float
    raised: int
    lowered: int


def count_items(rows: DataFrame, items: DataFrame | None = None) -> DataFrame:
    """Return item_id, n: the rows of each item. One shuffle of partial counts.

    Args:
        rows: the interactions to count.
        items: item_id of the catalogue, where items without a row count 0.
    """
    counts = rows.groupBy("item_id").agg(F.count("*").alias("n"))
    if items is None:
        return counts
    joined = items.select("item_id").join(counts, "item_id", "left")
    return joined.select("item_id", F.coalesce("n", F.lit(0)).alias("n"))


def make_histogram(counts: DataFrame, rows: DataFrame) -> Histogram:
    """Return the histogram of `count_items`; one row per different count is collected."""
    counted = collect_arrow(counts.groupBy("n").agg(F.count("*").alias("items")).orderBy("n"))
    users = rows.agg(F.countDistinct("user_id")).collect()[0][0]
    count_x, items_x = (counted.column(name).to_numpy().astype(np.int64) for name in ("n", "items"))
    if not users:
        raise DataError("no interactions to fit propensities to", "check the part and the log")
    return Histogram(count_x, items_x, int(users))


def fit_propensities(observed: Histogram, settings: Propensities) -> FittedPropensities:
    """Compute the propensity of each count: a fitted power law or a share of users, scaled, then clipped.

    Raises:
        DataError: a power law is fitted to fewer than two different counts, or the counts follow none.
    """
    law = None
    if settings.method in propensities.POWERS:
        law = power_law.fit(observed.count_x, observed.items_x, settings.law)
        law = replace(law, against=power_law.alternatives(observed.count_x, observed.items_x, law))
        power_law.check(law)
        with np.errstate(over="ignore"):
            value_x = propensities.POWERS[settings.method](observed.count_x, law)
        if not np.isfinite(value_x).all():
            raise power_law.no_law(law, "propensities are too large for numbers")
    else:
        value_x = propensities.relative_frequency(observed.count_x, observed.users)
    per_user = observed.interactions / observed.users
    factor = propensities.scale(value_x, observed.items_x, settings.scale, per_user)
    value_x = value_x * factor
    if settings.floor is None:
        return FittedPropensities(value_x, law, factor, 0, 0)
    clipped = propensities.clip(value_x, observed.items_x, settings.floor)
    return FittedPropensities(clipped.propensity, law, factor, clipped.raised, clipped.lowered)


def item_propensities(counts: DataFrame, observed: Histogram, fitted: FittedPropensities) -> DataFrame:
    """Return item_id, propensity by a join with one row per different count; no items are shuffled."""
    table = pa.table({"n": observed.count_x, "propensity": fitted.propensity_x})
    by_count = make_frame(counts.sparkSession, table)
    return counts.join(F.broadcast(by_count), "n").select("item_id", "propensity")


def rating_propensities(rows: DataFrame, sample: DataFrame, items: int) -> DataFrame:
    """Return rating, propensity by naive Bayes (see the kernel): a row for each rating of the log.

    Args:
        rows: the log, with the ratings of exposed cells.
        sample: rows with ratings of cells drawn uniformly.
        items: number of items of the catalogue; the cells are users of the log x items.
    """
    logged, drawn = (collect_arrow(part.groupBy("rating").count()) for part in (rows, sample))
    times = dict(zip(*(drawn.column(name).to_pylist() for name in ("rating", "count")), strict=True))
    rating_r = logged.column("rating").to_numpy()
    sample_r = np.array([times.get(rating, 0) for rating in rating_r.tolist()])
    users = rows.agg(F.countDistinct("user_id")).collect()[0][0]
    cells = users * items
    propensity_r = propensities.naive_bayes(logged.column("count").to_numpy(), sample_r, cells)
    is_known = ~np.isnan(propensity_r)
    table = pa.table({"rating": rating_r[is_known], "propensity": propensity_r[is_known]})
    return make_frame(rows.sparkSession, table)
