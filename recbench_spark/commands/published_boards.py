"""Judge a published table of results: the part of `jobs/board.py` that needs no warehouse and no Spark."""

from __future__ import annotations

from recbench_spark import reports
from recbench_spark.boards.entries import judge_entries, make_published_entries
from recbench_spark.boards.published import load_published_board
from recbench_spark.errors import OK, ConfigError


def print_published_board(name: str, *, paired: bool) -> int:
    """Print a published board with its verdicts.

    Raises:
        ConfigError: no such board, or `paired`.
    """
    if paired:
        raise ConfigError("--paired needs --config: a published table has no values of folds", "see --help")
    entries = make_published_entries(load_published_board(name))
    entries.sort(key=lambda one: (one.part or "", one.value if one.lower_is_better else -one.value))
    facts = reports.make_board(name, entries, judge_entries(entries, {}, {}), {}, {})
    print(reports.board_text(facts))
    return OK
