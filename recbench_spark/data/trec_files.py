"""Runs and judgements of TREC: text without a header, with blanks or tabs between the fields."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

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


def read_trec(path: str, kind: str) -> pa.Table:
    """Read a run (user_id, item_id, score) or judgements (user_id, item_id, relevance).

    Raises:
        DataError: a line with another number of fields, or a value that is no number.
    """
    names = FIELDS[kind]
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    fields_l = [line.split() for line in lines if line.strip()]
    bad = [" ".join(fields) for fields in fields_l if len(fields) != len(names)]
    if bad:
        message = f"{path}: {len(bad)} lines without {len(names)} fields, e.g. {bad[0][:120]!r}"
        raise DataError(message, "correct or remove these lines")
    columns = {
        name: _convert(path, name, [row[n] for row in fields_l]) for n, name in enumerate(names) if name
    }
    return pa.table(columns)


def _convert(path: str, name: str, texts: Sequence[str]) -> pa.Array:
    column = pa.array(texts, pa.string())
    try:
        return pc.cast(column, TYPES[name]) if name in TYPES else column
    except pa.ArrowException as error:
        raise DataError(f"{path}: {name}: {error}", "give numbers") from None
