"""Write outcomes as JSON in `results/`, for programs without tables.

There is a file for each run and each night. Their form has a version: a field is added under the same
version; one that is renamed, removed or means something else raises it. `docs/results.schema.json` is the
schema, which `python -m tools.result_schema` writes, and `docs/reference/results.md` explains it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recbench_spark import __version__
from recbench_spark.analyses.comparisons.differences import HOLDOUT
from recbench_spark.config import Benchmark
from recbench_spark.core import revisions
from recbench_spark.schemas import COMPARISONS, METRICS, SLICE_COMPARISONS
from recbench_spark.storage.file_tables import FileTables, RowReader

SCHEMA_VERSION: Literal[1] = 1

PACKAGES = (
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "numba",
    "deltalake",
    "duckdb",
    "pyspark",
    "torch",
    "faiss-cpu",
)
"""Packages whose versions stand in a file."""


class FileRecord(BaseModel):
    """Base class for file parts; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class MetricRecord(FileRecord):
    """One number over a part's users, with its interval."""

    model: str
    run_id: str
    part: str
    metric: str
    k: int | None = Field(description="cut-off; null: over the whole ranking")
    definition: str
    value: float | None = Field(description="mean over the averaged users; null: undefined")
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int = Field(description="users averaged, or rows of value metrics")


class PairRecord(FileRecord):
    """A difference between two runs over some users."""

    kind: str = Field(description="pair, previous or baseline")
    model: str
    other: str
    run_id: str
    other_run_id: str
    logical_date: date
    other_date: date
    part: str
    metric: str
    k: int | None
    definition: str
    users: int
    value: float | None
    other_value: float | None
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p_t: float | None
    p_holm: float | None
    family: int | None = Field(description="tests over which p_holm is adjusted")
    allowed_drop: float | None


class DifferenceRecord(PairRecord):
    """One difference between two runs, as in the table `comparisons`."""

    with_baseline: bool | None
    verdict: str | None
    regressed: bool


class FallenSliceRecord(PairRecord):
    """A slice's value that fell, as in the table `slice_comparisons`."""

    slice_key: str
    slice_value: str | None = Field(description="null: all values with few users")
    pooled: int | None = Field(description="how many values these are; null: one")
    pooled_values: list[str] | None


class VerdictRecord(FileRecord):
    """Verdict on a model, as in the view `model_verdicts`."""

    kind: Literal["pair", "previous", "baseline"]
    model: str
    other: str
    other_date: str
    part: str
    metric: str
    k: int | None
    definition: str
    verdict: Literal["better", "worse", "equivalent", "not told apart", "too good", "cannot tell"]
    reason: str | None = Field(description="why it is too good, or cannot be told")
    value: float | None
    other_value: float | None
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    detectable: float | None = Field(description="difference that such a test shows four times in five")
    e_value: float | None
    users: int
    run_id: str


class RunRecord(FileRecord):
    """`results/RUN_ID.json`: the outcome of one run."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["run"] = "run"
    run_id: str
    suite: str
    model: str
    logical_date: date
    status: Literal["succeeded", "failed"]
    exit_code: int
    error: str | None
    metrics: list[MetricRecord]
    versions: dict[str, str]
    revisions: dict[str, int]


class NightStateRecord(FileRecord):
    """`results/night-SUITE-DATE.json` while a night runs, or after it broke off."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["night"] = "night"
    suite: str
    logical_date: date
    state: Literal["running", "failed"]
    attempt: str = Field(description="name of the process that wrote the file")
    started_at: str = Field(description="begin of the attempt, UTC")
    exit_code: int | None = Field(description="null: the night runs, or its process was killed")
    error: str | None = Field(description="why the night ended")
    tables: list[str] = Field(description="as the end of an earlier attempt has it")
    versions: dict[str, str]


