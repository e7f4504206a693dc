"""Data on exposure that Spark alone reads or fits: tables of propensities and rewards."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import functions as F

from recbench_spark.config import Propensities
from recbench_spark.data.readers.tables import read_table
from recbench_spark.engine.versions import collect_arrow, try_cast
from recbench_spark.nightly.propensity import ExposureLog, write_propensities
from recbench_spark.nightly.split_frames import read_split
from recbench_spark.protocol.labels import HISTORY
from recbench_spark.schemas import ITEMS, SPLITS
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.storage.store import Store


def read_given(store: Store, path: str) -> pa.Table:
    """Read item_id and propensity of a table."""
    rows = read_table(store.spark, path, ["item_id", "propensity"], "propensities")
    return collect_arrow(rows.select(F.col("item_id").cast("string"), F.col("propensity").cast("double")))


def fit_propensities(store: Store, split_id: str, settings: Propensities) -> None:
    """Fit propensities to the training rows of a split, and write them."""
    training = read_split(store, SPLITS, split_id).where(F.col("part").isin(*HISTORY))
    write_propensities(ExposureLog(store, split_id, training, read_split(store, ITEMS, split_id)), settings)


def open_rewards(store: Store, path: str) -> FrameRows:
    """Open item_id[, user_id], reward of a table; a value that is no number is NULL."""
    table = read_table(store.spark, path, ["item_id", "reward"], "rewards")
    ids = [F.col(name).cast("string") for name in ("user_id", "item_id") if name in table.columns]
    return FrameRows(table.select(*ids, try_cast(F.col("reward"), "double").alias("reward")))
