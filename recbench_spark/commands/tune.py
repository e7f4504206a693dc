"""Search settings of models on validation rows, every method with the same budget.

    python jobs/tune.py --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR
    python jobs/tune.py --config movielens_1m_graph --set dataset.path=DIR --warehouse DIR
    python jobs/tune.py --config FILE --warehouse DIR --budget 32 --extend

The section `search` of the benchmark file declares the spaces. Validation rows are a share of the training
rows of one fold, whose test rows are never used; they are test rows of other folds. Rating models
are judged by RMSE, models that rank by the file's headline: each setting is then a model of a night over
the training rows, in the suite NAME-search, and its run is stored like any other. Each trial is a
row of `trials`; an interrupted search continues with the missing trials, and a larger budget adds to the
smaller one. --extend continues beyond every edge with a best value, with the same budget again. Runs of the
same model on the same log that use the best setting get their provenance from the search.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--models", help="some of the models that the file declares spaces for")
    flags.add_argument(
        "--budget", type=cli.parse_count, help="settings per method (default: search.budget)"
    )
    flags.add_argument("--extend", action="store_true", help="continue beyond edges with a best value")
    flags.add_argument(
        "--threads",
        type=cli.parse_threads,
        default=1,
        help="threads of each fit of a rating model (default 1)",
    )
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.parse_day, help="fills {logical_date} in, YYYY-MM-DD")
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the file and say what would be tried")
    flags.add_argument("--log", help="JSON-lines log (default: WAREHOUSE/logs/NAME-search.jsonl)")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the file, run the search and print the best settings with their warnings."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import tune  # noqa: PLC0415

    return tune.run(args)
