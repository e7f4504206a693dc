"""Look at an unknown log: format, encoding, separator, header.

No Spark is needed. If the first lines leave something open, the log is refused, and the error names the
flag that decides.
"""

from __future__ import annotations

import codecs
import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from recbench_spark.config import Dataset
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, RecbenchError, show_value
from recbench_spark.readers import PARQUET, find_name
from recbench_spark.sources.column_names import LOG_NAMES, strip_name
from recbench_spark.sources.formats import TablePiece, cut_name
from recbench_spark.sources.json_objects import Objects, check_first_lines, list_keys
from recbench_spark.sources.log_sources import HERE, TextLog, find_text_files
from recbench_spark.sources.table_pieces import find_place, is_delta, list_files, open_typed
from recbench_spark.sources.text_layouts import LAYOUTS, MOVIELENS
from recbench_spark.sources.text_pieces import split_file
from recbench_spark.storage import local_files
from recbench_spark.storage.table_scans import query_delta
from recbench_spark.storage.text_forms import BLANKS, TO_UTF8, WIDE
from recbench_spark.storage.uris import absolute_place

SEPARATORS = ("::", "\t", ",", ";", "|")
TYPED = re.compile(r".+:(token|float)(_seq)?")
"""A name in a RecBole header."""

DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
MATRIX_WIDTH = 20
"""Numbers in each line from which on a file without names is a matrix and no log."""

SPLITS = {
    "coat": ("train.ascii", "test.ascii"),
    "lightgcn": ("train.txt", "test.txt"),
    "ncf": ("*.train.rating", "*.test.rating"),
    "yahoo_r3": ("ydata-ymusic-rating-study-*-train.txt", "ydata-ymusic-rating-study-*-test.txt"),
}
"""Readers for folders that are divided already, and the files in each part."""


@dataclass(frozen=True)
class LogFile:
    """A log as a benchmark file describes it.

    Attributes:
        path: the absolute path.
        reader: value of `dataset.reader`.
        names: the columns, as the reader calls them; none if the reader has its own layout.
        options: `dataset.options`.
        roles: our name -> the column, if the file name tells it.
        note: a sentence about its encoding, if it is not UTF-8.
    """

    path: str
    reader: str
    names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def has_names(self) -> bool:
        """True if columns have names of their own."""
        return self.options.get("header") != "false"


# ------------------------------------------------------------------------------------------ format


def open_log_file(
    path: str, separator: str | None = None, *, header: bool | None = None, encoding: str | None = None
) -> LogFile:
    """Find out how to read a file or folder.

    Args:
        path: the file, a folder with files of one format, or a folder of MovieLens or one in SPLITS.
        separator: the separator between fields, if the caller knows it.
        header: whether the first line has the names.
        encoding: the encoding of its text, if the caller knows it.

    Raises:
        MissingError: nothing is there. ConfigError: the first lines leave open how to read it.
        DataError: it is no log, or in a format that is not read.
    """
    try:
        place, given = find_place(path), _TextSettings(separator, header, encoding)
        if is_delta(path):
            return _open_typed(place, "delta")
    except FallbackToSpark as error:
        raise ConfigError(error.message, "look at a part of it: head -n 100000 > part.csv") from None
    place = absolute_place(place)
    files = [*list_files(place)]
    if files != [place]:
        return _open_folder(place, files, given)
    if reader := find_name(place):
        return _open_typed(place, reader)
    kind = local_files.describe_content(place)[0]
    if kind == "Parquet":
        return _open_typed(place, "parquet")
    is_packed = kind.startswith("compressed") and place.endswith(local_files.COMPRESSED)
    if kind != "text" and not is_packed and "TREC" not in kind:
        hint = local_files.find_hint(kind, "write it as CSV or Parquet")
        raise DataError(f"{path} is {kind or 'not text'}", hint)
    return _open_text(place, given)


class _TextSettings(NamedTuple):
    """The caller's settings for text; None: to be found out."""

    separator: str | None
    header: bool | None
    encoding: str | None


def _open_folder(place: str, files: Sequence[str], given: _TextSettings) -> LogFile:
    names = [*map(cut_name, files)]
    for reader, patterns in SPLITS.items():
        if all(fnmatch.filter(names, pattern) for pattern in patterns):
            return LogFile(place, reader)
    known = dict.fromkeys(name for names in MOVIELENS.values() for name in names)
    ratings = [file for file in files if local_files.bare_name(file) in known]
    if ratings:
        return _open_text(ratings[0], given)
    objects = (".json", ".jsonl", ".ndjson")
    are_objects = bool(names) and all(local_files.bare_name(one).endswith(objects) for one in names)
    if are_objects or local_files.text_separator(place, files):
        return replace(_open_text(files[0], given), path=place)
    typed = [one for one in names if one.endswith(PARQUET) or find_name(one)]
    if typed:
        return _open_typed(place, find_name(typed[0]) or "parquet")
    message = f"{place} is a folder with {', '.join(names[:10]) or 'nothing in it'}"
    raise ConfigError(message, "name the file of the log")


