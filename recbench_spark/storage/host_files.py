"""Copies of stored objects, for a host's processes.

An executor fetches an object from object storage once, by its place, length and digest. The copy lies in
the host's folder (`shared_arrays.host_folder`) under a name with length and digest, so equal objects share
one copy. The folder stays below a limit: the copies used longest ago go first. A mapped copy stays readable
after its removal until it is unmapped. A file in a folder is used where it is.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from recbench_spark.core.transfer_sizes import CHUNK_BYTES
from recbench_spark.errors import StoreError
from recbench_spark.storage.makers import private_name
from recbench_spark.storage.object_access import explain_storage, open_filesystem
from recbench_spark.storage.objects import open_output
from recbench_spark.storage.publish import local_path, remove_leftovers
from recbench_spark.storage.shared_arrays import host_folder, lock_file
from recbench_spark.storage.uris import is_remote

LIMIT_VARIABLE = "RECBENCH_SPARK_CACHE_BYTES"
"""Environment variable with the most bytes for a host's copies."""

DISK_SHARE = 0.5
"""Copies' share of the free disk (plus present copies) without the variable."""

COPIES = "objects"
"""Folder for the copies, in the host's folder."""


def digest_content(path: Path) -> str:
    """Return the XXH3 digest (128 bits) of a file's bytes.

    The digest finds damage and mixed-up files; it is no proof against a forger.
    """
    if not path.stat().st_size:
        return xxhash.xxh3_128_hexdigest(b"")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxhash.xxh3_128_hexdigest(content)


def open_object(place: str, size: int, digest: str) -> BinaryIO:
    """Open an object, which is fetched if it is remote.

    A host with a copy fetches nothing.

    Args:
        place: path or URI of the object.
        size: its length in bytes.
        digest: its digest (`digest_content`), compared when the object is fetched.

    Raises:
        StoreError: the object is not there, differs from what was written, or the storage does not answer.
    """
    if is_remote(place):
        return _open_copy(place, size, digest)
    try:
        file: BinaryIO = local_path(place).open("rb")
    except FileNotFoundError:
        raise StoreError(f"no file {place}", HINT_SHARED) from None
    _check_size(place, file, size)
    return file


def suggest_removal(place: str) -> str:
    """Return a lost file's hint: which folder to remove.

    Without the folder, the file is made again. It is the file's folder; on object storage it is the last
    one published as a whole (`made_folders`): a private name follows it.
    """
    folder, _, _ = place.rpartition("/")
    names = folder.split("/")
    private = [n for n, name in enumerate(names) if is_private(place, name)]
    return f"remove {'/'.join(names[: private[-1]]) if private else folder}, and run again"


PRIVATE_FOLDER = re.compile(r"[0-9a-f]{32}")
"""Name of a run's own folder, inside a folder in object storage."""


def is_private(place: str, name: str) -> bool:
    """Check whether a name is that of a run's folder."""
    return is_remote(place) and PRIVATE_FOLDER.fullmatch(name) is not None


def _open_copy(place: str, size: int, digest: str) -> BinaryIO:
    """Open a remote object's copy.

    An open copy stays readable after its removal.
    """
    copy = _copy_path(size, digest)
    with _hold_lock(copy.name[:2]):
        with suppress(FileNotFoundError):
            file: BinaryIO = copy.open("rb")
            if os.fstat(file.fileno()).st_size == size:
                _mark_used(copy)
                return file
            file.close()  # a disk lost some bytes
        file = _fetch_object(place, size, digest, copy)
    make_room()
    return file


def _mark_used(copy: Path) -> None:
    now = time.time_ns()  # the kernel's own file times are milliseconds apart
    with suppress(FileNotFoundError):  # it was removed meanwhile
        os.utime(copy, ns=(now, now))


def store_object(path: Path, place: str, size: int, digest: str) -> None:
    """Move a host's complete file to its place.

    A remote object is one write, and its file stays as this host's copy.
    """
    if not is_remote(place):
        path.replace(local_path(place))
        return
    copy_file_to_object(path, place)
    _mark_used(path)
    path.replace(_copy_path(size, digest))
    make_room()


