"""Write the report of a suite's latest night again.

recbench report --config demo --warehouse warehouse/demo
"""

from __future__ import annotations

import argparse
from datetime import date
from functools import partial

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import OK

if __name__ != "flags":
    from recbench_spark.commands.nightly import print_board
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.night.benchmark_checks import check_benchmark
    from recbench_spark.night.night import open_night
    from recbench_spark.night.report import report_night
    from recbench_spark.night.runners import choose_job_runner, count_no_log
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.uris import link_place


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    cli.add_flags(flags, "config", "warehouse")
    cli.add_flags(flags, "logical-date", required=True, help="the night of the report's name")
    cli.add_flags(flags, "set", "engine")
    return flags


def main(args: argparse.Namespace) -> int:
    """Read the tables and write the report."""
    benchmark = load_benchmark(args.config, args.set)
    check_benchmark(fill_placeholders(benchmark, args.logical_date))
    require_warehouse(args.warehouse)
    chosen = choose_job_runner(args.engine, args.warehouse, count_no_log, ())
    work = partial(write_report, benchmark=benchmark, day=args.logical_date)
    return run_job(f"report {benchmark.name}", args, chosen, work)


def write_report(store: FileTables, benchmark: Benchmark, day: date) -> int:
    """Write a night's report; print its place and the leaderboard."""
    path, leaderboard = report_night(open_night(store, benchmark, day), Journal())
    print_board(leaderboard, [f"report: {link_place(path)}"] if path else [])
    return OK
