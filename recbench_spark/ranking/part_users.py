"""Users with held-out items, made from blocks of users.

These are functions on Arrow tables, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.ranking.batch_schemas import USERS
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.moments import AS_OF, ItemMoments, ask_at_times
from recbench_spark.ranking.query_questions import ask_by_query
from recbench_spark.ranking.successive import ask_successively
from recbench_spark.schemas import QUERY_ID, USER_BLOCKS
from recbench_spark.splits.events import name_before
from recbench_spark.storage.blocks import ChangedRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.shared_arrays import bound_lists, flatten_lists

BLOCK_NAMES = ("user_id", "user_key", "train_items", "train_ratings", "held_out", "closed_items")
"""Columns read from `user_blocks`."""

PART_USERS = pa.schema([*USERS, pa.field("history", pa.list_(pa.int32()))])
"""`USERS`, and `history`: the training items with a rating that makes them relevant."""


QUESTION_USERS = pa.schema([*PART_USERS, pa.field(QUERY_ID, pa.string())])
"""`PART_USERS` with a row for each question."""

MOMENT_USERS = pa.schema([*QUESTION_USERS, pa.field(AS_OF, pa.int64())])
"""`QUESTION_USERS` with each question's moment."""

BLOCK_USERS = 1 << 12
"""Users changed by a task at once."""


def map_user_blocks(store: FileTables, split_id: str, change: Change, names: Sequence[str]) -> ChangedRows:
    """Let tasks change a split's user blocks, piece by piece.

    Args:
        store: the warehouse.
        split_id: the split.
        change: function from rows of `user_blocks` to a result, such as `select_part_users`.
        names: the result's columns.
    """
    rows = store.open_rows(USER_BLOCKS, "split_id", [split_id], BLOCK_USERS)
    return ChangedRows(rows, BLOCK_NAMES, change, tuple(names), BLOCK_USERS)


def count_trained_users(blocks: Iterable[pa.Table]) -> int:
    """Count users with training items."""
    lengths = (pc.list_value_length(table.column("train_items")) for table in blocks)
    return sum(pc.sum(pc.greater(length, 0)).as_py() or 0 for length in lengths)


def select_part_users(
    blocks: pa.Table,
    parts: Sequence[str],
    threshold: float | None,
    keep_empty: bool,
    *,
    masks: bool = True,
    successive: bool = False,
    moments: ItemMoments | None = None,
    by_query: bool = False,
) -> pa.Table:
    """Select users for held-out parts: rows of `PART_USERS`.

    Args:
        blocks: one split's rows of `user_blocks`, any number of its users.
        parts: valid, test, open_loop.
        threshold: rating from which a training item belongs to a user's history.
        keep_empty: keep users without truth (they count 0 under empty_users=zero).
        masks: false where the split asks for items known from training: then no item is masked, since
            masking all others would tell the answer.
        successive: ask for each truth item alone, in the blocks' order: rows of `QUESTION_USERS`.
        moments: ask for the truth of each time alone: rows of `MOMENT_USERS`.
        by_query: ask for each query's truth: rows of `QUESTION_USERS`.
    """
    train, held_out = (blocks.column(name).combine_chunks() for name in ("train_items", "held_out"))
    entry_s = _find_entries(held_out, parts).ravel()
    slot_n = np.arange(len(entry_s)) if keep_empty else np.flatnonzero(entry_s >= 0)
    user_n, part_n = slot_n // len(parts), slot_n % len(parts)
    truth = _take_entries(held_out, entry_s[slot_n])
    # Validation items are known at test time, so they are no candidates any more.
    closed = close_items(blocks)
    known = pa.concat_arrays([closed, _add_valid(closed, held_out)])
    is_later_n = np.array([part != "valid" for part in parts])[part_n]
    masked_n = pa.array(user_n + len(blocks) * is_later_n, mask=np.full(len(user_n), not masks))
    columns = {
        "part": pa.array(parts, pa.string()).take(pa.array(part_n)),
        **{name: empty_nulls(pc.struct_field(truth, name)) for name in ("item_ids", "items", "relevance")},
        "slices": pc.struct_field(truth, "slices"),
        "masked": empty_nulls(known.take(masked_n)),
    }
    whole = {
        "user_id": blocks.column("user_id"),
        "user_key": blocks.column("user_key"),
        "history": _select_history(train, blocks.column("train_ratings").combine_chunks(), threshold),
    }
    columns |= {name: column.take(pa.array(user_n)) for name, column in whole.items()}
    table = pa.table([columns[field.name].cast(field.type) for field in PART_USERS], schema=PART_USERS)
    if successive:
        before, in_time = _take_rows_before(held_out, parts, slot_n)
        table = ask_successively(table, before, threshold, masks=masks, in_time=in_time)
    table = ask_by_query(table) if by_query else table
    return table if moments is None else ask_at_times(table, moments, keep_empty)


