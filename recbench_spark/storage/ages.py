"""Ages of files by the clock of their own storage, since a host's clock may be ahead or behind."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from recbench_spark.storage.makers import PARTIAL
from recbench_spark.storage.publish import remove_tree

LEFTOVER_SECONDS = 24 * 3600.0
"""A private file that nobody has written to for this time was left by a killed process."""


def read_clock_ns(folder: Path) -> int:
    """Return the present time (nanoseconds since 1970) by the clock of a folder's storage.

    It is the time of a file that is made there, without a name if the system can do that.

    Raises:
        OSError: nothing can be written to the folder.
    """
    with tempfile.TemporaryFile(prefix=".recbench-", dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def read_clock(folder: Path) -> float:
    """Return the present time in seconds; errors as `read_clock_ns`."""
    return read_clock_ns(folder) / 1e9


def age_seconds(path: Path) -> float:
    """Return the seconds since the last write to a file or folder; 0 if it does not exist."""
    now = read_clock_ns(path.parent)
    try:
        return (now - path.stat().st_mtime_ns) / 1e9
    except FileNotFoundError:
        return 0.0


def remove_leftovers(folder: Path, seconds: float = LEFTOVER_SECONDS) -> int:
    """Remove private files and folders that killed processes left; return their number.

    A folder is old if everything in it is old, since a slow maker still writes within its folder.
    """
    leftovers = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    if not leftovers:
        return 0
    now = read_clock(folder)
    old = [path for path in leftovers if now - newest_time(path) > seconds]
    for path in old:
        remove_tree(path)
    return len(old)


def newest_time(path: Path) -> float:
    """Return the time of the last write to a file, or to anything in a folder, by the storage's clock."""
    times = [0.0]
    inside = (Path(base, name) for base, folders, files in os.walk(path) for name in (*folders, *files))
    for place in (path, *inside):
        with suppress(FileNotFoundError):
            times.append(place.lstat().st_mtime)
    return max(times)
