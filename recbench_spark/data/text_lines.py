"""Cut text files of this machine into columns of text, whole or in ranges of lines."""

from __future__ import annotations

import bz2
import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.data.text_layouts import open_quote_error
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.storage.local_files import DAMAGED, separator


@dataclass(frozen=True)
class StoredTable:
    """A table as it is stored.

    Attributes:
        table: columns by name; the columns of a text file are text.
        line: the expected layout of a line; empty where the table is no text file.
        bad_lines: lines of a text file with another layout.
    """

    table: pa.Table
    line: str = ""
    bad_lines: tuple[str, ...] = ()


def read_text(path: str) -> StoredTable:
    """Read a whole text file of this machine.

    Raises:
        DataError: it cannot be unpacked, or a quote is not closed. FallbackToSpark: only Spark reads it.
    """
    raw = Path(path).read_bytes()
    try:
        raw = gzip.decompress(raw) if path.endswith(".gz") else raw
        raw = bz2.decompress(raw) if path.endswith(".bz2") else raw
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", DAMAGED) from None
    stream = io.BytesIO(raw)
    names, sep = split_header(stream, path)
    return cut_lines(stream.read(), names, sep, path)


def open_bytes(path: str) -> IO[bytes]:
    """Open a text file as a stream of bytes, unpacked."""
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return cast(IO[bytes], bz2.open(path, "rb")) if path.endswith(".bz2") else Path(path).open("rb")


def split_header(stream: IO[bytes], path: str) -> tuple[list[str], str]:
    """Read a text file up to the end of its header, the first line that is not blank.

    Returns:
        The names of the columns, none for an empty file, and the separator.

    Raises:
        FallbackToSpark: names that are empty or stand there twice.
    """
    sep = separator(path)
    text = _read_header(stream)
    names = _split_fields(text, sep, path, None) if text else []
    if len({name.lower() for name in names}) < len(names) or not all(names):
        raise FallbackToSpark(f"{path}: column names that are empty or stand there twice")
    return names, sep


def _read_header(stream: IO[bytes]) -> str:
    """Return the first line that is not blank; the stream then stands behind it."""
    at = 0
    while line := stream.readline():
        bare = line.removeprefix(b"\xef\xbb\xbf") if not at else line
        at += len(line) - len(bare)
        for part in re.split(rb"(?<=\r)(?!\n)", bare):  # a lone carriage return ends a line too
            at += len(part)
            text = part.decode("utf-8", errors="replace").rstrip("\r\n")
            if text.strip(BLANKS):
                stream.seek(at)
                return text
    return ""


def cut_lines(raw: bytes, names: list[str], sep: str, path: str) -> StoredTable:
    """Cut whole lines of a text file into columns; lines end as for Hadoop, and blank ones are skipped."""
    text = raw.decode("utf-8", errors="replace")
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip(BLANKS)]
    return _split_columns(lines, names, sep, path)


BLANKS = "".join(map(chr, range(33)))


def _split_columns(lines: list[str], names: list[str], sep: str, path: str) -> StoredTable:
    quoted = any('"' in line for line in lines)
    if quoted:
        parts = pa.array(
            [_split_fields(line, sep, path, len(names)) for line in lines], pa.list_(pa.string())
        )
    else:
        parts = pc.split_pattern(pa.array(lines, pa.string()), sep)
    fits = pc.equal(pc.list_value_length(parts), len(names))
    bad = [line for line, good in zip(lines, fits.to_pylist(), strict=True) if not good]
    good_parts = parts.filter(fits)
    columns = {}
    for n, name in enumerate(names):
        field = pc.list_element(good_parts, n) if len(good_parts) else pa.array([], pa.string())
        columns[name] = pc.if_else(pc.equal(field, ""), None, field)
    return StoredTable(pa.table(columns), f"{len(names)} fields separated by {sep!r}", tuple(bad))


def _split_fields(line: str, sep: str, path: str, width: int | None) -> list[str]:
    """Split a line into its fields (RFC 4180); arguments and errors as in `cut_quoted`."""
    if '"' not in line:
        return line.split(sep)
    return [field or "" for field in cut_quoted(line, sep, path, width)]


def cut_quoted(
    line: str, sep: str, path: str, width: int | None, *, comments: bool = False
) -> list[str | None]:
    """Split a line into its fields (RFC 4180); None: an empty one without quotes.

    Args:
        line: the text.
        sep: the separator of fields.
        path: the file, for messages.
        width: number of fields in the header; None where this line is the header.
        comments: whether a file has comments; its quotes may be open.

    Raises:
        DataError: a quote is opened and not closed. FallbackToSpark: quotes within a field.
    """
    if '"' not in line:
        return [field or None for field in line.split(sep)]
    at = re.escape(sep)
    field = rf'"(?:[^"]|"")*"|[^"{at}]*'
    if re.fullmatch(rf"(?:{field})(?:{at}(?:{field}))*", line):
        fields = re.findall(rf"(?:^|{at})({field})", line)
        return [part[1:-1].replace('""', '"') if part.startswith('"') else part or None for part in fields]
    torn = re.sub(rf'(^|{at})"([^"]|"")*"(?={at}|$)', r"\1", line)
    if not comments and re.search(rf'(^|{at})"([^"]|"")*$', torn):
        raise open_quote_error(f"file:{Path(path).absolute()}", line, sep, width)
    raise FallbackToSpark(f"{path}: quotes within a field, such as {line[:60]!r}")
