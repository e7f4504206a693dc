"""Identity of an input: the text that names the data which a number was computed from.

Of a Delta table see `delta_snapshots`, of plain files `digests`; both engines give the same text. Files
that lie on a disk are digested by threads, many bytes by tasks of Spark. Remote files (s3a, hdfs) are
digested by Spark's tasks up to REMOTE_BYTES each; of a larger one name, size and time count, so that
such a file is another one after it was copied, and a change of equal size and time is not seen. No
digest of a remote file is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.data.delta_snapshots import Snapshot, read_snapshot, snapshot_of
from recbench_spark.data.digests import (
    PIECE,
    Content,
    Piece,
    by_threads,
    content_identity,
    content_of,
    digest_piece,
    identity_of,
)
from recbench_spark.data.readers.files import check_path, exists, explained, is_table, qualified
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.inputs import Input, Options, local_path, look_once, time_travel
from recbench_spark.storage.shared_arrays import escape_path

BYTES_HERE = 1 << 28
"""Bytes of plain files that threads of the driver digest; more are digested by tasks."""

REMOTE_BYTES = 1 << 28
"""Size of a remote file up to which a task reads all its bytes: it holds them at once."""


def identity(spark: SparkSession, path: str, *, named: bool = False, options: Options | None = None) -> str:
    """Return a short text that is equal for equal data at whatever path, and for no other.

    Inside `inputs.pinned_inputs` the path is looked at once.

    Args:
        spark: the session.
        path: file, folder, Delta table, or `schema.table` of the catalog.
        named: whether names of plain files count.
        options: of the reader; `versionAsOf` and `timestampAsOf` name the version.

    Raises:
        MissingError, DataError: nothing is there.
    """
    given = options or {}
    return look_once(path, given, named, partial(_look, spark, path, named, given)).identity


def _look(spark: SparkSession, path: str, named: bool, options: Options) -> Input:
    try:
        if DeltaTable.isDeltaTable(spark, path):
            return _delta_input(path, options, partial(_delta_at, spark, path))
        if not exists(path) and is_table(spark, path):
            return _delta_input(path, options, partial(_delta_named, spark, path))
        if not exists(path):
            check_path(path)
        return _plain_input(spark, path, named)
    except AnalysisException:
        raise DataError(
            f"nothing to read at {path}", "check the path, or the name of a Delta table"
        ) from None


# ------------------------------------------------------------------------------------- Delta


def _delta_input(path: str, options: Options, look: Any) -> Input:
    with explained(path):
        found: Snapshot = look(options)
    at_version = {"versionAsOf": str(found.version)}
    return Input(path, found.identity, found.version, lambda: look(at_version).identity, found.identity)


def _delta_at(spark: SparkSession, path: str, options: Options) -> Snapshot:
    place = local_path(path)
    if Path(place, "_delta_log").is_dir():
        try:
            return read_snapshot(place, options=options)
        except FallbackToSpark:
            pass
    return snapshot_of(spark.read.format("delta").options(**time_travel(options)).load(path))


def _delta_named(spark: SparkSession, name: str, options: Options) -> Snapshot:
    return snapshot_of(spark.read.options(**time_travel(options)).table(name))


# ------------------------------------------------------------------------------------- plain files


def _plain_input(spark: SparkSession, path: str, named: bool) -> Input:
    place = local_path(path)
    if Path(place).exists():
        look = partial(content_identity, place, named, partial(_by_tasks, spark))
        found = look()
        return Input(path, found, None, look, found)
    sign_now = partial(_sign, spark, path)
    before = sign_now()
    return Input(path, _remote(spark, path, named), None, sign_now, before)


def _by_tasks(spark: SparkSession, pieces: Sequence[Piece]) -> list[bytes]:
    """Return the digest of each piece. Nothing is shuffled; a task holds a buffer, the driver 32 bytes a
    piece."""
    if len(pieces) * PIECE <= BYTES_HERE or sum(_length(piece) for piece in pieces) <= BYTES_HERE:
        return by_threads(pieces)
    context = spark.sparkContext
    tasks = min(len(pieces), 4 * context.defaultParallelism)
    return context.parallelize(pieces, tasks).map(digest_piece).collect()


def _length(piece: Piece) -> int:
    path, first = piece
    return min(PIECE, max(Path(path).stat().st_size - first, 0))


def _listed(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(escape_path(path))


def _remote(spark: SparkSession, path: str, named: bool) -> str:
    """Return the identity of remote files, each read by one task; of large ones no content."""
    listed = _listed(spark, path)
    small = listed.where(F.col("length") <= REMOTE_BYTES).select("path", "length", _digest_of_content())
    large = listed.where(F.col("length") > REMOTE_BYTES).select(
        "path", "length", F.col("modificationTime").cast("string").alias("digest")
    )
    root = unquote(qualified(spark, path))
    files: list[Content] = []
    with explained(path):
        for row in small.unionByName(large).collect():
            whole = row.length > REMOTE_BYTES
            files.append(content_of(root, unquote(row.path), row.length, row.digest, named or whole))
    if not files:
        raise DataError(f"no files at {path}", "check the path")
    return identity_of(files)


def _digest_of_content() -> Column:
    """The digest of a file as `digests` computes it: of the digests of its pieces."""
    last = F.greatest(F.floor((F.col("length") - 1) / PIECE), F.lit(0))

    def digest(n: Column) -> Column:
        return F.unhex(F.sha2(F.substring("content", n * PIECE + 1, F.lit(PIECE)), 256))

    pieces = F.transform(F.sequence(F.lit(0), last.cast("int")), digest)
    joined = F.aggregate(pieces, F.lit(b""), _concat)
    return F.sha2(joined, 256).alias("digest")


def _concat(before: Column, one: Column) -> Column:
    return F.concat(before, one)


def _sign(spark: SparkSession, path: str) -> str:
    """Return a digest over names, sizes and times of remote files as they are now."""
    rows = _listed(spark, path).select("path", "length", "modificationTime")
    return hashlib.sha256(str(sorted(map(tuple, rows.collect()))).encode()).hexdigest()
