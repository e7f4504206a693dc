"""Keep a fit's weights beside the tables of trained models."""

from __future__ import annotations

from collections.abc import Callable

from recbench_spark.errors import StoreError
from recbench_spark.models.adapters.model_adapter import SplitData
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.storage.host_files import copy_file_to_object
from recbench_spark.storage.makers import cache_in_process
from recbench_spark.storage.objects import stat_objects
from recbench_spark.storage.publish import remove_tree
from recbench_spark.storage.seals import find_damage, read_seal, write_seal
from recbench_spark.storage.uris import join_uri

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
