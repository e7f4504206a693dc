"""Paths, lines and fields: what is there, and text as Spark reads it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.errors import ConfigError, DataError, MissingError, nearest

BAD_LINE = "_bad_line"
"""Hidden column: the text of a line that is not laid out as it should be, else NULL."""

REPLACEMENT = "spark.recbench.replacement"
"""Spark's setting: `keep` where U+FFFD in text files is meant, and not bytes that could not be decoded."""

FILE = "_file"
"""Hidden column: the file a row is from."""

HIDDEN = (BAD_LINE, FILE)


@dataclass(frozen=True)
class Layout:
    """A text file without a schema of its own: separator, names of fields (None: first line)."""

    separator: str = ","
    names: tuple[str, ...] | None = None
    encoding: str = "UTF-8"

    def options(self) -> dict[str, str]:
        """As Spark's CSV reader takes it; files with given names are not quoted."""
        options = {"sep": self.separator, "encoding": self.encoding}
        # A quote within quotes is doubled (RFC 4180), as everybody writes it; Spark expects a backslash.
        return {**options, **({"escape": '"'} if self.names is None else {"quote": ""})}


@dataclass(frozen=True)
class Text:
    """A text file as a frame of text columns, FILE and BAD_LINE, and what each line should be."""

    frame: DataFrame
    line: str


def column(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


# --- text ---


def keeps_replacements(spark: SparkSession) -> bool:
    """Whether U+FFFD in text files is taken as it stands."""
    return spark.conf.get(REPLACEMENT, None) == "keep"


def read_fields(
    spark: SparkSession, path: str, layout: Layout, options: dict[str, str] | None = None
) -> Text:
    """Every field as text; a line with another number of fields is kept in BAD_LINE.

    Raises:
        DataError: a file that cannot be read; a quoted field that goes on in the next line (unless
            `options` speak of quotes or of lines): it would be two rows; with `multiLine` a field that
            holds whole rows.
    """
    given = {**layout.options(), "header": str(layout.names is None).lower(), **(options or {})}
    with explained(path):
        names = layout.names or spark.read.options(**given).csv(path).columns
        if layout.names is None and not _QUOTING & {name.lower() for name in options or {}}:
            _refuse_torn(spark, path, given["sep"], len(names))
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, BAD_LINE)])
    # Without all columns parsed Spark does not count the fields of a line.
    checked = {"columnNameOfCorruptRecord": BAD_LINE, "columnPruning": "false", "mode": "PERMISSIVE"}
    frame = spark.read.options(**{**given, **checked}).schema(schema).csv(path)
    chosen = {name.lower(): value for name, value in (options or {}).items()}
    if chosen.get("multiline", "").lower() == "true":
        _refuse_swallowed(_with_file(frame), path, given["sep"])
    if chosen.get("comment"):
        _note_comments(spark, path, chosen["comment"])
    return Text(_with_file(frame), f"{len(names)} fields separated by {given['sep']!r}")


_QUOTING = {"quote", "escape", "multiline", "comment"}


def _refuse_torn(spark: SparkSession, path: str, separator: str, width: int) -> None:
    """DataError where a quote is opened and not closed in its line. Looks only at lines with quotes."""
    start = f"(^|{re.escape(separator)})"
    whole = rf'{start}"([^"]|"")*"(?={re.escape(separator)}|$)'
    lines = _with_file(spark.read.text(path)).where(F.col("value").contains('"'))
    torn = F.regexp_replace("value", whole, "$1").rlike(rf'{start}"([^"]|"")*$')
    found = lines.where(torn).limit(1).collect()
    if found:
        raise torn_line(found[0][FILE], found[0]["value"], separator, width)


def torn_line(file: str, line: str, separator: str, width: int | None) -> DataError:
    """Return the error for a line in which a quote is opened and not closed.

    Args:
        file: where the line stands.
        line: its text.
        separator: between fields.
        width: fields of the header; a line that has as many without regard to quotes is a row of its own,
            and what the quote would swallow are other rows. None: the line is the header.
    """
    told = f"{file}: a quoted field goes on in the next line: {line[:120]!r}"
    if width is not None and line.count(separator) + 1 == width:
        return DataError(
            told,
            "the line has all its fields, so its quotes are characters like any others: for a log set "
            "dataset.options quote: '', else write the quotes doubled (RFC 4180), or Parquet",
        )
    return DataError(
        told,
        "write the file without line breaks in fields, or as Parquet; for a log set dataset.options "
        "multiLine: 'true', or quote: '' where quotes are characters like any others",
    )


def _refuse_swallowed(frame: DataFrame, path: str, separator: str) -> None:
    """DataError where a quoted field holds whole rows of the file: one pass, with `multiLine` alone.

    The lines within such a field have as many fields as the header. A quote that is not closed in its row
    swallows the rows up to the next quote, or to the end of the file, and nothing would count them.
    """
    names = [name for name in frame.columns if name not in HIDDEN]
    held = [_holds_rows(column(name), n, len(names), separator) for n, name in enumerate(names)]
    held.append(F.col(BAD_LINE).rlike("[\r\n]+[^\r\n]"))
    found = F.coalesce(reduce(or_, held), F.lit(False))
    shown = F.coalesce(F.col(BAD_LINE), F.concat_ws(separator, *map(column, names)))
    with explained(path):
        rows = frame.where(found).select(*names, FILE, shown.alias("_shown")).limit(1).collect()
    if rows:
        raise DataError(
            f"{rows[0][FILE]}: a quoted field holds whole rows of the file, which would be lost: "
            f"{rows[0]['_shown'][:120]!r}",
            "where quotes are characters like any others set dataset.options quote: '' instead of "
            "multiLine; "
            "fields that hold such lines can be read from Parquet",
        )