def _open_typed(place: str, reader: str) -> LogFile:
    try:
        names = open_typed(place, reader, (), {}).schema.names
    except FallbackToSpark:
        names = query_delta(place).schema.names
    return LogFile(place, reader, tuple(names))


@dataclass
class LogStream:
    """Rows of a log as an Arrow stream.

    Each reader starts it again.

    Attributes:
        schema: the columns to read.
        pieces: the log's pieces.
        broken: lines with another layout, in the latest reading.
        error: what ended a reading.
    """

    schema: pa.Schema
    pieces: Sequence[TablePiece]
    broken: int = 0
    error: RecbenchError | None = None

    def __arrow_c_stream__(self, schema: object = None) -> object:
        """Return the stream, by Arrow's protocol."""
        return pa.RecordBatchReader.from_batches(self.schema, self._read()).__arrow_c_stream__(schema)

    def _read(self) -> Iterator[pa.RecordBatch]:
        self.broken = 0
        try:
            for piece in self.pieces:
                for stored in piece.read(self.schema.names):
                    self.broken += len(stored.bad_lines)
                    yield from pa.table(stored.table.columns, schema=self.schema).to_batches()
        except RecbenchError as error:  # its reader makes another one of it
            self.error = type(error)(error.message, error.hint)
            raise


def open_rows(log: LogFile, names: Sequence[str] = ()) -> LogStream | pa.RecordBatchReader:
    """Open some columns of a log, or all.

    Text fields are text, and empty ones NULL. Some Delta tables need more than their files; their stream
    can be read once only.
    """
    if log.reader in ("csv", "json"):
        text = _find_text(log, names)
        pieces = [*chain(*(split_file(file, one, given) for given, file, one in text.files))]
        return LogStream(pa.schema([(name, pa.string()) for name in names or text.names]), pieces)
    try:
        opened = open_typed(log.path, log.reader, (), {})
    except FallbackToSpark:
        return query_delta(log.path)
    fields = [opened.schema.field(name).remove_metadata() for name in names or opened.schema.names]
    return LogStream(pa.schema(fields), opened.pieces)


def _find_text(log: LogFile, names: Sequence[str]) -> TextLog:
    if log.reader == "csv":
        given = Dataset(name="log", reader="csv", path=log.path, options={**log.options})
        return find_text_files(given, HERE)
    files = list_files(log.path)
    layout = Objects(tuple(names) or list_keys(files, (), "utf-8"), ())
    return TextLog([(given, file, layout) for file, given in files.items()], log.path)


def _open_text(place: str, given: _TextSettings) -> LogFile:
    encoding, note = _find_encoding(place, given.encoding)
    lines = _read_first_lines(place, encoding)
    if lines[0].lstrip().startswith(("{", "[")):
        if encoding:
            raise DataError(f"{place}: {note}", f"JSON is UTF-8: iconv -f {encoding} -t UTF-8 FILE")
        check_first_lines(place, most=1)
        return LogFile(place, "json")
    log = _open_known(place) or _open_fields(place, lines, given)
    return replace(log, options={**log.options, "encoding": encoding}, note=note) if encoding else log


def _open_known(place: str) -> LogFile | None:
    """Return a text log whose file name tells its layout."""
    layout = LAYOUTS.get(local_files.bare_name(place))
    if not layout or not layout.names or "rating" not in layout.names:
        return None
    places = {name: f"_c{n}" for n, name in enumerate(layout.names)}
    options = {"sep": layout.separator, "header": "false", "quote": ""}
    return LogFile(place, "csv", tuple(places.values()), options, places)


def _open_fields(place: str, lines: Sequence[str], given: _TextSettings) -> LogFile:
    sep = given.separator or find_separator(lines, place)
    fields = [local_files.split_line(line, sep) for line in lines]
    if len(fields[0]) < 2:
        raise ConfigError(f"{place}: one field in a line separated by {sep!r}", SEPARATOR_HINT)
    has_names = has_header(fields, place) if given.header is None else given.header
    usual = "\t" if local_files.bare_name(place).endswith(".tsv") else ","
    options = {} if sep == usual else {"sep": sep}
    if not has_names and len(fields[0]) >= MATRIX_WIDTH:
        raise _make_matrix_error(place)
    # A column without a name, such as the index from pandas, gets Spark's name for it.
    names = tuple((has_names and name) or f"_c{n}" for n, name in enumerate(fields[0]))
    counts = Counter(map(str.lower, names))  # as in SQL
    if equal := [name for name in names if counts[name.lower()] > 1]:
        message = f"{place}: columns have one name, or differ only in case: {', '.join(equal)}"
        raise ConfigError(message, "rename them in the file")
    return LogFile(place, "csv", names, options if has_names else {**options, "header": "false"})


