"""Put rows of some owners in order and keep one row per pair, in the table that a task holds.

A window in the JVM would sort whole rows by text, time and text, after a pass that looks for duplicates.
Here rows are brought together by user without a sort (`blocks`); numpy looks for duplicates and computes
each row's position. The module imports neither Spark nor the settings, so that workers load it fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.errors import FallbackToSpark
from recbench_spark.kernels.arrays import Bools, Ints
from recbench_spark.kernels.splits.positions import last_per_group, mark_repeats, positions_from_end

DuplicateRule = Literal["keep_last", "keep_first", "error"]

IDS = ("user_id", "item_id")


def encode_ids(rows: pa.Table) -> pa.Table:
    """Return the rows with their ids as dictionaries of texts, so that each distinct id is handled once."""
    for name in IDS:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        texts = pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return rows


def id_column(rows: pa.Table, name: str) -> pa.DictionaryArray:
    """Return an id column of `encode_ids` in one piece."""
    return rows.column(name).combine_chunks()


def id_numbers(rows: pa.Table, name: str) -> Ints:
    """Return (r,) the number of each row's id among the distinct ones, in arbitrary order."""
    numbers: Ints = id_column(rows, name).indices.to_numpy().astype(np.int64)
    return numbers


def rank_ids(rows: pa.Table, name: str, numeric: bool) -> Ints:
    """Return (r,) the rank of each row's id among the distinct ids, as numbers or by UTF-8 bytes."""
    column = id_column(rows, name)
    ids = column.dictionary.cast(pa.int64()) if numeric else column.dictionary
    rank = np.empty(len(ids), np.int64)
    rank[pc.sort_indices(ids).to_numpy()] = np.arange(len(rank))
    rank_r: Ints = rank[column.indices.to_numpy()]
    return rank_r


def order_rows(
    rows: pa.Table, owner: str, tie: str, key_r: Ints, numeric: bool
) -> tuple[pa.Table, Ints, Ints]:
    """Sort the rows by owner and within the owner.

    Rows that came with a part (an open loop, for example) are not part of that order.

    Args:
        rows: ids as in `encode_ids`, one row per pair.
        owner: `user_id` or `item_id`.
        tie: the other id column, which decides between equal keys.
        key_r: the sort key of each row.
        numeric: true if ids of `tie` are ordered as numbers.

    Returns:
        The sorted rows, their positions from the end, and the number of rows of each row's owner.
    """
    owner_r = id_numbers(rows, owner)
    if "part" in rows.column_names:
        owner_r = 2 * owner_r + pc.is_null(rows.column("part")).to_numpy()
    # A user's rows are kept together, because repeated ids are written several times as fast.
    order_r, position_o, n_o = positions_from_end(owner_r, key_r, rank_ids(rows, tie, numeric))
    return rows.take(pa.array(order_r)), position_o, n_o


def drop_duplicates(rows: pa.Table, keep: DuplicateRule, apart: str | None = None) -> pa.Table:
    """Keep one row of each pair (user_id, item_id): the last or first by time, then the highest rating.

    Rows that are still equal are compared by part and attributes, so that the order of rows never decides.

    Args:
        rows: all rows of some users, ids as in `encode_ids`.
        keep: the row that stays.
        apart: a part that is a separate log: a pair may be there once and in all other parts once.

    Raises:
        FallbackToSpark: a pair is in two rows and `keep` is `error`.
    """
    user_r, item_r = id_numbers(rows, "user_id"), id_numbers(rows, "item_id")
    if apart is not None and "part" in rows.column_names:
        item_r = 2 * item_r + mark_parts(rows, (apart,))
    doubled_r = mark_repeats(user_r, item_r)
    if not doubled_r.any():
        return rows
    if keep == "error":
        raise FallbackToSpark("pairs stand twice")
    places = np.flatnonzero(doubled_r)
    kept_r = ~doubled_r
    kept_r[places[_rows_to_keep(rows.take(pa.array(places)), (user_r << 32 | item_r)[places], keep)]] = True
    return rows.filter(pa.array(kept_r))


def mark_parts(rows: pa.Table, names: Sequence[str]) -> Bools:
    """Return (r,) true for the rows of these parts; `part` may be text, a dictionary, or missing."""
    column = rows.column("part").combine_chunks()
    texts = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    marked_r: Bools = pc.is_in(column, pa.array(names, texts)).to_numpy(zero_copy_only=False)
    return marked_r


def _rows_to_keep(rows: pa.Table, pair_r: Ints, keep: DuplicateRule) -> Bools:
    """Select the row that stays, for each pair with several rows."""
    time_r = pc.fill_null(rows.column("event_time"), 0).to_numpy()
    rating_r = rows.column("rating").to_numpy()
    best_r, equal_r = last_per_group(pair_r, ~time_r if keep == "keep_first" else time_r, rating_r)
    stay_r = np.zeros(len(pair_r), np.bool_)
    stay_r[best_r] = True
    stay_r[equal_r] = False
    stay_r[_break_ties(rows, pair_r, equal_r)] = True
    return stay_r


def _break_ties(rows: pa.Table, pair_r: Ints, equal_r: Ints) -> list[int]:
    """Select one row of each pair by part and attributes, among rows equal in time and rating."""
    best: dict[int, tuple[object, int]] = {}
    columns = [name for name in ("part", "attributes") if name in rows.column_names]
    # A table without columns has no rows; `rating` keeps them where the other columns are missing.
    values = rows.select([*columns, "rating"]).take(pa.array(equal_r)).to_pylist()
    for place, pair, row in zip(equal_r.tolist(), pair_r[equal_r].tolist(), values, strict=True):
        order = _struct_order(row)
        if pair not in best or order > best[pair][0]:  # type: ignore[operator]
            best[pair] = (order, place)
    return [place for _, place in best.values()]


def _struct_order(row: dict[str, object]) -> tuple[object, ...]:
    """Return a sort key in Spark's order of structs: missing values come first."""
    attributes = row.get("attributes")
    values = None if attributes is None else [_null_first(value) for _, value in attributes]  # type: ignore[attr-defined]
    # 0 and -0 are equal ratings but different values.
    return (_null_first(row.get("part")), _null_first(values), copysign(1, row["rating"]))  # type: ignore[arg-type]


def _null_first(value: object) -> tuple[object, ...]:
    return (False,) if value is None else (True, value)
