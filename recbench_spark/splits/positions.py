"""Put rows in order within their owners, in a task.

A window in the JVM would sort whole rows by text, time and text. Here rows are brought together by user
without a sort (`blocks`), and numpy computes each row's position. The module imports neither Spark nor the
settings, so that workers load it fast.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.ids import encode_texts
from recbench_spark.sources.events import EVENT
from recbench_spark.splits.kernels.labels import Hashes
from recbench_spark.splits.kernels.positions import mark_repeats, positions_from_end

IDS = ("user_id", "item_id")


def encode_ids(rows: pa.Table) -> pa.Table:
    """Return the rows with ids as dictionaries, each text once."""
    for name in (name for name in IDS if name in rows.column_names):
        rows = rows.set_column(rows.column_names.index(name), name, encode_texts(rows.column(name)))
    return rows


def id_column(rows: pa.Table, name: str) -> pa.DictionaryArray:
    """Return an id column of `encode_ids` in one piece."""
    return rows.column(name).combine_chunks()


def id_numbers(rows: pa.Table, name: str) -> Ints:
    """Return (r,) numbers for the rows' ids, in arbitrary order.

    A distinct id has one number.
    """
    numbers: Ints = id_column(rows, name).indices.to_numpy().astype(np.int64)
    return numbers


def rank_ids(rows: pa.Table, name: str, numeric: bool) -> Ints:
    """Rank each row's id, (r,), as number or UTF-8 bytes."""
    column = id_column(rows, name)
    ids = column.dictionary.cast(pa.int64()) if numeric else column.dictionary
    rank = np.empty(len(ids), np.int64)
    rank[pc.sort_indices(ids).to_numpy()] = np.arange(len(rank))
    rank_r: Ints = rank[column.indices.to_numpy()]
    return rank_r


def name_parts(rows: pa.Table) -> tuple[list[str], Ints]:
    """Return the parts' names, and (r,) each row's part number."""
    column = rows.column("part").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.unify_dictionaries().chunks)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)


def hash_contents(rows: pa.Table) -> Hashes:
    """Return (r,) a hash of ids, rating and attributes.

    The hash covers all of a row but its time and part. The upper half covers ids and rating alone, so that
    a log whose attributes are not read keeps the same ratings; missing attributes count as none.
    """
    # Imported here, because numba takes half a second to load.
    from recbench_spark.core import hashing  # noqa: PLC0415
    from recbench_spark.core.hashed_ids import hash_encoded, hash_ids  # noqa: PLC0415

    hash_r = hash_encoded(id_column(rows, "item_id"), hash_encoded(id_column(rows, "user_id")))
    hash_r = hashing.hash_longs(rows.column("rating").to_numpy().view(np.int64), hash_r)
    if EVENT in rows.column_names:
        hash_r = hashing.hash_longs(rows.column(EVENT).to_numpy().astype(np.int64), hash_r)
    if "attributes" not in rows.column_names:
        return hash_r
    values = rows.column("attributes").to_pylist()
    whole_r = hash_ids(pa.array(map(repr, values), pa.string()), hash_r)
    lower_r = np.where([value is None for value in values], hash_r, whole_r)
    half = np.uint64(32)
    return (hash_r >> half << half) | (lower_r & np.uint64(2**32 - 1))


def order_rows(
    rows: pa.Table,
    owner: str,
    tie: str,
    key_r: Ints,
    *,
    numeric: bool,
    by_pair: bool,
    apart_r: Bools | None = None,
) -> tuple[pa.Table, Ints, Ints]:
    """Sort the rows by owner and within the owner.

    Args:
        rows: ids as in `encode_ids`.
        owner: `user_id` or `item_id`.
        tie: the other id column, which decides between equal keys.
        key_r: each row's sort key.
        numeric: true if ids in `tie` sort as numbers.
        by_pair: true if all rows of a pair have one key and share one position. Otherwise each row has its
            own, and a hash decides between rows of a pair whose keys are equal.
        apart_r: rows that are not in that order: those that came with a part, such as an open loop.

    Returns:
        The sorted rows, their positions from the end, and the number of positions of each row's owner.
    """
    owner_r = id_numbers(rows, owner)
    if apart_r is not None:
        owner_r = 2 * owner_r + ~apart_r
    tie_r = rank_ids(rows, tie, numeric)
    if not by_pair:
        tie_r = _rank_doubled(rows, tie_r)
    # A user's rows are kept together, because repeated ids are written several times as fast.
    order_r, position_o, n_o = positions_from_end(owner_r, key_r, tie_r, once=by_pair)
    return rows.take(pa.array(order_r)), position_o, n_o


def _rank_doubled(rows: pa.Table, tie_r: Ints) -> Ints:
    """Rank rows of one pair by their content's hash, too."""
    places = np.flatnonzero(mark_repeats(id_numbers(rows, "user_id"), id_numbers(rows, "item_id")))
    if not len(places):
        return tie_r
    hashes, rank_p = np.unique(hash_contents(rows.take(pa.array(places))), return_inverse=True)
    tie_r = tie_r * len(hashes)
    tie_r[places] += rank_p
    return tie_r
