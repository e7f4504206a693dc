"""One model against one held-out part: rankings, per-user values, metrics, checks."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from recbench_spark.data.readers import read_table
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation import metrics as metric_rows
from recbench_spark.evaluation import ranking
from recbench_spark.evaluation.checks import Check
from recbench_spark.schemas import ITEMS, USER_BLOCKS
from recbench_spark.steps.models import open_model, train_rows
from recbench_spark.steps.night import Night
from recbench_spark.steps.reading import candidate_lists, read_scored_rows
from recbench_spark.steps.results import rankings_of, write_checks, write_metrics, write_rankings


def evaluate_model(night: Night, model: Any, run_id: str) -> list[Check]:
    """Rankings, per-user values, metrics and checks of one model, part by part."""
    found: list[Check] = []
    for part in night.benchmark.evaluation.parts:
        found += evaluate_part(night, model, run_id, part)
    write_checks(night.store, run_id, found)
    return found


def evaluate_part(night: Night, model: Any, run_id: str, part: str) -> list[Check]:
    """One part of one model."""
    empty = night.definition.empty_users == "zero"
    blocks = night.table(USER_BLOCKS)
    users = ranking.users_of_part(blocks, part, night.definition.threshold, empty)
    plan = night.plan()
    top = max(plan.ks) if metric_rows.wants_lists(plan.metrics) else 0
    request = ranking.Request(night.definition, top)
    rankings, found = rank(night, model, users, request, part)
    n_items = night.table(ITEMS).count()
    write_rankings(night.store, rankings, run_id, part)
    rankings = rankings_of(night.store, run_id, part)
    keep = night.benchmark.evaluation.user_metrics
    write_metrics(night.store, rankings, plan, run_id, part, n_items=n_items, per_user=keep)
    return [*found, *check_rows.ranking_checks(rankings, part)]


def rank(
    night: Night, model: Any, users: DataFrame, request: ranking.Request, part: str
) -> tuple[DataFrame, list[Check]]:
    """The rankings by a model of any kind, and what its inputs left out."""
    if model.kind in ("lists", "scores"):
        return _rank_handed_over(night, model, users, request, part)
    if request.definition.candidates == "given":
        users = users.join(_given_candidates(night), "user_id", "left")
    source, vectors = open_model(night, model)
    if vectors is not None:
        users = users.join(vectors, "user_id", "left")
    return ranking.rank_scored(users, source, request), []


def _rank_handed_over(
    night: Night, model: Any, users: DataFrame, request: ranking.Request, part: str
) -> tuple[DataFrame, list[Check]]:
    items = night.table(ITEMS)
    rows = read_scored_rows(night.spark, model.path, model.kind)
    found = check_rows.list_checks(rows, users, items, part)
    if model.kind == "lists":
        found.append(check_rows.training_items_in_lists(rows, train_rows(night), part))
    lists = ranking.as_lists(rows, items)
    return ranking.rank_given(users, lists, request, mask=model.kind == "scores"), found


def _given_candidates(night: Night) -> DataFrame:
    path = night.benchmark.evaluation.candidates_path
    if not path:
        raise ConfigError(
            "definition.candidates is 'given' and evaluation.candidates_path is missing",
            "a table of user_id, item_id",
        )
    rows = read_table(night.spark, path, ["user_id", "item_id"], "candidates")
    return candidate_lists(rows, night.table(ITEMS))
