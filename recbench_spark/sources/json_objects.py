"""Read JSON lines, and explain those which are no objects.

No Spark is needed. An object has plain ids: text or numbers.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

import pyarrow as pa

from recbench_spark.errors import DataError
from recbench_spark.sources.text_lines import split_lines
from recbench_spark.sources.text_pieces import BAD_LINE, MARK, LinePiece, TextLayout, read_texts
from recbench_spark.storage.local_files import bare_name, open_stream

FIRST_LINES = 100
"""Lines to look at before a file is read."""

LONGEST_LINE = 1 << 24
"""Bytes to look at in a line; a longer one is a file without line ends."""

CONVERT = (
    'python -c "import ast, json, sys; [print(json.dumps(ast.literal_eval(x))) for x in sys.stdin]" '
    "< FILE > objects.json"
)


class BadLine(NamedTuple):
    """A bad line of JSON, with a description and advice."""

    number: int
    what: str
    hint: str

    def make_error(self, path: str) -> DataError:
        """Return the error that names the line."""
        return DataError(f"{path}: line {self.number:,} is {self.what}", self.hint)


def check_first_lines(path: str, plain: Collection[str] = (), *, most: int = FIRST_LINES) -> None:
    """Refuse a file whose first lines are no JSON objects.

    Each object stands in a line. The file is on this machine.

    Args:
        path: the file.
        plain: keys whose values are text or numbers.
        most: number of lines to look at.

    Raises:
        DataError: a line is something else; the message says what, and its number.
    """
    bad = find_bad_line(path, plain, most)
    if bad is not None:
        raise bad.make_error(path)


def find_bad_line(path: str, plain: Collection[str] = (), most: int | None = None) -> BadLine | None:
    """Return the first bad line, or None.

    A bad line is no object, or its value for a plain key is no text or number. A file which cannot be
    unpacked is not described here: its reader reports it.
    """
    try:
        for number, line in islice(_read_lines(path), most):
            description = describe_line(line, plain)
            if description is not None:
                return BadLine(number, *description)
    except (OSError, EOFError):
        return None
    return None


MOST_HEADS = 100
"""Files in a folder whose first lines are looked at."""


def check_head(place: str, plain: Sequence[str], *, strict: bool) -> None:
    """Refuse a file whose first lines are no objects.

    If bad lines are set aside, it is refused only if it has no object, or if it is an array: Spark would
    read its elements as rows.

    Raises:
        DataError: the file is refused.
    """
    if strict:
        check_first_lines(place, plain)
        return
    bad = find_bad_line(place, (), most=1)
    if bad is not None:
        first = islice(_read_lines(place), FIRST_LINES)
        if " array " in bad.what or all(describe_line(line) is not None for _, line in first):
            raise bad.make_error(place)


def find_bad_object(files: Iterable[str], names: Collection[str]) -> str:
    """Say where the first bad line stands, and why.

    A bad line is no object with plain values.
    """
    for file in files:
        bad = find_bad_line(file, names)
        if bad is not None:
            return f"; line {bad.number:,} of {bare_name(file)} is {bad.what}; {bad.hint}"
    return ""


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of lines which are not blank.

    A byte order mark is left out.
    """
    with open_stream(path) as raw_stream:
        stream = io.BufferedReader(cast("io.RawIOBase", raw_stream))
        number = 0
        while raw := stream.readline(LONGEST_LINE):
            number += 1
            line = raw.decode("utf-8", errors="replace").removeprefix("\ufeff").strip()
            if line:
                yield number, line


def describe_line(line: str, plain: Collection[str] = ()) -> tuple[str, str] | None:
    """Say what a bad line is, and what to do.

    The result is None for an object with plain values.

    >>> describe_line('{"user": 1}', ["user"]) is None
    True
    >>> describe_line("{'user': 1}")[0]
    "a literal of Python: {'user': 1}"
    """
    shown = line[:60]
    try:
        value = json.loads(line)
    except ValueError:
        return _describe_text(line, shown)
    if isinstance(value, list):
        return f"an array of JSON: {shown}", "write an object in each line: jq -c '.[]' FILE"
    if not isinstance(value, dict):
        return f"a value of JSON, and no object: {shown}", "write an object in each line"
    nested = [name for name in plain if isinstance(value.get(name), dict | list)]
    return _describe_value(nested[0], value[nested[0]]) if nested else None


