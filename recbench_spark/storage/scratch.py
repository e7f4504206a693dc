"""Scratch folders: rows for tasks to map during a night.

All tasks can read them. They are removed at the end of the night.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from recbench_spark.errors import StoreError
from recbench_spark.storage.blocks import Engine, PieceRows, Rows, TaskRows
from recbench_spark.storage.delta_files import write_files
from recbench_spark.storage.marks import keep_fresh
from recbench_spark.storage.objects import remove_objects, write_table
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.shared_arrays import SharedRows, remove_old
from recbench_spark.storage.task_files import write_rows
from recbench_spark.storage.uris import join_uri

SCRATCH = f"_scratch/{uuid.uuid4().hex}"
"""A folder of this process alone: two nights at once do not remove each other's rows."""


def scratch_folder(base: str) -> str:
    """Return a new folder for rows mapped by workers.

    The folder lies under a base; `drop_scratch` removes it.
    """
    if "://" not in base:  # a night may be longer than a day, after which others remove old files
        keep_fresh(Path(base) / SCRATCH)
    return join_uri(base, SCRATCH, uuid.uuid4().hex)


def share_table(base: str, rows: pa.Table) -> SharedRows:
    """Write the driver's rows to a folder for all workers."""
    folder = scratch_folder(base)
    write_table(join_uri(folder, "rows.parquet"), rows)
    return SharedRows(folder.rsplit("/", 1)[1], (join_uri(folder, "rows.parquet"),))


def share_results(base: str, results: TaskRows) -> SharedRows:
    """Let tasks write their results where all workers can read.

    The new folder lies under the base.
    """
    folder = scratch_folder(base)
    files = [join_uri(folder, file.path) for file in write_files(results, folder, {})]
    return SharedRows(folder.rsplit("/", 1)[1], tuple(files))


def keep_results(base: str, results: TaskRows, engine: Engine) -> PieceRows:
    """Return tasks' results as rows, computed once, kept in files."""
    files = share_results(base, results).files
    return PieceRows(engine, [(file, {}) for file in files], read_partition_files)


def share_rows(base: str, rows: Rows, names: Sequence[str]) -> SharedRows:
    """Let tasks write shared rows to files, without a shuffle.

    The new folder lies under the base.
    """
    folder = scratch_folder(base)
    files = [join_uri(folder, file.path) for file in write_rows(rows, names, folder)]
    return SharedRows(folder.rsplit("/", 1)[1], tuple(files))


def keep_rows(base: str, rows: Rows, names: Sequence[str], engine: Engine) -> PieceRows:
    """Keep rows in files, computed once, without a shuffle."""
    files = share_rows(base, rows, names).files
    return PieceRows(engine, [(file, {}) for file in files], read_partition_files)


def drop_scratch(base: str) -> None:
    """Remove this process's scratch, and old scratch of killed jobs.

    Old scratch is that of a local folder, after a day.

    Args:
        base: a folder, or a URI of object storage.
    """
    with suppress(StoreError, OSError):
        remove_objects(join_uri(base, SCRATCH))
    if "://" not in base:
        remove_old(Path(base) / SCRATCH.split("/", maxsplit=1)[0])
