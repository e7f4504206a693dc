"""The nightly evaluation: all stages of one benchmark file, for one day.

    python jobs/nightly.py --config demo --warehouse warehouse/demo --logical-date 2026-01-01
    spark-submit --properties-file conf/spark/local.conf jobs/nightly.py --config FILE ...

A second run of the same night does nothing and says so; --force makes a new attempt. Exit codes:
0 fine, 1 failed, 2 wrong usage or configuration, 3 a quality gate failed, 4 a regression,
130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date

from recbench_spark import cli
from recbench_spark.benchmark import Outcome, run_night
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import OK
from recbench_spark.journal import Journal
from recbench_spark.placeholders import on_night
from recbench_spark.session import get_session
from recbench_spark.steps.night import check_benchmark
from recbench_spark.steps.tracking import log_night
from recbench_spark.store import Store


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--logical-date", required=True, type=cli.day, help="the day evaluated, YYYY-MM-DD")
    flags.add_argument(
        "--force", action="store_true", help="run again what has succeeded, as a new attempt"
    )
    flags.add_argument("--dry-run", action="store_true", help="check the file and say what would be done")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument(
        "--log", help="JSON-lines log (default: WAREHOUSE/logs/...jsonl where that is local)"
    )
    flags.add_argument("--mlflow", metavar="URI", help="also log new runs there (needs mlflow-skinny)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the file, open the warehouse, run the night, tell."""
    benchmark = on_night(load_benchmark(args.config, args.set), args.logical_date)
    check_benchmark(benchmark)
    if args.dry_run:
        print(dry_run(args.warehouse, benchmark, args.logical_date))
        return OK
    journal = Journal()
    if args.log:
        journal.write_to(args.log)
    journal.say(f"benchmark {benchmark.name}, night {args.logical_date}: starting Spark")
    store = Store(get_session(f"recbench-spark {benchmark.name}"), args.warehouse)
    if store.folder and not args.log:
        journal.write_to(store.folder / "logs" / f"{benchmark.name}-{args.logical_date}.jsonl")
    outcome = run_night(store, benchmark, args.logical_date, journal, args.force)
    if args.mlflow and outcome.run_ids:
        log_night(args.mlflow, store, benchmark, outcome.run_ids, journal)
    print_outcome(outcome)
    return outcome.exit_code


def dry_run(store_root: str, benchmark: Benchmark, logical_date: date) -> str:
    """What a night would do, in words, without Spark."""
    asked = benchmark.evaluation
    lines: Sequence[str] = [
        f"benchmark   {benchmark.name}: {benchmark.description}".rstrip(": "),
        f"night       {logical_date}",
        f"warehouse   {store_root}",
        f"dataset     {benchmark.dataset.name} ({benchmark.dataset.reader}) {benchmark.dataset.path or ''}",
        f"split       {benchmark.split.describe()}",
        f"models      {', '.join(f'{model.name} ({model.kind})' for model in benchmark.models)}",
        f"metrics     {', '.join(asked.metrics)} at {', '.join(map(str, asked.cutoffs))}",
        f"parts       {', '.join(asked.parts)}",
        f"definition  {asked.resolve().describe()}",
    ]
    return "\n".join(lines)


def print_outcome(outcome: Outcome) -> None:
    """The leaderboard, what was skipped, where to look next."""
    print(outcome.leaderboard)
    if outcome.skipped:
        done = ", ".join(outcome.skipped)
        print(f"already done this night, nothing to do: {done} (--force runs them again)")
    for model, message in outcome.failed.items():
        print(f"error: model {model}: {message}", file=sys.stderr)
    for sentence in outcome.regressions:
        print(f"regression: {sentence}", file=sys.stderr)
    if outcome.report_path:
        print(f"report: file://{outcome.report_path}")
    print("ask in SQL:")
    for line in outcome.sql_lines:
        print(f"  {line}")
    sys.stdout.flush()