def _find_encoding(place: str, given: str | None) -> tuple[str, str]:
    """Return a text's encoding and a sentence about it.

    For UTF-8, both are empty.

    Raises:
        ConfigError: the caller's encoding is not known here. DataError: it is UTF-16 or UTF-32.
    """
    has_mark = local_files.read_head(place).startswith(local_files.WIDE_MARKS)
    if has_mark or (given or "").lower().startswith(WIDE):
        raise DataError(f"{place} is text in UTF-16 or UTF-32", TO_UTF8)
    if given is not None:
        try:
            name = codecs.lookup(given).name
        except LookupError:
            raise ConfigError(f"--encoding {given} is not known", "such as cp1252 or ISO-8859-1") from None
        return ("", "") if name == "utf-8" else (given, f"read as {given}, as --encoding says")
    problem = local_files.describe_undecoded(place, is_file=True)
    if not problem:
        return "", ""
    rest = any(set(chunk) & NOT_CP1252 for chunk in local_files.read_chunks(place))
    encoding = "ISO-8859-1" if rest else "cp1252"
    return encoding, f"{problem[0]}: read as {encoding}; --encoding names another"


NOT_CP1252 = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})
"""Bytes that mean nothing in cp1252, the usual encoding in Windows."""


def _make_matrix_error(place: str) -> DataError:
    hint = "Coat: give the folder that holds train.ascii and test.ascii; else write a row for each rating"
    return DataError(f"{place} is a matrix with a row for each user, and no log", hint)


def _read_first_lines(place: str, encoding: str) -> list[str]:
    head = local_files.read_head(place)
    lines = local_files.head_lines(head, encoding or "utf-8")
    if not lines:
        raise DataError(f"{place}: no lines", "check the path")
    whole = lines[:-1] if len(head) == local_files.HEAD_BYTES else lines  # the last one is cut off
    return whole[:100] or lines


def find_separator(lines: Sequence[str], place: str) -> str:
    """Return the separator which cuts all lines alike.

    All lines get equally many fields, two or more.

    Raises:
        ConfigError: there is none, or there are several. DataError: the lines are a matrix.
    """
    widths = {sep: {len(local_files.split_line(line, sep)) for line in lines} for sep in SEPARATORS}
    fits = [sep for sep, counts in widths.items() if len(counts) == 1 and counts != {1}]
    if not fits and all(len(line.split()) >= MATRIX_WIDTH for line in lines):
        raise _make_matrix_error(place)
    blanks = {len(local_files.split_line(line, BLANKS)) for line in lines}
    # Tabs alone would leave blanks around fields.
    are_padded = fits == ["\t"] and any(one != one.strip() for line in lines for one in line.split("\t"))
    if len(blanks) == 1 and blanks != {1} and (not fits or are_padded):
        return BLANKS
    usual = {".csv": ",", ".tsv": "\t", ".inter": "\t"}.get(Path(local_files.bare_name(place)).suffix)
    if usual in fits or len(fits) == 1:
        return str(usual if usual in fits else fits[0])
    what = f"{' and '.join(map(repr, fits))} could both separate the fields"
    what = what if fits else "no separator gives all lines as many fields"
    raise ConfigError(f"{place}: {what}: {lines[0][:120]!r}", SEPARATOR_HINT)


SEPARATOR_HINT = "add --separator, such as ';' or blanks"


def has_header(fields: Sequence[Sequence[str]], place: str) -> bool:
    """Return whether the first line has names instead of values.

    Raises:
        ConfigError: names and values look alike.
    """
    first, rest = fields[0], fields[1:]
    usual = {name for names in LOG_NAMES.values() for name in names}
    if any(TYPED.fullmatch(name) or strip_name(name) in usual for name in first):
        return True
    if any(map(_is_value, first)):
        return False
    if rest and any(all(map(_is_value, column)) for column in zip(*rest, strict=False)):
        return True
    message = f"{place}: names and values look alike, the first line is {show_value(','.join(first))}"
    raise ConfigError(message, "add --header yes or --header no")


def _is_value(text: str) -> bool:
    return bool(re.fullmatch(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", text) or re.match(DATE, text))
