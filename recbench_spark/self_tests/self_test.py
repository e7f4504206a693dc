"""A self-test: plant faults in nights of a sample, and say who saw each."""

from __future__ import annotations

import math
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from recbench_spark.config import Benchmark, ModelConfig
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.engine.local import choose_workers
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.metrics.result_views import name_figure
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.night.gates import compares_nights
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.reports.advice import IMPERSONAL
from recbench_spark.reports.phrases import format_decimals
from recbench_spark.schemas import RUNS, SELF_TESTS
from recbench_spark.self_tests.faults import (
    FAULTS,
    Fault,
    NotHereError,
    SampleFacts,
    describe_change,
)
from recbench_spark.self_tests.rehearsals import (
    Alarm,
    Honest,
    Numbers,
    Rehearsed,
    find_tonight,
    read_labelled_rows,
    rehearse,
)
from recbench_spark.self_tests.samples import (
    BEFORE,
    FEWEST_USERS,
    LEARNT,
    LOG,
    TEXT,
    Sample,
    Tables,
    draw_sample,
    list_paths,
    point_at,
    write_tables,
)
from recbench_spark.self_tests.scratch_tables import ScratchWarehouse, open_warehouse
from recbench_spark.storage.arrow_store import is_local_folder
from recbench_spark.storage.commits import Addition, commit
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.scratch import drop_scratch, scratch_folder

USERS = 2000
"""Most users of a sample."""

