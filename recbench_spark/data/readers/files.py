"""Read lines and fields of text as Spark does, and list the files and partitions of a path."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.data.readers.paths import (
    explain_errors,
    file_system,
    local_path,
    open_arrow,
    plain_path,
)
from recbench_spark.data.text_layouts import OPTION_ALIASES, REPLACEMENT, Layout, open_quote_error
from recbench_spark.data.text_pieces import BAD_LINE, FILE, HIDDEN
from recbench_spark.engine.sessions import open_java, read_hadoop
from recbench_spark.engine.versions import add_columns, change_setting, read_setting
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.inputs import Options, find_version, time_travel_options
from recbench_spark.schemas import ID_KIND, ID_TYPE
from recbench_spark.storage.local_files import (
    HEAD_BYTES,
    head_lines,
    read_head,
    refuse_packed_text,
    refuse_strange_names,
)
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.text_forms import BLANKS


@dataclass(frozen=True)
class TextFrame:
    """A text file as a frame of text columns, FILE and BAD_LINE, and the expected layout of a line."""

    frame: DataFrame
    line: str


def column(name: str) -> Column:
    """Return the column of exactly this name, with any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


# --- text ---


def allow_encodings(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Let a session read all encodings of Java where options name one that Spark alone does not take."""
    named = {value.lower() for name, value in options.items() if name.lower() in ("encoding", "charset")}
    if named - SPARK_ENCODINGS:
        change_setting(spark, "spark.sql.legacy.javaCharsets", "true")


SPARK_ENCODINGS = frozenset({"iso-8859-1", "us-ascii", "utf-16", "utf-16be", "utf-16le", "utf-32", "utf-8"})
"""Encodings that Spark 4 takes without a setting."""


def keeps_replacements(spark: SparkSession) -> bool:
    """Check whether U+FFFD in text files is an intended character."""
    return read_setting(spark, REPLACEMENT) == "keep"


def read_fields(
    spark: SparkSession, path: str, layout: Layout, options: dict[str, str] | None = None
) -> TextFrame:
    """Read every field as text; a line with another number of fields is stored in BAD_LINE.

    Each file is read by its own header; a column that a file lacks is NULL in its rows. Names of
    partition folders are text as they are written.

    Raises:
        DataError: a file cannot be read; a quoted field continues in the next line, so that it would be two
            rows (unless `options` set quotes or lines); with `multiLine` a field holds whole rows.
        SchemaError: a file begins with no column name of the others.
        ConfigError: one option under two names.
    """
    reader_options = _normalise_options(options or {})
    settings = {**layout.options(), "header": str(layout.names is None).lower(), **reader_options}
    refuse_packed_text(path)
    allow_encodings(spark, reader_options)
    if settings["sep"].lower() == BLANKS:
        return _read_blank_fields(spark, path, settings)
    with explain_errors(path):
        files = input_files(spark, path, settings)
    groups = [list[str]()]
    if layout.names is None and settings["header"].lower() == "true" and len(files) > 1:
        groups = _group_by_header(spark, files, settings, path) or groups
    names = [layout.names or _read_names(spark, group[:1], path, settings) for group in groups]
    if layout.names is None and not _QUOTING_OPTIONS & reader_options.keys():
        with explain_errors(path):
            _refuse_open_quotes(spark, path, settings["sep"], len(names[0]))
    parts = partition_names(path, files)
    chosen = groups if len(groups) > 1 else [[]]  # files of one layout are read together
    texts = [
        _read_columns(spark, columns, parts, path, settings, files=group)
        for columns, group in zip(names, chosen, strict=True)
    ]
    if settings.get("comment"):
        _report_comments(spark, path, settings["comment"])
    lines = dict.fromkeys(text.line for text in texts)
    return TextFrame(union_by_name([text.frame for text in texts]), " or ".join(lines))


NO_SEPARATOR = "\x01"
"""A character that no text has: with it a line is one field."""


def _read_blank_fields(spark: SparkSession, path: str, settings: Mapping[str, str]) -> TextFrame:
    """Read fields separated by one or several blanks; names stand in the first line, or are places.

    Raises:
        SchemaError: files begin with different names. DataError: they have no lines.
    """
    whole = {**settings, "sep": NO_SEPARATOR, "quote": "", "columnPruning": "false"}
    with explain_errors(path):
        files = input_files(spark, path, settings)
    parts = partition_names(path, files)
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("line", *parts)])
    heads = {
        file: head_lines(read_file_head(spark, file), settings["encoding"], settings.get("comment", ""))
        for file in files
    }
    first = {tuple(lines[0].split()): file for file, lines in heads.items() if lines}
    if not first:
        raise DataError(f"{path}: no lines", "check the path")
    names = next(iter(first))
    if settings["header"].lower() == "true":
        if len(first) > 1:
            raise SchemaError(f"{path}: files begin with different names", "the same line in every file")
    else:
        names = tuple(f"_c{n}" for n in range(len(names)))
    lines = _add_file(spark.read.options(**whole).schema(schema).csv(escape_path(path)))
    lines = note_partitions(lines, parts).where(F.col("line").rlike(r"\S"))
    return TextFrame(cut_blanks(lines, names, parts), f"{len(names)} fields separated by blanks")


def cut_blanks(lines: DataFrame, names: Sequence[str | None], others: Sequence[str] = ()) -> DataFrame:
    """Cut `line` at blanks into columns, with BAD_LINE and FILE; fields without a name are left out."""
    fields = F.split(F.trim(F.regexp_replace("line", r"\s+", " ")), " ")
    is_good = F.size(fields) == len(names)
    columns = [F.when(is_good, F.get(fields, n)).alias(name) for n, name in enumerate(names) if name]
    bad = F.when(~is_good, F.col("line")).alias(BAD_LINE)
    return lines.select(*columns, *map(column, others), bad, FILE)


def union_by_name(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the frames under each other; a column that a frame lacks is NULL in its rows."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


_READER_OPTIONS = {"sep", "encoding", "header", "escape", "quote"}


def _normalise_options(options: dict[str, str]) -> dict[str, str]:
    """Return the options, with those that the readers set themselves under one name.

    Raises:
        ConfigError: an option has two names with two values.
    """
    normalised: dict[str, str] = {}
    for key, value in options.items():
        lower = OPTION_ALIASES.get(key.lower(), key.lower())
        name = lower if lower in _READER_OPTIONS | {"comment", "multiline"} else key
        if normalised.setdefault(name, value) != value:
            raise ConfigError(
                f"dataset.options: {key} and {name} are one option, with two values", "leave one out"
            )
    return normalised


def _read_columns(
    spark: SparkSession,
    names: Sequence[str],
    parts: Sequence[str],
    path: str,
    settings: dict[str, str],
    *,
    files: Sequence[str],
) -> TextFrame:
    """Read text files with these columns: all files of a path, or some of them."""
    own = [name for name in names if name not in parts]
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*own, *parts, BAD_LINE)])
    # Spark counts the fields of a line only if it parses all columns.
    checked = {"columnNameOfCorruptRecord": BAD_LINE, "columnPruning": "false", "mode": "PERMISSIVE"}
    reader = spark.read.options(**{**settings, **checked}).schema(schema)
    if files:
        frame = reader.option("basePath", escape_path(path)).csv([plain_path(file) for file in files])
    else:
        frame = reader.csv(escape_path(path))
    frame = note_partitions(_add_file(frame), parts)
    if settings.get("multiline", "").lower() == "true":
        _refuse_nested_rows(frame, path, settings["sep"])
    return TextFrame(frame, f"{len(own)} fields separated by {settings['sep']!r}")


def _read_names(
    spark: SparkSession, files: Sequence[str], path: str, settings: dict[str, str]
) -> list[str]:
    """Read the column names of a file, or of all files of a path, from the first line."""
    with explain_errors(path):
        places = [plain_path(file) for file in files] or [escape_path(path)]
        return list(spark.read.options(**settings).csv(places).columns)


def _group_by_header(
    spark: SparkSession, files: Sequence[str], settings: dict[str, str], path: str
) -> list[list[str]]:
    """Group the files by their header; empty files are left out.

    Raises:
        SchemaError: a file has no column name in common with the first one.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        heads = list(pool.map(partial(read_file_head, spark), files))
    groups: dict[str, list[str]] = {}
    for file, head in zip(files, heads, strict=True):
        lines = head_lines(head, settings["encoding"], settings.get("comment", ""))
        if lines:
            groups.setdefault(lines[0], []).append(file)
    refuse_strange_names(groups, settings["sep"], path)
    return list(groups.values())


def read_file_head(spark: SparkSession, file: str) -> bytes:
    """Read the first bytes of a text file, local or remote, uncompressed."""
    local = local_path(file)
    if local is not None:
        return read_head(local)
    with explain_errors(file):
        if (arrow := open_arrow(spark, unquote(file))) is not None:
            with arrow[0].open_input_stream(arrow[1]) as start:
                return bytes(start.read(HEAD_BYTES))
        files, place = file_system(spark, unquote(file))
        jvm = open_java(spark)
        stream = files.open(place)
        codec = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(read_hadoop(spark)).getCodec(
            place
        )
        unpacked = codec.createInputStream(stream) if codec else stream
        try:
            bounded = jvm.org.apache.commons.io.input.BoundedInputStream(unpacked, HEAD_BYTES)
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))
        finally:
            unpacked.close()


