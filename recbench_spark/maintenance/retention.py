"""Retention of folders that runs share: find old ones and remove them.

Nothing is removed that a living run may use: data used within a day or since the longest running job began,
and data with a lease whose owner may be alive. All times are by the storage's clock. Remains of ended
owners follow the same rule as the folder that they were making.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from recbench_spark.graph.folders import FOLDER, MANIFEST, NIGHT_NOTE
from recbench_spark.schemas import SPLITS
from recbench_spark.simulation.log_layout import LAYOUTS
from recbench_spark.simulation.log_layout import MANIFEST as LAYOUT_MANIFEST
from recbench_spark.simulation.part_files import FACTS
from recbench_spark.storage.host_files import PRIVATE_FOLDER
from recbench_spark.storage.leases import find_target, is_held_within, list_abandoned, remove_work
from recbench_spark.storage.made_folders import CURRENT
from recbench_spark.storage.marks import oldest_work
from recbench_spark.storage.objects import (
    list_drafts,
    read_bytes,
    remove_object,
    remove_objects,
    stat_objects,
)
from recbench_spark.storage.publish import newest_time, read_clock, remove_leftovers, remove_published
from recbench_spark.storage.uris import arrow_uri, join_uri
from recbench_spark.training.fits.tasks import FIT_FILES

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore

MAX_NIGHT_SECONDS = 24 * 3600
"""Seconds after which a night is over: a day."""

SHARED_FOLDERS = (
    FOLDER, f"{FOLDER}/models", FIT_FILES, f"{FIT_FILES}/logs", f"{FIT_FILES}/bundles", LAYOUTS,
)  # fmt: skip
"""Folders of a warehouse whose subfolders are each a graph, a model, a fit, a log, a bundle, or a log of
auctions that is laid out."""

USE_MARKS = (MANIFEST, NIGHT_NOTE, LAYOUT_MANIFEST, FACTS)
"""Files of such folders that each use touches."""

NO_SPLIT = 1 << 30
"""Dashes of the names of split folders, where no folder belongs to a split."""


@dataclass(frozen=True)
class RetentionRule:
    """Rule of retention that decides which folders are old.

    Attributes:
        splits: splits that stay; a folder of such a split stays with it.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        in_use: seconds since 1970 by the storage's clock; data used later may be in use.
    """

    splits: frozenset[str]
    before: date
    keep: tuple[date, ...]
    in_use: float

    @classmethod
    def read(
        cls, store: AnyStore, before: date, keep: Sequence[date], doomed: Collection[str]
    ) -> RetentionRule:
        """Return the rule for a warehouse; `doomed`: splits that will be removed."""
        existing = store.list_values(SPLITS, "split_id") if store.exists(SPLITS.name) else set()
        if store.folder is not None:
            in_use = time_in_use(store.folder)
        else:  # object storage has no marks of work: a night is over after a day
            in_use = store.read_clock() - MAX_NIGHT_SECONDS
        return cls(frozenset(existing - set(doomed)), before, tuple(keep), in_use)

    def is_old(self, name: str, last_use: float, dashes: int) -> bool:
        """Return whether nobody needs a folder.

        The name of a split's folder has `dashes`, and the id of the split before them.
        """
        if last_use > self.in_use:
            return False
        if name.count("-") >= dashes:
            return name.partition("-")[0] not in self.splits
        day = datetime.fromtimestamp(last_use, UTC).date()
        return day < self.before and day not in self.keep


def time_in_use(root: Path) -> float:
    """Return since when data may be in use: a day ago, or before the longest running job began."""
    began = oldest_work(root)
    return (
        read_clock(root) - MAX_NIGHT_SECONDS
        if began is None
        else min(began, read_clock(root) - MAX_NIGHT_SECONDS)
    )


def find_old_folders(parent: Path, dashes: int, rule: RetentionRule) -> list[Path]:
    """Return the old folders in `parent`, and old leases and work folders of owners that have ended."""
    folders = [path for path in parent.iterdir() if _is_shared_folder(path)] if parent.is_dir() else []
    old = [path for path in folders if rule.is_old(path.name, last_use_time(path), dashes)]
    for target, remains in list_abandoned(parent).items():
        if rule.is_old(target.name, max(map(newest_time, remains)), dashes):
            old.extend(remains)
    return sorted(path for path in old if not is_held_within(path))


def _is_shared_folder(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.is_dir() and "/".join(path.parts[-2:]) not in SHARED_FOLDERS


def last_use_time(folder: Path) -> float:
    """Return the time of the last use in seconds since 1970; of the newest file where none was finished."""
    marks = [file for name in USE_MARKS if (file := folder / name).is_file()]
    return max(file.stat().st_mtime for file in marks) if marks else newest_time(folder)


def find_old_fits(
    store: AnyStore, before: date, keep: Sequence[date] = (), splits: Collection[str] = ()
) -> tuple[Path | str, ...]:
    """Return the folders of fits, their logs and bundles that no kept night needs; URIs of object storage.

    Files that a night fitted are removed with its split. Files of `jobs/benchmark.py`, `jobs/tune.py` and
    of bundles are removed if nothing has written to them since the first night that is kept. Rows of `fits`
    and `trials` stay.

    Args:
        store: the warehouse; of a catalog where Spark writes no files are found.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        splits: splits that will be removed.
    """
    if store.folder is None:
        if not store.is_file_storage:
            return ()
        rule = RetentionRule.read(store, before, keep, splits)
        return tuple(find_old_objects(join_uri(store.root, FIT_FILES), 1, rule))
    rule = RetentionRule.read(store, before, keep, splits)
    parents = [store.folder / parent for parent in SHARED_FOLDERS if parent.startswith(FIT_FILES)]
    return tuple(sorted(folder for parent in parents for folder in find_old_folders(parent, 1, rule)))


def find_old_layouts(store: AnyStore, before: date, keep: Sequence[date] = ()) -> tuple[Path, ...]:
    """Return the folders of logs of auctions, and of their counts, that no replay has used lately.

    Args:
        store: the warehouse; one that is no folder has no such files.
        before: the first night that is kept.
        keep: earlier nights that are kept.
    """
    if store.folder is None:
        return ()
    rule = RetentionRule.read(store, before, keep, ())
    return tuple(find_old_folders(store.folder / LAYOUTS, NO_SPLIT, rule))


def find_old_objects(root: str, dashes: int, rule: RetentionRule) -> dict[str, int]:
    """Return the old folders of object storage below a folder: their URIs in order, and their bytes.

    All objects below it are listed; a time and a size are held for each folder.

    Args:
        root: URI of `fit_files` or `graph_files`. Its folders are fits or graphs, and those of
            SHARED_FOLDERS hold folders.
        dashes: dashes in the name of a split's folder (`RetentionRule.is_old`); 1 in those that are held.
        rule: says which are old, by the time of the newest object in a folder.
    """
    last_use: dict[tuple[str, ...], float] = {}
    size: dict[tuple[str, ...], int] = {}
    for entry in stat_objects(root):
        if folder := _find_shared_folder(root, entry.name):
            last_use[folder] = max(last_use.get(folder, 0.0), entry.written)
            size[folder] = size.get(folder, 0) + entry.size
    old = (
        names
        for names, time in last_use.items()
        if rule.is_old(names[-1], time, dashes if len(names) == 1 else 1)
    )
    return {join_uri(root, "/".join(names)): size[names] for names in sorted(old)}


def _find_shared_folder(root: str, name: str) -> tuple[str, ...]:
    """Return the parts of the name of an object's shared folder below `root`; () for a stray object."""
    names = name.split("/")
    depth = 2 if f"{root.rsplit('/', 1)[1]}/{names[0]}" in SHARED_FOLDERS else 1
    return tuple(names[:depth]) if len(names) > depth else ()


