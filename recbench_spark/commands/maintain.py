"""Maintain a warehouse: retention, compaction, migration.

    recbench maintain --warehouse DIR --logical-date 2026-06-30 --keep-days 90 --optimize
    recbench maintain --warehouse DIR --vacuum-hours 168
    recbench maintain --warehouse DIR --migrate

--keep-days N keeps the rows per user (rankings, user_metrics) and the splits, blocks and models of nights
of the last N days before --logical-date; metrics, checks, comparisons and runs are kept for ever. Files of
graphs are removed with their split. Files of edge lists, layers of models over them, files of fits, and
logs of auctions that are laid out are removed if nothing has used them since (embeddings and rows of `fits`
and `trials` stay). A removed night can be run again. A run fails if its split is removed meanwhile, so do
not run both at the same time.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta
from functools import partial

from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError

if __name__ != "flags":
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.maintenance import retention
    from recbench_spark.night.night import yesterday_stamp
    from recbench_spark.night.runners import choose_job_runner, count_no_log
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import TABLES
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.migration import migrate as migrate_tables


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "warehouse")
    add("--migrate", action="store_true", help="bring an older warehouse to this schema")
    add("--keep-days", type=int, metavar="N", help="nights whose rows per user are kept")
    cli.add_flags(flags, "logical-date", help="the day that --keep-days counts back from")
    add("--keep-night", **cli.MANY, type=cli.parse_day, metavar="DAY", help="a night never removed")
    add("--optimize", action="store_true", help="compact small files")
    add("--vacuum-hours", type=int, metavar="N", help="remove files unused for N hours; ends time travel")
    cli.add_flags(flags, "engine")
    cli.add_flags(flags, "dry-run", help="say what retention would remove, and stop")
    return flags


MIN_VACUUM_HOURS = 24
"""Fewest hours for a vacuum.

A night may still read or write younger files.
"""


def main(args: argparse.Namespace) -> int:
    """Check the flags, migrate, remove old files, compact tables."""
    check_flags(args)
    require_warehouse(args.warehouse)
    chosen = choose_job_runner(args.engine, args.warehouse, count_no_log, tuple(TABLES.values()))
    return run_job("maintain", args, chosen, partial(maintain, args), any_version=args.migrate)


def maintain(args: argparse.Namespace, store: FileTables) -> int:
    """Migrate, remove old files and compact tables."""
    journal, upkeep = Journal(), retention.Upkeep(store)
    if args.migrate:
        migrate(store, journal)
    if args.keep_days is not None:
        retain(upkeep, args, journal)
    if args.dry_run:
        return OK
    journal.say("remove what killed runs left")
    store.delete_orphans(yesterday_stamp(store))
    if store.file_place():
        retention.remove_private_files(store.root, store.read_clock() - retention.MAX_NIGHT_SECONDS)
    for name in filter(store.exists, TABLES):
        if args.optimize and upkeep.compact_table(name):
            journal.say(f"optimized {name}")
        if args.vacuum_hours is not None:
            journal.say(f"vacuum {name}")
            store.vacuum(name, args.vacuum_hours)
    return OK


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags' values.

    Raises:
        ConfigError: a value makes no sense.
    """
    if not (args.migrate or args.optimize or args.keep_days is not None or args.vacuum_hours is not None):
        raise ConfigError("nothing to do", "--migrate, --keep-days N, --optimize, --vacuum-hours N")
    if args.keep_days is not None and (args.keep_days < 1 or args.logical_date is None):
        raise ConfigError("--keep-days needs at least 1 day and --logical-date, the day to count from")
    first_retained_night(args)
    if args.vacuum_hours is not None and args.vacuum_hours < MIN_VACUUM_HOURS:
        raise ConfigError(
            f"--vacuum-hours {args.vacuum_hours}: at least {MIN_VACUUM_HOURS}", "a night may be running"
        )


def first_retained_night(args: argparse.Namespace) -> date | None:
    """Return the first night to keep; None keeps all."""
    if args.keep_days is None:
        return None
    try:
        first: date = args.logical_date - timedelta(days=args.keep_days)
    except OverflowError:
        message = f"--keep-days {args.keep_days}: before the calendar begins"
        raise ConfigError(message, "leave the flag out to keep every night") from None
    return first


def migrate(store: FileTables, journal: Journal) -> None:
    """Bring the tables to the current schema, reporting each step."""
    for statement in (done := migrate_tables(store)):
        journal.say(statement)
    print(f"migrated {store.root}: {len(done)} changes")


def retain(upkeep: retention.Upkeep, args: argparse.Namespace, journal: Journal) -> None:
    """Remove old nights' rows and files; --dry-run only lists them."""
    first = first_retained_night(args)
    assert first is not None
    store, old = upkeep.store, upkeep.find_old_results(first, args.keep_night)
    graphs, fits, layouts = retention.OldGraphs(), tuple[str, ...](), tuple[str, ...]()
    if store.file_place():  # a catalog where Spark writes has no such files
        rule = upkeep.read_rule(first, args.keep_night, old.splits)
        graphs = retention.find_old_graphs(store.root, rule)
        fits = retention.find_old_fits(store.root, rule)
        layouts = retention.find_old_layouts(store.root, rule)
    megabytes, layers = graphs.size / 1e6, len(graphs.models)
    print(f"nights before {first}: rows per user of {len(old.runs)} runs, {len(old.splits)} splits")
    print(f"graph_files: {len(graphs.folders)} folders, {megabytes:.1f} MB; layers of {layers} models")
    print(f"fit_files: {len(fits)} folders")
    print(f"auction_logs: {len(layouts)} folders")
    for folder in (*graphs.folders, *fits, *layouts) if args.dry_run else ():
        print(f"  {folder}")
    if not args.dry_run:
        journal.say(f"remove nights before {first}")
        upkeep.drop_old_results(old)
        upkeep.drop_old_graphs(graphs)
        retention.remove_folders((*fits, *layouts), store.find_use_time(retention.MAX_NIGHT_SECONDS))
