"""Run many nights of one benchmark file in one session (`jobs/nightly.py --dates`, `--split-seeds`).

The earliest night comes first.

A night that fails does not stop the others. Each night reports its stages and ends with one line. The exit
code of the job is the smallest one that is not 0. Nights that have succeeded are skipped without Spark.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from datetime import date

from recbench_spark.cli import read_error
from recbench_spark.commands.actions.nightly import (
    NightRunner,
    print_findings,
    print_results,
)
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.extras import explain
from recbench_spark.errors import FAILED, OK, RecbenchError, is_cancelled
from recbench_spark.night.night_states import record_state
from recbench_spark.night.night_status import NightOutcome, find_finished_night
from recbench_spark.runtime.failures import describe_with_trace
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.uris import link_place

ALREADY_DONE = "already done, nothing to do"


def run(args: argparse.Namespace) -> int:
    """Run all nights of `--dates` and `--split-seeds`, and return the exit code of the job."""
    files = load_splits(args)
    # Settings of every night are known to be right before the first one begins.
    days = args.dates or [args.logical_date]
    nights = [(day, fill_placeholders(file, day)) for day in days for file in files]
    backfill = Backfill(args, len(nights))
    code = worst_code([backfill.run_night(day, benchmark) for day, benchmark in nights])
    if backfill.last is not None:
        print_results(backfill.last)
    return code


def load_splits(args: argparse.Namespace) -> list[Benchmark]:
    """Return the file once for each seed of `--split-seeds`, as a suite of its own; else as it is."""
    file = load_benchmark(args.config, args.set)
    return [
        load_benchmark(args.config, [*args.set, f"name={file.name}-seed{seed}", f"split.seed={seed}"])
        for seed in args.split_seeds
    ] or [file]


def worst_code(codes: Iterable[int]) -> int:
    """Return the smallest code that is not 0: a failure counts before gates and regressions."""
    return min((code for code in codes if code != OK), default=OK)


class Backfill:
    """A sequence of nights that share one journal and one session.

    Attributes:
        last: outcome of the last night that was run, or that was already done.
    """

    def __init__(self, args: argparse.Namespace, total: int) -> None:
        """Make one journal for all nights. It gets each stage, and a line when a night begins and ends."""
        self.args, self.total, self.journal = args, total, Journal()
        self.last: NightOutcome | None = None
        self.runner = NightRunner(args, self.journal)
        self.n = 0
        if args.log and not args.dry_run:
            self.journal.write_to(args.log)

    def run_night(self, day: date, benchmark: Benchmark) -> int:
        """Run one night, report it in one line and return its exit code. An error ends this night alone."""
        self.n += 1
        self.journal.count("night", self.n, self.total)
        started = time.monotonic()
        try:
            outcome, summary = (self._check_night if self.args.dry_run else self._run)(day, benchmark)
            code = outcome.exit_code if outcome else OK
        except Exception as raised:
            if is_cancelled(raised):
                raise
            error = explain(raised)
            outcome, summary = None, describe_with_trace(error)
            code = error.exit_code if isinstance(error, RecbenchError) else FAILED
        ended = f"exit code {code}, " if code else ""
        seconds = f"{time.monotonic() - started:.1f} s"
        self.journal.say(f"{self._describe(day, benchmark)} ({ended}{seconds}): {summary}")
        if outcome is not None:
            self.last = outcome
            self._say_results(outcome)
            print_findings(outcome)
        return code

    def _say_results(self, outcome: NightOutcome) -> None:
        """Say what one night alone prints: its conclusions and its report."""
        for line in list_conclusions(outcome.leaderboard):
            self.journal.say(f"  {line}")
        if outcome.report_path:
            self.journal.say(f"  report: {link_place(outcome.report_path)}")

    def _describe(self, day: date, benchmark: Benchmark) -> str:
        split = f" of {benchmark.name}" if self.args.split_seeds else ""
        return f"night {day}{split}, {self.n} of {self.total}"

    def _check_night(self, day: date, benchmark: Benchmark) -> tuple[NightOutcome | None, str]:
        """Check a night without running it."""
        from recbench_spark.commands.dry_runs import dry_run  # noqa: PLC0415

        done = self._done(day, benchmark)
        dry_run(self.args.warehouse, benchmark, day, done)
        return None, ALREADY_DONE if done else "to do"

    def _run(self, day: date, benchmark: Benchmark) -> tuple[NightOutcome | None, str]:
        """Run a night unless it is already done."""
        done = self._done(day, benchmark)
        if done is not None:
            return done, ALREADY_DONE
        with record_state(self.args.warehouse, benchmark.name, day, read_error):
            self.journal.say(f"{self._describe(day, benchmark)}: begins")
            outcome = self.runner.run(benchmark, day)
        return outcome, summarise_night(outcome)

    def _done(self, day: date, benchmark: Benchmark) -> NightOutcome | None:
        return None if self.args.force else find_finished_night(self.args.warehouse, benchmark, day)


def list_conclusions(leaderboard: str) -> list[str]:
    """Return the sentences and findings below the tables of a leaderboard.

    >>> list_conclusions("demo\\n\\ntest: ndcg@10\\n 1 a 0.5\\n\\na leads with 0.5.\\n\\nwarning: x: 1")
    ['a leads with 0.5.', 'warning: x: 1']
    """
    blocks = leaderboard.split("\n\n")
    return [
        line
        for block in blocks
        for line in block.splitlines()
        if line.endswith(".") or line.startswith(("error: ", "warning: "))
    ]


def summarise_night(outcome: NightOutcome) -> str:
    """Return the counts of what a night did, in words."""
    counts = {
        "evaluated": len(outcome.run_ids),
        "done before": len(outcome.skipped),
        "failed": len(outcome.failed),
        "fell": len(outcome.regressions),
    }
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n)
