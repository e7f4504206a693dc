"""Describe a night without Spark, and check its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from recbench_spark import __version__
from recbench_spark.commands.table_descriptions import describe_table
from recbench_spark.commands.warehouses import check_models, check_warehouse
from recbench_spark.config import Benchmark, Dataset, EmbeddingsModel, ListsModel, ModelConfig, ScoresModel
from recbench_spark.errors import ConfigError, FallbackToSpark, MissingError, RecbenchError
from recbench_spark.night.night_status import NightOutcome
from recbench_spark.night.run_keys import evaluation_paths
from recbench_spark.night.verdicts import describe_power
from recbench_spark.sources import arrow_files, columnar
from recbench_spark.sources.arrow_times import check_times, read_movielens_times
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.opened_logs import make_rules
from recbench_spark.sources.table_pieces import detect_kind
from recbench_spark.sources.text_layouts import MOVIELENS
from recbench_spark.storage.local_files import describe_content
from recbench_spark.storage.table_scans import find_partition

MAX_CHECKED_TIMES = 100_000
"""Most times in a log which are checked."""


def dry_run(store_root: str, benchmark: Benchmark, logical_date: date, done: NightOutcome | None) -> str:
    """Describe what a night would do, without Spark.

    Raises:
        ConfigError: an impossible setting. MissingError: a file does not exist, or not yet.
        SchemaError: a table lacks a needed column, or vectors have two widths.
    """
    from recbench_spark.night.benchmark_checks import check_night  # noqa: PLC0415

    check_night(benchmark)
    check_models(store_root, benchmark.models)
    storage = check_warehouse(store_root)
    inputs = check_inputs(benchmark)
    evaluation = benchmark.evaluation
    lines: Sequence[str] = [
        f"benchmark   {benchmark.name}: {benchmark.description}".rstrip(": "),
        f"night       {logical_date}",
        f"warehouse   {store_root}",
        *storage,
        f"dataset     {benchmark.dataset.name} ({benchmark.dataset.reader}) {benchmark.dataset.path or ''}",
        f"split       {benchmark.split.describe()}",
        f"models      {', '.join(f'{model.name} ({model.kind})' for model in benchmark.models)}",
        f"metrics     {', '.join(evaluation.metrics)} at {', '.join(map(str, evaluation.cutoffs))}",
        *(f"left out    {', '.join(left_out)}" for left_out in [evaluation.left_out] if left_out),
        f"parts       {', '.join(evaluation.parts)}",
        f"definition  {benchmark.definition.describe()}",
        *(f"can tell    {text}" for text in describe_power(store_root, benchmark)),
        *describe_curves(benchmark),
        *inputs,
        f"code        recbench-spark {__version__}",
        "state       already done, nothing to do" if done else "state       to do",
        *(f"{model.name:<11} {text}" for model in benchmark.models if (text := describe_model(model))),
    ]
    return "\n".join(lines)


def describe_model(model: ModelConfig) -> str | None:
    """Check a model's files and describe it.

    Returns:
        The description; None if the model's name says all.
    """
    from recbench_spark.models.adapters.model_adapter import make_adapter  # noqa: PLC0415

    try:
        return make_adapter(model).describe() if model.measured else None
    except RecbenchError as error:
        kind = MissingError if isinstance(error, MissingError) else ConfigError
        raise kind(f"model {model.name}: {error.message}", error.hint) from None


def describe_curves(benchmark: Benchmark) -> list[str]:
    """Return a line on the file's learning curves, if requested."""
    curve = benchmark.evaluation.learning_curve
    if curve is None:
        return []
    names = ", ".join(model.name for model in benchmark.curve_models)
    return [f"curves      {curve.describe().removeprefix('curve=')}: {names}"]


# ------------------------------------------------------------------------------------------ inputs


