"""Retention of the files of fits: checkpoints, models, predictions, and the logs that they learnt from.

Files that a night fitted are removed with its split. Files of `jobs/benchmark.py`, `jobs/tune.py` and of
bundles are removed if nothing has written to them since the first night that is kept. Rows of `fits` and
`trials` stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path

from recbench_spark.maintenance.retention import SHARED_FOLDERS, RetentionRule, find_old_folders
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.tasks import FIT_FILES


def find_old_fits(
    store: Store, before: date, keep: Sequence[date] = (), splits: Collection[str] = ()
) -> tuple[Path, ...]:
    """Return the folders that no kept night needs.

    Args:
        store: the warehouse; one that is no folder has no such files.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        splits: splits that will be removed.
    """
    if store.folder is None:
        return ()
    rule = RetentionRule.read(store, before, keep, splits)
    parents = [store.folder / parent for parent in SHARED_FOLDERS if parent.startswith(FIT_FILES)]
    return tuple(sorted(folder for parent in parents for folder in find_old_folders(parent, 1, rule)))
