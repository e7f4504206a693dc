"""A night's measures, and its runs' rows in result tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import ndtri

from recbench_spark.analyses.exposure.debiased import estimation_measure
from recbench_spark.analyses.exposure.estimation_plan import EstimationPlan
from recbench_spark.analyses.exposure.night_exposure import (
    empty_rows,
    estimate_with_rewards,
    list_findings,
    make_plan,
    strata_checks,
)
from recbench_spark.analyses.sampling.sampled import check_uncorrected_metrics
from recbench_spark.config import ListsModel, ModelConfig, RetrievedModel
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import EXCHANGED
from recbench_spark.engine.measures import Measures, list_results
from recbench_spark.evaluation.run_measures import make_measures
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.kernels.about import best_when
from recbench_spark.metrics.listed import ListedCatalogue, check_head
from recbench_spark.metrics.ranking_counts import checks_from_counts
from recbench_spark.metrics.result_views import name_figure
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.night.night import (
    AGE_COLUMNS,
    BenchmarkNight,
    check_model_gates,
    check_night_gates,
    sort_by_age,
)
from recbench_spark.ranking.batch_schemas import METRIC_ROWS
from recbench_spark.ranking.moment_counts import check_moments
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.schemas import CEILINGS, CHECKS, METRICS, MULTIVERSE, RUNS
from recbench_spark.storage.commits import Addition, check_rows


@dataclass(frozen=True)
class NightMeasures:
    """Measures that a night applies to every model's rankings.

    Attributes:
        plan: plan for the metrics.
        request: request to the ranking.
        measures: measures by name.
        catalogue: what metrics of lists need; None: none are asked for.
        has_values: users' values are stored.
        later: measures for estimates whose rows need a join with rewards.
        estimation: plan for estimates that correct for exposure, if the file asks for them.
    """

    plan: MetricPlan
    request: RankingRequest
    measures: Measures
    catalogue: ListedCatalogue | None
    has_values: bool
    later: Measures
    estimation: EstimationPlan | None

    @classmethod
    def from_night(cls, night: BenchmarkNight) -> NightMeasures:
        """Compose a night's measures."""
        evaluation, plan, exposure = night.benchmark.evaluation, night.plan(), night.exposure
        estimation = make_plan(exposure, plan, night.benchmark.headline) if exposure else None
        is_later = exposure is not None and exposure.wants_lists
        catalogue = night.catalogue if plan.wants_lists else None
        now = None if is_later else estimation
        measures = make_measures(plan, catalogue, evaluation, now, ceilings=has_pools(night))
        later = {"estimates": estimation_measure(estimation)} if estimation and is_later else {}
        has_values = evaluation.user_metrics and bool(plan.rank_metrics or plan.list_metrics)
        request = replace(plan.request(lists=is_later), moments=night.moments)
        return cls(plan, request, measures, catalogue, has_values, later, estimation)


@dataclass(frozen=True)
class RunRows:
    """Rows that one run writes into result tables."""

    metrics: list[pa.Table]
    multiverse: list[pa.Table]
    ceilings: list[pa.Table]
    checks: list[Check]

    @property
    def warnings(self) -> int:
        """Count the checks that did not pass."""
        return sum(not check.passed for check in self.checks)


def make_run_rows(
    night: BenchmarkNight,
    wanted: NightMeasures,
    run: tuple[str, ModelConfig],
    results: Mapping[str, pa.Table],
    input_checks: list[Check],
) -> RunRows:
    """Make a run's rows.

    Args:
        night: the night.
        wanted: what the night measures.
        run: id of the run, and its model.
        results: the measures' results by name.
        input_checks: what the model's inputs left out.
    """
    run_id, model = run
    evaluation, checks, joined = night.benchmark.evaluation, list(input_checks), []
    if wanted.later and night.exposure:
        later, unknown = estimate_with_rewards(night.store, run_id, wanted.later, night.exposure.settings)
        results, joined = {**results, **later}, [unknown]
    metrics = list_results({**wanted.measures, **wanted.later}, results, METRICS)
    if wanted.estimation and night.exposure:
        metrics.append(pa.Table.from_pylist(empty_rows(wanted.estimation), METRIC_ROWS))
        checks += list_findings(night.exposure, wanted.estimation) + joined
        checks += strata_checks(wanted.estimation, _list_compared(results.get("estimates")))
    lists = make_adapter(model).lists
    checks += checks_from_counts(results.get("counts"), evaluation.parts, lists=lists)
    checks += check_moments(night.moment_counts, night.moments, night.definition)
    if wanted.catalogue and wanted.catalogue.groups:
        checks += wanted.catalogue.groups.check()
    checks += check_head(wanted.plan, wanted.catalogue)
    checks += check_uncorrected_metrics(wanted.plan, evaluation.draw.estimators)
    checks += [*check_night_gates(night), *check_model_gates(night, model)]
    ceilings = list_results(wanted.measures, results, CEILINGS)
    checks += check_reach(night, model.name, ceilings)
    checks += check_exchanged(night, metrics)
    return RunRows(metrics, list_results(wanted.measures, results, MULTIVERSE), ceilings, checks)


