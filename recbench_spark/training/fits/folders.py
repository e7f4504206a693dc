"""Folders of fits: their paths as the table `fits` stores them, and where the folders are today."""

from __future__ import annotations

from recbench_spark.storage.paths import read_tail
from recbench_spark.storage.shared_arrays import read_bytes
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.tasks import FIT_FILES, ROW


def store_place(store: Store, stored: str) -> str:
    """Return the path of a fit's folder in the form of new rows, from a row of any version."""
    return store.format_path(read_tail(stored, FIT_FILES))


def find_place(store: Store, stored: str) -> str:
    """Return the path of a fit's folder today.

    An absolute path of an older row is never opened, because the warehouse may be a copy. Older versions
    wrote fits to the scratch folder if `spark.recbench.scratch` was set, so that folder comes second.

    Args:
        store: the warehouse.
        stored: value of `fits.files`.
    """
    tail = read_tail(stored, FIT_FILES)
    places = [f"{root}/{tail}" for root in dict.fromkeys((store.files_root, store.scratch))]
    return next((place for place in places if read_bytes(f"{place}/{ROW}") is not None), places[0])
