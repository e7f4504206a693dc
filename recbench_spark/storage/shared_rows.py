"""Rows that workers map, written to a scratch folder that all executors can read."""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession

from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.engine.sessions import Py4JError, open_hadoop
from recbench_spark.engine.versions import arrow_schema, read_setting
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.storage import scratch, shared_arrays
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.objects import remove_objects
from recbench_spark.storage.scratch import SCRATCH
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


def load_parquet(spark: SparkSession, *places: str) -> DataFrame:
    """Return the rows of Parquet files or folders; a path is a name, even with `[` or `*` in it."""
    reader = spark.read
    return reader.parquet(*map(shared_arrays.escape_path, places))


def share_rows(base: str, rows: DataFrame) -> SharedRows:
    """Let tasks write rows to a new folder under a base that all workers can read."""
    shared = scratch.share_rows(base, FrameRows(rows, PIECE_ROWS), rows.columns)
    return shared if shared.files else scratch.share_table(base, arrow_schema(rows).empty_table())
