"""Ages of files by the clock of their own storage: a host's clock may be ahead or behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from recbench_spark.storage.makers import PARTIAL, private_name
from recbench_spark.storage.publish import remove_tree

LEFT_SECONDS = 24 * 3600.0
"""A private file that nobody has written to for so long was left by a killed process."""


def read_clock(folder: Path) -> float:
    """Return the present time (seconds since 1970) as the storage of a folder has it.

    Raises:
        OSError: nothing can be written to the folder.
    """
    probe = folder / private_name("clock")
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def age_seconds(path: Path) -> float:
    """Return how long ago a file or folder was written to; 0 where it is gone."""
    now = read_clock(path.parent)
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove_leftovers(folder: Path, seconds: float = LEFT_SECONDS) -> int:
    """Remove private files and folders that killed processes left; returns how many.

    A folder counts as old where everything in it is old: a slow maker writes on within its folder.
    """
    left = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    if not left:
        return 0
    now = read_clock(folder)
    old = [path for path in left if now - _newest_time(path) > seconds]
    for path in old:
        remove_tree(path)
    return len(old)


def _newest_time(path: Path) -> float:
    times = [0.0]
    for place in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            times.append(place.lstat().st_mtime)
    return max(times)
