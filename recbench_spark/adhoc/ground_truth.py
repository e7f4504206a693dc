"""Ground truth and training rows in this process: tables of users and the catalogue, as Arrow.

These are the tables that `spark_engine.make_truth_tables` builds on Spark: one row per user of the truth
(`USERS` of `evaluation.batch_schemas`) and one entry per item.
Axes: r rows, u users, i items of the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.data import arrow_rows
from recbench_spark.data.arrow_rows import distinct_ids, find_indices, read_id_type
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.evaluation.batch_schemas import USERS
from recbench_spark.evaluation.ranking_counts import truth_in_train_check
from recbench_spark.evaluation.result import PART
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.hashed_ids import hash_ids
from recbench_spark.kernels.metrics.chunk import check_gains
from recbench_spark.protocol.popularity import find_bounds, label_popularity
from recbench_spark.schemas import IDS, require_names
from recbench_spark.storage.shared_arrays import bound_lists


@dataclass(frozen=True)
class InteractionPairs:
    """Pairs of the truth or of training: each (user, item) once, ordered by user, then item.

    user_r, item_r: indices of the users and of the catalogue; value_r: the highest relevance of the pair
    """

    user_r: Ints
    item_r: Ints
    value_r: Floats


NO_PAIRS = InteractionPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
"""No rows."""


@dataclass(frozen=True)
class CatalogueItems:
    """Some items of a catalogue, in the order of the catalogue.

    ids: (n,) text; index_n: (n,) indices in the catalogue; label_n: (n,) popularity classes, None without
    training rows
    """

    ids: pa.Array
    index_n: Ints
    label_n: npt.NDArray[np.str_] | None


@dataclass(frozen=True)
class ArrowCatalogue:
    """The catalogue: all items in the order of their ids, which decides ties.

    ids: (i,) text; n_train_i: (i,) training users; n_users: users with training rows
    """

    ids: pa.Array
    n_train_i: Ints
    n_users: int

    @cached_property
    def label_i(self) -> npt.NDArray[np.str_]:
        """Return the popularity class of each item, (i,)."""
        return label_popularity(self.n_train_i, find_bounds(self.n_train_i))

    def find(self, ids: pa.Array) -> tuple[Ints, Ints]:
        """Return each id's item_index, or -1, and its training rows, or 0, (n,) each."""
        index = self.find_indices(ids)
        return index, np.where(index >= 0, np.append(self.n_train_i, 0)[index], 0)

    def find_indices(self, ids: pa.ChunkedArray | pa.Array) -> Ints:
        """Return item indices, (r,); -1: not in the catalogue."""
        return find_indices(ids, self.ids)


@dataclass(frozen=True)
class ArrowTruth:
    """Ground truth, training pairs and catalogue; `spark_engine.SparkTruth` is the same on Spark.

    Attributes:
        catalogue: all items.
        users: rows of `USERS`, one per user of the truth.
        user_ids: ids of the users of the truth.
        all_users: `user_ids`, then the users who only have training rows.
        log_items: items of truth and training.
        checks: checks of the inputs.
        stored: types of the ids as they were stored, by column.
        train_pairs: (user, item) of the training rows; None without training rows.
    """

    catalogue: ArrowCatalogue
    users: pa.Table
    user_ids: pa.Array
    all_users: pa.Array
    log_items: pa.Array
    checks: list[Check]
    stored: dict[str, str]
    train_pairs: InteractionPairs | None
    grades: tuple[float, ...] = ()
    """The lowest and the highest relevance, where the truth has any."""


