"""Build user blocks: training and held-out items as arrays.

Each user has one row, built once for all models. The functions work on Arrow tables, without Spark: a task
holds all rows of some users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.schemas import USER_BLOCKS
from recbench_spark.splits.events import (
    NEXT,
    SIGNAL,
    STRENGTH,
    name_before,
    read_strengths,
)
from recbench_spark.splits.kernels.positions import ascending
from recbench_spark.splits.labels import HISTORY, LATER, TRAIN, VALID
from recbench_spark.splits.popularity import COLD, label_popularity
from recbench_spark.splits.positions import encode_ids, id_column, name_parts
from recbench_spark.splits.queries import QUERY_LABEL, read_attribute
from recbench_spark.storage.shared_arrays import SharedRows, bound_lists, rank_texts

TARGET = pa.schema([field for field in USER_BLOCKS.arrow_schema if field.name != "split_id"])
"""A block's columns; the split is the partition that it is written to."""


TABLE_LABELS = ("id", "label")
"""Columns in a table of labels."""

TIME_LABEL = "definition.candidates_as_of"
"""Key among a block's slices: the time of each truth item."""


class SliceLabel(NamedTuple):
    """A slice: its key, and where its labels come from.

    `column` is a table's column or the log's attribute. `table` has rows of TABLE_LABELS; None: it has
    none, or no table gives the labels. `time`: the row's time in microseconds.
    """

    key: str
    of: Literal["popularity", "cold_user", "log", "users", "items", "time"]
    column: str = ""
    table: SharedRows | None = None


def label_queries(query: str | None) -> tuple[SliceLabel, ...]:
    """Return the label of a truth item's query, for a log that has queries."""
    return (SliceLabel(QUERY_LABEL, "log", query),) if query else ()


def label_times(candidates_as_of: str) -> tuple[SliceLabel, ...]:
    """Return the label of a truth item's time, where it decides about candidates."""
    return () if candidates_as_of == "none" else (SliceLabel(TIME_LABEL, "time"),)


@dataclass(frozen=True)
class BlockPlan:
    """Catalogue, parts and slices which a task needs for blocks.

    Attributes:
        find: ids (n,) -> item_index or -1, and training rows, (n,) each (`KnownItems.find`).
        bounds: training counts from which on items are torso, and head.
        parts: held-out parts to keep, in order.
        slices: labels for truth items.
        events: true if some trained items stay candidates (`dataset.events`).
        in_time: truth is in order of time, equal times by item; else by item.
    """

    find: Callable[[pa.Array], tuple[Ints, Ints]]
    bounds: tuple[int, int]
    parts: tuple[str, ...]
    slices: tuple[SliceLabel, ...] = ()
    events: bool = False
    in_time: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns for a task to read."""
        attributes = ["attributes"] if any(label.of == "log" for label in self.slices) else []
        times = ["event_time"] if self.has_times else []
        of_events = [SIGNAL, *([STRENGTH] if self.in_time else [])] if self.events else []
        return ("user_id", "item_id", "rating", "part", *attributes, *times, *of_events)

    @property
    def has_times(self) -> bool:
        """True if rows' times count."""
        return self.in_time or any(label.of == "time" for label in self.slices)


@dataclass(frozen=True)
class _OrderedRows:
    """Rows ordered by user, item, rating, part.

    Ids are numbers, (r,) each, with their texts beside them.
    """

    user_r: Ints
    item_r: npt.NDArray[np.int32]
    rating: pa.Array
    part_r: Ints
    parts: list[str]
    text: pa.Array
    labels: list[pa.Array]
    users: pa.Array
    signal_r: Bools
    time_r: Ints | None
    strength: pa.Array


def build_user_blocks(rows: pa.Table, plan: BlockPlan) -> pa.Table:
    """Return one row per user.

    Args:
        rows: all labelled rows of some users (`BlockPlan.columns`).
        plan: the catalogue, the held-out parts, the slices.

    Returns:
        user_id, user_key, train_items, train_ratings (by item_index ascending), held_out (part ->
        item_ids, items, relevance, slices, by item_index ascending, or `in_time`; with events `name_before`
        a part has then the rows before its questions), closed_items (ascending; without events NULL).
    """
    ordered = _order_rows(encode_ids(rows), plan)
    n_users = len(ordered.users)
    known_r = np.isin(ordered.parts, HISTORY)[ordered.part_r]
    history = bound_lists(ordered.user_r[known_r], n_users)
    columns = {
        "user_id": ordered.users,
        "user_key": pa.array(hash_ids(ordered.users).view(np.int64)),
        "train_items": pa.ListArray.from_arrays(history, pa.array(ordered.item_r[known_r])),
        "train_ratings": pa.ListArray.from_arrays(history, ordered.rating.filter(pa.array(known_r))),
        "held_out": _hold_out(ordered, plan),
        "closed_items": pa.nulls(n_users),
    }
    if plan.events:
        closed_r = known_r & ~ordered.signal_r
        bounds = bound_lists(ordered.user_r[closed_r], n_users)
        columns["closed_items"] = pa.ListArray.from_arrays(bounds, pa.array(ordered.item_r[closed_r]))
    return pa.table([columns[field.name].cast(field.type) for field in TARGET], schema=TARGET)


