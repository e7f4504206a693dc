"""Rankings from another system's lists or scores.

These functions change Arrow batches, without Spark and torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.core.streams import Batches
from recbench_spark.ranking.batches import build_ranking_batch, read_item_lists
from recbench_spark.ranking.kernels import lists as list_kernel
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.schemas import QUERY_ID
from recbench_spark.sources.arrow_rows import combine_column
from recbench_spark.sources.list_columns import combine_array
from recbench_spark.storage.shared_arrays import bound_lists, flatten_lists


def rank_batches(request: RankingRequest, batches: Batches) -> Batches:
    """Rank users by their lists, without masked items.

    Args:
        request: definition and list length; all ranks are counted.
        batches: users with their lists, as in `LISTED_USERS`; with `list_ids` where lists are requested.

    Yields:
        Rows of `RANKED_USERS`.
    """
    for batch in batches:
        offsets, truth_items = flatten_lists(batch.column("items"))
        relevance = flatten_lists(batch.column("relevance"))[1]
        # Items that were no candidates (-1) get a key of their own, which no list has.
        keys = np.where(truth_items < 0, np.arange(len(truth_items)) - len(truth_items), truth_items)
        truth = list_kernel.HeldOutItems(offsets, keys.astype(np.int64), relevance)
        hashed = request.definition.ties == "hashed"
        ranked = list_kernel.rank_lists(
            _read_lists(batch), truth, request.definition, _read_masked(batch, request), top=request.top,
            user_numbers=number_users(batch) if hashed else None,
        )  # fmt: skip
        yield _ranking_rows(batch, ranked)


def number_users(batch: pa.RecordBatch) -> Ints:
    """Number each user for tie hashes.

    A whole number with up to nine digits is its own number; any other id is hashed. Items need no number
    here: theirs is the place in id order.
    """
    ids = batch.column("user_id").cast(pa.string())
    is_number = pc.match_substring_regex(ids, "^(0|[1-9][0-9]{0,8})$")
    numbers = pc.if_else(is_number, ids, "0").cast(pa.int64())
    numbers_u: Ints = pc.if_else(is_number, numbers, batch.column("user_key")).to_numpy()
    return numbers_u


def add_lists(
    users: pa.Table, user_r: Ints, keys_r: Ints, rows: pa.Table, request: RankingRequest
) -> pa.Table:
    """Add each user's list: rows of `LISTED_USERS`.

    The kernel orders each list later.

    Args:
        users: one row per user.
        user_r: (r,) index of the row's user; below 0: not among the users.
        keys_r: (r,) index of the row's item in the catalogue, or a larger number.
        rows: item_id, and rank or score, or both.
        request: ids are added where it requests lists.
    """
    order = np.argsort(user_r, kind="stable")
    order = order[np.searchsorted(user_r, 0, sorter=order) :]
    bounds = np.searchsorted(user_r[order], np.arange(len(users) + 1))
    columns: dict[str, Any] = {"list_items": pa.array(keys_r[order])}
    if request.top:
        columns["list_ids"] = combine_array(rows.column("item_id")).take(pa.array(order))
    for name in ("rank", "score"):
        if name in rows.column_names:
            columns[f"list_{name}s"] = pa.array(rows.column(name).to_numpy()[order])
    for name, column in columns.items():
        lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), column)
        users = users.append_column(name, lists)
    return users


QUESTION = "question"
"""Column of `group_lists` with a name for each user and query."""


def name_questions(user: pa.Array, query: pa.Array) -> pa.Array:
    """Return one text for each user and query; NULL without a query."""
    length = pc.utf8_length(user).cast(pa.string())  # it tells where the user's id ends
    return pc.binary_join_element_wise(length, user, query, ":")


def read_questions(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Name the question of each row with user_id and query_id."""
    return name_questions(
        *(combine_column(rows.column(name)).cast(pa.string()) for name in ("user_id", QUERY_ID))
    )


LISTS = {"key": "list_items", "item_id": "list_ids", "rank": "list_ranks", "score": "list_scores"}
"""Columns of list rows, in sort order, and the list column made from each."""


def group_lists(rows: pa.Table) -> pa.Table:
    """Group list rows by user, or by user and query.

    Args:
        rows: user_id, key, and item_id, rank (from 1) or score: all rows of some users; query_id, where
            each query has a list.

    Returns:
        user_id (QUESTION, where rows have queries), and a list for each LISTS column in the rows.
    """
    owner = "user_id"
    if QUERY_ID in rows.column_names:
        rows, owner = rows.append_column(QUESTION, read_questions(rows)), QUESTION
    names = [name for name in LISTS if name in rows.column_names]
    keys: Any = [(name, "ascending") for name in (owner, *names)]
    ordered = rows.take(pc.sort_indices(rows, keys))
    users = ordered.column(owner).combine_chunks().dictionary_encode()
    bounds = bound_lists(users.indices.to_numpy(), len(users.dictionary))
    lists = [pa.ListArray.from_arrays(bounds, combine_array(ordered.column(name))) for name in names]
    return pa.table([users.dictionary, *lists], [owner, *(LISTS[name] for name in names)])


def _read_masked(batch: pa.RecordBatch, request: RankingRequest) -> list_kernel.UserItems | None:
    """Return the items that leave the lists; with moments, listed ones that were no candidates too."""
    masked = read_item_lists(batch, "masked") if "masked" in batch.schema.names else None
    if request.moments is not None:
        masked = request.moments.open().hide_listed(batch, masked)
    return None if masked is None else list_kernel.UserItems(masked.offsets_u, masked.items_p)


def _read_lists(batch: pa.RecordBatch) -> list_kernel.InputLists:
    offsets, keys = flatten_lists(batch.column("list_items"))
    values = {}
    for name in ("rank", "score"):
        if f"list_{name}s" in batch.schema.names:
            values[name] = flatten_lists(batch.column(f"list_{name}s"))[1]
    return list_kernel.InputLists(offsets, keys.astype(np.int64), **values)


def _ranking_rows(batch: pa.RecordBatch, ranked: list_kernel.RankedLists) -> pa.RecordBatch:
    rankings = ranked.rankings
    top = None
    if ranked.top is not None:
        ids = _item_ids(batch, ranked.top.keys)
        top = pa.ListArray.from_arrays(pa.array(ranked.top.offsets, pa.int32()), ids)
    columns = {
        "item_ids": batch.column("item_ids").flatten(),
        "relevance": rankings.relevance,
        "above": rankings.above,
        "tied": rankings.tied,
        "before": rankings.before,
    }
    return build_ranking_batch(batch, rankings.offsets, columns, rankings.length, top)


def _item_ids(batch: pa.RecordBatch, keys: npt.NDArray[np.int64]) -> pa.Array:
    """Return the original ids of listed keys; NULL: empty place."""
    distinct, first = np.unique(flatten_lists(batch.column("list_items"))[1], return_index=True)
    known = keys != list_kernel.NO_KEY
    places = np.zeros(len(keys), np.int64)
    places[known] = first[np.searchsorted(distinct, keys[known])]
    return batch.column("list_ids").flatten().take(pa.array(places, mask=~known))
