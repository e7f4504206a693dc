"""Draw of candidates for users on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import CandidateDraw
from recbench_spark.evaluation.ranking.drawn_batches import draw_batches
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows

_DRAWN = "user_id STRING, part STRING, items ARRAY<INT>"


def weight_rows(items: DataFrame, mode: str) -> DataFrame:
    """Return item_index and weight: 1 for uniform draws, training interactions for draws by popularity."""
    weight = F.lit(1).cast("long") if mode == "uniform" else F.col("n_train")
    return items.select("item_index", weight.alias("weight"))


def draw_candidates(
    users: DataFrame, weights: SharedRows, n_items: int, settings: CandidateDraw
) -> DataFrame:
    """Draw items for each user among those in neither training nor truth. No shuffle.

    A task maps the running sum of the weights: 8 bytes per item, one copy per host.

    Args:
        users: rows of `rank.select_part_users`.
        weights: rows of `weight_rows`.
        n_items: items of the catalogue.
        settings: number of items, per user or per held-out item, and seed.

    Returns:
        user_id, part, items (item indices in the order drawn).
    """
    narrow = users.select("user_id", "part", "user_key", "items", "masked")
    return narrow.mapInArrow(partial(_draw_with_weights, weights, n_items, settings), _DRAWN)


def _draw_with_weights(
    weights: SharedRows, n_items: int, settings: CandidateDraw, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    arrays = weights.arrays(lambda rows, folder: _running_sum(rows, folder, n_items))
    yield from draw_batches(arrays["running"], settings, batches)


def _running_sum(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    running = shared_arrays.create_array(folder, "running", (n_items + 1,), np.int64)
    for batch in rows.to_batches():
        running[batch.column("item_index").to_numpy() + 1] = batch.column("weight").to_numpy()
    np.cumsum(running, out=running)
