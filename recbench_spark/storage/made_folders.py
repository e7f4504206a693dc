"""Folders made once and published whole, on any storage.

In a folder of this machine one run holds the lease of the folder's name, and its work folder is renamed
(`leases`). Object storage has no rename, and these folders no lease: each run writes below a private name
inside the folder. Then it writes `current.txt`, which names the run that counts, and this write fails where
the name is in use. Two runs of one folder at the same time make the same content, and the second one
removes its own.
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
from recbench_spark.storage import host_files, objects
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.delta_files import write_files
from recbench_spark.storage.leases import Lease, Report, hold_lease, print_line
from recbench_spark.storage.makers import PRIVATE_NAME, private_name
from recbench_spark.storage.publish import local_path, newest_time, remove_tree
from recbench_spark.storage.seals import SEAL, find_damage, read_seal
from recbench_spark.storage.uris import is_remote, join_uri

CURRENT = "current.txt"
"""Object with the valid inner folder's name."""


@dataclass(frozen=True)
class FolderWork:
    """The right and the place to make a folder.

    Attributes:
        target: path or URI of the folder.
        work: path or URI for writing its content.
        lease: the lease, if the folder is on this machine.
    """

    target: str
    work: str
    lease: Lease | None

    def clear(self) -> None:
        """Remove an earlier owner's work."""
        if self.lease is not None:
            remove_tree(Path(self.work))

    def publish(self) -> None:
        """Publish the complete work (errors as `Lease.publish`)."""
        if self.lease is not None:
            self.lease.publish()
        else:  # one of several runs succeeds; `make_folder` removes the others' work
            objects.put_if_absent(join_uri(self.target, CURRENT), self.work.rsplit("/", 1)[1].encode())


def find_folder(target: str) -> str | None:
    """Return where a folder's content is; None: not made.

    Only on object storage can the folder be missing.
    """
    if not is_remote(target):
        return target
    name = objects.read_bytes(join_uri(target, CURRENT))
    return None if name is None else join_uri(target, name.decode())


def explain_missing_folder(target: str) -> StoreError:
    """Return the error for a folder that stayed incomplete.

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
    """Make a folder, or wait for another run's.

    Only runs on the same folder wait.

    Args:
        target: path or URI of the folder.
        is_done: returns True if the folder is published and complete, or its result exists elsewhere.
        report: gets a line while this run waits for another one.
        used: files to refresh meanwhile, so that they count as in use.

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
            objects.remove_objects(work.work)


SUCCESS = "_SUCCESS"
"""File written last, in a folder without another such file; Spark has the same name."""

TASK_FILES = "_tasks"
"""Folder for tasks' files below a folder read as a whole: readers skip names with such a beginning."""


def write_once(target: str, write: Callable[[str], object], mark: str = SUCCESS) -> str:
    """Write a folder once; return its content's place.

    Args:
        target: path or URI of the folder.
        write: writes files into the folder it gets.
        mark: name of the last file from `write`.
    """

    def is_done() -> bool:
        folder = find_folder(target)
        return folder is not None and objects.read_bytes(join_uri(folder, mark)) is not None

    with make_folder(target, is_done) as work:
        if work is not None:
            work.clear()
            write(work.work)
            work.publish()
    return find_folder(target) or target


def write_folder(results: TaskRows, folder: str) -> None:
    """Let tasks write a new folder's only Parquet files.

    The files hold the tasks' results.
    """
    place = join_uri(folder, TASK_FILES)
    publish_parts([join_uri(place, file.path) for file in write_files(results, place, {})], folder)
    objects.write_bytes(join_uri(folder, SUCCESS), b"")


def publish_parts(files: Sequence[str], folder: str) -> None:
    """Move tasks' files from TASK_FILES to the folder itself.

    The storage copies them. Files of attempts given up do not count. A copy is one request, of at most 5 GB
    in S3.
    """
    remote = is_remote(folder)
    for number, file in enumerate(files):
        target = join_uri(folder, f"part-{number:05}.parquet")
        objects.copy_object(file, target) if remote else Path(file).rename(target)
    objects.remove_objects(join_uri(folder, TASK_FILES))


def fill_folder(target: str, folder: Path, build: Callable[[Path], object]) -> None:
    """Fill a host's folder from storage, or build both.

    The first caller builds the files and stores them for all hosts. Of two hosts which build at the same
    time, each keeps its own files, and one stores them.

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
    """Write a sealed folder's files to object storage, seal last."""
    for name in (*read_seal(folder), SEAL):
        host_files.copy_file_to_object(folder / name, join_uri(place, name))


def fetch_files(place: str, folder: Path) -> None:
    """Fetch a sealed folder's files, and check each byte.

    Raises:
        StoreError: a file is missing or damaged, or the storage does not answer.
    """
    host_files.copy_object_to_file(join_uri(place, SEAL), folder / SEAL)
    for name in read_seal(folder):
        host_files.copy_object_to_file(join_uri(place, name), folder / name)
    damage = find_damage(folder, digests=True)
    if damage:
        raise StoreError(f"{place}: {damage}", host_files.suggest_removal(join_uri(place, SEAL)))


@contextmanager
def hold_private_folder(target: str) -> Iterator[str]:
    """Yield a private place beside a target.

    Whatever is there at the end is removed.
    """
    parent, _, name = target.rpartition("/")
    place = join_uri(parent, private_name(name))
    try:
        yield place
    finally:
        objects.remove_objects(place)


def stat_whole(place: str) -> Iterator[objects.StoredObject]:
    """Yield `stat_objects` and, on this machine, the place itself.

    The last entry, on this machine alone, has the last write to anything in the place.
    """
    yield from objects.stat_objects(place)
    if not is_remote(place):
        yield objects.StoredObject("", 0, "", newest_time(local_path(place)))


def stat_folders(
    place: str, wanted: Callable[[Sequence[str]], bool], depth: int = 1
) -> Iterator[tuple[str, objects.StoredObject]]:
    """Yield files of folders below a place, with their folder.

    The files are as in `stat_whole`. Remote storage lists all at once. On this machine a link to a folder
    is a folder.

    Args:
        place: folder or URI.
        wanted: takes the parts of a folder's name.
        depth: parts of a name; more than 1 on remote storage alone.
    """
    if not is_remote(place):
        for name in (name for name in objects.list_folders(place) if wanted([name])):
            yield from ((join_uri(place, name), entry) for entry in stat_whole(join_uri(place, name)))
        return
    for entry in objects.stat_objects(place):
        *names, inner = entry.name.split("/", depth)
        if len(names) == depth and wanted(names):
            yield join_uri(place, *names), entry._replace(name=inner)


class PrivateForm(NamedTuple):
    """Pattern and depth of a room's private folders.

    No run needs such a folder a day after the last write.
    """

    pattern: re.Pattern[str]
    depth: int


def find_private_form(root: str) -> PrivateForm:
    """Return the pattern of a warehouse's private folders."""
    return PrivateForm(host_files.PRIVATE_FOLDER, 2) if is_remote(root) else PrivateForm(PRIVATE_NAME, 1)
