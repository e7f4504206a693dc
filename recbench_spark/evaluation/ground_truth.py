"""Ground truth and training rows as pairs, users and catalogue.

User rows are `USERS` in `ranking.batch_schemas`. Axes: r rows, u users, i catalogue items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import Definition
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.errors import DataError
from recbench_spark.metrics.result import PART
from recbench_spark.ranking.batch_schemas import USERS
from recbench_spark.ranking.known_items import order_popularity
from recbench_spark.schemas import QUERY_ID
from recbench_spark.sources.arrow_rows import find_indices
from recbench_spark.storage.shared_arrays import bound_lists


@dataclass(frozen=True)
class InteractionPairs:
    """Truth or training pairs, each (user, item) once.

    Pairs are ordered by user, then item. user_r, item_r: indices of users and in the catalogue; value_r:
    the pair's highest relevance.
    """

    user_r: Ints
    item_r: Ints
    value_r: Floats


POPULARITY = "popularity"
"""Key of the slice by training rows of items."""

NO_PAIRS = InteractionPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
"""No rows."""


@dataclass(frozen=True)
class CatalogueItems:
    """Some catalogue items, in catalogue order.

    ids: (n,) text; index_n: (n,) indices in the catalogue; label_n: (n,) popularity classes, None without
    training rows.
    """

    ids: pa.Array
    index_n: Ints
    label_n: npt.NDArray[np.str_] | None


@dataclass(frozen=True, eq=False)
class ArrowCatalogue:
    """All items in id order, which decides ties.

    item_ids: (i,) text; n_train_i: (i,) training users.
    """

    item_ids: pa.Array
    n_train_i: Ints

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """Return each id's item_index and training rows, (n,) each.

        An unknown id has -1 and 0.
        """
        index = find_indices(ids, self.item_ids)
        return index, np.where(index >= 0, np.append(self.n_train_i, 0)[index], 0)

    def ids(self) -> npt.NDArray[np.bytes_]:
        """Return the ids as UTF-8, by item_index, (i,)."""
        return np.array([text.encode() for text in self.item_ids.to_pylist()], dtype="S")

    def counts(self) -> Ints:
        """Return each item's training rows, by item_index, (i,)."""
        return self.n_train_i

    def popularity(self) -> dict[str, Ints]:
        """Return training rows, and places by popularity: see `metrics.listed.ItemLookup`."""
        return self._popularity

    @cached_property
    def _popularity(self) -> dict[str, Ints]:
        return order_popularity(self.n_train_i)


def distinct_pairs(table: pa.Table, user_r: Ints, items: pa.Array) -> tuple[InteractionPairs, int]:
    """Keep each (user, item) once, and count dropped rows.

    The highest value stays; NULL items are skipped.

    Args:
        table: item_id, and rating where rows have one.
        user_r: (r,) index of each row's user, or of its query.
        items: ids of at least its items.
    """
    item_r = find_indices(table.column("item_id"), items)
    value_r = table.column("rating").to_numpy() if "rating" in table.column_names else np.ones(len(user_r))
    pair_r = user_r * len(items) + item_r
    known = np.flatnonzero(item_r >= 0)
    order = known[np.argsort(pair_r[known])]
    first = np.ones(len(order), bool)
    first[1:] = pair_r[order[1:]] != pair_r[order[:-1]]
    if not first.all():
        order = known[np.lexsort((-value_r[known], pair_r[known]))]
    order = order[first]
    return InteractionPairs(user_r[order], item_r[order], value_r[order]), len(first) - len(order)


def repeat_pairs(pairs: InteractionPairs, owner_q: Ints) -> InteractionPairs:
    """Return each query's pairs: those of its user.

    owner_q: (q,) index of each query's user.
    """
    starts, stops = (np.searchsorted(pairs.user_r, owner_q, side) for side in ("left", "right"))
    n_q = stops - starts
    at = np.repeat(starts - (np.cumsum(n_q) - n_q), n_q) + np.arange(n_q.sum())
    return InteractionPairs(np.repeat(np.arange(len(n_q)), n_q), pairs.item_r[at], pairs.value_r[at])


