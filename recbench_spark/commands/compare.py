"""Compare models on the same users: files of lists, or runs of a warehouse on any nights.

    python jobs/compare.py --lists als=als.parquet --lists popular=popular.csv --truth truth.parquet --k 10
    python jobs/compare.py --warehouse DIR als popular --metrics ndcg@10
    python jobs/compare.py --warehouse DIR als@2026-01-01 als@2026-01-02

Paired differences with t, randomisation, bootstrap and Wilcoxon tests, Holm over the family that the output
names, wins, ties and losses of users, and the smallest difference that could have been seen. The last model
is the baseline, or --baseline. Users with a value on one side alone are counted and not compared. Runs of
other definitions, parts or held-out items are refused.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.config import Bootstrap


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("runs", nargs="*", metavar="RUN", help="run id, MODEL or MODEL@NIGHT of --warehouse")
    flags.add_argument("--warehouse", help="directory, object storage or catalog.schema of the runs")
    flags.add_argument("--suite", help="suite of the runs, where models of one name are in several")
    flags.add_argument(
        "--lists", action="append", default=[], metavar="NAME=PATH", help="ranked lists of a model"
    )
    flags.add_argument("--truth", metavar="PATH", help="held-out items, with --lists")
    flags.add_argument("--train", metavar="PATH", help="training items, with --lists")
    flags.add_argument("--columns", default="", help="names of columns: user_id=userId,item_id=movieId")
    flags.add_argument("--preset", help="definition of another library, with --lists")
    flags.add_argument(
        "--set", action="append", default=[], metavar="definition.AXIS=VALUE", help="one axis, with --lists"
    )
    _add_test_flags(flags)
    _add_output_flags(flags)
    return flags


def _add_test_flags(flags: cli.Parser) -> None:
    """Add the flags that choose what is tested, and how."""
    flags.add_argument("--baseline", help="model that all others are compared with (default: the last one)")
    flags.add_argument("--metrics", help="comma-separated, such as ndcg@10,recall (default: all)")
    flags.add_argument(
        "--k", type=cli.parse_cutoffs, default=None, help="cut-offs, e.g. 5,10 (default: all)"
    )
    flags.add_argument("--part", help="part of the split (default: all that every run has)")
    flags.add_argument("--minimum", type=float, default=0.0, help="smallest difference that matters")
    flags.add_argument(
        "--bootstrap",
        type=cli.parse_count,
        default=Bootstrap().replicates,
        help="replicates of the bootstrap and of the randomisation test",
    )
    flags.add_argument("--seed", type=int, default=Bootstrap().seed, help="seed of both")
    flags.add_argument("--slices", metavar="PATH", help="labels of users: user_id and columns of labels")


def _add_output_flags(flags: cli.Parser) -> None:
    """Add the flags that write files."""
    flags.add_argument("--latex", metavar="FILE", help="write a table for a paper")
    flags.add_argument("--plot", metavar="FILE", help="write a picture: png, pdf or svg by its ending")
    flags.add_argument("--out", metavar="DIR", help="write Parquet, JSON and LaTeX into this folder")
    flags.add_argument("--format", choices=["table", "json"], default="table", help="what is printed")


def main(args: argparse.Namespace) -> int:
    """Check the flags, compare, print and write the results."""
    # Imported here, so that --help and wrong flags are answered before anything of a comparison is loaded.
    from recbench_spark.commands.actions.compare import run  # noqa: PLC0415

    return run(args)
