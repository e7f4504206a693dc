"""Commands that jobs print, for a person to paste."""

from __future__ import annotations

import shlex
import sys


def query_command(root: str, sql: str) -> str:
    """Return the command that asks a warehouse, in any folder in which this package can be imported.

    Args:
        root: the warehouse.
        sql: a statement, or the name of a view, table or question.
    """
    return command_line("query", "--warehouse", root, sql)


def command_line(name: str, *words: str) -> str:
    """Return the command that starts a job with these words."""
    return shlex.join([sys.executable, "-m", "recbench_spark", name, *words])
