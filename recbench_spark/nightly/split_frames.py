"""Parts of a split that Spark alone makes: large catalogues, labels from tables."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Slice
from recbench_spark.data.readers.tables import read_table
from recbench_spark.errors import DataError
from recbench_spark.protocol.catalogue import build_catalogue
from recbench_spark.protocol.item_counts import Catalogue
from recbench_spark.runtime.session import cache_scope
from recbench_spark.schemas import ITEMS, SPLITS, Table
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.store import Store


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
