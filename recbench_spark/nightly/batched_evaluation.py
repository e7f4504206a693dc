"""A group of models against the held-out parts in one pass: ranked, measured, committed, a commit a table.

The numbers are those of `nightly.model_evaluation`, bit for bit; that is the way where tasks cannot write
the warehouse's files themselves (a catalog, remote storage).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
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
from recbench_spark.errors import ConfigError, DataError, is_cancelled
from recbench_spark.evaluation.batch_schemas import METRIC_ROWS
from recbench_spark.evaluation.batched import shuffle
from recbench_spark.evaluation.batched.progress import watch_progress
from recbench_spark.evaluation.batched.shuffle import BatchedResult
from recbench_spark.evaluation.batched.task import BatchedWork
from recbench_spark.evaluation.estimators import debiased, sampled
from recbench_spark.evaluation.estimators.estimation_plan import EstimationPlan
from recbench_spark.evaluation.estimators.sampled import uncorrected_checks
from recbench_spark.evaluation.measure import RankingMeasure
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
from recbench_spark.nightly.night import BenchmarkNight, check_model_gates, check_night_gates
from recbench_spark.nightly.results import check_rows
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHECKS, METRICS, MULTIVERSE, RANKINGS, USER_METRICS
from recbench_spark.storage import shared_rows
from recbench_spark.training.model_adapter import make_behaviour

MODELS_AT_ONCE_SETTING = "spark.recbench.models_at_once"
"""Spark's setting: at most so many models in one pass; 0: each by itself, through Spark's writers."""

MAX_MODELS = 64
MAX_ITEM_BYTES = 16 << 30
"""Models of one pass at most, and bytes of their item sides: each host keeps all of these on its disk. A
worker maps four of them at a time, and reads one."""


@dataclass(frozen=True)
class RankableModel:
    """A model that can be ranked: what is ranked, what its inputs left out, bytes of its item side."""

    run_id: str
    model: ModelConfig
    ranked: RankingInput
    found: list[Check]
    bytes: int


@dataclass(frozen=True)
class EvaluationOutcome:
    """What came of one model of a group: its checks and seconds, or why it failed."""

    found: list[Check]
    seconds: float
    error: Exception | None = None


def read_models_per_pass(night: BenchmarkNight) -> int:
    """How many models one pass may have on this night; 0: each has its own (`nightly.model_evaluation`)."""
    said = str(night.spark.conf.get(MODELS_AT_ONCE_SETTING, None) or MAX_MODELS)
    if not said.isdecimal():
        raise ConfigError(
            f"{MODELS_AT_ONCE_SETTING} is '{said}', not a number of models", "0: each model by itself"
        )
    asked = int(said)
    if not asked or night.benchmark.evaluation.task == "rating":
        return 0
    return asked if night.store.can_add_files(RANKINGS, USER_METRICS) else 0


def open_model(night: BenchmarkNight, model: ModelConfig, run_id: str) -> RankableModel:
    """Open a model that has been trained or handed over; its inputs are checked."""
    ranked, found = make_behaviour(model).ranked(select_users(night), night.data)
    return RankableModel(run_id, model, ranked, found, _item_bytes(ranked))


def _item_bytes(ranked: RankingInput) -> int:
    """Bytes of what workers map, as it lies; 0 where it lies elsewhere."""
    rows = None if isinstance(ranked, GivenRows) else getattr(ranked.source, "rows", None)
    size = 0
    for file in rows.files if rows else ():
        with suppress(OSError):
            size += Path(re.sub("^file:/+", "/", file)).stat().st_size
    return size


def group_models(ready: Sequence[RankableModel], most: int) -> Iterator[list[RankableModel]]:
    """The models in order, cut where a group would be too large: models and bytes of item sides."""
    group: list[RankableModel] = []
    for one in ready:
        full = len(group) == most or sum(other.bytes for other in group) + one.bytes > MAX_ITEM_BYTES
        if group and full:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def evaluate_group(
    night: BenchmarkNight, group: Sequence[RankableModel], journal: Journal
) -> dict[str, EvaluationOutcome]:
    """By run: what came of it. Rankings, values of users, metrics and checks of those that did not fail
    are committed, one commit a table.
    """
    names = ", ".join(ready.model.name for ready in group)
    runs = [ready.run_id for ready in group]
    asked = _MeasurementRequest.of(night)
    with journal.stage("rankings", f"rank {names}: {', '.join(asked.parts)}", run_ids=runs) as counts:
        passes = _pass_with_retry(night, asked, group, journal)
        done = [(ready, passed) for ready, passed in zip(group, passes, strict=True) if passed.found]
        name = digest(runs, length=32)
        for table in ("rankings", "values"):
            files = [file for _, passed in done for file in getattr(passed.found, table)]
            night.store.commit_files(files, {"rankings": RANKINGS, "values": USER_METRICS}[table], name)
        counts["failed"] = len(group) - len(done)
    failed: dict[str, Exception] = {}
    with journal.stage("metrics", f"measure {names}", run_ids=runs) as counts:
        found = dict(_collect_run_rows(night, asked, done, failed))
        _write_rows(night, found)
        counts["warnings"] = sum(not check.passed for told in found.values() for check in told.checks)
    return {
        ready.run_id: EvaluationOutcome(
            found[ready.run_id].checks if ready.run_id in found else [],
            passed.seconds,
            passed.error or failed.get(ready.run_id),
        )
        for ready, passed in zip(group, passes, strict=True)
    }


# ------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class _MeasurementRequest:
    """What a night asks of every model; `later`: estimates that need a join with a table of rewards."""

    plan: MetricPlan
    request: RankingRequest
    measures: Mapping[str, RankingMeasure]
    values: tuple[Any, ...]
    parts: tuple[str, ...]
    estimation: EstimationPlan | None
    later: bool

    @classmethod
    def of(cls, night: BenchmarkNight) -> _MeasurementRequest:
        asked, plan, exposure = night.benchmark.evaluation, night.plan(), night.exposure
        estimation = make_plan(exposure, plan, night.benchmark.headline) if exposure else None
        later = exposure is not None and exposure.wants_lists
        measures = _make_measures(night, plan)
        if estimation and not later:
            measures["estimates"] = debiased.estimation_measure(estimation)
        values = _user_value_functions(night, plan) if asked.user_metrics else ()
        return cls(plan, plan.request(lists=later), measures, values, asked.parts, estimation, later)


def _make_measures(night: BenchmarkNight, plan: MetricPlan) -> dict[str, RankingMeasure]:
    """All that is worked out of rankings, by name; but for `exposure` those of `results.write_metrics`."""
    asked, threshold = night.benchmark.evaluation, plan.definition.threshold
    found = {"counts": RankingMeasure(partial(count_batches, threshold), ("part",), merge_counts_table)}
    if plan.rank_metrics:
        finish = partial(accuracy.finish_metrics, plan.table(plan.rank_metrics), plan.bootstrap)
        once = (partial(accuracy.rank_values, plan), partial(accuracy.model_totals, plan))
        found["ranks"] = RankingMeasure(partial(accuracy.total_batches, plan), SLICE, finish, once)
    if plan.list_metrics:
        finish = partial(accuracy.finish_metrics, plan.table(plan.list_metrics), plan.bootstrap)
        found["lists"] = RankingMeasure(
            _wrap_list_measure(night, plan, accuracy.listed_total_batches), SLICE, finish
        )
    if plan.overall:
        shown = partial(listed.listing_batches, night.data.known_items, plan.ks)
        found["shown"] = RankingMeasure(
            shown, ("part", "bucket"), partial(listed.listing_histogram, len(plan.ks))
        )
    draw = asked.draw
    if plan.definition.candidates == "uniform" and draw.estimators and sampled.correctable_metrics(plan):
        found |= sampled.correction_measures(plan, draw.estimators, draw.n)
    if asked.multiverse:
        found["multiverse"] = multiverse.multiverse_measure(plan)
    return found


def _wrap_list_measure(night: BenchmarkNight, plan: MetricPlan, measured: Any) -> Any:
    """A function of `LISTED` rows as one of rankings."""
    facts, known, threshold = (
        night.catalogue.facts(plan.list_metrics),
        night.data.known_items,
        plan.definition.threshold,
    )

    def of_rankings(batches: Batches) -> Batches:
        yield from measured(plan, facts, listed.listed_batches(known, threshold, batches))

    return of_rankings


def _user_value_functions(night: BenchmarkNight, plan: MetricPlan) -> tuple[Any, ...]:
    found: list[Any] = [partial(accuracy.user_value_batches, plan)] if plan.rank_metrics else []
    if plan.list_metrics:
        found.append(_wrap_list_measure(night, plan, accuracy.listed_value_batches))
    return tuple(found)


# ------------------------------------------------------------------------------- the pass


@dataclass(frozen=True)
class _PassResult:
    """What a pass found of a model, its share of the pass's seconds, or why it failed."""

    found: BatchedResult | None
    seconds: float
    error: Exception | None = None


