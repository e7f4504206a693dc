"""Split a log to audited Delta tables: labelled rows, catalogue, user blocks and manifest.

    python jobs/split.py --config movielens_1m --set dataset.path=DIR --warehouse DIR
    python jobs/split.py --log ratings.parquet --columns user_id=user,item_id=movie,event_time=ts \\
        --protocol TO_LS --warehouse DIR
    python jobs/split.py --log ... --set split.holdout=folds --set split.folds=10 --warehouse DIR

The same log and settings have the same split_id, and are not split twice. Gates such as
--gate 'future_rows of train above 0' end the job with exit code 3. Exit codes: 0 fine, 1 failed,
2 wrong usage or configuration, 3 a quality gate failed.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.config import PROTOCOLS


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="benchmark file, or its name under conf/benchmarks")
    source.add_argument("--log", metavar="PATH", help="interactions: CSV, Parquet or Delta, file or folder")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--columns", default="", help="with --log: NAME=COLUMN,... e.g. user_id=userId")
    flags.add_argument(
        "--reader", help="with --log: csv, parquet, delta, movielens_1m ... (default: by name)"
    )
    flags.add_argument(
        "--protocol", choices=list(PROTOCOLS), help="name of a split; others by --set split.KEY="
    )
    flags.add_argument("--gate", action="append", default=[], metavar="TEXT",
                       help="'FACT [of PART] above|below NUMBER [warn|fail]'")  # fmt: skip
    flags.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    flags.add_argument("--logical-date", type=cli.parse_day, help="fills {logical_date} in, YYYY-MM-DD")
    cli.add_engine(flags)
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    flags.add_argument(
        "--journal", help="JSON-lines log (default: WAREHOUSE/logs/split-ID.jsonl where local)"
    )
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, split the log, print the audit and apply the gates."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import split  # noqa: PLC0415

    return split.run(args)