def _take_rows_before(held_out: pa.MapArray, parts: Sequence[str], slot_n: Ints) -> tuple[pa.Table, bool]:
    """Return the rows before questions, and whether they are in order of time.

    They are those named so, else validation rows, which parts after validation know.
    """
    before_n = _find_entries(held_out, [*map(name_before, parts)]).ravel()[slot_n]
    in_time = bool((before_n >= 0).any())
    if not in_time:
        is_later_n = np.array([part != "valid" for part in parts])[slot_n % len(parts)]
        valid_n = _find_entries(held_out, ["valid"]).ravel()[slot_n // len(parts)]
        before_n = np.where(is_later_n, valid_n, -1)
    rows = _take_entries(held_out, before_n)
    return pa.table({n: empty_nulls(pc.struct_field(rows, n)) for n in ("items", "relevance")}), in_time


def _find_entries(held_out: pa.MapArray, parts: Sequence[str]) -> Ints:
    """Return each user's entry for each part, (u, parts).

    An entry is its place among those of all users; -1: there is none.
    """
    offsets = held_out.offsets.to_numpy()
    keys = held_out.keys[offsets[0] : offsets[-1]]
    part_e = pc.index_in(keys, value_set=pa.array(parts, pa.string())).fill_null(-1).to_numpy()
    user_e = np.repeat(np.arange(len(held_out)), np.diff(offsets))
    entry_up = np.full((len(held_out), len(parts)), -1)
    wanted_e = np.flatnonzero(part_e >= 0)
    entry_up[user_e[wanted_e], part_e[wanted_e]] = offsets[0] + wanted_e
    return entry_up


def _take_entries(held_out: pa.MapArray, entry_n: Ints) -> pa.StructArray:
    return held_out.items.take(pa.array(entry_n, mask=entry_n < 0))


def empty_nulls(lists: pa.Array) -> pa.Array:
    """Return lists, or maps, with NULL made empty."""
    return pc.coalesce(lists, pa.scalar([], lists.type)) if lists.null_count else lists


def close_items(blocks: pa.Table) -> pa.ListArray:
    """Return the trained items that are no candidates: all but those of `dataset.events`."""
    closed, train = (blocks.column(name).combine_chunks() for name in ("closed_items", "train_items"))
    return pc.coalesce(closed, train) if closed.null_count else closed


def _add_valid(train: pa.ListArray, held_out: pa.MapArray) -> pa.ListArray:
    """Return each user's items from training and validation, ascending."""
    entry_u = _find_entries(held_out, ["valid"]).ravel()
    valid = pc.struct_field(_take_entries(held_out, entry_u), "items")
    bounds, items = zip(flatten_lists(train), flatten_lists(valid), strict=True)
    if not len(items[1]):
        return train
    user_k = np.concatenate([np.repeat(np.arange(len(train)), np.diff(offsets)) for offsets in bounds])
    item_k = np.concatenate(items)
    order = np.lexsort((item_k, user_k))
    return pa.ListArray.from_arrays(bound_lists(user_k, len(train)), pa.array(item_k[order], pa.int32()))


def _select_history(train: pa.ListArray, ratings: pa.ListArray, threshold: float | None) -> pa.ListArray:
    """Return training items with a rating that makes them relevant."""
    offsets, items = flatten_lists(train)
    is_relevant = mark_relevant(flatten_lists(ratings)[1], threshold)
    bounds = np.concatenate([[0], np.cumsum(is_relevant)])[offsets]
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(items[is_relevant], pa.int32()))
