"""Commands printed by jobs, for a person to paste."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def query_command(root: str, sql: str) -> str:
    """Return the command for a query, as people type it.

    Args:
        root: the warehouse.
        sql: a statement, or the name of a view, table or question.
    """
    return command_line("query", sql, "--warehouse", root)


def command_line(name: str, *words: str) -> str:
    """Return the command for a job, as people type it."""
    return shorten_command(command_anywhere(name, *words))


def command_anywhere(name: str, *words: str) -> str:
    """Return the command for a job from anywhere.

    The command works in any folder and with any PATH.
    """
    script = _find_script()
    start = [str(script)] if script.exists() else [sys.executable, "-m", "recbench_spark"]
    return shlex.join([*start, name, *words])


def shorten_command(command: str) -> str:
    """Return a command as people type it here.

    The command begins with `recbench` if PATH has it, else with a path from this folder.
    """
    script = _find_script()
    if shutil.which("recbench") == str(script):
        return command.replace(shlex.quote(str(script)), "recbench", 1)
    return command.removeprefix(f"{Path.cwd()}/")


def _find_script() -> Path:
    """Return this Python's path of `recbench`, installed or not."""
    return Path(sys.executable).with_name("recbench")
