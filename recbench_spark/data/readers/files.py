"""Paths, lines and fields: what is there, and text as Spark reads it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.errors import ConfigError, DataError, MissingError, SchemaError, nearest
from recbench_spark.inputs import Options, find_version, time_travel_options
from recbench_spark.schemas import ID_KIND, ID_TYPE
from recbench_spark.storage.local_files import (
    HEAD_BYTES,
    bare_name,
    head_lines,
    is_hidden,
    is_text,
    read_head,
    refuse_name,
    refuse_packed_text,
    split_line,
)
from recbench_spark.storage.paths import decode_uri
from recbench_spark.storage.shared_arrays import escape_path

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
class TextFrame:
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
) -> TextFrame:
    """Every field as text; a line with another number of fields is kept in BAD_LINE.

    Each file is read by its own line of names; a column that a file lacks is NULL in its rows. Names of
    partition folders are text as they are written.

    Raises:
        DataError: a file that cannot be read; a quoted field that goes on in the next line (unless
            `options` speak of quotes or of lines): it would be two rows; with `multiLine` a field that
            holds whole rows.
        SchemaError: files of which one begins with no name of the others.
        ConfigError: one option under two names.
    """
    asked = _normalise_options(options or {})
    given = {**layout.options(), "header": str(layout.names is None).lower(), **asked}
    refuse_packed_text(path)
    with explain_errors(path):
        files = input_files(spark, path, given)
    groups = [list[str]()]
    if layout.names is None and given["header"].lower() == "true" and len(files) > 1:
        groups = _group_by_header(spark, files, given, path) or groups
    names = [layout.names or _read_names(spark, group[:1], path, given) for group in groups]
    if layout.names is None and not _QUOTING_OPTIONS & asked.keys():
        with explain_errors(path):
            _refuse_open_quotes(spark, path, given["sep"], len(names[0]))
    parts = partition_names(path, files)
    chosen = groups if len(groups) > 1 else [[]]  # files of one layout are read as Spark finds them
    texts = [
        _read_columns(spark, columns, parts, path, given, group)
        for columns, group in zip(names, chosen, strict=True)
    ]
    if given.get("comment"):
        _report_comments(spark, path, given["comment"])
    lines = dict.fromkeys(text.line for text in texts)
    return TextFrame(union_by_name([text.frame for text in texts]), " or ".join(lines))


def union_by_name(frames: Sequence[DataFrame]) -> DataFrame:
    """The frames under each other; what one has not is NULL in its rows."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


OPTION_ALIASES = {"delimiter": "sep", "charset": "encoding"}
"""Second names of Spark's options of CSV."""

_READER_OPTIONS = {"sep", "encoding", "header", "escape", "quote"}


def _normalise_options(options: dict[str, str]) -> dict[str, str]:
    """The options, those that the readers set themselves under the names that they use.

    Raises:
        ConfigError: one of them under two names, with two values.
    """
    found: dict[str, str] = {}
    for key, value in options.items():
        lower = OPTION_ALIASES.get(key.lower(), key.lower())
        name = lower if lower in _READER_OPTIONS | {"comment", "multiline"} else key
        if found.setdefault(name, value) != value:
            raise ConfigError(
                f"dataset.options: {key} and {name} are one option, with two values", "leave one out"
            )
    return found


def _read_columns(
    spark: SparkSession,
    names: Sequence[str],
    parts: Sequence[str],
    path: str,
    given: dict[str, str],
    files: Sequence[str],
) -> TextFrame:
    """Text files with these columns: all of a path, or some of its files."""
    own = [name for name in names if name not in parts]
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*own, *parts, BAD_LINE)])
    # Without all columns parsed Spark does not count the fields of a line.
    checked = {"columnNameOfCorruptRecord": BAD_LINE, "columnPruning": "false", "mode": "PERMISSIVE"}
    reader = spark.read.options(**{**given, **checked}).schema(schema)
    if files:
        frame = reader.option("basePath", escape_path(path)).csv([plain_path(file) for file in files])
    else:
        frame = reader.csv(escape_path(path))
    frame = note_partitions(_add_file(frame), parts)
    if given.get("multiline", "").lower() == "true":
        _refuse_nested_rows(frame, path, given["sep"])
    return TextFrame(frame, f"{len(own)} fields separated by {given['sep']!r}")


