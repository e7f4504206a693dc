"""Keep a warehouse small and fast: retention, compaction, removal of the remains of killed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.nightly.split import drop_splits
from recbench_spark.schemas import RUNS, SPLITS, TABLES, Table
from recbench_spark.storage.store import Store

LARGE_RESULTS = ("rankings", "user_metrics", "curve_values", "curve_rankings")
"""Tables with a row for each user and run. Metrics and checks of an old night are small and stay."""


@dataclass(frozen=True)
class OldResults:
    """Runs and splits that retention removes."""

    runs: tuple[str, ...]
    splits: tuple[str, ...]


def find_old_results(store: Store, before: date, keep: Sequence[date] = ()) -> OldResults:
    """Return runs of earlier nights that have rows of users, and splits that only such runs have used.

    The driver holds names of runs and splits, no row for a user.
    """
    is_kept = (F.col("logical_date") >= F.lit(before)) | F.col("logical_date").isin(list(keep))
    runs = store.read(RUNS).select("run_id", "split_id", is_kept.alias("kept"))
    used = runs.groupBy("split_id").agg(F.max("kept").alias("kept"))
    existing = store.read(SPLITS).select("split_id").distinct()
    splits = used.where(~F.col("kept")).join(existing, "split_id", "left_semi")
    run_ids = {run_id for name in LARGE_RESULTS for run_id in _runs_with_rows(store, TABLES[name], runs)}
    return OldResults(tuple(sorted(run_ids)), tuple(sorted(row.split_id for row in splits.collect())))


def _runs_with_rows(store: Store, table: Table, runs: DataFrame) -> list[str]:
    existing = store.read(table).select("run_id").distinct()
    return [
        row.run_id for row in runs.where(~F.col("kept")).join(existing, "run_id", "left_semi").collect()
    ]


def drop_old_results(store: Store, old: OldResults) -> None:
    """Delete old results."""
    for name in filter(store.exists, LARGE_RESULTS):
        if old.runs:
            store.delete(name, "run_id", old.runs)
    if old.splits:
        drop_splits(store, old.splits, "removed by retention")
