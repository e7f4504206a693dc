"""Find files and rows a night should have but lacks.

Files are named in its tables' logs; rows belong to its runs. Nothing here needs Java. `mending` removes
lost files from the logs and lets the night make the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from functools import partial

from recbench_spark.schemas import (
    BESIDE_COMPARISONS,
    CEILINGS,
    CHANGES,
    CHECKS,
    COMPARISONS,
    CURVE_CROSSINGS,
    FLIPS,
    ITEMS,
    LEARNING_CURVES,
    MANIFESTS,
    METRICS,
    PARADOXES,
    RETRIEVAL_RUNS,
    RUNS,
    SPLITS,
    TABLES,
    USER_BLOCKS,
    Table,
)
from recbench_spark.storage import delta_files
from recbench_spark.storage.file_tables import FileTables, RowReader
from recbench_spark.storage.object_access import map_together
from recbench_spark.storage.table_upkeep import LostFile

OWNERS = ("split_id", "model_id", "graph_id", "neighbourhood_id", "nearest_id")
"""Partition columns whose values are, or begin with, a split's name."""

RUN_TABLES = (METRICS, CHECKS, CEILINGS, LEARNING_CURVES, RETRIEVAL_RUNS)
"""Run tables without partitions."""

WHOLE_TABLES = (
    RUNS, MANIFESTS, *RUN_TABLES, COMPARISONS, *BESIDE_COMPARISONS, PARADOXES, FLIPS, CHANGES,
    CURVE_CROSSINGS,
)  # fmt: skip
"""Unpartitioned tables every night reads."""

ALWAYS = (METRICS.name, MANIFESTS.name, SPLITS.name, ITEMS.name, USER_BLOCKS.name)
"""Tables every night has."""

PARTITIONED_TABLES = tuple(
    table
    for table in TABLES.values()
    if table.partition_by and table.partition_by[0] in ("run_id", *OWNERS)
)
"""Tables with a partition for each run, split or model."""


SPLIT_TABLES = frozenset(
    (MANIFESTS.name, *(table.name for table in PARTITIONED_TABLES if table.partition_by[0] in OWNERS))
)
"""Tables of a split and its models."""

LOST_WHOLLY = frozenset((*(table.name for table in RUN_TABLES), *SPLIT_TABLES))
"""Tables where a lost file may hold rows of every run."""


@dataclass(frozen=True)
class LostRows:
    """Rows and files missing from a night's tables.

    Attributes:
        files: lost files by table.
        absent: tables that do not exist, or lack all rows of one of the night's runs.
        run_ids: succeeded runs without rows.
        splits: names of splits without rows.
    """

    files: Mapping[str, Sequence[LostFile]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    run_ids: frozenset[str] = frozenset()
    splits: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Tell whether anything is lost."""
        return bool(self.files or self.absent)

    def describe(self) -> str:
        """Describe the loss: each table with its first lost file."""
        parts = [
            f"table {name} lacks {len(lost):,} of the files that its log names ({lost[0].path})"
            for name, lost in self.files.items()
        ]
        parts += [f"table {name} is not there, or lacks rows of the night" for name in self.absent]
        return "; ".join(parts)


def find_lost_rows(
    store: FileTables, suite: str, day: date, split_hash: str, had: Iterable[str] = ()
) -> LostRows:
    """Compare a night's tables with their logs and its runs.

    Args:
        store: the warehouse.
        suite: the benchmark's name.
        day: the night.
        split_hash: its split's name, without the number of times it was dropped.
        had: tables that held rows of this night when it ended, according to its file in `results/`.
    """
    files = _list_lost(store, WHOLE_TABLES, lambda _: True)
    if RUNS.name in files or not store.exists(RUNS.name):
        return LostRows(files)  # what the night has is known when `runs` can be read
    filters = [("suite", "=", suite), ("logical_date", "=", day)]
    runs = store.rows(RUNS, filters, ["run_id", "split_id", "status"])
    run_ids = {row["run_id"] for row in runs}
    files |= _list_lost(
        store, PARTITIONED_TABLES, lambda owner: owner in run_ids or hash_owner(owner) == split_hash
    )
    done = {row["run_id"]: row["split_id"] for row in runs if row["status"] == "succeeded"}
    gone = [name for name in sorted({*had, *ALWAYS}) if done and not store.exists(name)]
    empty = _find_empty_runs(store.rows, done, {*files, *gone})
    absent = (*gone, *(name for name, runs_without in empty.items() if runs_without))
    owners = {one.owner for lost in files.values() for one in lost}
    splits = {name_split(owner) for owner in owners - run_ids - {""}}
    if not SPLIT_TABLES.isdisjoint((*files, *absent)):
        splits |= {split for split in done.values() if split and hash_owner(split) == split_hash}
    lost = owners | empty[METRICS.name]
    wholly = splits or gone or not LOST_WHOLLY.isdisjoint(files)
    return LostRows(files, absent, frozenset(done if wholly else lost & done.keys()), frozenset(splits))


def name_split(owner: str) -> str:
    """Return the split's name in front of a partition's value."""
    return owner.partition("-")[0]


def hash_owner(owner: str) -> str:
    """Return the split's hash in front of a partition's value."""
    return name_split(owner).partition(".")[0]


def list_filled_tables(store: FileTables, run_ids: Set[str], split_hash: str) -> list[str]:
    """List the tables with rows of runs or a split.

    Tables of the split's models count too.
    """
    filled = [
        table.name
        for table in PARTITIONED_TABLES
        if store.exists(table.name)
        for owner in delta_files.partition_values(store.location(table.name), table.partition_by[0])
        if owner in run_ids or hash_owner(owner) == split_hash
    ]
    filters = [("run_id", "in", sorted(run_ids))]
    filled += [table.name for table in RUN_TABLES if run_ids and store.rows(table, filters, ["run_id"])]
    return sorted({*filled, *ALWAYS})


def _find_empty_runs(read: RowReader, done: Mapping[str, str], unread: Set[str]) -> dict[str, set[str]]:
    """Find succeeded runs without rows of `metrics` or `manifests`.

    Rows of `manifests` are those for their split.
    """
    empty: dict[str, set[str]] = {METRICS.name: set(), MANIFESTS.name: set()}
    if done and METRICS.name not in unread:
        rows = read(METRICS, [("run_id", "in", sorted(done))], ["run_id"])
        empty[METRICS.name] = done.keys() - {row["run_id"] for row in rows}
    splits = {split for split in done.values() if split}
    if splits and MANIFESTS.name not in unread:
        rows = read(MANIFESTS, [("split_id", "in", sorted(splits))], ["split_id"])
        audited = {row["split_id"] for row in rows}
        empty[MANIFESTS.name] = {run_id for run_id, split in done.items() if split not in audited}
    return empty


def _list_lost(
    store: FileTables, tables: Sequence[Table], is_owner: Callable[[str], bool]
) -> dict[str, Sequence[LostFile]]:
    """List lost files by table, for tables that have any.

    Only partitions accepted by `is_owner` are looked at.
    """
    look = partial(store.list_lost_files, is_owner=is_owner)
    lost_by_table = zip(tables, map_together(store.root, look, tables), strict=True)
    return {table.name: lost for table, lost in lost_by_table if lost}
