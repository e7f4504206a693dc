"""Write the HTML report of a suite's latest night again, and print its leaderboard.

python jobs/report.py --config demo --warehouse warehouse/demo
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.config import load_benchmark
from recbench_spark.errors import OK
from recbench_spark.journal import Journal
from recbench_spark.session import get_session
from recbench_spark.steps.night import open_night
from recbench_spark.steps.reporting import report_night
from recbench_spark.store import Store


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--logical-date", required=True, type=cli.day, help="the night of the report's name")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    return flags


def main(args: argparse.Namespace) -> int:
    """Read the tables, write the report."""
    benchmark = load_benchmark(args.config, args.set)
    store = Store(get_session("recbench-spark report"), args.warehouse)
    night = open_night(store, benchmark, args.logical_date)
    path, leaderboard = report_night(night, Journal())
    print(leaderboard)
    print(f"report: file://{path}" if path else "no report: the warehouse is not a local folder")
    return OK
