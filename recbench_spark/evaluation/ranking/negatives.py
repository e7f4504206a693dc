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
from recbench_spark.evaluation.ranking.batches import read_item_lists
from recbench_spark.kernels.arrays import Ints
from recbench_spark.kernels.ranking.negatives import draw
from recbench_spark.kernels.ranking.positives import ItemLists
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


def draw_batches(
    running_i: Ints, settings: CandidateDraw, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Draw items for each user of rows of `USERS`: user_id, part, items.

    Args:
        running_i: (i + 1,) running sum of the items' weights, from 0.
        settings: number of items, per user or per held-out item, and seed.
        batches: the users.
    """
    for batch in batches:
        truth = read_item_lists(batch, "items")
        counts = np.diff(truth.offsets_u)
        n_draws = settings.n * (counts if settings.per == "positive" else np.ones_like(counts))
        excluded = _join_lists(truth, read_item_lists(batch, "masked"))
        keys = batch.column("user_key").to_numpy()
        yield _to_batch(batch, draw(keys, excluded, n_draws, running_i, settings.seed))


def _join_lists(one: ItemLists, other: ItemLists) -> ItemLists:
    """Concatenate both lists of each user."""
    user_p = np.concatenate([_read_users(one), _read_users(other)])
    order = np.argsort(user_p, kind="stable")
    items = np.concatenate([one.items_p, other.items_p])[order]
    return ItemLists(one.offsets_u + other.offsets_u, items)


def _read_users(lists: ItemLists) -> Ints:
    return np.repeat(np.arange(lists.users), np.diff(lists.offsets_u))


def _to_batch(batch: pa.RecordBatch, drawn: ItemLists) -> pa.RecordBatch:
    bounds, items = pa.array(drawn.offsets_u, pa.int32()), pa.array(drawn.items_p, pa.int32())
    columns = [batch.column("user_id"), batch.column("part"), pa.ListArray.from_arrays(bounds, items)]
    return pa.RecordBatch.from_arrays(columns, ["user_id", "part", "items"])


def _running_sum(rows: ds.Dataset, folder: Path, n_items: int) -> None:
    running = shared_arrays.create_array(folder, "running", (n_items + 1,), np.int64)
    for batch in rows.to_batches():
        running[batch.column("item_index").to_numpy() + 1] = batch.column("weight").to_numpy()
    np.cumsum(running, out=running)
