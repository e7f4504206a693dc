"""Run a benchmark file for one day, or for many.

    recbench nightly --config demo --warehouse warehouse/demo --logical-date 2026-01-01
    recbench nightly --config FILE --warehouse DIR --dates 2026-01-01..2026-01-31
    recbench nightly --config FILE --warehouse DIR --logical-date 2026-01-01 --split-seeds 1,2,3
    spark-submit --properties-file conf/spark/local.conf jobs/recbench.py nightly --config FILE ...

A second run of the same night does nothing and says so; --force makes a new attempt. Exit codes:
0 fine, 1 failed, 2 wrong usage or configuration, 3 a quality gate failed, 4 a regression,
5 and 6 a verdict in exit_on, 130 and 143 interrupted. Many nights: the earliest first, a failed one
stops no other, and the smallest code that is not 0 counts. With --split-seeds each split is a suite of
its own, such as NAME-seed1.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.core.extras import explain, explain_missing
from recbench_spark.errors import (
    FAILED,
    OK,
    ConfigError,
    DataError,
    FallbackToSpark,
    RecbenchError,
    SchemaError,
    is_cancelled,
)

if TYPE_CHECKING:
    from recbench_spark.storage.store import Store
if __name__ != "flags":
    from recbench_spark.commands.warehouses import check_journal_path, check_models
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.engine.choices import require_spark
    from recbench_spark.engine.local import choose_workers
    from recbench_spark.night.night_states import record_state
    from recbench_spark.night.night_status import NightOutcome, find_finished_night
    from recbench_spark.query.command_lines import shorten_command
    from recbench_spark.runtime.failures import describe_with_trace
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.storage.arrow_store import ArrowStore
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.objects import require_storage
    from recbench_spark.storage.uris import link_place


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "config", "warehouse")
    when = flags.add_mutually_exclusive_group(required=True)
    cli.add_flags(when, "logical-date", help="the day evaluated, YYYY-MM-DD")
    when.add_argument(
        "--dates", type=cli.parse_days, metavar="A..B", help="every day from A to B, or A,B,C"
    )
    text = "a night for each of these values of split.seed, in one session"
    add("--split-seeds", type=cli.parse_seeds, default=(), metavar="1,2,3", help=text)
    cli.add_flags(flags, "force", "engine", "dry-run", "set")
    add("--log", help=cli.JOURNAL)
    text = "then plant faults in a sample, and say what sees them (recbench self-test --help)"
    add("--self-test", action="store_true", help=text)
    add("--mlflow", metavar="URI", help="also log new runs there (needs mlflow-skinny)")
    return flags


NOTES = re.compile(r"\n\n(\d+ notes? o[^\n]*)\Z")
"""A leaderboard's last paragraph, where it counts notes without consequence."""


def main(args: argparse.Namespace) -> int:
    """Check the file, run its nights, and print the outcome.

    With --dates or --split-seeds there are several nights.
    """
    if args.self_test and (args.dates or args.split_seeds or args.dry_run or args.engine == "spark"):
        raise ConfigError("--self-test is of one night on this machine", "recbench self-test for others")
    args.engine = "local" if args.self_test else args.engine  # told before the night, not after it
    if args.dates or args.split_seeds:
        return run_many(args)
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    done = None if args.force else find_finished_night(args.warehouse, benchmark, args.logical_date)
    check_journal_path(args.log, "--log")
    if args.dry_run:
        from recbench_spark.commands.dry_runs import dry_run  # noqa: PLC0415

        print(dry_run(args.warehouse, benchmark, args.logical_date, done))
        if done is None:
            from recbench_spark.night.runners import choose_runner  # noqa: PLC0415

            choice, _ = choose_runner(args.engine, benchmark, args.warehouse, night=True)
            print(f"runner      {choice.describe()}")
        return OK
    journal = Journal()
    if args.log:
        journal.write_to(args.log)
    if done is None:
        with record_state(args.warehouse, benchmark.name, args.logical_date, cli.read_error):
            done = NightRunner(args, journal).run(benchmark, args.logical_date)
    print_outcome(done)
    if args.self_test:
        from recbench_spark.commands.self_test import print_self_test, probe_night  # noqa: PLC0415

        file = load_benchmark(args.config, args.set)
        print_self_test(probe_night(args.warehouse, file, args.logical_date, journal))
    return done.exit_code


