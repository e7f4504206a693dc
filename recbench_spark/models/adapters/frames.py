"""Spark frames over a split and its trained models.

Only models which need Spark use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import union_rows
from recbench_spark.ranking.kernels.rankings import list_roundings
from recbench_spark.ranking.sources import DotSource
from recbench_spark.schemas import Table
from recbench_spark.sources.input_rows import check_vectors, open_input, refuse_twice
from recbench_spark.storage.frame_blocks import FrameRows, share_rows
from recbench_spark.storage.store import Store

Frame: TypeAlias = DataFrame
"""Spark's frame, for annotations in modules without Spark."""

__all__ = ["SparkSession"]


def keep_relevant(frame: DataFrame, threshold: float | None) -> DataFrame:
    """Keep rows with a rating of at least the threshold.

    None: above 0. It agrees with `rankings.mark_relevant`.
    """
    rating, least = F.col("rating"), threshold or 0.0
    if threshold is None:
        return frame.where(rating > 0)
    return frame.where((rating >= F.lit(float(least))) | rating.isin(list_roundings(least)))


def read_parts(labelled: DataFrame, *parts: str) -> DataFrame:
    """Return the labelled rows in some parts."""
    return labelled.where(F.col("part").isin(*parts))


# ------------------------------------------------------------------------- trained models


def append_frames(store: Store, table: Table, sides: Mapping[str, DataFrame], key: str) -> None:
    """Append a trained model's frames to a table, once per key.

    All frames make one version of the table.

    Args:
        store: the warehouse.
        table: one of the tables for trained models.
        sides: value of the column `side` -> its rows; an empty name: no such column.
        key: name of the model.
    """
    named = [
        frame.withColumnRenamed(f"{side}_id", "id").withColumn("side", F.lit(side)) if side else frame
        for side, frame in sides.items()
    ]
    rows = union_rows(named, by_name=True).withColumn("model_id", F.lit(key))
    store.append(rows, table, once=key)


def share_frame_vectors(data: Any, items: Any, what: str) -> DotSource:
    """Write the catalogue with item vectors for workers; return the source."""
    frame = items.frame if isinstance(items, FrameRows) else items
    vectors = frame.select("item_id", "vector", "bias")
    engine = SparkEngine(vectors.sparkSession)
    checked = check_vectors(open_input(engine, vectors, (), what), "item_id", what)
    refuse_twice(engine, checked, "item_id", what)
    catalogue = data.items.select("item_id", "item_index").join(vectors, "item_id", "left")
    shared = share_rows(data.store.scratch, catalogue)
    return DotSource(shared, data.n_items, checked.dims)
