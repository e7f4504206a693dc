"""Run all stages of a benchmark file for one day, or for many days or splits in one session.

    python jobs/nightly.py --config demo --warehouse warehouse/demo --logical-date 2026-01-01
    python jobs/nightly.py --config FILE --warehouse DIR --dates 2026-01-01..2026-01-31
    python jobs/nightly.py --config FILE --warehouse DIR --logical-date 2026-01-01 --split-seeds 1,2,3
    spark-submit --properties-file conf/spark/local.conf jobs/nightly.py --config FILE ...

A second run of the same night does nothing and says so; --force makes a new attempt. Exit codes:
0 fine, 1 failed, 2 wrong usage or configuration, 3 a quality gate failed, 4 a regression,
130 and 143 interrupted. Many nights: the earliest first, a failed one stops no other, and the smallest
code that is not 0 counts. With --split-seeds each split is a suite of its own, such as NAME-seed1.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    when = flags.add_mutually_exclusive_group(required=True)
    when.add_argument("--logical-date", type=cli.parse_day, help="the day evaluated, YYYY-MM-DD")
    when.add_argument(
        "--dates",
        type=cli.parse_days,
        metavar="A..B",
        help="every day from A to B, or A,B,C: in one session",
    )
    flags.add_argument(
        "--split-seeds",
        type=cli.parse_seeds,
        default=(),
        metavar="1,2,3",
        help="a night for each of these values of split.seed, in one session",
    )
    flags.add_argument(
        "--force", action="store_true", help="run again what has succeeded, as a new attempt"
    )
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the file and say what would be done")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument(
        "--log", help="JSON-lines log (default: WAREHOUSE/logs/...jsonl where that is local)"
    )
    flags.add_argument("--mlflow", metavar="URI", help="also log new runs there (needs mlflow-skinny)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the file, run the night, or the nights of --dates and --split-seeds, and print the outcome."""
    # Imported here, so that --help and wrong flags are answered before anything of a night is loaded.
    if args.dates or args.split_seeds:
        from recbench_spark.commands.actions import backfill  # noqa: PLC0415

        return backfill.run(args)
    from recbench_spark.commands.actions import nightly  # noqa: PLC0415

    return nightly.run(args)
