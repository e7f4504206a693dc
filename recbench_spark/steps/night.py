"""What all models of a night share, and how runs are named."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import __version__, schemas
from recbench_spark.config import Benchmark, Evaluation, ModelConfig, digest
from recbench_spark.data.identity import identity
from recbench_spark.data.readers import read_table
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.evaluation.metrics.accuracy import MetricPlan, check_names
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY, LIST_METRICS
from recbench_spark.evaluation.metrics.top_lists import Catalogue
from recbench_spark.kernels.metrics.accuracy import METRICS
from recbench_spark.steps.exposure import ExposureContext, exposure_context
from recbench_spark.steps.features import share_features
from recbench_spark.steps.gates import GateCheck, gate_checks
from recbench_spark.steps.revising import of_run
from recbench_spark.steps.splitting import held_out_parts, of_split
from recbench_spark.store import Store
from recbench_spark.training.behaviour import SplitData

STAMP = "%Y%m%dT%H%M%S"
"""How run ids begin: the start of the attempt, UTC."""


@dataclass(frozen=True)
class Night:
    """What all models of a night share."""

    store: Store
    benchmark: Benchmark
    definition: Definition
    split_id: str
    inputs: dict[str, str]
    logical_date: date

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.store.spark

    def table(self, table: schemas.Table) -> DataFrame:
        """The rows of this night's split."""
        return of_split(self.store, table, self.split_id)

    @cached_property
    def catalogue(self) -> Catalogue:
        """What metrics of lists are measured against."""
        blocks, items = self.table(schemas.USER_BLOCKS), self.table(schemas.ITEMS)
        path = self.benchmark.evaluation.features
        features = None
        if path and DIVERSITY in self.benchmark.evaluation.metrics:
            rows = read_table(self.spark, path, ["item_id", "vector"], "features")
            features = share_features(self.store.scratch, items, rows, f"features {path}")
        train_users = blocks.where(F.size("train_items") > 0).select("user_id")
        return Catalogue(items, train_users, features)

    @cached_property
    def exposure(self) -> ExposureContext | None:
        """What is known of exposure, where estimates that correct for it are asked for."""
        asked = self.benchmark.evaluation
        return (
            exposure_context(self.store, self.split_id, asked, self.definition) if asked.exposure else None
        )

    @property
    def n_items(self) -> int:
        """Items of the catalogue."""
        return self.catalogue.n_items

    @cached_property
    def data(self) -> SplitData:
        """What models may know of the night."""
        held_out = self.benchmark.split.held_out
        return SplitData(
            self.store,
            self.split_id,
            self.definition,
            self.benchmark.dataset.world,
            folds_users=held_out is not None and held_out.of == "users",
        )

    def plan(self) -> MetricPlan:
        """What is measured."""
        return metric_plan(self.benchmark.evaluation, self.definition)


def metric_plan(asked: Evaluation, definition: Definition) -> MetricPlan:
    """What a benchmark file measures of rankings; ConfigError where that cannot be."""
    features = Path(asked.features).stem if asked.features else None
    return MetricPlan.checked(
        asked.metrics, asked.cutoffs, definition, asked.bootstrap, features, uncut=asked.uncut
    )


def night_gates(night: Night) -> list[GateCheck]:
    """The gates of the benchmark file, held against the manifest of this night's split."""
    if not night.benchmark.gates:
        return []
    facts = [row.asDict() for row in night.table(schemas.MANIFESTS).collect()]
    return gate_checks(night.benchmark.gates, facts)


def run_key(night: Night, model: ModelConfig) -> str:
    """Hash of all that a run's numbers depend on: same key, same numbers."""
    asked = night.benchmark.evaluation.model_dump(exclude={"preset", "definition"})
    inputs = {**night.inputs, **model_inputs(night.spark, model)}
    return digest(
        night.split_id.partition(".")[0],
        model.model_dump(exclude={"provenance"}),
        asked,
        night.definition.model_dump(),
        inputs,
        __version__,
        of_run(night.benchmark, night.definition, model),
    )


def model_inputs(spark: SparkSession, model: ModelConfig) -> dict[str, str]:
    """Identity of the files a model was handed over in."""
    paths = {name: getattr(model, name) for name in model.paths}
    return {f"model {name}": identity(spark, path) for name, path in paths.items() if path}


def check_benchmark(benchmark: Benchmark) -> None:
    """What can be known to be wrong before Spark starts.

    Raises:
        ConfigError: an unknown metric, axis or preset; a setting that needs another one.
    """
    asked, reader = benchmark.evaluation, benchmark.dataset.reader
    definition = asked.resolve()
    if asked.task == "rating":
        check_names(asked.metrics, asked.task)
    else:
        metric_plan(asked, definition)
    listed = asked.candidates_path or benchmark.dataset.lists_negatives
    if definition.candidates == "given" and not listed:
        raise ConfigError(
            "evaluation.candidates_path is missing, and definition.candidates is 'given'",
            "a table of user_id, item_id",
        )
    if DIVERSITY in asked.metrics and not asked.features:
        raise ConfigError("metric diversity needs evaluation.features", "a table of item_id, vector")
    if asked.exposure and asked.exposure.propensities.method == "true" and reader != "world":
        raise ConfigError("only the generated world knows its true propensities", "use another method")
    for part in asked.parts:
        if part not in (known := held_out_parts(benchmark.split)):
            raise ConfigError(
                f"evaluation.parts: nothing is ever held out to '{part}'", nearest(part, known)
            )
    _check_headline(benchmark)
    for cut in asked.slices:
        if cut.of in ("users", "items") and not cut.path:
            raise ConfigError(f"slice {cut.key}: of '{cut.of}' needs 'path'", "a table with the ids")
    for model in benchmark.models:
        model.check(reader)


def _check_headline(benchmark: Benchmark) -> None:
    """A headline is a metric that is known, or one of a publication; not all nights measure it."""
    name = benchmark.headline.partition("@")[0]
    figures = [figure for model in benchmark.models for figure in getattr(model, "figures", {})]
    known = {*METRICS, *LIST_METRICS, *(figure.partition("@")[0] for figure in figures)}
    if name not in known:
        raise ConfigError(f"headline {benchmark.headline}: no such metric", nearest(name, known))


def yesterday() -> str:
    """The time stamp of run ids a day ago: what has not succeeded since then never will."""
    return (datetime.now(UTC) - timedelta(days=1)).strftime(STAMP)


def new_run_id(logical_date: date, model: str) -> str:
    """Start time first, so that the age of a run can be read off its name."""
    started = datetime.now(UTC).strftime(STAMP)
    return f"{started}-{logical_date:%Y%m%d}-{model}-{uuid.uuid4().hex[:8]}"