def _describe_value(name: str, value: dict[str, object] | list[object]) -> tuple[str, str]:
    """Describe a value which should be text or a number."""
    kind = "an object" if isinstance(value, dict) else "an array"
    what = f"an object whose '{name}' is {kind}, and no text or number: {json.dumps(value)[:60]}"
    if isinstance(value, dict) and any(key.startswith("$") for key in value):
        key = next(key for key in value if key.startswith("$"))
        return what, f"""of MongoDB: write its text or number: jq -c '."{name}" |= .["{key}"]' FILE"""
    return what, "write the text or number that names it, in a key of its own"


def _describe_text(line: str, shown: str) -> tuple[str, str]:
    """Describe a line which is not JSON."""
    try:
        if isinstance(ast.literal_eval(line), dict | list):
            return f"a literal of Python: {shown}", f"write JSON, in double quotes: {CONVERT}"
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    if line.startswith("["):
        return f"the beginning of an array over several lines: {shown}", "jq -c '.[]' FILE > objects.json"
    if line.startswith("{") and not line.endswith("}"):
        return f"an object that does not end in its line: {shown}", "jq -c . FILE > objects.json"
    return f"no JSON: {shown}", "write an object of JSON in each line"


# ------------------------------------------------------------------------------------ rows of a log


@dataclass(frozen=True)
class Objects(TextLayout):
    """Layout with an object per line; values stay as written.

    Attributes:
        names: the keys to read.
        plain: keys whose values are text or numbers; a line with another one is bad.
        encoding: the encoding.
    """

    names: tuple[str, ...]
    plain: tuple[str, ...]
    encoding: str = "utf-8"
    line: str = "an object of JSON in a line, with text or numbers as ids"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        return self.names

    def cut(self, lines: pa.Array, piece: LinePiece, columns: Sequence[str]) -> pa.Table:
        """Cut lines into columns, with NULL for missing keys."""
        texts = lines.to_pylist()
        rows = [_read_object(text, self.plain) for text in texts]
        values = {name: [(row or {}).get(name) for row in rows] for name in self.names if name in columns}
        bad = [text if row is None else None for text, row in zip(texts, rows, strict=True)]
        return pa.table({name: _make_texts(one) for name, one in {**values, BAD_LINE: bad}.items()})


def list_keys(
    files: Iterable[str],
    wanted: Collection[str],
    encoding: str,
    read_head: Callable[[str], bytes] | None = None,
) -> tuple[str, ...]:
    """List the objects' keys, until all wanted ones were seen.

    Only text that may hold a wanted key is parsed. `read_head`: reads a file's first lines, if only Spark
    reaches the others.
    """
    known: dict[str, None] = {}
    for file in files:
        piece = LinePiece(file, 0, -1, Objects((), (), encoding))
        for raw in read_texts(piece) if read_head is None else [read_head(file)]:
            if known and not _may_hold(raw, [name for name in wanted if name not in known], encoding):
                continue
            for line in split_lines(raw.removeprefix(MARK), encoding).to_pylist():
                known |= dict.fromkeys(_read_object(line, ()) or ())
            if all(name in known for name in wanted):
                return tuple(known)
    return tuple(known)


def _may_hold(raw: bytes, keys: Sequence[str], encoding: str) -> bool:
    """Return whether objects may have one of some keys.

    A key's letters may also be written by their numbers.
    """
    marks = (f'"{key}"' if re.fullmatch(r"\w+", key) else "" for key in keys)
    return any(mark.encode(encoding, "ignore") in raw for mark in (*marks, r"\u"))


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Numbers stay as written; one for all lines, since making it costs as much as a line."""


def _read_object(line: str, plain: Collection[str]) -> dict[str, Any] | None:
    """Return a line's values, numbers as texts; None if bad."""
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
    is_object = isinstance(row, dict) and not any(isinstance(row.get(name), dict | list) for name in plain)
    return row if is_object else None


def _make_texts(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeEncodeError):  # true, objects, or halves of characters
        texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in values)
        written = (text.encode(errors="replace").decode() for text in texts)
        rows = [None if one is None else text for one, text in zip(values, written, strict=True)]
        return pa.array(rows, pa.string())
