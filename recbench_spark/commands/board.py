"""Board of a benchmark: published results, results of this package, and verdicts on under-tuned baselines.

    python jobs/board.py --config movielens_10m_rating --set dataset.path=DIR --warehouse DIR
    python jobs/board.py --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR --paired
    python jobs/board.py --published ml10m_rmse

The job adds results of `jobs/benchmark.py` that cover all folds (or, for a benchmark that ranks, the
headlines of `jobs/nightly.py`) and the published rows of the board that the file names. It judges every
row and writes a page (WAREHOUSE/reports/board-NAME.html if the warehouse is local).
--paired compares every two rows over the same folds: differences by fold, Student's t, p with Holm's
correction.
--published judges a published table alone, without Spark.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="benchmark file, or its name under conf/benchmarks")
    source.add_argument("--published", metavar="BOARD", help="a published board, without a warehouse")
    flags.add_argument("--warehouse", help="directory or catalog.schema of the tables")
    flags.add_argument("--paired", action="store_true", help="compare every two rows fold by fold as well")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.parse_day, help="fills {logical_date} in, YYYY-MM-DD")
    cli.add_engine(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Judge a published table, or update the board of a benchmark; print the board."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    if args.published:
        from recbench_spark.commands.published_boards import print_published_board  # noqa: PLC0415

        return print_published_board(args.published, paired=args.paired)
    from recbench_spark.commands.actions import board  # noqa: PLC0415

    return board.run(args)
