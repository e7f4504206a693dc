"""Data on exposure that Spark alone reads or fits: tables of propensities and rewards."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Propensities
from recbench_spark.data.readers.tables import read_table
from recbench_spark.engine.versions import collect_arrow, try_cast
from recbench_spark.nightly.propensity_names import SEED, ExposureLog, method_name
from recbench_spark.protocol import logistic
from recbench_spark.protocol.propensities import select_rows
from recbench_spark.schemas import CELL_PROPENSITIES, PROPENSITIES
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.frame_blocks import FrameRows, open_frame
from recbench_spark.storage.sides import ChangedRows
from recbench_spark.storage.store import Store

IDS = ("user_id", "item_id")


def read_given(store: Store, path: str) -> pa.Table:
    """Read item_id and propensity of a table."""
    rows = read_table(store.spark, path, ["item_id", "propensity"], "propensities")
    return collect_arrow(rows.select(F.col("item_id").cast("string"), F.col("propensity").cast("double")))


def fit_features(exposed: ExposureLog, settings: Propensities, cells: bool) -> None:
    """Fit over the catalogue; without one over the items that have features, else over the items shown."""
    store = require_session(exposed.store, "logistic regression")
    tables = {
        key: read_table(store.spark, path, [key], "features") if path else None
        for key, path in (("user_id", settings.user_features), ("item_id", settings.item_features))
    }
    rows = _open_ids(
        store,
        ChangedRows(exposed.rows, (*IDS, "part"), partial(select_rows, parts=exposed.parts), IDS),
        *IDS,
    )
    catalogue = tables["item_id"] if exposed.items is None else _open_ids(store, exposed.items, "item_id")
    ids = {"user_id": rows, "item_id": rows if catalogue is None else catalogue}
    users, items = (
        logistic.join_features(frame.select(key).distinct(), key, tables[key], f"features of {key}")
        for key, frame in ids.items()
    )
    odds = logistic.fit_odds(rows, users, items, settings.rate, SEED)
    frames = [(logistic.item_propensities(odds, users, items), PROPENSITIES)]
    if cells:
        frames.append((logistic.cell_propensities(odds, users, items), CELL_PROPENSITIES))
    name = method_name(store, settings)
    for frame, table in frames:
        raised = F.greatest(F.col("propensity"), F.lit(settings.floor or 0.0))
        named = {"propensity": raised, "split_id": F.lit(exposed.split_id), "method": F.lit(name)}
        store.append(frame.withColumns(named), table, once=f"{exposed.split_id}/{name}")


def _open_ids(store: Store, rows: Rows, *names: str) -> DataFrame:
    schema = T.StructType([T.StructField(name, T.StringType()) for name in names])
    return open_frame(store.spark, rows, schema)


def open_rewards(store: Store, path: str) -> FrameRows:
    """Open item_id[, user_id], reward of a table; a value that is no number is NULL."""
    table = read_table(store.spark, path, ["item_id", "reward"], "rewards")
    ids = [F.col(name).cast("string") for name in ("user_id", "item_id") if name in table.columns]
    return FrameRows(table.select(*ids, try_cast(F.col("reward"), "double").alias("reward")))