class NightRecord(FileRecord):
    """`results/night-SUITE-DATE.json`: the outcome of a night."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["night"] = "night"
    state: Literal["finished"] = "finished"
    suite: str
    logical_date: date
    exit_code: int
    run_ids: dict[str, str] = Field(description="the run of each model")
    failed: dict[str, str] = Field(description="failed models and their errors")
    regressions: list[str] = Field(description="one sentence for each regression")
    regressed: list[DifferenceRecord] = Field(description="the same regressions as fields")
    fallen_slices: list[FallenSliceRecord] = Field(default=[], description="values of slices that fell")
    verdicts: list[VerdictRecord] = Field(default=[], description="by model, on the headline")
    doubts: list[str] = Field(default=[], description="models that are too good, or cannot be judged")
    restated: list[str] = Field(default=[], description="numbers that moved too far when made again")
    metrics: list[MetricRecord]
    comparisons: list[DifferenceRecord] = Field(description="differences of models of this night")
    report: str | None = Field(description="path of the report below the warehouse")
    leaderboard: str
    sql_lines: list[str]
    tables: list[str] = Field(description="tables that hold rows of this night")
    follows: str = Field(description="hash by which a later run sees that the night is complete")
    versions: dict[str, str]
    revisions: dict[str, int]


@cache
def list_versions() -> dict[str, str]:
    """List the versions of this package, Python and computing packages."""
    versions = {"recbench-spark": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def describe_code() -> dict[str, Any]:
    """Return versions and revisions, for every file."""
    return {"versions": list_versions(), "revisions": dict(revisions.REVISIONS)}


def read_metrics(store: FileTables, models: Mapping[str, str], benchmark: Benchmark) -> list[MetricRecord]:
    """Read some runs' numbers over all users.

    The numbers are sorted by model, part, metric and cut-off. A whole curve is read at the benchmark file's
    cut-offs.

    Args:
        store: the warehouse.
        models: run id -> model.
        benchmark: the benchmark file.
    """
    names = [name for name in MetricRecord.model_fields if name != "model"]
    filters = [("run_id", "in", sorted(models)), ("estimator", "=", HOLDOUT)]
    rows = store.rows(METRICS, filters, [*names, "slice_key"]) if models else []
    cuts = (*benchmark.evaluation.k, None)
    kept = [row for row in rows if row["slice_key"] is None and row["k"] in cuts]
    records = [MetricRecord(model=models[row["run_id"]], **_make_finite(row, names)) for row in kept]
    return sorted(records, key=_sort_key)


def read_differences(read: RowReader, comparison_id: str) -> list[DifferenceRecord]:
    """Read a comparison's rows."""
    names = list(DifferenceRecord.model_fields)
    rows = read(COMPARISONS, [("comparison_id", "=", comparison_id)], names)
    records = [DifferenceRecord(**_make_finite(row, names)) for row in rows]
    return sorted(records, key=lambda one: (one.kind, one.other, *_sort_key(one)))


def read_slice_falls(
    read: RowReader, benchmark: Benchmark, comparison_id: str | None
) -> list[FallenSliceRecord]:
    """Read the values of watched slices that fell."""
    if comparison_id is None or not benchmark.regression_slices:
        return []
    names = list(FallenSliceRecord.model_fields)
    filters = [("comparison_id", "=", comparison_id), ("regressed", "=", True)]
    records = [FallenSliceRecord(**row) for row in read(SLICE_COMPARISONS, filters, names)]
    return sorted(records, key=lambda one: (one.model, one.metric, one.slice_key, one.slice_value or ""))


def _sort_key(record: MetricRecord | DifferenceRecord) -> tuple[Any, ...]:
    return (record.model, record.part, record.metric, record.definition, record.k is None, record.k or 0)


def _make_finite(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return columns of a row, with None for NaN.

    JSON has no NaN.
    """
    return {
        name: None if isinstance(row[name], float) and not math.isfinite(row[name]) else row[name]
        for name in names
    }


def make_schema() -> dict[str, Any]:
    """Return the JSON schema for all files."""
    parts: Sequence[type[FileRecord]] = (RunRecord, NightRecord, NightStateRecord)
    schemas = [part.model_json_schema(mode="serialization") for part in parts]
    definitions = {name: one for schema in schemas for name, one in schema.pop("$defs", {}).items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Files in results/, version {SCHEMA_VERSION}",
        "oneOf": schemas,
        "$defs": definitions,
    }
