"""Record decisions on board rows.

A row is held back, accepted or retracted. The newest decision counts; none is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from recbench_spark.config import Benchmark, digest
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.schemas import BOARD_DECISIONS, BOARDS
from recbench_spark.storage.file_tables import FileTables, RowReader

Decision = dict[str, Any]
"""A row of `board_decisions`."""

HELD, ACCEPTED, RETRACTED = "held", "accepted", "retracted"
PROGRAM = "recbench-spark"
"""Value of `who` for a decision by the plausibility check."""


def read_latest_decisions(read: RowReader, board: str) -> dict[str, Decision]:
    """Read the newest decision on each row, by entry id.

    The driver holds all of them.
    """
    decisions: dict[str, Decision] = {}
    rows = read(BOARD_DECISIONS, [("board", "=", board)])
    for row in sorted(rows, key=lambda row: (row["decided_at"], row["decision_id"])):
        decisions[row["entry_id"]] = row
    return decisions


def is_counted(entry_id: str, decisions: Mapping[str, Decision]) -> bool:
    """Tell whether a row counts: neither held back nor retracted."""
    return entry_id not in decisions or decisions[entry_id]["decision"] == ACCEPTED


def record_decision(
    store: FileTables, entry_id: str, board: str, decision: str, reason: str, *, who: str
) -> None:
    """Append a decision on a board row."""
    store.append([_decision_row(entry_id, board, decision, reason, who)], BOARD_DECISIONS)


def hold_back(store: FileTables, entry_id: str, board: str, reason: str) -> None:
    """Hold back a row nobody has decided on.

    Two jobs that do so at once write one decision.
    """
    row = _decision_row(entry_id, board, HELD, reason, PROGRAM)
    store.append_missing([row], BOARD_DECISIONS, ("entry_id", "decision", "who"))


def _decision_row(entry_id: str, board: str, decision: str, reason: str, who: str) -> Decision:
    now = datetime.now(UTC)
    row = (digest(entry_id, decision, now), entry_id, board, decision, reason, who, now)
    return dict(zip(BOARD_DECISIONS.names, row, strict=True))


def decide_on_entry(store: FileTables, entry_id: str, decision: str, reason: str, who: str) -> str:
    """Accept or retract a row on any board.

    Returns its name and board in words.

    Raises:
        ConfigError: no board has such a row.
    """
    rows = {row["entry_id"]: row for row in store.rows(BOARDS, [], ["entry_id", "board", "name"])}
    row = rows.get(entry_id)
    if row is None:
        raise ConfigError(f"--entry {entry_id}: no board has such a row", nearest(entry_id, rows))
    record_decision(store, entry_id, row["board"], decision, reason, who=who)
    return f"{row['name']} on board {row['board']}"


def keep_headline(benchmark: Benchmark, rows: Iterable[Decision]) -> list[Decision]:
    """Keep the rows with the headline over all users.

    The rows are of `metrics`, or of a view on it.
    """
    metric, k = parse_headline(benchmark)
    wanted = (metric, k, None, "holdout")
    return [row for row in rows if (row["metric"], row["k"], row["slice_key"], row["estimator"]) == wanted]
