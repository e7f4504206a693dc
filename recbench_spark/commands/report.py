"""Write the HTML report of a suite's latest night again, and print its leaderboard.

python jobs/report.py --config demo --warehouse warehouse/demo
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument(
        "--logical-date", required=True, type=cli.parse_day, help="the night of the report's name"
    )
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    cli.add_engine(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Read the tables and write the report."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import report  # noqa: PLC0415

    return report.run(args)
