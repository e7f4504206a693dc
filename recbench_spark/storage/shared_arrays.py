"""Arrays made once a host, mapped by its workers.

The driver writes rows as Parquet to a place for all executors (local disk of one machine, s3, hdfs, a
shared mount). The first worker to need them on a host streams them into `.npy` files on that host's disk,
under a lock. All workers map these files, so the page cache holds one copy per host.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.errors import DataError, StoreError
from recbench_spark.storage.object_access import open_filesystem, open_path
from recbench_spark.storage.publish import age_seconds, read_clock, remove_tree, replace_file
from recbench_spark.storage.seals import SEAL, find_damage, read_seal, write_seal

Arrays = dict[str, npt.NDArray[Any]]
Builder = Callable[[ds.Dataset, Path], None]
"""Streams a Parquet dataset into `.npy` files of a folder."""

KEEP_SECONDS = 24 * 3600
SWEPT = ".swept"
"""File whose time is that of a host's last search for old folders: it takes a look at each one."""
SWEEP_SECONDS = 3600
MAX_MAPPED = 4
"""Most folders mapped by a worker at once; nights evaluate one model after the other."""

_open_folders: OrderedDict[str, Arrays] = OrderedDict()

PATTERN_CHARACTERS = re.compile(r"([\[\]{}*?\\])")
"""Characters read as wildcards in a path by Spark."""


def escape_path(path: str) -> str:
    """Return a path in which Spark sees no wildcards."""
    return PATTERN_CHARACTERS.sub(r"\\\1", path)


@dataclass(frozen=True)
class SharedRows:
    """Parquet files, and a name for their arrays.

    The names are small enough to go with every task.
    """

    key: str
    files: tuple[str, ...]

    def arrays(self, build: Builder) -> Arrays:
        """Return the arrays written by `build`, mapped read-only.

        Only the first worker builds them.
        """
        if self.key not in _open_folders:
            _open_folders[self.key] = {
                file.stem: np.load(file, mmap_mode="r" if file.stat().st_size > 1 << 16 else None)
                for file in sorted(self.folder(build).glob("*.npy"))
            }
            while len(_open_folders) > MAX_MAPPED:
                _open_folders.popitem(last=False)
        return _open_folders[self.key]

    def dataset(self) -> ds.Dataset:
        """Return the rows themselves."""
        system, _ = open_filesystem(self.files[0])
        return ds.dataset(list(map(open_path, self.files)), filesystem=system, format="parquet")

    def folder(self, build: Builder) -> Path:
        """Return the folder of files written by `build`.

        Only a host's first worker builds them. A folder with changed files is built again.
        """
        host = host_folder()
        place = host / self.key
        with lock_file(host / f"{self.key}.lock"):
            if not is_whole(place):
                remove_tree(place)
                sweep(host)
                partial = Path(tempfile.mkdtemp(prefix=f"{self.key}.", dir=host))
                build(self.dataset(), partial)
                write_seal(partial)
                partial.rename(place)
                if not is_whole(place, digests=True):
                    raise DataError(
                        f"{place} is not as it was written", "the disk may be full, or not a local one"
                    )
        return place


# ------------------------------------------------------------------------- the folder of a host


def host_folder() -> Path:
    """Return this host's folder for mapped files.

    The folder lies under Spark's local directory, else the temporary one. Anyone can write to a temporary
    directory and guess the name. So the folder must be a real folder (no link), this user's, and closed to
    all others; else the next name beside it is tried.

    Raises:
        DataError: other users have taken every name.
    """
    base = find_local_directory()
    base.mkdir(parents=True, exist_ok=True)
    name = f"recbench-spark-{os.getuid()}"
    for folder in (base / name, *(base / f"{name}-{n}" for n in range(1, FOLDER_NAMES))):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if is_private(folder):
            return folder
    raise DataError(
        f"{base / name} and {FOLDER_NAMES - 1} names beside it belong to others, or are links",
        "remove them, or set SPARK_LOCAL_DIRS to a folder of your own",
    )


