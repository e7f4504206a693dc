"""Reading what others wrote: interaction logs, and tables of lists, scores, truth, embeddings.

Everything is checked where it is read, in one pass of counting: a missing path or column, a value
that is no number, a row without ids becomes an error that names file, column and an example. Nothing
is dropped silently, and nothing surfaces later as a Java stack trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Dataset
from recbench_spark.data.worlds import read_world
from recbench_spark.errors import ConfigError, DataError, SchemaError, nearest
from recbench_spark.schemas import INTERACTIONS, require

COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")
"""Our names of a log's columns; the first two must be there."""

PARTS = ("train", "valid", "test", "open_loop")
"""What a log's own `part` column may say."""

WORLD_ATTRIBUTES = ("taste", "genre")

NUMBERS = ("rating", "relevance", "score", "prediction", "outcome", "bias", "weight", "propensity")
"""Columns of tables that are read as float64."""

BAD_LINE = "_bad_line"
"""Where Spark puts a line whose number of fields is wrong."""

ID_KIND = "recbench.id"
"""Column metadata: how ids were stored, as `integer`, as `string`, or as `text` of a CSV file."""

CANONICAL_INTEGER = "^(0|-?[1-9][0-9]{0,17})$"
"""Text that is the only spelling of its number, and fits 64 bits."""


@dataclass(frozen=True)
class Layout:
    """A text file without a schema of its own: separator, names of fields (None: first line)."""

    separator: str = ","
    names: tuple[str, ...] | None = None
    encoding: str = "UTF-8"

    def options(self) -> dict[str, str]:
        """As Spark's CSV reader takes it; files with given names are not quoted."""
        options = {"sep": self.separator, "encoding": self.encoding}
        return options if self.names is None else {**options, "quote": ""}


RATINGS = ("user_id", "item_id", "rating", "event_time")
GENRES = tuple(f"genre{n}" for n in range(19))

LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", RATINGS),
    "u.user": Layout("|", ("user_id", "age", "gender", "occupation", "zip_code"), "ISO-8859-1"),
    "u.item": Layout("|", ("item_id", "title", "release_date", "video_date", "url", *GENRES), "ISO-8859-1"),
    "ratings.dat": Layout("::", RATINGS),
    "users.dat": Layout("::", ("user_id", "gender", "age", "occupation", "zip_code"), "ISO-8859-1"),
    "movies.dat": Layout("::", ("item_id", "title", "genres"), "ISO-8859-1"),
    "ratings.tsv": Layout("\t"),
    "ratings.csv": Layout(","),
}
"""MovieLens files by name; a `.gz` ending may follow."""

MOVIELENS: dict[str, tuple[str, ...]] = {
    "movielens_100k": ("u.data",),
    "movielens_1m": ("ratings.dat", "ratings.tsv"),
    "movielens_latest": ("ratings.csv",),
}
"""The ratings file of each data set: the first one that is there."""

MOVIELENS_COLUMNS: dict[str, dict[str, str]] = {
    "ratings.tsv": {"user_id": "user", "item_id": "item"},
    "ratings.csv": {"user_id": "userId", "item_id": "movieId", "event_time": "timestamp"},
}
"""Our names to the header's, where they differ."""


# --- logs ---


