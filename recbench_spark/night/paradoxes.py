"""Find model pairs where parts contradict the whole.

The smallest change that turns a verdict is found too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from recbench_spark.analyses.comparisons import flips, paradoxes
from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.flips import FlipVerdict, ModelPair
from recbench_spark.config import Paradoxes, digest
from recbench_spark.core import revisions
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.kernels.about import best_when
from recbench_spark.metrics.kernels.accuracy import METRICS
from recbench_spark.night.compared_rows import add_facts, open_runs
from recbench_spark.night.comparisons import (
    choose_baselines,
    select_tonight_runs,
    visible_runs,
)
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import FLIPS, PARADOXES, RANKINGS, RUNS, arrow_rows
from recbench_spark.storage.blocks import Rows, reduce_rows
from recbench_spark.storage.commits import Addition


def find_paradoxes(night: BenchmarkNight, journal: Journal) -> list[Addition]:
    """Return rows of `flips` and `paradoxes`, if asked for.

    The same runs with the same settings are analysed once. All pairs are stored, also those without a
    disagreement: its absence is a result.
    """
    settings = night.benchmark.paradoxes
    runs = list_tonight_runs(night) if settings else ()
    if settings is None or len(runs) < 2:
        return []
    name = digest(
        [run.run_id for run in runs],
        _paradox_settings(night),
        revisions.select_revisions("paradoxes"),
        length=32,
    )
    if night.store.has(PARADOXES, "paradox_id", name):
        return []
    with journal.stage("paradoxes", f"paradoxes of {len(runs)} runs", suite=night.benchmark.name) as counts:
        opened = open_runs(night.store, RANKINGS, [run.run_id for run in runs])
        verdicts = find_flips(night, settings, runs, opened)
        counts["flips"] = len(verdicts)
        measure = paradoxes.disagreement_measure(make_plan(night, settings, runs))
        pairs = reduce_rows({"pairs": measure}, *opened).get("pairs", PARADOXES.arrow_schema.empty_table())
    # Rows in `paradoxes` are written last: they mark the analysis as complete.
    return [
        Addition(table, name, add_facts(rows, _common_columns(night, name), table), named_by="paradox_id")
        for rows, table in ((verdicts, FLIPS), (pairs, PARADOXES))
    ]


def _paradox_settings(night: BenchmarkNight) -> list[object]:
    """Return the settings the numbers depend on."""
    benchmark = night.benchmark
    compared = benchmark.comparisons and benchmark.comparisons.baseline
    sections = (benchmark.paradoxes, benchmark.evaluation.bootstrap, night.definition)
    return [compared, *(section.model_dump() for section in sections if section)]


def list_tonight_runs(night: BenchmarkNight) -> tuple[ComparedRun, ...]:
    """Return this night's runs on this split, sorted by model."""
    split_runs = {
        row["run_id"] for row in night.store.rows(RUNS, [("split_id", "=", night.split_id)], ["run_id"])
    }
    return tuple(run for run in select_tonight_runs(night, visible_runs(night)) if run.run_id in split_runs)


def make_metric_plan(night: BenchmarkNight, settings: Paradoxes) -> metric_rows.MetricPlan:
    """Plan the rank metrics, at the cut-offs in section `paradoxes`."""
    evaluation = night.benchmark.evaluation
    metrics = tuple(m for m in settings.metrics or evaluation.metrics if m in METRICS)
    ks = tuple(k for k in settings.k or evaluation.cutoffs if k is not None)
    bootstrap = evaluation.bootstrap.model_copy(update={"replicates": settings.replicates})
    return metric_rows.MetricPlan(metrics, ks or evaluation.cutoffs, night.definition, bootstrap)


def make_plan(
    night: BenchmarkNight, settings: Paradoxes, runs: tuple[ComparedRun, ...]
) -> paradoxes.ParadoxPlan:
    """Plan which pairs to compare, and by which strata."""
    evaluation = night.benchmark.evaluation
    return paradoxes.ParadoxPlan(
        runs,
        make_metric_plan(night, settings),
        settings.k or (*evaluation.cutoffs, None),
        settings.keys(evaluation),
        settings.parts or evaluation.parts,
        choose_references(night, settings.against, runs),
        best_when("small"),
    )


def choose_references(
    night: BenchmarkNight, against: str, runs: tuple[ComparedRun, ...]
) -> dict[tuple[str, str, int | None], int] | None:
    """Return the reference model's place by (part, metric, k).

    None stands for all pairs.
    """
    if against == "all":
        return None
    comparisons = night.benchmark.comparisons
    baseline = comparisons.baseline if comparisons and against == "baseline" else None
    return choose_baselines(night, list(runs), baseline)


# ------------------------------------------------------------------------------- flips


def find_flips(
    night: BenchmarkNight, settings: Paradoxes, runs: tuple[ComparedRun, ...], opened: tuple[Rows, int]
) -> pa.Table:
    """Return a row of `flips` for each verdict.

    The driver holds pairs x metrics x cut-offs rows, with 20 ids each.
    """
    plan = make_flip_plan(night, settings, runs)
    verdicts = flips.find_smallest_flips(opened[0], plan, opened[1]) if plan.pairs else []
    described = make_metric_plan(night, settings)
    return arrow_rows([_flip_row(plan, described, verdict) for verdict in verdicts], FLIPS)


def make_flip_plan(
    night: BenchmarkNight, settings: Paradoxes, runs: tuple[ComparedRun, ...]
) -> flips.FlipPlan:
    """Plan the verdicts to turn.

    The verdicts' metrics are sums over items.
    """
    plan = make_plan(night, settings, runs)
    metrics = flips.additive_metrics(plan.measured.metrics, night.definition)
    against = choose_references(night, settings.flips_against, runs)
    pairs = [
        ModelPair(removed, part, column, model, other)
        for removed in settings.flips
        for part in plan.parts
        for column, (metric, k) in enumerate(flips.metric_columns(metrics, plan.measured.ks))
        if k in plan.ks
        for model, other in zip(*paradoxes.model_pairs(len(runs), against, (part, metric, k)), strict=True)
    ]
    return flips.FlipPlan(runs, metrics, plan.measured.ks, night.definition, tuple(pairs))


def _flip_row(
    plan: flips.FlipPlan, described: metric_rows.MetricPlan, verdict: FlipVerdict
) -> dict[str, Any]:
    """Make a row of `flips`; the leading model comes first."""
    pair, flip = verdict.pair, verdict.flip
    places = (pair.model, pair.other) if verdict.sign > 0 else (pair.other, pair.model)
    leader, other = (plan.runs[place] for place in places)
    metric, k = plan.columns[pair.column]
    row = {
        "model": leader.model, "other": other.model, "run_id": leader.run_id, "other_run_id": other.run_id,
        "part": pair.part, "metric": metric, "definition": described.describe(metric), "k": k,
        "removed_are": pair.removed, "out_of": verdict.n_candidates, "total": verdict.total,
    }  # fmt: skip
    if flip is None:
        return row
    return {
        **row,
        "removed": flip.count,
        "removed_total": flip.removed,
        "threshold": flip.threshold,
        "at_threshold": flip.at_threshold,
        "ids": list(verdict.ids),
        "contributions": list(verdict.contributions),
    }


def _common_columns(night: BenchmarkNight, name: str) -> dict[str, Any]:
    """Return the columns for time, suite and split."""
    return {
        "paradox_id": name,
        "suite": night.benchmark.name,
        "logical_date": night.logical_date,
        "split_id": night.split_id,
        "found_at": datetime.now(UTC),
    }
