"""Evaluate mutated tables as files by `recbench evaluate --engine local`: no JVM, and the same answers."""

from __future__ import annotations

from tests.faults.campaign import Case, Verdict
from tests.faults.spark import run_case


def run(case: Case) -> Verdict:
    return run_case(case, ["--engine", "local"], unread=())