class NightRunner:
    """Runner for nights, each on the engine it requests.

    A Spark session starts only once.
    """

    def __init__(self, args: argparse.Namespace, journal: Journal) -> None:
        """Note the job's flags and its journal."""
        self.args, self.journal = args, journal
        self._store: Store | None = None

    def run(self, benchmark: Benchmark, day: date) -> NightOutcome:
        """Run a night whose placeholders are filled in.

        Raises:
            ConfigError: `--engine local`, and a step needs Spark.
        """
        # Imported here: a finished night needs none of these modules.
        from recbench_spark.night.benchmark_checks import check_night  # noqa: PLC0415
        from recbench_spark.night.runners import choose_runner  # noqa: PLC0415

        check_night(benchmark)
        check_item_features(benchmark)
        check_models(self.args.warehouse, benchmark.models)
        require_storage(self.args.warehouse)
        choice, n = choose_runner(self.args.engine, benchmark, self.args.warehouse, night=True)
        self.journal.say(f"benchmark {benchmark.name}, night {day}: {choice.describe()}")
        if left_out := benchmark.evaluation.left_out:
            self.journal.say(f"metrics of families without their inputs: {', '.join(left_out)}")
        if choice.engine == "local":
            try:
                store = ArrowStore(self.args.warehouse, workers=choose_workers(n))
                return run_one_night(self.args, store, benchmark, day, self.journal)
            except FallbackToSpark as error:
                choice = require_spark(self.args.engine, error)
                self.journal.say(f"benchmark {benchmark.name}: {choice.describe()}")
        return run_one_night(self.args, self._open_spark(benchmark), benchmark, day, self.journal)

    def _open_spark(self, benchmark: Benchmark) -> Store:
        if self._store is None:
            self._store = open_store(self.args, benchmark, self.journal)
        return self._store


def open_store(args: argparse.Namespace, benchmark: Benchmark, journal: Journal) -> Store:
    """Start a session and return the warehouse."""
    with explain_missing():
        from recbench_spark.night.job_size import is_small  # noqa: PLC0415
        from recbench_spark.runtime.session import get_session  # noqa: PLC0415
        from recbench_spark.storage.store import Store  # noqa: PLC0415

    journal.say("starting Spark")
    started = time.monotonic()
    spark = get_session(f"recbench-spark {benchmark.name}", small=is_small(benchmark))
    journal.say(f"Spark {spark.version} started ({time.monotonic() - started:.1f} s)")
    store = Store(spark, args.warehouse)
    check_models(store.root, benchmark.models, opened=True)
    return store


def check_item_features(benchmark: Benchmark) -> None:
    """Refuse feature tables which no model can use.

    A missing table only fails its own model, later.

    Raises:
        ConfigError: vectors with two lengths, no vectors, a column missing; the model is named.
    """
    for model in benchmark.models:
        features = attrgetter("features")(model) if "features.path" in model.paths else None
        if features is not None and features.path and Path(features.path).exists():
            from recbench_spark.graphs.features import (  # noqa: PLC0415
                count_dimensions,
                open_features,
                require_equal_lengths,
            )

            try:
                count_dimensions(
                    require_equal_lengths(open_features(features.path, features.id_column, "auto"))
                )
            except (DataError, SchemaError) as error:
                message = f"model {model.name}: {features.path}: {error.message}"
                raise ConfigError(message, error.hint) from None


def run_one_night(
    args: argparse.Namespace, store: FileTables, benchmark: Benchmark, day: date, journal: Journal
) -> NightOutcome:
    """Run a night in a warehouse, with placeholders already filled."""
    from recbench_spark.night.run_night import run_night  # noqa: PLC0415
    from recbench_spark.night.tracking import log_night  # noqa: PLC0415
    from recbench_spark.tuning.credit import credit_searches  # noqa: PLC0415

    if not args.log:
        journal.write_log(store, f"{benchmark.name}-{day}")
    benchmark = credit_searches(store, benchmark)
    outcome = run_night(store, benchmark, day, journal, args.force)
    if args.mlflow and outcome.run_ids:
        log_night(args.mlflow, store.rows, benchmark, outcome.run_ids, journal)
    return outcome