UNSEEN = "unseen"
"""Word for a fault that nothing saw."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """Result of one fault.

    Attributes:
        fault: the fault.
        changed: what it changed, or why it does not apply.
        applies: whether it was planted.
        alarms: what rang because of it, in the order in which it came.
        rule: the lines of YAML that would have seen it, of a fault that nothing saw.
    """

    fault: Fault
    changed: str
    applies: bool = True
    alarms: tuple[Alarm, ...] = ()
    rule: str = ""

    @property
    def witness(self) -> str:
        """Return what saw the fault first; empty: it does not apply."""
        return (self.alarms[0].by if self.alarms else UNSEEN) if self.applies else ""


@dataclass(frozen=True)
class SelfTest:
    """The outcome of a self-test.

    Attributes:
        sample: the sample.
        honest: what rang in the honest night, and not in the one before.
        findings: one for each fault.
        notes: what a reader should know of the sample.
    """

    sample: Sample
    honest: tuple[Alarm, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def misses(self) -> tuple[Finding, ...]:
        """Faults that were planted and not seen."""
        return tuple(one for one in self.findings if one.witness == UNSEEN)


def run_self_test(
    store: FileTables, benchmark: Benchmark, day: date, say: Say, *, users: int = USERS
) -> SelfTest:
    """Test a finished night on a sample; append one row a fault to `self_tests`.

    Everything runs in a scratch folder, which is removed; the team's tables get rows at the end alone.

    Raises:
        DataError: the night is not there; the honest night of the sample is refused.
        FallbackToSpark: something needs Spark.
    """
    with open_scratch(store) as folder:
        with pin_inputs():
            sample = draw_sample(store, benchmark, day, users)
        say(f"sample of {sample.users:,} users, {len(sample.log):,} rows")
        tested = probe_sample(sample, folder, say)
    commit(store, Addition(SELF_TESTS, rows=list_rows(tested, benchmark.name, day)))
    return tested


@contextmanager
def open_scratch(store: FileTables) -> Iterator[Path]:
    """Make a folder for a self-test, and remove it in the end.

    A folder lies in its warehouse's scratch, where a later night removes what a killed one left.
    """
    if not is_local_folder(store.root):
        with tempfile.TemporaryDirectory(prefix="recbench-self-test-") as name:
            yield Path(name)
        return
    folder = Path(scratch_folder(store.scratch))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        drop_scratch(store.scratch)


def probe_sample(
    sample: Sample, folder: Path, say: Say = lambda _: None, faults: Iterable[str] = tuple(FAULTS)
) -> SelfTest:
    """Run the honest nights of a sample and one night for each fault, in a folder.

    Raises:
        DataError: an honest night is refused.
    """
    places = write_tables(sample.tables, folder / "tables")
    file, workers = point_at(sample, places), choose_workers(len(sample.log))
    store = open_warehouse(file, folder / "warehouse", workers)
    older = {**places, **write_tables(sample.older, folder / "older")}
    say("two honest nights")
    first = point_at(sample, older, before=True).model_copy(update={"gates": ()})
    begin = _require_whole(rehearse(store, first, sample.day - timedelta(days=1)))
    sample = replace(sample, benchmark=fit_gates(sample, begin))
    honest = _require_whole(rehearse(store, point_at(sample, places), sample.day))
    models = rank_models(sample, honest)
    world = make_world(store, sample, honest, models)
    personal = [model for model in models if model.kind not in IMPERSONAL]
    known = Honest(honest.alarms, (personal or models)[0].name, honest.night)
    plan = Plan(world, store, folder, places, begin, honest, known)
    findings = plan.test([FAULTS[name] for name in faults], say)
    return SelfTest(sample, honest.rang(begin.alarms), tuple(findings), tuple(list_notes(sample)))


def _require_whole(night: Rehearsed) -> Rehearsed:
    for alarm in night.alarms:
        if alarm.key == "refused":
            raise DataError(f"the sample's honest night is refused: {alarm.sentence}", "more --users")
    return night


SHARES = ("share", "days", "event", "drift", "covered", "begin", "end")
"""Ends of the names of facts which a sample does not make smaller."""


def fit_gates(sample: Sample, honest: Rehearsed) -> Benchmark:
    """Return the file with bounds on counts made smaller by what the sample has of each."""
    gates = []
    for gate in sample.benchmark.gates:
        key = (gate.part or "log", gate.fact)
        whole, part = sample.facts.get(key), honest.facts.get(key)
        scaled = {}
        if whole and part is not None and not compares_nights(gate) and not gate.fact.endswith(SHARES):
            bounds = {name: getattr(gate, name) for name in ("above", "below")}
            scaled = {name: bound and bound * part / whole for name, bound in bounds.items()}
        gates.append(gate.model_copy(update=scaled))
    return sample.benchmark.model_copy(update={"gates": tuple(gates)})


def rank_models(sample: Sample, honest: Rehearsed) -> list[ModelConfig]:
    """Return the models of the honest night, the best by the headline first."""
    metric, k = parse_headline(sample.benchmark)
    part = sample.benchmark.evaluation.parts[0]
    assert honest.night is not None

    def rank(model: ModelConfig) -> float:
        value = honest.metrics.get((model.name, part, metric, k))
        return math.inf if value is None else about_metric(metric).sort_key(value)

    return sorted(honest.night.benchmark.models, key=rank)


def make_world(
    store: ScratchWarehouse, sample: Sample, honest: Rehearsed, models: Sequence[ModelConfig]
) -> SampleFacts:
    """Collect what faults need to know of the honest night."""
    night, parts = honest.night, sample.benchmark.evaluation.parts
    assert night is not None
    pairs = read_labelled_rows(night).select(["user_id", "item_id", "part"]).to_pandas()
    pairs = pairs.astype({"user_id": TEXT, "item_id": TEXT})
    learnt = {}
    for model in models:
        if (adapter := make_adapter(model)).learns:
            items = store.read_items(adapter.key(night.data)).column("id")
            learnt[f"{model.name}.{LEARNT}"] = pd.DataFrame({"item_id": items.to_pandas().astype(TEXT)})
    known = {name: table for name, table in learnt.items() if len(table)}
    sample = replace(sample, tables={**sample.tables, **known})
    order = tuple(model for model in models if list_paths(model))
    return SampleFacts(sample, pairs[pairs.part.isin(parts)], pairs[pairs.part == "train"], order)


@dataclass(frozen=True)
class Plan:
    """Parts that all faulty nights share.

    Attributes:
        world: the sample and its honest pairs.
        store: the scratch warehouse with both honest nights.
        folder: where faulty tables and warehouses lie.
        places: places of the honest tables.
        begin, honest: the two honest nights.
        known: what faulty nights take from the honest one.
    """

    world: SampleFacts
    store: ScratchWarehouse
    folder: Path
    places: Mapping[str, str]
    begin: Rehearsed
    honest: Rehearsed
    known: Honest

    def test(self, faults: Sequence[Fault], say: Say) -> Iterator[Finding]:
        """Plant faults and say what rang, a finding for each.

        Faults of one model are planted side by side in one night, where each faulty model has a name of its
        own beside the honest ones, and the night before of the honest one. Others have a night each, as all
        have where a rule compares models or counts all comparisons.
        """
        planted = {fault.name: self.plant(fault) for fault in faults}
        nights: dict[str, Rehearsed] = {}
        if not any(rule.sequential or rule.against == "model" for rule in self.file.regressions):
            given = {name: one for name, (one, _) in planted.items() if one and not learns_from(one)}
            nights = self.run_together(given)
        for fault in faults:
            tables, changed = planted[fault.name]
            if not tables:
                finding = Finding(fault, changed, applies=False)
            else:
                night = nights.get(fault.name)
                if night is None or not night.rang(self.honest.alarms):
                    night = self.run(fault.name, tables)  # alone: checks see its night before
                finding = self.conclude(fault, changed, night)
            say(f"{fault.name}: {finding.witness or 'does not apply'}")
            yield finding

    @property
    def file(self) -> Benchmark:
        """The file of the honest night in scratch."""
        return point_at(self.world.sample, self.places)

    def plant(self, fault: Fault) -> tuple[Tables, str]:
        """Return a fault's tables and what differs; without tables, why it does not apply."""
        try:
            tables = fault.plant(self.world)
        except NotHereError as reason:
            return {}, str(reason)
        changed = self.describe(tables)
        return (tables, changed) if changed else ({}, "it changes nothing in this sample")

    def describe(self, tables: Tables) -> str:
        """Say what differs between faulty and honest tables."""
        honest = self.world.sample.tables
        changes = {name: describe_change(honest[name], table) for name, table in tables.items()}
        return "; ".join(f"{name}: {text}" for name, text in changes.items() if text)

    def run(self, name: str, tables: Tables) -> Rehearsed:
        """Run a night with faulty tables: the log up to its gates, then in a whole night what they miss."""
        if LOG not in tables:
            return self._run_copy(name, tables, log_only=False)
        night = self._run_copy(name, tables, log_only=True)
        if night.rang(self.honest.alarms) or self.keeps_numbers(tables):
            return replace(night, metrics=self.honest.metrics)
        return self._run_copy(name, tables, log_only=False)

    def _run_copy(self, name: str, tables: Tables, *, log_only: bool) -> Rehearsed:
        """Run a night in a copy of the warehouse."""
        sample, folder = self.world.sample, self.folder / name
        try:
            file = point_at(sample, {**self.places, **write_tables(tables, folder / "tables")})
            store = self.store.copy(folder / "warehouse")
            self._rename_learnt(store, tables)
            return rehearse(store, file, sample.day, honest=self.known, log_only=log_only)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _rename_learnt(self, store: ScratchWarehouse, tables: Tables) -> None:
        """Rename items of models that the honest night fitted, which then have no run of it."""
        night = self.honest.night
        assert night is not None
        for model in night.benchmark.models:
            table = tables.get(f"{model.name}.{LEARNT}")
            if table is not None:
                key = make_adapter(model).key(night.data)
                store.rename_items(key, pa.array(table.item_id, pa.string()))
                store.delete(RUNS.name, "run_id", [find_tonight(night)[model.name]["run_id"]])

    def keeps_numbers(self, tables: Tables) -> bool:
        """Return whether ratings alone differ, and only their relevance counts, which does not."""
        if {*tables} != {LOG} or reads_grades(self.file):
            return False
        logs, threshold = (self.world.sample.log, tables[LOG]), self.file.definition.threshold
        honest, faulty = (mark_relevant(log.rating.to_numpy(), threshold) for log in logs)
        plain = [log.drop(columns="rating") for log in logs]
        return plain[0].equals(plain[1]) and bool((honest == faulty).all())

    def run_together(self, planted: Mapping[str, Tables]) -> dict[str, Rehearsed]:
        """Run a night with all faulty models; return what it said of each, by fault.

        A fault whose run failed is left out: a night of its own tells why.
        """
        if not planted:
            return {}
        file, folder = self.file, self.folder / "together"
        models = {model.name: model for model in file.models}
        twins: dict[str, str] = {}
        for name, tables in planted.items():
            model = next(iter(tables)).rpartition(".")[0]
            places = write_tables(tables, folder / name)
            changes = {key.rpartition(".")[2]: place for key, place in places.items()}
            twin = f"{model}--{name}"
            models[twin] = models[model].model_copy(update={**changes, "name": twin})
            twins[twin] = model
        file = file.model_copy(update={"models": tuple(models.values())})
        store = self.store.copy(folder / "warehouse")
        night = rehearse(store, file, self.world.sample.day, twins=twins)
        parts = {twin: night.divide(twin, model, self.honest) for twin, model in twins.items()}
        shutil.rmtree(folder, ignore_errors=True)
        return {twin.rpartition("--")[2]: one for twin, one in parts.items() if one is not None}

    def conclude(self, fault: Fault, changed: str, night: Rehearsed) -> Finding:
        """Say what rang in a faulty night, and what would have rung."""
        alarms = night.rang(self.honest.alarms)
        if not alarms and (night.facts, night.metrics) == (self.honest.facts, self.honest.metrics):
            return Finding(fault, f"{changed}; no number of this night depends on it", applies=False)
        rule = "" if alarms else propose_rule(self.begin, self.honest, night)
        changed += _describe_headline(self.world.sample, self.honest, night)
        return Finding(fault, changed, True, alarms, rule)


