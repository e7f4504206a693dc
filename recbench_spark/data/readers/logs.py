"""Read logs of all formats: canonical column names, checked values, bad rows refused or set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import LOG_COLUMNS, TABLE_READERS, Dataset
from recbench_spark.data.input_rules import PARTS
from recbench_spark.data.json_objects import find_bad_line
from recbench_spark.data.paths import check_path, exists
from recbench_spark.data.readers import published
from recbench_spark.data.readers.files import (
    BAD_LINE,
    FILE,
    HIDDEN,
    allow_encodings,
    column,
    input_files,
    open_reader,
    read_fields,
)
from recbench_spark.data.readers.json_lines import read_objects
from recbench_spark.data.readers.movielens import read_movielens
from recbench_spark.data.readers.netflix import read_netflix
from recbench_spark.data.readers.parquet import read_parquet
from recbench_spark.data.readers.paths import explain_errors, is_table, local_path, reach_storage
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.data.readers.values import Checks, Value
from recbench_spark.data.text_layouts import IN_UTF8, MOVIELENS, Layout
from recbench_spark.data.world_frames import read_world
from recbench_spark.data.worlds import ATTRIBUTES
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import ConfigError, DataError, nearest
from recbench_spark.inputs import Options
from recbench_spark.schemas import ABSENT, COMPLETE, ID_KIND, IDS, INTERACTIONS
from recbench_spark.storage.local_files import (
    bare_name,
    describe_undecoded,
    refuse_misspelt,
    require_columns,
    separator,
    text_separator,
)
from recbench_spark.storage.spark_types import cast_ids_to_text, spark_type

__all__ = ["PARTS", "Log", "open_log", "read_log"]


@dataclass(frozen=True)
class Log:
    """A log that has been checked.

    Attributes:
        stored: the log in `INTERACTIONS`, lazy, but ids that are stored as integers are int64, which
            are cheaper to shuffle.
        n: number of rows; None where they were not counted.
        rejects: file, line and reason of the rejected rows, lazy; None where bad rows are an error.
        rejected: number of rejected rows.
        reasons: number of rows for each reason; a row may have several reasons.
    """

    stored: DataFrame
    n: int | None = None
    rejects: DataFrame | None = None
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> DataFrame:
        """Return the log in `INTERACTIONS`, lazy."""
        return cast_ids_to_text(self.stored)

    def describe_reasons(self) -> str | None:
        """Return the reasons with their numbers in one text; None where no row was rejected."""
        return "; ".join(f"{n} {reason}" for reason, n in self.reasons.items()) or None


def read_log(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of `open_log`."""
    return open_log(spark, dataset).rows


def open_log(spark: SparkSession, dataset: Dataset) -> Log:
    """Open the log in `INTERACTIONS`: ids as text, rating 1 where there is none, UTC microseconds.

    Unusable rows are counted at once, in one pass; the rows are lazy. Duplicate pairs stay in the log. With
    `dataset.bad_rows: reject` unusable rows are left out and listed in `rejects`.

    Raises:
        ConfigError: the path does not exist, or a mapping of columns is invalid.
        SchemaError: a column is missing or has a type that cannot be read.
        DataError: there are no rows. Unless bad rows are rejected: ids, ratings or times are missing, not
            finite or not numbers, or lines have another layout.
    """
    if dataset.reader == "world":
        return Log(_read_world(spark, dataset))
    reach_storage(spark, dataset.path or "")
    return _check_log(READERS[dataset.reader](spark, dataset), dataset)


def _read_world(spark: SparkSession, dataset: Dataset) -> DataFrame:
    for name in dataset.attributes:
        if name not in ATTRIBUTES:
            raise ConfigError(f"dataset.attributes: a world has no '{name}'", nearest(name, ATTRIBUTES))
    return read_world(spark, dataset.world)