def input_files(spark: SparkSession, path: str, options: Mapping[str, str]) -> list[str]:
    """Return the files that Spark reads at a path, as URIs, in order. The driver holds their names."""
    listing = {key: value for key, value in options.items() if key.lower() in _LISTING_OPTIONS}
    return sorted(spark.read.options(**listing).text(escape_path(path)).inputFiles())


_LISTING_OPTIONS = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "basepath"}
"""Spark's options that choose the files of a folder."""


def partition_names(path: str, files: Sequence[str]) -> list[str]:
    """Return the names of the columns that folders below a path stand for (`day` of `day=01`)."""
    root = _without_host(path if "://" in path else str(Path(path).absolute())).rstrip("/")
    names: dict[str, None] = {}
    for file in files:
        folders = _without_host(unquote(file)).removeprefix(root).split("/")[:-1]
        names |= dict.fromkeys(unquote(folder.split("=")[0]) for folder in folders if "=" in folder)
    return list(names)


def _without_host(uri: str) -> str:
    return re.sub("^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?/*", "/", uri)


def note_partitions(frame: DataFrame, parts: Sequence[str]) -> DataFrame:
    """Mark texts that are names of folders; whether they are numbers depends on their values."""
    notes = {ID_KIND: "text", ID_TYPE: "name of a folder"}
    text = [name for name in parts if frame.schema[name].dataType == T.StringType()]
    return add_columns(frame, {name: column(name).alias(name, metadata=notes) for name in text})


