"""Write tables and anchors of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar or a new line in a cell does not end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_escape, line))} |\n" for line in lines)


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def make_anchor(title: str) -> str:
    """Return the anchor that GitHub and the site give a heading.

    >>> make_anchor("Exit codes"), make_anchor("models: `als_wr`")
    ('exit-codes', 'models-als_wr')
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
