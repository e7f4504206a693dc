"""Look after a warehouse: retention, compaction, migration, what killed runs left.

    python jobs/maintain.py --warehouse DIR --logical-date 2026-06-30 --keep-days 90 --optimize
    python jobs/maintain.py --warehouse DIR --vacuum-hours 168
    python jobs/maintain.py --warehouse DIR --migrate

--keep-days N keeps the rows per user (rankings, user_metrics) and the splits, blocks and models of nights
of the last N days before --logical-date; metrics, checks, comparisons and runs are kept for ever. A night
that was removed can be run again. A run on a split that is removed meanwhile fails: keep the two apart.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta

from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError
from recbench_spark.journal import Journal
from recbench_spark.schemas import TABLES
from recbench_spark.session import get_session
from recbench_spark.steps.maintaining import drop_old, find_old
from recbench_spark.steps.night import yesterday
from recbench_spark.store import Store

SHORTEST = 24
"""Hours that a vacuum leaves at least: a night may still be reading or writing."""


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--migrate", action="store_true", help="bring an older warehouse to this schema")
    flags.add_argument("--keep-days", type=int, metavar="N", help="nights whose rows per user are kept")
    flags.add_argument("--logical-date", type=cli.day, help="the day that --keep-days counts back from")
    flags.add_argument("--keep-night", type=cli.day, action="append", default=[], metavar="DAY",
                       help="a night never removed, e.g. comparisons.baseline_night")  # fmt: skip
    flags.add_argument("--optimize", action="store_true", help="compact small files")
    flags.add_argument("--vacuum-hours", type=int, metavar="N",
                       help="remove files unused for N hours; time travel ends there")  # fmt: skip
    flags.add_argument("--dry-run", action="store_true", help="say what retention would remove, and stop")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, migrate, remove, compact."""
    check(args)
    journal = Journal()
    store = Store(get_session("recbench-spark maintain"), args.warehouse, any_version=args.migrate)
    if args.migrate:
        migrate(store, journal)
    if args.keep_days is not None:
        retain(store, args, journal)
    if args.dry_run:
        return OK
    journal.say("remove what killed runs left")
    store.delete_orphans(yesterday())
    for name in filter(store.exists, TABLES):
        if args.optimize:
            journal.say(f"optimize {name}")
            store.optimize(name)
        if args.vacuum_hours is not None:
            journal.say(f"vacuum {name}")
            store.vacuum(name, args.vacuum_hours)
    return OK


def check(args: argparse.Namespace) -> None:
    """What the flags cannot mean."""
    if not (args.migrate or args.optimize or args.keep_days is not None or args.vacuum_hours is not None):
        raise ConfigError("nothing to do", "--migrate, --keep-days N, --optimize, --vacuum-hours N")
    if args.keep_days is not None and (args.keep_days < 1 or args.logical_date is None):
        raise ConfigError("--keep-days needs at least 1 day and --logical-date, the day to count from")
    before(args)
    if args.vacuum_hours is not None and args.vacuum_hours < SHORTEST:
        raise ConfigError(
            f"--vacuum-hours {args.vacuum_hours}: at least {SHORTEST}", "a night may be at work"
        )


def before(args: argparse.Namespace) -> date | None:
    """The first night that is kept; None where none is removed."""
    if args.keep_days is None:
        return None
    try:
        first: date = args.logical_date - timedelta(days=args.keep_days)
    except OverflowError:
        told = f"--keep-days {args.keep_days}: before the calendar begins"
        raise ConfigError(told, "leave the flag out to keep every night") from None
    return first


def migrate(store: Store, journal: Journal) -> None:
    """Bring the tables to this schema and tell each step."""
    for statement in (done := store.migrate()):
        journal.say(statement)
    print(f"migrated {store.root}: {len(done)} changes")


def retain(store: Store, args: argparse.Namespace, journal: Journal) -> None:
    """Remove what is older than asked for, or tell what would be removed."""
    first = before(args)
    assert first is not None
    old = find_old(store, first, args.keep_night)
    print(f"nights before {first}: rows per user of {len(old.runs)} runs, {len(old.splits)} splits")
    if not args.dry_run:
        journal.say(f"remove nights before {first}")
        drop_old(store, old)
