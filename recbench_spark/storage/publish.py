"""Publish files and folders: made under a private name, whole, then given their name by one atomic step.

Whoever comes second finds the name taken, removes its own work and uses what is there. Two makers of one
name make the same content, since names here are hashes of all that the content follows from.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recbench_spark.errors import StoreError
from recbench_spark.storage.makers import private_name

NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of a disk that links no files."""


def local_path(place: str | Path) -> Path:
    """Return a place as a path of this machine: a path as it is, or a URI `file:/...`.

    Raises:
        StoreError: the URI is of a remote storage.
    """
    text = str(place)
    if text.startswith("file:"):
        return Path("/" + text.removeprefix("file:").lstrip("/"))
    if "://" in text:
        raise StoreError(f"{text} is not a folder of this machine", "give a folder that all hosts share")
    return Path(text)


@contextmanager
def private_path(target: Path) -> Iterator[Path]:
    """Give a path beside the target that nobody else uses; what is left there in the end is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(private_name(target.name))
    try:
        yield path
    finally:
        remove_tree(path)


def publish_file(target: Path, write: Callable[[Path], object]) -> bool:
    """Make a file and publish it under a name that is free.

    Args:
        target: the name.
        write: writes the file to the path that it is given.

    Returns:
        False where the name was taken: the file there stays as it is.
    """
    with private_path(target) as path:
        write(path)
        return link_file(path, target)


def link_file(path: Path, target: Path) -> bool:
    """Give a whole file a name that is free; False where it is taken.

    A disk that links no files gets a rename: of two makers at the same moment the second one replaces the
    file by one with the same content.
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
    """Make a file and put it in the place of the one that is there: for files that change, as caches."""
    with private_path(target) as path:
        write(path)
        path.replace(target)


def replace_text(target: Path, text: str) -> None:
    """Put a text file, in UTF-8, in the place of the one that is there."""
    replace_file(target, lambda path: path.write_text(text, encoding="utf-8"))


def replace_bytes(target: Path, content: bytes) -> None:
    """Put a file of some bytes in the place of the one that is there."""
    replace_file(target, lambda path: path.write_bytes(content))


def rename_folder(path: Path, target: Path) -> bool:
    """Give a whole folder a name that is free; False where it is taken.

    rename(2) takes the place of an empty folder, and a published folder is never empty.
    """
    try:
        path.rename(target)
    except OSError as error:
        if error.errno in NAME_TAKEN:
            return False
        raise
    return True


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; of a link the link alone. Absence is no error."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_published(path: Path) -> None:
    """Remove a published folder: it loses its name first, so that nobody opens a half of it."""
    doomed = path.with_name(private_name(path.name))
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    remove_tree(doomed)
