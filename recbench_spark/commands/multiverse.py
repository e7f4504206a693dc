"""Run one benchmark under every protocol, to see how much a ranking of models depends on the protocol.

    python jobs/multiverse.py --config movielens_100k_temporal --set dataset.path=DIR \
        --warehouse warehouse/multiverse --logical-date 2026-01-01

Runs a night for each split x candidates (`--protocols`, `--candidates`), each a suite of its own, with
every defensible definition measured from the same ranks. Prints in what share of all these worlds one
model beats another, and writes a page with the picture. Nights that have run are not run again.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli

PROTOCOLS = ("RO_RS", "TO_RS", "RO_LS", "TO_LS")
CANDIDATES = ("unseen", "uniform")


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="benchmark file, or its name under conf/benchmarks")
    flags.add_argument("--warehouse", required=True, help="directory of the tables")
    flags.add_argument(
        "--logical-date", required=True, type=cli.parse_day, help="the day evaluated, YYYY-MM-DD"
    )
    flags.add_argument("--protocols", default=",".join(PROTOCOLS), help="splits, comma-separated")
    flags.add_argument("--candidates", default=",".join(CANDIDATES), help="candidates, comma-separated")
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the files and say what would be run")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run a night for each protocol, then print how often one model beats another."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import multiverse  # noqa: PLC0415

    return multiverse.run(args)
