"""Read splits that were published as files: Coat, Yahoo R3, LightGCN, NCF. The file gives a row's part."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Dataset
from recbench_spark.data.paths import check_path
from recbench_spark.data.readers.files import BAD_LINE, FILE, read_fields, read_lines
from recbench_spark.data.readers.paths import find_file, is_folder
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.data.readers.values import Checks, Value
from recbench_spark.data.text_layouts import TEXT_NOTES, Layout
from recbench_spark.engine.versions import try_cast
from recbench_spark.errors import ConfigError, SchemaError
from recbench_spark.storage.shared_arrays import escape_path

WHOLE_NUMBERS = r"^\s*[0-9]+(\s+[0-9]+)*\s*$"
CANDIDATE_LINE = r"^\s*\([0-9]+,[0-9]+\)(\s+[0-9]+)+\s*$"


def _union_parts(frames: dict[str, DataFrame], undivided: str | None = None) -> DataFrame:
    """Return the frames under each other, each with its part; `undivided` leaves its part to the split."""
    parts = {name: F.lit(None if name == undivided else name).cast("string") for name in frames}
    marked = [frame.withColumn("part", parts[name]) for name, frame in frames.items()]
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), marked)


def _name_undivided_part(dataset: Dataset) -> str | None:
    """Return the part whose rows the split divides, if `dataset.closed_loop` says so."""
    return "train" if dataset.closed_loop == "split" else None


def _split_tokens(line: str | Column) -> Column:
    return F.regexp_extract_all(line, F.lit(r"\S+"), 0)


def _null_array() -> Column:
    """Return an array of one NULL: exploded, it leaves a row that reports a bad line."""
    return F.array(F.lit(None).cast("string"))


def _explode_items(lines: DataFrame, good: Column, user: Column, items: Column) -> DataFrame:
    """Return user_id, item_id, BAD_LINE and FILE: a row per item of a good line, one row for a bad line."""
    # Lines are parsed in a separate step; together with `explode` they would be parsed for each item.
    parsed = lines.select(
        F.when(good, user).alias("user_id"),
        F.when(good, items).otherwise(_null_array()).alias("items"),
        _bad_line(good),
        FILE,
    )
    return parsed.select("user_id", F.explode("items").alias("item_id"), BAD_LINE, FILE)


# --- Coat: a matrix, one line per user ---


def read_coat(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read Coat Shopping (Schnabel et al., ICML 2016): `train.ascii` is part train, `test.ascii` open_loop.

    A line per user, a rating per item, 0 for none; user and item ids are the positions of line and
    number, from 0. A task holds one matrix as text (290 x 300 numbers).
    """
    folder = str(dataset.path)
    frames = {
        part: _read_matrix(spark, find_file(spark, folder, [name]), "rating")
        for part, name in (("train", "train.ascii"), ("open_loop", "test.ascii"))
    }
    rated = F.coalesce(try_cast(F.col("rating"), "double"), F.lit(1.0)) != 0
    log = _union_parts(frames, _name_undivided_part(dataset)).where(rated)
    return RawLog(log, folder, "as many numbers as in the first line")


def read_propensities(spark: SparkSession, path: str) -> DataFrame:
    """Read user_id, item_id, propensity of a matrix such as Coat's `propensities.ascii` (or its folder).

    Ids are those of `read_coat`. A task holds the matrix as text.

    Raises:
        ConfigError: the file does not exist.
        DataError: lines have different lengths, or a value is no probability above 0.
    """
    file = find_file(spark, path, ["propensities.ascii"]) if is_folder(spark, path) else path
    frame = _read_matrix(spark, file, "propensity")
    value = Value.within(frame, "propensity", file, 0.0, "a probability above 0")
    checks = Checks(frame, [Value.line("as many numbers as in the first line"), value], file)
    checks.refuse(checks.count())
    return frame.select(*_select_ids(), value.column.alias("propensity"))


def _read_matrix(spark: SparkSession, path: str, value: str) -> DataFrame:
    """Read user_id, item_id and the value of a whitespace-separated matrix, with BAD_LINE and FILE."""
    lines = F.filter(F.split("line", "\r?\n"), lambda line: F.trim(line) != "")
    text = read_lines(spark, path, whole=True).select(lines.alias("lines"), FILE)
    wide = text.withColumn("width", F.size(_split_tokens(F.col("lines")[0])))
    by_line = wide.select(FILE, "width", F.posexplode("lines").alias("user", "line"))
    tokens = by_line.select(FILE, "user", "width", "line", _split_tokens("line").alias("tokens"))
    good = F.size("tokens") == F.col("width")
    numbers = F.when(good, F.col("tokens")).otherwise(_null_array()).alias("numbers")
    checked = tokens.select(FILE, "user", _bad_line(good), numbers)
    by_number = checked.select(FILE, "user", BAD_LINE, F.posexplode("numbers").alias("item", value))
    ids = [F.col(name).cast("string").alias(f"{name}_id") for name in ("user", "item")]
    return by_number.select(*ids, value, BAD_LINE, FILE)


def _bad_line(good: Column) -> Column:
    return F.when(~good, F.col("line")).alias(BAD_LINE)


