"""Conversion between Arrow batches of rankings and arrays.

Nothing is computed here.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.ranking.batch_schemas import PROFILES, RANKED_USERS
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.storage.shared_arrays import flatten_lists

if "pyspark.worker" in sys.modules:
    # Spark collects garbage after every task: without this it visits all objects in torch and numba, .2 s
    # each time.
    gc.freeze()


def to_rankings(batch: pa.RecordBatch) -> Rankings:
    """Convert a batch of the table `rankings` to arrays."""
    offsets, relevance = flatten_lists(batch.column("relevance"))
    above, tied, before = (flatten_lists(batch.column(name))[1] for name in ("above", "tied", "before"))
    length = batch.column("length").to_numpy()
    return Rankings(offsets, relevance, above, tied, before, length)


def read_item_lists(batch: pa.RecordBatch, name: str) -> ItemLists:
    """Read a list column of item indices."""
    offsets, items = flatten_lists(batch.column(name))
    return ItemLists(offsets, items.astype(np.int64))


def build_ranking_batch(
    batch: pa.RecordBatch,
    offsets: npt.NDArray[np.int64],
    columns: Mapping[str, npt.NDArray[Any]],
    length: npt.NDArray[np.int64],
    top_items: pa.Array | None,
) -> pa.RecordBatch:
    """Build a batch of rankings from users and truth positions.

    Args:
        batch: user_id, part, user_key, slices; drawn and pool where candidates were drawn, propensity for
            corrections of exposure bias, query_id where users have several rows.
        offsets: (u + 1,) bounds of each user's truth items.
        columns: item_ids, relevance, above, tied, before, each (p,).
        length: (u,) ranked candidates.
        top_items: (u,) id lists, or None.
    """
    bounds = pa.array(offsets, pa.int32())
    lists = {name: pa.ListArray.from_arrays(bounds, pa.array(c)) for name, c in columns.items()}
    no_lists = pa.nulls(batch.num_rows, pa.list_(pa.string()))
    named = {
        **{name: batch.column(name) for name in ("user_id", "part", "user_key", "slices")},
        **lists,
        "length": pa.array(length, pa.int64()),
        "top_items": no_lists if top_items is None else top_items,
        "drawn": column_or_null(batch, "drawn", pa.int32()),
        "pool": column_or_null(batch, "pool", pa.int64()),
        "propensity": column_or_null(batch, "propensity", pa.list_(pa.float64())),
        "query_id": column_or_null(batch, "query_id", pa.string()),
    }
    profiles = {name: batch.column(name) for name in PROFILES.names if name in batch.schema.names}
    return pa.RecordBatch.from_pydict({name: named[name] for name in RANKED_USERS.names} | profiles)


def column_or_null(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column with this type; NULL without it."""
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, kind)
    return batch.column(name).cast(kind)


def split_by_part(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the users of each held-out part in a batch."""
    parts = pc.unique(batch.column("part")).to_pylist()
    for part in parts:
        only = len(parts) == 1
        yield part, batch if only else batch.filter(pc.equal(batch.column("part"), part))


def select_truth(batch: pa.RecordBatch) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    """Yield each slice, and mark its truth items, (p,).

    A slice is a key with a value.
    """
    slices = batch.column("slices")
    keys = pc.unique(slices.keys).to_pylist() if len(slices) else []
    for key in keys:
        labels = pc.list_flatten(pc.map_lookup(slices, pa.scalar(key), "first"))
        for value in pc.unique(labels).to_pylist():
            if value is not None:
                selected = pc.fill_null(pc.equal(labels, value), False)
                yield key, value, selected.to_numpy(zero_copy_only=False)
