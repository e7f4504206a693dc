"""Draws of candidates for a batch of users."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from recbench_spark.config import CandidateDraw
from recbench_spark.core.arrays import Ints
from recbench_spark.core.hashing import hash_longs
from recbench_spark.ranking.batches import read_item_lists
from recbench_spark.ranking.kernels.moments import NO_MOMENTS
from recbench_spark.ranking.kernels.negatives import draw
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.moments import ItemMoments


def draw_batches(
    running_i: Ints,
    settings: CandidateDraw,
    batches: Iterator[pa.RecordBatch],
    moments: ItemMoments | None = None,
) -> Iterator[pa.RecordBatch]:
    """Draw items for each user.

    Args:
        running_i: (i + 1,) running sum of the item weights, from 0.
        settings: how many items per user or per held-out item, and the seed.
        batches: users, rows as in `USERS`.
        moments: users have moments: they draw among items that existed then, each moment by itself.

    Yields:
        user_id, part, items.
    """
    for batch in batches:
        truth = read_item_lists(batch, "items")
        counts = np.diff(truth.offsets_u)
        n_draws = settings.n * (counts if settings.per == "positive" else np.ones_like(counts))
        excluded = _join_lists(truth, read_item_lists(batch, "masked"))
        keys, as_of = batch.column("user_key").to_numpy(), NO_MOMENTS
        if moments is not None:
            as_of = moments.open().at(batch)
            keys = hash_longs(as_of.moment_u, keys.view(np.uint64)).view(np.int64)
        yield _to_batch(batch, draw(keys, excluded, n_draws, running_i, settings.seed, as_of=as_of))


def _join_lists(one: ItemLists, other: ItemLists) -> ItemLists:
    """Concatenate two lists for each user."""
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
