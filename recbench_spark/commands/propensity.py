"""Estimate exposure propensities of items from a split of the warehouse or from any log.

    python jobs/propensity.py --warehouse DIR --split SPLIT_ID
    python jobs/propensity.py --warehouse DIR --log ratings.parquet --columns user_id=user,item_id=movie
    python jobs/propensity.py --warehouse DIR --log COAT_FOLDER --reader coat --method naive_bayes

Methods: power_law (n^((alpha+1)/2)), power_above_xmin (n^alpha above xmin), steck (n^(alpha/(alpha+1))),
relative_frequency, naive_bayes (by rating; needs a random sample, the part of --sample),
logistic_regression (on --item-features and --user-features: an id and numbers), given (a table item_id,
propensity). Fitted to the training part; --part all takes every row. Written to the tables
propensities, rating_propensities, cell_propensities and power_laws.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli

METHODS = (
    *("power_law", "power_above_xmin", "steck", "relative_frequency"),
    *("naive_bayes", "logistic_regression", "given"),
)


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--split", metavar="ID", help="a split_id of the warehouse")
    source.add_argument("--log", metavar="PATH", help="interactions: CSV, Parquet or Delta, file or folder")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--columns", default="", help="with --log: NAME=COLUMN,... e.g. user_id=userId")
    flags.add_argument("--reader", default="", help="with --log: csv, parquet, delta, coat ...")
    flags.add_argument("--part", default="train", help="rows fitted to: train (with given), or all")
    flags.add_argument("--sample", default="open_loop", help="part drawn at random, for naive_bayes")
    flags.add_argument("--method", choices=METHODS, default="power_law", help="estimator of propensities")
    flags.add_argument(
        "--law", choices=["approximate", "exact"], default="approximate", help="fit of alpha"
    )
    flags.add_argument(
        "--scale", choices=["as_is", "largest", "interactions"], default="as_is",
        help="largest: the largest is 1; interactions: they sum to the rows of a mean user",
    )  # fmt: skip
    flags.add_argument("--floor", type=float, help="raise smaller propensities to it, lower others to 1")
    flags.add_argument("--item-features", metavar="PATH", help="table item_id, numbers ...")
    flags.add_argument("--user-features", metavar="PATH", help="table user_id, numbers ...")
    flags.add_argument(
        "--rate", type=float, default=0.1, help="share of the cells outside the log that is fitted to"
    )
    flags.add_argument(
        "--cells", action="store_true", help="with logistic_regression: also for every user and item"
    )
    flags.add_argument("--given", metavar="PATH", help="table item_id, propensity, for --method given")
    flags.add_argument(
        "--goodness", type=int, default=0, metavar="N", help="simulated laws behind the goodness of fit"
    )
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, fit the propensities, write and print them."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import propensity  # noqa: PLC0415

    return propensity.run(args)
