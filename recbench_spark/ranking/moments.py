"""Items that were candidates when a row was tested.

A user's rows at one time become one question, with candidates as of this time. Arrays with items' times are
made once a host; a truth item's time is a label of its block. Axes: i items, n rows (a user and part), p
truth items, q questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recbench_spark.config import Dataset, digest
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.errors import DataError
from recbench_spark.ranking.batches import read_item_lists
from recbench_spark.ranking.kernels.moments import (
    ALWAYS,
    NO_MOMENTS,
    Periods,
    UserMoments,
    mark_available,
    place_moments,
)
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.known_items import KnownItems, share_rows
from recbench_spark.ranking.query_questions import divide_truth, list_labels
from recbench_spark.schemas import QUERY_ID
from recbench_spark.sources.availability import open_availability, order_periods, read_periods
from recbench_spark.splits.labels import TRAIN
from recbench_spark.splits.positions import encode_ids, id_column, name_parts
from recbench_spark.splits.user_blocks import TIME_LABEL
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.scratch import keep_rows
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists

AS_OF = "as_of"
"""Column with a question's moment, in microseconds; NULL without truth."""

LABELLED = ("item_id", "event_time", "part")


@dataclass(frozen=True)
class ItemMoments:
    """Times when items were candidates.

    Attributes:
        rows: a split's labelled rows (LABELLED).
        items: the catalogue.
        first_seen_in: rows that make an item seen: all, or those of training.
        unavailable: what becomes of truth that was no candidate: left out, not ranked, or (for counts)
            kept as it is.
        availability: periods of items; None: they are candidates from their first row on.
    """

    rows: SharedRows
    items: KnownItems
    first_seen_in: Literal["log", "train"]
    unavailable: Literal["left_out", "miss", "keep"]
    availability: SharedPeriods | None = None

    def open(self) -> OpenMoments:
        """Return the arrays, mapped by this process.

        Raises:
            DataError: rows have no time, or periods are wrong.
        """
        return _open(replace(self, unavailable="keep"))


class SharedPeriods(NamedTuple):
    """A table of items' periods, and how its times are read.

    `unit`, `zone`: those of the log.
    """

    rows: SharedRows
    unit: str
    zone: tzinfo


def share_availability(store: FileTables, dataset: Dataset, candidates_as_of: str) -> SharedPeriods | None:
    """Share a dataset's table of availability with tasks, where it decides about candidates."""
    if candidates_as_of != "availability" or dataset.availability is None:
        return None
    rows = open_availability(store.engine, dataset.availability.path)
    kept = keep_rows(store.scratch, rows.rows, rows.names, store.engine)
    return SharedPeriods(share_rows(kept, rows.names, store.scratch), dataset.time_unit, dataset.zone)


class OpenMoments(NamedTuple):
    """Items' periods.

    every: the periods, for any users. unknown: periods of items that are not in the catalogue.
    """

    every: UserMoments
    unknown: int

    @property
    def periods(self) -> Periods:
        """Times at which items are candidates."""
        return self.every.periods

    def at(self, users: pa.RecordBatch | pa.Table) -> UserMoments:
        """Return users' moments; without truth, they are at the end."""
        return self.every._replace(moment_u=users.column(AS_OF).fill_null(ALWAYS - 1).to_numpy())

    def hide_listed(self, users: pa.RecordBatch, masked: ItemLists | None) -> ItemLists:
        """Return masked items and listed ones that were no candidates; unknown items are not told."""
        listed = read_item_lists(users, "list_items")
        moment_u = self.at(users).moment_u
        user_n = np.repeat(np.arange(len(moment_u)), np.diff(listed.offsets_u))
        items_n = listed.items_p
        known_n = (items_n >= 0) & (items_n < len(self.periods.offsets_i) - 1)
        known_n[known_n] = ~mark_available(self.periods, items_n[known_n], moment_u[user_n[known_n]])
        user_n, items_n = user_n[known_n], items_n[known_n]
        if masked is not None:
            user_n = np.append(user_n, np.repeat(np.arange(len(moment_u)), np.diff(masked.offsets_u)))
            items_n = np.append(items_n, masked.items_p)
        order = np.argsort(user_n, kind="stable")
        bounds = np.append(0, np.cumsum(np.bincount(user_n, minlength=len(moment_u))))
        return ItemLists(bounds, items_n[order])


@lru_cache(maxsize=2)
def _open(moments: ItemMoments) -> OpenMoments:
    key = digest(moments.rows.key, moments.first_seen_in, length=32)
    arrays = SharedRows(f"{key}-moments", moments.rows.files).arrays(partial(_build, moments=moments))
    first_i = arrays["first"]
    seen_i = first_i < ALWAYS
    begin_p = first_i[seen_i]
    periods = Periods(np.append(0, np.cumsum(seen_i)), begin_p, np.full(len(begin_p), ALWAYS))
    unknown = 0
    if moments.availability is not None:
        shown = moments.availability.rows
        build = partial(_build_periods, moments=moments)
        held = SharedRows(f"{shown.key}-{moments.items.rows.key}", shown.files).arrays(build)
        periods, unknown = Periods(*(held[name] for name in PERIODS)), int(held["unknown"][0])
    return OpenMoments(place_moments(NO_MOMENTS.moment_u, periods), unknown)


PERIODS = ("offsets", "begin", "end")
"""Names of the arrays of `Periods`."""


