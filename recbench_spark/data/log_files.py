"""Look at the file of a log before anything is configured: format, encoding, separator, header.

It needs no Spark. What the first lines leave open is refused, with the flag that
says it.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from recbench_spark.data.column_names import LOG_NAMES, strip_name
from recbench_spark.data.json_objects import check_first_lines
from recbench_spark.data.paths import check_path
from recbench_spark.data.text_layouts import LAYOUTS, MOVIELENS
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, show_value
from recbench_spark.storage.local_files import (
    HEAD_BYTES,
    WIDE_MARKS,
    bare_name,
    describe_content,
    describe_undecoded,
    find_hint,
    has_delta_log,
    head_lines,
    read_chunks,
    read_head,
    split_line,
)
from recbench_spark.storage.table_scans import open_delta, open_parquet, query_delta
from recbench_spark.storage.text_forms import BLANKS, TO_UTF8, WIDE

if TYPE_CHECKING:
    import pyarrow.dataset as ds

SEPARATORS = ("::", "\t", ",", ";", "|")
TYPED = re.compile(r".+:(token|float)(_seq)?")
"""A name in the header of RecBole."""

DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
MATRIX_WIDTH = 20
"""Numbers in each line from which a file without names is a matrix and no log."""

SPLITS = {
    "coat": ("train.ascii", "test.ascii"),
    "lightgcn": ("train.txt", "test.txt"),
    "ncf": ("*.train.rating", "*.test.rating"),
    "yahoo_r3": ("ydata-ymusic-rating-study-*-train.txt", "ydata-ymusic-rating-study-*-test.txt"),
}
"""Readers of folders that are divided already, and the files of each part."""


@dataclass(frozen=True)
class LogFile:
    """A log as a benchmark file describes it.

    Attributes:
        path: the absolute path.
        reader: value of `dataset.reader`.
        names: the columns, as the reader calls them; none for a reader with a layout of its own.
        options: `dataset.options`.
        roles: our name -> the column, where the name of the file says it.
        note: a sentence about its encoding, where it is not UTF-8.
    """

    path: str
    reader: str
    names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def has_names(self) -> bool:
        """True where the columns have names of their own."""
        return self.options.get("header") != "false"


# ------------------------------------------------------------------------------------------ format


def open_log_file(
    path: str, separator: str | None = None, *, header: bool | None = None, encoding: str | None = None
) -> LogFile:
    """Find out how a file or folder of this machine is read.

    Args:
        path: the file; or a folder of MovieLens, of Parquet or Delta, or of one of SPLITS.
        separator: the separator of fields, where the caller knows it.
        header: whether the first line has the names.
        encoding: the encoding of its text, where the caller knows it.

    Raises:
        MissingError: nothing is there. ConfigError: the first lines leave open how it is read.
        DataError: it is no log, or in a format that is not read.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise ConfigError(
            f"{path} is not on this machine", "look at a part of it: head -n 100000 > part.csv"
        )
    check_path(path)
    place = Path(path).absolute()
    if place.is_dir():
        return _open_folder(place, _TextSettings(separator, header, encoding))
    kind = describe_content(str(place))[0]
    if kind == "Parquet":
        return _open_stored(place, "parquet")
    if kind not in ("text", "compressed with gzip") and "TREC" not in kind:
        hint = find_hint(kind, "write it as CSV or Parquet")
        raise DataError(f"{path} is {kind or 'not text'}", hint)
    return _open_text(place, _TextSettings(separator, header, encoding))


class _TextSettings(NamedTuple):
    """Settings of a text file that the caller knows; None: it is to be found out."""

    separator: str | None
    header: bool | None
    encoding: str | None


def _open_folder(place: Path, given: _TextSettings) -> LogFile:
    if has_delta_log(place):
        return _open_stored(place, "delta")
    for reader, patterns in SPLITS.items():
        if all(any(place.glob(pattern)) for pattern in patterns):
            return LogFile(str(place), reader)
    known = dict.fromkeys(name for names in MOVIELENS.values() for name in names)
    files = [file for file in sorted(place.iterdir()) if bare_name(file.name) in known]
    if files:
        return _open_text(files[0], given)
    if any(place.rglob("*.parquet")):
        return _open_stored(place, "parquet")
    names = ", ".join(file.name for file in sorted(place.iterdir())[:10])
    raise ConfigError(f"{place} is a folder with {names or 'nothing in it'}", "name the file of the log")


def _open_stored(place: Path, reader: str) -> LogFile:
    return LogFile(str(place), reader, tuple(open_rows(str(place), reader).schema.names))


def open_rows(path: str, reader: str) -> ds.Dataset | pa.RecordBatchReader:
    """Open Parquet or Delta; a table of Delta whose files alone are not its rows can be read once."""
    if reader == "parquet":
        return open_parquet(path)
    try:
        return open_delta(path)
    except FallbackToSpark:
        return query_delta(path)


def _open_text(place: Path, given: _TextSettings) -> LogFile:
    encoding, note = _find_encoding(place, given.encoding)
    lines = _read_first_lines(place, encoding)
    if lines[0].lstrip().startswith(("{", "[")):
        if encoding:
            raise DataError(f"{place}: {note}", f"JSON is UTF-8: iconv -f {encoding} -t UTF-8 FILE")
        check_first_lines(str(place), most=1)
        return LogFile(str(place), "json")
    log = _open_known(place) or _open_fields(place, lines, given)
    return replace(log, options={**log.options, "encoding": encoding}, note=note) if encoding else log


