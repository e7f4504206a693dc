"""Nights in scratch: honest ones, then one for each fault, and what rang."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.differences import ComparisonGroup, ComparisonPlan
from recbench_spark.config import Benchmark, ModelConfig
from recbench_spark.core.checks import Check
from recbench_spark.core.hashed_ids import hash_rows
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import RecbenchError
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.benchmark_checks import check_ranking
from recbench_spark.night.comparisons import compare_night, describe_regressions
from recbench_spark.night.night import (
    BenchmarkNight,
    check_night_gates,
    count_attempts,
    find_newest_runs,
    list_missing_models,
    open_night,
    require_truth,
)
from recbench_spark.night.run_night import run_models
from recbench_spark.night.split import prepare_split
from recbench_spark.night.verdicts import describe_verdict, read_verdicts
from recbench_spark.query.answers import make_query_runner
from recbench_spark.reports.advice import BY_NATURE
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHECKS, METRICS, SPLITS
from recbench_spark.self_tests.scratch_tables import ScratchWarehouse
from recbench_spark.storage.commits import commit

Numbers = Mapping[tuple[Any, ...], float]


@dataclass(frozen=True)
class Alarm:
    """Something that a night said.

    Attributes:
        by: gate, regression, rise, check or refused.
        key: what it is about, the same on every night.
        sentence: what was said.
    """

    by: str
    key: str
    sentence: str


@dataclass(frozen=True)
class Rehearsed:
    """A night in scratch.

    Attributes:
        alarms: what it said, in the order in which it came.
        facts: numbers of the manifest by (part, fact).
        metrics: numbers over all users by (model, part, metric, k).
        night: the night; None: it was refused before it was opened.
    """

    alarms: tuple[Alarm, ...] = ()
    facts: Numbers = field(default_factory=dict)
    metrics: Numbers = field(default_factory=dict)
    night: BenchmarkNight | None = None

    def rang(self, honest: Sequence[Alarm]) -> tuple[Alarm, ...]:
        """Return the alarms that an honest night does not have."""
        return select_new(self.alarms, honest)

    def divide(self, twin: str, model: str, honest: Rehearsed) -> Rehearsed | None:
        """Return what the night said of a twin, as if it were the model; None: its run failed."""
        own = [alarm for alarm in self.alarms if alarm.key.startswith(f"{twin}:")]
        if any(alarm.key in ("refused", f"{twin}: refused") for alarm in self.alarms):
            return None
        alarms = (
            Alarm(one.by, one.key.replace(twin, model), one.sentence.replace(twin, model)) for one in own
        )
        metrics = {(model, *key[1:]): value for key, value in self.metrics.items() if key[0] == twin}
        return Rehearsed(tuple(alarms), self.facts, {**honest.metrics, **metrics}, self.night)


def select_new(alarms: Sequence[Alarm], known: Sequence[Alarm]) -> tuple[Alarm, ...]:
    """Return the alarms about what the known ones are not about."""
    keys = {alarm.key for alarm in known}
    return tuple(alarm for alarm in alarms if alarm.key not in keys)


@dataclass(frozen=True)
class Honest:
    """Facts that faulty nights take from the honest one.

    Attributes:
        alarms: what rang then.
        best: name of the best model that ranks by user, which is evaluated first.
        night: the night, whose fits are taken where training rows are the same.
    """

    alarms: tuple[Alarm, ...]
    best: str
    night: BenchmarkNight | None = None


@pin_inputs()
def rehearse(
    store: ScratchWarehouse,
    benchmark: Benchmark,
    day: date,
    *,
    honest: Honest | None = None,
    twins: Mapping[str, str] = MappingProxyType({}),
    log_only: bool = False,
) -> Rehearsed:
    """Run a night in a scratch warehouse, without its report.

    Args:
        store: the warehouse.
        benchmark: the file.
        day: the night.
        honest: the honest night; a faulty one ends where something rings that did not ring then. None: the
            night runs to its end.
        twins: model -> the model whose night before is its own, too.
        log_only: end before the models; the split has no items and no blocks.
    """
    alarms: list[Alarm] = []
    night = None
    try:
        night = open_night(store, benchmark, day)
        check_ranking(night.benchmark)
        journal = Journal(io.StringIO())
        prepare_split(store, night.benchmark, night.split_id, journal, day, audit_only=log_only)
        if honest is not None and honest.night is not None and not log_only:
            carry_fits(store, honest.night, night)
        for _ in _run_steps(night, alarms, honest, twins):
            if log_only or (honest is not None and select_new(alarms, honest.alarms)):
                break
    except RecbenchError as error:
        alarms.append(Alarm("refused", "refused", error.message))
    if night is None:
        return Rehearsed(tuple(alarms))
    metrics: Numbers = {}
    if store.exists(METRICS.name):
        metrics = _read_metrics(night, {row["run_id"]: model for model, row in find_tonight(night).items()})
    return Rehearsed(tuple(alarms), _read_facts(night), metrics, night)


def carry_fits(store: ScratchWarehouse, honest: BenchmarkNight, night: BenchmarkNight) -> None:
    """Give a night the honest one's fits where a fit reads the same.

    The same are rows that are not tested, and all ids and ratings.
    """
    if night.split_id == honest.split_id or _sign_rows(honest) != _sign_rows(night):
        return
    for adapter in map(make_adapter, night.benchmark.models):
        if adapter.learns:
            store.carry_fit(adapter.key(honest.data), adapter.key(night.data))


def read_labelled_rows(night: BenchmarkNight) -> pa.Table:
    """Read a night's split: user_id, item_id, rating, event_time, part."""
    names, own = ["user_id", "item_id", "rating", "event_time", "part"], pc.field("split_id")
    return night.store.dataset(SPLITS).to_table(names, filter=own == night.split_id)