def read_log(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """The log in `INTERACTIONS`: ids as text, rating 1 where it has none, microseconds of UTC.

    Counts unusable rows eagerly, in one pass; the rows are lazy. Duplicate pairs are left in.

    Raises:
        ConfigError: no such path, or a mapping of columns that means nothing.
        SchemaError: a column is missing or of a type that cannot be read.
        DataError: no rows; ids, ratings or times that are missing, not finite or no numbers.
    """
    return READERS[dataset.reader](spark, dataset)


def _world(spark: SparkSession, dataset: Dataset) -> DataFrame:
    for name in dataset.attributes:
        if name not in WORLD_ATTRIBUTES:
            raise ConfigError(
                f"dataset.attributes: a world has no '{name}'", nearest(name, WORLD_ATTRIBUTES)
            )
    return read_world(spark, dataset.world)


def _movielens(spark: SparkSession, dataset: Dataset) -> DataFrame:
    if dataset.columns or dataset.options:
        raise ConfigError(
            f"dataset: reader '{dataset.reader}' takes no 'columns' and no 'options'",
            "use reader 'csv' for a file laid out otherwise",
        )
    path, name = _movielens_file(str(dataset.path), MOVIELENS[dataset.reader])
    frame = _read_text(spark, path, LAYOUTS[name])
    return _as_log(frame, MOVIELENS_COLUMNS.get(name, {}), dataset, path, "text")


def _movielens_file(path: str, names: Sequence[str]) -> tuple[str, str]:
    """The ratings file at or under the path, and the name of its layout."""
    _check_path(path)
    if not Path(path).is_dir():
        plain = path.removesuffix(".gz")
        return path, next((n for n in names if Path(n).suffix == Path(plain).suffix), names[0])
    for name in names:
        for candidate in (Path(path, name), Path(path, f"{name}.gz")):
            if candidate.is_file():
                return str(candidate), name
    there = ", ".join(sorted(entry.name for entry in Path(path).iterdir())) or "nothing"
    raise ConfigError(f"{path}: no {' or '.join(names)} (.gz or not)", f"the folder has: {there}")


def _csv(spark: SparkSession, dataset: Dataset) -> DataFrame:
    path = str(dataset.path)
    _check_path(path)
    frame = _read_text(spark, path, Layout(_separator(path)), dataset.options)
    return _as_log(frame, dataset.columns, dataset, path, "text")


def _stored(spark: SparkSession, dataset: Dataset) -> DataFrame:
    path = str(dataset.path)
    if dataset.reader == "delta" and not _exists(path) and _is_table(spark, path):
        frame = spark.table(path)
    else:
        _check_path(path)
        with _explained(path):
            frame = spark.read.format(dataset.reader).options(**dataset.options).load(path)
    return _as_log(frame, dataset.columns, dataset, path, "stored")


READERS: dict[str, Callable[[SparkSession, Dataset], DataFrame]] = {
    "world": _world,
    **dict.fromkeys(MOVIELENS, _movielens),
    "csv": _csv,
    "parquet": _stored,
    "delta": _stored,
}


def _as_log(frame: DataFrame, renamed: dict[str, str], dataset: Dataset, path: str, kind: str) -> DataFrame:
    """Rename, convert and check the columns of a log."""
    theirs = _log_columns(frame, renamed, dataset, path)
    values = {
        "user_id": Value.text(frame, theirs["user_id"]),
        "item_id": Value.text(frame, theirs["item_id"]),
    }
    if "rating" in theirs:
        values["rating"] = Value.number(frame, theirs["rating"], path)
    if "event_time" in theirs:
        values["event_time"] = Value.time(frame, theirs["event_time"], dataset.time_unit, path)
    if "part" in theirs:
        values["part"] = Value.part(frame, theirs["part"])
    needed = [value.with_nulls() if name != "part" else value for name, value in values.items()]
    if _refuse(frame, needed, path) == 0:
        raise DataError(f"{path}: no rows")
    absent = {"rating": F.lit(1.0), "event_time": F.lit(None), "part": F.lit(None)}
    columns = [
        (values[name].column if name in values else absent[name])
        .cast(INTERACTIONS[name].dataType)
        .alias(name, metadata=_id_kind(frame, theirs[name], kind) if name.endswith("_id") else {})
        for name in COLUMNS
    ]
    return frame.select(*columns, _attributes(frame, dataset.attributes).alias("attributes"))


def _log_columns(frame: DataFrame, renamed: dict[str, str], dataset: Dataset, path: str) -> dict[str, str]:
    """Our names to theirs, for the columns that are there; those asked for must be."""
    for name in renamed:
        if name not in COLUMNS:
            raise ConfigError(f"dataset.columns: unknown column '{name}'", nearest(name, COLUMNS))
    theirs = {name: renamed.get(name, name) for name in COLUMNS}
    asked = {"user_id", "item_id", *renamed}
    optional = {"event_time"} if dataset.reader in MOVIELENS else set()
    wanted = [theirs[name] for name in COLUMNS if name in asked - optional]
    known = frame.drop(BAD_LINE)
    require(known, [*wanted, *dataset.attributes], path)
    return {name: column for name, column in theirs.items() if column in known.columns}


def _attributes(frame: DataFrame, names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), _column(name).cast("string"))]
    column = F.create_map(*pairs) if pairs else F.lit(None)
    return column.cast(INTERACTIONS["attributes"].dataType)


