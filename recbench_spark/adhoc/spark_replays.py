"""Replay a log of auctions with Spark: the log is laid out once, and each model is joined by the layout."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from recbench_spark.adhoc.replays import ReplayOutcome
from recbench_spark.config.replay import ReplayFile
from recbench_spark.data import arrow_files
from recbench_spark.simulation.log_layout import LAYOUTS
from recbench_spark.simulation.replay import LOGGED
from recbench_spark.simulation.spark_layout import open_layout
from recbench_spark.simulation.spark_parts import SparkParts, match_model, open_counts
from recbench_spark.storage.leases import Report
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.shared_rows import drop_scratch


def replay_on_spark(
    spark: SparkSession,
    file: ReplayFile,
    until: int | None,
    *,
    warehouse: Path,
    most: int,
    report: Report,
) -> ReplayOutcome:
    """Lay the log out where no earlier run has, match the models, and replay them.

    Args:
        spark: the session.
        file: the replay; log and models are files.
        until: time in microseconds after which rows are replayed; None: all.
        warehouse: folder that all workers see.
        most: rows of a part of the log.
        report: gets lines about the progress.
    """
    folder = warehouse.absolute() / LAYOUTS
    identity = arrow_files.identity(file.log.path or "")
    layout = open_layout(spark, file.log, identity, folder=folder, most=most, report=report)
    log = open_counts(spark, layout, until, report)
    models = {}
    try:
        for model in file.models:
            models[model.name] = Path(scratch_folder(str(warehouse.absolute())))
            where = f"model {model.name} {model.path}"
            match_model(spark, log, model.path or "", where, models[model.name])
            report(f"{model.name} is matched")
        if log.has_probabilities:
            models[LOGGED] = log.folder
        parts = SparkParts(spark, log, models, str(warehouse.absolute()))
        return ReplayOutcome.from_parts(file, parts, layout.read_rejects(), layout.left_out)
    finally:
        drop_scratch(spark, str(warehouse.absolute()))
