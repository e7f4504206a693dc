"""Maintain a warehouse: retention, compaction, migration, removal of files of interrupted runs.

    python jobs/maintain.py --warehouse DIR --logical-date 2026-06-30 --keep-days 90 --optimize
    python jobs/maintain.py --warehouse DIR --vacuum-hours 168
    python jobs/maintain.py --warehouse DIR --migrate

--keep-days N keeps the rows per user (rankings, user_metrics) and the splits, blocks and models of nights
of the last N days before --logical-date; metrics, checks, comparisons and runs are kept for ever. Files of
graphs are removed with their split. Files of edge lists, layers of models over them, files of fits, and
logs of auctions that are laid out are removed if nothing has used them since (embeddings and rows of `fits`
and `trials` stay). A removed night can be run again. A run fails if its split is removed meanwhile, so do
not run both at the same time.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--migrate", action="store_true", help="bring an older warehouse to this schema")
    flags.add_argument("--keep-days", type=int, metavar="N", help="nights whose rows per user are kept")
    flags.add_argument(
        "--logical-date", type=cli.parse_day, help="the day that --keep-days counts back from"
    )
    flags.add_argument("--keep-night", type=cli.parse_day, action="append", default=[], metavar="DAY",
                       help="a night never removed, e.g. comparisons.baseline_night")  # fmt: skip
    flags.add_argument("--optimize", action="store_true", help="compact small files")
    flags.add_argument("--vacuum-hours", type=int, metavar="N",
                       help="remove files unused for N hours; time travel ends there")  # fmt: skip
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="say what retention would remove, and stop")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, then migrate, remove old files and compact tables."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import maintain  # noqa: PLC0415

    return maintain.run(args)
