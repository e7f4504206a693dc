"""Draws of candidates for users, by tasks without Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.config import CandidateDraw, digest
from recbench_spark.ranking.drawn_batches import draw_batches
from recbench_spark.ranking.moments import ItemMoments
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.blocks import ChangedRows, Rows
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.shared_arrays import SharedRows

DRAWN = pa.schema({"user_id": pa.string(), "part": pa.string(), "items": pa.list_(pa.int32())})


def draw_candidates(
    users: Rows, catalogue: SharedRows, n_items: int, mode: str, settings: CandidateDraw
) -> ChangedRows:
    """Draw items for each user outside training and truth.

    Shuffles nothing. A task maps the weights' running sum: 8 bytes per item, one copy per host.

    Args:
        users: rows from `part_users.select_part_users`.
        catalogue: item_index, n_train.
        n_items: catalogue size.
        mode: uniform, or popularity: an item weighs as much as it has training rows.
        settings: how many items per user or per held-out item, and the seed.

    Returns:
        user_id, part, items (item indices in the order drawn).
    """
    draw = make_draw(catalogue, n_items, mode, settings)
    return ChangedRows(users, ("user_id", "part", "user_key", "items", "masked"), draw, tuple(DRAWN.names))


def make_draw(
    catalogue: SharedRows,
    n_items: int,
    mode: str,
    settings: CandidateDraw,
    moments: ItemMoments | None = None,
) -> Change:
    """Return a task's function from its users to their items (DRAWN), as `draw_candidates` draws them.

    `moments`: each row draws among the items of its moment.
    """
    weights = SharedRows(digest(catalogue.key, mode, length=32), catalogue.files)
    return partial(
        _draw_table, weights=weights, n_items=n_items, mode=mode, settings=settings, moments=moments
    )


def _draw_table(
    users: pa.Table,
    weights: SharedRows,
    n_items: int,
    mode: str,
    settings: CandidateDraw,
    *,
    moments: ItemMoments | None,
) -> pa.Table:
    arrays = weights.arrays(partial(_save_running_sum, n_items=n_items, mode=mode))
    batches = draw_batches(arrays["running"], settings, iter(users.to_batches()), moments)
    return pa.Table.from_batches(batches, DRAWN)


def _save_running_sum(rows: ds.Dataset, folder: Path, n_items: int, mode: str) -> None:
    running = shared_arrays.create_array(folder, "running", (n_items + 1,), np.int64)
    for batch in rows.to_batches(columns=["item_index", "n_train"]):
        weight = 1 if mode == "uniform" else batch.column("n_train").to_numpy()
        running[batch.column("item_index").to_numpy() + 1] = weight
    np.cumsum(running, out=running)
