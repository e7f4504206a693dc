"""Read text logs in pieces, each a range of bytes.

A layout cuts the lines into a table: the file's columns as text, BAD_LINE and FILE.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.errors import DataError
from recbench_spark.sources import text_lines
from recbench_spark.sources.text_layouts import note_texts
from recbench_spark.storage.local_files import COMPRESSED, read_chunks
from recbench_spark.storage.objects import measure_files, open_input
from recbench_spark.storage.text_forms import BLANKS, is_wide

BAD_LINE = "_bad_line"
"""Hidden column with the text of a line with a wrong layout, else NULL."""

FILE = "_file"
"""Hidden column with the row's file."""

HIDDEN = (BAD_LINE, FILE)

BYTES_A_PIECE = 1 << 24
"""Bytes in a file that a task reads at once."""

COMMENTS = b"recbench.comments"
"""Metadata on a table: the number of comment lines."""

MARK = b"\xef\xbb\xbf"
"""Byte order mark at the beginning of a file in UTF-8."""


class LinePiece(NamedTuple):
    """Lines in a file which begin in a byte range.

    Attributes:
        path: the file.
        first, size: the range of bytes; size -1: the whole file from `first` on.
        layout: cuts lines into columns.
        given: columns with one value in all rows, from the names of folders and files.
    """

    path: str
    first: int
    size: int
    layout: TextLayout
    given: Mapping[str, str | None] = {}

    @property
    def file(self) -> str:
        """The file with these lines."""
        return self.path

    def read(self, columns: Sequence[str]) -> Iterator[text_lines.StoredTable]:
        """Yield rows as text, with lines in other layouts apart."""
        for rows in read_pieces([self], [*columns, BAD_LINE]):
            bad = rows.column(BAD_LINE)
            good = rows.filter(pc.is_null(bad)) if bad.null_count < len(bad) else rows
            table = good.select(list(columns)).cast(note_texts(columns, self.given))
            yield text_lines.StoredTable(table, self.layout.line, tuple(bad.drop_null().to_pylist()))


class TextLayout(Protocol):
    """A way in which lines hold rows."""

    encoding: str = "utf-8"

    @property
    def divisible(self) -> bool:
        """True if each range of lines can be read alone."""
        return True

    @property
    def carries(self) -> bool:
        """True if a line describes the lines after it."""
        return False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""

    @property
    def line(self) -> str:
        """The expected layout of a line, in words."""

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Cut non-blank lines into some columns and BAD_LINE."""


def split_file(
    path: str, layout: TextLayout, given: Mapping[str, str | None] | None = None, begin: int = 0
) -> Iterator[LinePiece]:
    """Yield pieces from a byte on, one if compressed."""
    size = measure_files([path])[0] or 0
    if path.endswith(COMPRESSED) or not layout.divisible:
        yield LinePiece(path, begin, -1, layout, given or {})
        return
    for first in range(begin, max(size, begin + 1), BYTES_A_PIECE):
        yield LinePiece(path, first, BYTES_A_PIECE, layout, given or {})


def measure_text(path: str) -> int:
    """Return the bytes in a file's text, about."""
    return (measure_files([path])[0] or 0) * (PACKED if path.endswith(COMPRESSED) else 1)


PACKED = 4
"""Bytes of text for a byte in its compressed file, about."""


