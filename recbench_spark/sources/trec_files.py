"""Recognise runs and judgements of TREC.

They are text without a header, with blanks or tabs between fields.
"""

from __future__ import annotations

from pathlib import Path

from recbench_spark.storage.local_files import head_lines, read_head, trec_kind

FIELDS = {
    "run": ("user_id", None, "item_id", None, "score", None),
    "qrels": ("user_id", None, "item_id", "relevance"),
}
"""Our names for each format's fields; None: a field not read. Scores order a run, as in trec_eval."""


def find_format(path: str) -> str | None:
    """Return `run` or `qrels` for a local file, else None."""
    if not Path(path).is_file():
        return None
    return trec_kind(head_lines(read_head(path)))
