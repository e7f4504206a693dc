"""Rows that workers map, written to a scratch folder that all executors can read."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from recbench_spark.engine.sessions import Py4JError, open_hadoop
from recbench_spark.engine.versions import read_setting
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.storage import scratch, shared_arrays
from recbench_spark.storage.frame_files import write_parts
from recbench_spark.storage.objects import (
    copy_object,
    put_if_absent,
    read_bytes,
    remove_objects,
    write_bytes,
)
from recbench_spark.storage.paths import decode_uri
from recbench_spark.storage.publish import local_path, private_path, remove_published, rename_folder
from recbench_spark.storage.scratch import SCRATCH, scratch_folder
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.uris import is_object_storage, join_uri

SETTING = "spark.recbench.scratch"
"""The Spark setting (`--conf`, or a line of a properties file) with the place of scratch."""


def base_folder(spark: SparkSession, root: str | None = None) -> str:
    """Return the place of scratch: `spark.recbench.scratch`, a warehouse's root, or this host's disk.

    Args:
        spark: the session.
        root: a folder of the warehouse; None: it has none (a catalog where Spark writes), or there is no
            warehouse.

    Raises:
        ConfigError: there is no root and no setting, and workers are on other hosts.
    """
    return (
        (read_setting(spark, SETTING) or "").rstrip("/")
        or root
        or local_scratch(read_setting(spark, "spark.master") or "unknown")
    )


def local_scratch(master: str) -> str:
    """Return a folder of this host, which only the workers of a local master can read.

    Raises:
        ConfigError: the master is not local.
    """
    if not master.startswith("local"):
        raise ConfigError(
            f"workers of master {master} cannot read this host's disk, and {SETTING} is not set",
            f"--conf {SETTING}=FOLDER that all hosts reach: s3a://..., hdfs://... or a shared mount",
        )
    return str(shared_arrays.host_folder())


def drop_scratch(spark: SparkSession, base: str) -> None:
    """Remove this process's scratch on any storage, as `scratch.drop_scratch`."""
    if "://" in base and not is_object_storage(base):
        _remove_remote(spark, join_uri(base, SCRATCH))
    else:
        scratch.drop_scratch(base)


def drop_folder(spark: SparkSession, folder: str) -> None:
    """Remove one folder of scratch that nobody reads any more."""
    if "://" in folder:
        _remove_remote(spark, folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_remote(spark: SparkSession, folder: str) -> None:
    """Remove a folder: of object storage its objects, else by Hadoop's file system, which wrote it."""
    if is_object_storage(folder):
        with suppress(StoreError):
            remove_objects(folder)
        return
    with suppress(Py4JError):  # a folder left behind costs only space
        files, path = open_hadoop(spark, folder)
        files.delete(path, True)


POINTER = "published"
"""File of a remote folder with the name of the published folder below it."""


def publish_rows(place: str, write: Callable[[str], object], mark: str = "_SUCCESS") -> str:
    """Write rows by Spark once among all runs; return the folder that holds them.

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
        with private_path(target) as path:  # Spark makes this folder itself
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


def find_rows(place: str, mark: str = "_SUCCESS") -> str | None:
    """Return the folder of rows that were published under a name; None if there are none."""
    if "://" in place and (name := read_bytes(f"{place}/{POINTER}")):
        return f"{place}/{name.decode()}"
    return place if read_bytes(f"{place}/{mark}") is not None else None


def load_parquet(spark: SparkSession, *places: str, schema: StructType | None = None) -> DataFrame:
    """Return the rows of Parquet files or folders; a path is a name, even with `[` or `*` in it.

    Args:
        spark: the session.
        places: paths, or URIs of remote storage.
        schema: schema of the files; with it Spark opens none of them.
    """
    reader = spark.read.schema(schema) if schema is not None else spark.read
    return reader.parquet(*map(shared_arrays.escape_path, places))


def input_files(rows: DataFrame) -> tuple[str, ...]:
    """Return the files that a frame reads: paths on a disk, or URIs of remote storage."""
    return tuple(map(decode_uri, rows.inputFiles()))


def share_rows(base: str, rows: DataFrame) -> SharedRows:
    """Write rows to a new folder under a base that all workers can read."""
    folder = scratch_folder(base)
    return SharedRows(folder.rsplit("/", 1)[1], write_parquet(rows, folder))


def share_frame(rows: Any, columns: Sequence[str], base: str) -> SharedRows:
    """Write the rows of a frame (`frame_blocks.FrameRows`), as `share_rows`."""
    return share_rows(base, rows.frame.select(*columns))


def write_parquet(rows: DataFrame, folder: str) -> tuple[str, ...]:
    """Write rows as Parquet files of a new folder, on any storage; return the files.

    In object storage the folder may get further files, of attempts that Spark has given up: read those that
    are returned, or use `write_folder`.
    """
    if is_object_storage(folder):
        return write_parts(rows, folder)
    rows.write.parquet(folder)
    # With the schema, Spark does not open a file to read the columns.
    return input_files(load_parquet(rows.sparkSession, folder, schema=rows.schema))


TASK_FILES = "_tasks"
"""Folder for the files of tasks below a folder that is read whole: readers skip names that begin so."""


def write_folder(rows: DataFrame, folder: str) -> None:
    """Write rows as the only Parquet files of a new folder, on any storage, for readers of the folder."""
    if is_object_storage(folder):
        publish_parts(write_parts(rows, join_uri(folder, TASK_FILES)), folder)
    else:
        write_parquet(rows, folder)


def publish_parts(files: Sequence[str], folder: str) -> None:
    """Copy the files that tasks have returned from TASK_FILES to the folder itself, within the storage.

    A copy is one request, of at most 5 GB in S3.
    """
    for number, file in enumerate(files):
        copy_object(file, join_uri(folder, f"part-{number:05}.parquet"))
    remove_objects(join_uri(folder, TASK_FILES))
