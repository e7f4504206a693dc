"""Choice of an engine for tables by path.

`auto` chooses this process where all paths are readable files or folders on this machine with at most
MOST_ROWS rows together, and embeddings have at most MOST_PAIRS pairs of users and items. The warehouse must
be a folder or an object-storage URI where `deltalake` can append to the tables. Spark evaluates everything
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from recbench_spark.engine.choices import EngineChoice, require_spark
from recbench_spark.errors import FallbackToSpark
from recbench_spark.schemas import Table
from recbench_spark.sources import arrow_files
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.table_pieces import detect_kind
from recbench_spark.storage.arrow_store import ArrowStore, needs_no_java

MOST_ROWS = 2_000_000
"""Most rows, over all tables, evaluated in this process by `auto` (docs/explain/engines.md has the cost).
"""

MOST_PAIRS = 50_000_000
"""Most pairs of users and items scored in this process by `auto`, each in float64."""


def choose_engine(
    requested: str,
    paths: Sequence[str],
    embeddings: Sequence[str] = (),
    warehouse: tuple[str, Iterable[Table]] | None = None,
    *,
    truth: str | None = None,
) -> EngineChoice:
    """Choose the engine for tables by path.

    Args:
        requested: auto, local or spark.
        paths: all tables' paths.
        embeddings: the paths of user and item embeddings among them; empty without embeddings.
        truth: the truth's path among them; user vectors outside it are not scored.
        warehouse: root, and the tables to append to; None: nothing is written.

    Raises:
        ConfigError: `local` is requested and only Spark can evaluate the tables; a path does not exist.
    """
    if requested == "spark":
        return EngineChoice("spark", "as requested")
    try:
        _check_reach(paths, warehouse)
        if requested == "local":
            return EngineChoice("local", "as requested")
        return _choose_by_size(paths, embeddings, truth)
    except FallbackToSpark as error:
        return require_spark(requested, error)


def _check_reach(paths: Sequence[str], warehouse: tuple[str, Iterable[Table]] | None) -> None:
    if warehouse is not None:
        root, tables = warehouse
        if not needs_no_java(root):
            raise FallbackToSpark(f"warehouse {root} is no folder and no object storage")
        ArrowStore(root, read_only=True).check_appendable(tables)
    for path in paths:
        detect_kind(path)


def _choose_by_size(
    paths: Sequence[str], embeddings: Sequence[str], truth: str | None = None
) -> EngineChoice:
    large = sum(map(arrow_files.count_large_text, paths))
    if large:
        return EngineChoice("spark", f"{large:,} bytes of text, which one process would hold several times")
    rows = {path: arrow_files.estimate_rows(path) for path in paths}
    total = sum(rows.values())
    if total > MOST_ROWS:
        return EngineChoice("spark", f"{total:,} rows, up to {MOST_ROWS:,} are evaluated without it")
    most_users = MOST_PAIRS // max(rows[embeddings[-1]], 1) if embeddings else 0
    if embeddings and _count_scored(rows, embeddings[0], truth, most_users) > most_users:
        return EngineChoice("spark", f"more than {MOST_PAIRS:,} pairs of users and items to score")
    return EngineChoice("local", f"{total:,} rows of this machine (up to {MOST_ROWS:,}), without Spark")


def _count_scored(rows: Mapping[str, int], users: str, truth: str | None, enough: int) -> int:
    """Return the most users to score: with vector and truth.

    The truth is read only where its number of rows does not decide. If the user column has another name,
    the number of rows counts.
    """
    scored = min(rows[users], rows.get(truth or users, rows[users]))
    if truth is None or truth not in rows or scored <= enough:
        return scored
    table = ColumnNames().rename(arrow_files.open_path(truth).table, "truth")
    known = "user_id" in table.column_names
    return min(scored, pc.count_distinct(table.column("user_id")).as_py()) if known else scored
