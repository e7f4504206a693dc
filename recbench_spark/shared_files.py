"""Arrays that every Python worker of a host maps from one file, made once a host.

The driver writes rows as Parquet where all executors can read them (local disk of one machine, s3,
hdfs, a shared mount). The first worker of a host that needs them streams them into `.npy` files on
that host's disk, under a lock; all its workers map these files: one copy a host, in the page cache.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

Arrays = dict[str, npt.NDArray[Any]]
Builder = Callable[[ds.Dataset, Path], None]
"""Streams a Parquet dataset into `.npy` files of a folder."""

KEEP_SECONDS = 24 * 3600
MAPPED = 4
"""Folders a worker keeps mapped: nights evaluate one model after the other."""

_open_folders: OrderedDict[str, Arrays] = OrderedDict()


@dataclass(frozen=True)
class SharedRows:
    """Parquet files and the name of what is built from them; small, travels with every task."""

    key: str
    files: tuple[str, ...]

    def arrays(self, build: Builder) -> Arrays:
        """The arrays that `build` writes, mapped read-only; built by the first worker of the host."""
        if self.key not in _open_folders:
            _open_folders[self.key] = _map(self._folder(build))
            while len(_open_folders) > MAPPED:
                _open_folders.popitem(last=False)
        return _open_folders[self.key]

    def dataset(self) -> ds.Dataset:
        """The rows themselves."""
        systems = [fs.FileSystem.from_uri(arrow_uri(file)) for file in self.files]
        return ds.dataset([path for _, path in systems], filesystem=systems[0][0], format="parquet")

    def _folder(self, build: Builder) -> Path:
        place = host_folder() / self.key
        with _locked(host_folder() / f"{self.key}.lock"):
            if not place.exists():
                remove_old(host_folder())
                partial = Path(tempfile.mkdtemp(prefix=f"{self.key}.", dir=host_folder()))
                build(self.dataset(), partial)
                partial.rename(place)
        return place


def arrow_uri(file: str) -> str:
    """The file as Arrow names it: Hadoop's `s3a` is its `s3`, Databricks' `dbfs:` a mounted folder."""
    if file.startswith("dbfs:/"):
        path = "/" + file.removeprefix("dbfs:").lstrip("/")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return re.sub(r"^s3[an]://", "s3://", file)


def host_folder() -> Path:
    """Where this host keeps mapped files: Spark's local directory, else the temporary one."""
    base = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    folder = Path(base) / f"recbench-spark-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def forget(key: str) -> None:
    """Remove what this host keeps under a name; other hosts remove it after a day."""
    _open_folders.pop(key, None)
    shutil.rmtree(host_folder() / key, ignore_errors=True)
    (host_folder() / f"{key}.lock").unlink(missing_ok=True)


def create(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """A new array of zeros in a `.npy` file, filled in place."""
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def save(folder: Path, name: str, array: npt.NDArray[Any]) -> None:
    """An array as a `.npy` file."""
    np.save(folder / f"{name}.npy", array, allow_pickle=False)


def flat(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """A list column as offsets (rows + 1,), from 0, and its values end to end."""
    lists = column if isinstance(column, pa.ListArray) else column.combine_chunks()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values = lists.flatten()
    # Values under a NULL row are skipped by flatten() but still counted by the offsets.
    if lists.null_count:
        lengths = np.diff(offsets) * lists.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets - offsets[0], values.to_numpy(zero_copy_only=False)


def _map(folder: Path) -> Arrays:
    return {
        file.stem: np.load(file, mmap_mode="r" if file.stat().st_size > 1 << 16 else None)
        for file in sorted(folder.glob("*.npy"))
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove_old(folder: Path) -> None:
    """Remove what nobody has touched for a day: left behind by killed jobs."""
    for entry in folder.iterdir() if folder.exists() else ():
        if time.time() - entry.stat().st_mtime > KEEP_SECONDS:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