def check_inputs(benchmark: Benchmark) -> list[str]:
    """Return a line with each input table's row count.

    An unusable table raises its reader's error.
    """
    paths = evaluation_paths(benchmark)
    lines = check_log(benchmark.dataset)
    _check_log_parts(benchmark)
    _require_times(benchmark)
    lines += [describe_table(name, path, REQUIRED_COLUMNS[name]) for name, path in paths.items()]
    lines += check_slice_tables(benchmark)
    return lines + [line for model in benchmark.models for line in _describe_model_tables(model)]


REQUIRED_COLUMNS = {
    "candidates": ("user_id", "item_id"),
    "features": ("item_id", "vector"),
    "propensities": ("item_id", "propensity"),
    "rewards": ("item_id", "reward"),
    "item groups": ("item_id",),
    "item features": ("item_id",),
    "user features": ("user_id",),
}
"""Columns which an evaluation's inputs must have.

Messages use the same table names as these keys.
"""


def check_slice_tables(benchmark: Benchmark) -> list[str]:
    """Return a line for each user or item slice table.

    A slice table has ids and a column which divides them into slices.

    Raises:
        MissingError: the table does not exist. SchemaError: it lacks its id, or the column to cut by.
    """
    return [
        describe_table(f"slice {cut.key}", cut.path, (f"{cut.of[:-1]}_id", cut.column or cut.key))
        for cut in benchmark.evaluation.slices
        if cut.path and cut.of in ("users", "items")
    ]


def check_log(dataset: Dataset) -> list[str]:
    """Return the log's line.

    A log which is a table must have the columns named in the file.

    Raises:
        MissingError: the log does not exist. SchemaError: it lacks a column.
    """
    if not dataset.path:
        return []
    columns: tuple[str, ...] = ()
    _check_reader(dataset)
    if _has_known_columns(dataset):
        columns = _list_log_columns(dataset)
    line = describe_table("log", str(dataset.path), columns, rows=bool(columns))
    if columns:
        _check_times(dataset)
    elif dataset.reader == "csv":
        with suppress(FallbackToSpark):
            make_rules(open_raw_log(dataset), dataset)
    elif dataset.reader in MOVIELENS:
        _check_movielens_times(dataset)
    return [line]


def _has_known_columns(dataset: Dataset) -> bool:
    """Return whether the log's columns can be read without Spark.

    For JSON they cannot: no header names them.
    """
    return dataset.is_headed and not dataset.options