def make_arrow_truth(
    truth: pa.Table,
    train: pa.Table | None,
    extra: pa.Table,
    definition: Definition,
    *,
    masked: bool = False,
) -> ArrowTruth:
    """Build the ground truth and the catalogue from the caller's tables.

    Args:
        truth: user_id, item_id[, relevance].
        train: user_id, item_id, or None.
        extra: a typed table whose items belong to the catalogue too.
        definition: treatment of duplicates, and the relevance threshold.
        masked: training items are no candidates.

    Raises:
        SchemaError, DataError: unusable rows; tables without common ids.
    """
    rows = convert_truth(truth)
    if not rows.num_rows:
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    listed = rows.filter(pc.is_valid(rows.column("item_id")))
    values = listed.column("rating").to_numpy()
    grades = (float(values.min()), float(values.max())) if len(values) else ()
    check_gains(np.array(grades), definition)
    trained = None if train is None else convert_train(train)
    parts = [(PART, listed), *([] if trained is None else [("train", trained)])]
    users, ids = _users_and_items(
        [rows, *([] if trained is None else [trained])], [*(t for _, t in parts), extra]
    )
    checks, pairs = [], []
    for name, table in parts:
        part, dropped = distinct_pairs(table, users, ids)
        checks.append(check_dropped_rows(name, dropped, definition))
        pairs.append(part)
    if trained is not None:
        checks += [*_train_overlap_checks(trained, rows), *empty_train_checks(trained.num_rows)]
        known = count_common_pairs(pairs[0], pairs[1], len(ids))
        checks.append(truth_in_train_check(known, len(pairs[0].user_r), masked=masked))
    return replace(_assemble_truth(rows, users, ids, pairs, checks), grades=grades)


def convert_truth(truth: pa.Table) -> pa.Table:
    """Convert the truth to user_id, item_id as text, and rating: the relevance, or 1 without one."""
    require_names(truth.column_names, ["user_id", "item_id"], "truth")
    name = "relevance" if "relevance" in truth.column_names else "rating"
    value_types = {name: "double"} if name in truth.column_names else {}
    rows = arrow_rows.convert_rows(truth, value_types, "truth", empty_items=True)
    return rows.rename_columns([*IDS, "rating"]) if value_types else _add_ones(rows)


def convert_train(train: pa.Table) -> pa.Table:
    """Convert the training rows to user_id, item_id as text, and rating 1."""
    require_names(train.column_names, ["user_id", "item_id"], "train")
    return _add_ones(arrow_rows.convert_rows(train, {}, "train"))


def _add_ones(rows: pa.Table) -> pa.Table:
    return rows.append_column("rating", pa.array(np.ones(rows.num_rows)))


def _users_and_items(
    user_tables: Sequence[pa.Table], item_tables: Sequence[pa.Table]
) -> tuple[pa.Array, pa.Array]:
    """Return users, those of the first table first, and items in tie order: as numbers, or as UTF-8."""
    users = distinct_ids([table.column("user_id") for table in user_tables])
    ids = distinct_ids([table.column("item_id") for table in item_tables])
    numeric = arrow_rows.has_numeric_order(item_tables)
    return users, ids.take(pc.array_sort_indices(ids.cast(pa.int64()) if numeric else ids))


def distinct_pairs(table: pa.Table, users: pa.Array, items: pa.Array) -> tuple[InteractionPairs, int]:
    """Keep each (user, item) once, with the highest value, and count dropped rows; skip NULL items.

    Args:
        table: user_id, item_id, and rating where rows have one.
        users: ids of at least the users of the table.
        items: ids of at least its items.
    """
    user_r, item_r = (
        find_indices(table.column("user_id"), users),
        find_indices(table.column("item_id"), items),
    )
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


def count_common_pairs(truth: InteractionPairs, trained: InteractionPairs, items: int) -> int:
    """Count the pairs of the truth that are training pairs; both number the same users and items."""
    truth_p, trained_p = (part.user_r * items + part.item_r for part in (truth, trained))
    return int(np.isin(truth_p, trained_p).sum())


def check_dropped_rows(name: str, dropped: int, definition: Definition) -> Check:
    """Return the check that counts rows whose pair stands twice in a table.

    Raises:
        DataError: there are such rows, and the definition allows none.
    """
    if dropped and definition.duplicates == "error":
        raise DataError(
            f"{name}: {dropped} duplicate (user_id, item_id) rows", "remove them, or set duplicates=drop"
        )
    return warn_above_zero(f"{name}: duplicate rows", dropped, "the highest relevance is kept")


def empty_train_checks(rows: int) -> list[Check]:
    """Return a warning where there are no training rows."""
    detail = "novelty and mean_popularity are not defined, and no item is known from training"
    return [] if rows else [warn_above_zero("train without rows", 1, detail)]


def _train_overlap_checks(trained: pa.Table, rows: pa.Table) -> list[Check]:
    checks = []
    for name in IDS:
        sides = ("train", "truth", read_id_type(trained, name), read_id_type(rows, name))
        checks += arrow_rows.check_common_ids(
            trained.column(name), rows.column(name), name, sides, must=False
        )
    return checks


