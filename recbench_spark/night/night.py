"""Hold a night's shared data, and name runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recbench_spark import schemas
from recbench_spark.analyses.exposure.exposure import EXPOSED_USERS, select_exposed_users
from recbench_spark.analyses.exposure.night_exposure import ExposureContext, build_exposure_context
from recbench_spark.config import (
    CURVE_METRIC,
    MANDCG,
    Benchmark,
    Evaluation,
    ModelConfig,
)
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import EXCHANGED, VERSION, Definition
from recbench_spark.core.inputs import require_unchanged
from recbench_spark.errors import DataError, StoreError
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.beyond_accuracy import BY_LABELS, BY_POPULARITY, DIVERSITY, LIST_METRICS, Facts
from recbench_spark.metrics.item_labels import open_item_groups
from recbench_spark.metrics.kernels.accuracy import METRICS
from recbench_spark.metrics.kernels.item_groups import BY_HEAD, HEAD_SHARE
from recbench_spark.metrics.listed import ListedCatalogue
from recbench_spark.models.adapters.external_models import open_features
from recbench_spark.models.adapters.model_adapter import SplitData, make_adapter
from recbench_spark.night import run_keys
from recbench_spark.night.benchmark_checks import check_benchmark, list_model_facts
from recbench_spark.night.gates import (
    GateCheck,
    compares_nights,
    gate_checks,
    read_facts_before,
    select_gates,
)
from recbench_spark.night.measure_checks import describe_curve, make_metric_plan
from recbench_spark.night.run_keys import evaluation_paths, hash_run_key, list_switched_models
from recbench_spark.night.split import current_split_id, identify_split
from recbench_spark.night.standalone_runs import STAMP_FORMAT
from recbench_spark.ranking.candidates import CandidateRule, Candidates
from recbench_spark.ranking.exchanged import add_exchanged, draw_partners
from recbench_spark.ranking.known_items import share_rows
from recbench_spark.ranking.moment_counts import (
    COUNTED,
    Counts,
    add_counts,
    count_questions,
    join_given,
    refuse_left_out,
)
from recbench_spark.ranking.moments import LABELLED, ItemMoments, share_availability
from recbench_spark.ranking.part_users import (
    BLOCK_USERS,
    MOMENT_USERS,
    PART_USERS,
    QUESTION_USERS,
    count_trained_users,
    map_user_blocks,
    select_part_users,
)
from recbench_spark.ranking.successive import sum_questions
from recbench_spark.runtime.journal import Journal
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.splits.labels import UNORDERED
from recbench_spark.splits.manifests import check_suspects
from recbench_spark.splits.popularity import count_items, measure_head
from recbench_spark.splits.windows import list_age_facts
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.blocks import ChangedRows, Side, count_table_rows, deal_sides
from recbench_spark.storage.delta_files import Filters
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.packed_blocks import Change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from recbench_spark.night.curve_context import CurveContext


@dataclass(frozen=True)
class BenchmarkNight:
    """One night: data and settings for all its models."""

    store: FileTables
    benchmark: Benchmark
    definition: Definition
    split_id: str
    inputs: dict[str, str]
    logical_date: date

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """Facts about this night's split; empty before it is made."""
        facts: list[dict[str, Any]] = self.store.rows(schemas.MANIFESTS, [("split_id", "=", self.split_id)])
        return facts

    @cached_property
    def catalogue(self) -> ListedCatalogue:
        """Items, training user count and item features, for list metrics."""
        path, metrics = self.benchmark.evaluation.features, set(self.benchmark.evaluation.metrics)
        features, n_users, head = None, 1, (1, 0)
        if path and DIVERSITY in metrics:
            features = open_features(self.data, path)
        if metrics & {*BY_HEAD}:
            items = self.store.open_rows(schemas.ITEMS, "split_id", [self.split_id])
            head = measure_head(sum(items.each(["n_train"], count_items), Counter()), HEAD_SHARE)
        if metrics & {*BY_POPULARITY}:
            blocks = self.store.open_rows(schemas.USER_BLOCKS, "split_id", [self.split_id], BLOCK_USERS)
            n_users = sum(blocks.each(["train_items"], count_trained_users))
        groups, table = None, self.benchmark.evaluation.item_groups
        if table and metrics & {*BY_LABELS}:
            columns = table.column, table.weight
            groups = open_item_groups(self.store.engine, self.store.scratch, table.path, columns).join(
                self.data.known_items, self.n_items
            )
        facts = Facts(n_users, features, *head)
        return ListedCatalogue(self.data.known_items, self.n_items, facts, groups)

    def open_frame(self, users: ChangedRows) -> DataFrame:
        """Open users as a frame, for models only Spark reads.

        Raises:
            FallbackToSpark: there is no Spark.
        """
        from recbench_spark.storage.frame_blocks import open_frame  # noqa: PLC0415
        from recbench_spark.storage.spark_types import spark_columns  # noqa: PLC0415

        schema = pa.schema([field for field in EXPOSED_USERS if field.name in users.names])
        return open_frame(require_session(self.store, "a model").spark, users, spark_columns(schema))

    def select_users(self) -> ChangedRows:
        """Select the users to rank for.

        These users have data on exposure if estimates need it.
        """
        select, schema = self._select, QUESTION_USERS if self.benchmark.asks_often else PART_USERS
        schema = MOMENT_USERS if self.moments else schema
        if partners := self.partners:
            select = partial(add_exchanged, select=select, partners=partners)
        if self.exposure:
            select = partial(select_exposed_users, select=select, exposed=self.exposure.shown)
            schema = EXPOSED_USERS
        return map_user_blocks(self.store, self.split_id, select, schema.names)

    @cached_property
    def partners(self) -> dict[str, pa.Table]:
        """Users with exchanged truth by part, where the file asks for such parts."""
        parts = [part.removesuffix(EXCHANGED) for part in self.benchmark.evaluation.parts_exchanged]
        users = map_user_blocks(self.store, self.split_id, self._select, PART_USERS.names)
        plain = max(len(self.benchmark.evaluation.plain_parts), 1)
        return {part: draw_partners(users, part, self.n_rankings // plain) for part in parts}

    @cached_property
    def n_rankings(self) -> int:
        """Number of rows in `select_users`."""
        counts_rows = self.moments is not None or not self.benchmark.split.successive
        select = self._select if counts_rows else partial(self._select, **{"successive": False})
        users = map_user_blocks(self.store, self.split_id, select, PART_USERS.names)
        return sum(
            users.each(["user_id"], count_table_rows)
            if counts_rows
            else users.each(["items"], sum_questions)
        )

    @property
    def _select(self) -> Change:
        return self._select_at(self.moments)

    def _select_at(self, moments: ItemMoments | None) -> Change:
        return partial(
            select_part_users,
            parts=self.benchmark.evaluation.plain_parts,
            threshold=self.definition.threshold,
            keep_empty=self.definition.empty_users == "zero",
            masks=not self.benchmark.split.asks_repeats,
            successive=self.benchmark.split.successive,
            moments=moments,
            by_query=self.benchmark.dataset.query is not None,
        )

    @cached_property
    def moments(self) -> ItemMoments | None:
        """Times when items were candidates, where the definition asks."""
        definition = self.definition
        if definition.candidates_as_of == "none":
            return None
        rows = self.store.open_rows(schemas.SPLITS, "split_id", [self.split_id])
        return ItemMoments(
            share_rows(rows, LABELLED, self.store.scratch),
            self.data.known_items,
            definition.first_seen_in,
            definition.unavailable,
            share_availability(self.store, self.benchmark.dataset, definition.candidates_as_of),
        )

    @cached_property
    def moment_counts(self) -> dict[str, Counts]:
        """Counts of candidates as of their moments by part, the same for every model."""
        if self.moments is None:
            return {}
        kept = replace(self.moments, unavailable="keep")
        select = self._select_at(kept)
        rows = map_user_blocks(self.store, self.split_id, select, MOMENT_USERS.names)
        masks = self.definition.candidates not in ("all", "given")
        count = partial(count_questions, moments=kept, masks=masks)
        given, engine = self.user_candidates, self.store.engine
        if given is None or given.rows is None:
            return add_counts(chain.from_iterable(rows.each(COUNTED, count)))
        sides = [Side(0, rows, (*COUNTED, "user_id")), Side(1, given.rows, given.rule.columns)]
        dealt = deal_sides(engine, sides, engine.count_tasks(0))
        joined = dealt.then(partial(join_given, rule=given.rule), (*COUNTED, "candidates"))
        return add_counts(chain.from_iterable(joined.each(count)))

    @cached_property
    def user_candidates(self) -> Candidates | None:
        """Candidates given for each user, where the definition asks; they are read once."""
        if self.definition.candidates != "given":
            return None
        from recbench_spark.night.given_candidates import read_candidates  # noqa: PLC0415

        benchmark = self.benchmark
        rows = read_candidates(self.select_users(), self.data, benchmark)
        with_truth = not benchmark.evaluation.candidates_path and benchmark.dataset.lists_negatives
        return Candidates(rows, CandidateRule(with_truth, moments=self.moments))

    @cached_property
    def exposure(self) -> ExposureContext | None:
        """Data on exposure, if the file asks for corrected estimates."""
        evaluation = self.benchmark.evaluation
        return (
            build_exposure_context(self.store, self.split_id, evaluation, self.definition)
            if evaluation.exposure
            else None
        )

    @cached_property
    def curves(self) -> CurveContext | None:
        """Held-out users and their curve plan, if asked for."""
        if self.benchmark.evaluation.learning_curve is None:
            return None
        from recbench_spark.night.curve_context import build_curve_context  # noqa: PLC0415

        return build_curve_context(self.data, self.benchmark)

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return self.data.n_items

    @cached_property
    def data(self) -> SplitData:
        """The data models may use."""
        return SplitData(
            self.store,
            self.split_id,
            self.definition,
            self.benchmark.dataset.world,
            folds_users=self.benchmark.split.gives_rows,
            asks_repeats=self.benchmark.split.asks_repeats,
            by_query=self.benchmark.dataset.query is not None,
            suite=self.benchmark.name,
            dataset=self.benchmark.dataset.name,
            logical_date=self.logical_date,
            scale=self.benchmark.dataset.scale,
            typed_ids=self.benchmark.dataset.is_typed,
        )

    def plan(self) -> MetricPlan:
        """Return the plan of the metrics."""
        return make_metric_plan(self.benchmark.evaluation, self.definition)


def open_night(store: FileTables, benchmark: Benchmark, logical_date: date) -> BenchmarkNight:
    """Check the settings, name the split and identify the inputs."""
    benchmark = fill_placeholders(benchmark, logical_date)
    check_benchmark(benchmark)
    store.require_access()  # fail now, not after hours of work
    split_id, inputs = identify_split(store, benchmark)
    identify = choose_identity(store)
    inputs |= {name: identify(path) for name, path in evaluation_paths(benchmark).items()}
    return BenchmarkNight(store, benchmark, benchmark.definition, split_id, inputs, logical_date)


def hold_night(night: BenchmarkNight, journal: Journal, part: str = "") -> AbstractContextManager[object]:
    """Lock a night against another job with the same night.

    The other job waits until this one has ended, and then sees its results. A killed job is not waited
    for. A remote warehouse and a catalog where Spark writes have no leases: there both jobs run, and each
    run is whole.

    Args:
        night: the night.
        journal: reports that this job waits for another one.
        part: name for some of its models; two different parts run at once.
    """
    name = "-".join(filter(None, ("night", night.benchmark.name, str(night.logical_date), part)))
    return night.store.take_turns(name, journal.say)


def count_attempts(night: BenchmarkNight) -> dict[str, int]:
    """Count each model's succeeded runs with its key this night."""
    filters = [
        ("suite", "=", night.benchmark.name),
        ("logical_date", "=", night.logical_date),
        ("status", "=", "succeeded"),
    ]
    rows = night.store.rows(schemas.RUNS, filters, ["model", "run_key"])
    done = Counter((row["model"], row["run_key"]) for row in rows)
    return {model.name: done[model.name, make_run_key(night, model)] for model in night.benchmark.models}


def list_missing_models(night: BenchmarkNight, attempts: Mapping[str, int]) -> list[ModelConfig]:
    """Return the models without a succeeded run (see `count_attempts`)."""
    return [model for model in night.benchmark.models if not attempts[model.name]]


AGE_COLUMNS = ("finished_at", "attempt", "run_id")
"""Columns to order several attempts by age."""


def sort_by_age(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort rows of `runs` by age, newest last, NULL first."""
    return sorted(runs, key=lambda row: [(row[name] is not None, row[name]) for name in AGE_COLUMNS])


def find_newest_runs(night: BenchmarkNight, filters: Filters = ()) -> dict[str, Mapping[str, Any]]:
    """Return each model's newest succeeded run, by model.

    Such a run has the present settings and inputs: with other metrics, or another definition, dataset or
    split, a run has another key.

    Args:
        night: the benchmark file's night.
        filters: further conditions on rows of `runs`; empty: runs of every night.
    """
    keys_by_model = {model.name: make_run_key(night, model) for model in night.benchmark.models}
    all_filters = [("suite", "=", night.benchmark.name), ("status", "=", "succeeded"), *filters]
    rows = night.store.rows(schemas.RUNS, all_filters, ["model", "run_key", "seconds", *AGE_COLUMNS])
    return {
        row["model"]: row for row in sort_by_age(rows) if keys_by_model.get(row["model"]) == row["run_key"]
    }


def require_truth(night: BenchmarkNight) -> None:
    """Refuse a night whose parts hold no rows."""
    filled = {row["part"] for row in night.manifest if row["fact"] == "rows" and row["value"]}
    for part in night.benchmark.evaluation.plain_parts:
        if part not in filled:
            raise DataError(
                f"part '{part}' of dataset {night.benchmark.dataset.name} is empty",
                f"parts with rows: {', '.join(sorted(filled))}; see split and evaluation.parts",
            )
    if night.moments:
        night.moments.open()  # what is wrong with times is told here, before tasks tell it in other words
        refuse_left_out(night.moment_counts, night.definition)


def require_split(night: BenchmarkNight) -> None:
    """Refuse to publish if split or inputs changed meanwhile."""
    require_unchanged()
    if current_split_id(night.store.rows, night.split_id) != night.split_id:
        raise StoreError(f"split {night.split_id} was removed by recbench maintain meanwhile", "run again")


def check_night_gates(night: BenchmarkNight) -> list[Check]:
    """Check the night's gates, except those on facts of models.

    Checked are facts about the split, its suspect ids and its pairs, with the night's manifest.
    """
    gates = [gate for gate in night.benchmark.gates if gate.fact not in list_model_facts(night.benchmark)]
    dataset, day = night.benchmark.dataset, night.logical_date
    facts, before = [*night.manifest], []
    if any(map(compares_nights, gates)):
        before = read_facts_before(night.store, night.benchmark.name, dataset.name, day)
    facts += [fact._asdict() for fact in list_age_facts(facts, day, dataset.zone)]
    return [
        *gate_checks(select_gates(gates, night.benchmark.split, facts), facts, before),
        *check_suspects(facts),
        *check_row_order(facts),
    ]


def check_row_order(facts: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Warn about pairs whose differing rows have no time order."""
    rows = [row for row in facts if (row["part"], row["fact"]) == ("log", UNORDERED)]
    return [
        warn_above_zero("log: pairs without a last row", row["value"], row["detail"])
        for row in rows
        if row["value"]
    ]


def check_model_gates(night: BenchmarkNight, model: ModelConfig) -> list[GateCheck]:
    """Check the gates on a model's facts, if any.

    On its first night there is no drift.
    """
    gates = [gate for gate in night.benchmark.gates if gate.fact in model.facts]
    facts = make_adapter(model).facts(night.data) if gates else []
    return gate_checks(gates, facts) if facts else []


def make_run_key(night: BenchmarkNight, model: ModelConfig) -> str:
    """Hash everything a run's numbers depend on.

    The same key means the same numbers.
    """
    inputs = {**night.inputs, **identify_model_inputs(night.store, model)}
    others = list_switched_models(night.benchmark, model)
    inputs |= {f"run of {other.name}": make_run_key(night, other) for other in others}
    return hash_run_key(night.benchmark, night.definition, night.split_id, inputs, model)


def identify_model_inputs(store: FileTables, model: ModelConfig) -> dict[str, str]:
    """Identify each file a model is read from."""
    return run_keys.identify_model_inputs(choose_identity(store), model)


def describe_metric(evaluation: Evaluation, definition: Definition, metric: str) -> str:
    """Return a metric's definition string on a night.

    Prediction metrics have one definition.
    """
    if metric == MANDCG and evaluation.learning_curve is not None:
        return describe_curve(evaluation.learning_curve, definition, CURVE_METRIC)
    if metric not in METRICS and metric not in LIST_METRICS:
        return VERSION
    return make_metric_plan(evaluation, definition).describe(metric)


def yesterday_stamp(store: FileTables) -> str:
    """Return the time stamp run ids had a day ago.

    Older runs that are not running will never succeed. The clock is the storage's, and this host's for a
    catalog where Spark writes.
    """
    seconds = store.read_clock()
    return (datetime.fromtimestamp(seconds, UTC) - timedelta(days=1)).strftime(STAMP_FORMAT)