def _sign_rows(night: BenchmarkNight) -> list[bytes]:
    """Hash a split's rows that are not tested, and columns of all rows, in any order."""
    rows = read_labelled_rows(night)
    tested = pc.is_in(rows.column("part"), pa.array(night.benchmark.evaluation.parts))
    columns = [rows.select([name]) for name in ("user_id", "item_id", "rating")]
    return [np.sort(hash_rows(one, 0)).tobytes() for one in (rows.filter(pc.invert(tested)), *columns)]


def _run_steps(
    night: BenchmarkNight, alarms: list[Alarm], honest: Honest | None, twins: Mapping[str, str]
) -> Iterator[None]:
    """Run a night step by step, and note what each says."""
    require_truth(night)
    if night.curves is not None:
        night.curves.require_users()
    alarms += [_describe_check("gate", "", check) for check in check_night_gates(night) if not check.passed]
    yield
    todo = list_missing_models(night, count_attempts(night))
    first = [model for model in todo if honest and model.name == honest.best]
    for models in (first, [model for model in todo if model not in first]):
        if models:
            yield from _run_models(night, models, alarms, twins)


def _run_models(
    night: BenchmarkNight, models: Sequence[ModelConfig], alarms: list[Alarm], twins: Mapping[str, str]
) -> Iterator[None]:
    """Evaluate some models and compare them with the night before, step by step."""
    journal = Journal(io.StringIO())
    run_ids, failed, _ = run_models(night, models, count_attempts(night), journal)
    for model, message in sorted(failed.items()):
        alarms.append(Alarm("refused", f"{model}: refused", f"{model}: {message}"))
    alarms += read_checks(night, run_ids)
    yield
    narrow = partial(narrow_plan, models={model.name for model in models}, twins=twins)
    compared = compare_night(night, journal, narrow)
    if compared.comparison_id is None:  # there is nothing to judge
        return
    commit(night.store, *compared.additions)
    for text in describe_regressions(night, compared.comparison_id):
        alarms.append(Alarm("regression", f"{text.partition(' is ')[0]} fell", text))
    yield
    tonight = [row["run_id"] for row in find_tonight(night).values()]
    for verdict in read_verdicts(make_query_runner(night.store), night.benchmark, tonight):
        if verdict.verdict == "too good":
            key = f"{verdict.model}: {verdict.metric}@{verdict.k} of {verdict.part} rose"
            alarms.append(Alarm("rise", key, describe_verdict(verdict)))
    yield


def narrow_plan(plan: ComparisonPlan, models: Set[str], twins: Mapping[str, str]) -> ComparisonPlan:
    """Return a plan without metrics, cut-offs and pairs that no rule asks for.

    Of the nights before, those of the given models and of twins stay; rules for a model are of its twins.
    """
    if not plan.rules:
        return plan
    rules = [*plan.rules]
    rules += [
        rule.model_copy(update={"model": twin})
        for twin, model in twins.items()
        for rule in plan.rules
        if rule.model == model
    ]
    pairs, groups = any(rule.against == "model" for rule in rules), []
    places = {run.model: place for place, run in enumerate(plan.runs) if run.model in twins}
    for group in plan.groups:
        owner = plan.runs[group.runs[0]].model
        if pairs if group.kind == "pair" else owner in models:
            groups.append(group)
        for twin, place in places.items() if group.kind != "pair" else ():
            if twins[twin] == owner:
                groups.append(ComparisonGroup(group.kind, (place, group.runs[1])))
    metrics = tuple(metric for metric in plan.metrics if any(rule.metric == metric for rule in rules))
    cuts = tuple(k for k in plan.ks if any(rule.k == k for rule in rules))
    return replace(plan, rules=tuple(rules), groups=tuple(groups), metrics=metrics, ks=cuts)


def find_tonight(night: BenchmarkNight) -> Mapping[str, Mapping[str, Any]]:
    """Find each model's newest run of a night."""
    return find_newest_runs(night, [("logical_date", "=", night.logical_date)])


def read_checks(night: BenchmarkNight, run_ids: Mapping[str, str]) -> list[Alarm]:
    """Return the failed checks of some runs, by model, without those that its kind cannot pass."""
    models = {run_id: model for model, run_id in run_ids.items()}
    kinds = {model.name: str(model.kind) for model in night.benchmark.models}
    rows = night.store.rows(CHECKS, [("run_id", "in", sorted(models)), ("passed", "=", False)])
    rows.sort(key=lambda row: (models[row["run_id"]], row["check"]))
    names = ("check", "observed", "threshold", "severity", "detail")
    checks = [(models[row["run_id"]], Check(*(row[name] for name in names))) for row in rows]
    return [
        _describe_check("check", f"{model}: ", check)
        for model, check in checks
        if not any(name in check.check and kinds[model] in failing for name, failing in BY_NATURE.items())
    ]


def _describe_check(by: str, model: str, check: Check) -> Alarm:
    return Alarm(by, f"{model}{check.check}", f"{model}{check.summary_line()}")


def _read_facts(night: BenchmarkNight) -> Numbers:
    rows = night.manifest if night.store.exists("manifests") else []
    return {(row["part"], row["fact"]): row["value"] for row in rows if row["value"] is not None}


def _read_metrics(night: BenchmarkNight, models: Mapping[str, str]) -> Numbers:
    filters = [("run_id", "in", sorted(models)), ("estimator", "=", "holdout")]
    names = ["run_id", "part", "metric", "k", "slice_key", "value"]
    return {
        (models[row["run_id"]], row["part"], row["metric"], row["k"]): row["value"]
        for row in night.store.rows(METRICS, filters, names)
        if row["slice_key"] is None and row["value"] is not None and not math.isnan(row["value"])
    }
