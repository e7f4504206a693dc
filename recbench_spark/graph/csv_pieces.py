"""Read CSV files in pieces: ranges of bytes that tasks read by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from recbench_spark.errors import DataError
from recbench_spark.kernels.ids import CANONICAL_INTEGER, WHOLE_FLOAT, drop_empty
from recbench_spark.storage.table_scans import Piece

BYTES_A_CSV_PIECE = 1 << 24
"""Bytes of a CSV file that a task reads at once: one to four million edges."""

COMPRESSED_ENDINGS = (".gz", ".bz2", ".zst", ".lz4")
"""Endings of files that one task reads from beginning to end."""


class CsvHead(NamedTuple):
    """The beginning of a CSV file: names of its columns, delimiter, and the first byte of its rows."""

    names: tuple[str, ...]
    delimiter: str
    first: int


def read_head(path: str, columns: Sequence[str], what: str) -> CsvHead:
    """Read the first lines of a CSV file.

    Lines that begin with # are comments. If the first row holds a number and not all wanted names, there is
    no header, and the columns are the wanted ones in order.

    Raises:
        DataError: the file is empty.
    """
    with pa.input_stream(path) as stream:
        begin = stream.read(1 << 16)
    at = 3 if begin.startswith(b"\xef\xbb\xbf") else 0
    while begin[at : at + 1] == b"#":  # comments at the top of an edge list
        at = begin.find(b"\n", at) + 1 or len(begin)
    line = begin[at:].splitlines(keepends=True)[:1]
    if not line or not line[0].strip():
        raise DataError(f"{what}: {path} is empty", f"write one line per row: {','.join(columns)}")
    text = line[0].decode("utf-8", "replace").strip("\r\n")
    delimiter = next((mark for mark in ("\t", ",", ";", " ") if mark in text), ",")
    # Any number of blanks separates two columns. With other delimiters each one counts.
    fields = [field.strip().strip('"') for field in text.split(None if delimiter == " " else delimiter)]
    if any(_is_number(field) for field in fields) and not set(columns) <= set(fields):
        more = (f"column_{n}" for n in range(len(columns), len(fields)))
        return CsvHead(tuple([*columns, *more][: len(fields)]), delimiter, at)
    return CsvHead(tuple(fields), delimiter, at + len(line[0]))


def split_ranges(path: str, first: int) -> Iterator[Piece]:
    """Yield the pieces of a CSV file whose rows begin at byte `first`. A compressed file is one piece."""
    size = Path(path).stat().st_size
    if path.endswith(COMPRESSED_ENDINGS):
        yield Piece(path, -1, -1, size, first)
        return
    for at in range(first, max(size, first + 1), BYTES_A_CSV_PIECE):
        number = -1 if at == first else -2  # later ranges may begin within a line
        yield Piece(path, number, -1, min(BYTES_A_CSV_PIECE, max(size - at, 0)), at)


def detect_id_kind(sample: pa.Table | None, name: str, requested: str, what: str) -> str:
    """Return the kind of ids in a column of texts: `whole` numbers, `floats` that are whole, or `text`."""
    if requested == "text" or sample is None:
        return "whole" if requested == "numeric" else "text"
    values = drop_empty(sample.column(name)).drop_null()
    if not len(values):
        return "whole" if requested == "numeric" else "text"
    if _match_all(values, CANONICAL_INTEGER):
        return "whole"
    if _match_all(values, WHOLE_FLOAT):
        known = pc.not_equal(pc.utf8_lower(values), "nan")
        return "floats" if pc.any(known).as_py() else "text"
    bare = pc.utf8_trim_whitespace(values)
    if requested == "auto" and _match_all(bare, CANONICAL_INTEGER):
        example = values.filter(pc.not_equal(bare, values))[0].as_py()
        raise DataError(
            f"{what}: column {name} has white space around its ids, e.g. {example!r}",
            "remove it, or take ids as they are written: ids: text (--ids text)",
        )
    return "whole" if requested == "numeric" else "text"


def _match_all(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv_tables(
    piece: Piece, columns: Sequence[str], header: Sequence[str], delimiter: str, most: int | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a piece. All fields are texts; an empty one is NULL.

    Args:
        piece: range of bytes.
        columns: columns to read.
        header: names of all columns of the file.
        delimiter: delimiter of the file.
        most: largest number of bytes to read.
    """
    wrong: list[pacsv.InvalidRow] = []
    read = pacsv.ReadOptions(use_threads=False, block_size=1 << 30, column_names=list(header))

    def refuse(row: pacsv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    parse = pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=refuse)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        include_columns=list(columns),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    for lines in _read_lines(piece, most):
        _require_whole_lines(lines, piece.path)
        even = _collapse_blanks(lines) if delimiter == " " else lines
        try:
            yield pacsv.read_csv(pa.BufferReader(even), read, parse, convert)
        except (OSError, pa.ArrowException) as error:
            raise _csv_error(piece.path, wrong, error) from None