def _order_rows(rows: pa.Table, plan: BlockPlan) -> _OrderedRows:
    users, items = id_column(rows, "user_id"), id_column(rows, "item_id")
    index_x, n_train_x = plan.find(items.dictionary)
    code_r = items.indices.to_numpy()
    item_r = index_x[code_r].astype(np.int32)
    parts, part_r = name_parts(rows)
    rating = rows.column("rating").combine_chunks()
    labels = [_read_labels(rows, label, n_train_x, plan.bounds) for label in plan.slices]
    of_log = [rank_texts(one) for one, cut in zip(labels, plan.slices, strict=True) if cut.of == "log"]
    # A file's dictionary may name users whose rows were dropped.
    there_u, user_r = np.unique(users.indices.to_numpy(), return_inverse=True)
    rating_r = rating.to_numpy(zero_copy_only=False)
    time_r: Ints | None = pc.fill_null(rows.column("event_time"), 0).to_numpy() if plan.has_times else None
    ties = [rating_r, np.argsort(np.argsort(parts))[part_r], *of_log]
    order_r = ascending(user_r, item_r, *ties, *([] if time_r is None else [time_r]))
    order = pa.array(order_r)
    return _OrderedRows(
        user_r[order_r],
        item_r[order_r],
        rating.take(order),
        part_r[order_r],
        parts,
        items.dictionary.take(pa.array(code_r[order_r])),
        [column.take(order) for column in labels],
        users.dictionary.take(pa.array(there_u)),
        (rows.column(SIGNAL).to_numpy() if plan.events else np.zeros(len(rows), np.bool_))[order_r],
        None if time_r is None else time_r[order_r],
        (read_strengths(rows) if plan.events and plan.in_time else rating).take(order),
    )


def _read_labels(rows: pa.Table, label: SliceLabel, n_train_x: Ints, bounds: tuple[int, int]) -> pa.Array:
    """Return each row's label, (r,) text or a dictionary with it.

    For `cold_user` and `time` it is NULL, which `_map_slices` fills.
    """
    if label.of == "popularity":
        labels = pa.array(label_popularity(n_train_x, bounds)).dictionary_encode()
        return labels.take(id_column(rows, "item_id").indices)
    if label.table is not None:
        ids = id_column(rows, f"{label.of[:-1]}_id")
        known = label.table.dataset().to_table(filter=pc.field("id").isin(ids.dictionary)).combine_chunks()
        places = pc.index_in(ids.dictionary, known.column("id").combine_chunks())
        return known.column("label").combine_chunks().cast(pa.string()).take(places).take(ids.indices)
    if label.of != "log" or "attributes" not in rows.column_names:
        return pa.nulls(len(rows), pa.string())
    return read_attribute(rows, label.column)


