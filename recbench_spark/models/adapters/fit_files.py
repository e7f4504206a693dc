"""A fit's files beside the tables of trained models: weights, checkpoints.

A driver on another host continues from copies of checkpoints in object storage. A copy is a folder with a
private name and a seal, and the object `current.txt` names the newest whole one. In each epoch the best
weights are written before the last ones. So a copy takes the last ones first: the best ones beside them are
as new, or newer, and a continued fit computes the same bits again.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from recbench_spark.errors import StoreError
from recbench_spark.models.adapters.model_adapter import SplitData
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.storage.host_files import copy_file_to_object
from recbench_spark.storage.leases import Lease, run_beside
from recbench_spark.storage.made_folders import CURRENT, fetch_files, store_files
from recbench_spark.storage.makers import cache_in_process
from recbench_spark.storage.objects import read_bytes, remove_objects, stat_objects, write_text
from recbench_spark.storage.publish import remove_tree, replace_text
from recbench_spark.storage.seals import find_damage, read_seal, write_seal
from recbench_spark.storage.uris import join_uri

CHECKPOINTS = "checkpoints"
"""Checkpoint folder in a fit's work folder."""

FILES = ("last.safetensors", "best.safetensors")
"""A fit's checkpoint files, in copying order."""

LOOK_SECONDS, COPY_SECONDS = 2.0, 60.0
"""Seconds between two looks for the first checkpoints, and between two copies."""


def fetch_checkpoints(place: str, folder: Path, report: Callable[[str], object] = lambda _: None) -> bool:
    """Fetch the newest checkpoint copy, unless this host is ahead.

    A host is ahead if it made the copy, or has later checkpoints.

    Args:
        place: URI of the folder with copies.
        folder: checkpoint folder on this host.
        report: gets a line about a missing or damaged copy.

    Returns:
        True if a copy was fetched. A missing or damaged copy counts as none: the fit continues from this
        host's files, or begins anew.

    Raises:
        StoreError: the storage does not answer.
    """
    name = read_bytes(join_uri(place, CURRENT))
    own = (folder / CURRENT).read_bytes() if (folder / CURRENT).exists() else None
    if name is None or name == own:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=folder.parent) as scratch:
        fetched = Path(scratch, CHECKPOINTS)
        fetched.mkdir()
        try:
            fetch_files(join_uri(place, name.decode()), fetched)
        except StoreError as error:
            start = "from what this host has" if folder.exists() else "from the beginning"
            report(f"a copy of checkpoints cannot be used, so the fit goes on {start}: {error.message}")
            return False
        replace_text(fetched / CURRENT, name.decode())
        remove_tree(folder)
        fetched.rename(folder)
    return True


def copy_checkpoints(lease: Lease, folder: Path) -> bool:
    """Copy checkpoints to a lease's folder; return False without any.

    A failed copy leaves nothing.

    Raises:
        StoreError: another run holds the lease now, or the storage does not answer.
    """
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=folder.parent) as scratch:
        for name in FILES:
            with suppress(FileNotFoundError):
                os.link(folder / name, Path(scratch, name))
        if not all(Path(scratch, name).exists() for name in FILES):
            return False
        write_seal(Path(scratch))
        lease.require()
        before, name = read_bytes(join_uri(lease.target, CURRENT)), uuid.uuid4().hex
        try:
            store_files(Path(scratch), join_uri(lease.target, name))
            lease.require()
            write_text(join_uri(lease.target, CURRENT), name)
        except StoreError:
            with suppress(StoreError):
                remove_objects(join_uri(lease.target, name))
            raise
    replace_text(folder / CURRENT, name)
    if before:
        remove_objects(join_uri(lease.target, before.decode()))
    return True


@contextmanager
def keep_copies(lease: Lease, folder: Path, report: Callable[[str], object]) -> Iterator[None]:
    """Fetch the newest checkpoints; copy new ones during the block.

    Args:
        lease: the lease of the fit.
        folder: checkpoint folder on this host.
        report: gets a line if checkpoints were fetched or could not be, and at the first failed copy.
    """
    for left in folder.parent.glob(".copy-*"):  # left by killed runs: one host has one fit per lease
        remove_tree(left)
    if fetch_checkpoints(lease.target, folder, report):
        report("checkpoints of another host were fetched")
    with run_beside(partial(_copy_until, lease, folder, report)):
        yield


def _copy_until(lease: Lease, folder: Path, report: Callable[[str], object], stop: threading.Event) -> None:
    copied: tuple[int, int] | None = None
    seconds, failed = LOOK_SECONDS, False
    while not stop.wait(seconds):
        state = _read_state(folder)
        if state in (None, copied):
            continue
        # Without a copy another host begins anew; the fit itself reads only this host's files.
        try:
            if copy_checkpoints(lease, folder):
                copied, seconds = state, COPY_SECONDS
        except (StoreError, OSError) as error:
            seconds = COPY_SECONDS
            if not failed:
                report(f"checkpoints are not copied: {error}")
            failed = True


def _read_state(folder: Path) -> tuple[int, int] | None:
    """Return a mark which changes with each checkpoint, else None."""
    try:
        status = (folder / FILES[0]).stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


WEIGHTS_FILE = "weights.safetensors"
"""File in a fit's folder with the final weights; `recbench embed --weights` reads those of graph models."""


def find_weights(data: SplitData, key: str) -> str:
    """Return the path or URI of a model's weights."""
    return join_uri(data.store.files_root, f"{FIT_FILES}/{key}/{WEIGHTS_FILE}")


def has_weights(data: SplitData, key: str) -> bool:
    """Return true if a model's weights are in the warehouse.

    Raises:
        StoreError: the file in a folder holds other bytes than the fit wrote.
    """
    place = find_weights(data, key)
    if (weights := next(stat_objects(place), None)) is None:
        return False
    folder = place.rpartition("/")[0]
    # Folders from older versions have no seal.
    if read_seal(folder) and (damage := _find_damage(folder, weights.size, weights.tag)):
        raise StoreError(damage, f"remove {folder}: the next run fits the model again")
    return True


@cache_in_process(256)
def _find_damage(folder: str, size: int, tag: str) -> str:
    """Compare a folder with its seal.

    A process reads a file's bytes once per size and time.
    """
    del size, tag  # part of the key
    return find_damage(folder, digests=True)


def keep_weights(data: SplitData, key: str, append: Callable[[], None]) -> None:
    """Append a model's tables, publish WEIGHTS_FILE, remove other files.

    On object storage the weights are written first, so a model with vectors is complete. In a folder the
    target becomes visible last, with a seal, and its lease ends.

    Args:
        data: the split, with the lease of the fit.
        key: key of the model.
        append: appends the tables.
    """
    assert data.lease is not None
    if data.store.folder is None:
        copy_file_to_object(data.lease.work / WEIGHTS_FILE, find_weights(data, key))
        append()
        return
    append()
    for entry in data.lease.work.iterdir():
        if entry.name != WEIGHTS_FILE:
            remove_tree(entry)
    write_seal(data.lease.work)
    data.lease.publish()
