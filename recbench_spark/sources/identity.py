"""Compute an input's identity: the data behind a number.

`delta_snapshots` computes it for Delta tables and `digests` for plain files; both engines give the same
text. Threads digest files on a local disk, in object storage and on HDFS; for large ones, Spark's tasks do.
If Hadoop alone knows the storage, Spark's tasks digest files up to REMOTE_BYTES each. A larger file counts
by name, size and time: a copy is another file, and a change with equal size and time goes unseen. No digest
of such a file is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.core.inputs import Options, PinnedInput, look_once, normalise_path, time_travel_options
from recbench_spark.engine.sessions import is_connect, open_tasks
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.sources import digests
from recbench_spark.sources.delta_snapshots import Snapshot, read_frame_snapshot, read_snapshot
from recbench_spark.sources.digests import PIECE, Piece
from recbench_spark.sources.paths import check_path, exists
from recbench_spark.sources.readers.paths import explain_errors, is_table, qualify_path, reach_storage
from recbench_spark.storage.shared_arrays import escape_path
from recbench_spark.storage.spark_places import find_table, is_delta
from recbench_spark.storage.table_scans import find_partition, is_delta_table
from recbench_spark.storage.uris import has_driver, is_remote

DRIVER_BYTES = 1 << 28
"""Bytes in plain files up to which driver threads compute digests; larger inputs go to tasks."""

REMOTE_BYTES = 1 << 28
"""Size up to which a task reads a remote file; the task holds all of it."""


def identity(spark: SparkSession, path: str, *, named: bool = False, options: Options | None = None) -> str:
    """Return a short text, equal for equal data anywhere.

    The text differs for other data. Inside `inputs.pin_inputs` the path is looked at once.

    Args:
        spark: the session.
        path: file, folder, Delta table, or `schema.table` in the catalog.
        named: true if names of plain files count.
        options: options for the reader; `versionAsOf` and `timestampAsOf` name the version.

    Raises:
        MissingError, DataError: nothing is there.
    """
    reading = options or {}
    return look_once(path, reading, named, partial(_identify, spark, path, named, reading)).identity


def _identify(spark: SparkSession, path: str, named: bool, options: Options) -> PinnedInput:
    reach_storage(spark, path)  # Hadoop keeps a file system as it was first opened
    try:
        if is_delta(spark, path):
            return _delta_input(path, options, partial(_read_path_snapshot, spark, path))
        if not exists(path) and is_table(spark, path):
            return _delta_input(path, options, partial(_read_table_snapshot, spark, path))
        if not exists(path):
            check_path(path)
        return _plain_input(spark, path, named)
    except AnalysisException:
        hint = "check the path, or the name of a Delta table"
        raise DataError(f"nothing to read at {path}", hint) from None


# ------------------------------------------------------------------------------------- Delta


def _delta_input(path: str, options: Options, look: Any) -> PinnedInput:
    with explain_errors(path):
        snapshot: Snapshot = look(options)
    at_version = {"versionAsOf": str(snapshot.version)}
    return PinnedInput(
        path, snapshot.identity, snapshot.version, lambda: look(at_version).identity, snapshot.identity
    )


def _read_path_snapshot(spark: SparkSession, path: str, options: Options) -> Snapshot:
    place = normalise_path(path)
    if is_delta_table(place) or find_partition(place) is not None:
        try:
            return read_snapshot(place, options=options)
        except FallbackToSpark:
            pass
    return read_frame_snapshot(
        spark.read.format("delta").options(**time_travel_options(options)).load(path)
    )


def _read_table_snapshot(spark: SparkSession, name: str, options: Options) -> Snapshot:
    if is_connect(spark) and (place := find_table(spark, name)):
        return _read_path_snapshot(spark, place, options)
    return read_frame_snapshot(spark.read.options(**time_travel_options(options)).table(name))


# ------------------------------------------------------------------------------------- plain files


def _plain_input(spark: SparkSession, path: str, named: bool) -> PinnedInput:
    place = normalise_path(path)
    if Path(place).exists() or has_driver(place):
        look = partial(digests.content_identity, place, named, partial(_digest_in_tasks, spark))
        digest = look()
        return PinnedInput(path, digest, None, look, digest)
    sign_now = partial(_sign_listing, spark, path)
    before = sign_now()
    return PinnedInput(path, _remote_identity(spark, path, named), None, sign_now, before)


def _digest_in_tasks(spark: SparkSession, pieces: Sequence[Piece]) -> list[bytes]:
    """Return each piece's digest.

    Nothing is shuffled; the driver holds 32 bytes per piece.
    """
    if len(pieces) * PIECE <= DRIVER_BYTES or sum(map(_measure_piece, pieces)) <= DRIVER_BYTES:
        return digests.digest_in_threads(pieces)
    context = open_tasks(spark)
    tasks = min(len(pieces), 4 * context.defaultParallelism)
    return context.parallelize(pieces, tasks).map(digests.digest_piece).collect()


def _measure_piece(piece: Piece) -> int:
    path, first = piece
    if is_remote(path):  # to ask for the size of each would be a request each
        return PIECE
    return min(PIECE, max(Path(path).stat().st_size - first, 0))


def _list_files(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(escape_path(path))


def _remote_identity(spark: SparkSession, path: str, named: bool) -> str:
    """Identify remote files, each read by one task.

    Large ones count without content.
    """
    listed = _list_files(spark, path)
    small = listed.where(F.col("length") <= REMOTE_BYTES).select("path", "length", _content_digest())
    large = listed.where(F.col("length") > REMOTE_BYTES).select(
        "path", "length", F.col("modificationTime").cast("string").alias("digest")
    )
    root = unquote(qualify_path(spark, path))
    files: list[digests.Content] = []
    with explain_errors(path):
        for row in small.unionByName(large).collect():
            by_name = named or row.length > REMOTE_BYTES
            files.append(digests.make_content(root, unquote(row.path), row.length, row.digest, by_name))
    if not files:
        raise DataError(f"no files at {path}", "check the path")
    return digests.files_identity(files)


def _content_digest() -> Column:
    """Return a file's digest over its pieces, as in `digests`."""
    last = F.greatest(F.floor((F.col("length") - 1) / PIECE), F.lit(0))

    def digest(n: Column) -> Column:
        return F.unhex(F.sha2(F.substring("content", n * PIECE + 1, F.lit(PIECE)), 256))

    pieces = F.transform(F.sequence(F.lit(0), last.cast("int")), digest)
    joined = F.aggregate(pieces, F.lit(b""), _concat)
    return F.sha2(joined, 256).alias("digest")


def _concat(before: Column, one: Column) -> Column:
    return F.concat(before, one)


def _sign_listing(spark: SparkSession, path: str) -> str:
    """Return a digest of remote files' names, sizes and times."""
    rows = _list_files(spark, path).select("path", "length", "modificationTime")
    return hashlib.sha256(str(sorted(map(tuple, rows.collect()))).encode()).hexdigest()