def _open_known(place: Path) -> LogFile | None:
    """Return the log of a file whose name says its layout."""
    layout = LAYOUTS.get(bare_name(place.name))
    if not layout or not layout.names or "rating" not in layout.names:
        return None
    places = {name: f"_c{n}" for n, name in enumerate(layout.names)}
    options = {"sep": layout.separator, "header": "false", "quote": ""}
    return LogFile(str(place), "csv", tuple(places.values()), options, places)


def _open_fields(place: Path, lines: Sequence[str], given: _TextSettings) -> LogFile:
    sep = given.separator or find_separator(lines, place)
    fields = [split_line(line, sep) for line in lines]
    if len(fields[0]) < 2:
        raise ConfigError(
            f"{place}: one field in a line separated by {sep!r}", "add --separator, such as ';' or blanks"
        )
    has_names = has_header(fields, place) if given.header is None else given.header
    usual = "\t" if bare_name(place.name).endswith(".tsv") else ","
    options = {} if sep == usual else {"sep": sep}
    if has_names:
        names = _name_columns(fields[0])
        _refuse_equal_names(names, place)
        return LogFile(str(place), "csv", names, options)
    if len(fields[0]) >= MATRIX_WIDTH:
        raise _make_matrix_error(place)
    names = tuple(f"_c{n}" for n in range(len(fields[0])))
    return LogFile(str(place), "csv", names, {**options, "header": "false"})


def _find_encoding(place: Path, given: str | None) -> tuple[str, str]:
    """Return the encoding of a text that is not UTF-8, and a sentence about it; else two empty texts.

    Raises:
        ConfigError: the caller's encoding is not known here. DataError: it is UTF-16 or UTF-32.
    """
    if read_head(str(place)).startswith(WIDE_MARKS) or (given or "").lower().startswith(WIDE):
        raise DataError(f"{place} is text in UTF-16 or UTF-32", TO_UTF8)
    if given is not None:
        try:
            name = codecs.lookup(given).name
        except LookupError:
            raise ConfigError(f"--encoding {given} is not known", "such as cp1252 or ISO-8859-1") from None
        return ("", "") if name == "utf-8" else (given, f"read as {given}, as --encoding says")
    problem = describe_undecoded(str(place))
    if not problem:
        return "", ""
    rest = any(set(chunk) & NOT_CP1252 for chunk in read_chunks(str(place)))
    encoding = "ISO-8859-1" if rest else "cp1252"
    return encoding, f"{problem[0]}: read as {encoding}; --encoding names another"


NOT_CP1252 = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})
"""Bytes that mean nothing in cp1252, the usual encoding of Windows."""


def _name_columns(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a header; one without a name, as of an index of pandas, is named as by Spark."""
    return tuple(name or f"_c{n}" for n, name in enumerate(fields))


def _refuse_equal_names(names: Sequence[str], place: Path) -> None:
    """Refuse names that are one name where case does not count, as in SQL."""
    counts = Counter(name.lower() for name in names)
    equal = [name for name in names if counts[name.lower()] > 1]
    if equal:
        message = f"{place}: columns have one name, or differ only in case: {', '.join(equal)}"
        raise ConfigError(message, "rename them in the file")


def _make_matrix_error(place: Path) -> DataError:
    hint = "Coat: give the folder that holds train.ascii and test.ascii; else write a row for each rating"
    return DataError(f"{place} is a matrix with a row for each user, and no log", hint)


def _read_first_lines(place: Path, encoding: str) -> list[str]:
    if place.name.endswith(".bz2"):
        raise DataError(f"{place}: files compressed with bzip2 are not looked at", "unpack it, or use gzip")
    head = read_head(str(place))
    lines = head_lines(head, encoding or "utf-8")
    if not lines:
        raise DataError(f"{place}: no lines", "check the path")
    whole = lines[:-1] if len(head) == HEAD_BYTES else lines  # the last one is cut off
    return whole[:100] or lines


def find_separator(lines: Sequence[str], place: Path) -> str:
    """Return the separator that cuts all lines into as many fields, two or more.

    Raises:
        ConfigError: there is none, or there are several. DataError: the lines are a matrix.
    """
    widths = {sep: {len(split_line(line, sep)) for line in lines} for sep in SEPARATORS}
    fits = [sep for sep, counts in widths.items() if len(counts) == 1 and counts != {1}]
    if not fits and all(len(line.split()) >= MATRIX_WIDTH for line in lines):
        raise _make_matrix_error(place)
    blanks = {len(split_line(line, BLANKS)) for line in lines}
    if len(blanks) == 1 and blanks != {1} and (not fits or _are_padded(fits, lines)):
        return BLANKS
    usual = {".csv": ",", ".tsv": "\t", ".inter": "\t"}.get(Path(bare_name(place.name)).suffix)
    if usual in fits or len(fits) == 1:
        return str(usual if usual in fits else fits[0])
    shown = " and ".join(map(repr, fits))
    what = (
        f"{shown} could both separate the fields" if fits else "no separator gives all lines as many fields"
    )
    raise ConfigError(f"{place}: {what}: {lines[0][:120]!r}", "add --separator, such as ';' or blanks")


def _are_padded(fits: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether tabs alone would separate fields, and leave blanks at their ends."""
    return list(fits) == ["\t"] and any(
        field != field.strip() for line in lines for field in line.split("\t")
    )


def has_header(fields: Sequence[Sequence[str]], place: Path) -> bool:
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