def read_pieces(pieces: Iterable[LinePiece], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield wanted columns, with NULL where a file lacks one."""
    for piece in pieces:
        first = True
        for raw in read_texts(piece):
            begins = first and piece.first == 0
            yield cut_text(raw, piece if begins else piece._replace(first=max(piece.first, 1)), columns)
            first = False


def cut_text(raw: bytes, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
    """Cut whole lines into rows; `piece.first` 0: the file's first."""
    text = raw.removeprefix(MARK) if piece.first == 0 else raw
    layout = piece.layout
    rows = layout.cut_at_once(text, piece, columns) if isinstance(layout, Fields) else None
    if rows is None:
        blanks = isinstance(layout, Fields) and layout.is_multiline
        rows = layout.cut(text_lines.split_lines(text, layout.encoding, blanks=blanks), piece, columns)
    more = {FILE: name_file(piece.path), **piece.given}
    chosen = dict(zip(rows.column_names, rows.columns, strict=True))
    for name in {*columns} - (chosen.keys() - piece.given.keys()):
        chosen[name] = pa.repeat(pa.scalar(more.get(name), pa.string()), len(rows))
    return pa.table({name: chosen[name] for name in columns}).replace_schema_metadata(rows.schema.metadata)


def name_file(path: str) -> str:
    """Return a file's name as Spark writes it."""
    return path if "://" in path else Path(path).absolute().as_uri()


def read_texts(piece: LinePiece) -> Iterator[bytes]:
    """Yield whole lines, BYTES_A_PIECE at once, or an undivided file."""
    if piece.size >= 0:
        yield _read_range(piece)
        return
    held: list[bytes] = []
    size, may_cut, skipped = 0, piece.layout.divisible and not piece.layout.carries, piece.first
    for whole_chunk in read_chunks(piece.path):
        chunk, skipped = whole_chunk[skipped:], max(skipped - len(whole_chunk), 0)
        held.append(chunk)
        size += len(chunk)
        if may_cut and size >= BYTES_A_PIECE and b"\n" in chunk:
            whole, mark, rest = b"".join(held).rpartition(b"\n")
            yield whole + mark
            held, size = [rest], len(rest)
    yield b"".join(held)


@contextmanager
def _open_file(path: str) -> Iterator[BinaryIO]:
    with open_input(path) as stream:
        yield cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", stream), BUFFER))


BUFFER = 1 << 16
"""Bytes to read at once in search of a line."""


def _read_range(piece: LinePiece) -> bytes:
    try:
        with _open_file(piece.path) as file:
            begin = _find_line(file, piece.first)
            end = _find_line(file, piece.first + piece.size)
            file.seek(begin)
            return file.read(end - begin)
    except OSError as error:
        raise DataError(f"{piece.path}: cannot be read: {error}", "has it changed?") from None


def _find_line(file: BinaryIO, at: int) -> int:
    """Return where the next line begins, or the file ends."""
    at = min(at, file.seek(0, io.SEEK_END))  # an object has no place behind its end
    if at == 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return file.tell()


# ----------------------------------------------------------------------------------------- layouts


def _make_table(columns: dict[str, pa.Array], bad: pa.Array, comments: int = 0) -> pa.Table:
    table = pa.table({**columns, BAD_LINE: bad})
    return table.replace_schema_metadata({COMMENTS: str(comments)}) if comments else table


@dataclass(frozen=True)
class Fields(TextLayout):
    """Rows with a separator, or blanks, between their fields.

    Attributes:
        names: the columns; None: a field that nobody reads.
        sep: the separator, or BLANKS.
        header: whether the first line has names.
        quotes: how a field may be quoted; None: not at all.
        comment: what comments begin with; empty: there are none.
        encoding: the encoding.
        null: a text that is NULL, beside an empty one.
    """

    names: tuple[str | None, ...]
    sep: str
    header: bool = False
    quotes: text_lines.Quotes | None = None
    comment: str = ""
    encoding: str = "utf-8"
    null: str = ""

    @property
    def is_multiline(self) -> bool:
        """True if a quoted field may span several lines."""
        return self.quotes is not None and self.quotes.multiline

    @property
    def divisible(self) -> bool:
        """False if only the whole text shows where rows end."""
        return not self.is_multiline and not is_wide(self.encoding)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        return tuple(name for name in self.names if name)

    @property
    def line(self) -> str:
        """The expected layout of a line, in words."""
        between = "blanks" if self.sep == BLANKS else repr(self.sep)
        return f"{len(self.names)} fields separated by {between}"

    def cut_at_once(self, text: bytes, piece: LinePiece, columns: Sequence[str]) -> pa.Table | None:
        """Cut text at once; None if lines need a look."""
        if self.null or self.encoding.lower() not in ("utf-8", "utf8"):
            return None
        wanted = [name for name in self.columns if name in columns]
        marks = (self.comment, self.quotes.mark if self.quotes else "")
        rows = text_lines.cut_plain(text, self.sep, self.names, wanted, marks)
        if rows is None:
            return None
        rows = rows.slice(int(self.header and piece.first == 0))
        return rows.append_column(BAD_LINE, pa.nulls(len(rows), pa.string()))

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Cut lines into columns; an empty field is NULL."""
        if self.quotes and self.quotes.multiline:
            rows = text_lines.join_lines(lines.to_pylist(), self.sep, self.quotes, self.comment)
            lines = pa.array(rows, pa.string())
        n = len(lines)
        if self.comment:
            lines = lines.filter(pc.invert(pc.starts_with(lines, self.comment)))
        comments = n - len(lines)
        if self.header and piece.first == 0:
            lines = lines.slice(1)
        parts = self._split(lines, piece.path)
        fits = pc.equal(pc.list_value_length(parts), len(self.names))
        wanted = [name for name in self.columns if name in columns]
        fields = _take_fields(parts, fits, map(self.names.index, wanted), len(self.names), null=self.null)
        bad = pc.if_else(fits, NO_TEXT, lines)
        return _make_table(dict(zip(wanted, fields, strict=True)), bad, comments)

    def _split(self, lines: pa.Array, path: str) -> pa.Array:
        quotes, blanks = self.quotes, self.sep == BLANKS
        if quotes is None or not pc.any(pc.match_substring(lines, quotes.mark), min_count=0).as_py():
            return text_lines.split_tokens(lines) if blanks else pc.split_pattern(lines, self.sep)
        rows, width, sep = lines.to_pylist(), len(self.names), " " if blanks else self.sep
        if blanks:
            rows = [row if quotes.mark in row else " ".join(row.split()) for row in rows]
        cut = [text_lines.cut_quoted(row, sep, path, width, quotes) for row in rows]
        for row, fields in zip(rows, cut, strict=True) if quotes.multiline else ():
            if "\n" in row:
                text_lines.refuse_nested(row, fields, self.sep, path, width)
        return pa.array(cut, pa.list_(pa.string()))


def _take_fields(
    parts: pa.Array, fits: pa.Array, places: Iterable[int], width: int, *, null: str = ""
) -> list[pa.Array]:
    """Take fields from fitting lines; all other fields are NULL."""
    if not len(parts):
        return [pa.array([], pa.string()) for _ in places]
    if not pc.all(fits).as_py():
        parts = pc.if_else(fits, parts, pa.scalar([None] * width, parts.type))
    fields = (pc.list_element(parts, place) for place in places)
    nulls = pa.array(["", null])
    return [pc.if_else(pc.is_in(field, nulls), NO_TEXT, field) for field in fields]


NO_TEXT = pa.scalar(None, pa.string())


WHOLE_NUMBERS = r"^\s*[0-9]+(\s+[0-9]+)*\s*$"
LISTED = r"^\s*\([0-9]+,[0-9]+\)(\s+[0-9]+)+\s*$"


@dataclass(frozen=True)
class ItemLines(TextLayout):
    """Lines with a user and items; without items, no row.

    Attributes:
        listed: a line has `(user,item)`, a test item, and the user's negatives (NCF). A test item among its
            own negatives is none, and an item counts once.
    """

    listed: bool = False
    columns: tuple[str, ...] = ("user_id", "item_id")

    @property
    def line(self) -> str:
        """The expected layout of a line, in words."""
        fields = "(user,item) negative negative" if self.listed else "user item item"
        return f"'{fields} ...' in whole numbers"

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Make a row per item or bad line."""
        fits = pc.match_substring_regex(lines, LISTED if self.listed else WHOLE_NUMBERS)
        wrong = lines.filter(pc.invert(fits))
        good = lines.filter(fits)
        good = pc.replace_substring_regex(good, "[(),]", " ") if self.listed else good
        parts = text_lines.split_tokens(good)
        line_r, value_r = pc.list_parent_indices(parts), pc.list_flatten(parts)
        starts = np.asarray(parts.offsets)[:-1] - parts.offsets[0].as_py()
        keep = _mark_negatives(line_r, value_r, starts) if self.listed else np.ones(len(value_r), np.bool_)
        keep[starts] = False  # the user
        users = value_r.take(pa.array(starts)).take(line_r).filter(pa.array(keep))
        items = value_r.filter(pa.array(keep))
        gap = pa.nulls(len(wrong), pa.string())
        bad = pa.concat_arrays([pa.nulls(len(items), pa.string()), wrong])
        texts = [pa.concat_arrays([one.cast(pa.string()), gap]) for one in (users, items)]
        return _make_table(dict(zip(self.columns, texts, strict=True)), bad)


def _mark_negatives(line_r: pa.Array, value_r: pa.Array, starts: Ints) -> Bools:
    """Mark a line's items once each, without its test item."""
    code_r, at_r = value_r.dictionary_encode().indices.to_numpy().astype(np.int64), line_r.to_numpy()
    code_r[starts] = -1  # the user may be called as an item is
    first = np.zeros(len(code_r), np.bool_)
    first[np.unique(at_r * (len(code_r) + 1) + code_r, return_index=True)[1]] = True
    marked: Bools = first & (code_r != code_r[starts + 1][at_r])
    return marked


@dataclass(frozen=True)
class Matrix(TextLayout):
    """A line per user, a number per item (0: none, unless `zeros`); ids are places from 0."""

    value: str = "rating"
    zeros: bool = False
    divisible: bool = False
    line: str = "as many numbers as in the first line"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        return ("user_id", "item_id", self.value)

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Make a row per number except 0, or bad line."""
        parts = text_lines.split_tokens(lines)
        width_l = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
        width = int(width_l[0]) if len(width_l) else 0
        fits = width_l == width
        users = np.repeat(np.flatnonzero(fits), width)
        items = np.tile(np.arange(width), int(fits.sum()))
        values = pc.list_flatten(parts.filter(pa.array(fits)))
        codes = values.dictionary_encode()
        rated = [self.zeros or not _is_zero(one) for one in codes.dictionary.to_pylist()]
        kept = pa.array(rated, pa.bool_()).take(codes.indices)
        wrong = np.flatnonzero(~fits)
        good = [_as_text(users), _as_text(items), values, pa.nulls(len(values), pa.string())]
        gap, first = pa.nulls(len(wrong), pa.string()), _as_text(np.zeros(len(wrong), np.int64))
        bad = [_as_text(wrong), first, gap, lines.filter(pa.array(~fits))]
        texts = [pa.concat_arrays([one.filter(kept), more]) for one, more in zip(good, bad, strict=True)]
        return _make_table(dict(zip(self.columns, texts[:3], strict=True)), texts[3])


def _is_zero(text: str) -> bool:
    with suppress(ValueError):
        return float(text) == 0
    return False


def _as_text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.string())


HEADER = "^[0-9]+:$"


@dataclass(frozen=True)
class MovieBlocks(TextLayout):
    """Lines `user,rating,day` under their movie's line `movie:` (Netflix prize).

    `single`: a file has one movie, which its name tells; the first line must say the same.
    """

    single: bool = False
    columns: tuple[str, ...] = ("item_id", "user_id", "rating", "event_time")
    line: str = "'user,rating,date' under a line 'movie:'"

    @property
    def carries(self) -> bool:
        """True if a line describes the lines after it."""
        return not self.single

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Make a row from each line that is no header."""
        movies, lines = self._name_movies(lines, piece)
        parts = pc.split_pattern(lines, ",")
        fits = pc.and_(pc.is_valid(movies), pc.equal(pc.list_value_length(parts), 3))
        fields = _take_fields(parts, fits, range(3), 3)
        chosen = dict(zip(self.columns, [movies, *fields], strict=True))
        return _make_table(chosen, pc.if_else(fits, NO_TEXT, lines))

    def _name_movies(self, lines: pa.Array, piece: LinePiece) -> tuple[pa.Array, pa.Array]:
        header = pc.match_substring_regex(lines, HEADER)
        if self.single:
            number = re.search(r"mv_0*([0-9]+)\.txt", piece.path)
            movie = number[1] if number else ""
            keep = pc.not_equal(lines, f"{movie}:")
            movies = pc.if_else(header, NO_TEXT, movie)
            return movies.filter(keep), lines.filter(keep)
        names = pc.if_else(header, pc.utf8_rtrim(lines, ":"), NO_TEXT)
        begin = pa.array([_find_movie(piece)], pa.string())
        movies = pc.fill_null_forward(pa.concat_arrays([begin, names])).slice(1)
        keep = pc.invert(header)
        return movies.filter(keep), lines.filter(keep)


def _find_movie(piece: LinePiece) -> str | None:
    """Return the movie at a range's beginning: the last header's."""
    if piece.first == 0 or piece.size < 0:
        return None
    with _open_file(piece.path) as file:
        end = _find_line(file, piece.first)
        at, rest = end, b""
        while at > 0:
            begin = max(at - BYTES_A_PIECE // 16, 0)
            file.seek(begin)
            rest = file.read(at - begin) + rest[:64]
            headers = re.findall(rb"(?:^|[\r\n])([0-9]+):(?=[\r\n])", rest)
            if headers:
                return str(headers[-1].decode())
            at = begin
    return None
