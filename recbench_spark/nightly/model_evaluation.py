"""Evaluate one model on the held-out parts: rankings, per-user values, metrics, checks."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.config import ModelConfig
from recbench_spark.evaluation.batched.rank import rank
from recbench_spark.evaluation.batched.run_measures import map_frame
from recbench_spark.evaluation.batched.shuffle import PassInputs
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.nightly.candidates import select_candidates
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.nightly.run_rows import NightMeasures, make_run_rows, write_run_rows
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RANKINGS, USER_METRICS
from recbench_spark.storage.frame_blocks import reduce_frame
from recbench_spark.training.model_adapter import make_adapter


def evaluate_model(night: BenchmarkNight, model: ModelConfig, run_id: str, journal: Journal) -> list[Check]:
    """Write rankings, per-user values, metrics and checks of one model; all held-out parts in one pass."""
    wanted, store, parts = NightMeasures.from_night(night), night.store, night.benchmark.evaluation.parts
    facts = {"run_id": run_id, "model": model.name}
    with journal.stage("rankings", f"{model.name}: rank {', '.join(parts)}", **facts):
        rankings, checks = rank_model(night, model, wanted.request)
        store.append(rankings.withColumn("run_id", F.lit(run_id)), RANKINGS)
    rankings = store.read_run("rankings", run_id)
    with journal.stage("metrics", f"{model.name}: measure", **facts) as counts:
        if wanted.has_values:
            values = map_frame(rankings, wanted.plan, wanted.catalogue)
            store.append(values.withColumn("run_id", F.lit(run_id)), USER_METRICS)
        results = reduce_frame(wanted.measures, rankings)
        rows = make_run_rows(night, wanted, (run_id, model), results, checks)
        write_run_rows(night, {run_id: rows})
        counts["warnings"] = rows.warnings
    return rows.checks


def rank_model(
    night: BenchmarkNight, model: ModelConfig, request: RankingRequest
) -> tuple[DataFrame, list[Check]]:
    """Return the rankings by a model of any kind, and checks on its inputs."""
    adapter = make_adapter(model)
    candidates = None if adapter.brings_candidates else select_candidates(night)
    ranked, checks = adapter.prepare_ranking(night.open_user_frame(), night.data)
    inputs = PassInputs(night.select_users(), [ranked], night.n_rankings, candidates)
    return rank(night.spark, inputs, request), checks
