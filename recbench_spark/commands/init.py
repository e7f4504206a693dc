"""Look at a log and write a benchmark file for it, which runs as it is.

    python jobs/init.py --log ratings.csv
    python jobs/init.py --log events.csv --dry-run
    python jobs/init.py --log reviews.jsonl --item-column parent_asin --time-unit ms --output books.yaml

CSV, TSV and other separators (compressed or not), blanks, `::`, RecBole's .inter, an object of JSON in each
line, Parquet, Delta, formats of packages; folders of these, of MovieLens, Coat, Yahoo R3, LightGCN and NCF.
It prints which columns it took for users, items, ratings and times, with their values. Where two columns or
two units of time are plausible it chooses none, and names the flag that does. What may be a rating or a
time is taken, or asked for by a flag. It needs no Spark.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--log", required=True, metavar="PATH", help="interactions: a file, or a folder")
    flags.add_argument("--user-column", metavar="NAME", help="column of user_id")
    flags.add_argument("--item-column", metavar="NAME", help="column of item_id")
    flags.add_argument("--rating-column", metavar="NAME", help="column of rating, or none")
    flags.add_argument("--time-column", metavar="NAME", help="column of event_time, or none")
    flags.add_argument("--time-unit", choices=["s", "ms", "us", "timestamp"], help="unit of the times")
    flags.add_argument("--time-zone", help="zone of times without an offset, such as Europe/Rome (UTC)")
    flags.add_argument(
        "--time-format",
        metavar="PATTERN",
        help="pattern of times that are text, such as 'MM/dd/yyyy HH:mm'",
    )
    flags.add_argument(
        "--separator",
        metavar="TEXT",
        help="separator of fields, such as ';', '\\t' or blanks (one or several)",
    )
    flags.add_argument("--encoding", help="encoding of text that is not UTF-8, such as cp1252")
    flags.add_argument("--header", choices=["yes", "no"], help="whether the first line has names")
    flags.add_argument("--name", help="name of the benchmark (default: that of the file)")
    flags.add_argument("--output", metavar="FILE", help="benchmark file (default: NAME.yaml)")
    flags.add_argument("--force", action="store_true", help="write over an existing file")
    flags.add_argument("--dry-run", action="store_true", help="print the benchmark file, write nothing")
    return flags


def main(args: argparse.Namespace) -> int:
    """Look at the log, print what was taken, write the benchmark file."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions.init import run  # noqa: PLC0415

    return run(args)
