"""Find where a night's learning curves cross.

There one model should take over from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.kernels.significance import holm
from recbench_spark.analyses.curves.crossings import CrossingPlan, find_crossings
from recbench_spark.analyses.curves.kernels.crossings import MOST_AT_ENDS
from recbench_spark.config import CURVE_METRIC, LearningCurve, digest
from recbench_spark.core import revisions
from recbench_spark.night.compared_rows import open_runs
from recbench_spark.night.night import BenchmarkNight, find_newest_runs
from recbench_spark.night.run_keys import choose_curve_cutoff
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CURVE_CROSSINGS, CURVE_VALUES
from recbench_spark.storage.commits import Addition


def find_night_crossings(night: BenchmarkNight, journal: Journal) -> list[Addition]:
    """Return rows of `curve_crossings`, if the file asks for curves.

    The same runs are compared once. The driver holds one row for each part and pair of models.
    """
    curve = night.benchmark.evaluation.learning_curve
    if curve is None:
        return []
    plan = _make_plan(night, curve)
    run_ids = [run.run_id for run in plan.runs]
    bootstrap = plan.bootstrap.model_dump()
    name = digest(run_ids, plan.k, bootstrap, revisions.select_revisions("learning_curves"), length=32)
    if len(run_ids) < 2 or night.store.has(CURVE_CROSSINGS, "crossing_id", name):
        return []
    with journal.stage("crossings", f"crossings of {len(run_ids)} curves", suite=night.benchmark.name):
        values, tasks = open_runs(night.store, CURVE_VALUES, run_ids)
        pairs = find_crossings(values, plan, tasks).to_pylist()
        rows = make_rows(pairs, plan, {**_facts(night), "crossing_id": name})
    return [Addition(CURVE_CROSSINGS, name, rows)]


def _make_plan(night: BenchmarkNight, curve: LearningCurve) -> CrossingPlan:
    newest = find_newest_runs(night, [("logical_date", "=", night.logical_date)])
    names = sorted(model.name for model in night.benchmark.curve_models if model.name in newest)
    runs = tuple(ComparedRun(str(newest[name]["run_id"]), name, night.logical_date) for name in names)
    bootstrap = night.benchmark.evaluation.bootstrap
    return CrossingPlan(runs, CURVE_METRIC, choose_curve_cutoff(night.benchmark), curve.points, bootstrap)


def _facts(night: BenchmarkNight) -> dict[str, Any]:
    return {
        "suite": night.benchmark.name,
        "logical_date": night.logical_date,
        "split_id": night.split_id,
        "found_at": datetime.now(UTC),
    }


def make_rows(
    pairs: Sequence[Mapping[str, Any]], plan: CrossingPlan, facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Make rows of `curve_crossings`.

    The shares at the ends are adjusted over the pairs in each part.
    """
    rows = []
    for part in sorted({pair["part"] for pair in pairs}):
        family = [pair for pair in pairs if pair["part"] == part]
        adjusted = holm(np.array([pair["share_at_ends"] for pair in family]))
        rows += [
            _row(pair, share, plan, facts) for pair, share in zip(family, adjusted.tolist(), strict=True)
        ]
    return rows


def _row(
    pair: Mapping[str, Any], share: float, plan: CrossingPlan, facts: Mapping[str, Any]
) -> dict[str, Any]:
    first, second = plan.runs[pair["first_run"]], plan.runs[pair["second_run"]]
    before, after = (second, first) if pair["swapped"] else (first, second)
    numbers = (
        "part",
        "definition",
        "given",
        "given_low",
        "given_high",
        "value",
        "sign_changes",
        "share_at_ends",
    )
    return {
        **facts,
        **{name: pair[name] for name in numbers},
        "model": first.model,
        "other": second.model,
        "run_id": first.run_id,
        "other_run_id": second.run_id,
        "metric": plan.metric,
        "k": plan.k,
        "first": before.model,
        "then": after.model,
        "share_holm": share,
        "shown": share < MOST_AT_ENDS,
    }
