"""Start jobs in their own process, or in the campaign's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes import Process, start_process
from tests.faults.campaign import ROOT
from tests.faults.in_process import job as job_here

PATIENCE = 1200
"""Seconds to wait for a job; a shared machine may pause a campaign for minutes."""


@contextmanager
def start_job(
    name: str, argv: list[str], inputs: Path, log: str = "job", conf: str = "spark.conf", **more: str
) -> Iterator[Process]:
    """Start a job in its own session of processes; `more` adds to its environment."""
    command = [sys.executable, str(ROOT / "jobs" / "recbench.py"), name, *argv]
    env = {"RECBENCH_SPARK_PROPERTIES": str(inputs / conf), "PYTHONPATH": str(ROOT)}
    env |= {"PYSPARK_PYTHON": sys.executable, **more}
    with start_process(command, inputs / f"{log}.log", inputs, **env) as process:
        yield process


def run_job(name: str, argv: list[str]) -> None:
    """Run a job to its end, in this process; only jobs that are killed need their own."""
    code, output = job_here(name, argv)
    if code:
        raise RuntimeError(f"{name} ended with {code}: {output[-1500:]}")


def find_bad_end(code: int, output: str) -> str | None:
    """Check that a job's end is a sentence with a hint, after any fault."""
    last = "\n".join(line for line in output.splitlines() if line.strip())[-800:]
    if code not in (0, 1, 2, 3, 4):
        return f"exit code {code}: {last!r}"
    if "internal error" in output or 'File "' in last or "\tat " in last:
        return f"a trace, exit code {code}: {last!r}"
    if code and ("error: " not in last or "hint: " not in last):
        return f"exit code {code} without a sentence: {last!r}"
    return None
