"""Parts of a split that Spark alone makes: large catalogues."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.protocol.catalogue import build_catalogue
from recbench_spark.protocol.item_counts import Catalogue
from recbench_spark.runtime.session import cache_scope
from recbench_spark.schemas import ITEMS, SPLITS, Table
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