def _pass_with_retry(
    night: BenchmarkNight, asked: _MeasurementRequest, group: Sequence[RankableModel], journal: Journal
) -> list[_PassResult]:
    """One pass for all; a model that fails in it, or all of a pass that dies, once more by itself."""
    try:
        passes = _run_pass(night, asked, group, journal)
    except Exception as error:
        if is_cancelled(error) or is_java_gone(error):
            raise
        passes = [_PassResult(None, 0.0, error) for _ in group]
    return [
        passed if passed.found or len(group) == 1 else _pass_with_retry(night, asked, [ready], journal)[0]
        for ready, passed in zip(group, passes, strict=True)
    ]


def _run_pass(
    night: BenchmarkNight, asked: _MeasurementRequest, group: Sequence[RankableModel], journal: Journal
) -> list[_PassResult]:
    started = time.monotonic()
    users = select_users(night)
    scored = any(not make_behaviour(ready.model).brings_candidates for ready in group)
    folders = (night.store.location(RANKINGS.name), night.store.location(USER_METRICS.name))
    members = tuple(shuffle.to_member(ready.run_id, ready.ranked, asked.request) for ready in group)
    notes = _progress_folder(night)
    work = BatchedWork(members, asked.request, asked.measures, asked.values, folders, str(notes))
    with watch_progress(notes, night.n_rankings * len(group), journal.say):
        found = shuffle.evaluate(
            users,
            [ready.ranked for ready in group],
            work,
            night.n_rankings,
            select_candidates(night, users) if scored else None,
        )
    wall = time.monotonic() - started
    whole = sum(one.seconds for one in found) or 1.0
    return [
        _PassResult(None if one.error else one, wall * one.seconds / whole, _as_error(one.error))
        for one in found
    ]


