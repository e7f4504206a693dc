"""Table folders: checks of a root, first commits without Spark."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recbench_spark.errors import StoreError
from recbench_spark.schemas import Table
from recbench_spark.storage import delta_files
from recbench_spark.storage.objects import list_objects, put_if_absent, require_conditional_writes
from recbench_spark.storage.publish import NO_LINKS, age_seconds
from recbench_spark.storage.table_sql import table_properties
from recbench_spark.storage.uris import LOG, absolute_place, is_object_storage, join_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_catalog_schema(root: str) -> bool:
    """Check whether a root is `catalog.schema`.

    Such a root has two names and a dot, and there is no such directory.
    """
    return bool(re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", root)) and not Path(root).exists()


def reports_place(root: str) -> str:
    """Return the place of a warehouse's reports.

    They are beside the tables, or in `reports/CATALOG.SCHEMA/` of the working directory.
    """
    return absolute_place(f"reports/{root}") if is_catalog_schema(root) else join_uri(root, "reports")


def may_have_folder(root: str) -> bool:
    """Check whether tasks may write a `catalog.schema`'s files.

    The catalog must be Spark's own. Only a session of Spark knows the place
    (`spark_places.find_schema_place`).
    """
    return is_catalog_schema(root) and root.startswith("spark_catalog.")


def check_writable(root: Path) -> None:
    """Make a warehouse's folder.

    Raises:
        StoreError: nothing can be written to it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create warehouse {root}: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write to warehouse {root}", "choose another --warehouse")


def check_would_write(root: Path) -> None:
    """Check as `check_writable` would, without making anything.

    Raises:
        StoreError: `check_writable` would fail.
    """
    place = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise StoreError(f"cannot create warehouse {root}: {place} is a file", "choose another --warehouse")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write to {place}", "choose another --warehouse")


# ------------------------------------------------------------------------- first commits

HINT_RESTORE = f"restore all of its {LOG}, or choose another --warehouse"

COMMIT = re.compile(rf"{LOG}/[0-9]{{20}}\.(json|checkpoint.*\.parquet)")
"""A file which proves a table's existence; Delta reports other missing files of its log."""

LEFTOVER = re.compile(rf"{LOG}/(.*/)?(\.[^/]*|[^/]*\.tmp)")
"""A file left by the first commit of a killed writer: hidden (as Hadoop does), or ending in .tmp."""

FIRST_COMMIT_SECONDS = 15
"""After this time a missing first commit will not come; all retries together take longer."""


def files_in(folder: Path) -> Iterator[str]:
    """Yield all files in a folder, the log's first.

    Paths are relative to the folder.
    """
    for place in (folder / LOG, folder):
        for base, folders, names in os.walk(place):
            if place == folder and Path(base) == folder:
                folders[:] = [name for name in folders if name != LOG]
            yield from (str(Path(base, name).relative_to(folder)) for name in names)


def remote_files_in(spark: SparkSession, folder: str) -> Iterator[str]:
    """Yield paths as `files_in`, by Hadoop's file system."""
    from recbench_spark.engine.sessions import open_hadoop  # noqa: PLC0415

    system, path = open_hadoop(spark, folder)
    whole = system.makeQualified(path).toString()
    for place in (f"{folder}/{LOG}", folder):
        _, path = open_hadoop(spark, place)
        entries = system.listFiles(path, True) if system.exists(path) else None
        while entries is not None and entries.hasNext():
            yield entries.next().getPath().toString().removeprefix(f"{whole}/")


def find_commit(folder: str, list_files: Callable[[], Iterable[str]]) -> bool:
    """Check whether a table's folder holds a commit.

    Leftovers alone give False.

    Raises:
        StoreError: the folder holds files and no commit. Nothing is removed: they may be all that is left
            of a table.
    """
    for file in list_files():
        if COMMIT.fullmatch(file):
            return True
        if LEFTOVER.fullmatch(file):
            continue
        if any(map(COMMIT.fullmatch, list_files())):  # another writer has created the table meanwhile
            return True
        raise StoreError(
            f"{folder} holds {file} and is not a Delta table: its {LOG} has no commit", HINT_RESTORE
        )
    return False


def has_commit(place: str | Path) -> bool:
    """Check whether a place holds a table.

    The place is a folder of this machine, or in an object storage. Object storage lists a thousand names at
    a time, the log's before data files, since `_` comes before small letters.

    Raises:
        StoreError: as `find_commit`; an object storage does not answer, or refuses.
    """
    if is_object_storage(place):
        return find_commit(str(place), partial(list_objects, str(place)))
    folder = Path(place)
    return find_commit(str(folder), partial(files_in, folder))


def remove_uncommitted(folder: Path) -> None:
    """Remove a killed job's files from before the first commit.

    Delta would refuse to create the table. Only leftovers are removed, file by file, and then empty
    folders.

    Raises:
        StoreError: there are other files. They would become part of the table, and a VACUUM would delete
            them.
    """
    log = folder / LOG
    if has_commit(folder) or not log.is_dir():
        return
    if age_seconds(log) < FIRST_COMMIT_SECONDS:
        return
    for file in filter(LEFTOVER.fullmatch, list(files_in(folder))):
        (folder / file).unlink(missing_ok=True)
    for base, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # another writer uses the folder by now
            Path(base).rmdir()


def create_local_table(folder: Path, table: Table) -> None:
    """Create a table in a local folder, all or nothing.

    The first commit is the one Spark would write.

    Raises:
        OSError: the disk has no hard links.
        StoreError: as `remove_uncommitted`.
    """
    remove_uncommitted(folder)
    log = folder / LOG
    log.mkdir(parents=True, exist_ok=True)
    draft = log / f".{uuid.uuid4().hex}.tmp"
    # A hard link appears with its whole content, and never replaces another writer's commit.
    try:
        draft.write_text(format_first_commit(table), encoding="utf-8")
        os.link(draft, log / f"{0:020}.json")
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def try_create_local(folder: Path, table: Table) -> bool:
    """Create a table without Spark; False: no hard links.

    Raises:
        StoreError: the disk is full, or not writable.
    """
    try:
        create_local_table(folder, table)
    except OSError as error:
        for place in (folder / LOG, folder):
            with suppress(OSError):  # Spark would take an empty folder for an existing table
                place.rmdir()
        if error.errno not in NO_LINKS:
            raise StoreError(
                f"cannot create table {folder}: {error.strerror}",
                "make space or give rights, and run again",
            ) from None
        return False
    return True


def create_object_table(place: str, table: Table) -> None:
    """Create a table in object storage by one conditional write.

    The first commit is the one Spark would write. The caller has checked that no table is there.

    Raises:
        StoreError: the storage does not answer, refuses, or has no conditional write.
    """
    require_conditional_writes(place.rstrip("/").rsplit("/", 1)[0])
    # False where another writer was first: its table is as good.
    put_if_absent(join_uri(place, LOG, f"{0:020}.json"), format_first_commit(table).encode())


def format_first_commit(table: Table) -> str:
    """Return the text of a table's first log file, in Delta's terms."""
    now = int(time.time() * 1000)
    metadata = {
        "id": str(uuid.uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema_json,
        "partitionColumns": list(table.partition_by),
        "configuration": table_properties(table),
        "createdTime": now,
    }
    version = delta_files.CHECKED_VERSION if table.constraints else delta_files.WRITER_VERSION
    actions = (
        {"commitInfo": {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": version}},
        {"metaData": metadata},
    )
    return "\n".join(map(json.dumps, actions)) + "\n"