def learns_from(tables: Tables) -> bool:
    """Return whether faulty tables are what models learn from, or have learnt."""
    return bool({LOG, LEARNT} & {name.rpartition(".")[2] for name in tables})


def reads_grades(file: Benchmark) -> bool:
    """Return whether a night may read more of a rating than its relevance."""
    wanted = file.evaluation
    others = (file.dataset.events, wanted.learning_curve, wanted.exposure, wanted.task == "rating")
    graded = file.definition.gain != "binary" or any(others)
    return graded or any(make_adapter(model).reads_grades for model in file.models)


def _describe_headline(sample: Sample, honest: Rehearsed, night: Rehearsed) -> str:
    """Say which model's headline moved most, if any did."""
    metric, k = parse_headline(sample.benchmark)
    moves = {
        key: (honest.metrics[key], value)
        for key, value in night.metrics.items()
        if key[2:] == (metric, k) and honest.metrics.get(key, value) != value
    }
    if not moves:
        return ""
    key = max(moves, key=lambda one: abs(moves[one][1] - moves[one][0]))
    then, now = map(format_decimals, moves[key])
    return f"; {name_figure(metric, k)} of {key[0]} {then} -> {now}"


# ------------------------------------------------------------------------------------------- rules


USUAL_MOVE = 0.1
"""Share that a proposed gate allows, where it lies between both nights."""


