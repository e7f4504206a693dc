"""Lines of JSON that are no objects with plain ids: what they are, and where. It needs no Spark."""

from __future__ import annotations

import ast
import json
import shutil
import tempfile
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from recbench_spark.data.text_lines import open_bytes
from recbench_spark.errors import DataError

FIRST_LINES = 100
"""Lines that are looked at before a file is read."""

LONGEST_LINE = 1 << 24
"""Bytes of a line that is looked at; a longer one is a file without ends of lines."""

CONVERT = (
    'python -c "import ast, json, sys; [print(json.dumps(ast.literal_eval(x))) for x in sys.stdin]" '
    "< FILE > objects.json"
)


class BadLine(NamedTuple):
    """BadLine says which line of a file is no object with plain ids, what it is, and what to do."""

    number: int
    what: str
    hint: str

    def make_error(self, path: str) -> DataError:
        """Return the error that names the line."""
        return DataError(f"{path}: line {self.number:,} is {self.what}", self.hint)


def check_first_lines(path: str, plain: Collection[str] = (), *, most: int = FIRST_LINES) -> None:
    """Refuse a file of this machine whose first lines are no objects of JSON in a line each.

    Args:
        path: the file.
        plain: keys whose values are text or numbers.
        most: number of lines that are looked at.

    Raises:
        DataError: a line is something else; the message says what, and its number.
    """
    bad = find_bad_line(path, plain, most)
    if bad is not None:
        raise bad.make_error(path)


def find_bad_line(path: str, plain: Collection[str] = (), most: int | None = None) -> BadLine | None:
    """Return the first line that is no object, or whose value of a plain key is none; None without one.

    Of a file that cannot be unpacked nothing is description here: its reader says so.
    """
    try:
        for number, line in islice(_read_lines(path), most):
            description = describe_line(line, plain)
            if description is not None:
                return BadLine(number, *description)
    except (OSError, EOFError):
        return None
    return None


def has_objects(path: str) -> bool:
    """Tell whether one of the first lines is an object of JSON."""
    return any(describe_line(line) is None for _, line in islice(_read_lines(path), FIRST_LINES))


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that is not blank, without a mark of the byte order."""
    if not Path(path).is_file():
        return
    with open_bytes(path) as stream:
        number = 0
        while raw := stream.readline(LONGEST_LINE):
            number += 1
            line = raw.decode("utf-8", errors="replace").removeprefix("\ufeff").strip()
            if line:
                yield number, line


@contextmanager
def open_unmarked(path: str) -> Iterator[str]:
    """Yield the path of a file, or of a copy without the mark of the byte order: DuckDB reads none."""
    with open_bytes(path) as stream:
        marked = stream.read(len(BOM_UTF8)) == BOM_UTF8
        if not marked:
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "objects.json")
            with copy.open("wb") as out:
                shutil.copyfileobj(stream, out)
            yield str(copy)


def describe_line(line: str, plain: Collection[str] = ()) -> tuple[str, str] | None:
    """Return what a line is, and what to do, where it is no object with plain values; else None.

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
    """Return what a value is that should be text or a number."""
    kind = "an object" if isinstance(value, dict) else "an array"
    what = f"an object whose '{name}' is {kind}, and no text or number: {json.dumps(value)[:60]}"
    if isinstance(value, dict) and any(key.startswith("$") for key in value):
        key = next(key for key in value if key.startswith("$"))
        return what, f"""of MongoDB: write its text or number: jq -c '."{name}" |= .["{key}"]' FILE"""
    return what, "write the text or number that names it, in a key of its own"


def _describe_text(line: str, shown: str) -> tuple[str, str]:
    """Return what a line is that is not JSON."""
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