def _progress_folder(night: BenchmarkNight) -> Path:
    """Where tasks note how far they are: all hosts see the warehouse, whose files they write."""
    assert night.store.folder is not None
    return Path(shared_rows.scratch_folder(str(night.store.folder)))


def _as_error(message: str | None) -> Exception | None:
    return None if message is None else DataError(message)


# ------------------------------------------------------------------------------- what is told


@dataclass(frozen=True)
class _RunRows:
    """Rows of tables of one run."""

    metrics: list[pa.Table]
    multiverse: list[pa.Table]
    checks: list[Check]


def _collect_run_rows(
    night: BenchmarkNight,
    asked: _MeasurementRequest,
    done: Sequence[tuple[RankableModel, _PassResult]],
    failed: dict[str, Exception],
) -> Iterator[tuple[str, _RunRows]]:
    """Yield the run and rows of each model that was ranked; an error is noted as that of its run alone."""
    for ready, passed in done:
        try:
            yield ready.run_id, _make_run_rows(night, asked, ready, passed)
        except Exception as error:
            if is_cancelled(error) or is_java_gone(error):
                raise
            failed[ready.run_id] = error


def _make_run_rows(
    night: BenchmarkNight, asked: _MeasurementRequest, ready: RankableModel, passed: _PassResult
) -> _RunRows:
    assert passed.found is not None
    rows = passed.found.measured
    metrics = [rows[name] for name in ("ranks", "lists", "corrected", "likely") if name in rows]
    if "shown" in rows:
        metrics.append(listed.overall_rows(asked.plan, night.n_items, rows["shown"]))
    checks = list(ready.found)
    if asked.estimation:
        corrected, told = _exposure_rows(night, asked, asked.estimation, ready, rows)
        metrics, checks = [*metrics, corrected], checks + told
    lists = make_behaviour(ready.model).lists
    counted = rows["counts"].to_batches() if "counts" in rows else []
    checks += checks_from_counts(iter(counted), asked.parts, lists=lists)
    checks += uncorrected_checks(asked.plan, night.benchmark.evaluation.draw.estimators)
    checks += check_night_gates(night) + check_model_gates(night, ready.model)
    return _RunRows(metrics, [rows["multiverse"]] if "multiverse" in rows else [], checks)


def _exposure_rows(
    night: BenchmarkNight,
    asked: _MeasurementRequest,
    plan: EstimationPlan,
    ready: RankableModel,
    rows: Mapping[str, pa.Table],
) -> tuple[pa.Table, list[Check]]:
    """Rows of `metrics` corrected for exposure, and what is to be known of them."""
    exposure = night.exposure
    assert exposure is not None
    if asked.later:
        rankings = night.store.read_run("rankings", ready.run_id)
        frame, told = estimate_exposure(night.store, exposure, plan, rankings)
        return frame.toArrow(), told
    nothing = pa.Table.from_pylist(empty_rows(plan), METRIC_ROWS)
    if "estimates" not in rows:
        return nothing, list_findings(exposure, plan) + strata_checks(plan, [])
    found = rows["estimates"]
    compared = found.filter(pc.is_valid(found.column("replicates"))).to_pylist()
    told = list_findings(exposure, plan) + strata_checks(plan, [SimpleNamespace(**row) for row in compared])
    return pa.concat_tables([found.select(METRIC_ROWS.names).cast(METRIC_ROWS), nothing]), told


def _write_rows(night: BenchmarkNight, found: Mapping[str, _RunRows]) -> None:
    """All rows of a group, a commit a table."""
    for table, name in ((METRICS, "metrics"), (MULTIVERSE, "multiverse")):
        rows = [
            rows.append_column("run_id", pa.repeat(pa.scalar(run_id), rows.num_rows))
            for run_id, told in found.items()
            for rows in getattr(told, name)
        ]
        if rows:
            night.store.append_rows(pa.concat_tables(rows, promote_options="default"), table)
    checks = [row for run_id, told in found.items() for row in check_rows(run_id, told.checks)]
    night.store.append_rows(checks, CHECKS)
