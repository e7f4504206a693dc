"""Exposure of the truth items: the propensity, stratum and popularity of each item.

Workers of a host share files with the propensities of all items, so that truth items get theirs by item
index, without a shuffle. Strata, and all but the most popular items, then become slices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import EXPOSURE_SLICES
from recbench_spark.config import Strata as Wanted
from recbench_spark.engine.versions import collect_arrow, make_function
from recbench_spark.errors import DataError
from recbench_spark.evaluation.ranking.batches import split_by_part
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.estimators import strata
from recbench_spark.kernels.estimators.exposure import Diagnostics, diagnostics
from recbench_spark.kernels.estimators.strata import StratumEdges
from recbench_spark.kernels.ranking.rankings import mark_relevant
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import Arrays, SharedRows, flatten_lists

# ------------------------------------------------------------------------------- items


@dataclass(frozen=True)
class Chances:
    """Every item of the catalogue with its propensity (its chance to be shown), and their range.

    rows: item_index, n_train, propensity (all above 0); items: their number; low, high: the smallest and
    largest propensity; unknown: number of items that had none, or 0.
    """

    rows: DataFrame
    items: int
    low: float
    high: float
    unknown: int


def item_chances(items: DataFrame, propensities: DataFrame) -> Chances:
    """Assign a propensity to each item; items without one, or with 0, get the smallest of the others.

    Shuffles both by item where they are too large to broadcast; the driver receives one row.

    Args:
        items: item_id, item_index, n_train of the catalogue.
        propensities: item_id, propensity.

    Raises:
        DataError: propensities below 0, NaN or infinite, none above 0, or an item twice.
    """
    known = propensities.select("item_id", "propensity")
    joined = items.select("item_id", "item_index", "n_train").join(known, "item_id", "left")
    value = F.col("propensity")
    wrong = F.isnan(value) | (value < 0) | (value == float("inf"))
    (summary,) = joined.agg(
        F.min(F.when(value > 0, value)).alias("low"),
        F.max(value).alias("high"),
        F.count_if(value.isNull() | (value == 0)).alias("unknown"),
        F.count_if(wrong).alias("wrong"),
        F.count("*").alias("items"),
        (F.count("*") - F.count_distinct("item_index")).alias("twice"),
    ).collect()
    if summary.wrong or summary.twice or summary.low is None or math.isinf(1 / summary.low):
        raise DataError(
            f"propensities: {summary.wrong} below 0 or not a number, {summary.twice} items twice, "
            f"{summary.unknown} without one",
            "one finite number above 0 per item",
        )
    filled = F.when(value > 0, value).otherwise(summary.low).alias("propensity")
    rows = joined.select("item_index", "n_train", filled)
    return Chances(rows, summary.items, summary.low, summary.high, summary.unknown)


def cut_strata(chances: Chances, wanted: Wanted) -> tuple[StratumEdges, ...]:
    """Cut strata for each requested number of strata.

    Shuffles, and sends to the driver, one row per distinct propensity of 11 significant bits.

    Raises:
        DataError: all items have the same propensity.
    """
    counts = chances.rows.groupBy(_round_column("propensity").alias("propensity")).agg(
        F.count("*").alias("items"), F.sum("n_train").alias("n_train")
    )
    table = collect_arrow(counts.orderBy("propensity"))
    value_x, items_x, mass_x = (
        table.column(name).to_numpy().copy() for name in ("propensity", "items", "n_train")
    )
    if wanted.kind == "equal_width":  # the edges depend on the smallest and largest value alone
        value_x[0], value_x[-1] = chances.low, chances.high
    return tuple(strata.cut(wanted.kind, n, value_x, items_x, mass_x) for n in wanted.n)


def _round_column(name: str) -> Any:
    return make_function(_round_values, "double")(name)


def _round_values(values: pa.Array) -> pa.Array:
    return pa.array(strata.round_propensities(values.to_numpy(zero_copy_only=False)))


def popularity_threshold(rows: DataFrame, share: float) -> int | None:
    """Return the training count from which an item belongs to the most popular share; None for share 0.

    Items with equal counts stay together, so the share can be larger. One row per distinct count is
    shuffled.

    Args:
        rows: n_train of every item.
        share: share of the items, rounded up.
    """
    if share == 0:
        return None
    counts = collect_arrow(rows.groupBy("n_train").count().orderBy(F.col("n_train").desc()))
    items_x = np.cumsum(counts.column("count").to_numpy())
    place = int(np.searchsorted(items_x, math.ceil(share * items_x[-1])))
    return int(counts.column("n_train")[place].as_py())


# ------------------------------------------------------------------------------- truth items


@dataclass(frozen=True)
class ExposedItems:
    """Exposure of all items, as tasks read it.

    rows: those of `Chances`; strata: their edges (labels Q1, Q2 ...); popular_from: training count from
    which an item is one of the most popular.
    """

    rows: SharedRows
    n_items: int
    strata: StratumEdges | None
    popular_from: int | None

    def arrays(self) -> Arrays:
        """Return propensity and n_train by item index: 16 bytes per item, one copy per host."""
        return self.rows.arrays(partial(_save, self.n_items))


def _save(n_items: int, rows: ds.Dataset, folder: Path) -> None:
    propensity = shared_arrays.create_array(folder, "propensity", (n_items,), np.float64)
    n_train = shared_arrays.create_array(folder, "n_train", (n_items,), np.int64)
    for batch in rows.to_batches():
        index = batch.column("item_index").to_numpy()
        propensity[index] = batch.column("propensity").to_numpy()
        n_train[index] = batch.column("n_train").to_numpy()


_TRUTH_EXPOSURE = "STRUCT<propensity: ARRAY<DOUBLE>, stratum: ARRAY<STRING>, most_popular: ARRAY<STRING>>"


def add_exposure(users: DataFrame, exposed: ExposedItems) -> DataFrame:
    """Add `propensity` of the truth, and its stratum and popularity in `slices`. No shuffle.

    Slice `stratum` is Q1, Q2 ... in ascending order of propensity; `most_popular` is `only` for the most
    popular items and `without` for all others.

    Args:
        users: rows of `select_part_users`.
        exposed: exposure of all items.
    """

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def truth_exposure(items: pa.Array) -> pa.Array:
        return _truth_exposure(exposed, items)

    udf = make_function(truth_exposure, _TRUTH_EXPOSURE)
    exposed_users = users.withColumn("_shown", udf("items"))
    available = {"stratum": exposed.strata is not None, "most_popular": exposed.popular_from is not None}
    keys = [key for key in EXPOSURE_SLICES if available[key]]
    labels = [entry for key in keys for entry in (F.lit(key), F.col(f"_shown.{key}"))]
    given_slices = F.coalesce("slices", F.create_map().cast("map<string,array<string>>"))
    slices = F.map_concat(given_slices, F.create_map(*labels)) if labels else F.col("slices")
    return exposed_users.withColumns({"propensity": F.col("_shown.propensity"), "slices": slices}).drop(
        "_shown"
    )


def _truth_exposure(exposed: ExposedItems, items: pa.Array) -> pa.Array:
    arrays = exposed.arrays()
    offsets, item_p = flatten_lists(items)
    propensity = arrays["propensity"][item_p]
    stratum = np.zeros(len(item_p), dtype=np.int64)
    labels = ["Q1"]
    if exposed.strata:
        stratum, labels = exposed.strata.assign(propensity), exposed.strata.labels
    popular = arrays["n_train"][item_p] >= (exposed.popular_from or 0)
    values = {
        "propensity": pa.array(propensity),
        "stratum": pa.array(np.array(labels, dtype=object)[stratum], pa.string()),
        "most_popular": pa.array(np.where(popular, "only", "without").astype(object), pa.string()),
    }
    bounds = pa.array(offsets, pa.int32())
    lists = [pa.ListArray.from_arrays(bounds, column) for column in values.values()]
    return pa.StructArray.from_arrays(lists, list(values))


# ------------------------------------------------------------------------------- weights of a part


@dataclass(frozen=True)
class Weights:
    """Weights 1 / propensity of the truth of a part: bounds, and a histogram over its relevant items.

    longest: most truth items of a user; largest: largest weight; grade: largest absolute relevance.
    weight_x, rows_x: distinct weights, rounded up to 11 bits, and the number of relevant items with each
    """

    longest: int
    largest: float
    grade: float
    weight_x: Floats
    rows_x: Ints

    def diagnostics(self, clip: float = math.inf) -> Diagnostics:
        """Return diagnostics of an estimate with these weights, each at most `clip`."""
        return diagnostics(np.minimum(self.weight_x, clip), self.rows_x)


WEIGHTS = "part STRING, weight DOUBLE, n LONG, longest LONG, largest DOUBLE, grade DOUBLE"


def count_truth_weights(users: DataFrame, threshold: float | None) -> dict[str, Weights]:
    """Count the weights of each part. One row per task and distinct weight is shuffled.

    Args:
        users: part, relevance, propensity of each user.
        threshold: relevance from which an item is relevant; None: above 0.
    """
    narrow = users.select("part", "relevance", "propensity")
    rows = narrow.mapInArrow(partial(_task_weights, threshold), WEIGHTS)
    summed = rows.groupBy("part", "weight").agg(
        F.sum("n").alias("n"), *(F.max(name).alias(name) for name in ("longest", "largest", "grade"))
    )
    table = summed.orderBy("part", "weight").toPandas()
    return {
        str(part): Weights(
            int(part_rows.longest.max()),
            float(part_rows.largest.max()),
            float(part_rows.grade.max()),
            part_rows.weight.to_numpy()[1:],
            part_rows.n.to_numpy()[1:],
        )
        for part, part_rows in table.groupby("part")
    }


def _task_weights(threshold: float | None, batches: Batches) -> Batches:
    for batch in batches:
        for part, users in split_by_part(batch):
            yield _part_weights(part, users, threshold)


def _part_weights(part: str, users: pa.RecordBatch, threshold: float | None) -> pa.RecordBatch:
    """Build the histogram of some users, after a row of weight 0 with the bounds."""
    offsets, relevance = flatten_lists(users.column("relevance"))
    weight_p = strata.round_propensities(1.0 / flatten_lists(users.column("propensity"))[1])
    weight_x, rows_x = np.unique(weight_p[mark_relevant(relevance, threshold)], return_counts=True)
    bounds = {
        "longest": int(np.diff(offsets).max(initial=0)),
        "largest": float(weight_p.max(initial=0.0)),
        "grade": float(np.abs(relevance).max(initial=0.0)),
    }
    n = 1 + len(weight_x)
    columns = {
        "part": pa.repeat(pa.scalar(part), n),
        "weight": pa.array(np.concatenate([[0.0], weight_x])),
        "n": pa.array(np.concatenate([[0], rows_x]).astype(np.int64)),
        **{name: pa.array([bound] * n) for name, bound in bounds.items()},
    }
    return pa.RecordBatch.from_pydict(columns)