# --- tables of lists, scores, truth, embeddings, attributes ---


def read_table(spark: SparkSession, path: str, columns_required: Sequence[str], what: str) -> DataFrame:
    """A table by path, or by `catalog.schema.table` where there is no such path.

    A folder with `_delta_log` is Delta; `.csv`, `.tsv` (`.gz`), or a folder of them, is CSV with a
    header; MovieLens' user and item files are known by name; anything else is Parquet. Ids become
    text, the columns of NUMBERS float64, `rank` int64, `vector` an array of float32 (in CSV a JSON
    array); other columns stay as they are. NULL stays NULL.

    Raises:
        ConfigError: there is no such path or table.
        SchemaError: a required column is missing, or of a type that cannot be read.
        DataError: values that are no numbers, lines with too many or too few fields.
    """
    frame, kind = _open(spark, path)
    where = f"{what} {path}"
    known = frame.drop(BAD_LINE)
    require(known, list(columns_required), where)
    values = {name: _value(frame, name, where) for name in known.columns}
    _refuse(frame, values.values(), where)
    return frame.select(
        *(
            value.column.alias(name, metadata=_id_kind(frame, name, kind) if name.endswith("_id") else {})
            for name, value in values.items()
        )
    )


def _open(spark: SparkSession, path: str) -> tuple[DataFrame, str]:
    """The table as it is stored, and whether it came from `text` or a `stored` schema."""
    if not _exists(path) and _is_table(spark, path):
        return spark.table(path), "stored"
    _check_path(path)
    layout = _layout(path)
    if layout:
        return _read_text(spark, path, layout), "text"
    with _explained(path):
        stored = "delta" if DeltaTable.isDeltaTable(spark, path) else "parquet"
        return spark.read.format(stored).load(path), "stored"


def _layout(path: str) -> Layout | None:
    """How to read a text file or a folder of them; None for anything else."""
    name = Path(path).name.removesuffix(".gz")
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name.endswith((".csv", ".tsv")) and not Path(path, "_delta_log").exists():
        return Layout(_separator(path))
    folder = Path(path)
    if folder.is_dir() and not (folder / "_delta_log").exists():
        for entry in sorted(folder.rglob("*")):
            if entry.name.removesuffix(".gz").endswith((".csv", ".tsv")):
                return Layout(_separator(entry.name))
    return None


def _value(frame: DataFrame, name: str, where: str) -> Value:
    """The column converted by the meaning of its name."""
    if name in ("user_id", "item_id"):
        return Value.text(frame, name)
    if name in NUMBERS:
        return Value.number(frame, name, where)
    if name == "rank":
        return Value.whole(frame, name, where)
    if name == "vector":
        return Value.vector(frame, name, where)
    return Value(name, _column(name))


def id_order(frames: Iterable[DataFrame]) -> Literal["numeric", "bytes"]:
    """How the item ids of these frames are ordered for ties.

    `numeric` where each frame's `item_id` is an integer column or, read from text, holds nothing but
    canonical integers; else `bytes`: the order of UTF-8. For frames fresh from `read_log` and
    `read_table`, which note how ids were stored; one counting pass for those read from text.
    """
    return "numeric" if all(_ids_are_numbers(frame) for frame in frames) else "bytes"


def _ids_are_numbers(frame: DataFrame) -> bool:
    field = frame.schema["item_id"]
    kind = field.metadata.get(ID_KIND, _type_kind(field.dataType))
    if kind == "text":
        return frame.where(~F.col("item_id").rlike(CANONICAL_INTEGER)).isEmpty()
    return bool(kind == "integer")


