"""Users ranked by given lists or scores: a function of Arrow batches, without Spark and torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.evaluation.ranking.batches import item_lists, ranking_batch
from recbench_spark.evaluation.ranking.request import Request
from recbench_spark.kernels.ranking import lists as list_kernel
from recbench_spark.shared_files import flat

Batches = Iterator[pa.RecordBatch]


def rank_batches(request: Request, batches: Batches) -> Batches:
    """Rows of `RANKED` of rows of `LISTED_USERS`; those with `masked` without these items.

    Args:
        request: definition and length of lists; all ranks are counted.
        batches: users with their lists; with `list_ids` where lists are asked for.
    """
    for batch in batches:
        offsets, truth_items = flat(batch.column("items"))
        relevance = flat(batch.column("relevance"))[1]
        truth = list_kernel.Truth(offsets, truth_items.astype(np.int64), relevance)
        found = list_kernel.rank_lists(
            _lists(batch), truth, request.definition, _masked(batch), top=request.top
        )
        yield _listed_batch(batch, found)


def _masked(batch: pa.RecordBatch) -> list_kernel.Items | None:
    if "masked" not in batch.schema.names:
        return None
    masked = item_lists(batch, "masked")
    return list_kernel.Items(masked.offsets_u, masked.items_p)


def _lists(batch: pa.RecordBatch) -> list_kernel.Lists:
    offsets, keys = flat(batch.column("list_items"))
    values = {}
    for name in ("rank", "score"):
        if f"list_{name}s" in batch.schema.names:
            values[name] = flat(batch.column(f"list_{name}s"))[1]
    return list_kernel.Lists(offsets, keys.astype(np.int64), **values)


def _listed_batch(batch: pa.RecordBatch, found: list_kernel.RankedLists) -> pa.RecordBatch:
    rankings = found.rankings
    top = None
    if found.top is not None:
        ids = _ids_of(batch, found.top.keys)
        top = pa.ListArray.from_arrays(pa.array(found.top.offsets, pa.int32()), ids)
    columns = {
        "item_ids": batch.column("item_ids").flatten(),
        "relevance": rankings.relevance,
        "above": rankings.above,
        "tied": rankings.tied,
        "before": rankings.before,
    }
    return ranking_batch(batch, rankings.offsets, columns, rankings.length, top)


def _ids_of(batch: pa.RecordBatch, keys: npt.NDArray[np.int64]) -> pa.Array:
    """Original ids of keys that stand in the batch's lists."""
    known, first = np.unique(flat(batch.column("list_items"))[1], return_index=True)
    places = first[np.searchsorted(known, keys)] if len(known) else np.zeros(0, np.int64)
    return batch.column("list_ids").flatten().take(pa.array(places))
