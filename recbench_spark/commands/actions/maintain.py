"""Maintain a warehouse: the work of `jobs/maintain.py`."""

from __future__ import annotations

import argparse
from datetime import date, timedelta
from functools import partial

from recbench_spark.commands.runners import run_job
from recbench_spark.commands.warehouses import require_warehouse
from recbench_spark.errors import OK, ConfigError
from recbench_spark.maintenance.compaction import drop_old_results, find_old_results
from recbench_spark.maintenance.graph_retention import (
    OldGraphs,
    compact_table,
    drop_old_graphs,
    find_old_graphs,
)
from recbench_spark.maintenance.retention import (
    MAX_NIGHT_SECONDS,
    RetentionRule,
    find_old_fits,
    find_old_layouts,
    remove_folders,
    remove_private_files,
)
from recbench_spark.night.night import yesterday_stamp
from recbench_spark.night.runners import choose_job_runner, count_no_log
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import TABLES
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.migration import migrate as migrate_tables

MIN_VACUUM_HOURS = 24
"""Fewest hours for a vacuum: a night may still read or write younger files."""


def run(args: argparse.Namespace) -> int:
    """Check the flags, then migrate, remove old files and compact tables."""
    check_flags(args)
    require_warehouse(args.warehouse)
    chosen = choose_job_runner(args.engine, args.warehouse, count_no_log, tuple(TABLES.values()))
    return run_job("maintain", args, chosen, partial(maintain, args), any_version=args.migrate)


def maintain(args: argparse.Namespace, store: FileTables) -> int:
    """Migrate, remove old files and compact tables."""
    journal = Journal()
    if args.migrate:
        migrate(store, journal)
    if args.keep_days is not None:
        retain(store, args, journal)
    if args.dry_run:
        return OK
    journal.say("remove what killed runs left")
    store.delete_orphans(yesterday_stamp(store))
    if store.is_file_storage:
        remove_private_files(store.root, store.read_clock() - MAX_NIGHT_SECONDS)
    for name in filter(store.exists, TABLES):
        if args.optimize and compact_table(store, name):
            journal.say(f"optimized {name}")
        if args.vacuum_hours is not None:
            journal.say(f"vacuum {name}")
            store.vacuum(name, args.vacuum_hours)
    return OK


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags. Raises ConfigError for values that make no sense."""
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
    """Return the first night that is kept; None if no night is removed."""
    if args.keep_days is None:
        return None
    try:
        first: date = args.logical_date - timedelta(days=args.keep_days)
    except OverflowError:
        message = f"--keep-days {args.keep_days}: before the calendar begins"
        raise ConfigError(message, "leave the flag out to keep every night") from None
    return first


def migrate(store: FileTables, journal: Journal) -> None:
    """Bring the tables to the current schema and report each step."""
    for statement in (done := migrate_tables(store)):
        journal.say(statement)
    print(f"migrated {store.root}: {len(done)} changes")


def retain(store: FileTables, args: argparse.Namespace, journal: Journal) -> None:
    """Remove the rows and files of old nights, or with --dry-run list them."""
    first = first_retained_night(args)
    assert first is not None
    old = find_old_results(store, first, args.keep_night)
    graphs, fits, layouts = OldGraphs(), tuple[str, ...](), tuple[str, ...]()
    if store.is_file_storage:  # a catalog where Spark writes has no such files
        rule = RetentionRule.read(store, first, args.keep_night, old.splits)
        graphs = find_old_graphs(store.root, rule)
        fits, layouts = find_old_fits(store.root, rule), find_old_layouts(store.root, rule)
    megabytes, layers = graphs.size / 1e6, len(graphs.models)
    print(f"nights before {first}: rows per user of {len(old.runs)} runs, {len(old.splits)} splits")
    print(f"graph_files: {len(graphs.folders)} folders, {megabytes:.1f} MB; layers of {layers} models")
    print(f"fit_files: {len(fits)} folders")
    print(f"auction_logs: {len(layouts)} folders")
    for folder in (*graphs.folders, *fits, *layouts) if args.dry_run else ():
        print(f"  {folder}")
    if not args.dry_run:
        journal.say(f"remove nights before {first}")
        drop_old_results(store, old)
        drop_old_graphs(store, graphs)
        remove_folders((*fits, *layouts), store.find_use_time(MAX_NIGHT_SECONDS))