def remove_folders(store: AnyStore, old: Sequence[Path | str]) -> None:
    """Remove the result of `find_old_folders` or `find_old_objects`.

    A folder that a run has begun to use since then stays.
    """
    if places := [place for place in old if isinstance(place, str)]:
        for place in find_unused_objects(places, store.read_clock() - MAX_NIGHT_SECONDS):
            remove_objects(place)
    in_use = 0.0 if store.folder is None else time_in_use(store.folder)
    for path in (path for path in old if isinstance(path, Path)):
        if not path.exists() or last_use_time(path) > in_use or is_held_within(path):
            continue
        if path.name.startswith("."):
            remove_work(find_target(path))
        else:
            remove_published(path)


def find_unused_objects(places: Sequence[str], in_use: float) -> list[str]:
    """Return the places below which nothing was written after a time of the storage's clock."""
    return [place for place in places if all(entry.written <= in_use for entry in stat_objects(place))]


def remove_private_files(store: AnyStore) -> int:
    """Remove private files and folders that killed processes left behind; return their number."""
    if store.folder is not None:
        return sum(remove_leftovers(store.folder / folder) for folder in SHARED_FOLDERS)
    if not store.is_file_storage:
        return 0
    in_use = store.read_clock() - MAX_NIGHT_SECONDS
    roots = (join_uri(store.root, folder) for folder in (FOLDER, FIT_FILES))
    folders = sum(remove_private_objects(root, in_use) for root in roots)
    return folders + remove_drafts(arrow_uri(store.root), in_use)


def remove_drafts(root: str, in_use: float) -> int:
    """Remove files that killed writers on HDFS left under private names; return their number.

    Args:
        root: URI of the warehouse.
        in_use: seconds since 1970 by the storage's clock; a newer file stays.
    """
    old = [join_uri(root, entry.name) for entry in list_drafts(root) if entry.written <= in_use]
    for place in old:
        remove_object(place)
    return len(old)


def remove_private_objects(root: str, in_use: float) -> int:
    """Remove the private folders of object storage that nothing names; return their number.

    Killed runs left them, and runs that came second. A folder that counts is named by `current.txt`
    (`made_folders`) beside it.

    Args:
        root: URI of `fit_files` or `graph_files`.
        in_use: seconds since 1970 by the storage's clock; a folder with a newer object stays.
    """
    newest: dict[tuple[str, str], float] = {}
    for entry in stat_objects(root):
        folder = "/".join(_find_shared_folder(root, entry.name))
        name = entry.name.removeprefix(f"{folder}/").partition("/")[0]
        if folder and PRIVATE_FOLDER.fullmatch(name):
            newest[folder, name] = max(newest.get((folder, name), 0.0), entry.written)
    old = [(join_uri(root, folder), name) for (folder, name), time in newest.items() if time <= in_use]
    unnamed = [join_uri(target, name) for target, name in old if _read_named_folder(target) != name]
    for place in unnamed:
        remove_objects(place)
    return len(unnamed)


def _read_named_folder(target: str) -> str:
    """Return the name of the private folder of a place that counts; empty: none."""
    return (read_bytes(join_uri(target, CURRENT)) or b"").decode()
