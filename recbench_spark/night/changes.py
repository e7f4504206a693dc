"""Explain why each model's numbers moved since its previous night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from recbench_spark.analyses.comparisons.changes import ChangePlan, ChangeRows, compute_changes
from recbench_spark.analyses.comparisons.differences import HOLDOUT, ComparedRun
from recbench_spark.config import Comparisons, digest
from recbench_spark.core import revisions
from recbench_spark.metrics.beyond_accuracy import OVERALL
from recbench_spark.night.code_provenance import code_changes
from recbench_spark.night.compared_rows import add_facts, open_runs
from recbench_spark.night.comparisons import (
    find_previous_run,
    list_counted_numbers,
    list_owners,
    list_runs,
    select_tonight_runs,
)
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.query.answers import list_texts, make_query_runner
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHANGES, RANKINGS, RUNS, USER_METRICS
from recbench_spark.storage.commits import Addition
from recbench_spark.storage.file_tables import FileTables


def explain_changes(night: BenchmarkNight, journal: Journal) -> list[Addition]:
    """Return rows of `changes`, if the file compares nights.

    The same runs are explained once.
    """
    settings = night.benchmark.comparisons
    plan = make_plan(night, settings) if settings else None
    if plan is None:
        return []
    change_revisions = revisions.select_revisions("changes")
    shared = [plan.numbers] if plan.numbers else []
    name = digest(plan.pairs, plan.metrics, plan.ks, plan.slices, change_revisions, *shared, length=32)
    if night.store.has(CHANGES, "change_id", name):
        return []
    with journal.stage("changes", f"explain {len(plan.pairs)} changes", suite=night.benchmark.name):
        facts = {
            "change_id": name,
            "suite": night.benchmark.name,
            "estimator": HOLDOUT,
            "explained_at": datetime.now(UTC),
        }
        rows = add_code_changes(night.store, plan, _explain(night.store, plan))
    return [Addition(CHANGES, name, add_facts(rows, facts, CHANGES), named_by="change_id")]


def _explain(store: FileTables, plan: ChangePlan) -> pa.Table:
    runs = [run for pair in plan.pairs for run in pair]
    user_metrics, tasks = open_runs(store, USER_METRICS, list_owners(runs, plan.numbers))
    rankings, _ = open_runs(store, RANKINGS, list_owners(runs, ()))
    return compute_changes(store.engine, ChangeRows(user_metrics, rankings), plan, tasks)


def add_code_changes(store: FileTables, plan: ChangePlan, rows: pa.Table) -> pa.Table:
    """Add `code_change` and `code_alone` to the rows.

    The columns are NULL where the two nights ran the same code.
    """
    owners: dict[str, set[str]] = {}
    for number in plan.numbers:
        owners.setdefault(number.run_id, set()).add(number.owner)
    pairs = [
        (before_id, now_id)
        for before, now in plan.pairs
        for before_id in sorted(owners.get(before.run_id, {before.run_id}))
        for now_id in sorted(owners.get(now.run_id, {now.run_id}))
    ]
    changes = code_changes(store, pairs)
    row_changes = [
        changes.get(pair)
        for pair in zip(
            *(rows.column(name).to_pylist() for name in ("other_run_id", "run_id")), strict=True
        )
    ]
    words = pa.array([None if one is None else one.words for one in row_changes], pa.string())
    alone = pa.array([None if one is None else one.alone for one in row_changes], pa.bool_())
    return rows.append_column("code_change", words).append_column("code_alone", alone)


def make_plan(night: BenchmarkNight, settings: Comparisons) -> ChangePlan | None:
    """Pair each model with its previous night, and with the run that it replaced.

    The result is None where no model has either.
    """
    visible = list_runs(night)
    runs = visible.runs
    tonight = select_tonight_runs(night, runs)
    before = [(find_previous_run(run, runs, None), run) for run in tonight]
    pairs = tuple((earlier, run) for earlier, run in [*before, *_find_replaced(night, tonight)] if earlier)
    if not pairs:
        return None
    evaluation = night.benchmark.evaluation
    metrics = tuple(m for m in settings.metrics or evaluation.all_metrics if m not in OVERALL)
    numbers = list_counted_numbers(night, visible, [run for pair in pairs for run in pair])
    return ChangePlan(
        pairs, metrics, settings.k or (*evaluation.cutoffs, None), night.benchmark.user_slices, numbers
    )


def _find_replaced(
    night: BenchmarkNight, tonight: Sequence[ComparedRun]
) -> list[tuple[ComparedRun, ComparedRun]]:
    """Pair runs whose numbers replaced others of this night with the replaced run."""
    runs = {run.run_id: run for run in tonight}
    filters = [("suite", "=", night.benchmark.name), ("logical_date", "=", night.logical_date)]
    filters += [("status", "=", "succeeded")]
    if len(night.store.rows(RUNS, filters, ["run_id"])) <= len(runs):
        return []
    rows = make_query_runner(night.store)(
        "SELECT DISTINCT run_id, run_before FROM restatements "
        f"WHERE run_id IN ({list_texts(sorted(runs))}) ORDER BY run_id, run_before"
    )
    return [
        (replace(runs[now], run_id=before), runs[now])
        for now, before in zip(rows.run_id, rows.run_before, strict=True)
    ]
