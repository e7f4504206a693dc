"""Runs and judgements of TREC: text without a header, with blanks or tabs between the fields."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.data.input_rules import EXACT_LIMIT, WHOLE_NUMBER
from recbench_spark.data.text_layouts import BELOW_2_53
from recbench_spark.data.text_lines import StoredTable
from recbench_spark.errors import DataError
from recbench_spark.storage.local_files import head_lines, read_head, trec_kind

FIELDS = {
    "run": ("user_id", None, "item_id", None, "score", None),
    "qrels": ("user_id", None, "item_id", "relevance"),
}
"""Our names of the fields of each format; None: a field that is not read. Scores order a run,
as in trec_eval."""

TYPES = {"score": pa.float64(), "relevance": pa.float64()}


def find_format(path: str) -> str | None:
    """Return `run` or `qrels` for a file of this machine in one of these formats, else None."""
    if not Path(path).is_file():
        return None
    return trec_kind(head_lines(read_head(path)))


def describe_line(kind: str) -> str:
    """Return the layout of a line, for messages."""
    return f"{len(FIELDS[kind])} fields separated by blanks"


def cut_trec(path: str) -> StoredTable:
    """Cut a run or judgements into columns of text: user_id, item_id, and score or relevance.

    Raises:
        DataError: the file is neither.
    """
    kind = find_format(path)
    if kind is None:
        raise DataError(f"{path}: neither a run nor judgements of TREC", "check the path")
    names = FIELDS[kind]
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [(line, line.split()) for line in lines if line.strip()]
    bad = tuple(line for line, fields in rows if len(fields) != len(names))
    good = [fields for _, fields in rows if len(fields) == len(names)]
    columns = {
        name: pa.array([row[n] for row in good], pa.string()) for n, name in enumerate(names) if name
    }
    return StoredTable(pa.table(columns), describe_line(kind), bad)


def read_trec(path: str) -> pa.Table:
    """Read a run (user_id, item_id, score) or judgements (user_id, item_id, relevance).

    Raises:
        DataError: a line with another number of fields, or a value that is no number.
    """
    stored = cut_trec(path)
    if stored.bad_lines:
        example = " ".join(stored.bad_lines[0].split())[:120]
        message = f"{path}: {len(stored.bad_lines)} lines without {stored.line}, e.g. {example!r}"
        raise DataError(message, "correct or remove these lines")
    columns = {name: _convert(path, name, stored.table.column(name)) for name in stored.table.column_names}
    return pa.table(columns)


def _convert(path: str, name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        if name not in TYPES:
            return texts
        numbers = pc.cast(texts, TYPES[name])
        inexact = pc.and_(
            pc.match_substring_regex(texts, WHOLE_NUMBER), pc.greater_equal(pc.abs(numbers), EXACT_LIMIT)
        )
        if pc.any(inexact, min_count=0).as_py():
            example = texts.filter(inexact)[0].as_py()
            raise DataError(f"{path}: {name} is not {BELOW_2_53}, e.g. '{example}'", "give smaller numbers")
        return numbers
    except pa.ArrowException as error:
        raise DataError(f"{path}: {name}: {error}", "give numbers") from None