def propose_rule(begin: Rehearsed, honest: Rehearsed, night: Rehearsed) -> str:
    """Return lines of YAML that see a faulty night and are silent on the honest one.

    The bound lies between both nights' moves since the night before. The largest move is taken; empty: no
    fact and no metric moved further than on the honest night.
    """
    facts = {
        key: (_share(begin.facts, honest.facts, key), _share(begin.facts, night.facts, key))
        for key in night.facts.keys() & begin.facts.keys()
        if not key[1].endswith("_days")
    }
    moved = {key: pair for key, pair in facts.items() if pair[1] > pair[0] * 2 + 1e-9}
    if moved:
        # A fact that was 0 has no share: it is the last to be taken.
        part, fact = max(sorted(moved), key=lambda key: (begin.facts[key] >= 1, moved[key][1]))
        usual, now = moved[part, fact]
        bound = USUAL_MOVE if usual < USUAL_MOVE / 2 and now > USUAL_MOVE else (usual + now) / 2
        return f"gates: [{{fact: {fact}, part: {part}, moved: {bound:.2g}}}]"
    best: tuple[float, str] = (1e-4, "")
    for key in sorted(night.metrics.keys() & begin.metrics.keys() & honest.metrics.keys(), key=str):
        model, part, metric, k = key
        sign = 1.0 if about_metric(metric).sort_key(1.0) < about_metric(metric).sort_key(0.0) else -1.0
        usual, now = (sign * (one.metrics[key] - begin.metrics[key]) for one in (honest, night))
        for word, low, high in (("drop", max(-usual, 0.0), -now), ("rise", max(usual, 0.0), now)):
            if high - low > best[0]:
                cut = "" if k is None else f" k: {k},"
                rule = f"regressions: [{{metric: {metric},{cut} part: {part}, model: {model}, "
                best = (high - low, f"{rule}{word}: {(low + high) / 2:.2g}}}]")
    return best[1]


def _share(then: Numbers, now: Numbers, key: tuple[Any, ...]) -> float:
    return abs(now.get(key, 0.0) - then[key]) / max(abs(then[key]), 1.0)


# ----------------------------------------------------------------------------------------- results


def list_notes(sample: Sample) -> Iterator[str]:
    """Yield what a reader should know of the sample."""
    if sample.users < FEWEST_USERS:
        yield f"{sample.users} users: below {FEWEST_USERS}, small faults cannot be told from chance"
    if sample.left_out:
        yield f"without {', '.join(sample.left_out)}: a sample has no place for these models"
    if len(sample.tables[BEFORE]) == len(sample.log):
        yield "both honest nights have one log: it has no last day to leave out"


def list_rows(tested: SelfTest, suite: str, day: date) -> list[dict[str, Any]]:
    """Return rows of `self_tests`."""
    shared = {
        "self_test_id": uuid.uuid4().hex,
        "suite": suite,
        "logical_date": day,
        "users": tested.sample.users,
        "tested_at": datetime.now(UTC),
    }
    return [
        {
            **shared,
            "fault": one.fault.name,
            "description": one.fault.sentence,
            "applies": one.applies,
            "changed": one.changed,
            "seen": one.witness != UNSEEN if one.applies else None,
            "seen_by": one.witness or None,
            "sentence": one.alarms[0].sentence if one.alarms else None,
            "rule": one.rule or None,
        }
        for one in tested.findings
    ]