def check_exchanged(night: BenchmarkNight, metrics: Sequence[pa.Table]) -> list[Check]:
    """Warn where the headline says nothing of single users.

    It does so above its value with the truth of other users, by an interval over users of both.
    """
    evaluation, (metric, k), checks = night.benchmark.evaluation, parse_headline(night.benchmark), []
    rows = [row for table in metrics for row in table.to_pylist() if row["slice_key"] is None]
    own = {row["part"]: row for row in rows if (row["metric"], row["k"]) == (metric, k)}
    for part in evaluation.parts_exchanged:
        plain = part.removesuffix(EXCHANGED)
        if part in own and plain in own and metric in best_when("large"):
            (value, error), (other, other_error) = (
                (own[name]["value"], own[name]["stderr"]) for name in (plain, part)
            )
            reach = ndtri((1 + evaluation.bootstrap.level) / 2) * math.hypot(error, other_error)
            name = f"{plain}: {name_figure(metric, k)} with the truth of other users"
            detail = f"{value:.4f} with their own: it says nothing of single users beyond chance"
            checks.append(Check(name, other, value - reach, "warning", detail))
    return checks


def has_pools(night: BenchmarkNight) -> bool:
    """Tell whether candidates are given, or lists come from outside or through an index."""
    kinds = ListsModel, RetrievedModel
    return night.definition.candidates == "given" or any(
        isinstance(model, kinds) for model in night.benchmark.models
    )


LARGEST_FALL, ERRORS = 0.05, 4.0
"""A fall of reach is a warning above this share, and above so many standard errors."""


def check_reach(night: BenchmarkNight, model: str, ceilings: Sequence[pa.Table]) -> list[Check]:
    """Warn where candidates hold a smaller share of the truth than on the night before.

    That is the last run on an earlier night of the same data set. There is no check of a fall within
    LARGEST_FALL, or within ERRORS.
    """
    if not ceilings or not night.store.exists(CEILINGS.name):
        return []
    filters = [("suite", "=", night.benchmark.name), ("dataset", "=", night.benchmark.dataset.name)]
    filters += [("status", "=", "succeeded"), ("model", "=", model)]
    runs = sort_by_age(night.store.rows(RUNS, filters, ["logical_date", *AGE_COLUMNS]))
    earlier = [row for row in runs if row["logical_date"] < night.logical_date]
    last = sorted(earlier, key=lambda row: row["logical_date"])[-1:]
    run_ids = [row["run_id"] for row in last]
    names = ["part", "definition", "reach", "reach_stderr"]
    rows = night.store.rows(CEILINGS, [("run_id", "in", run_ids)], names) if last else []
    before, checks = {(row["part"], row["definition"]): row for row in rows}, {}
    for row in pa.concat_tables(ceilings).select(names).to_pylist():
        then = before.get((row["part"], row["definition"]))
        if then is None or None in (*row.values(), *then.values()):
            continue
        fall, error = then["reach"] - row["reach"], math.hypot(row["reach_stderr"], then["reach_stderr"])
        if fall > max(LARGEST_FALL * then["reach"], ERRORS * error):
            name = f"{row['part']}: fall of the truth among candidates"
            detail = f"{then['reach']:.4f} on {last[0]['logical_date']}: a pool or list lost truth"
            checks[name] = Check(name, fall, 0.0, "warning", detail)
    return [checks[name] for name in sorted(checks)]


def _list_compared(estimates: pa.Table | None) -> list[SimpleNamespace]:
    """List the estimates with replicates, which compare strata."""
    if estimates is None:
        return []
    rows = estimates.filter(pc.is_valid(estimates.column("replicates"))).to_pylist()
    return [SimpleNamespace(**row) for row in rows]


def list_additions(rows_by_run: Mapping[str, RunRows]) -> list[Addition]:
    """Return runs' rows as additions, one for each table."""
    additions = []
    for table, name in ((METRICS, "metrics"), (MULTIVERSE, "multiverse"), (CEILINGS, "ceilings")):
        rows = [
            rows.append_column("run_id", pa.repeat(pa.scalar(run_id), rows.num_rows))
            for run_id, run_rows in rows_by_run.items()
            for rows in getattr(run_rows, name)
        ]
        if rows:
            additions.append(Addition(table, rows=pa.concat_tables(rows, promote_options="default")))
    checks = [
        row for run_id, run_rows in rows_by_run.items() for row in check_rows(run_id, run_rows.checks)
    ]
    return [*additions, Addition(CHECKS, rows=checks)]
