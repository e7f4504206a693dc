"""Parts of a split that Spark alone makes: other readers, catalogs, labels from tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Dataset, Slice, Split
from recbench_spark.data.columnar import COLUMNAR_READERS
from recbench_spark.data.readers.ids import id_order
from recbench_spark.data.readers.logs import open_log
from recbench_spark.data.readers.tables import read_table
from recbench_spark.errors import DataError
from recbench_spark.placeholders import log_end_micros
from recbench_spark.protocol.catalogue import build_catalogue
from recbench_spark.protocol.item_counts import Catalogue
from recbench_spark.protocol.labels import OpenLoop
from recbench_spark.protocol.manifests import LogRows
from recbench_spark.protocol.rules import make_rule
from recbench_spark.protocol.splits import label_blocks
from recbench_spark.runtime.session import cache_scope, narrow_rows
from recbench_spark.schemas import ITEMS, REJECTS, SPLITS, Table
from recbench_spark.storage.frame_blocks import FrameBlocks, FrameRows
from recbench_spark.storage.store import Store


@contextmanager
def label_frame(
    store: Store,
    dataset: Dataset,
    split: Split,
    rejects_of: str,
    *,
    open_loop: OpenLoop,
    every_fold: bool,
) -> Iterator[tuple[FrameBlocks, LogRows, bool]]:
    """Label any log by Spark's readers; unusable rows are an error, or go to `rejects`.

    Yields:
        The labelled blocks, the counts of the log, and whether item ids are ordered as numbers.
    """
    opened = open_log(store.spark, dataset)
    if opened.rejects is not None and rejects_of:
        append_split(store, REJECTS, opened.rejects, rejects_of)
    # Cache parsed text; reading columnar files again is faster than caching them.
    log = opened.stored if dataset.reader in COLUMNAR_READERS else opened.stored.cache()
    log, later = drop_later_rows(log, dataset)
    n = log.count() if opened.n is None else opened.n - later
    if not n:
        raise DataError(f"dataset {dataset.name} has no rows", "check dataset.path")
    # Do not shuffle a column that is empty.
    narrow = log if dataset.attributes or dataset.reader == "world" else log.drop("attributes")
    numeric = id_order([log]) == "numeric"
    tie = make_rule(split, None).tie
    ordered = numeric if tie == "item_id" else id_order([log], tie) == "numeric"
    with narrow_rows(store.spark):
        blocks = label_blocks(
            narrow,
            split,
            dataset.duplicates,
            n,
            ordered,
            open_loop=open_loop,
            every_fold=every_fold,
            zone=dataset.zone,
        )
        yield blocks, LogRows(n, later, opened.rejected, opened.describe_reasons()), numeric
    opened.stored.unpersist()


def drop_later_rows(log: DataFrame, dataset: Dataset) -> tuple[DataFrame, int]:
    """Return the rows before the end of `dataset.until`, and the number of later ones.

    This takes one pass and no shuffle.

    Raises:
        DataError: rows without a time, which belong to no night.
    """
    end, time = log_end_micros(dataset), F.col("event_time")
    if end is None:
        return log, 0
    (counts,) = log.agg(
        F.count_if(time >= end).alias("later"), F.count_if(time.isNull()).alias("undated")
    ).collect()
    if counts.undated:
        raise DataError(
            f"dataset.until is set, and {counts.undated} rows of {dataset.name} have no event_time",
            "map dataset.columns.event_time, or remove dataset.until",
        )
    return log.where(time < end), counts.later


def append_split(store: Store, table: Table, frame: DataFrame, split_id: str) -> None:
    """Append rows of one split."""
    store.append(frame.withColumn("split_id", F.lit(split_id)), table, once=split_id)


def append_catalogue(store: Store, split_id: str, numeric: bool) -> Catalogue:
    """Write a catalogue that Spark counts and sorts (`protocol.catalogue`)."""
    with cache_scope():  # a session may make a split of this name again, in another warehouse at this place
        catalogue = build_catalogue(store.read_partition(SPLITS, "split_id", split_id), numeric)
        append_split(store, ITEMS, catalogue.rows, split_id)
    return catalogue


def open_joined(store: Store, split_id: str, joined: Sequence[tuple[Slice, str]]) -> FrameRows:
    """Return the rows of a split, with the labels of users or items that tables have."""
    rows = store.read_partition(SPLITS, "split_id", split_id)
    for cut, column in joined:
        rows = rows.join(_read_slice_column(store.spark, cut, column), f"{cut.of[:-1]}_id", "left")
    return FrameRows(rows)


def _read_slice_column(spark: SparkSession, cut: Slice, column: str) -> DataFrame:
    id_column, value_column = f"{cut.of[:-1]}_id", cut.column or cut.key
    table = read_table(spark, str(cut.path), [id_column, value_column], f"slice {cut.key}")
    rows = table.select(
        F.col(id_column).cast("string"), F.col(f"`{value_column}`").cast("string").alias(column)
    )
    if rows.count() > rows.select(id_column).distinct().count():
        raise DataError(f"slice {cut.key}: {cut.path} has a {id_column} twice", "keep one row per id")
    return rows
