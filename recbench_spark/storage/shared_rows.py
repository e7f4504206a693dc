"""Rows that workers map, written to a scratch folder that all executors can read."""

from __future__ import annotations

from collections.abc import Sequence
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
    remove_objects,
)
from recbench_spark.storage.paths import decode_uri
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


def _remove_remote(spark: SparkSession, folder: str) -> None:
    """Remove a folder: of object storage its objects, else by Hadoop's file system, which wrote it."""
    if is_object_storage(folder):
        with suppress(StoreError):
            remove_objects(folder)
        return
    with suppress(Py4JError):  # a folder left behind costs only space
        files, path = open_hadoop(spark, folder)
        files.delete(path, True)


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
    are returned.
    """
    if is_object_storage(folder):
        return write_parts(rows, folder)
    rows.write.parquet(folder)
    # With the schema, Spark does not open a file to read the columns.
    return input_files(load_parquet(rows.sparkSession, folder, schema=rows.schema))
