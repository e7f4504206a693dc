"""One model against the held-out parts: rankings, per-user values, metrics, checks."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.config import ModelConfig
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.estimators.exposure import with_exposure
from recbench_spark.evaluation.estimators.sampled import correction_checks
from recbench_spark.evaluation.ranking import rank as ranking
from recbench_spark.evaluation.ranking.request import Request
from recbench_spark.journal import Journal
from recbench_spark.schemas import RANKINGS
from recbench_spark.steps.candidates import candidates_of
from recbench_spark.steps.exposure import estimate, make_plan
from recbench_spark.steps.gates import failure
from recbench_spark.steps.night import Night, model_gates, night_gates
from recbench_spark.steps.results import write_checks, write_metrics
from recbench_spark.training.behaviour import behaviour_of


def evaluate_model(night: Night, model: ModelConfig, run_id: str, journal: Journal) -> list[Check]:
    """Rankings, per-user values, metrics and checks of one model, all held-out parts in one pass."""
    asked, plan, store = night.benchmark.evaluation, night.plan(), night.store
    facts = {"run_id": run_id, "model": model.name}
    with journal.stage("rankings", f"{model.name}: rank {', '.join(asked.parts)}", **facts):
        exposure = night.exposure
        request = plan.request(lists=exposure is not None and exposure.wants_lists)
        rankings, found = rank(night, model, request)
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
            rankings, asked.parts, night.definition.threshold, lists=behaviour_of(model).lists
        )
        found += correction_checks(plan, asked.draw.estimators)
        found += night_gates(night) + model_gates(night, model)
        write_checks(store, run_id, found)
        counts["warnings"] = sum(not check.passed for check in found)
    return found


def train(night: Night, model: ModelConfig, journal: Journal) -> bool:
    """Train what is trained here, into the tables of models; True if anything was done.

    Raises:
        GateError: a gate of action `fail` on a fact of the model, which is then not ranked.
    """
    behaviour, data = behaviour_of(model), replace(night.data, journal=journal)
    if not behaviour.learns:
        return False
    trained = None if behaviour.saved(data) else behaviour.fit(data)
    if trained is not None:
        behaviour.save(trained, data)
    error = failure(model_gates(night, model))
    if error is not None:
        raise error
    return trained is not None


def rank(night: Night, model: ModelConfig, request: Request) -> tuple[DataFrame, list[Check]]:
    """The rankings by a model of any kind, and what its inputs left out."""
    behaviour, users = behaviour_of(model), users_of(night)
    candidates = None if behaviour.brings_candidates else candidates_of(night, users)
    ranked, found = behaviour.ranked(users, night.data)
    return ranking.rank(users, ranked, request, candidates), found


def users_of(night: Night) -> DataFrame:
    """The users of the night's parts, with what is known of exposure where estimates ask for it."""
    return with_exposure(night.users, night.exposure.shown) if night.exposure else night.users