def find_local_directory() -> Path:
    """Return Spark's local directory, else YARN's, else the temporary one.

    Spark sets a variable for Python workers; its first directory counts. In a container of YARN the driver
    has only YARN's own, and YARN removes that folder when the application ends.
    """
    of_container = os.environ.get("LOCAL_DIRS") if "CONTAINER_ID" in os.environ else None
    folders = os.environ.get("SPARK_LOCAL_DIRS") or of_container or tempfile.gettempdir()
    return Path(folders.split(",")[0])


FOLDER_NAMES = 8
"""Names to try for a host's folder, since other users can take some."""


def is_private(folder: Path) -> bool:
    """Check whether a path is this user's private folder.

    Such a path is no link, and nobody else may read or write it. A folder open to others is not closed but
    left alone, since its content is unknown.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def remove_arrays(key: str) -> None:
    """Remove a name's arrays from this host, and those made of them.

    Other hosts remove them after a day.
    """
    host = host_folder()
    for name in (key, *(lock.stem for lock in host.glob(f"{glob.escape(key)}-*.lock"))):
        _open_folders.pop(name, None)
        remove_tree(host / name)
        (host / f"{name}.lock").unlink(missing_ok=True)


# ------------------------------------------------------------------------- what is in a folder


def is_whole(folder: Path, digests: bool = False) -> bool:
    """Check a folder's files against its seal and this user.

    The files must be the sealed ones, and belong to this user.

    Args:
        folder: folder of the arrays.
        digests: compare all bytes, not only their number.
    """
    try:
        sealed, files = {*read_seal(folder), SEAL}, [*folder.iterdir()]
        own = is_private(folder) and all(map(_is_own_file, files))
        return own and {file.name for file in files} == sealed and not find_damage(folder, digests=digests)
    except (OSError, StoreError):
        return False


def _is_own_file(file: Path) -> bool:
    """Check whether a path is this user's file, no link."""
    status = file.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


# ------------------------------------------------------------------------------------ arrays


def create_array(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Create a `.npy` file with zeros, to be filled."""
    whole = tuple(map(int, shape))  # Spark 3.5 by Connect counts in numpy's numbers
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=whole)


def save_array(folder: Path, name: str, array: npt.NDArray[Any]) -> None:
    """Save an array as a `.npy` file."""
    np.save(folder / f"{name}.npy", array, allow_pickle=False)


def replace_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as a complete `.npy` file, or none.

    A task's second attempt replaces the file by one with the same bytes.
    """
    replace_file(path, partial(write_array, array=array))


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array to a path not yet published."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def rank_texts(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Rank texts by UTF-8 bytes, (n,); NULL comes first."""
    codes = texts.dictionary_encode()
    rank = np.append(pc.rank(codes.dictionary).to_numpy().astype(np.int64), -1)
    rank_n: npt.NDArray[np.int64] = rank[pc.fill_null(codes.indices, -1).to_numpy()]
    return rank_n


def flatten_lists(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return a list column's offsets, (rows + 1,) from 0, and values.

    The values stand end to end.
    """
    lists = column if isinstance(column, pa.ListArray) else column.combine_chunks()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values = lists.flatten()
    # flatten() skips values under a NULL row, but the offsets still count them.
    if lists.null_count:
        lengths = np.diff(offsets) * lists.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets - offsets[0], values.to_numpy(zero_copy_only=False)


def bound_lists(owner_r: npt.NDArray[np.int64], owners: int) -> pa.Array:
    """Return the bounds of each owner's list, (owners + 1,).

    Args:
        owner_r: each value's owner, in order; values of others come last.
        owners: number of owners.
    """
    counts = np.bincount(owner_r, minlength=owners)[:owners]
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock out other processes of this host.

    The file must not be a link, and is not written to.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(host: Path) -> None:
    """Remove old entries from a host's folder, once an hour."""
    if not (host / SWEPT).exists() or age_seconds(host / SWEPT) > SWEEP_SECONDS:
        remove_old(host)
        (host / SWEPT).touch()


def remove_old(folder: Path) -> None:
    """Remove entries left untouched for a day by killed jobs.

    The storage's clock measures the day.
    """
    if not folder.is_dir():
        return
    now = read_clock(folder)
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):  # another process was there first
            if now - entry.lstat().st_mtime > KEEP_SECONDS:
                remove_tree(entry)