def _assemble_truth(
    rows: pa.Table, users: pa.Array, ids: pa.Array, parts: list[InteractionPairs], checks: list[Check]
) -> ArrowTruth:
    truth, trained = parts[0], parts[1] if len(parts) > 1 else None
    n_train_i = (
        np.zeros(len(ids), np.int64) if trained is None else np.bincount(trained.item_r, minlength=len(ids))
    )
    n_users = 0 if trained is None else int(np.count_nonzero(np.bincount(trained.user_r)))
    catalogue = ArrowCatalogue(ids, n_train_i, n_users)
    truth_users = distinct_ids([rows.column("user_id")])
    items = CatalogueItems(ids, np.arange(len(ids)), None if trained is None else catalogue.label_i)
    blocks = build_user_table(truth_users, truth, trained or NO_PAIRS, items)
    logged = np.flatnonzero(sum(np.bincount(part.item_r, minlength=len(ids)) for part in parts))
    stored = {name: read_id_type(rows, name) for name in IDS}
    return ArrowTruth(
        catalogue, blocks, truth_users, users, ids.take(pa.array(logged)), checks, stored, trained
    )


def count_pairs(listed_r: Ints, train_p: Ints) -> dict[str, int]:
    """Count listed rows, those that repeat an earlier pair, and those whose pair is a training pair.

    Args:
        listed_r: (r,) one number for the user and item of each row.
        train_p: (p,) the same numbers for the training pairs.
    """
    ordered = np.sort(listed_r)
    return {
        "listed": len(listed_r),
        "twice": int(np.count_nonzero(ordered[1:] == ordered[:-1])),
        "trained": int(np.count_nonzero(np.isin(listed_r, train_p))) if len(train_p) else 0,
    }


def build_user_table(
    users: pa.Array, truth: InteractionPairs, trained: InteractionPairs, items: CatalogueItems
) -> pa.Table:
    """Build the rows of `USERS`.

    Args:
        users: ids of the users of the truth. Users of `trained` beyond them have larger indices.
        truth: pairs, items by index in `items`.
        trained: pairs, items by index in `items`; empty without training rows.
        items: at least the items of both.
    """
    bounds = bound_lists(truth.user_r, len(users))
    columns = {
        "user_id": users,
        "part": pa.repeat(PART, len(users)),
        "user_key": pa.array(hash_ids(users).view(np.int64)),
        "item_ids": pa.ListArray.from_arrays(bounds, items.ids.take(pa.array(truth.item_r))),
        "items": pa.ListArray.from_arrays(bounds, pa.array(items.index_n[truth.item_r], pa.int32())),
        "relevance": pa.ListArray.from_arrays(bounds, pa.array(truth.value_r)),
        "slices": _slice_labels(bounds, truth, items.label_n),
        "masked": _training_lists(trained, len(users), items.index_n),
    }
    return pa.table(columns, schema=USERS)


def _training_lists(trained: InteractionPairs, users: int, index_n: Ints) -> pa.Array:
    items = pa.array(index_n[trained.item_r[trained.user_r < users]], pa.int32())
    return pa.ListArray.from_arrays(bound_lists(trained.user_r, users), items)


def _slice_labels(
    bounds: pa.Array, truth: InteractionPairs, label_n: npt.NDArray[np.str_] | None
) -> pa.Array:
    """Return labels of truth items by slice key: no keys without training rows, NULL for empty truth."""
    kind, has_truth = USERS.field("slices").type, np.diff(bounds.to_numpy()) > 0
    if label_n is None:
        return pa.array([[] if present else None for present in has_truth], kind)
    labels = pa.array(label_n[truth.item_r], pa.string())
    starts = bounds.to_numpy()[np.flatnonzero(np.append(has_truth, True))]
    values = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), labels)
    keys = pa.repeat("popularity", len(values))
    entries = pa.MapArray.from_arrays(pa.array(np.arange(len(values) + 1), pa.int32()), keys, values)
    places = pa.array(np.where(has_truth, np.cumsum(has_truth) - 1, 0), mask=~has_truth)
    return entries.take(places).cast(kind) if len(entries) else pa.nulls(len(has_truth), kind)
