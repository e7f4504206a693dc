"""Mutated tables as files through `jobs/evaluate.py --engine local`: no JVM, and the same answers."""

from __future__ import annotations

from tests.faults.campaign import Case, Verdict
from tests.faults.spark import through_the_job


def run(case: Case) -> Verdict:
    return through_the_job(case, ["--engine", "local"], unread=())