def _read_csv(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    check_path(path)
    text = read_fields(spark, path, Layout(text_separator(path) or separator(path)), dataset.options)
    return RawLog(text.frame, path, text.line, dataset.columns, time_unit=dataset.time_unit)


def _read_json(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    check_path(path)
    names = list(dataset.source_names.values())
    options = {key.lower(): value for key, value in dataset.options.items()}
    allow_encodings(spark, options)
    # Spark finds the ends of lines in another encoding only where it is told what ends them.
    ends = (
        {"lineSep": "\n"} if "linesep" not in options and {"encoding", "charset"} & options.keys() else {}
    )
    names, strict = list(dataset.source_names.values()), dataset.bad_rows == "error"
    text = read_objects(spark, path, names, dataset.attributes, {**ends, **dataset.options}, strict=strict)
    find = partial(_find_bad_object, spark, path, names, dataset.options)
    return RawLog(text.frame, path, text.line, dataset.columns, time_unit=dataset.time_unit, find_line=find)


def _find_bad_object(spark: SparkSession, path: str, names: Sequence[str], options: Options) -> str:
    """Return where the first line stands that is no object with plain values, and what it is, in words."""
    for file in input_files(spark, path, options):
        place = local_path(file)
        bad = None if place is None else find_bad_line(place, names)
        if bad is not None:
            return f"; line {bad.number:,} of {bare_name(str(place))} is {bad.what}; {bad.hint}"
    return ""


def _read_stored(spark: SparkSession, dataset: Dataset) -> RawLog:
    path = str(dataset.path)
    if dataset.reader == "delta" and not exists(path) and is_table(spark, path):
        frame = open_reader(spark, path, dataset.options).table(path)
    elif dataset.reader == "parquet":
        check_path(path)
        names = list(dataset.source_names.values())
        frame = read_parquet(spark, path, [*names, *dataset.attributes], dataset.options)
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
    "json": _read_json,
    "parquet": _read_stored,
    "delta": _read_stored,
}

# --- conversion of stored rows to a log ---


def _check_log(raw: RawLog, dataset: Dataset) -> Log:
    """Rename, convert and check the columns of a log."""
    source_names = _find_log_columns(raw, dataset)
    values = _log_values(raw, source_names, dataset)
    needed = []
    for name, value in values.items():
        needed += [value] if name in raw.nullable else value.refuse_nulls()
    if "event_time" in values:
        needed.append(values["event_time"].check_year(raw.frame, raw.time_unit))
    if raw.line:
        needed += [Value.field(raw.frame, name) for name in dataset.attributes]
    checks = Checks(raw.frame, [*([Value.line(raw.line)] if raw.line else []), *needed], raw.where)
    counts = checks.count()
    if counts.rows == 0:
        raise DataError(f"{raw.where}: no rows")
    if counts.hint == IN_UTF8:
        counts = replace(counts, problems=[*counts.problems, *describe_undecoded(raw.where)])
    if dataset.bad_rows == "error":
        if counts.problems:
            counts.problems[-1] += raw.find_line()
        checks.refuse(counts, "correct or remove these rows, or set dataset.bad_rows to reject")
        return Log(_select_log_columns(raw.frame, raw, source_names, values, dataset), counts.rows)
    if counts.bad == counts.rows:
        problems = "; ".join(counts.problems) + raw.find_line()
        raise DataError(f"{raw.where}: no usable row: {problems}", "look at the format")
    good_rows = raw.frame.where(checks.reason() == "")
    rows = _select_log_columns(good_rows, raw, source_names, values, dataset)
    shown = [*source_names.values(), *dataset.attributes]
    rejects = _select_rejects(raw, checks.reason(), shown)
    return Log(rows, counts.rows - counts.bad, rejects, counts.bad, counts.reasons)


def _log_values(raw: RawLog, source_names: dict[str, str], dataset: Dataset) -> dict[str, Value]:
    frame, where = raw.frame, raw.where
    text, floats = bool(raw.line), dataset.reader in ("csv", "json")
    makers: dict[str, Callable[[str], Value]] = {
        "user_id": lambda name: Value.ids(frame, name, where, text_file=text, floats=floats),
        "item_id": lambda name: Value.ids(frame, name, where, text_file=text, floats=floats),
        "rating": lambda name: Value.number(frame, name, where),
        "event_time": lambda name: Value.time(
            frame, name, raw.time_unit, where, dataset.time_zone, pattern=dataset.time_format
        ),
        "part": Value.part,
    }
    return {name: makers[name](source) for name, source in source_names.items()}


def _select_log_columns(
    frame: DataFrame, raw: RawLog, source_names: dict[str, str], values: dict[str, Value], dataset: Dataset
) -> DataFrame:
    absent = {"rating": F.lit(1.0), "event_time": F.lit(None), "part": F.lit(None)}
    notes: dict[str, dict[str, Any]] = {name: dict(values[name].notes) for name in IDS}
    whole = [name for name in IDS if notes[name][ID_KIND] == "integer"]
    notes |= {name: {ABSENT: True} for name in absent if name not in values}
    if "event_time" in values and "event_time" not in raw.nullable:
        notes["event_time"] = {COMPLETE: True}
    values_by_name = {name: values[name].column if name in values else absent[name] for name in LOG_COLUMNS}
    values_by_name |= {name: _whole_ids(frame, source_names[name], values[name]) for name in whole}
    columns = [
        (column if name in whole else column.cast(spark_type(INTERACTIONS.field(name).type))).alias(
            name, metadata=notes.get(name, {})
        )
        for name, column in values_by_name.items()
    ]
    return frame.select(*columns, _map_attributes(dataset.attributes).alias("attributes"))


def _whole_ids(frame: DataFrame, source: str, ids: Value) -> Column:
    """Return ids that are whole numbers as int64, without text in between for stored integers."""
    stored = isinstance(frame.schema[source].dataType, T.IntegralType)
    return column(source).cast("bigint") if stored else try_cast(ids.column, "bigint")


def _select_rejects(raw: RawLog, reason: Column, names: Sequence[str]) -> DataFrame:
    """Return file, line (its text, or the row as JSON) and reason of the bad rows."""
    row = F.to_json(F.struct(*(column(name).cast("string").alias(name) for name in dict.fromkeys(names))))
    line = F.coalesce(F.col(BAD_LINE), row) if raw.line else row
    file = F.col(FILE) if FILE in raw.frame.columns else F.lit(raw.where)
    frame = raw.frame.select(file.alias("file"), line.alias("line"), reason.alias("reason"))
    return frame.where(F.col("reason") != "")


def _find_log_columns(raw: RawLog, dataset: Dataset) -> dict[str, str]:
    """Map canonical column names to the log's own names, where they are present."""
    names = {name: raw.source_names.get(name, name) for name in LOG_COLUMNS}
    source_names = {name: source for name, source in names.items() if source}
    required = {"user_id", "item_id", *raw.source_names} - set(raw.optional)
    visible = raw.frame.drop(*HIDDEN)
    needed = [*(source for name, source in source_names.items() if name in required), *dataset.attributes]
    require_columns(visible.columns, needed, raw.where, raw.where)
    if dataset.reader in TABLE_READERS:
        refuse_misspelt(visible.columns, list(source_names.values()), raw.where, "dataset.columns")
    return {name: source for name, source in source_names.items() if source in visible.columns}


def _map_attributes(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), column(name).cast("string"))]
    attributes = F.create_map(*pairs) if pairs else F.lit(None)
    return attributes.cast(spark_type(INTERACTIONS.field("attributes").type))