def copy_file_to_object(path: Path, place: str) -> None:
    """Write a host's file to an object, in chunks."""
    with path.open("rb") as file, open_output(place) as stream:
        while chunk := file.read(CHUNK_BYTES):
            stream.write(chunk)


@contextmanager
def make_private_file(place: str) -> Iterator[Path]:
    """Yield a private path for a new file.

    Whatever is there at the end is removed. The path lies beside a local place; for a URI it is on a disk
    of this host.
    """
    name = place.rsplit("/", 1)[1]
    folder = _copies_folder() if is_remote(place) else local_path(place).parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / private_name(name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def make_room() -> None:
    """Remove the copies used longest ago, down to the limit.

    Objects being fetched or made come on top: at most eight for each process. Killed processes' objects are
    removed after a day.
    """
    with _hold_lock("room"):
        remove_leftovers(_copies_folder())
        copies = []
        for path in _copies_folder().iterdir():
            with suppress(FileNotFoundError):  # another process has given it its name
                status = path.lstat()
                copies += [] if path.name.startswith(".") else [(status.st_mtime_ns, status.st_size, path)]
        held = sum(size for _, size, _ in copies)
        limit = read_limit(held)
        for _, size, path in sorted(copies):
            if held <= limit:
                return
            path.unlink(missing_ok=True)
            held -= size


def read_limit(held: int) -> int:
    """Return the most bytes for copies on this host.

    Args:
        held: bytes of the present copies.

    Raises:
        StoreError: the variable is no number of bytes.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return int((shutil.disk_usage(_copies_folder()).free + held) * DISK_SHARE)
    if not text.isdigit():
        raise StoreError(f"{LIMIT_VARIABLE}={text} is no number of bytes", f"{LIMIT_VARIABLE}=20000000000")
    return int(text)


def _copies_folder() -> Path:
    folder = host_folder() / COPIES
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _copy_path(size: int, digest: str) -> Path:
    return _copies_folder() / f"{digest}-{size}"


def _hold_lock(name: str) -> AbstractContextManager[None]:
    """Lock out others who do the same.

    The lock holds against processes and threads. Objects share 256 names.
    """
    return lock_file(host_folder() / f"{COPIES}-{name}.lock")


def _fetch_object(place: str, size: int, digest: str, copy: Path) -> BinaryIO:
    """Copy, check, open and name an object."""
    path = copy.with_name(private_name(copy.name))
    try:
        copy_object_to_file(place, path)
        file: BinaryIO = path.open("rb")
        _check_size(place, file, size)
        if digest_content(path) != digest:
            file.close()
            raise StoreError(f"{place} holds other bytes than were written", suggest_removal(place))
        _mark_used(path)
        path.replace(copy)
        return file
    finally:
        path.unlink(missing_ok=True)


def copy_object_to_file(place: str, path: Path) -> None:
    """Write an object's bytes to a host's file, in chunks.

    Raises:
        StoreError: the object is not there, or the storage does not answer.
    """
    with path.open("wb") as file:
        for chunk in _read_chunks(place):
            file.write(chunk)


def _read_chunks(place: str) -> Iterator[bytes]:
    """Yield an object's bytes.

    The errors are those of `copy_object_to_file`; the reader's own errors pass unchanged.
    """
    with explain_storage(place):
        system, name = open_filesystem(place)
        try:
            stream = system.open_input_stream(name)
        except FileNotFoundError:
            raise StoreError(f"no object {place}", suggest_removal(place)) from None
        with stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk


HINT_SHARED = "all hosts must see the warehouse's folder; run again if it was removed"


def _check_size(place: str, file: BinaryIO, size: int) -> None:
    present = os.fstat(file.fileno()).st_size
    if present != size:
        file.close()
        message = f"{place} has {present:,} bytes, and {size:,} were written"
        raise StoreError(message, suggest_removal(place))
