"""What all models of a night share, and how runs are named."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from recbench_spark import __version__, schemas
from recbench_spark.config import Benchmark, digest
from recbench_spark.data.identity import identity
from recbench_spark.definitions import Definition
from recbench_spark.evaluation.metrics import Plan
from recbench_spark.steps.splitting import of_split
from recbench_spark.store import Store


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
    def n_items(self) -> int:
        """Items of the catalogue."""
        return self.table(schemas.ITEMS).count()

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


def new_run_id(logical_date: date, model: str) -> str:
    """Start time first, so that the age of a run can be read off its name."""
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{started}-{logical_date:%Y%m%d}-{model}-{uuid.uuid4().hex[:8]}"