_QUOTING_OPTIONS = {"quote", "escape", "multiline", "comment"}


def _refuse_open_quotes(spark: SparkSession, path: str, separator: str, width: int) -> None:
    """Raise DataError where a quote is not closed in its line. It reads only lines with quotes."""
    start = f"(^|{re.escape(separator)})"
    whole = rf'{start}"([^"]|"")*"(?={re.escape(separator)}|$)'
    lines = _add_file(spark.read.text(escape_path(path))).where(F.col("value").contains('"'))
    torn = F.regexp_replace("value", whole, "$1").rlike(rf'{start}"([^"]|"")*$')
    matches = lines.where(torn).limit(1).collect()
    if matches:
        raise open_quote_error(matches[0][FILE], matches[0]["value"], separator, width)


def _refuse_nested_rows(frame: DataFrame, path: str, separator: str) -> None:
    """Raise DataError where a quoted field holds whole rows of the file: one pass, only with `multiLine`.

    The lines within such a field have as many fields as the header. A quote that is not closed in its row
    joins the rows up to the next quote, or to the end of the file, and no count would show it.
    """
    names = [name for name in frame.columns if name not in HIDDEN]
    has_rows = [_holds_rows(column(name), n, len(names), separator) for n, name in enumerate(names)]
    has_rows.append(F.col(BAD_LINE).rlike("[\r\n]+[^\r\n]"))
    is_bad = F.coalesce(reduce(or_, has_rows), F.lit(False))
    shown = F.coalesce(F.col(BAD_LINE), F.concat_ws(separator, *map(column, names)))
    with explain_errors(path):
        rows = frame.where(is_bad).select(*names, FILE, shown.alias("_shown")).limit(1).collect()
    if rows:
        raise DataError(
            f"{rows[0][FILE]}: a quoted field holds whole rows of the file, which would be lost: "
            f"{rows[0]['_shown'][:120]!r}",
            "where quotes are characters like any others set dataset.options quote: '' instead of "
            "multiLine; "
            "fields that hold such lines can be read from Parquet",
        )


def _holds_rows(field: Column, place: int, width: int, separator: str) -> Column:
    """Check whether the lines of a field, with the fields before and after it, are rows of the file."""
    lines = F.split(F.regexp_replace(field, "[\r\n]+$", ""), "\r\n|\r|\n")

    def fields(line: Column) -> Column:
        return F.size(F.split(line, re.escape(separator), -1))

    inner = F.slice(lines, 2, F.greatest(F.size(lines) - 2, F.lit(0)))
    ends = (fields(F.element_at(lines, 1)) == width - place) & (
        fields(F.element_at(lines, -1)) == place + 1
    )
    return (F.size(lines) > 1) & ends & F.forall(inner, lambda line: fields(line) == width)


def _report_comments(spark: SparkSession, path: str, mark: str) -> None:
    """Report the number of lines that the option `comment` leaves out: one pass over the text."""
    with explain_errors(path):
        n = spark.read.text(escape_path(path)).where(F.col("value").startswith(mark)).count()
    if n:
        print(f"note: {path}: {n:,} lines begin with {mark!r} and are no rows (comment)", file=sys.stderr)


def _add_file(frame: DataFrame) -> DataFrame:
    return frame.select("*", F.col("_metadata.file_path").alias(FILE))


def open_reader(spark: SparkSession, path: str, options: Options | None = None) -> DataFrameReader:
    """Return a reader with options; for a Delta table it reads the version whose identity was recorded."""
    settings, version = dict(options or {}), find_version(path, options)
    if version is not None:
        settings = {
            name: value for name, value in settings.items() if name not in time_travel_options(settings)
        }
        settings["versionAsOf"] = str(version)
    return spark.read.options(**settings)
