"""Ages of files by the clock of their own storage: a host's clock may be ahead or behind."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from recbench_spark.storage.makers import PARTIAL
from recbench_spark.storage.publish import remove_tree

LEFTOVER_SECONDS = 24 * 3600.0
"""A private file that nobody has written to for so long was left by a killed process."""


def read_clock_ns(folder: Path) -> int:
    """Return the present time (nanoseconds since 1970) as the storage of a folder has it.

    It is the time of a file that is made there, without a name where the system can do that.

    Raises:
        OSError: nothing can be written to the folder.
    """
    with tempfile.TemporaryFile(prefix=".recbench-", dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def read_clock(folder: Path) -> float:
    """Return the present time in seconds; errors as `read_clock_ns`."""
    return read_clock_ns(folder) / 1e9


def age_seconds(path: Path) -> float:
    """Return how long ago a file or folder was written to; 0 where it is gone."""
    now = read_clock_ns(path.parent)
    try:
        return (now - path.stat().st_mtime_ns) / 1e9
    except FileNotFoundError:
        return 0.0


def remove_leftovers(folder: Path, seconds: float = LEFTOVER_SECONDS) -> int:
    """Remove private files and folders that killed processes left; returns how many.

    A folder counts as old where everything in it is old: a slow maker writes on within its folder.
    """
    left = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    if not left:
        return 0
    now = read_clock(folder)
    old = [path for path in left if now - newest_time(path) > seconds]
    for path in old:
        remove_tree(path)
    return len(old)


def newest_time(path: Path) -> float:
    """Return when a file, or anything in a folder, was last written to, by the storage's clock."""
    times = [0.0]
    inside = (Path(base, name) for base, folders, files in os.walk(path) for name in (*folders, *files))
    for place in (path, *inside):
        with suppress(FileNotFoundError):
            times.append(place.lstat().st_mtime)
    return max(times)
