"""Cut lines into fields."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from recbench_spark.errors import DataError
from recbench_spark.sources.text_layouts import make_nested_error, open_quote_error
from recbench_spark.storage.local_files import head_lines
from recbench_spark.storage.text_forms import BLANKS as BLANK_SEPARATOR


@dataclass(frozen=True)
class StoredTable:
    """A table as stored, before its values are converted.

    Attributes:
        table: columns by name; columns from a text file are text.
        line: the expected layout of a line; empty if the table is no text file.
        bad_lines: lines in a text file with another layout.
    """

    table: pa.Table
    line: str = ""
    bad_lines: tuple[str, ...] = ()

    def refuse_lines(self, where: str) -> None:
        """Raise DataError if lines have another layout."""
        if self.bad_lines:
            raise make_lines_error(where, len(self.bad_lines), self.bad_lines[0], self.line)


def make_lines_error(where: str, count: int, example: str, layout: str) -> DataError:
    """Return the error for lines with another layout."""
    message = f"{where}: {count} lines have not {layout}, e.g. {example[:200]!r}"
    return DataError(message, "write the same number of fields in every line")


BLANKS = "".join(map(chr, range(33)))


class Quotes(NamedTuple):
    """The way in which fields may be quoted.

    Attributes:
        mark: the quote.
        escape: what stands before a quote within quotes; the quote itself if it is doubled.
        lenient: whether a quote that is not closed is a letter.
        multiline: whether a quoted field may go on in the next line.
    """

    mark: str = '"'
    escape: str = '"'
    lenient: bool = False
    multiline: bool = False


RFC_4180 = Quotes()


class _Patterns(NamedTuple):
    """Regular expressions for quoted fields and lines.

    `rest` is a quoted field behind its first quote, and `field` a field in a line.
    """

    quoted: re.Pattern[str]
    rest: re.Pattern[str]
    line: re.Pattern[str]
    field: re.Pattern[str]
    escaped: re.Pattern[str]


@lru_cache(32)
def _compile(sep: str, mark: str, escape: str) -> _Patterns:
    quote, before, between = map(re.escape, (mark, escape, sep))
    inside = rf"{quote}{quote}" if mark == escape else rf"{before}[{before}{quote}]"
    inner = rf"(?:{inside}|[^{quote}])*+"
    field = rf"{quote}{inner}{quote}|[^{quote}{between}]*"
    return _Patterns(
        re.compile(rf"{quote}{inner}{quote}"),
        re.compile(rf"{inner}{quote}"),
        re.compile(rf"(?:{field})(?:{between}(?:{field}))*"),
        re.compile(rf"(?:^|{between})({field})"),
        re.compile(rf"{before}([{before}{quote}])"),
    )


def cut_quoted(
    line: str, sep: str, path: str, width: int | None, quotes: Quotes | None = RFC_4180
) -> list[str | None]:
    """Split a line into fields by RFC 4180.

    None: an empty field without quotes.

    Args:
        line: the text.
        sep: the separator between fields.
        path: the file, for messages.
        width: number of fields in the header; None if this line is the header.
        quotes: how fields are quoted (None: not at all); quotes within a field are letters.

    Raises:
        DataError: a quote is opened and not closed.
    """
    if quotes is None or quotes.mark not in line:
        return [field or None for field in line.split(sep)]
    mark, patterns = quotes.mark, _compile(sep, quotes.mark, quotes.escape)
    if patterns.line.fullmatch(line):
        unquote, parts = partial(patterns.escaped.sub, r"\1"), patterns.field.findall(line)
        return [unquote(part[1:-1]) if part.startswith(mark) else part or None for part in parts]
    fields: list[str | None] = []
    at = 0
    while at <= len(line):
        match = patterns.quoted.match(line, at)
        if match is None and not quotes.lenient and line.startswith(mark, at):
            raise open_quote_error(_name_place(path), line, sep, width)
        after = match.end() if match else len(line) if line.startswith(mark, at) else at
        end = line.find(sep, after)
        end = len(line) if end < 0 else end
        is_quoted = match is not None and after == end
        text = patterns.escaped.sub(r"\1", line[at + 1 : end - 1]) if is_quoted else line[at:end] or None
        fields.append(text)
        at = end + len(sep)
    return fields


def _name_place(path: str) -> str:
    return path if "://" in path else f"file:{Path(path).absolute()}"


def join_lines(lines: Iterable[str], sep: str, quotes: Quotes, comment: str = "") -> list[str]:
    """Join lines if a quoted field continues in the next.

    Blank rows are left out, comments are not.
    """
    rows, held, is_open = [], list[str](), False
    for line in lines:
        held.append(line)
        is_comment = bool(comment) and not is_open and line.startswith(comment)
        is_open = not is_comment and _is_open(line, sep, quotes, is_open)
        if not is_open:
            rows.append("\n".join(held))
            held = []
    return [row for row in (*rows, "\n".join(held)) if row.strip(BLANKS)]


def head_rows(head: bytes, sep: str, quotes: Quotes | None, encoding: str, comment: str) -> list[str]:
    """Return the rows in a file's head, without comments.

    Blank ones are left out, too.
    """
    if quotes is None or not quotes.multiline:
        return head_lines(head, encoding, comment)
    lines = split_lines(head.removeprefix(BOM_UTF8), encoding, blanks=True).to_pylist()
    rows = join_lines(lines, sep, quotes, comment)
    return [row for row in rows if not comment or not row.startswith(comment)]


def _is_open(line: str, sep: str, quotes: Quotes, is_open: bool) -> bool:
    """Return whether a quote is open when a line ends.

    `is_open`: one was open when it began.
    """
    at, rest = 0, _compile(sep, quotes.mark, quotes.escape).rest
    while is_open or quotes.mark in line[at:]:
        if is_open or line.startswith(quotes.mark, at):
            match = rest.match(line, at if is_open else at + 1)
            if match is None:
                return True
            at, is_open = match.end(), False
        end = line.find(sep, at)
        if end < 0:
            return False
        at = end + len(sep)
    return False


def refuse_nested(row: str, fields: Sequence[str | None], sep: str, path: str, width: int) -> None:
    """Refuse a quoted field which holds whole rows.

    No count would show that they are lost. A quote that is not closed in its row joins the rows up to the
    next quote, or to the end of the file. The lines in such a field, with the fields before and after it,
    have as many fields as the header.

    Raises:
        DataError: a field holds whole rows.
    """
    holds = len(fields) != width and "\n" in row.rstrip("\n")
    for place, field in enumerate(fields if len(fields) == width else ()):
        first, *rest = (line.count(sep) + 1 for line in (field or "").rstrip("\n").split("\n"))
        holds |= rest != [] and [first, *rest] == [width - place, *[width] * (len(rest) - 1), place + 1]
    if holds:
        raise make_nested_error(_name_place(path), row)


def read_names(lines: Sequence[str], sep: str, path: str, quotes: Quotes | None = RFC_4180) -> list[str]:
    """Return the names in the first line, as Spark does.

    Spark names columns without a name, and numbers repeated names.

    >>> read_names([",user_id,x,X"], ",", "log.csv")
    ['_c0', 'user_id', 'x2', 'X3']
    """
    if not lines:
        return []
    names = lines[0].split() if sep == BLANK_SEPARATOR else cut_quoted(lines[0], sep, path, None, quotes)
    lower = [(name or "").lower() for name in names]
    return [
        f"_c{n}" if not name else f"{name}{n}" if lower.count(name.lower()) > 1 else name
        for n, name in enumerate(names)
    ]


def split_lines(raw: bytes, encoding: str = "utf-8", *, blanks: bool = False) -> pa.Array:
    """Split text at line ends, as Hadoop does.

    Undecodable bytes become U+FFFD. `blanks`: keep blank lines.
    """
    text = _as_utf8(raw, encoding)
    text = _end_lines(text)
    lines = pc.split_pattern(pa.array([text], pa.binary()), b"\n").flatten().view(pa.string())
    if blanks:
        return lines
    return lines.filter(pc.not_equal(pc.ascii_trim(lines, BLANKS), ""))


def _end_lines(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _as_utf8(raw: bytes, encoding: str) -> bytes:
    if encoding.lower() not in ("utf-8", "utf8"):
        return raw.decode(encoding, errors="replace").removeprefix("\ufeff").encode()
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def cut_plain(
    text: bytes, sep: str, names: Sequence[str | None], wanted: Sequence[str], marks: Iterable[str]
) -> pa.Table | None:
    """Cut lines into texts at once.

    An empty field is NULL, and blank lines are left out.

    Args:
        text: whole lines.
        sep: the separator between fields.
        names: the fields' names.
        wanted: names of the fields to cut.
        marks: texts with which a line is more than its fields.

    Returns:
        None: a line has a mark or another number of fields, may be blank, or is not UTF-8.
    """
    text = _end_lines(text)
    if len(sep) != 1 or not wanted or len(names) < 2 or not text:
        return None
    if any(mark.encode() in text for mark in marks if mark) or (sep <= " " and _has_blanks(text)):
        return None
    all_names = [name or f"{place}\n" for place, name in enumerate(names)]
    read = pacsv.ReadOptions(use_threads=False, block_size=1 << 30, column_names=all_names)
    parse = pacsv.ParseOptions(delimiter=sep, quote_char=False)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(wanted, pa.string()),
        include_columns=list(wanted),
        strings_can_be_null=True,
        null_values=[""],
    )
    try:
        return pacsv.read_csv(pa.BufferReader(text), read, parse, convert)
    except pa.ArrowException:
        return None


END, LAST_BLANK = ord("\n"), ord(" ")


def _has_blanks(text: bytes) -> bool:
    """Return whether a line begins with a blank.

    Such a line may be blank.
    """
    byte_n = np.frombuffer(text, np.uint8)
    begin_l = np.append(byte_n[:1], byte_n[1:][byte_n[:-1] == END])
    return bool(np.any((begin_l <= LAST_BLANK) & (begin_l != END)))


def split_tokens(lines: pa.Array) -> pa.Array:
    """Split lines at blanks, however many."""
    even = pc.replace_substring_regex(lines, r"[\s\v]+", " ")
    return pc.split_pattern(pc.ascii_trim(even, " "), " ")