def _list_log_columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns required in a log.

    For a nested field it is the outer column.
    """
    named = {name: dataset.columns.get(name, name) for name in ("user_id", "item_id")}
    wanted = [*filter(None, {**named, **dataset.columns}.values()), *columnar.list_attributes(dataset)]
    wanted += dataset.value_columns
    return tuple(str(name).split(".", maxsplit=1)[0] for name in wanted)


def _check_log_parts(benchmark: Benchmark) -> None:
    """Check the evaluated parts against a log without part column.

    The log's header shows whether it has this column.

    Raises:
        ConfigError: an evaluated part exists only in a log with named parts.
    """
    dataset = benchmark.dataset
    if not _has_known_columns(dataset):
        return
    from recbench_spark.night.benchmark_checks import require_parts  # noqa: PLC0415

    with suppress(FallbackToSpark):
        if dataset.columns.get("part", "part") not in arrow_files.read_column_names(str(dataset.path)):
            require_parts(benchmark, ())


def _require_times(benchmark: Benchmark) -> None:
    """Check that a log has times where they are needed.

    Learning curves and some models need them. Only a table's header is read; a night looks for rows without
    a time as well.

    Raises:
        ConfigError: times are needed, and the log has none.
    """
    dataset, curve = benchmark.dataset, benchmark.evaluation.learning_curve
    needs = {
        f"model {model.name}: kind '{model.kind}' reads histories in the order of time": "a kind without it"
        for model in benchmark.models
        if model.needs_times
    }
    if curve is not None and curve.order == "time":
        needs = {"evaluation.learning_curve: order 'time'": "order: hash"}
    if not needs or not _has_known_columns(dataset):
        return
    name = dataset.columns.get("event_time", "event_time")
    with suppress(FallbackToSpark):
        if name not in (known := arrow_files.read_column_names(str(dataset.path))):
            need, way_out = next(iter(needs.items()))
            raise ConfigError(
                f"{need}, and the log has no column '{name}'",
                f"{way_out}, or map dataset.columns.event_time to one of {', '.join(known)}",
            )


def _check_reader(dataset: Dataset) -> None:
    """Check that the log's format fits its reader.

    Raises:
        ConfigError: it does not.
    """
    path, reader = str(dataset.path), dataset.reader
    if not dataset.is_headed:
        return
    with suppress(FallbackToSpark):
        kind = detect_kind(path)
        other = {"text": "csv", "delta": "delta"}.get(kind)
        if kind == "parquet" and Path(path).is_file() and describe_content(path)[0] == "Parquet":
            other = "parquet"
        if other not in (None, reader):
            message = (
                f"log {path}: dataset.reader is {reader}, and it is {'text' if other == 'csv' else other}"
            )
            raise ConfigError(message, f"dataset.reader: {other}")


def _check_times(dataset: Dataset) -> None:
    """Check the first times in a log table.

    Tables which need Spark are skipped.

    Raises:
        SchemaError, DataError: the values are no times in `dataset.time_unit`; the hint names the unit
            which fits.
    """
    path, name = str(dataset.path), str(dataset.columns.get("event_time", "event_time"))
    with suppress(FallbackToSpark):
        if name in arrow_files.read_column_names(path):
            _check_first_times(
                dataset, path, name, arrow_files.read_first_values(path, name, MAX_CHECKED_TIMES + 1)
            )


def _check_movielens_times(dataset: Dataset) -> None:
    """Check the first times in a MovieLens data set."""
    first = read_movielens_times(str(dataset.path), dataset.reader, MAX_CHECKED_TIMES + 1)
    if first:
        _check_first_times(dataset, *first)


def _check_first_times(dataset: Dataset, path: str, name: str, times: pa.Array) -> None:
    """Check up to MAX_CHECKED_TIMES times in a column.

    A value beyond this number only shows the column's further rows.
    """
    whole, all_bad = len(times) <= MAX_CHECKED_TIMES, dataset.bad_rows == "reject"
    check_times(times[:MAX_CHECKED_TIMES], name, dataset.time_unit, path, whole=whole, all_bad=all_bad)


def _describe_model_tables(model: ModelConfig) -> list[str]:
    """Return a line for each table an external model reads."""
    lines = []
    for name in model.paths:
        path = attrgetter(name)(model)
        if path:
            # No columns: the file has its own format, which the model checks itself.
            columns = _list_columns(model, name)
            lines.append(describe_table(f"{model.name} {name}", path, columns, rows=bool(columns)))
    if isinstance(model, EmbeddingsModel):
        lines += _describe_width(model)
    return lines


def _list_columns(model: ModelConfig, name: str) -> tuple[str, ...]:
    if isinstance(model, EmbeddingsModel):
        stored = find_partition(str(attrgetter(name)(model))) is not None
        return ("id" if stored else "user_id" if name == "users" else "item_id", "vector")
    if isinstance(model, ScoresModel):
        return ("user_id", "item_id", "score")
    return ("user_id", "item_id") if isinstance(model, ListsModel) else ()


def _describe_width(model: EmbeddingsModel) -> list[str]:
    """Return a line with the width of a model's vectors.

    The first row in each table gives the width.

    Raises:
        SchemaError: users and items have vectors with different lengths.
    """
    items = (f"model {model.name}: items", model.items)
    users = (f"model {model.name}: users", model.users) if model.users else items
    try:
        dims = arrow_files.read_common_width(users, items)
    except FallbackToSpark:
        return []
    return [f"{model.name:<11} {dims} dimensions"]
