"""Explain why the numbers of each model moved since its previous night."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import revisions
from recbench_spark.config import Comparisons, digest
from recbench_spark.evaluation.comparison.changes import ChangePlan, compute_changes
from recbench_spark.evaluation.comparison.differences import HOLDOUT
from recbench_spark.evaluation.metrics.beyond_accuracy import OVERALL
from recbench_spark.nightly.code_provenance import code_changes
from recbench_spark.nightly.comparisons import (
    find_previous_run,
    list_counted_numbers,
    list_runs,
    select_tonight_runs,
)
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHANGES, RANKINGS, USER_METRICS
from recbench_spark.storage.store import Store

USER_SLICES = ("cold_user", "users")
"""Slices in which all truth items of a user carry one label."""


def explain_changes(night: BenchmarkNight, journal: Journal) -> None:
    """Append to `changes` if the benchmark file compares nights; the same runs are explained once."""
    settings = night.benchmark.comparisons
    plan = make_plan(night, settings) if settings else None
    if plan is None:
        return
    change_revisions = revisions.select_revisions("changes")
    shared = [plan.numbers] if plan.numbers else []
    name = digest(plan.pairs, plan.metrics, plan.ks, plan.slices, change_revisions, *shared, length=32)
    if night.store.has(CHANGES, "change_id", name):
        return
    with journal.stage("changes", f"explain {len(plan.pairs)} changes", suite=night.benchmark.name):
        rows = add_code_changes(
            night.spark_store,
            plan,
            compute_changes(night.spark_store.read(USER_METRICS), night.spark_store.read(RANKINGS), plan),
        )
        facts = {
            "change_id": F.lit(name),
            "suite": F.lit(night.benchmark.name),
            "estimator": F.lit(HOLDOUT),
            "explained_at": F.lit(datetime.now(UTC)),
        }
        night.store.append_named(rows.withColumns(facts), CHANGES, "change_id", name)


def add_code_changes(store: Store, plan: ChangePlan, rows: DataFrame) -> DataFrame:
    """Add `code_change` and `code_alone`; both are NULL where the two nights ran the same code."""
    owners: dict[str, set[str]] = {}
    for number in plan.numbers:
        owners.setdefault(number.run_id, set()).add(number.owner)
    pairs = [
        (before_id, now_id)
        for before, now in plan.pairs
        for before_id in sorted(owners.get(before.run_id, {before.run_id}))
        for now_id in sorted(owners.get(now.run_id, {now.run_id}))
    ]
    changed = [(*pair, change.words, change.alone) for pair, change in code_changes(store, pairs).items()]
    columns = "other_run_id STRING, run_id STRING, code_change STRING, code_alone BOOLEAN"
    code_columns = store.spark.createDataFrame(changed, columns)
    return rows.join(F.broadcast(code_columns), ["other_run_id", "run_id"], "left")


def make_plan(night: BenchmarkNight, settings: Comparisons) -> ChangePlan | None:
    """Pair each model of this night with its previous night; None where no model has one."""
    visible = list_runs(night)
    runs = visible.runs
    before = [(find_previous_run(run, runs, None), run) for run in select_tonight_runs(night, runs)]
    pairs = tuple((earlier, run) for earlier, run in before if earlier is not None)
    if not pairs:
        return None
    evaluation = night.benchmark.evaluation
    metrics = tuple(m for m in settings.metrics or evaluation.all_metrics if m not in OVERALL)
    slices = tuple(cut.key for cut in evaluation.slices if cut.of in USER_SLICES)
    numbers = list_counted_numbers(night, visible, [run for pair in pairs for run in pair])
    return ChangePlan(pairs, metrics, settings.k or (*evaluation.cutoffs, None), slices, numbers)
