"""Runs and judgements of TREC: text without a header, with blanks or tabs between the fields."""

from __future__ import annotations

from pathlib import Path

from recbench_spark.storage.local_files import head_lines, read_head, trec_kind

FIELDS = {
    "run": ("user_id", None, "item_id", None, "score", None),
    "qrels": ("user_id", None, "item_id", "relevance"),
}
"""Our names of the fields of each format; None: a field that is not read. Scores order a run,
as in trec_eval."""


def find_format(path: str) -> str | None:
    """Return `run` or `qrels` for a file of this machine in one of these formats, else None."""
    if not Path(path).is_file():
        return None
    return trec_kind(head_lines(read_head(path)))