def _holds_rows(field: Column, place: int, width: int, separator: str) -> Column:
    """Whether the lines of a field, with what stands before and after it, are rows of the file."""
    lines = F.split(F.regexp_replace(field, "[\r\n]+$", ""), "\r\n|\r|\n")

    def fields(line: Column) -> Column:
        return F.size(F.split(line, re.escape(separator), -1))

    inner = F.slice(lines, 2, F.greatest(F.size(lines) - 2, F.lit(0)))
    ends = (fields(F.element_at(lines, 1)) == width - place) & (
        fields(F.element_at(lines, -1)) == place + 1
    )
    return (F.size(lines) > 1) & ends & F.forall(inner, lambda line: fields(line) == width)


def _note_comments(spark: SparkSession, path: str, mark: str) -> None:
    """Say how many lines the option `comment` leaves out: one pass over the text."""
    with explained(path):
        n = spark.read.text(path).where(F.col("value").startswith(mark)).count()
    if n:
        print(f"note: {path}: {n:,} lines begin with {mark!r} and are no rows (comment)", file=sys.stderr)


def read_lines(spark: SparkSession, path: str, *, whole: bool = False) -> DataFrame:
    """`line` and FILE: a row per line (LF or CRLF) that is not blank, or a row per file."""
    frame = _with_file(spark.read.text(path, wholetext=whole).withColumnRenamed("value", "line"))
    return frame if whole else frame.where(F.trim("line") != "")


def _with_file(frame: DataFrame) -> DataFrame:
    return frame.select("*", F.col("_metadata.file_path").alias(FILE))


def separator(path: str) -> str:
    """A tab for `.tsv` (`.gz`), else a comma."""
    return "\t" if path.removesuffix(".gz").endswith(".tsv") else ","


# --- paths ---


def exists(path: str) -> bool:
    """Whether a local path is there; a remote one is left to Spark."""
    local = path.removeprefix("file://")
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", local)) or Path(local).exists()


def check_path(path: str) -> None:
    """Refuse a local path that is missing, with the nearest name in its folder, or a file of 0 bytes."""
    if exists(path):
        refuse_empty(path)
        return
    missing = Path(path)
    if missing.parent.is_dir():
        hint = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()][:50])
    else:
        hint = f"there is no folder {missing.parent} either"
    raise MissingError(f"no such file or folder: {path}", hint)


def refuse_empty(path: str) -> None:
    """DataError where a local path is a file of 0 bytes; Spark lists no such file and would miss it."""
    file = Path(path.removeprefix("file://"))
    if file.is_file() and not file.stat().st_size:
        raise DataError(
            f"{path} is empty: a file of 0 bytes", "write it again; was what writes it cut off?"
        )


def is_folder(spark: SparkSession, path: str) -> bool:
    """Whether a path, here or remote, is a folder."""
    check_path(path)
    with explained(path):
        files, place = _file_system(spark, path)
        return bool(files.getFileStatus(place).isDirectory())


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """The names in a folder, here or remote, in order. The driver holds them all."""
    with explained(folder):
        files, place = _file_system(spark, folder)
        return sorted(status.getPath().getName() for status in files.listStatus(place))


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place


def find(spark: SparkSession, folder: str, patterns: Sequence[str]) -> str:
    """The path of the entry that fits the first pattern that any fits; `.gz` may follow.

    Raises:
        ConfigError: nothing fits, or the path is not a folder; the hint has the nearest name.
    """
    if not is_folder(spark, folder):
        raise ConfigError(f"{folder} is a file", f"expected a folder with {' or '.join(patterns)}")
    names = names_in(spark, folder)
    for pattern in patterns:
        for name in names:
            if fnmatch(name.removesuffix(".gz"), pattern):
                return f"{folder.rstrip('/')}/{name}"
    hint = nearest(patterns[0], names[:50]) if names else "the folder is empty"
    raise ConfigError(f"{folder}: no {' or '.join(patterns)} (.gz or not)", hint)


def is_table(spark: SparkSession, name: str) -> bool:
    """Whether the catalog has a table of this `schema.table` or `catalog.schema.table`."""
    if not re.fullmatch(r"\w+(\.\w+){1,2}", name):
        return False
    with explained(name):
        return bool(spark.catalog.tableExists(name))


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn an error of Spark into one of ours: the file, and the cause beneath all others."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = _causes(error)
        file = re.search(r"file:/\S*?(?=[.,:]?(\s|$))", " ".join(said))
        inside = f"{file[0]}: " if file and file[0] not in said[-1] else ""
        hint = "the file is damaged, cut off, or of another format: write it again" if file else ""
        raise DataError(f"{where}: cannot be read: {inside}{said[-1][:300]}", hint) from None


def _causes(error: Exception) -> list[str]:
    """The first lines of what an error of Java says, and of what its causes say, the first one last."""
    said = [str(error).strip().splitlines()[0]]
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        message = cause.getMessage()
        said += [message.strip().splitlines()[0]] if message and message.strip() else []
        cause = cause.getCause()
    return said