def _select_ids() -> list[Column]:
    return [F.col(name).alias(name, metadata=TEXT_NOTES) for name in ("user_id", "item_id")]


# --- Yahoo! R3 ---


def read_yahoo_r3(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read Yahoo! R3 (Marlin and Zemel, RecSys 2009): `...-train.txt` as train, `...-test.txt` open_loop.

    A line has user, song and rating, separated by tabs; the test ratings are of songs drawn at random.
    """
    folder, layout = str(dataset.path), Layout("\t", ("user_id", "item_id", "rating"))
    texts = {
        part: read_fields(
            spark, find_file(spark, folder, [f"ydata-ymusic-rating-study-*-{name}.txt"]), layout
        )
        for part, name in (("train", "train"), ("open_loop", "test"))
    }
    frames = {part: text.frame for part, text in texts.items()}
    return RawLog(_union_parts(frames, _name_undivided_part(dataset)), folder, texts["train"].line)


# --- LightGCN: adjacency lines ---


def read_lightgcn(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read the NGCF and LightGCN splits (He et al., SIGIR 2020): `train.txt`, `test.txt`.

    A `valid.txt` beside them, which later papers add, is the part valid.

    A line has a user, then the items, in whole numbers. A user without items has no row. An item
    twice in a line gives two rows, which `dataset.duplicates` decides on. A task holds a line.
    """
    folder = str(dataset.path)
    files = {part: find_file(spark, folder, [f"{part}.txt"]) for part in ("train", "test")}
    with suppress(ConfigError):  # most have none
        files["valid"] = find_file(spark, folder, ["valid.txt"])
    frames = {part: _read_adjacency(spark, path) for part, path in files.items()}
    return RawLog(_union_parts(frames), folder, "'user item item ...' in whole numbers")


def _read_adjacency(spark: SparkSession, path: str) -> DataFrame:
    lines, numbers = read_lines(spark, path), _split_tokens("line")
    good = F.col("line").rlike(WHOLE_NUMBERS)
    items = F.slice(numbers, 2, F.size(numbers))
    return _explode_items(lines, good, numbers[0], items)


# --- NCF: leave one out, with listed negatives ---

TRAIN_FILES, TEST_FILES = ("*.train.rating", "*.train.tsv"), ("*.test.rating", "*.test.tsv")
NEGATIVE_FILES = ("*.test.negative",)
NCF_FIELDS = ("user_id", "item_id", "rating", "event_time")


def read_ncf(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read the NCF paper's leave-one-out split (He et al., WWW 2017): `*.train.rating`, `*.test.rating`.

    A line has user, item, rating and in some files a time, separated by tabs. The time is in seconds since
    1970, unless `dataset.time_unit` names another unit. `*.test.negative` is read by `read_negatives`.
    """
    folder = str(dataset.path)
    files = {"train": TRAIN_FILES, "test": TEST_FILES}
    texts = {
        part: _read_ncf_fields(spark, find_file(spark, folder, names)) for part, names in files.items()
    }
    frames = {part: frame for part, (frame, _) in texts.items()}
    timed = {"event_time" in frame.columns for frame in frames.values()}
    nullable = ("part",) if len(timed) == 1 else ("part", "event_time")
    line = " or ".join(dict.fromkeys(line for _, line in texts.values()))
    return RawLog(_union_parts(frames), folder, line, nullable=nullable, time_unit=dataset.time_unit)


def _read_ncf_fields(spark: SparkSession, path: str) -> tuple[DataFrame, str]:
    """Read the file with as many of NCF_FIELDS as its first line has."""
    width = len(spark.read.options(sep="\t").csv(escape_path(path)).columns)
    if width not in (3, 4):
        raise SchemaError(
            f"{path}: its first line has {width} fields separated by tabs",
            f"expected 3 or 4: {', '.join(NCF_FIELDS)}",
        )
    text = read_fields(spark, path, Layout("\t", NCF_FIELDS[:width]))
    return text.frame, text.line


def read_negatives(spark: SparkSession, path: str) -> DataFrame:
    """Read user_id, item_id of the listed negatives in `*.test.negative`, at or under a path.

    A line is `(user,item)`, the user's test item, and the negatives, separated by tabs. A test item
    among its own negatives (156 users of MovieLens 1M) is none, and an item counts once: such users
    have 98 competitors. A task holds a line.

    Raises:
        ConfigError: the file does not exist.
        DataError: lines have another layout.
    """
    check_path(path)
    file = find_file(spark, path, NEGATIVE_FILES) if is_folder(spark, path) else path
    lines, good = read_lines(spark, file), F.col("line").rlike(CANDIDATE_LINE)
    numbers = F.regexp_extract_all("line", F.lit("[0-9]+"), 0)
    negatives = F.array_except(F.slice(numbers, 3, F.size(numbers)), F.array(numbers[1]))
    frame = _explode_items(lines, good, numbers[0], negatives)
    checks = Checks(frame, [Value.line("'(user,item) negative negative ...' in whole numbers")], file)
    checks.refuse(checks.count())
    return frame.select(*_select_ids())
