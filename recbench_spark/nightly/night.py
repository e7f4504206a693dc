"""Data that all models of a night share, checks of a benchmark file, and names of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import schemas
from recbench_spark.config import (
    CURVE_METRIC,
    MANDCG,
    TABLE_READERS,
    Benchmark,
    Evaluation,
    ModelConfig,
)
from recbench_spark.data.identity import identity
from recbench_spark.data.readers.tables import read_table
from recbench_spark.definitions import VERSION, Definition
from recbench_spark.errors import ConfigError, DataError, StoreError, nearest
from recbench_spark.evaluation.metrics.accuracy import MetricPlan, check_names
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY, LIST_METRICS
from recbench_spark.evaluation.metrics.top_lists import SplitCatalogue
from recbench_spark.evaluation.ranking.rank import select_part_users
from recbench_spark.inputs import require_unchanged
from recbench_spark.kernels.metrics.about import figure_range
from recbench_spark.kernels.metrics.accuracy import METRICS
from recbench_spark.kernels.metrics.predictions import VALUE_METRICS
from recbench_spark.nightly import run_keys
from recbench_spark.nightly.curve_context import (
    CurveContext,
    build_curve_context,
    describe_curve,
    make_curve_plan,
)
from recbench_spark.nightly.exposure import ExposureContext, build_exposure_context
from recbench_spark.nightly.gates import GateCheck, gate_checks
from recbench_spark.nightly.run_keys import evaluation_paths, hash_run_key, list_switched_models
from recbench_spark.nightly.split import (
    HELD_OUT_PARTS,
    check_open_loop,
    current_split_id,
    identify_split,
    list_held_out_parts,
    list_made_parts,
    read_split,
)
from recbench_spark.nightly.standalone_runs import STAMP_FORMAT
from recbench_spark.placeholders import fill_placeholders
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.delta_files import Filters
from recbench_spark.storage.leases import take_turns
from recbench_spark.storage.marks import MARKS_FOLDER
from recbench_spark.storage.store import Store
from recbench_spark.storage.warehouse import require_jars
from recbench_spark.training.item_features import share_features
from recbench_spark.training.model_adapter import SplitData, make_adapter
from recbench_spark.training.retrieved import check_retrieval


@dataclass(frozen=True)
class BenchmarkNight:
    """One night of a benchmark: the data and settings that all its models share."""

    store: Store
    benchmark: Benchmark
    definition: Definition
    split_id: str
    inputs: dict[str, str]
    logical_date: date

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self.store.spark

    def table(self, table: schemas.Table) -> DataFrame:
        """Return the rows of this night's split."""
        return read_split(self.store, table, self.split_id)

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """Facts of this night's split; empty if the split has not been made."""
        return self.store.rows(schemas.MANIFESTS, [("split_id", "=", self.split_id)])

    @cached_property
    def catalogue(self) -> SplitCatalogue:
        """Items, training users and item features that metrics of lists need."""
        blocks, items = self.table(schemas.USER_BLOCKS), self.table(schemas.ITEMS)
        path = self.benchmark.evaluation.features
        features = None
        if path and DIVERSITY in self.benchmark.evaluation.metrics:
            rows = read_table(self.spark, path, ["item_id", "vector"], "features")
            features = share_features(self.store.scratch, items, rows, f"features {path}")
        train_users = blocks.where(F.size("train_items") > 0).select("user_id")
        return SplitCatalogue(items, train_users, features)

    @property
    def users(self) -> DataFrame:
        """Users that models rank for; see `select_part_users`."""
        definition, blocks = self.definition, self.table(schemas.USER_BLOCKS)
        keep_empty = definition.empty_users == "zero"
        return select_part_users(blocks, self.benchmark.evaluation.parts, definition.threshold, keep_empty)

    @cached_property
    def n_rankings(self) -> int:
        """Number of rows of `users`."""
        return self.users.count()

    @cached_property
    def exposure(self) -> ExposureContext | None:
        """Data on exposure, if the file asks for estimates that correct for it."""
        evaluation = self.benchmark.evaluation
        return (
            build_exposure_context(self.store, self.split_id, evaluation, self.definition)
            if evaluation.exposure
            else None
        )

    @cached_property
    def curves(self) -> CurveContext | None:
        """Held-out users and the plan of their learning curves, if the file asks for curves."""
        return build_curve_context(self.store, self.split_id, self.benchmark, self.definition)

    @property
    def n_items(self) -> int:
        """Number of items of the catalogue."""
        return self.data.n_items

    @cached_property
    def data(self) -> SplitData:
        """The data that models may use."""
        return SplitData(
            self.store,
            self.split_id,
            self.definition,
            self.benchmark.dataset.world,
            folds_users=self.benchmark.split.holds_out_users,
            suite=self.benchmark.name,
            dataset=self.benchmark.dataset.name,
            logical_date=self.logical_date,
            scale=self.benchmark.dataset.scale,
        )

    def plan(self) -> MetricPlan:
        """Return the plan of the metrics."""
        return make_metric_plan(self.benchmark.evaluation, self.definition)


