"""Audit a split on Spark: passes over labelled rows, whose sums make the manifest."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.engine.sessions import open_tasks
from recbench_spark.engine.versions import send_to_tasks
from recbench_spark.kernels.streams import Batches, chunks
from recbench_spark.protocol import audit
from recbench_spark.protocol.audit import COLUMNS, NOT_HELD_OUT, AuditRequest
from recbench_spark.protocol.labels import GIVEN, LATER, TRAIN, VALID
from recbench_spark.protocol.manifests import LogRows, Manifest, Parts, make_manifest, make_request
from recbench_spark.protocol.pairs import OPEN_LOOP
from recbench_spark.protocol.splits import may_have_duplicates
from recbench_spark.storage.blocks import Blocks, count_tasks
from recbench_spark.storage.packed_blocks import BLOCK_SCHEMA, Block


def build_manifest(
    splits: DataFrame, log: LogRows, settings: str, *, parts: Parts | None = None, files: Sequence[str] = ()
) -> Manifest:
    """Count a labelled log, and make its facts.

    Python tasks make two passes: by part, and by user and item, where each task shuffles one row for each
    id in its rows (`audit`). If a user's rows are in several pieces of files, two more passes follow: by
    64-bit hashes of pairs for the overlap, and a join of training rows with their users for rows of their
    own future. A task holds `audit.ROWS_PER_PIECE` rows.

    Args:
        splits: the labelled log of one split.
        log: the rows that were read.
        settings: the split's settings as JSON.
        parts: the result of `count_parts`; None to compute it here.
        files: the Parquet files that `splits` reads; tasks then read them directly.
    """
    parts = count_parts(splits, files) if parts is None else parts
    request = make_request(parts, settings)
    sums = _sum_audit(splits, files, request)
    return make_manifest(sums, request, log, settings, parts)


def count_parts(splits: DataFrame, files: Sequence[str] = ()) -> Parts:
    """Return rows, content hash and range in time of each part: one pass, without a shuffle."""
    if files:
        read = open_tasks(splits.sparkSession).parallelize(files, len(files))
        return audit.merge_parts(read.mapPartitions(_summarise_files).collect())
    rows = splits.select(*COLUMNS).mapInArrow(_summarise_batches, "summary BINARY").collect()
    return audit.merge_parts(pickle.loads(row["summary"]) for row in rows)


def _summarise_files(paths: Iterable[str]) -> Iterator[Any]:
    yield audit.summarise_parts(table for path in paths for table in audit.read_pieces(path, COLUMNS))


def _summarise_batches(batches: Batches) -> Batches:
    summary = pickle.dumps(audit.summarise_parts(chunks(batches, audit.ROWS_PER_PIECE)))
    yield pa.RecordBatch.from_arrays([pa.array([summary], pa.binary())], ["summary"])


def _sum_audit(splits: DataFrame, files: Sequence[str], request: AuditRequest) -> Counter[Any]:
    """Sum `audit.sum_counts` over all users and items."""
    totals = _count_blocks(splits, files, request).each(partial(audit.sum_counts, request=request))
    sums: Counter[Any] = Counter()
    for one in totals:
        sums.update(one)
    if sums["parted"]:
        sums.update({name: -sums[name] for name in ("overlap", "known", "repeats")})
        sums.update(_count_repeated_pairs(splits, request))
        sums["own_later"] = _count_own_future(splits)
    return sums


def _count_blocks(splits: DataFrame, files: Sequence[str], request: AuditRequest) -> Blocks:
    """Count each piece, in blocks by id."""
    spark = splits.sparkSession
    tasks = count_tasks(spark, sum(request.rows.values()))
    if files:
        count = partial(_count_files, request=request, tasks=tasks)
        counted = open_tasks(spark).parallelize(files, len(files)).mapPartitions(count)
        return Blocks(counted.partitionBy(tasks, int), audit.merge_pieces, T.StructType())
    batches = partial(_count_batches, request=request, tasks=tasks)
    packed = send_to_tasks(splits.select(*COLUMNS).mapInArrow(batches, BLOCK_SCHEMA), tasks, F.col("task"))
    return Blocks(packed, audit.merge_pieces, T.StructType())


def _count_files(paths: Iterable[str], request: AuditRequest, tasks: int) -> Iterator[Block]:
    columns = [name for name in COLUMNS if name != "rating"]
    tables = (table for path in paths for table in audit.read_pieces(path, columns))
    return audit.count_in_blocks(tables, request, tasks)


def _count_batches(batches: Batches, request: AuditRequest, tasks: int) -> Batches:
    for task, rows in audit.count_in_blocks(chunks(batches, audit.ROWS_PER_PIECE), request, tasks):
        columns = [pa.array([task], pa.int32()), pa.array([rows], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "rows"])


def _count_repeated_pairs(splits: DataFrame, request: AuditRequest) -> dict[str, int]:
    """Count as `audit.count_repeated_pairs` does, by a shuffle of the pairs."""
    if not may_have_duplicates(splits):
        return {"overlap": 0, "known": 0, "repeats": 0}
    by_part = splits.groupBy("user_id", "item_id", "part").agg(F.count("*").alias("n"))
    part, keeps, asks = F.col("part"), F.lit(request.keeps_known), F.lit(request.asks_repeats)
    of = {
        "opened": part == OPEN_LOOP,
        "others": ~part.isin(OPEN_LOOP, LATER),
        "trained": part.isin(TRAIN, GIVEN),
        "known": part.isin(TRAIN, GIVEN, VALID),
    }
    counts = (F.sum(F.when(inside, F.col("n")).otherwise(0)).alias(name) for name, inside in of.items())
    pairs = by_part.groupBy("user_id", "item_id").agg(F.max("n").alias("most"), *counts)
    both = (F.col("opened") > 0) & (F.col("known") > 0)
    twice = F.when(asks, F.col("most") > 1).otherwise(F.col("others") > 1)
    doubled = (F.col("opened") > 1) | (both & ~keeps) | twice
    repeats = asks & (F.col("trained") > 0) & (F.col("others") > F.col("trained"))
    named = {"overlap": doubled, "known": both, "repeats": repeats}
    (row,) = pairs.agg(*(F.count_if(column).alias(name) for name, column in named.items())).collect()
    return {name: int(row[name]) for name in named}


def _count_own_future(splits: DataFrame) -> int:
    """Count training rows later than their user's own earliest held-out row."""
    held_out = splits.where(~F.col("part").isin(*NOT_HELD_OUT))
    first = held_out.groupBy("user_id").agg(F.min("event_time").alias("first"))
    train = splits.where(F.col("part") == TRAIN).join(first, "user_id")
    return train.where("event_time > first").count()
