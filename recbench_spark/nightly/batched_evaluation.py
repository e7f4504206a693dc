"""Evaluate a group of models on the held-out parts in one pass, with one commit for each table.

The numbers equal those of `nightly.model_evaluation` bit for bit. That module is used where tasks cannot
write the files of the warehouse themselves (a catalog where Spark writes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.checks import Check
from recbench_spark.config import ModelConfig, digest
from recbench_spark.engine.versions import collect_arrow, read_setting
from recbench_spark.errors import ConfigError, DataError, is_cancelled
from recbench_spark.evaluation.batch_schemas import METRIC_ROWS, RankingMeasure
from recbench_spark.evaluation.batched import shuffle
from recbench_spark.evaluation.batched.progress import watch_progress
from recbench_spark.evaluation.batched.shuffle import BatchedResult
from recbench_spark.evaluation.batched.task import BatchedWork
from recbench_spark.evaluation.estimators import debiased, sampled
from recbench_spark.evaluation.estimators.estimation_plan import EstimationPlan
from recbench_spark.evaluation.estimators.sampled import check_uncorrected_metrics
from recbench_spark.evaluation.metrics import accuracy, listed, multiverse
from recbench_spark.evaluation.metrics.accuracy import SLICE, MetricPlan
from recbench_spark.evaluation.ranking.rank import GivenRows, RankingInput
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking_counts import checks_from_counts, count_batches, merge_counts_table
from recbench_spark.failures import is_java_gone
from recbench_spark.kernels.streams import Batches
from recbench_spark.nightly.candidates import select_candidates
from recbench_spark.nightly.exposure import (
    empty_rows,
    estimate_exposure,
    list_findings,
    make_plan,
    strata_checks,
)
from recbench_spark.nightly.model_evaluation import select_users
from recbench_spark.nightly.night import (
    BenchmarkNight,
    check_model_gates,
    check_night_gates,
)
from recbench_spark.nightly.standalone_runs import check_rows
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHECKS, METRICS, MULTIVERSE, RANKINGS, USER_METRICS
from recbench_spark.storage import shared_rows
from recbench_spark.storage.objects import measure_files
from recbench_spark.training.model_adapter import make_adapter

MODELS_AT_ONCE_SETTING = "spark.recbench.models_at_once"
"""Spark setting: the largest number of models in one pass. 0: each model by itself, through Spark's
writers."""

MAX_MODELS = 64
MAX_ITEM_BYTES = 16 << 30
"""Largest number of models in one pass, and largest size of their item files in bytes: each host keeps
all of these files on its disk. A worker maps four of them at a time and reads one."""


@dataclass(frozen=True)
class RankableModel:
    """A model that is ready to be ranked.

    Attributes:
        run_id: id of its run.
        model: its settings.
        ranked: input of the ranking.
        checks: what its inputs left out.
        bytes: size of its item files.
    """

    run_id: str
    model: ModelConfig
    ranked: RankingInput
    checks: list[Check]
    bytes: int


@dataclass(frozen=True)
class EvaluationOutcome:
    """Checks and seconds of one model of a group, or the error it failed with."""

    checks: list[Check]
    seconds: float
    error: Exception | None = None


def read_models_per_pass(night: BenchmarkNight) -> int:
    """Return how many models one pass may have on this night.

    0: each model is evaluated by itself (`nightly.model_evaluation`).
    """
    text = str(read_setting(night.spark, MODELS_AT_ONCE_SETTING) or MAX_MODELS)
    if not text.isdecimal():
        raise ConfigError(
            f"{MODELS_AT_ONCE_SETTING} is '{text}', not a number of models", "0: each model by itself"
        )
    limit = int(text)
    if not limit or night.benchmark.evaluation.task == "rating":
        return 0
    return limit if night.store.can_add_files(RANKINGS, USER_METRICS) else 0


def open_model(night: BenchmarkNight, model: ModelConfig, run_id: str) -> RankableModel:
    """Open a trained or external model and check its inputs."""
    ranked, checks = make_adapter(model).prepare_ranking(select_users(night), night.data)
    return RankableModel(run_id, model, ranked, checks, _item_bytes(ranked))


def _item_bytes(ranked: RankingInput) -> int:
    """Return the bytes of the files that workers map; 0 for files that this process cannot see."""
    rows = None if isinstance(ranked, GivenRows) else getattr(ranked.source, "rows", None)
    with suppress(OSError):
        return sum(size or 0 for size in measure_files(rows.files)) if rows else 0
    return 0


def group_models(models: Sequence[RankableModel], most: int) -> Iterator[list[RankableModel]]:
    """Yield the models in order, in groups that are limited in their models and in bytes of item files."""
    group: list[RankableModel] = []
    for candidate in models:
        full = len(group) == most or sum(other.bytes for other in group) + candidate.bytes > MAX_ITEM_BYTES
        if group and full:
            yield group
            group = []
        group.append(candidate)
    if group:
        yield group


def evaluate_group(
    night: BenchmarkNight, group: Sequence[RankableModel], journal: Journal
) -> dict[str, EvaluationOutcome]:
    """Evaluate a group of models and return an outcome for each run id.

    Rankings, user values, metrics and checks of the models that did not fail are committed, one commit for
    each table.
    """
    names = ", ".join(ready.model.name for ready in group)
    runs = [ready.run_id for ready in group]
    request = _MeasurementRequest.from_night(night)
    with journal.stage("rankings", f"rank {names}: {', '.join(request.parts)}", run_ids=runs) as counts:
        passes = _pass_with_retry(night, request, group, journal)
        ranked = [(ready, passed) for ready, passed in zip(group, passes, strict=True) if passed.result]
        _commit_files(night, [passed.result for _, passed in ranked], digest(runs, length=32))
        counts["failed"] = len(group) - len(ranked)
    failed: dict[str, Exception] = {}
    with journal.stage("metrics", f"measure {names}", run_ids=runs) as counts:
        rows_by_run = dict(_collect_run_rows(night, request, ranked, failed))
        _write_rows(night, rows_by_run)
        counts["warnings"] = sum(
            not check.passed for run_rows in rows_by_run.values() for check in run_rows.checks
        )
    return {
        ready.run_id: EvaluationOutcome(
            rows_by_run[ready.run_id].checks if ready.run_id in rows_by_run else [],
            passed.seconds,
            passed.error or failed.get(ready.run_id),
        )
        for ready, passed in zip(group, passes, strict=True)
    }


def _commit_files(night: BenchmarkNight, results: Sequence[BatchedResult | None], name: str) -> None:
    """Commit the files of rankings and of values of users, each table under the name of the group."""
    rankings = [file for result in results if result for file in result.rankings]
    values = [file for result in results if result for file in result.values]
    night.store.run_together(
        [
            partial(night.store.commit_files, rankings, RANKINGS, name),
            partial(night.store.commit_files, values, USER_METRICS, name),
        ]
    )


# ------------------------------------------------------------------------------- measures of a night


@dataclass(frozen=True)
class _MeasurementRequest:
    """Measures of a night for every model; `later`: some estimates need a join with rewards."""

    plan: MetricPlan
    request: RankingRequest
    measures: Mapping[str, RankingMeasure]
    values: tuple[Any, ...]
    parts: tuple[str, ...]
    estimation: EstimationPlan | None
    later: bool

    @classmethod
    def from_night(cls, night: BenchmarkNight) -> _MeasurementRequest:
        evaluation, plan, exposure = night.benchmark.evaluation, night.plan(), night.exposure
        estimation = make_plan(exposure, plan, night.benchmark.headline) if exposure else None
        later = exposure is not None and exposure.wants_lists
        measures = _make_measures(night, plan)
        if estimation and not later:
            measures["estimates"] = debiased.estimation_measure(estimation)
        values = _user_value_functions(night, plan) if evaluation.user_metrics else ()
        return cls(plan, plan.request(lists=later), measures, values, evaluation.parts, estimation, later)


def _make_measures(night: BenchmarkNight, plan: MetricPlan) -> dict[str, RankingMeasure]:
    """Return the measures of `results.write_metrics` by name, and `estimates` beside them."""
    evaluation, threshold = night.benchmark.evaluation, plan.definition.threshold
    measures = {"counts": RankingMeasure(partial(count_batches, threshold), ("part",), merge_counts_table)}
    if plan.rank_metrics:
        finish = partial(accuracy.finish_metrics, plan.table(plan.rank_metrics), plan.bootstrap)
        per_model = (partial(accuracy.rank_values, plan), partial(accuracy.model_totals, plan))
        measures["ranks"] = RankingMeasure(partial(accuracy.total_batches, plan), SLICE, finish, per_model)
    if plan.list_metrics:
        finish = partial(accuracy.finish_metrics, plan.table(plan.list_metrics), plan.bootstrap)
        measures["lists"] = RankingMeasure(
            _wrap_list_measure(night, plan, accuracy.sum_list_values), SLICE, finish
        )
    if plan.overall:
        shown = partial(listed.listing_batches, night.data.known_items, plan.ks)
        measures["shown"] = RankingMeasure(
            shown, ("part", "bucket"), partial(listed.listing_histogram, len(plan.ks))
        )
    draw = evaluation.draw
    if plan.definition.candidates == "uniform" and draw.estimators and sampled.correctable_metrics(plan):
        measures |= sampled.correction_measures(plan, draw.estimators, draw.n)
    if evaluation.multiverse:
        measures["multiverse"] = multiverse.multiverse_measure(plan)
    return measures


def _wrap_list_measure(night: BenchmarkNight, plan: MetricPlan, measure_lists: Any) -> Any:
    """Return a function of rankings from a function of `LISTED` rows."""
    facts, known_items, threshold = (
        night.catalogue.facts(plan.list_metrics),
        night.data.known_items,
        plan.definition.threshold,
    )

    def measure_rankings(batches: Batches) -> Batches:
        yield from measure_lists(plan, facts, listed.look_up_listed_items(known_items, threshold, batches))

    return measure_rankings


def _user_value_functions(night: BenchmarkNight, plan: MetricPlan) -> tuple[Any, ...]:
    functions: list[Any] = [partial(accuracy.user_value_batches, plan)] if plan.rank_metrics else []
    if plan.list_metrics:
        functions.append(_wrap_list_measure(night, plan, accuracy.compute_list_values))
    return tuple(functions)


# ------------------------------------------------------------------------------- the pass


@dataclass(frozen=True)
class _PassResult:
    """Result of a model in a pass and its share of the seconds, or the error it failed with."""

    result: BatchedResult | None
    seconds: float
    error: Exception | None = None


def _pass_with_retry(
    night: BenchmarkNight, request: _MeasurementRequest, group: Sequence[RankableModel], journal: Journal
) -> list[_PassResult]:
    """Run one pass for all models; a model that fails in it is tried once more by itself.

    Where the whole pass dies, every model is tried by itself.
    """
    try:
        passes = _run_pass(night, request, group, journal)
    except Exception as error:
        if is_cancelled(error) or is_java_gone(error):
            raise
        passes = [_PassResult(None, 0.0, error) for _ in group]
    return [
        passed
        if passed.result or len(group) == 1
        else _pass_with_retry(night, request, [ready], journal)[0]
        for ready, passed in zip(group, passes, strict=True)
    ]


def _run_pass(
    night: BenchmarkNight, request: _MeasurementRequest, group: Sequence[RankableModel], journal: Journal
) -> list[_PassResult]:
    started = time.monotonic()
    users = select_users(night)
    needs_candidates = any(not make_adapter(ready.model).brings_candidates for ready in group)
    folders = (night.store.location(RANKINGS.name), night.store.location(USER_METRICS.name))
    members = tuple(shuffle.to_member(ready.run_id, ready.ranked, request.request) for ready in group)
    notes = _progress_folder(night)
    work = BatchedWork(
        members, request.request, request.measures, request.values, folders, str(notes or "")
    )
    draw = journal.bar.move if journal.bar else None
    with watch_progress(notes, night.n_rankings * len(group), journal.say, draw):
        results = shuffle.evaluate(
            users,
            [ready.ranked for ready in group],
            work,
            night.n_rankings,
            select_candidates(night, users) if needs_candidates else None,
        )
    wall = time.monotonic() - started
    total = sum(result.seconds for result in results) or 1.0
    return [
        _PassResult(
            None if result.error else result, wall * result.seconds / total, _as_error(result.error)
        )
        for result in results
    ]


def _progress_folder(night: BenchmarkNight) -> Path | None:
    """Return the folder in which tasks note their progress; None: the warehouse is no folder."""
    folder = night.store.folder
    return None if folder is None else Path(shared_rows.scratch_folder(str(folder)))


def _as_error(message: str | None) -> Exception | None:
    return None if message is None else DataError(message)


# ------------------------------------------------------------------------------- rows of a model


@dataclass(frozen=True)
class _RunRows:
    """Rows of result tables of one run."""

    metrics: list[pa.Table]
    multiverse: list[pa.Table]
    checks: list[Check]


def _collect_run_rows(
    night: BenchmarkNight,
    request: _MeasurementRequest,
    ranked: Sequence[tuple[RankableModel, _PassResult]],
    failed: dict[str, Exception],
) -> Iterator[tuple[str, _RunRows]]:
    """Yield the run id and rows of each ranked model; an error is noted for its run alone."""
    for ready, passed in ranked:
        try:
            yield ready.run_id, _make_run_rows(night, request, ready, passed)
        except Exception as error:
            if is_cancelled(error) or is_java_gone(error):
                raise
            failed[ready.run_id] = error


def _make_run_rows(
    night: BenchmarkNight, request: _MeasurementRequest, ready: RankableModel, passed: _PassResult
) -> _RunRows:
    assert passed.result is not None
    rows = passed.result.measured
    metrics = [rows[name] for name in ("ranks", "lists", "corrected", "likely") if name in rows]
    if "shown" in rows:
        metrics.append(listed.overall_rows(request.plan, night.n_items, rows["shown"]))
    checks = list(ready.checks)
    if request.estimation:
        corrected, findings = _exposure_rows(night, request, request.estimation, ready, rows)
        metrics, checks = [*metrics, corrected], checks + findings
    lists = make_adapter(ready.model).lists
    count_rows = rows["counts"].to_batches() if "counts" in rows else []
    checks += checks_from_counts(iter(count_rows), request.parts, lists=lists)
    checks += check_uncorrected_metrics(request.plan, night.benchmark.evaluation.draw.estimators)
    checks += [*check_night_gates(night), *check_model_gates(night, ready.model)]
    return _RunRows(metrics, [rows["multiverse"]] if "multiverse" in rows else [], checks)


def _exposure_rows(
    night: BenchmarkNight,
    request: _MeasurementRequest,
    plan: EstimationPlan,
    ready: RankableModel,
    rows: Mapping[str, pa.Table],
) -> tuple[pa.Table, list[Check]]:
    """Return rows of `metrics` corrected for exposure, and checks on them."""
    exposure = night.exposure
    assert exposure is not None
    if request.later:
        rankings = night.store.read_run("rankings", ready.run_id)
        frame, checks = estimate_exposure(night.store, exposure, plan, rankings)
        return collect_arrow(frame), checks
    empty = pa.Table.from_pylist(empty_rows(plan), METRIC_ROWS)
    if "estimates" not in rows:
        return empty, list_findings(exposure, plan) + strata_checks(plan, [])
    estimates = rows["estimates"]
    compared = estimates.filter(pc.is_valid(estimates.column("replicates"))).to_pylist()
    checks = list_findings(exposure, plan) + strata_checks(
        plan, [SimpleNamespace(**row) for row in compared]
    )
    return pa.concat_tables([estimates.select(METRIC_ROWS.names).cast(METRIC_ROWS), empty]), checks


def _write_rows(night: BenchmarkNight, rows_by_run: Mapping[str, _RunRows]) -> None:
    """Write all rows of a group, one commit for each table."""
    appends: list[Callable[[], object]] = []
    for table, name in ((METRICS, "metrics"), (MULTIVERSE, "multiverse")):
        rows = [
            rows.append_column("run_id", pa.repeat(pa.scalar(run_id), rows.num_rows))
            for run_id, run_rows in rows_by_run.items()
            for rows in getattr(run_rows, name)
        ]
        if rows:
            whole = pa.concat_tables(rows, promote_options="default")
            appends.append(partial(night.store.append_rows, whole, table))
    checks = [
        row for run_id, run_rows in rows_by_run.items() for row in check_rows(run_id, run_rows.checks)
    ]
    night.store.run_together([*appends, partial(night.store.append_rows, checks, CHECKS)])