def _hold_out(rows: _OrderedRows, plan: BlockPlan) -> pa.MapArray:
    """Return each user's truth by part, without empty parts."""
    names = (*plan.parts, *map(name_before, plan.parts))
    n_users, n_parts = len(rows.users), len(names)
    places = [plan.parts.index(name) if name in plan.parts else -1 for name in rows.parts]
    place_r = np.array(places, np.int64)[rows.part_r] if places else np.zeros(0, np.int64)
    held_r = np.flatnonzero(place_r >= 0)
    entry_r = rows.user_r[held_r] * n_parts + place_r[held_r]
    times = () if rows.time_r is None or not plan.in_time else (rows.time_r[held_r],)
    order = np.lexsort((*times, entry_r))
    held_r, entry_r = held_r[order], entry_r[order]
    starts = np.flatnonzero(np.diff(entry_r, prepend=-1))
    bounds = pa.array(np.append(starts, len(entry_r)), pa.int32())
    taken = pa.array(held_r)
    lists = {
        "item_ids": pa.ListArray.from_arrays(bounds, rows.text.take(taken)),
        "items": pa.ListArray.from_arrays(bounds, pa.array(rows.item_r[held_r])),
        "relevance": pa.ListArray.from_arrays(bounds, rows.rating.take(taken)),
        "slices": _map_slices(rows, plan, held_r, bounds),
    }
    truth, entry_e = pa.StructArray.from_arrays(list(lists.values()), list(lists)), entry_r[starts]
    if plan.events and plan.in_time:
        for place, part in enumerate(plan.parts, len(plan.parts)):
            user_b, before = _list_before(rows, part, truth.type)
            truth = pa.concat_arrays([truth, before])
            entry_e = np.append(entry_e, user_b * n_parts + place)
        order = np.argsort(entry_e)
        truth, entry_e = truth.take(pa.array(order)), entry_e[order]
    offsets = bound_lists(entry_e // n_parts, n_users)
    entries = pa.array(names, pa.string()).take(pa.array(entry_e % n_parts))
    return pa.MapArray.from_arrays(offsets, entries, truth)


def _list_before(rows: _OrderedRows, part: str, kind: pa.StructType) -> tuple[Ints, pa.Array]:
    """List the users with rows before questions, and these rows.

    Their items are in order of time, with strengths. NEXT stands for each question; the row asked comes
    right after it, and `later` rows come before it if they are earlier. Validation rows come first.
    """
    assert rows.time_r is not None
    of = {name: rows.part_r == number for number, name in enumerate(rows.parts)}
    none_r = np.zeros(len(rows.user_r), np.bool_)
    asked_r, valid_r = of.get(part, none_r), of.get(VALID, none_r) if part != VALID else none_r
    later_r = of.get(LATER, none_r) & np.isin(rows.user_r, rows.user_r[asked_r])
    places = [np.flatnonzero(marked_r) for marked_r in (asked_r, asked_r, later_r, valid_r)]
    next_b = np.arange(sum(map(len, places))) < len(places[0])
    place_b = np.concatenate(places)
    time_b = np.where(valid_r[place_b], np.iinfo(np.int64).min, rows.time_r[place_b])
    order = np.lexsort((~next_b, rows.item_r[place_b], later_r[place_b], time_b, rows.user_r[place_b]))
    place_b, next_b = place_b[order], next_b[order]
    user_b = rows.user_r[place_b]
    starts = np.flatnonzero(np.diff(user_b, prepend=-1))
    bounds, empty = (
        pa.array(np.append(starts, len(place_b)), pa.int32()),
        np.zeros(len(starts) + 1, np.int32),
    )
    lists = [
        pa.ListArray.from_arrays(pa.array(empty), pa.array([], pa.string())),
        pa.ListArray.from_arrays(bounds, pa.array(np.where(next_b, NEXT, rows.item_r[place_b]))),
        pa.ListArray.from_arrays(bounds, rows.strength.take(pa.array(place_b))),
        pa.nulls(len(starts), kind.field("slices").type),
    ]
    names = ("item_ids", "items", "relevance", "slices")
    return user_b[starts], pa.StructArray.from_arrays(lists, names).cast(kind)


def _map_slices(rows: _OrderedRows, plan: BlockPlan, held_r: Ints, bounds: pa.Array) -> pa.MapArray:
    """Map slice keys to labels, by user and part."""
    n, n_slices = len(bounds) - 1, len(plan.slices)
    labels = [
        _take_labels(rows, label.of, column, held_r)
        for label, column in zip(plan.slices, rows.labels, strict=True)
    ]
    lists = [pa.ListArray.from_arrays(bounds, one) for one in labels]
    by_entry = np.arange(n_slices * n).reshape(n_slices, n).T.ravel()
    values = pa.concat_arrays([*lists, pa.array([], pa.list_(pa.string()))]).take(pa.array(by_entry))
    keys = pa.array([label.key for label in plan.slices] * n, pa.string())
    return pa.MapArray.from_arrays(pa.array(np.arange(n + 1) * n_slices, pa.int32()), keys, values)


def _take_labels(rows: _OrderedRows, of: str, column: pa.Array, held_r: Ints) -> pa.Array:
    if of == "time":
        assert rows.time_r is not None
        return pa.array(rows.time_r[held_r]).cast(pa.string())
    labels = _label_warmth(rows) if of == "cold_user" else column
    return labels.take(pa.array(held_r)).cast(pa.string())


def _label_warmth(rows: _OrderedRows) -> pa.Array:
    """Label rows, (r,): cold without training rows, else warm."""
    in_train_r: Bools = rows.part_r == (rows.parts.index(TRAIN) if TRAIN in rows.parts else -1)
    n_train_u = np.bincount(rows.user_r[in_train_r], minlength=len(rows.users))
    return pa.DictionaryArray.from_arrays((n_train_u > 0).astype(np.int8)[rows.user_r], [COLD, "warm"])
