"""The table of the matrix as Markdown, and its page of the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recbench_spark.engine.platforms import DELTA_JARS
from tools.platforms.cell import JOBS
from tools.platforms.environments import CELLS

START, END = "<!-- written by make platforms -->", "<!-- end -->"

Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def write_table(cells: Sequence[str], rows: Rows) -> str:
    """Return a row for each cell, and below it each sentence that ended a job."""
    lines = [f"| cell | versions | {' | '.join(JOBS)} |", "|---" * (len(JOBS) + 2) + "|"]
    sentences: list[str] = []
    for cell in cells:
        words = [shorten(rows.get((cell, job), {}), sentences) for job in JOBS]
        lines.append(f"| {cell} | {describe_versions(cell, rows)} | {' | '.join(words)} |")
    return "\n".join([*lines, "", *(f"{n}. {text}" for n, text in enumerate(sentences, 1))]).rstrip()


def shorten(row: Mapping[str, Any], sentences: list[str]) -> str:
    """Return a verdict's first words; a sentence goes to the list and is named by its number."""
    verdict = str(row.get("verdict", "not run"))
    word, _, sentence = verdict.partition(": ")
    if not sentence or word in ("same", "differs"):
        return verdict
    if sentence not in sentences:
        sentences.append(sentence)
    return f"{word} ({sentences.index(sentence) + 1})"


def describe_versions(cell: str, rows: Rows) -> str:
    """Return the versions of a cell's environment, and the Delta of its server."""
    notes = [rows[cell, job].get("versions") for job in JOBS if (cell, job) in rows]
    versions = dict(next(filter(None, notes), {}))
    if server := CELLS[cell].server:
        versions["server's Delta"] = DELTA_JARS[server].rpartition(":")[2]
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def write_page(page: Path, table: str, commit: str) -> None:
    """Put the table, with date and commit, between the page's two marks."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    stamp = f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}:"
    page.write_text(f"{before}{START}\n{stamp}\n\n{table}\n{END}{after}", encoding="utf-8")
