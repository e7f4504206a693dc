"""Cut lines into fields, and open text files of this machine."""

from __future__ import annotations

import bz2
import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from recbench_spark.data.text_layouts import open_quote_error


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


def open_bytes(path: str) -> IO[bytes]:
    """Open a text file as a stream of bytes, unpacked."""
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return cast(IO[bytes], bz2.open(path, "rb")) if path.endswith(".bz2") else Path(path).open("rb")


BLANKS = "".join(map(chr, range(33)))


def cut_quoted(
    line: str, sep: str, path: str, width: int | None, *, lenient: bool = False
) -> list[str | None]:
    """Split a line into its fields (RFC 4180); None: an empty one without quotes.

    Args:
        line: the text.
        sep: the separator of fields.
        path: the file, for messages.
        width: number of fields in the header; None where this line is the header.
        lenient: whether a quote may be open.

    Raises:
        DataError: a quote is opened and not closed.
    """
    if '"' not in line:
        return [field or None for field in line.split(sep)]
    mark = re.escape(sep)
    field = rf'"(?:[^"]|"")*"|[^"{mark}]*'
    if re.fullmatch(rf"(?:{field})(?:{mark}(?:{field}))*", line):
        parts = re.findall(rf"(?:^|{mark})({field})", line)
        return [part[1:-1].replace('""', '"') if part.startswith('"') else part or None for part in parts]
    fields: list[str | None] = []
    at = 0
    while at <= len(line):
        match = QUOTED.match(line, at)
        if match is None and not lenient and line.startswith('"', at):
            raise open_quote_error(
                path if "://" in path else f"file:{Path(path).absolute()}", line, sep, width
            )
        after = match.end() if match else len(line) if line.startswith('"', at) else at
        end = line.find(sep, after)
        end = len(line) if end < 0 else end
        is_quoted = match is not None and after == end
        fields.append(line[at + 1 : end - 1].replace('""', '"') if is_quoted else line[at:end] or None)
        at = end + len(sep)
    return fields


QUOTED = re.compile(r'"(?:[^"]|"")*+"')
"""A field in quotes; other quotes within a field are letters, as they are to Spark."""
