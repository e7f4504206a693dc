"""Rows that workers map: written to a scratch folder all executors can read."""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from recbench_spark import shared_files
from recbench_spark.data.handed_over import meet, typed_features
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking import sources
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.shared_files import SharedRows, remove_old
from recbench_spark.store import Store

SCRATCH = f"_scratch/{uuid.uuid4().hex}"
"""A folder of this process: two nights at once do not remove each other's rows."""


SETTING = "spark.recbench.scratch"
"""Spark's setting (`--conf`, or a line of a properties file) that says where scratch lies."""


def base_folder(store: Store) -> str:
    """Where scratch lies: as `spark.recbench.scratch` says, else the warehouse's root.

    Raises:
        ConfigError: a catalog, which has no root, on a cluster, and no setting.
    """
    conf = store.spark.conf
    root = None if store.in_catalog else store.root
    return conf.get(SETTING, None) or root or own_disk(conf.get("spark.master", None) or "unknown")


def session_folder(spark: SparkSession) -> str:
    """Where scratch lies without a warehouse: as the setting says, else on this host's disk.

    Raises:
        ConfigError: workers on other hosts, and no setting.
    """
    return spark.conf.get(SETTING, None) or own_disk(spark.conf.get("spark.master", None) or "unknown")


def own_disk(master: str) -> str:
    """A folder of this host, which only the workers of a local master can read."""
    if not master.startswith("local"):
        raise ConfigError(
            f"workers of master {master} cannot read this host's disk, and {SETTING} is not set",
            f"--conf {SETTING}=FOLDER that all hosts reach: s3a://..., hdfs://... or a shared mount",
        )
    return str(shared_files.host_folder())


def scratch_folder(store: Store) -> str:
    """A new folder for rows that workers map; removed by `drop_scratch`."""
    return f"{base_folder(store)}/{SCRATCH}/{uuid.uuid4().hex}"


def drop_scratch(store: Store) -> None:
    """Remove this process's scratch, and on a local folder what killed ones left a day ago."""
    base = base_folder(store)
    if "://" in base:
        _remove_remote(store, f"{base}/{SCRATCH}")
        return
    shutil.rmtree(Path(base) / SCRATCH, ignore_errors=True)
    remove_old(Path(base) / SCRATCH.split("/", maxsplit=1)[0])


def _remove_remote(store: Store, folder: str) -> None:
    """By Hadoop's file system: it has the credentials that wrote the rows."""
    context = store.spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]
    with suppress(Py4JError):  # a folder left behind costs space, and no night
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)


def share(store: Store, rows: DataFrame) -> SharedRows:
    """Write rows where all workers can read them."""
    return share_in(base_folder(store), rows)


def share_features(base: str, items: DataFrame, rows: DataFrame, what: str) -> DotSource:
    """Vectors of the items (item_id, vector), for `diversity`; items without one have all zeros."""
    typed = typed_features(rows, what)
    dims = sources.dimensions(typed, what)
    meet(typed, items, "item_id", (what, "catalogue"))
    return DotSource(share_in(base, sources.vector_rows(items, typed)), items.count(), dims)


def share_in(base: str, rows: DataFrame) -> SharedRows:
    """Write rows to a new folder under a base that all workers can read."""
    folder = f"{base}/{SCRATCH}/{uuid.uuid4().hex}"
    rows.write.parquet(folder)
    files = rows.sparkSession.read.parquet(folder).inputFiles()
    return SharedRows(folder.rsplit("/", 1)[1], tuple(files))