def make_metric_plan(evaluation: Evaluation, definition: Definition) -> MetricPlan:
    """Return the plan of the metrics of rankings in a benchmark file; ConfigError for an impossible one."""
    features = Path(evaluation.features).stem if evaluation.features else None
    return MetricPlan.checked(
        evaluation.metrics,
        evaluation.cutoffs,
        definition,
        evaluation.bootstrap,
        features,
        uncut=evaluation.uncut,
    )


def open_night(store: Store, benchmark: Benchmark, logical_date: date) -> BenchmarkNight:
    """Check the settings, name the split and identify the inputs of a night."""
    benchmark = fill_placeholders(benchmark, logical_date)
    check_benchmark(benchmark)
    _ = store.scratch  # fail now, not after hours of work, if workers cannot read it
    require_jars(store.spark, store.root)
    split_id, inputs = identify_split(store, benchmark)
    inputs |= {name: identity(store.spark, path) for name, path in evaluation_paths(benchmark).items()}
    return BenchmarkNight(store, benchmark, benchmark.evaluation.resolve(), split_id, inputs, logical_date)


@contextmanager
def hold_night(night: BenchmarkNight, journal: Journal, part: str = "") -> Iterator[None]:
    """Hold the lock of a night; another job with the same night waits until this one has ended.

    The second job then sees the results of the first one. A killed job is not waited for. A remote
    warehouse and a catalog have no leases: there both jobs run, and each run is whole.

    Args:
        night: the night.
        journal: reports that this job waits for another one.
        part: name of some of its models; two different parts run at once.
    """
    folder = night.store.folder
    if folder is None:
        yield
        return
    name = "-".join(filter(None, ("night", night.benchmark.name, str(night.logical_date), part)))
    with take_turns(folder / MARKS_FOLDER / name, journal.say):
        yield


def count_attempts(night: BenchmarkNight) -> dict[str, int]:
    """Count the succeeded runs of each model with its key on this night."""
    filters = [
        ("suite", "=", night.benchmark.name),
        ("logical_date", "=", night.logical_date),
        ("status", "=", "succeeded"),
    ]
    rows = night.store.rows(schemas.RUNS, filters, ["model", "run_key"])
    done = Counter((row["model"], row["run_key"]) for row in rows)
    return {model.name: done[model.name, make_run_key(night, model)] for model in night.benchmark.models}


def list_missing_models(night: BenchmarkNight, attempts: Mapping[str, int]) -> list[ModelConfig]:
    """Return the models without a succeeded run, by the result of `count_attempts`."""
    return [model for model in night.benchmark.models if not attempts[model.name]]


AGE_COLUMNS = ("finished_at", "attempt", "run_id")
"""Columns that order several attempts by age."""