def _read_names(spark: SparkSession, files: Sequence[str], path: str, given: dict[str, str]) -> list[str]:
    """The names of the columns of a file, or of all files of a path, by the first line."""
    with explain_errors(path):
        places = [plain_path(file) for file in files] or [escape_path(path)]
        return list(spark.read.options(**given).csv(places).columns)


def _group_by_header(
    spark: SparkSession, files: Sequence[str], given: dict[str, str], path: str
) -> list[list[str]]:
    """The files by their line of names; those that hold nothing are left out.

    Raises:
        SchemaError: a file that begins with no name of the first one.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        heads = list(pool.map(partial(_read_file_head, spark), files))
    groups: dict[str, list[str]] = {}
    for file, head in zip(files, heads, strict=True):
        lines = head_lines(head, given["encoding"], given.get("comment", ""))
        if lines:
            groups.setdefault(lines[0], []).append(file)
    _refuse_strange_names(groups, given["sep"], path)
    return list(groups.values())


def _refuse_strange_names(groups: dict[str, list[str]], sep: str, path: str) -> None:
    names = {line: {name.strip() for name in split_line(line, sep)} for line in groups}
    first = next(iter(groups), "")
    for line, known in names.items():
        pair = f"{_file_name(groups[first][0])} begins with {first[:120]!r}"
        pair += f", {_file_name(groups[line][0])} with {line[:120]!r}"
        if line != first and not known & names[first]:
            raise SchemaError(
                f"{path}: {pair}: no name of a column in common", "the same line of names in every file"
            )
        if len({name.lower() for name in known | names[first]}) < len(known | names[first]):
            raise SchemaError(
                f"{path}: {pair}: names that differ in case alone", "one spelling in all files"
            )


def _file_name(file: str) -> str:
    return unquote(file.rsplit("/", 1)[-1])


def _read_file_head(spark: SparkSession, file: str) -> bytes:
    """The first bytes of a text file, here or remote, unpacked."""
    local = local_path(file)
    if local is not None:
        return read_head(local)
    with explain_errors(file):
        files, place = _file_system(spark, unquote(file))
        jvm: Any = spark._jvm
        stream = files.open(place)
        codec = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(
            spark._jsc.hadoopConfiguration()
        ).getCodec(place)
        unpacked = codec.createInputStream(stream) if codec else stream
        try:
            bounded = jvm.org.apache.commons.io.input.BoundedInputStream(unpacked, HEAD_BYTES)
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))
        finally:
            unpacked.close()


def local_path(file: str) -> str | None:
    """The path of a file that Spark names by a URI; None where it is not of this machine."""
    return decode_uri(file) if file.startswith("file:/") else None


def plain_path(file: str) -> str:
    """A file that Spark names by a URI, as its readers take it for a name."""
    return escape_path(local_path(file) or unquote(file))


def input_files(spark: SparkSession, path: str, options: Mapping[str, str]) -> list[str]:
    """The files that Spark reads at a path, as URIs, in order. The driver holds their names."""
    listing = {key: value for key, value in options.items() if key.lower() in _LISTING_OPTIONS}
    return sorted(spark.read.options(**listing).text(escape_path(path)).inputFiles())


_LISTING_OPTIONS = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "basepath"}
"""Spark's options that say which files of a folder are read."""


def partition_names(path: str, files: Sequence[str]) -> list[str]:
    """The names of the columns that folders below a path stand for (`day` of `day=01`)."""
    root = _without_host(path if "://" in path else str(Path(path).absolute())).rstrip("/")
    found: dict[str, None] = {}
    for file in files:
        folders = _without_host(unquote(file)).removeprefix(root).split("/")[:-1]
        found |= dict.fromkeys(unquote(folder.split("=")[0]) for folder in folders if "=" in folder)
    return list(found)


def _without_host(uri: str) -> str:
    return re.sub("^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?/*", "/", uri)


