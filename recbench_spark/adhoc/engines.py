"""Which engine evaluates tables by path: Spark, or this process where they are here and small.

`auto` takes this process where all paths are files or folders of this machine that it reads, and together
hold at most MOST_ROWS rows; of embeddings also the users times the items times the dimensions count. The
warehouse has to be a folder whose tables `deltalake` appends to. Anything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from recbench_spark.data import arrow_files
from recbench_spark.errors import ConfigError, FallbackToSpark
from recbench_spark.schemas import Table
from recbench_spark.storage.arrow_store import ArrowStore, is_local_folder

Engine = Literal["local", "spark"]

MOST_ROWS = 2_000_000
"""Rows of all tables together that `auto` evaluates here: docs/engines.md tells memory and time."""

MOST_PAIRS = 50_000_000
"""Users times items that `auto` scores in this process, pair by pair in float64."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and why."""

    engine: Engine
    why: str

    def told(self) -> str:
        """In one line."""
        return f"engine {self.engine}: {self.why}"


def choose_engine(
    asked: str,
    paths: Sequence[str],
    embeddings: Sequence[str] = (),
    warehouse: tuple[str, Iterable[Table]] | None = None,
) -> EngineChoice:
    """The engine for tables by path.

    Args:
        asked: auto, local or spark.
        paths: of all tables.
        embeddings: those of users and items among them; empty: none.
        warehouse: root, and the tables that are appended to; None: nothing is written.

    Raises:
        ConfigError: `local` is asked for, and only Spark can; a path is not there.
    """
    if asked == "spark":
        return EngineChoice("spark", "as asked for")
    try:
        _check_reach(paths, warehouse)
        if asked == "local":
            return EngineChoice("local", "as asked for")
        return _choose_by_size(paths, embeddings)
    except FallbackToSpark as error:
        return require_spark(asked, error)


def require_spark(asked: str, error: FallbackToSpark) -> EngineChoice:
    """Spark, because of what this process does not take; ConfigError where `local` is asked for."""
    if asked == "local":
        raise ConfigError(f"--engine local: {error.message}", "--engine spark takes it")
    return EngineChoice("spark", error.message)


def _check_reach(paths: Sequence[str], warehouse: tuple[str, Iterable[Table]] | None) -> None:
    if warehouse is not None:
        root, tables = warehouse
        if not is_local_folder(root):
            raise FallbackToSpark(f"warehouse {root} is no folder of this machine")
        ArrowStore(root, read_only=True).check_appendable(tables)
    for path in paths:
        arrow_files.detect_kind(path)


def _choose_by_size(paths: Sequence[str], embeddings: Sequence[str]) -> EngineChoice:
    rows = {path: arrow_files.estimate_rows(path) for path in paths}
    total = sum(rows.values())
    if total > MOST_ROWS:
        return EngineChoice("spark", f"{total:,} rows, up to {MOST_ROWS:,} are evaluated without it")
    if embeddings and rows[embeddings[0]] * rows[embeddings[-1]] > MOST_PAIRS:
        return EngineChoice("spark", f"more than {MOST_PAIRS:,} pairs of users and items to score")
    return EngineChoice("local", f"{total:,} rows of this machine (up to {MOST_ROWS:,}), without Spark")
