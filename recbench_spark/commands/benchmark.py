"""Fit rating models over all folds and seeds of a benchmark file, and print means and spreads.

    python jobs/benchmark.py --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR
    python jobs/benchmark.py --config FILE --warehouse DIR --seeds 1,2,3 --folds 0,1 --models sgd_64

Each (model, fold, seed) is a task of Spark and a row of `fits`; a second start continues where the first
one stopped. This job covers all folds. A night (`jobs/nightly.py`) tests on the one fold that the file
names, with intervals, slices and comparisons. Exit codes: 0 fine, 1 a fit failed, 2 wrong usage or
configuration.
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
        "--models", help="some of the file's models, by name (default: all that predict ratings)"
    )
    flags.add_argument(
        "--seeds", type=cli.parse_seeds, default=(), help="e.g. 1,2,3 (default: each model's own)"
    )
    flags.add_argument(
        "--folds", type=cli.parse_seeds, default=(), help="some folds, e.g. 0,1 (default: all)"
    )
    flags.add_argument(
        "--threads", type=cli.parse_threads, default=1, help="threads of each fit (default 1)"
    )
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.parse_day, help="fills {logical_date} in, YYYY-MM-DD")
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the file and say what would be done")
    flags.add_argument("--log", help="JSON-lines log (default: WAREHOUSE/logs/NAME-fits.jsonl where local)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the file, label the log, fit the models and print the table."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import benchmark  # noqa: PLC0415

    return benchmark.run(args)
