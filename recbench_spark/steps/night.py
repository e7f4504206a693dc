"""What all models of a night share, and how runs are named."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import __version__, schemas
from recbench_spark.config import Benchmark, digest
from recbench_spark.data.identity import identity
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.beyond import Catalogue
from recbench_spark.evaluation.metrics import Plan, check_names
from recbench_spark.steps.splitting import of_split
from recbench_spark.store import Store

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
        blocks = self.table(schemas.USER_BLOCKS)
        return Catalogue(
            self.table(schemas.ITEMS), blocks.where(F.size("train_items") > 0).select("user_id")
        )

    @property
    def n_items(self) -> int:
        """Items of the catalogue."""
        return self.catalogue.n_items

    def plan(self) -> Plan:
        """What is measured."""
        asked = self.benchmark.evaluation
        return Plan(asked.metrics, asked.cutoffs, self.definition, asked.bootstrap)


def model_key(night: Night, model: Any) -> str:
    """Hash of all that a trained model depends on; not of its name."""
    settings = model.model_dump(exclude={"name", "version", "provenance"})
    return digest(night.split_id, settings, night.definition.threshold)


def run_key(night: Night, model: Any) -> str:
    """Hash of all that a run's numbers depend on: same key, same numbers."""
    asked = night.benchmark.evaluation.model_dump(exclude={"preset", "definition"})
    inputs = {**night.inputs, **model_inputs(night.spark, model)}
    return digest(
        night.split_id,
        model.model_dump(exclude={"provenance"}),
        asked,
        night.definition.model_dump(),
        inputs,
        __version__,
    )


def model_inputs(spark: SparkSession, model: Any) -> dict[str, str]:
    """Identity of the files a model was handed over in."""
    paths = {name: getattr(model, name, None) for name in ("users", "items", "path")}
    return {f"model {name}": identity(spark, path) for name, path in paths.items() if path}


def check_benchmark(benchmark: Benchmark) -> None:
    """What can be known to be wrong before Spark starts.

    Raises:
        ConfigError: an unknown metric, axis or preset; a setting that needs another one.
    """
    asked = benchmark.evaluation
    definition = asked.resolve()
    check_names(asked.metrics)
    if definition.candidates == "given" and not asked.candidates_path:
        raise ConfigError(
            "evaluation.candidates_path is missing, and definition.candidates is 'given'",
            "a table of user_id, item_id",
        )
    for cut in asked.slices:
        if cut.of in ("users", "items") and not cut.path:
            raise ConfigError(f"slice {cut.key}: of '{cut.of}' needs 'path'", "a table with the ids")
    for model in benchmark.models:
        _check_model(model, benchmark.dataset.reader)


def _check_model(model: Any, reader: str) -> None:
    if model.kind == "truth" and reader != "world":
        raise ConfigError(
            f"model {model.name}: only the generated world knows its true factors",
            "use another kind with this dataset",
        )
    for figure in getattr(model, "figures", {}):
        if not re.fullmatch(r"[a-z_0-9]+(@[1-9][0-9]*)?", figure):
            raise ConfigError(f"model {model.name}: '{figure}' is no figure", "e.g. ndcg@10 or rmse")


def yesterday() -> str:
    """The time stamp of run ids a day ago: what has not succeeded since then never will."""
    return (datetime.now(UTC) - timedelta(days=1)).strftime(STAMP)


def new_run_id(logical_date: date, model: str) -> str:
    """Start time first, so that the age of a run can be read off its name."""
    started = datetime.now(UTC).strftime(STAMP)
    return f"{started}-{logical_date:%Y%m%d}-{model}-{uuid.uuid4().hex[:8]}"
