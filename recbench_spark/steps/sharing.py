"""Rows that workers map: written to a scratch folder all executors can read."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from pyspark.sql import DataFrame

from recbench_spark import shared_files
from recbench_spark.evaluation import sources
from recbench_spark.evaluation.sources import DotSource
from recbench_spark.shared_files import SharedRows, remove_old
from recbench_spark.steps.reading import typed_features
from recbench_spark.store import Store

SCRATCH = f"_scratch/{uuid.uuid4().hex}"
"""A folder of this process: two nights at once do not remove each other's rows."""


def base_folder(store: Store) -> str:
    """Where scratch lies: the warehouse's root, or this host where the warehouse is a catalog."""
    return str(shared_files.host_folder()) if store.in_catalog else store.root


def scratch_folder(store: Store) -> str:
    """A new folder for rows that workers map; removed by `drop_scratch`."""
    return f"{base_folder(store)}/{SCRATCH}/{uuid.uuid4().hex}"


def drop_scratch(store: Store) -> None:
    """Remove this process's scratch where it is a local folder."""
    base = base_folder(store)
    if "://" not in base:
        shutil.rmtree(Path(base) / SCRATCH, ignore_errors=True)
        remove_old(Path(base) / SCRATCH.split("/", maxsplit=1)[0])


def share(store: Store, rows: DataFrame) -> SharedRows:
    """Write rows where all workers can read them."""
    return share_in(base_folder(store), rows)


def share_features(base: str, items: DataFrame, rows: DataFrame, what: str) -> DotSource:
    """Vectors of the items (item_id, vector), for `diversity`; items without one have all zeros."""
    typed = typed_features(rows, what)
    dims = sources.dimensions(typed, what)
    return DotSource(share_in(base, sources.vector_rows(items, typed)), items.count(), dims)


def share_in(base: str, rows: DataFrame) -> SharedRows:
    """Write rows to a new folder under a base that all workers can read."""
    folder = f"{base}/{SCRATCH}/{uuid.uuid4().hex}"
    rows.write.parquet(folder)
    files = rows.sparkSession.read.parquet(folder).inputFiles()
    return SharedRows(folder.rsplit("/", 1)[1], tuple(files))
