"""A night looked at without a session: what it would do, and whether what it needs is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from operator import attrgetter
from pathlib import Path

from recbench_spark import __version__
from recbench_spark.arrow_store import in_reach
from recbench_spark.config import (
    Benchmark,
    Dataset,
    EmbeddingsModel,
    ListsModel,
    ModelConfig,
    ScoresModel,
)
from recbench_spark.data import arrow_files
from recbench_spark.data.arrow_times import check_times
from recbench_spark.errors import ConfigError, FallbackToSpark, MissingError, RecbenchError
from recbench_spark.steps.keys import evaluation_paths
from recbench_spark.steps.night import check_benchmark
from recbench_spark.steps.outcomes import Outcome
from recbench_spark.store import check_would_write
from recbench_spark.stored_files import COMPRESSED, require_columns
from recbench_spark.training.behaviour import behaviour_of

TABLES = ("csv", "parquet", "delta")
"""Readers of logs that are tables, with columns of their own."""

TIMES_SEEN = 100_000
"""Times of a log that are looked at."""

LATER = "known when Spark starts"
"""What is said of a path that this process does not read."""


def dry_run(store_root: str, benchmark: Benchmark, logical_date: date, done: Outcome | None) -> str:
    """What a night would do, in words, without Spark.

    Raises:
        ConfigError: a setting that cannot be. MissingError: a file that is not there, or not yet.
        SchemaError: a table without a column that is needed, or vectors of two widths.
    """
    check_benchmark(benchmark)
    if in_reach(store_root):
        check_would_write(Path(store_root))
    looked_at = check_inputs(benchmark)
    asked = benchmark.evaluation
    lines: Sequence[str] = [
        f"benchmark   {benchmark.name}: {benchmark.description}".rstrip(": "),
        f"night       {logical_date}",
        f"warehouse   {store_root}",
        f"dataset     {benchmark.dataset.name} ({benchmark.dataset.reader}) {benchmark.dataset.path or ''}",
        f"split       {benchmark.split.describe()}",
        f"models      {', '.join(f'{model.name} ({model.kind})' for model in benchmark.models)}",
        f"metrics     {', '.join(asked.metrics)} at {', '.join(map(str, asked.cutoffs))}",
        f"parts       {', '.join(asked.parts)}",
        f"definition  {asked.resolve().describe()}",
        *looked_at,
        f"code        recbench-spark {__version__}",
        "state       already done, nothing to do" if done else "state       to do",
        *(f"{model.name:<11} {told}" for model in benchmark.models if (told := told_of(model))),
    ]
    return "\n".join(lines)


def told_of(model: ModelConfig) -> str | None:
    """What a model does on a night, where there is more to say than its name; its files are looked at."""
    try:
        return behaviour_of(model).told() if model.measured else None
    except RecbenchError as error:
        kind = MissingError if isinstance(error, MissingError) else ConfigError
        raise kind(f"model {model.name}: {error.message}", error.hint) from None


# ------------------------------------------------------------------------------- what is looked at


def check_inputs(benchmark: Benchmark) -> list[str]:
    """A line a table: how many rows lie there; errors where it cannot be used."""
    wanted = {name: (path, ()) for name, path in evaluation_paths(benchmark).items()}
    for cut in benchmark.evaluation.slices:
        if cut.path:
            wanted[f"slice {cut.key}"] = (cut.path, ())
    lines = log_told(benchmark)
    lines += [_table(name, path, columns) for name, (path, columns) in wanted.items()]
    return lines + [line for model in benchmark.models for line in _of_model(model)]


def log_told(benchmark: Benchmark) -> list[str]:
    """Whether the log is there; of tables, also whether it has the columns that the file names.

    Raises:
        MissingError: it is not. SchemaError: it lacks a column.
    """
    dataset = benchmark.dataset
    if not dataset.path:
        return []
    columns: tuple[str, ...] = ()
    if dataset.reader in TABLES and not dataset.options:
        named = {name: dataset.columns.get(name, name) for name in ("user_id", "item_id")}
        wanted = {**named, **dataset.columns}.values()
        columns = tuple(str(name).split(".", maxsplit=1)[0] for name in wanted)
    told = _table("log", str(dataset.path), columns, rows=bool(columns))
    if columns:
        _check_times(dataset)
    return [told]


def _check_times(dataset: Dataset) -> None:
    """Look at the first times of a log that is a table; tables of Spark are left alone.

    Raises:
        SchemaError, DataError: they are no times in `dataset.time_unit`; the hint names the unit that fits.
    """
    path, name = str(dataset.path), str(dataset.columns.get("event_time", "event_time"))
    with suppress(FallbackToSpark):
        if name in arrow_files.columns_at(path):
            times = arrow_files.first_values(path, name, TIMES_SEEN + 1)
            check_times(
                times[:TIMES_SEEN],
                name,
                dataset.time_unit,
                path,
                whole=len(times) <= TIMES_SEEN,
                all_bad=dataset.bad_rows == "reject",
            )


def _of_model(model: ModelConfig) -> list[str]:
    """What lies where a model was handed over."""
    found = []
    for name in model.paths:
        path = attrgetter(name)(model)
        if path:
            columns = _needed(model, name)  # none: a file of the model's own, which it looks at itself
            found.append(_table(f"{model.name} {name}", path, columns, rows=bool(columns)))
    if isinstance(model, EmbeddingsModel):
        found += _width(model)
    return found


def _needed(model: ModelConfig, name: str) -> tuple[str, ...]:
    if isinstance(model, EmbeddingsModel):
        return ("user_id" if name == "users" else "item_id", "vector")
    if isinstance(model, ScoresModel):
        return ("user_id", "item_id", "score")
    return ("user_id", "item_id") if isinstance(model, ListsModel) else ()


def _table(name: str, path: str, columns: Sequence[str], *, rows: bool = True) -> str:
    """One table in words.

    Raises:
        MissingError: it is not there. SchemaError: it lacks a column.
    """
    try:
        unit = "lines" if arrow_files.kind_of(path) == "text" else "rows"
        if columns:
            require_columns(arrow_files.columns_at(path), columns, f"{name} {path}", path)
        # Of compressed text no lines are known, but its bytes.
        counted = rows and not path.endswith(COMPRESSED)
        told = f"{arrow_files.rows_at(path):,} {unit}" if counted else "is there"
    except FallbackToSpark:
        told = LATER
    return f"{name:<11} {path}: {told}"


def _width(model: EmbeddingsModel) -> list[str]:
    """How long the vectors of a model are, by the first of each table.

    Raises:
        SchemaError: users and items have vectors of different lengths.
    """
    try:
        dims = arrow_files.same_width(
            (f"model {model.name}: users", model.users), (f"model {model.name}: items", model.items)
        )
    except FallbackToSpark:
        return []
    return [f"{model.name:<11} {dims} dimensions"]
