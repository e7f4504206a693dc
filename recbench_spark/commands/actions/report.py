"""Write the report of a night again: the work of `jobs/report.py`."""

from __future__ import annotations

import argparse

from recbench_spark.commands.actions.nightly import print_board
from recbench_spark.commands.warehouses import require_warehouse
from recbench_spark.config import load_benchmark
from recbench_spark.errors import OK
from recbench_spark.nightly.benchmark_checks import check_benchmark
from recbench_spark.nightly.night import open_night
from recbench_spark.nightly.report import report_night
from recbench_spark.placeholders import fill_placeholders
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.storage.store import Store
from recbench_spark.storage.uris import link_place


def run(args: argparse.Namespace) -> int:
    """Read the tables and write the report."""
    benchmark = load_benchmark(args.config, args.set)
    check_benchmark(fill_placeholders(benchmark, args.logical_date))
    require_warehouse(args.warehouse)
    store = Store(get_session("recbench-spark report"), args.warehouse)
    night = open_night(store, benchmark, args.logical_date)
    path, leaderboard = report_night(night, Journal())
    missing = "no report: Spark alone writes this warehouse, so there is no place for it"
    print_board(leaderboard, [f"report: {link_place(path)}" if path else missing])
    return OK
