"""Retention of the files that fits leave: checkpoints, models, predictions, logs that they learnt from.

What a night fitted goes with its split. What `jobs/benchmark.py` and `jobs/tune.py` fitted, and files of
bundles, go when nothing has written to them since the first night that is kept. Rows of `fits` and `trials`
stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path

from recbench_spark.schemas import SPLITS
from recbench_spark.steps.keeping_graphs import is_old
from recbench_spark.store import Store

ROOMS = ("fit_files", "fit_files/logs", "fit_files/bundles")
"""Folders of a warehouse whose folders are of a fit, a log or a bundle each. `fits` is a table."""


def find_old_fits(
    store: Store, before: date, keep: Sequence[date] = (), splits: Collection[str] = ()
) -> tuple[Path, ...]:
    """Folders that no kept night needs.

    Args:
        store: the warehouse; one that is no folder keeps nothing that is found here.
        before: the first night that is kept.
        keep: earlier nights that are kept.
        splits: those that are about to be removed.
    """
    there = {row.split_id for row in store.read(SPLITS).select("split_id").distinct().collect()}
    kept = there - set(splits)
    return tuple(sorted(folder for folder in _folders(store) if is_old(folder, 1, kept, before, keep)))


def _folders(store: Store) -> Iterator[Path]:
    for room in ROOMS if store.folder is not None else ():
        place = (store.folder or Path()) / room
        if place.is_dir():
            inside = (folder for folder in place.iterdir() if folder.is_dir())
            yield from (f for f in inside if f"{room}/{f.name}" not in ROOMS)


def drop_old_fits(folders: Sequence[Path]) -> None:
    """Delete them."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