def _collapse_blanks(lines: pa.Buffer) -> pa.Buffer:
    """Return lines with one blank between columns and none at the ends.

    A line with quotes is not changed, because the blanks within quotes belong to the value.
    """
    text = lines.to_pybytes()
    if not BLANKS.search(text):
        return lines
    collapsed = (line if b'"' in line else b" ".join(line.split()) for line in text.split(b"\n"))
    return pa.py_buffer(b"\n".join(collapsed))


BLANKS = re.compile(rb"  |^ | \r?$", re.MULTILINE)


def _csv_error(path: str, wrong: list[pacsv.InvalidRow], error: Exception) -> DataError:
    if not wrong:
        return DataError(f"{path}: {str(error).strip()}", "save it as CSV in UTF-8")
    row = wrong[0]
    return DataError(
        f"{path}: a line has {row.actual_columns} fields, the first has {row.expected_columns}: "
        f"{row.text.strip()[:80]!r}",
        "write the same number of fields in every line",
    )


def _read_lines(piece: Piece, most: int | None) -> Iterator[pa.Buffer]:
    """Yield whole lines: those that begin in a range of bytes, or all lines of a compressed file."""
    if piece.path.endswith(COMPRESSED_ENDINGS):
        yield from _decompress_lines(piece, most or BYTES_A_CSV_PIECE, once=most is not None)
        return
    with pa.memory_map(piece.path) as file:
        size = file.size()
        begin = piece.first if piece.number == -1 else _find_line_start(file, piece.first, size)
        end = min(piece.first + piece.size, begin + (most or size))
        end = _find_line_start(file, end, size) if end < size else size
        if end > begin:
            file.seek(begin)
            yield file.read_buffer(end - begin)


def _find_line_start(file: pa.NativeFile, at: int, size: int) -> int:
    """Return the first byte at or after `at` where a line begins."""
    file.seek(at - 1)
    while at <= size:
        chunk = file.read(1 << 16)
        if not chunk:
            break
        place = chunk.find(b"\n")
        if place >= 0:
            return int(at + place)
        at += len(chunk)
    return size


def _decompress_lines(piece: Piece, most: int, once: bool) -> Iterator[pa.Buffer]:
    """Yield whole lines of a compressed file, about `most` bytes at a time, or once."""
    rest = b""
    with pa.input_stream(piece.path) as stream:
        stream.read(piece.first)
        while chunk := stream.read(most):
            whole, mark, after = (rest + chunk).rpartition(b"\n")
            rest = after if mark else whole + after
            if mark:
                yield pa.py_buffer(whole + mark)
                if once:
                    return
    if rest:
        yield pa.py_buffer(rest)


def _require_whole_lines(lines: pa.Buffer, path: str) -> None:
    """Refuse a quoted value that contains a line end, because ranges are cut at line ends.

    Without such values each line has an even number of quotes, and no line begins within quotes.
    """
    byte_n = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(byte_n == ord('"'))
    if not len(quotes):
        return
    ends = np.append(np.flatnonzero(byte_n == ord("\n")), len(byte_n))
    line_q = np.searchsorted(ends, quotes)
    odd = np.flatnonzero(np.bincount(line_q) % 2)
    if len(odd):
        line = int(odd[0])
        begin = int(ends[line - 1]) + 1 if line else 0
        text = str(lines[begin : int(ends[line])].to_pybytes()[:80], "utf-8", "replace")
        raise DataError(
            f"{path}: a value in quotes goes over the end of a line: {text!r}",
            "ids hold no line ends; write a quote within quotes twice, or write Parquet",
        )
