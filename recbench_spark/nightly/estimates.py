"""Estimate metrics from rating matrices and from logged rounds: join the inputs, check them, estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap
from recbench_spark.data.external_inputs import convert_numbers, convert_rows
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.evaluation.estimators.bandit_feedback import (
    HEAVY_WEIGHT_SHARE,
    check_rounds,
    estimate_policy_values,
)
from recbench_spark.evaluation.estimators.rating_matrix import compute_matrix_metrics
from recbench_spark.evaluation.metrics.predictions import MetricRow
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.kernels.estimators.exposure import EstimatorSettings
from recbench_spark.schemas import METRICS, USER_METRICS
from recbench_spark.storage.spark_types import require, spark_schema

CELL = ("user_id", "item_id")

# ------------------------------------------------------------------------------- rating matrices


def estimate_matrix(
    matrix: DataFrame,
    log: DataFrame | None,
    propensities: DataFrame,
    bootstrap: Bootstrap,
    floor: float | None = None,
) -> Result:
    """Estimate MSE and MAE over all cells by naive, IPS, SNIPS and DR means (Schnabel et al. 2016).

    Joins the matrix with the log by cell (shuffles both where the log is not small), and the log with the
    propensities by their keys. Two passes follow (`compute_matrix_metrics`).

    Args:
        matrix: user_id, item_id, prediction of every cell; imputed, the rating that a model expects, for
            DR;
            rating (NULL where unknown) if there is no log.
        log: user_id, item_id, rating of the cells whose rating is known.
        propensities: propensity by item_id, by user_id and item_id, or by rating.
        bootstrap: replicates over users, level, seed.
        floor: smaller propensities are raised to it, and those above 1 are lowered to 1.

    Raises:
        SchemaError: a column is missing.
        DataError: a value cannot be used, a cell occurs twice, a rating has no prediction or propensity,
            or
            a propensity is outside (0, 1].
    """
    cells = _cells(matrix, log, propensities, floor).cache()
    modelled = "imputed" in matrix.columns
    checks = _check_matrix(cells, modelled)
    rows = compute_matrix_metrics(cells, bootstrap, modelled=modelled)
    return _make_result(cells, rows, checks)


def _cells(
    matrix: DataFrame, log: DataFrame | None, propensities: DataFrame, floor: float | None
) -> DataFrame:
    """Return user_key, prediction, imputed, rating and propensity of each cell, with its ids."""
    values = [name for name in ("prediction", "imputed") if name in ("prediction", *matrix.columns)]
    typed = convert_rows(matrix, values, "matrix")
    if "imputed" not in values:
        typed = typed.withColumn("imputed", F.lit(None).cast("double"))
    if log is None:
        require(matrix, ["rating"], "matrix without a log")
        log = matrix.where(F.col("rating").isNotNull())
    rated = convert_rows(log, ["rating"], "log")
    rated_cells = _join_propensities(rated, propensities, floor)
    key = F.xxhash64("user_id").alias("user_key")
    return typed.join(rated_cells, list(CELL), "full").select(
        *CELL, key, "prediction", "imputed", "rating", "propensity"
    )


def _join_propensities(rated: DataFrame, propensities: DataFrame, floor: float | None) -> DataFrame:
    require(propensities, ["propensity"], "propensities")
    keys = [name for name in (*CELL, "rating") if name in propensities.columns]
    if keys not in (["item_id"], list(CELL), ["rating"]):
        raise ConfigError(
            f"propensities by {', '.join(keys) or 'nothing'}", "item_id; user_id and item_id; or rating"
        )
    numbers = ["propensity", *(["rating"] if "rating" in keys else [])]
    typed = convert_numbers(propensities, numbers, "propensities")
    text = {name: F.col(name).cast("string") for name in keys if name != "rating"}
    table = typed.withColumns(text).select(*keys, _clip_propensity(F.col("propensity"), floor))
    return rated.join(table, keys, "left")


def _clip_propensity(propensity: Column, floor: float | None) -> Column:
    if floor is None:
        return propensity
    return F.least(F.greatest(propensity, F.lit(floor)), F.lit(1.0)).alias("propensity")


def _check_matrix(cells: DataFrame, modelled: bool) -> list[Check]:
    """Refuse what cannot be estimated; count the data behind the estimates."""
    if not cells.groupBy(*CELL).count().where("count > 1").limit(1).isEmpty():
        raise DataError("a cell occurs twice", "in the matrix, the log or the propensities")
    rated, p = F.col("rating").isNotNull(), F.col("propensity")
    (totals,) = cells.agg(
        F.count("*").alias("cells"),
        F.count_if(rated).alias("rated"),
        F.count_if(F.col("prediction").isNull()).alias("without a prediction"),
        F.count_if(rated & p.isNull()).alias("without a propensity"),
        F.count_if(p.isNotNull() & ~((p > 0) & (p <= 1))).alias("with a propensity outside (0, 1]"),
        F.sum(1 / p).alias("weight"),
        F.sum(1 / p**2).alias("squares"),
        F.max(1 / p).alias("most"),
    ).collect()
    for fault in totals.__fields__[2:5]:
        if totals[fault]:
            raise DataError(
                f"{totals[fault]} ratings {fault}", "every known rating needs both; or give a floor"
            )
    if not totals.rated:
        raise DataError("no rating is known", "check the log, or the column rating of the matrix")
    sides = [cells.select(name).distinct().count() for name in CELL]
    holes = sides[0] * sides[1] - totals.cells
    checks = [
        Check(f"{PART}: users", sides[0], None, "info", "users of the matrix"),
        Check("cells", totals.cells, None, "info", "predictions"),
        Check("cells without a prediction", holes, 0.0, "warning", "errors are means over the cells given"),
        Check("known ratings", totals.rated, None, "info", "cells with a rating"),
        Check("effective ratings", totals.weight**2 / totals.squares, None, "info", "(sum w)^2 / sum w^2"),
        Check(
            "largest share of the weight",
            totals.most / totals.weight,
            HEAVY_WEIGHT_SHARE,
            "warning",
            "of one rating",
        ),
    ]
    return checks if modelled else [*checks, _column_check("imputed", "dr")]


def _column_check(column: str, names: str) -> Check:
    return Check(f"{names} undefined", 1, None, "info", f"needs the column {column}, from a model")


# ------------------------------------------------------------------------------- logged rounds


def estimate_rounds(rounds: DataFrame, settings: EstimatorSettings, policy: str, level: float) -> Result:
    """Estimate the value of a policy by IPS, clipped IPS and SNIPS.

    With a reward model also by DM, DR, switch-DR and DRos.

    Args:
        rounds: reward, propensity of the logged action, pi_e (the policy's probability of it); q and
            q_policy: the reward a model expects of that action, and of the policy's actions on average.
        settings: bounds on weights.
        policy: name of the evaluated policy; it is part of the definition.
        level: level of the intervals.

    Raises:
        SchemaError: a column is missing.
        DataError: a value cannot be used, or there are no rounds.
    """
    model = [name for name in ("q", "q_policy") if name in rounds.columns]
    if len(model) == 1:
        raise ConfigError(f"rounds have only {model[0]}", "a reward model gives q and q_policy")
    columns = ["reward", "propensity", "pi_e", *model]
    typed = convert_numbers(rounds, columns, "rounds").select(*columns).cache()
    _check_probabilities(typed)
    checks = check_rounds(typed, settings)
    rows = estimate_policy_values(typed, settings, policy, level, modelled=bool(model))
    undefined = [] if model else [_column_check("q and q_policy", "dm, dr, switch_dr, dros")]
    return _make_result(typed, rows, [*checks, *undefined])


def _check_probabilities(rounds: DataFrame) -> None:
    wrong = {
        "propensity": ~((F.col("propensity") > 0) & (F.col("propensity") <= 1)),
        "pi_e": ~F.col("pi_e").between(0, 1),
    }
    counts = [F.count_if(test).alias(name) for name, test in wrong.items()]
    (totals,) = rounds.agg(F.count("*").alias("rounds"), *counts).collect()
    if not totals.rounds:
        raise DataError("no rounds", "check the path")
    for name in wrong:
        if totals[name]:
            raise DataError(
                f"{totals[name]} of {totals.rounds} rounds have a {name} that is not a probability",
                "the logging policy must give every logged action a probability above 0",
            )


def join_policy(rounds: DataFrame, policy: DataFrame) -> DataFrame:
    """Add pi_e from a table (item_id[, position], pi_e); an action that the table lacks gets 0."""
    require(policy, ["item_id", "pi_e"], "policy")
    keys: list[str] = ["item_id", *(["position"] if "position" in policy.columns else [])]
    require(rounds, keys, "rounds")
    chances = convert_numbers(policy, ["pi_e"], "policy").select(
        *(_string_column(name) for name in keys), "pi_e"
    )
    if not chances.groupBy(*keys).count().where("count > 1").limit(1).isEmpty():
        raise DataError(f"policy: {', '.join(keys)} occur twice", "give one pi_e per key")
    plain = rounds.drop("pi_e").withColumns({name: F.col(name).cast("string") for name in keys})
    return plain.join(chances, keys, "left").fillna({"pi_e": 0.0})


def estimate_frequencies(rounds: DataFrame) -> DataFrame:
    """Estimate item_id, position, pi_e of the logging policy by its share of each item at a position.

    This estimates the policy over all contexts. The intervals do not include the error of this estimate.
    """
    shown = rounds.groupBy("position", "item_id").count()
    at = shown.groupBy("position").agg(F.sum("count").alias("all"))
    return shown.join(at, "position").select(
        "item_id", "position", (F.col("count") / F.col("all")).alias("pi_e")
    )


def _string_column(name: str) -> Column:
    return F.col(name).cast("string").alias(name)


# ------------------------------------------------------------------------------- results


def _make_result(
    rows: DataFrame, numbers: Sequence[Mapping[str, object] | MetricRow], checks: list[Check]
) -> Result:
    spark, schema = rows.sparkSession, spark_schema(METRICS)
    full_rows = [{"run_id": "", "part": PART, **number} for number in numbers]
    metrics = spark.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in full_rows], schema
    )
    no_users = spark.createDataFrame([], spark_schema(USER_METRICS))
    return Result(metrics.drop("run_id"), no_users.drop("run_id"), None, checks, (rows,))
