"""Atomic publishing of files and folders.

They are completed under a private name, then renamed in one step. A second maker finds the name in use,
removes its own work and uses the published one. Two makers under one name make the same content, since a
name here is a hash of everything behind the content.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recbench_spark.errors import StoreError
from recbench_spark.storage.makers import PARTIAL, private_name

NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of a disk without hard links."""


def local_path(place: str | Path) -> Path:
    """Return a place (a path, or `file:/...`) as a path.

    Raises:
        StoreError: it is a URI of remote storage.
    """
    text = str(place)
    if text.startswith("file:"):
        return Path("/" + text.removeprefix("file:").lstrip("/"))
    if "://" in text:
        raise StoreError(f"{text} is not a folder of this machine", "give a folder that all hosts share")
    return Path(text)


@contextmanager
def private_path(target: Path) -> Iterator[Path]:
    """Yield a private path beside the target.

    Whatever is there at the end is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(private_name(target.name))
    try:
        yield path
    finally:
        remove_tree(path)


def publish_file(target: Path, write: Callable[[Path], object]) -> bool:
    """Make a file and publish it under an unused name.

    Args:
        target: the name.
        write: writes the file to the path it gets.

    Returns:
        False where the name was in use: the file there stays as it is.
    """
    with private_path(target) as path:
        write(path)
        return link_file(path, target)


def link_file(path: Path, target: Path) -> bool:
    """Give a complete file an unused name; False: in use.

    A disk without hard links renames the file: of two makers at the same moment the second one then
    replaces the file by one with the same content.
    """
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if target.exists():
            return False
        path.replace(target)
    return True


def replace_file(target: Path, write: Callable[[Path], object]) -> None:
    """Make a file and replace the existing one.

    Only changing files, such as caches, need this.
    """
    with private_path(target) as path:
        write(path)
        path.replace(target)


def replace_text(target: Path, text: str) -> None:
    """Replace a text file, in UTF-8."""
    replace_file(target, lambda path: path.write_text(text, encoding="utf-8"))


def replace_bytes(target: Path, content: bytes) -> None:
    """Replace a file by one with these bytes."""
    replace_file(target, lambda path: path.write_bytes(content))


def rename_folder(path: Path, target: Path) -> bool:
    """Give a complete folder an unused name; False: in use.

    rename(2) replaces an empty folder, and a published folder is never empty.
    """
    try:
        path.rename(target)
    except OSError as error:
        if error.errno in NAME_TAKEN:
            return False
        raise
    return True


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a whole folder.

    A link's target stays. The path need not exist.
    """
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_published(path: Path) -> None:
    """Remove a published folder without ever showing half of it.

    The folder is renamed first.
    """
    doomed = path.with_name(private_name(path.name))
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    remove_tree(doomed)


# ---------------------------------------- ages by the storage's own clock, since hosts' clocks differ

LEFTOVER_SECONDS = 24 * 3600.0
"""A private file without a write for so long was left by a killed process."""


def read_clock_ns(folder: Path) -> int:
    """Return the time by the clock of a folder's storage.

    The time is in nanoseconds since 1970: that of a file made there, without a name if the system can do
    so.

    Raises:
        OSError: nothing can be written to the folder.
    """
    with tempfile.TemporaryFile(prefix=".recbench-", dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def read_clock(folder: Path) -> float:
    """Return `read_clock_ns` in seconds."""
    return read_clock_ns(folder) / 1e9


def age_seconds(path: Path) -> float:
    """Return the seconds since a path's last write; 0: no path."""
    now = read_clock_ns(path.parent)
    try:
        return (now - path.stat().st_mtime_ns) / 1e9
    except FileNotFoundError:
        return 0.0


def remove_leftovers(folder: Path) -> int:
    """Remove killed processes' private files and folders; return their number.

    A folder is old if everything in it is old, since a slow maker still writes within its folder.
    """
    leftovers = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    if not leftovers:
        return 0
    now = read_clock(folder)
    old = [path for path in leftovers if now - newest_time(path) > LEFTOVER_SECONDS]
    for path in old:
        remove_tree(path)
    return len(old)


def newest_time(path: Path) -> float:
    """Return when a path, or anything inside, was last written.

    The time is by the storage's clock.
    """
    times = [0.0]
    inside = (Path(base, name) for base, folders, files in os.walk(path) for name in (*folders, *files))
    for place in (path, *inside):
        with suppress(FileNotFoundError):
            times.append(place.lstat().st_mtime)
    return max(times)