def note_partitions(frame: DataFrame, parts: Sequence[str]) -> DataFrame:
    """The frame with a note on texts that are names of folders: values say whether they are numbers."""
    notes = {ID_KIND: "text", ID_TYPE: "name of a folder"}
    text = [name for name in parts if frame.schema[name].dataType == T.StringType()]
    return frame.withColumns({name: column(name).alias(name, metadata=notes) for name in text})


_QUOTING_OPTIONS = {"quote", "escape", "multiline", "comment"}


def _refuse_open_quotes(spark: SparkSession, path: str, separator: str, width: int) -> None:
    """DataError where a quote is opened and not closed in its line. Looks only at lines with quotes."""
    start = f"(^|{re.escape(separator)})"
    whole = rf'{start}"([^"]|"")*"(?={re.escape(separator)}|$)'
    lines = _add_file(spark.read.text(escape_path(path))).where(F.col("value").contains('"'))
    torn = F.regexp_replace("value", whole, "$1").rlike(rf'{start}"([^"]|"")*$')
    found = lines.where(torn).limit(1).collect()
    if found:
        raise open_quote_error(found[0][FILE], found[0]["value"], separator, width)


def open_quote_error(file: str, line: str, separator: str, width: int | None) -> DataError:
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


def _refuse_nested_rows(frame: DataFrame, path: str, separator: str) -> None:
    """DataError where a quoted field holds whole rows of the file: one pass, with `multiLine` alone.

    The lines within such a field have as many fields as the header. A quote that is not closed in its row
    swallows the rows up to the next quote, or to the end of the file, and nothing would count them.
    """
    names = [name for name in frame.columns if name not in HIDDEN]
    held = [_holds_rows(column(name), n, len(names), separator) for n, name in enumerate(names)]
    held.append(F.col(BAD_LINE).rlike("[\r\n]+[^\r\n]"))
    found = F.coalesce(reduce(or_, held), F.lit(False))
    shown = F.coalesce(F.col(BAD_LINE), F.concat_ws(separator, *map(column, names)))
    with explain_errors(path):
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


def _report_comments(spark: SparkSession, path: str, mark: str) -> None:
    """Say how many lines the option `comment` leaves out: one pass over the text."""
    with explain_errors(path):
        n = spark.read.text(escape_path(path)).where(F.col("value").startswith(mark)).count()
    if n:
        print(f"note: {path}: {n:,} lines begin with {mark!r} and are no rows (comment)", file=sys.stderr)


def read_lines(spark: SparkSession, path: str, *, whole: bool = False, names: str = "*") -> DataFrame:
    """`line` and FILE: a row per line (LF or CRLF) that is not blank, or a row per file.

    Args:
        spark: the session.
        path: a file or a folder.
        whole: whether a row is a file.
        names: a pattern of the names of a folder's files.
    """
    text = spark.read.option("pathGlobFilter", names).text(escape_path(path), wholetext=whole)
    frame = _add_file(text.withColumnRenamed("value", "line"))
    return frame if whole else frame.where(F.trim("line") != "")


def _add_file(frame: DataFrame) -> DataFrame:
    return frame.select("*", F.col("_metadata.file_path").alias(FILE))


# --- paths ---


def exists(path: str) -> bool:
    """Whether a local path is there; a remote one is left to Spark."""
    local = path.removeprefix("file://")
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", local)) or Path(local).exists()


def check_path(path: str) -> None:
    """Refuse a local path that is missing, with the nearest name, or that Spark does not read.

    Raises:
        MissingError: nothing is there.
        DataError: the name is one of a file that Spark does not read, or the file has 0 bytes.
    """
    if exists(path):
        refuse_name(path)
        refuse_empty(path)
        return
    missing = Path(path)
    if missing.parent.is_dir():
        hint = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()][:50])
    else:
        hint = f"there is no folder {missing.parent} either"
    raise MissingError(f"no such file or folder: {path}", hint)


def refuse_empty(path: str) -> None:
    """Refuse a local file of 0 bytes, or a folder that holds only such files.

    Spark lists no such file and would miss it. A folder is walked until a file has a byte.

    Raises:
        DataError: there is nothing in it.
    """
    place, hint = Path(path.removeprefix("file://")), "write it again; was what writes it cut off?"
    if place.is_file() and not place.stat().st_size:
        raise DataError(f"{path} is empty: a file of 0 bytes", hint)
    sizes = _list_sizes(place)
    if next(sizes, None) == 0 and not any(sizes):
        raise DataError(f"{path} is empty: a folder of nothing but files of 0 bytes", hint)


