"""Replay a log of auctions with models of click probability: clicks, yields, revenue.

    python jobs/replay.py --config demo --warehouse DIR      # a generated log, results in seconds
    python jobs/replay.py --config FILE --warehouse DIR

The file (conf/replays/demo.yaml is one) names a log with one row for each participant of an auction, shown
or not: auction_id, query_id, ad_id, position (from 1; NULL: not shown), clicked[, event_time, bid, block
(main, side), quality, probability, user_id]; operating points; and models, each a table auction_id, ad_id,
probability. Each model ranks every auction by bid x probability^exponent x quality, and its clicks are
estimated from the log: at the same slot, moved along the position curve, or by the slot's reference rate
(docs/how_to/auctions.md). Only rows later than every model's trained_until are replayed.

Printed, and written to WAREHOUSE/replays, checks and runs. Up to 20 million rows the whole log is held by
one process. Larger ones are replayed with Spark: the log is laid out once below WAREHOUSE/auction_logs, and
later runs with other models read only this layout. Both give the same numbers. A replay that has succeeded
on the same day is not run again without --force.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--config", required=True, help="replay file, or its name under conf/replays")
    flags.add_argument("--warehouse", required=True, help="folder of the tables")
    flags.add_argument(
        "--same-log", action="store_true", help="replay all rows, also those that models were fitted to"
    )
    flags.add_argument("--parts", type=int, help="parts of the log, at least; the numbers are the same")
    flags.add_argument(
        "--engine", choices=("auto", "local", "spark"), default="auto",
        help="engine: this process, Spark, or by size (default)",
    )  # fmt: skip
    flags.add_argument(
        "--force", action="store_true", help="run again what has succeeded, as a new attempt"
    )
    flags.add_argument("--logical-date", type=cli.parse_day, help="the day evaluated (default: today)")
    flags.add_argument("--dry-run", action="store_true", help="check the file and say what would be done")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, read the log, replay the models, write and print the results."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import replay  # noqa: PLC0415

    return replay.run(args)