def _id_kind(frame: DataFrame, name: str, kind: str) -> dict[str, str]:
    return {ID_KIND: "text" if kind == "text" else _type_kind(frame.schema[name].dataType)}


def _type_kind(data_type: T.DataType) -> str:
    return "integer" if isinstance(data_type, T.IntegralType) else "string"


# --- values: a column, and how to tell that it cannot be read ---


@dataclass(frozen=True)
class Value:
    """A converted column, and the rows in which the conversion fails (None: it cannot fail)."""

    name: str
    column: Column
    bad: Column | None = None
    expected: str = ""

    def with_nulls(self) -> Value:
        """The same, with NULL not allowed either."""
        missing = _column(self.name).isNull()
        bad = missing if self.bad is None else missing | F.coalesce(self.bad, F.lit(False))
        return Value(self.name, self.column, bad, self.expected)

    @staticmethod
    def text(frame: DataFrame, name: str) -> Value:
        """An id: text, not NaN where it is stored as a number."""
        column = _column(name)
        floating = isinstance(frame.schema[name].dataType, T.FloatType | T.DoubleType)
        bad = F.isnan(column) if floating else None
        return Value(name, column.cast("string"), bad, "an id")

    @staticmethod
    def number(frame: DataFrame, name: str, where: str) -> Value:
        """A finite float64."""
        column = _as_double(frame, name, where)
        unreadable = _column(name).isNotNull() & column.isNull()
        finite = F.abs(column) < F.lit(float("inf"))
        return Value(name, column, unreadable | ~finite, "a finite number")

    @staticmethod
    def whole(frame: DataFrame, name: str, where: str) -> Value:
        """An int64."""
        column = _as_double(frame, name, where)
        unreadable = _column(name).isNotNull() & column.isNull()
        fits = (F.abs(column) < F.lit(2.0**53)) & (column == F.floor(column))
        return Value(name, column.try_cast("bigint"), unreadable | ~fits, "a whole number")

    @staticmethod
    def time(frame: DataFrame, name: str, unit: str, where: str) -> Value:
        """Microseconds since 1970 UTC, from a timestamp or from a number in the unit."""
        raw = _column(name)
        data_type = frame.schema[name].dataType
        dated = isinstance(data_type, T.TimestampType | T.TimestampNTZType | T.DateType)
        if dated or (unit == "timestamp" and isinstance(data_type, T.StringType)):
            column = F.unix_micros(raw.try_cast("timestamp"))
            expected = "a timestamp"
        elif unit == "timestamp":
            raise SchemaError(
                f"{where}: column '{name}' is {data_type.simpleString()}, not a timestamp",
                "set dataset.time_unit to s, ms or us",
            )
        else:
            column = _micros(frame, name, unit, where)
            expected = f"a time in {unit}"
        return Value(name, column, raw.isNotNull() & column.isNull(), expected)

    @staticmethod
    def part(frame: DataFrame, name: str) -> Value:
        """One of PARTS, or NULL."""
        column = _column(name).cast("string")
        return Value(name, column, ~column.isin(*PARTS), f"one of {', '.join(PARTS)}")

    @staticmethod
    def vector(frame: DataFrame, name: str, where: str) -> Value:
        """An array of float32 without NULLs, from an array of numbers or a JSON array."""
        raw, data_type = _column(name), frame.schema[name].dataType
        if isinstance(data_type, T.StringType):
            column = F.from_json(raw, "array<double>")
        elif isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.NumericType):
            column = raw
        else:
            raise SchemaError(
                f"{where}: column '{name}' is {data_type.simpleString()}, not an array of numbers",
                "for vectors of Spark ML, apply pyspark.ml.functions.vector_to_array first",
            )
        holes = F.exists(column, lambda element: element.isNull())
        bad = (raw.isNotNull() & column.isNull()) | holes
        return Value(name, column.cast("array<float>"), bad, "an array of numbers such as [0.1, -2]")


def _as_double(frame: DataFrame, name: str, where: str) -> Column:
    data_type = frame.schema[name].dataType
    if isinstance(data_type, T.NumericType | T.BooleanType):
        return _column(name).cast("double")
    if isinstance(data_type, T.StringType):
        return _column(name).try_cast("double")
    raise SchemaError(f"{where}: column '{name}' is {data_type.simpleString()}, not a number")


