"""Folders that are made once and published whole, on a shared folder and on object storage.

On a folder of this machine one run holds the lease of the folder's name, and its work folder is renamed
(`leases`). Object storage has no rename, and these folders no lease: each run writes below a private name
inside the folder, and one write of `current.txt` that fails where the name is in use says which of them
counts. Two runs that make one folder at the same time make the same content, and the second one removes its
own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recbench_spark.errors import StoreError
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.delta_files import write_files
from recbench_spark.storage.host_files import (
    PRIVATE_FOLDER,
    copy_file_to_object,
    copy_object_to_file,
    suggest_removal,
)
from recbench_spark.storage.leases import Lease, Report, hold_lease, print_line
from recbench_spark.storage.makers import PRIVATE_NAME, private_name
from recbench_spark.storage.objects import (
    StoredObject,
    copy_object,
    list_folders,
    put_if_absent,
    read_bytes,
    remove_objects,
    stat_objects,
    write_bytes,
)
from recbench_spark.storage.publish import local_path, newest_time, remove_tree
from recbench_spark.storage.seals import SEAL, find_damage, read_seal
from recbench_spark.storage.uris import is_remote, join_uri

CURRENT = "current.txt"
"""Object with the name of the folder inside that counts."""


@dataclass(frozen=True)
class FolderWork:
    """FolderWork is the right to make a folder, and the place where it is made.

    Attributes:
        target: path or URI of the folder.
        work: path or URI where its content is written.
        lease: the lease of a folder of this machine.
    """

    target: str
    work: str
    lease: Lease | None

    def clear(self) -> None:
        """Remove what an earlier owner left."""
        if self.lease is not None:
            remove_tree(Path(self.work))

    def publish(self) -> None:
        """Publish the work, which must be complete (errors as `Lease.publish`)."""
        if self.lease is not None:
            self.lease.publish()
        else:  # of several runs one succeeds; `make_folder` removes the work of the others
            put_if_absent(join_uri(self.target, CURRENT), self.work.rsplit("/", 1)[1].encode())


def find_folder(target: str) -> str | None:
    """Return where the content of a folder is; None if an object storage has no such folder."""
    if not is_remote(target):
        return target
    name = read_bytes(join_uri(target, CURRENT))
    return None if name is None else join_uri(target, name.decode())


def explain_missing_folder(target: str) -> StoreError:
    """Return the error for a folder that was to be made, and that is not complete afterwards.

    On object storage a complete folder stays as it is, even if its files cannot be read any more.
    """
    if is_remote(target) and find_folder(target) is not None:
        message = f"{target} has files that are missing, damaged or of another version"
        return StoreError(message, f"remove {target}, and run again")
    return StoreError(f"{target} was removed while it was written", "run again")


@contextmanager
def make_folder(
    target: str, is_done: Callable[[], bool], report: Report = print_line, used: Sequence[str] = ()
) -> Iterator[FolderWork | None]:
    """Make a folder, or wait until another run on the same folder has made it.

    Args:
        target: path or URI of the folder.
        is_done: returns whether the folder is published and complete, or its result exists elsewhere.
        report: gets a line while this run waits for another one.
        used: files whose times are refreshed meanwhile, so that they count as in use.

    Yields:
        The work; None: the folder is there.
    """
    if is_remote(target):
        yield from _make_remote_folder(target, is_done)
        return
    with hold_lease(Path(target), is_done, report, list(map(Path, used))) as lease:
        yield None if lease is None else FolderWork(target, str(lease.work), lease)


def _make_remote_folder(target: str, is_done: Callable[[], bool]) -> Iterator[FolderWork | None]:
    if is_done():
        yield None
        return
    work = FolderWork(target, join_uri(target, uuid.uuid4().hex), None)
    try:
        yield work
    finally:
        if find_folder(target) != work.work:  # it was not published
            remove_objects(work.work)


SUCCESS = "_SUCCESS"
"""File that is written last, where a folder has no other such file; its name is that of Spark."""

TASK_FILES = "_tasks"
"""Folder for the files of tasks below a folder that is read whole: readers skip names that begin so."""


def write_once(target: str, write: Callable[[str], object], mark: str = SUCCESS) -> str:
    """Write a folder once among all runs; return the folder that holds its content.

    Args:
        target: path or URI of the folder.
        write: writes files into the folder that it gets.
        mark: name of the file that `write` writes last.
    """

    def is_done() -> bool:
        folder = find_folder(target)
        return folder is not None and read_bytes(join_uri(folder, mark)) is not None

    with make_folder(target, is_done) as work:
        if work is not None:
            work.clear()
            write(work.work)
            work.publish()
    return find_folder(target) or target


def write_folder(results: TaskRows, folder: str) -> None:
    """Let tasks write their results as the only Parquet files of a new folder."""
    place = join_uri(folder, TASK_FILES)
    publish_parts([join_uri(place, file.path) for file in write_files(results, place, {})], folder)
    write_bytes(join_uri(folder, SUCCESS), b"")


def publish_parts(files: Sequence[str], folder: str) -> None:
    """Bring the files that tasks have returned from TASK_FILES to the folder itself, within the storage.

    Files of attempts that were given up do not count. A copy is one request, of at most 5 GB in S3.
    """
    remote = is_remote(folder)
    for number, file in enumerate(files):
        target = join_uri(folder, f"part-{number:05}.parquet")
        copy_object(file, target) if remote else Path(file).rename(target)
    remove_objects(join_uri(folder, TASK_FILES))


def fill_folder(target: str, folder: Path, build: Callable[[Path], object]) -> None:
    """Fill a folder of this host from a stored folder; the first caller builds the files and stores them.

    The stored files serve all hosts. Two hosts that build at the same time keep their own files, and one of
    them stores them.

    Args:
        target: URI of the stored folder on object storage.
        folder: empty folder of this host.
        build: writes the files and their seal (`seals.write_seal`).

    Raises:
        StoreError: a stored file is missing or damaged, or the storage does not answer.
    """
    with make_folder(target, lambda: find_folder(target) is not None) as work:
        if work is not None:
            build(folder)
            store_files(folder, work.work)
            work.publish()
            return
    fetch_files(find_folder(target) or target, folder)


def store_files(folder: Path, place: str) -> None:
    """Write the files of a sealed folder to an object storage; the seal comes last."""
    for name in (*read_seal(folder), SEAL):
        copy_file_to_object(folder / name, join_uri(place, name))


def fetch_files(place: str, folder: Path) -> None:
    """Copy the files of a sealed folder from an object storage, and check each byte.

    Raises:
        StoreError: a file is missing or damaged, or the storage does not answer.
    """
    copy_object_to_file(join_uri(place, SEAL), folder / SEAL)
    for name in read_seal(folder):
        copy_object_to_file(join_uri(place, name), folder / name)
    damage = find_damage(folder, digests=True)
    if damage:
        raise StoreError(f"{place}: {damage}", suggest_removal(join_uri(place, SEAL)))


@contextmanager
def hold_private_folder(target: str) -> Iterator[str]:
    """Yield a place beside a target that nobody else uses; whatever is there at the end is removed."""
    parent, _, name = target.rpartition("/")
    place = join_uri(parent, private_name(name))
    try:
        yield place
    finally:
        remove_objects(place)


def stat_whole(place: str) -> Iterator[StoredObject]:
    """Yield what `stat_objects` does; on this machine also the place, by the last write to all in it."""
    yield from stat_objects(place)
    if not is_remote(place):
        yield StoredObject("", 0, "", newest_time(local_path(place)))


def stat_folders(
    place: str, wanted: Callable[[Sequence[str]], bool], depth: int = 1
) -> Iterator[tuple[str, StoredObject]]:
    """Yield the files of folders below a place, as `stat_whole`, each with the place of its folder.

    All of remote storage are in one listing. On this machine a link to a folder is a folder.

    Args:
        place: folder or URI.
        wanted: takes the parts of a folder's name.
        depth: parts of a name; more than 1 on remote storage alone.
    """
    if not is_remote(place):
        for name in (name for name in list_folders(place) if wanted([name])):
            yield from ((join_uri(place, name), entry) for entry in stat_whole(join_uri(place, name)))
        return
    for entry in stat_objects(place):
        *names, inner = entry.name.split("/", depth)
        if len(names) == depth and wanted(names):
            yield join_uri(place, *names), entry._replace(name=inner)


class PrivateForm(NamedTuple):
    """Names of folders that no run needs a day after the last write, and how deep in a room they are."""

    pattern: re.Pattern[str]
    depth: int


def find_private_form(root: str) -> PrivateForm:
    """Return the form of the private folders in a warehouse."""
    return PrivateForm(PRIVATE_FOLDER, 2) if is_remote(root) else PrivateForm(PRIVATE_NAME, 1)