def count_common_pairs(truth: InteractionPairs, trained: InteractionPairs, items: int) -> int:
    """Count truth pairs found in training.

    Truth and training number the same users and items.
    """
    truth_p, trained_p = (part.user_r * items + part.item_r for part in (truth, trained))
    return int(np.isin(truth_p, trained_p).sum())


def check_dropped_rows(name: str, dropped: int, definition: Definition) -> Check:
    """Return the check counting a table's repeated pairs.

    Raises:
        DataError: there are such rows, and the definition allows none.
    """
    if dropped and definition.duplicates == "error":
        raise DataError(
            f"{name}: {dropped} duplicate (user_id, item_id) rows", "remove them, or set duplicates=drop"
        )
    return warn_above_zero(f"{name}: duplicate rows", dropped, "the highest relevance is kept")


def empty_train_checks(rows: int) -> list[Check]:
    """Return a warning where training rows are missing."""
    detail = "novelty and mean_popularity are not defined, and no item is known from training"
    return [] if rows else [warn_above_zero("train without rows", 1, detail)]


def build_user_table(
    questions: pa.Table,
    truth: InteractionPairs,
    trained: InteractionPairs,
    items: CatalogueItems,
    groups: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """Build the rows of `USERS`, with query_id where users have queries.

    Args:
        questions: user_id of the truth, and query_id if there are queries. Other users in `trained` have
            larger indices.
        truth: pairs, items by index in `items`.
        trained: pairs, items by index in `items`; empty without training rows.
        items: at least the items of both.
        groups: each question's group by slice key, (q,) text; NULL: none.
    """
    users = questions.column("user_id").combine_chunks()
    bounds = bound_lists(truth.user_r, len(users))
    labels = (
        {} if items.label_n is None else {POPULARITY: pa.array(items.label_n[truth.item_r], pa.string())}
    )
    labels |= {name: group_q.take(pa.array(truth.user_r)) for name, group_q in (groups or {}).items()}
    columns = {
        "user_id": users,
        "part": pa.repeat(PART, len(users)),
        "user_key": pa.array(hash_ids(users).view(np.int64)),
        "item_ids": pa.ListArray.from_arrays(bounds, items.ids.take(pa.array(truth.item_r))),
        "items": pa.ListArray.from_arrays(bounds, pa.array(items.index_n[truth.item_r], pa.int32())),
        "relevance": pa.ListArray.from_arrays(bounds, pa.array(truth.value_r)),
        "slices": _slice_labels(bounds, labels),
        "masked": _training_lists(trained, len(users), items.index_n),
    }
    table = pa.table(columns, schema=USERS)
    return (
        table.append_column(QUERY_ID, questions.column(QUERY_ID))
        if QUERY_ID in questions.column_names
        else table
    )


def _training_lists(trained: InteractionPairs, users: int, index_n: Ints) -> pa.Array:
    items = pa.array(index_n[trained.item_r[trained.user_r < users]], pa.int32())
    return pa.ListArray.from_arrays(bound_lists(trained.user_r, users), items)


def _slice_labels(bounds: pa.Array, labels: Mapping[str, pa.Array]) -> pa.Array:
    """Return truth items' labels by slice key, NULL for empty truth.

    labels: by slice key, (p,) each for the truth's pairs.
    """
    kind, n_u = USERS.field("slices").type, np.diff(bounds.to_numpy())
    if not labels:
        return pa.array([[] if n else None for n in n_u], kind)
    keys, n_t = list(labels), n_u[n_u > 0]
    user_p = np.repeat(np.arange(len(n_u)), n_u)
    # User after user, each with all keys.
    order = np.lexsort((np.repeat(np.arange(len(keys)), len(user_p)), np.tile(user_p, len(keys))))
    flat = pa.concat_arrays(list(labels.values())).take(pa.array(order))
    starts = np.concatenate([[0], np.cumsum(np.repeat(n_t, len(keys)))])
    values = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), flat)
    ends = pa.array(np.arange(len(n_t) + 1) * len(keys), pa.int32())
    entries = pa.MapArray.from_arrays(ends, pa.array(keys * len(n_t), pa.string()), values)
    places = pa.array(np.where(n_u > 0, np.cumsum(n_u > 0) - 1, 0), mask=n_u == 0)
    return entries.take(places).cast(kind) if len(n_t) else pa.nulls(len(n_u), kind)
