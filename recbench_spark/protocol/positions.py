"""Rows numbered from the end of their user's order, one row a pair: the one shuffle of a split.

A window sorts whole rows by text, time and text in the JVM, after a pass that looks for duplicates. Here
rows are brought together by user without a sort; numpy looks for duplicates and finds each row's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.kernels.positions import last_of_each, positions_from_end, repeated
from recbench_spark.protocol.blocks import in_blocks, rows_of, tasks_for

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Numbering:
    """Whose rows are numbered, by which column, what decides between equal keys and repeated pairs."""

    of: str
    within: str
    key: str
    keep: str | None = None


KEY = "_key"
"""A key that is not a column of the log; it is gone from what `numbered` returns."""


def numbered(log: DataFrame, numbering: Numbering, n: int | None = None) -> DataFrame:
    """Adds `position` from the end of the owner's order, from 1, and the owner's number of rows `n`.

    Rows that came with a part (an open loop, say) are no part of that order. Shuffles the log by owner in
    blocks (`blocks`); a task holds its own.

    Args:
        log: interactions, ids as text or int64, one row a pair unless `numbering.keep` says which of them
            stays; without a column `part` no row came with one.
        numbering: owner, key (a whole number), tie, duplicates.
        n: rows of the log at most; None: they are counted.
    """
    fields = [field for field in log.schema.fields if field.name != KEY]
    blocks = in_blocks(log, F.xxhash64(numbering.of), tasks_for(log, n))
    return blocks.mapInArrow(_task(partial(_number, numbering=numbering)), T.StructType([*fields, *_ADDED]))


_ADDED = (T.StructField("position", T.IntegerType()), T.StructField("n", T.IntegerType()))


def one_a_pair(log: DataFrame, keep: str, n: int | None = None) -> DataFrame:
    """One row of each pair (user_id, item_id): the shuffle of `numbered` without its numbers.

    By user, not by pair: a user's rows stay together and are written several times as fast.
    """
    blocks = in_blocks(log, F.xxhash64("user_id"), tasks_for(log, n))
    return blocks.mapInArrow(_task(partial(_without_repeated, keep=keep)), log.schema)


def _task(change: Callable[[pa.Table], pa.Table]):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = rows_of(batches)
        if table is not None:
            yield from change(table).to_batches(max_chunksize=1 << 16)

    return run


def _without_repeated(table: pa.Table, keep: str) -> pa.Table:
    user_r = _ranks(table.column("user_id"))
    kept_r = _kept(table, user_r, _ranks(table.column("item_id")), first=keep == "keep_first")
    rows = np.flatnonzero(kept_r)
    return table.take(pa.array(rows[np.argsort(user_r[rows], kind="stable")]))


def _number(table: pa.Table, numbering: Numbering) -> pa.Table:
    owner_r, tie_r = _ranks(table.column(numbering.of)), _ranks(table.column(numbering.within))
    if numbering.keep:
        kept_r = _kept(table, owner_r, tie_r, first=numbering.keep == "keep_first")
        if not kept_r.all():
            table, owner_r, tie_r = table.filter(pa.array(kept_r)), owner_r[kept_r], tie_r[kept_r]
    free_r = pc.is_null(table.column("part")).to_numpy() if "part" in table.column_names else 1
    key_r = pc.fill_null(table.column(numbering.key), 0).to_numpy()
    order_r, position_r, n_r = positions_from_end(2 * owner_r + free_r, key_r, tie_r)
    # A user's rows together: repeated ids are written several times as fast as scattered ones.
    table = table.drop_columns({KEY} & {numbering.key}).take(pa.array(order_r))
    for name, array_r in (("position", position_r), ("n", n_r)):
        table = table.append_column(name, pa.array(array_r[order_r], pa.int32()))
    return table


def _ranks(column: pa.ChunkedArray) -> Whole:
    """Each id's place among the distinct ids in the order of UTF-8 bytes, integers by their digits."""
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary.cast(pa.string())).to_numpy()] = np.arange(len(rank))
    ranks: Whole = rank[encoded.indices.to_numpy()]
    return ranks


def _kept(table: pa.Table, owner_r: Whole, tie_r: Whole, *, first: bool) -> Flags:
    """One row of each pair, by the rule of `splits.without_duplicates`."""
    doubled_r = repeated(owner_r, tie_r)
    kept_r = ~doubled_r
    places = np.flatnonzero(doubled_r)
    rows = table.take(pa.array(places))
    time_r = pc.fill_null(rows.column("event_time"), 0).to_numpy()
    pair_r = (owner_r[places] << 32) | tie_r[places]
    rating_r = rows.column("rating").to_numpy()
    best_r, equal_r = last_of_each(pair_r, -time_r if first else time_r, rating_r)
    kept_r[places[best_r]] = True
    kept_r[places[equal_r]] = False
    kept_r[places[_decided(rows, pair_r, equal_r)]] = True
    return kept_r


def _decided(rows: pa.Table, pair_r: Whole, equal_r: Whole) -> list[int]:
    """Of rows equal in time and rating the one of each pair that part and attributes decide for."""
    best: dict[int, tuple[object, int]] = {}
    columns = [name for name in ("part", "attributes") if name in rows.column_names]
    # A table without columns has no rows: `rating` keeps them where nothing is left to decide by.
    values = rows.select([*columns, "rating"]).take(pa.array(equal_r)).to_pylist()
    for place, pair, row in zip(equal_r.tolist(), pair_r[equal_r].tolist(), values, strict=True):
        order = _order(row)
        if pair not in best or order > best[pair][0]:  # type: ignore[operator]
            best[pair] = (order, place)
    return [place for _, place in best.values()]


def _order(row: dict[str, object]) -> tuple[object, ...]:
    """As Spark orders a struct: what is missing comes first."""
    attributes = row.get("attributes")
    values = None if attributes is None else [_nullable(value) for _, value in attributes]  # type: ignore[attr-defined]
    return (_nullable(row.get("part")), _nullable(values))


def _nullable(value: object) -> tuple[object, ...]:
    return (False,) if value is None else (True, value)
