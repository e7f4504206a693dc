"""Popularity on Arrow rows: an item's bias counts its training interactions."""

from __future__ import annotations

import pyarrow as pa


def popular_vectors(items: pa.Table) -> pa.Table:
    """Return an empty vector and a bias for each item.

    `items`: item_id, n_train.
    """
    ids, counts = (items.column(name) for name in ("item_id", "n_train"))
    vectors = pa.array([[]], pa.list_(pa.float32())).take(pa.array([0] * len(ids), pa.int32()))
    return pa.table([ids, vectors, counts.cast(pa.float64())], ["item_id", "vector", "bias"])