def _micros(frame: DataFrame, name: str, unit: str, where: str) -> Column:
    """Whole numbers exactly, others to the nearest microsecond; NULL where out of range."""
    factor = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    number = _as_double(frame, name, where)
    exact = _column(name).cast("string").try_cast("bigint")
    whole = F.try_multiply(exact, F.lit(factor).cast("bigint"))
    return F.coalesce(whole, F.round(number * factor).try_cast("bigint"))


def _refuse(frame: DataFrame, values: Iterable[Value], where: str) -> int:
    """Count the rows that cannot be read, in one pass; DataError if there are any.

    Returns the number of rows, or -1 where nothing needed counting.
    """
    checks = {f"c{n}": v for n, v in enumerate(values) if v.bad is not None}
    lines = BAD_LINE in frame.columns
    if not checks and not lines:
        return -1
    # Spark refuses to read BAD_LINE alone, so another column is counted with it.
    counts = [F.count(F.lit(1)).alias("rows"), F.count(_column(frame.columns[0])).alias("first")]
    for key, value in checks.items():
        counts += _count(key, value.bad, _column(value.name))
    if lines:
        counts += _count("line", _column(BAD_LINE).isNotNull(), _column(BAD_LINE))
    with _explained(where):
        found = frame.agg(*counts).collect()[0]
    problems = [
        f"{found[key]} rows whose '{v.name}' is not {v.expected}, e.g. {_shown(found[f'{key}_e'])}"
        for key, v in checks.items()
        if found[key]
    ]
    if lines and found["line"]:
        problems.insert(0, f"{found['line']} lines of another length, e.g. {_shown(found['line_e'])}")
    if problems:
        raise DataError(f"{where}: " + "; ".join(problems), "correct or remove these rows")
    return int(found["rows"])


def _count(key: str, bad: Column | None, raw: Column) -> list[Column]:
    """How many rows are bad, and the smallest bad value as an example."""
    assert bad is not None
    count = F.count_if(F.coalesce(bad, F.lit(False))).alias(key)
    return [count, F.min(F.when(bad, raw.cast("string"))).alias(f"{key}_e")]


def _shown(example: str | None) -> str:
    return "a missing value" if example is None else repr(example[:120])


# --- paths ---


def _read_text(
    spark: SparkSession, path: str, layout: Layout, options: dict[str, str] | None = None
) -> DataFrame:
    """Every field as text; lines with another number of fields are kept aside in BAD_LINE."""
    given = {**layout.options(), "header": str(layout.names is None).lower(), **(options or {})}
    with _explained(path):
        names = layout.names or spark.read.options(**given).csv(path).columns
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, BAD_LINE)])
    # Without all columns parsed Spark does not count the fields of a line.
    checked = {"columnNameOfCorruptRecord": BAD_LINE, "columnPruning": "false", "mode": "PERMISSIVE"}
    return spark.read.options(**{**given, **checked}).schema(schema).csv(path)


def _separator(path: str) -> str:
    return "\t" if path.removesuffix(".gz").endswith(".tsv") else ","


def _column(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _exists(path: str) -> bool:
    """Whether a local path is there; a remote one is left to Spark."""
    local = path.removeprefix("file://")
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", local)) or Path(local).exists()


def _check_path(path: str) -> None:
    if _exists(path):
        return
    missing = Path(path)
    if missing.parent.is_dir():
        hint = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()][:50])
    else:
        hint = f"there is no folder {missing.parent} either"
    raise ConfigError(f"no such file or folder: {path}", hint)


def _is_table(spark: SparkSession, name: str) -> bool:
    if not re.fullmatch(r"\w+(\.\w+){1,2}", name):
        return False
    with _explained(name):
        return bool(spark.catalog.tableExists(name))


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn an error of Spark into one of ours, with the first line of what it says."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        first = str(error).strip().splitlines()[0][:300]
        raise DataError(f"{where}: cannot be read: {first}") from None