def _list_sizes(folder: Path) -> Iterator[int]:
    """Yield bytes of each file below a folder but hidden ones; of a path that is no folder nothing."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (Path(place, name).stat().st_size for name in names if not is_hidden(name))


def is_folder(spark: SparkSession, path: str) -> bool:
    """Whether a path, here or remote, is a folder."""
    check_path(path)
    with explain_errors(path):
        files, place = _file_system(spark, path)
        return bool(files.getFileStatus(place).isDirectory())


def list_names(spark: SparkSession, folder: str) -> list[str]:
    """The names in a folder, here or remote, in order. The driver holds them all."""
    with explain_errors(folder):
        files, place = _file_system(spark, folder)
        return sorted(status.getPath().getName() for status in files.listStatus(place))


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place


def qualify_path(spark: SparkSession, path: str) -> str:
    """Return a path with the scheme and host that Spark reads it by."""
    files, place = _file_system(spark, path)
    return str(files.makeQualified(place).toString())


def find_file(spark: SparkSession, folder: str, patterns: Sequence[str]) -> str:
    """The path of the entry that fits the first pattern that any fits; `.gz` or `.bz2` may follow.

    Raises:
        ConfigError: nothing fits, or the path is not a folder; the hint has the nearest name.
    """
    if not is_folder(spark, folder):
        raise ConfigError(f"{folder} is a file", f"expected a folder with {' or '.join(patterns)}")
    names = list_names(spark, folder)
    for pattern in patterns:
        for name in names:
            if fnmatch(bare_name(name), pattern):
                return f"{folder.rstrip('/')}/{name}"
    hint = nearest(patterns[0], names[:50]) if names else "the folder is empty"
    raise ConfigError(f"{folder}: no {' or '.join(patterns)} (.gz or not)", hint)


FILE_NAMES = re.compile(
    r".*\.(parquet|arrow|feather|json|jsonl|npy|npz|pkl|xlsx?|zip|zst|lz4)", re.IGNORECASE
)
"""Names of files, beside those of text."""


def may_be_table(name: str) -> bool:
    """Return whether a name is of the form `schema.table` or `catalog.schema.table`, and of no file's.

    >>> may_be_table("shop.orders"), may_be_table("orders.csv")
    (True, False)
    """
    is_file = is_text(name) or bare_name(name) != name or FILE_NAMES.fullmatch(name)
    return bool(re.fullmatch(r"\w+(\.\w+){1,2}", name)) and not is_file


def is_table(spark: SparkSession, name: str) -> bool:
    """Whether the catalog has a table of this `schema.table` or `catalog.schema.table`."""
    if not may_be_table(name):
        return False
    with explain_errors(name):
        return bool(spark.catalog.tableExists(name))


def open_reader(spark: SparkSession, path: str, options: Options | None = None) -> DataFrameReader:
    """Return a reader with options; of a Delta table it reads the version that was identified."""
    given, version = dict(options or {}), find_version(path, options)
    if version is not None:
        given = {name: value for name, value in given.items() if name not in time_travel_options(given)}
        given["versionAsOf"] = str(version)
    return spark.read.options(**given)


@contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """Turn an error of Spark into one of ours: the file, and the cause beneath all others."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = _list_causes(error)
        file = re.search(r"file:/\S*?(?=[.,:]?(\s|$))", " ".join(said))
        inside = f"{file[0]}: " if file and file[0] not in said[-1] else ""
        hint = "the file is damaged, cut off, or of another format: write it again" if file else ""
        raise DataError(f"{where}: cannot be read: {inside}{said[-1][:300]}", hint) from None


def _list_causes(error: Exception) -> list[str]:
    """The first lines of what an error of Java says, and of what its causes say, the first one last."""
    said = [str(error).strip().splitlines()[0]]
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        message = cause.getMessage()
        said += [message.strip().splitlines()[0]] if message and message.strip() else []
        cause = cause.getCause()
    return said
