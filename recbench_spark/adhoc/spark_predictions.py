"""Evaluation of predictions on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.adhoc.frame_outputs import conform_result
from recbench_spark.adhoc.options import make_bootstrap
from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import Bootstrap, Views, digest
from recbench_spark.data.external_inputs import convert_rows
from recbench_spark.errors import DataError
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.predictions import MetricRow
from recbench_spark.evaluation.ranking_counts import mark_few_users
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.schemas import METRICS, USER_METRICS
from recbench_spark.storage.spark_types import require, spark_schema


def evaluate_predictions(
    predictions: DataFrame,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    slice_by: str | None = None,
) -> Result:
    """Compute RMSE, MSE, NMSE, MAE, PE, AUC, log-loss, RIG, GAUC and calibration error of predictions.

    Slices `fpr`, `threshold` and `prediction_quantile` add partial AUC, the rates at thresholds, and
    log-loss, RIG and PE by quantile of the prediction. Log-loss clips probabilities to 2^-52 .. 1 - 2^-52,
    the same on both sides; GAUC weights each user's AUC by the user's positives. Values and errors keep 12
    digits at any scale and do not depend on partitions.

    Args:
        predictions: user_id, item_id, prediction, outcome (a rating, or 0 and 1).
        bootstrap: replicates, level and seed of the intervals.
        views: bins, thresholds and false-positive rates.
        slice_by: a column of few values; all numbers are computed again for the rows of each value.

    Raises:
        SchemaError: a column is missing. DataError: NULL or NaN values, with their number.
    """
    require(predictions, ["user_id", "item_id", "prediction", "outcome"], "predictions")
    rows = convert_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    if rows.isEmpty():
        raise DataError("predictions: no rows", "check the path")
    users = values.group_by_user(rows).cache()
    numbers, checks = values.value_metrics(users, rows, make_bootstrap(bootstrap), views or Views())
    n_users = users.count()
    checks.append(Check(f"{PART}: users", n_users, None, "info", "users with predictions"))
    checks += mark_few_users(PART, n_users)
    if slice_by is not None:
        labels, unlabelled = _read_labels(predictions, slice_by)
        checks.append(warn_above_zero(f"rows without {slice_by}", unlabelled, "in no slice"))
        for label in labels:
            part = predictions.where(F.col(f"`{slice_by}`").cast("string") == label)
            numbers += values.label_slice(_measure_rows(part, bootstrap, views), slice_by, label)
    schema = spark_schema(METRICS)
    records = [{"run_id": "", "part": PART, **row} for row in numbers]
    metrics = rows.sparkSession.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in records], schema
    )
    per_user = conform_result(values.user_values(users).withColumn("part", F.lit(PART)), USER_METRICS)
    truth = outcomes_hash(rows)
    return Result(metrics.drop("run_id"), per_user, None, checks, (rows, users), truth)


def _measure_rows(
    predictions: DataFrame, bootstrap: Bootstrap | Mapping[str, Any] | int | None, views: Views | None
) -> list[MetricRow]:
    """Compute rows of `metrics` of some predictions that have been checked."""
    rows = convert_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    users = values.group_by_user(rows).cache()
    numbers, _ = values.value_metrics(users, rows, make_bootstrap(bootstrap), views or Views())
    users.unpersist()
    rows.unpersist()
    return numbers


def _read_labels(predictions: DataFrame, name: str) -> tuple[list[str], int]:
    """Return the values of a column as text, in order, and the number of rows without one.

    Raises:
        SchemaError: no such column, or one of another type. DataError: too many labels.
    """
    require(predictions, [name], "predictions")
    if not isinstance(predictions.schema[name].dataType, T.StringType | T.IntegralType | T.BooleanType):
        raise values.slice_type_error(name)
    text = F.col(f"`{name}`").cast("string").alias("label")
    rows = predictions.select(text).distinct().limit(values.MAX_SLICES + 2).collect()
    labels = sorted((row.label for row in rows if row.label is not None), key=str.encode)
    values.refuse_many_slices(name, len(labels))
    return labels, predictions.where(F.col(f"`{name}`").isNull()).count()


def outcomes_hash(predictions: DataFrame) -> str:
    """Hash the rows user_id, item_id, outcome: the same for all predictions of these outcomes."""
    row = F.xxhash64("user_id", "item_id", "outcome").cast("decimal(38,0)")
    sums = predictions.agg(F.sum(row).alias("hashes"), F.count("*").alias("rows")).collect()[0]
    return digest(str(sums.hashes), sums.rows)
