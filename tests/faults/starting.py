"""Jobs as they are started: in a process of their own, or in the campaign's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes import Process, started
from tests.faults.campaign import ROOT
from tests.faults.in_process import job as job_here

PATIENCE = 1200
"""Seconds: a shared machine may stop a campaign for minutes."""


@contextmanager
def begun(
    name: str, argv: list[str], inputs: Path, log: str = "job", conf: str = "spark.conf", **more: str
) -> Iterator[Process]:
    """A job in a session of processes of its own; `more`: of its environment."""
    command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *argv]
    env = {"RECBENCH_SPARK_PROPERTIES": str(inputs / conf), "PYTHONPATH": str(ROOT)}
    env |= {"PYSPARK_PYTHON": sys.executable, **more}
    with started(command, inputs / f"{log}.log", inputs, **env) as process:
        yield process


def finished(name: str, argv: list[str]) -> None:
    """A job that is let through, in this process: what is killed needs one of its own, this does not."""
    code, said = job_here(name, argv)
    if code:
        raise RuntimeError(f"{name} ended with {code}: {said[-1500:]}")


def bad_end(code: int, said: str) -> str | None:
    """A job's end is a sentence with a hint, whatever broke under it."""
    last = "\n".join(line for line in said.splitlines() if line.strip())[-800:]
    if code not in (0, 1, 2, 3, 4):
        return f"exit code {code}: {last!r}"
    if "internal error" in said or 'File "' in last or "\tat " in last:
        return f"a trace, exit code {code}: {last!r}"
    if code and ("error: " not in last or "hint: " not in last):
        return f"exit code {code} without a sentence: {last!r}"
    return None