def print_outcome(outcome: NightOutcome) -> None:
    """Print how a night ended, and commands for its results."""
    print_results(outcome)
    print_findings(outcome)


def print_findings(outcome: NightOutcome) -> None:
    """Print failed models, regressions, doubts and restated numbers."""
    for model, message in outcome.failed.items():
        print(f"error: model {model}: {message}", file=sys.stderr)
    for sentence in outcome.regressions:
        print(f"regression: {sentence}", file=sys.stderr)
    for sentence in outcome.doubts:
        print(f"doubt: {sentence}", file=sys.stderr)
    for sentence in outcome.restated:
        print(f"restated: {sentence}", file=sys.stderr)


def print_results(outcome: NightOutcome) -> None:
    """Print the leaderboard, skipped models and a command for results."""
    lines = []
    if outcome.skipped:
        done = ", ".join(outcome.skipped)
        lines.append(f"already done this night, nothing to do: {done} (--force runs them again)")
    if outcome.report_path:
        lines.append(f"report: {link_place(outcome.report_path)}")
    # The result file and the report have all commands.
    lines += ["ask in SQL:", *(f"  {shorten_command(line)}" for line in outcome.sql_lines[:1])]
    print_board(outcome.leaderboard, lines)


def print_board(leaderboard: str, lines: Iterable[str]) -> None:
    """Print a leaderboard, then lines on where to look.

    Notes without consequence come last.
    """
    board, *notes = NOTES.split(leaderboard)
    print(board, *lines, *notes[:1], sep="\n", flush=True)


ALREADY_DONE = "already done, nothing to do"


def run_many(args: argparse.Namespace) -> int:
    """Run all nights in `--dates` and `--split-seeds`.

    Returns:
        The job's exit code.
    """
    files = load_splits(args)
    # All nights' settings are checked before the first night begins.
    days = args.dates or [args.logical_date]
    nights = [(day, fill_placeholders(file, day)) for day in days for file in files]
    backfill = Backfill(args, len(nights))
    code = worst_code([backfill.run_night(day, benchmark) for day, benchmark in nights])
    if backfill.last is not None:
        print_results(backfill.last)
    return code


def load_splits(args: argparse.Namespace) -> list[Benchmark]:
    """Return the file once for each seed in `--split-seeds`.

    Every seed is a suite by itself. Without seeds, the file stays as it is.
    """
    file = load_benchmark(args.config, args.set)
    return [
        load_benchmark(args.config, [*args.set, f"name={file.name}-seed{seed}", f"split.seed={seed}"])
        for seed in args.split_seeds
    ] or [file]


def worst_code(codes: Iterable[int]) -> int:
    """Return the smallest code other than 0.

    A failure counts before gates and regressions.
    """
    return min((code for code in codes if code != OK), default=OK)


class Backfill:
    """A sequence of nights sharing one journal and one session.

    Attributes:
        last: outcome for the latest night, run now or already done.
    """

    def __init__(self, args: argparse.Namespace, total: int) -> None:
        """Make one journal for all nights.

        The journal has a line for each stage, and lines for a night's begin and end.
        """
        self.args, self.total, self.journal = args, total, Journal()
        self.last: NightOutcome | None = None
        self.runner = NightRunner(args, self.journal)
        self.n = 0
        if args.log and not args.dry_run:
            self.journal.write_to(args.log)

    def run_night(self, day: date, benchmark: Benchmark) -> int:
        """Run one night, report it and return its exit code.

        The report is one line. An error ends this night alone.
        """
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
        """Say what a single night prints: conclusions and its report."""
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
        with record_state(self.args.warehouse, benchmark.name, day, cli.read_error):
            self.journal.say(f"{self._describe(day, benchmark)}: begins")
            outcome = self.runner.run(benchmark, day)
        return outcome, summarise_night(outcome)

    def _done(self, day: date, benchmark: Benchmark) -> NightOutcome | None:
        return None if self.args.force else find_finished_night(self.args.warehouse, benchmark, day)


def list_conclusions(leaderboard: str) -> list[str]:
    """Return sentences and findings below a leaderboard's tables.

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
    """Return the counts for a night's work, in words."""
    counts = {
        "evaluated": len(outcome.run_ids),
        "done before": len(outcome.skipped),
        "failed": len(outcome.failed),
        "fell": len(outcome.regressions),
    }
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n)
