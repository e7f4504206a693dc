"""Keep a warehouse small and fast.

Retention removes old results, compaction joins small files, and leftovers from killed runs go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

from recbench_spark.night.split import drop_splits
from recbench_spark.schemas import RUNS, SPLITS, TABLES, Table
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.object_access import map_together

LARGE_RESULTS = ("rankings", "user_metrics", "curve_values", "curve_rankings")
"""Tables with a row for each user and run. Metrics and checks are small and stay, however old the night."""


@dataclass(frozen=True)
class OldResults:
    """Runs and splits for retention to remove."""

    runs: tuple[str, ...]
    splits: tuple[str, ...]


def find_old_results(store: FileTables, before: date, keep: Sequence[date] = ()) -> OldResults:
    """Return earlier runs with user rows, and their own splits.

    Such a split has no kept run. The driver holds names of runs and splits, and no row for a user.
    """
    known, kept, used = set[str](), set[str](), dict[str, bool]()
    for row in store.rows(RUNS, [], ["run_id", "split_id", "logical_date"]):
        is_kept = row["logical_date"] >= before or row["logical_date"] in keep
        used[row["split_id"]] = used.get(row["split_id"], False) or is_kept
        kept |= {row["run_id"]} if is_kept else set()
        known.add(row["run_id"])
    stored = map_together(store.root, partial(list_known, store), [TABLES[name] for name in LARGE_RESULTS])
    run_ids = (known - kept) & set().union(*stored)
    splits = list_known(store, SPLITS) & {name for name, is_kept in used.items() if not is_kept}
    return OldResults(tuple(sorted(run_ids)), tuple(sorted(splits)))


def list_known(store: FileTables, table: Table) -> set[str]:
    """Return a table's partition values; none without the table."""
    return store.list_values(table, table.partition_by[0]) if store.exists(table.name) else set()


def drop_old_results(store: FileTables, old: OldResults) -> None:
    """Delete old results."""
    for name in filter(store.exists, LARGE_RESULTS):
        if old.runs:
            store.delete(name, "run_id", old.runs)
    if old.splits:
        drop_splits(store, old.splits, "removed by retention")
