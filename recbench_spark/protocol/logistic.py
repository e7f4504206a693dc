"""Fit P(shown | features of the user and the item) by logistic regression over the cells of a log.

Positives are the log's cells. Each other cell is drawn by hash with probability `rate`, and the
intercept is lowered by -ln(rate), as if all cells were used (King and Zeng 2001, "Logistic regression in
rare events data", section 4.1; used for ratings by Schnabel et al. 2016, section 5.2). Spark MLlib fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.randomness import uniform
from recbench_spark.storage.spark_types import require

STEP = 2.0**-12
"""Step to which the users' part of the log-odds is rounded: an error of at most 0.013 % of a propensity."""


@dataclass(frozen=True)
class Odds:
    """Log-odds that a cell is shown: intercept + users @ features + items @ features."""

    intercept: float
    users: tuple[float, ...]
    items: tuple[float, ...]


def join_features(ids: DataFrame, key: str, table: DataFrame | None, what: str) -> DataFrame:
    """Return key, features: each id with all other columns of its row as numbers; empty without a table.

    Raises:
        SchemaError: the table has no other column.
        DataError: an id has no row or two, or a feature is not a number.
    """
    if table is None:
        return ids.select(key, F.array().cast("array<double>").alias("features"))
    require(table, [key], what)
    names = [name for name in table.columns if name != key]
    if not names:
        raise SchemaError(
            f"{what} has no column beside {key}", "give one number per feature; write categories as 0 and 1"
        )
    vector = F.array(*(try_cast(F.col(name), "double") for name in names)).alias("features")
    rows = table.select(F.col(key).cast("string").alias(key), vector)
    joined = ids.select(key).join(rows, key, "left")
    hole = F.col("features").isNull() | F.exists("features", lambda x: x.isNull() | F.isnan(x))
    (counts,) = joined.agg(F.count("*").alias("rows"), F.count_if(hole).alias("holes")).collect()
    if counts.holes:
        raise DataError(
            f"{what}: {counts.holes} ids of {key} without all features", "give one row of numbers per id"
        )
    if counts.rows > ids.count():
        raise DataError(f"{what}: two rows of one {key}", "one row each")
    return joined


def fit_odds(rows: DataFrame, users: DataFrame, items: DataFrame, rate: float, seed: int) -> Odds:
    """Fit the log-odds that a cell is in the log.

    Each cell costs one hash. Positives and drawn cells are shuffled once by cell, to drop drawn ones that
    are positives, and cached by Spark while MLlib passes over them.

    Args:
        rows: user_id, item_id of the log.
        users: user_id, features.
        items: item_id, features.
        rate: share of the cells outside the log that is drawn.
        seed: the seed of the draw.

    Raises:
        DataError: the log has no cell, or no cell outside it was drawn.
    """
    # Imported here, because it takes half a second to load in every process of a night.
    from pyspark.ml.classification import LogisticRegression  # noqa: PLC0415

    examples = _make_examples(rows, users, items, rate, seed).cache()
    counts = {row.label: row["count"] for row in examples.groupBy("label").count().collect()}
    if len(counts) < 2:
        raise DataError(
            f"logistic regression of {counts.get(1.0, 0)} cells shown and {counts.get(0.0, 0)} not shown",
            "it needs both; draw more",
        )
    # The fit must converge, because estimators divide by the propensities.
    model = LogisticRegression(maxIter=500, tol=1e-10, regParam=0.0).fit(examples)
    examples.unpersist()
    weights = [float(x) for x in model.coefficients.toArray()]
    n_users = len(users.first()["features"])  # type: ignore[index]
    return Odds(model.intercept + math.log(rate), tuple(weights[:n_users]), tuple(weights[n_users:]))


def _make_examples(
    rows: DataFrame, users: DataFrame, items: DataFrame, rate: float, seed: int
) -> DataFrame:
    from pyspark.ml.functions import array_to_vector  # noqa: PLC0415

    pairs = ["user_id", "item_id"]
    people, things = (
        side.withColumnRenamed("features", name) for side, name in ((users, "of_user"), (items, "of_item"))
    )
    shown = rows.select(*pairs).distinct()
    drawn = people.crossJoin(things).where(uniform(*pairs, seed=seed) < rate)
    others = drawn.join(shown, pairs, "left_anti").withColumn("label", F.lit(0.0))
    positives = shown.join(people, "user_id").join(things, "item_id")
    both = others.unionByName(positives.withColumn("label", F.lit(1.0)))
    return both.select("label", array_to_vector(F.concat("of_user", "of_item")).alias("features"))


def item_propensities(odds: Odds, users: DataFrame, items: DataFrame) -> DataFrame:
    """Return item_id, propensity: the mean over users of the probability that the item is shown to them.

    Users are grouped by their part of the log-odds, rounded to STEP. The few thousand different values are
    broadcast, for any number of users.
    """
    step = F.round(_dot("features", odds.users) / STEP).alias("step")
    groups = users.select(step).groupBy("step").agg(F.count("*").alias("users"))
    logit = F.lit(odds.intercept) + F.col("step") * STEP + _dot("features", odds.items)
    chance = 1 / (1 + F.exp(-logit))
    cells = items.crossJoin(F.broadcast(groups))
    mean = F.sum(chance * F.col("users")) / F.sum("users")
    return cells.groupBy("item_id").agg(mean.alias("propensity"))


def cell_propensities(odds: Odds, users: DataFrame, items: DataFrame) -> DataFrame:
    """Return user_id, item_id, propensity of every cell: as many rows as users x items. No shuffle."""
    people = users.select("user_id", _dot("features", odds.users).alias("of_user"))
    things = items.select("item_id", _dot("features", odds.items).alias("of_item"))
    logit = F.lit(odds.intercept) + F.col("of_user") + F.col("of_item")
    cells = people.crossJoin(things)
    return cells.select("user_id", "item_id", (1 / (1 + F.exp(-logit))).alias("propensity"))


def _dot(column: str, weights: Sequence[float]) -> Column:
    total = F.lit(0.0)
    for n, weight in enumerate(weights):
        total = total + F.col(column)[n] * weight
    return total
