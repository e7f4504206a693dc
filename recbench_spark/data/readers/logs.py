"""What every log goes through: columns by our names, values checked, bad rows refused or kept aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import LOG_COLUMNS, TABLE_READERS, Dataset
from recbench_spark.data.readers import published
from recbench_spark.data.readers.files import (
    BAD_LINE,
    FILE,
    HIDDEN,
    Layout,
    check_path,
    column,
    exists,
    explain_errors,
    is_table,
    open_reader,
    read_fields,
)
from recbench_spark.data.readers.movielens import MOVIELENS, read_movielens
from recbench_spark.data.readers.netflix import read_netflix
from recbench_spark.data.readers.parquet import read_parquet
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.data.readers.values import PARTS, Checks, Value
from recbench_spark.data.worlds import read_world
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.schemas import ABSENT, COMPLETE, ID_KIND, IDS, INTERACTIONS, cast_ids_to_text
from recbench_spark.storage.local_files import (
    refuse_misspelt,
    require_columns,
    separator,
    text_separator,
)

__all__ = ["PARTS", "Log", "open_log", "read_log"]

WORLD_ATTRIBUTES = ("taste", "genre")


@dataclass(frozen=True)
class Log:
    """A log that has been checked.

    Attributes:
        stored: the log in `INTERACTIONS`, lazy, but ids that are stored as integers are int64: what a
            shuffle had better carry.
        n: how many rows it has; None where they were not counted.
        rejects: file, line, reason of the rows left out, lazy; None where bad rows are an error.
        rejected: how many rows were left out.
        reasons: how many rows each reason hit; a row may have several.
    """

    stored: DataFrame
    n: int | None = None
    rejects: DataFrame | None = None
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> DataFrame:
        """The log in `INTERACTIONS`, lazy."""
        return cast_ids_to_text(self.stored)

    def describe_reasons(self) -> str | None:
        """The reasons with their numbers, in one text; None where nothing was left out."""
        return "; ".join(f"{n} {reason}" for reason, n in self.reasons.items()) or None


def read_log(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """The rows of `open_log`."""
    return open_log(spark, dataset).rows


def open_log(spark: SparkSession, dataset: Dataset) -> Log:
    """The log in `INTERACTIONS`: ids as text, rating 1 where it has none, microseconds of UTC.

    Counts unusable rows eagerly, in one pass; the rows are lazy. Duplicate pairs are left in. With
    `dataset.bad_rows: reject` unusable rows are left out, and can be looked at in `rejects`.

    Raises:
        ConfigError: no such path, or a mapping of columns that means nothing.
        SchemaError: a column is missing or of a type that cannot be read.
        DataError: no rows; ids, ratings or times that are missing, not finite or not numbers, lines of
            another layout (unless they are to be rejected).
    """
    if dataset.reader == "world":
        return Log(_read_world(spark, dataset))
    return _check_log(READERS[dataset.reader](spark, dataset), dataset)


def _read_world(spark: SparkSession, dataset: Dataset) -> DataFrame:
    for name in dataset.attributes:
        if name not in WORLD_ATTRIBUTES:
            raise ConfigError(
                f"dataset.attributes: a world has no '{name}'", nearest(name, WORLD_ATTRIBUTES)
            )
    return read_world(spark, dataset.world)


def _read_csv(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    check_path(path)
    text = read_fields(spark, path, Layout(text_separator(path) or separator(path)), dataset.options)
    return RawLog(text.frame, path, text.line, dataset.columns, time_unit=dataset.time_unit)


def _read_stored(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    if dataset.reader == "delta" and not exists(path) and is_table(spark, path):
        frame = open_reader(spark, path, dataset.options).table(path)
    elif dataset.reader == "parquet":
        check_path(path)
        wanted = [dataset.columns.get(name, name) for name in LOG_COLUMNS]
        frame = read_parquet(spark, path, [*wanted, *dataset.attributes], dataset.options)
    else:
        check_path(path)
        with explain_errors(path):
            frame = open_reader(spark, path, dataset.options).format("delta").load(path)
            frame = frame.select("*", F.col("_metadata.file_path").alias(FILE))
    return RawLog(frame, path, "", dataset.columns, time_unit=dataset.time_unit)


READERS: dict[str, Callable[[SparkSession, Dataset], RawLog]] = {
    **dict.fromkeys(MOVIELENS, read_movielens),
    "netflix": read_netflix,
    "coat": published.read_coat,
    "yahoo_r3": published.read_yahoo_r3,
    "lightgcn": published.read_lightgcn,
    "ncf": published.read_ncf,
    "csv": _read_csv,
    "parquet": _read_stored,
    "delta": _read_stored,
}

# --- from rows as they are stored to a log ---


def _check_log(raw: RawLog, dataset: Dataset) -> Log:
    """Rename, convert and check the columns of a log."""
    theirs = _find_log_columns(raw, dataset)
    values = _log_values(raw, theirs, dataset)
    needed = []
    for name, value in values.items():
        needed += [value] if name in raw.nullable else value.refuse_nulls()
    if "event_time" in values:
        needed.append(values["event_time"].check_year(raw.frame, raw.time_unit))
    if raw.line:
        needed += [Value.field(raw.frame, name) for name in dataset.attributes]
    checks = Checks(raw.frame, [*([Value.line(raw.line)] if raw.line else []), *needed], raw.where)
    found = checks.count()
    if found.rows == 0:
        raise DataError(f"{raw.where}: no rows")
    if dataset.bad_rows == "error":
        checks.refuse(found, "correct or remove these rows, or set dataset.bad_rows to reject")
        return Log(_select_log_columns(raw.frame, raw, theirs, values, dataset), found.rows)
    if found.bad == found.rows:
        raise DataError(f"{raw.where}: no usable row: " + "; ".join(found.problems), "look at the format")
    kept = raw.frame.where(checks.reason() == "")
    rows = _select_log_columns(kept, raw, theirs, values, dataset)
    shown = [*theirs.values(), *dataset.attributes]
    rejects = _select_rejects(raw, checks.reason(), shown)
    return Log(rows, found.rows - found.bad, rejects, found.bad, found.reasons)


def _log_values(raw: RawLog, theirs: dict[str, str], dataset: Dataset) -> dict[str, Value]:
    frame, where = raw.frame, raw.where
    text, floats = bool(raw.line), dataset.reader == "csv"
    makers: dict[str, Callable[[str], Value]] = {
        "user_id": lambda name: Value.ids(frame, name, where, text_file=text, floats=floats),
        "item_id": lambda name: Value.ids(frame, name, where, text_file=text, floats=floats),
        "rating": lambda name: Value.number(frame, name, where),
        "event_time": lambda name: Value.time(frame, name, raw.time_unit, where, dataset.time_zone),
        "part": Value.part,
    }
    return {name: makers[name](their) for name, their in theirs.items()}


def _select_log_columns(
    frame: DataFrame, raw: RawLog, theirs: dict[str, str], values: dict[str, Value], dataset: Dataset
) -> DataFrame:
    absent = {"rating": F.lit(1.0), "event_time": F.lit(None), "part": F.lit(None)}
    notes: dict[str, dict[str, Any]] = {name: dict(values[name].notes) for name in IDS}
    whole = [name for name in IDS if notes[name][ID_KIND] == "integer"]
    notes |= {name: {ABSENT: True} for name in absent if name not in values}
    if "event_time" in values and "event_time" not in raw.nullable:
        notes["event_time"] = {COMPLETE: True}
    found = {name: values[name].column if name in values else absent[name] for name in LOG_COLUMNS}
    found |= {name: _whole_ids(frame, theirs[name], values[name]) for name in whole}
    columns = [
        (column if name in whole else column.cast(INTERACTIONS[name].dataType)).alias(
            name, metadata=notes.get(name, {})
        )
        for name, column in found.items()
    ]
    return frame.select(*columns, _map_attributes(dataset.attributes).alias("attributes"))


def _whole_ids(frame: DataFrame, their: str, ids: Value) -> Column:
    """Ids that are whole numbers as int64; those stored so are not written out first."""
    stored = isinstance(frame.schema[their].dataType, T.IntegralType)
    return column(their).cast("bigint") if stored else ids.column.try_cast("bigint")


def _select_rejects(raw: RawLog, reason: Column, names: Sequence[str]) -> DataFrame:
    """file, line (its text, or the row as JSON) and reason of the bad rows."""
    row = F.to_json(F.struct(*(column(name).cast("string").alias(name) for name in dict.fromkeys(names))))
    line = F.coalesce(F.col(BAD_LINE), row) if raw.line else row
    file = F.col(FILE) if FILE in raw.frame.columns else F.lit(raw.where)
    frame = raw.frame.select(file.alias("file"), line.alias("line"), reason.alias("reason"))
    return frame.where(F.col("reason") != "")


def _find_log_columns(raw: RawLog, dataset: Dataset) -> dict[str, str]:
    """Our names to theirs, for the columns that are there; those asked for must be."""
    theirs = {name: raw.source_names.get(name, name) for name in LOG_COLUMNS}
    asked = {"user_id", "item_id", *raw.source_names} - set(raw.optional)
    known = raw.frame.drop(*HIDDEN)
    wanted = [*(theirs[name] for name in LOG_COLUMNS if name in asked), *dataset.attributes]
    require_columns(known.columns, wanted, raw.where, raw.where)
    if dataset.reader in TABLE_READERS:
        refuse_misspelt(known.columns, list(theirs.values()), raw.where, "dataset.columns")
    return {name: their for name, their in theirs.items() if their in known.columns}


def _map_attributes(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), column(name).cast("string"))]
    found = F.create_map(*pairs) if pairs else F.lit(None)
    return found.cast(INTERACTIONS["attributes"].dataType)