def _build_periods(dataset: ds.Dataset, folder: Path, moments: ItemMoments) -> None:
    """Write the periods of a table by item: 8 bytes an item, 16 a period.

    Raises:
        DataError: times are wrong, periods end before they begin or overlap.
    """
    assert moments.availability is not None
    _, unit, zone = moments.availability
    rows = dataset.to_table()
    items = encode_texts(rows.column("item_id"))
    begin_r, end_r = read_periods(rows, unit, zone)
    item_r = items.indices.to_numpy()
    order = order_periods(item_r, begin_r, end_r, items.dictionary)
    index_r = moments.items.find(items.dictionary)[0][item_r]
    order = order[np.argsort(index_r[order], kind="stable")]
    known = order[index_r[order] >= 0]
    offsets_i = np.append(0, np.cumsum(np.bincount(index_r[known], minlength=moments.items.n_items)))
    arrays = (
        *zip(PERIODS, (offsets_i, begin_r[known], end_r[known]), strict=True),
        ("unknown", np.array([len(order) - len(known)])),
    )
    for name, array in arrays:
        shared_arrays.save_array(folder, name, array)


def _build(dataset: ds.Dataset, folder: Path, moments: ItemMoments) -> None:
    """Write items' first times, (i,): 8 bytes an item.

    Raises:
        DataError: rows have no time.
    """
    first_i = np.full(moments.items.n_items, ALWAYS)
    for rows in map(_to_table, dataset.to_batches(columns=list(LABELLED))):
        time_r = rows.column("event_time").to_numpy()
        names, part_r = name_parts(rows)
        ids = id_column(rows, "item_id")
        item_r = moments.items.find(ids.dictionary)[0][ids.indices.to_numpy()]
        seen_r = np.isin(names, [TRAIN] if moments.first_seen_in == "train" else names)[part_r]
        np.minimum.at(first_i, item_r[seen_r], time_r[seen_r])
    shared_arrays.save_array(folder, "first", first_i)


def _to_table(batch: pa.RecordBatch) -> pa.Table:
    rows = encode_ids(pa.Table.from_batches([batch]))
    if untimed := rows.column("event_time").null_count:
        raise DataError(
            f"definition.candidates_as_of: {untimed:,} of {len(rows):,} rows have no event_time",
            "map dataset.columns.event_time, or definition.candidates_as_of: none",
        )
    return rows


# ------------------------------------------------------------------------------- questions


def ask_at_times(users: pa.Table, moments: ItemMoments, keep_empty: bool) -> pa.Table:
    """Ask for each row's truth of one time alone: rows of `MOMENT_USERS`.

    Questions that have `query_id` keep it; others have the number of their time in the user's part, from
    1, or NULL without truth. Truth that was no candidate is left out, and so are questions without any
    other; or it stays as item -1, which is never ranked.

    Args:
        users: rows of `PART_USERS` or `QUESTION_USERS`; their slices have the key TIME_LABEL.
        moments: the times.
        keep_empty: keep a row without truth for users who have no other.
    """
    labels, (offsets, item_p) = list_labels(users), flatten_lists(users.column("items"))
    time_p = labels.pop(TIME_LABEL, pa.array([], pa.string())).cast(pa.int64()).to_numpy()
    known_p = mark_available(moments.open().periods, item_p.astype(np.int64), time_p)
    if moments.unavailable == "miss":
        item_p = np.where(known_p, item_p, -1)
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(item_p, pa.int32()))
        users = users.set_column(users.column_names.index("items"), "items", lists)
    row_p = np.repeat(np.arange(len(users)), np.diff(offsets))
    order = np.lexsort((item_p, time_p, row_p))
    number_p = np.empty_like(order)
    number_p[order] = _number_times(row_p[order], time_p[order])
    order = order[known_p[order]] if moments.unavailable == "left_out" else order
    first_q = np.flatnonzero(_differs(row_p[order]) | _differs(number_p[order]))
    empty_n = _list_empty(users, row_p[order]) if keep_empty else np.empty(0, np.int64)
    questions, place_q = divide_truth(users, labels, order, first_q, empty_n)
    numbers = pa.array(number_p).take(place_q).cast(pa.string())
    if QUERY_ID in questions.column_names:
        numbers = pc.if_else(place_q.is_valid(), questions.column(QUERY_ID), None)
        questions = questions.drop_columns([QUERY_ID])
    return questions.append_column(QUERY_ID, numbers).append_column(AS_OF, pa.array(time_p).take(place_q))


def _differs(values: Ints) -> Bools:
    """Mark values that differ from the one before; the first does."""
    marks: Bools = np.append(True, values[1:] != values[:-1])[: len(values)]
    return marks


def _number_times(row_p: Ints, time_p: Ints) -> Ints:
    """Number each row's times from 1, (p,)."""
    new_row_p = _differs(row_p)
    group_p = np.cumsum(new_row_p | _differs(time_p))
    first_p: Ints = group_p[new_row_p][np.cumsum(new_row_p) - 1]
    return group_p - first_p + 1


def _list_empty(users: pa.Table, row_p: Ints) -> Ints:
    """Return the first row of each user and part whose rows have no truth."""
    new_n = np.zeros(len(users), np.bool_)
    new_n[:1] = True
    for name in ("user_id", "part"):
        column = users.column(name).combine_chunks()
        new_n[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    owner_n = np.cumsum(new_n) - 1
    return np.flatnonzero(new_n & ~np.isin(owner_n, owner_n[np.unique(row_p)]))
