"""Evaluate one model on held-out ratings: predictions of pairs, and their errors per user and overall."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import ModelConfig
from recbench_spark.evaluation.metrics.predictions import rating_metrics, user_values
from recbench_spark.evaluation.ranking.part_users import PART_USERS, map_user_blocks, select_part_users
from recbench_spark.nightly.night import BenchmarkNight, check_night_gates
from recbench_spark.nightly.results import write_checks
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import METRICS, USER_METRICS
from recbench_spark.storage.frame_blocks import open_frame
from recbench_spark.storage.spark_types import conform, spark_columns, spark_schema
from recbench_spark.training.model_adapter import make_adapter


def predict_model(night: BenchmarkNight, model: ModelConfig, run_id: str, journal: Journal) -> list[Check]:
    """Write errors of a model's predictions of each held-out part to `metrics`, `user_metrics`, `checks`.

    Predictions of one part stay on the executors while they are measured: an array for each user.
    """
    checks = check_night_gates(night)
    for part in night.benchmark.evaluation.parts:
        title = f"{model.name}: predict {part}"
        with journal.stage("predictions", title, run_id=run_id, model=model.name) as counts:
            select = partial(
                select_part_users, parts=[part], threshold=night.definition.threshold, keep_empty=False
            )
            blocks = map_user_blocks(night.spark_store, night.split_id, select, PART_USERS.names)
            users = open_frame(night.spark, blocks, spark_columns(PART_USERS))
            predicted = make_adapter(model).predict(users, night.data).cache()
            part_checks = _prediction_checks(predicted, part)
            counts["pairs"] = int(part_checks[1].observed)
            _write_errors(night, predicted, part, run_id)
            predicted.unpersist()
            checks.extend(part_checks)
    write_checks(night.store, run_id, checks)
    return checks


def _write_errors(night: BenchmarkNight, predicted: DataFrame, part: str, run_id: str) -> None:
    settings = night.benchmark.evaluation
    rows = rating_metrics(predicted, settings.metrics, settings.bootstrap)
    full_rows = [{"run_id": run_id, "part": part, **row} for row in rows]
    schema = spark_schema(METRICS)
    frame = night.spark.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in full_rows], schema
    )
    frames = [(frame, METRICS)]
    if settings.user_metrics:
        user_rows = user_values(predicted).where(F.col("metric").isin("mse", *settings.metrics))
        stamped = user_rows.withColumns({"part": F.lit(part), "run_id": F.lit(run_id)})
        frames.append((conform(stamped, USER_METRICS), USER_METRICS))
    night.spark_store.append_all(frames)


def _prediction_checks(predicted: DataFrame, part: str) -> list[Check]:
    row = predicted.agg(F.count("*"), F.sum(F.size("prediction")), F.sum("unknown")).collect()[0]
    users, pairs, unknown = (value or 0 for value in row)
    if not users:
        return [
            Check(f"{part}: users", 0, None, "warning", "no user has truth in this part"),
            Check(f"{part}: predicted pairs", 0, None, "warning", "no held-out row"),
        ]
    return [
        Check(f"{part}: users", users, None, "info", "users with held-out rows"),
        Check(f"{part}: predicted pairs", pairs, None, "info", "held-out rows"),
        warn_above_zero(f"{part}: pairs unknown to the model", unknown, "the mean rating is predicted"),
    ]
