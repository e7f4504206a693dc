"""Prepare a night whose rows were lost.

Its next steps make them again.
"""

from __future__ import annotations

from datetime import date
from functools import partial

from recbench_spark.config import Benchmark
from recbench_spark.night.lost_rows import LostRows, find_lost_rows
from recbench_spark.night.night_status import read_filled_tables
from recbench_spark.night.run_keys import hash_split
from recbench_spark.night.split import drop_splits
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import RUNS
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.retries import is_delta_conflict, retry_while
from recbench_spark.storage.table_upkeep import forget_files


def mend_night(store: FileTables, benchmark: Benchmark, day: date, journal: Journal) -> None:
    """Remove traces of lost rows, so they are made again.

    Lost files leave their logs, runs without rows fail, and splits without rows are dropped. The runs
    fail first: a job killed in between leaves no succeeded run without rows. In a catalog where Spark
    writes, only tables and rows are looked for, no files.

    Args:
        store: the warehouse.
        benchmark: its placeholders are filled in.
        day: the night.
        journal: gets a line for each step.
    """
    split_hash, _ = hash_split(choose_identity(store), benchmark)
    find = partial(find_lost_rows, store, benchmark.name, day, split_hash)
    lost = find(read_filled_tables(store.root, benchmark.name, day))
    if RUNS.name in lost.files:
        _forget(store, lost, journal)
        lost = find(read_filled_tables(store.root, benchmark.name, day))
    if not lost:
        return
    journal.say(f"night {day}: {lost.describe()}: made again")
    for run_id in sorted(lost.run_ids):
        _fail_run(store, run_id, lost.describe())
    _forget(store, lost, journal)
    if lost.splits:
        drop_splits(store, sorted(lost.splits), "lost rows")


def _fail_run(store: FileTables, run_id: str, reason: str) -> None:
    """Set a run's state to `failed`, so nobody reads it."""
    rows = store.rows(RUNS, [("run_id", "=", run_id)])
    failed = [{**row, "status": "failed", "error": f"rows were lost: {reason}"} for row in rows]
    store.replace_rows(failed, RUNS, "run_id", run_id)


def _forget(store: FileTables, lost: LostRows, journal: Journal) -> None:
    for name, files in lost.files.items():
        journal.say(f"table {name}: {len(files):,} lost files are removed from its log")
        forget = partial(forget_files, store.location(name), [one.path for one in files])
        retry_while(is_delta_conflict, f"mend {name}", forget)
