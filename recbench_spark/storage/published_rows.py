"""Rows that are written once among all runs, below a name on any storage."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.delta_files import write_files
from recbench_spark.storage.objects import (
    copy_object,
    put_if_absent,
    read_bytes,
    remove_objects,
    write_bytes,
)
from recbench_spark.storage.publish import local_path, private_path, remove_published, rename_folder
from recbench_spark.storage.uris import is_object_storage, join_uri

POINTER = "published"
"""File of a remote folder with the name of the published folder below it."""

SUCCESS = "_SUCCESS"
"""File that is written last, where the rows have no other such file; its name is that of Spark."""


def publish_rows(place: str, write: Callable[[str], object], mark: str = SUCCESS) -> str:
    """Write rows once among all runs; return the folder that holds them.

    They are written under their maker's name. A folder is then renamed, and one that comes second is
    removed. On remote storage, which renames nothing, a small file names the folder that counts.

    Args:
        place: the name.
        write: writes rows, and related files, into the folder that it gets.
        mark: name of the file that `write` writes last.
    """
    published = find_rows(place, mark)
    if published is not None:
        return published
    if "://" not in place:
        target = local_path(place)
        if target.exists():  # left by an older version, which wrote in place, and was killed
            remove_published(target)
        with private_path(target) as path:  # `write` makes this folder itself
            write(str(path))
            rename_folder(path, target)
        return place
    name = uuid.uuid4().hex
    write(f"{place}/{name}")
    if is_object_storage(place):
        put_if_absent(f"{place}/{POINTER}", name.encode())  # of two runs at once, one counts for both
    else:
        write_bytes(f"{place}/{POINTER}", name.encode())
    return find_rows(place, mark) or f"{place}/{name}"


def find_rows(place: str, mark: str = SUCCESS) -> str | None:
    """Return the folder of rows that were published under a name; None if there are none."""
    if "://" in place and (name := read_bytes(f"{place}/{POINTER}")):
        return f"{place}/{name.decode()}"
    return place if read_bytes(f"{place}/{mark}") is not None else None


TASK_FILES = "_tasks"
"""Folder for the files of tasks below a folder that is read whole: readers skip names that begin so."""


def write_folder(results: TaskRows, folder: str) -> None:
    """Let tasks write their results as the only Parquet files of a new folder."""
    place = join_uri(folder, TASK_FILES)
    publish_parts([join_uri(place, file.path) for file in write_files(results, place, {})], folder)
    write_bytes(join_uri(folder, SUCCESS), b"")


def publish_parts(files: Sequence[str], folder: str) -> None:
    """Bring the files that tasks have returned from TASK_FILES to the folder itself, within the storage.

    Files of attempts that were given up do not count. A copy is one request, of at most 5 GB in S3.
    """
    remote = "://" in folder
    for number, file in enumerate(files):
        target = join_uri(folder, f"part-{number:05}.parquet")
        copy_object(file, target) if remote else Path(file).rename(target)
    if remote:
        remove_objects(join_uri(folder, TASK_FILES))
    else:
        shutil.rmtree(join_uri(folder, TASK_FILES))