def sort_by_age(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort rows of `runs` so that the newest attempt is last; NULL is oldest."""
    return sorted(runs, key=lambda row: [(row[name] is not None, row[name]) for name in AGE_COLUMNS])


def find_newest_runs(night: BenchmarkNight, filters: Filters = ()) -> dict[str, Mapping[str, Any]]:
    """Return the newest succeeded run of each model with the present settings and inputs, by model.

    A run of the same model with other metrics, or another definition, dataset or split, has another key.

    Args:
        night: the night of the benchmark file.
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
    for part in night.benchmark.evaluation.parts:
        if part not in filled:
            raise DataError(
                f"part '{part}' of dataset {night.benchmark.dataset.name} is empty",
                f"parts with rows: {', '.join(sorted(filled))}; see split and evaluation.parts",
            )


def require_split(night: BenchmarkNight) -> None:
    """Refuse to publish if the split was removed or an input was changed during the run."""
    require_unchanged()
    if current_split_id(night.store, night.split_id) != night.split_id:
        raise StoreError(f"split {night.split_id} was removed by jobs/maintain.py meanwhile", "run again")


def check_night_gates(night: BenchmarkNight) -> list[GateCheck]:
    """Check the gates on facts of the split with the night's manifest."""
    gates = [gate for gate in night.benchmark.gates if gate.fact not in list_model_facts(night.benchmark)]
    if not gates:
        return []
    return gate_checks(gates, night.manifest)


def list_model_facts(benchmark: Benchmark) -> set[str]:
    """Return the facts that models of the benchmark report of themselves."""
    return {fact for model in benchmark.models for fact in model.facts}


def check_model_gates(night: BenchmarkNight, model: ModelConfig) -> list[GateCheck]:
    """Check the gates on facts of a model, if it has reported any: on its first night there is no drift."""
    gates = [gate for gate in night.benchmark.gates if gate.fact in model.facts]
    facts = make_adapter(model).facts(night.data) if gates else []
    return gate_checks(gates, facts) if facts else []


def make_run_key(night: BenchmarkNight, model: ModelConfig) -> str:
    """Hash all that a run's numbers depend on: same key, same numbers."""
    inputs = {**night.inputs, **identify_model_inputs(night.spark, model)}
    others = list_switched_models(night.benchmark, model)
    inputs |= {f"run of {other.name}": make_run_key(night, other) for other in others}
    return hash_run_key(night.benchmark, night.definition, night.split_id, inputs, model)


def identify_model_inputs(spark: SparkSession, model: ModelConfig) -> dict[str, str]:
    """Return the identity of each file that a model is read from."""
    return run_keys.identify_model_inputs(partial(identity, spark), model)


def check_benchmark(benchmark: Benchmark) -> None:
    """Check all settings that can be checked before Spark starts.

    Raises:
        ConfigError: an unknown metric, axis or preset; a setting that needs another one.
    """
    evaluation, reader = benchmark.evaluation, benchmark.dataset.reader
    definition = evaluation.resolve()
    check_measures(benchmark)
    listed = evaluation.candidates_path or benchmark.dataset.lists_negatives
    if definition.candidates == "given" and not listed:
        raise ConfigError(
            "evaluation.candidates_path is missing, and definition.candidates is 'given'",
            "give a table of user_id, item_id",
        )
    if DIVERSITY in evaluation.metrics and not evaluation.features:
        raise ConfigError("metric diversity needs evaluation.features", "give a table of item_id, vector")
    if evaluation.exposure and evaluation.exposure.propensities.method == "true" and reader != "world":
        raise ConfigError("only the generated world knows its true propensities", "use another method")
    _check_parts(benchmark)
    check_open_loop(benchmark, definition)
    _check_gates(benchmark)
    for cut in evaluation.slices:
        if cut.of in ("users", "items") and not cut.path:
            raise ConfigError(f"slice {cut.key}: of '{cut.of}' needs 'path'", "give a table with the ids")
        known = benchmark.dataset.attributes
        if cut.of == "log" and reader in TABLE_READERS and (name := cut.column or cut.key) not in known:
            hint = f"{nearest(name, known)}; dataset.attributes lists what is kept of a log"
            raise ConfigError(f"evaluation.slices.{cut.key}: '{name}' is not in dataset.attributes", hint)
    for model in benchmark.models:
        model.check(reader)
    check_retrieval(benchmark.models, definition)
    if evaluation.learning_curve is not None:
        make_curve_plan(evaluation, definition)
        for model in benchmark.curve_models:
            make_adapter(model).check_prefixes()


def _check_parts(benchmark: Benchmark) -> None:
    """Refuse a part that neither the split nor the log can have. Raises ConfigError."""
    dataset, split = benchmark.dataset, benchmark.split
    for part in benchmark.evaluation.parts:
        if part not in (known := list_held_out_parts(split)):
            raise ConfigError(
                f"evaluation.parts: the split does not hold out '{part}'", nearest(part, known)
            )
    if dataset.reader not in TABLE_READERS:  # the log of a table may name the parts of its rows
        require_parts(benchmark, READER_PARTS.get(dataset.reader, ()))


READER_PARTS = {
    "world": ("open_loop",),
    **dict.fromkeys(("netflix", "coat", "yahoo_r3", "lightgcn", "ncf"), HELD_OUT_PARTS),
}
"""Readers whose logs name the parts of some rows, and the held-out parts that these can be."""


def require_parts(benchmark: Benchmark, of_log: Sequence[str]) -> None:
    """Check that the split or the log has rows of each part that is evaluated.

    Args:
        benchmark: the file.
        of_log: held-out parts that the log itself may name.

    Raises:
        ConfigError: a part has no rows, whatever the log holds.
    """
    split = benchmark.split
    made = (*list_made_parts(split), *(list_held_out_parts(split) if split.holdout == "given" else ()))
    for part in benchmark.evaluation.parts:
        if part not in made and part not in of_log:
            hint = "split.ratio: [0.7, 0.1, 0.2], or split.valid: true" if part == "valid" else ""
            message = f"evaluation.parts: neither the split nor the log has rows of '{part}'"
            raise ConfigError(message, hint or nearest(part, (*made, *of_log)))


def describe_metric(evaluation: Evaluation, definition: Definition, metric: str) -> str:
    """Return the definition string of a metric of a night; metrics of predictions have one definition."""
    if metric == MANDCG and evaluation.learning_curve is not None:
        return describe_curve(evaluation.learning_curve, definition, CURVE_METRIC)
    if metric not in METRICS and metric not in LIST_METRICS:
        return VERSION
    return make_metric_plan(evaluation, definition).describe(metric)


def parse_headline(benchmark: Benchmark) -> tuple[str, int | None]:
    """Return the headline's metric and cut-off.

    A cut-off of None means the whole ranking, or a metric without a cut-off.
    """
    metric, _, k = benchmark.headline.partition("@")
    return metric, int(k) if k else None


def headline_filter(benchmark: Benchmark) -> Column:
    """Return the condition for the headline's metric and cut-off, for any table with these columns."""
    metric, k = parse_headline(benchmark)
    return (F.col("metric") == metric) & F.col("k").eqNullSafe(F.lit(k))


def check_measures(benchmark: Benchmark) -> None:
    """Check metrics, definition and headline, for any job that uses the file.

    Raises:
        ConfigError: an unknown metric, axis or preset; a metric without a value at its cut-off.
    """
    evaluation = benchmark.evaluation
    if evaluation.task == "rating":
        check_names(evaluation.metrics, evaluation.task)
    else:
        make_metric_plan(evaluation, evaluation.resolve())
    for model in benchmark.models:
        for figure in getattr(model, "figures", {}):
            _check_figure(figure, f"models.{model.name}.figures")
    _check_headline(benchmark)
    _check_differences(benchmark)


def _check_figure(figure: str, where: str) -> None:
    """Refuse `metric@k` if the metric is unknown, or has no value with (or without) a cut-off."""
    name, _, k = figure.partition("@")
    known = (*METRICS, *LIST_METRICS, *VALUE_METRICS, MANDCG)
    if name not in known:
        raise ConfigError(f"{where}: {figure}: no such metric", nearest(name, known))
    measured = CURVE_METRIC if name == MANDCG else name
    cuts = METRICS[measured].cuts if measured in METRICS else "k" if name in LIST_METRICS else "uncut"
    if k and cuts == "uncut":
        raise ConfigError(f"{where}: {figure}: {name} has no cut-off", f"write {name}")
    if not k and cuts == "k":
        raise ConfigError(f"{where}: {figure}: {name} needs a cut-off", f"write {name}@10")


def _check_headline(benchmark: Benchmark) -> None:
    """Check that the headline is a figure that this file can measure, or a figure of a publication.

    A night need not measure the headline's metric. Its cut-off, if the file names one, must be measured.
    """
    headline, evaluation = benchmark.headline, benchmark.evaluation
    _check_figure(headline, "headline")
    published = {figure for model in benchmark.models for figure in getattr(model, "figures", {})}
    k = parse_headline(benchmark)[1]
    if "headline" not in benchmark.model_fields_set or headline in published or k is None:
        return
    if k not in evaluation.cutoffs:
        near = min(evaluation.cutoffs, key=lambda cut: abs(cut - k))
        message = f"headline {headline}: nothing is measured at {k}, evaluation.k is {list(evaluation.k)}"
        raise ConfigError(
            message, f"headline: {headline.partition('@')[0]}@{near}, or add {k} to evaluation.k"
        )


def _check_differences(benchmark: Benchmark) -> None:
    """Refuse a smallest difference, and a fall, that no metric of the file can have."""
    comparisons, evaluation = benchmark.comparisons, benchmark.evaluation
    if comparisons is not None:
        compared = comparisons.metrics or evaluation.all_metrics
        widest = max(compared, key=partial(_range_width, evaluation))
        _check_difference(
            "comparisons.minimum_difference", comparisons.minimum_difference, evaluation, widest
        )
    for number, rule in enumerate(benchmark.regressions):
        _check_difference(f"regressions.{number}.drop", rule.drop, evaluation, rule.metric)


def _check_difference(where: str, value: float, evaluation: Evaluation, metric: str) -> None:
    width = _range_width(evaluation, metric)
    if value > width:
        message = f"{where} is {value:g}, and two values of {metric} are at most {width:g} apart"
        raise ConfigError(message, "give a smaller one, such as 0.01")


def _range_width(evaluation: Evaluation, metric: str) -> float:
    """Return the largest difference between two values of a metric at the cut-offs of the file."""
    low, high = figure_range(f"{metric}@{max(evaluation.cutoffs)}")
    return high - low


def _check_gates(benchmark: Benchmark) -> None:
    """Refuse a gate on drift without a model that reports drift: a split has no drift."""
    known = list_model_facts(benchmark)
    for gate in benchmark.gates:
        if gate.fact.startswith("drift") and gate.fact not in known:
            hint = nearest(gate.fact, known) if known else "a model of kind graph reports its drift"
            raise ConfigError(f"gates: no model reports the fact '{gate.fact}'", hint)


def yesterday_stamp(store: Store) -> str:
    """Return the time stamp of run ids a day ago: older runs that are not running will never succeed.

    The clock is that of the warehouse's storage, and this host's for a catalog and HDFS.
    """
    seconds = store.read_clock()
    return (datetime.fromtimestamp(seconds, UTC) - timedelta(days=1)).strftime(STAMP_FORMAT)
