"""One model against the held-out parts: rankings, per-user values, metrics, checks."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.data.handed_over import meet, read_scored_rows
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.checks import Check
from recbench_spark.evaluation.estimators.exposure import with_exposure
from recbench_spark.evaluation.estimators.sampled import correction_checks
from recbench_spark.evaluation.metrics import accuracy as metric_rows
from recbench_spark.evaluation.ranking import rank as ranking
from recbench_spark.journal import Journal
from recbench_spark.schemas import ITEMS, RANKINGS, USER_BLOCKS
from recbench_spark.steps.candidates import with_candidates
from recbench_spark.steps.exposure import estimate, make_plan
from recbench_spark.steps.models import open_model, train_rows
from recbench_spark.steps.night import Night, night_gates
from recbench_spark.steps.results import write_checks, write_metrics


def evaluate_model(night: Night, model: Any, run_id: str, journal: Journal) -> list[Check]:
    """Rankings, per-user values, metrics and checks of one model, all held-out parts in one pass."""
    asked, plan, store = night.benchmark.evaluation, night.plan(), night.store
    facts = {"run_id": run_id, "model": model.name}
    with journal.stage("rankings", f"{model.name}: rank {', '.join(asked.parts)}", **facts):
        exposure = night.exposure
        lists = metric_rows.wants_lists(plan.metrics) or (exposure is not None and exposure.wants_lists)
        top = max(plan.ks) if lists else 0
        rankings, found = rank(night, model, ranking.Request(night.definition, top, plan.cutoff))
        store.append(rankings.withColumn("run_id", F.lit(run_id)), RANKINGS)
    rankings = store.of_run("rankings", run_id)
    with journal.stage("metrics", f"{model.name}: measure", **facts) as counts:
        further = []
        if exposure:
            corrected, told = estimate(
                store, exposure, make_plan(exposure, plan, night.benchmark.headline), rankings
            )
            further, found = [corrected], found + told
        write_metrics(store, rankings, plan, run_id, night.catalogue, asked=asked, further=further)
        found += check_rows.ranking_checks(
            rankings, asked.parts, night.definition.threshold, lists=model.kind == "lists"
        )
        found += correction_checks(plan, asked.draw.estimators)
        found += night_gates(night)
        write_checks(store, run_id, found)
        counts["warnings"] = sum(not check.passed for check in found)
    return found


def rank(night: Night, model: Any, request: ranking.Request) -> tuple[DataFrame, list[Check]]:
    """The rankings by a model of any kind, and what its inputs left out."""
    keep_empty = night.definition.empty_users == "zero"
    parts = night.benchmark.evaluation.parts
    users = ranking.users_of_parts(night.table(USER_BLOCKS), parts, night.definition.threshold, keep_empty)
    if night.exposure:
        users = with_exposure(users, night.exposure.shown)
    if model.kind in ("lists", "scores"):
        return _rank_handed_over(night, model, users, request)
    users = with_candidates(night, users)
    source, vectors = open_model(night, model)
    found = []
    if vectors is not None:
        if model.kind == "embeddings":
            found = meet(vectors, users, "user_id", (f"model {model.name}", "truth"))
        users = users.join(vectors, "user_id", "left")
    return ranking.rank_scored(users, source, request), found


def _rank_handed_over(
    night: Night, model: Any, users: DataFrame, request: ranking.Request
) -> tuple[DataFrame, list[Check]]:
    items = night.table(ITEMS)
    rows = read_scored_rows(night.spark, model.path, model.kind)
    found = meet(rows, users, "user_id", (model.kind, "truth"))
    found += meet(rows, items, "item_id", (model.kind, "catalogue"))
    found += check_rows.list_checks(rows, users, items)
    if model.kind == "lists":
        found.append(check_rows.training_items_in_lists(rows, train_rows(night)))
    lists = ranking.as_lists(rows, items)
    return ranking.rank_given(users, lists, request, mask=model.kind == "scores"), found
