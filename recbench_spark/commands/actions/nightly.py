"""Run one night: the work of `jobs/nightly.py`. A night that is already done needs no Spark."""

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

from recbench_spark.cli import read_error
from recbench_spark.commands.warehouses import check_journal_path, check_models
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.extras import explain_missing
from recbench_spark.engine.choices import require_spark
from recbench_spark.engine.local import choose_workers
from recbench_spark.errors import OK, ConfigError, DataError, FallbackToSpark, SchemaError
from recbench_spark.night.night_states import record_state
from recbench_spark.night.night_status import NightOutcome, find_finished_night
from recbench_spark.query.command_lines import shorten_command
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.objects import require_storage
from recbench_spark.storage.uris import link_place

if TYPE_CHECKING:
    from recbench_spark.storage.store import Store

NOTES = re.compile(r"\n\n(\d+ notes? o[^\n]*)\Z")
"""The last paragraph of a leaderboard, where it counts notes of no consequence."""


def run(args: argparse.Namespace) -> int:
    """Check the file, open the warehouse, run the night and print its outcome."""
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
        with record_state(args.warehouse, benchmark.name, args.logical_date, read_error):
            done = NightRunner(args, journal).run(benchmark, args.logical_date)
    print_outcome(done)
    return done.exit_code


class NightRunner:
    """Runs nights by the engine that each of them asks for; a session of Spark starts once."""

    def __init__(self, args: argparse.Namespace, journal: Journal) -> None:
        """Note the flags of the job, and its journal."""
        self.args, self.journal = args, journal
        self._store: Store | None = None

    def run(self, benchmark: Benchmark, day: date) -> NightOutcome:
        """Run a night. The placeholders of `benchmark` are filled in.

        Raises:
            ConfigError: `--engine local`, and a step needs Spark.
        """
        # Here: a night that has nothing to do needs none of this.
        from recbench_spark.night.benchmark_checks import check_night  # noqa: PLC0415
        from recbench_spark.night.runners import choose_runner  # noqa: PLC0415

        check_night(benchmark)
        check_item_features(benchmark)
        check_models(self.args.warehouse, benchmark.models)
        require_storage(self.args.warehouse)
        choice, n = choose_runner(self.args.engine, benchmark, self.args.warehouse, night=True)
        self.journal.say(f"benchmark {benchmark.name}, night {day}: {choice.describe()}")
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
    """Refuse feature tables that no model can use. A missing table fails only its own model, later.

    Raises:
        ConfigError: vectors of two lengths, no vectors, a column missing; the model is named.
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
    """Run a night in a warehouse. The placeholders of `benchmark` are already filled."""
    from recbench_spark.benchmark import run_night  # noqa: PLC0415
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
    """Print how a night ended, and commands to look at its results."""
    print_results(outcome)
    print_findings(outcome)


def print_findings(outcome: NightOutcome) -> None:
    """Print failed models and regressions."""
    for model, message in outcome.failed.items():
        print(f"error: model {model}: {message}", file=sys.stderr)
    for sentence in outcome.regressions:
        print(f"regression: {sentence}", file=sys.stderr)


def print_results(outcome: NightOutcome) -> None:
    """Print the leaderboard, the skipped models, and a command to look at the results."""
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
    """Print a leaderboard, then lines on where to look; its notes of no consequence come last."""
    board, *notes = NOTES.split(leaderboard)
    print(board, *lines, *notes[:1], sep="\n", flush=True)
