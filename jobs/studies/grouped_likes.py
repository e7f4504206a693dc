"""Write the world of `studies/pinsage.py` as a night's tables.

    python jobs/studies/grouped_likes.py --items 10000 --folder world
    python jobs/studies/grouped_likes.py --items 350000 --test-users 10000 --folder world
    recbench nightly --config grouped_likes_graph --warehouse DIR --logical-date 2026-11-24

Writes FOLDER/log.parquet (user_id, item_id, part: train or test) and FOLDER/items.parquet (id, vector).
There are twice as many users as items. `jobs/studies/planted_communities.py` describes the world.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.studies.planted_communities import generate_world, write_tables
from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError
from recbench_spark.runtime.journal import Journal


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--items", type=int, default=10_000)
    flags.add_argument("--folder", type=Path, required=True, help="folder of the two tables")
    flags.add_argument("--test-users", type=int, default=0, help="drawn by hash; 0: all")
    return flags


def main(args: argparse.Namespace) -> int:
    """Make the world and write it."""
    if args.items < 1:
        raise ConfigError(f"--items {args.items}: a world has one at least", "10000 is the default")
    train, test = write_tables(generate_world(args.items), args.folder, args.test_users)
    Journal().say(
        f"{args.folder}: {2 * args.items:,} users, {args.items:,} items, {train:,} training rows, "
        f"{test:,} test rows"
    )
    return OK


if __name__ == "__main__":
    cli.run(main, parser())
