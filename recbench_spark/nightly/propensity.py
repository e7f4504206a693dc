"""Write propensities of items to `propensities`, of ratings to `rating_propensities`, and fitted power
laws."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Propensities
from recbench_spark.data.readers.tables import read_table
from recbench_spark.errors import DataError
from recbench_spark.kernels.estimators.power_law import PowerLaw, goodness
from recbench_spark.nightly.propensity_names import method_name
from recbench_spark.protocol import logistic
from recbench_spark.protocol import propensities as fitting
from recbench_spark.schemas import (
    CELL_PROPENSITIES,
    POWER_LAWS,
    PROPENSITIES,
    RATING_PROPENSITIES,
    Table,
)
from recbench_spark.storage.spark_types import spark_type
from recbench_spark.storage.store import Store

SEED = 42
"""Seed of the simulated laws behind the goodness of fit, and of the cells drawn for logistic regression."""


@dataclass(frozen=True)
class ExposureLog:
    """Rows that propensities are fitted to.

    Attributes:
        store: the warehouse.
        split_id: name of the rows in the tables.
        rows: the rows.
        items: the catalogue; None: the items that have rows.
        sample: ratings of items drawn at random, for naive Bayes.
    """

    store: Store
    split_id: str
    rows: DataFrame
    items: DataFrame | None = None
    sample: DataFrame | None = None


def write_propensities(
    exposed: ExposureLog, settings: Propensities, replicates: int = 0, *, cells: bool = False
) -> PowerLaw | None:
    """Fit and append propensities once for each name (`method_name`); return the fitted power law, if any.

    Args:
        exposed: the log.
        settings: method, scale, clipping.
        replicates: simulated laws behind the goodness of fit; 0: none.
        cells: with logistic regression also write a propensity for every user and item.
    """
    if settings.method == "naive_bayes":
        _append_rows(exposed, settings, RATING_PROPENSITIES, _fit_ratings(exposed))
        return None
    if settings.method == "given":
        propensities = read_table(
            exposed.store.spark, str(settings.path), ["item_id", "propensity"], "propensities"
        )
        _append_rows(exposed, settings, PROPENSITIES, propensities)
        return None
    if settings.method == "logistic_regression":
        _fit_features(exposed, settings, cells)
        return None
    counts = fitting.count_items(exposed.rows, exposed.items).cache()
    observed = fitting.make_histogram(counts, exposed.rows)
    fitted = fitting.fit_propensities(observed, settings)
    _append_rows(exposed, settings, PROPENSITIES, fitting.item_propensities(counts, observed, fitted))
    counts.unpersist()
    if fitted.law:
        _append_rows(exposed, settings, POWER_LAWS, _law_row(exposed, observed, fitted, replicates))
    return fitted.law


def _append_rows(exposed: ExposureLog, settings: Propensities, table: Table, rows: DataFrame) -> None:
    name = method_name(exposed.store, settings)
    named_rows = rows.withColumns({"split_id": F.lit(exposed.split_id), "method": F.lit(name)})
    exposed.store.append(named_rows, table, once=f"{exposed.split_id}/{name}")


def _fit_ratings(exposed: ExposureLog) -> DataFrame:
    if exposed.sample is None or exposed.sample.isEmpty():
        raise DataError("naive Bayes needs ratings of items drawn at random", "a log with an open loop")
    items = exposed.rows.select("item_id") if exposed.items is None else exposed.items.select("item_id")
    return fitting.rating_propensities(exposed.rows, exposed.sample, items.distinct().count())


def _fit_features(exposed: ExposureLog, settings: Propensities, cells: bool) -> None:
    """Fit over the catalogue; without one over the items that have features, else over the items shown."""
    spark = exposed.store.spark
    tables = {
        key: read_table(spark, path, [key], "features") if path else None
        for key, path in (("user_id", settings.user_features), ("item_id", settings.item_features))
    }
    catalogue = exposed.items if exposed.items is not None else tables["item_id"]
    ids = {"user_id": exposed.rows, "item_id": exposed.rows if catalogue is None else catalogue}
    users, items = (
        logistic.join_features(rows.select(key).distinct(), key, tables[key], f"features of {key}")
        for key, rows in ids.items()
    )
    odds = logistic.fit_odds(exposed.rows, users, items, settings.rate, SEED)
    frames = [(logistic.item_propensities(odds, users, items), PROPENSITIES)]
    if cells:
        frames.append((logistic.cell_propensities(odds, users, items), CELL_PROPENSITIES))
    for rows, table in frames:
        raised = F.greatest(F.col("propensity"), F.lit(settings.floor or 0.0))
        _append_rows(exposed, settings, table, rows.withColumn("propensity", raised))


def _law_row(
    exposed: ExposureLog, observed: fitting.Histogram, fitted: fitting.FittedPropensities, replicates: int
) -> DataFrame:
    assert fitted.law is not None
    p = goodness(observed.count_x, observed.items_x, fitted.law, replicates, SEED) if replicates else None
    facts: dict[str, Any] = {
        **asdict(fitted.law),
        "fitted_by": fitted.law.method,
        "p": p,
        "replicates": replicates,
        "interactions": observed.interactions,
        "users": observed.users,
        "factor": fitted.factor,
        "raised": fitted.raised,
        "lowered": fitted.lowered,
    }
    kinds = {column.name: spark_type(column.type) for column in POWER_LAWS.columns if column.name in facts}
    schema = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    return exposed.store.spark.createDataFrame([tuple(facts[name] for name in kinds)], schema)
