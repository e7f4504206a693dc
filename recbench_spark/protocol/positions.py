"""Rows numbered from the end of their user's order: the one shuffle of every split by user.

A window sorts whole rows by text, time and text in the JVM, after a pass that looks for duplicates. Here
rows are brought together by user without a sort; numpy looks for duplicates and finds each row's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.kernels.positions import positions_from_end, repeated

ROWS_A_TASK = 1 << 20
"""Rows numbered together, some 100 MB: the log is spread over as many tasks as this needs."""


@dataclass(frozen=True)
class Numbering:
    """Whose rows are numbered, and what decides between equal keys."""

    of: str
    within: str
    keep: str | None = None


def numbered(log: DataFrame, numbering: Numbering, key: Column) -> DataFrame:
    """Adds `position` from the end of the owner's order, from 1, and the owner's number of rows `n`.

    Rows that came with a part (an open loop, say) are no part of that order. Counts the log, then shuffles
    it by owner into as many partitions as give a task ROWS_A_TASK rows on average; a task holds its own.

    Args:
        log: interactions, one row a pair unless `numbering.keep` says which of them stays.
        numbering: owner, tie, duplicates.
        key: what rows are put in order by, a whole number.
    """
    spark = log.sparkSession
    tasks = max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), -(-log.count() // ROWS_A_TASK))
    together = log.withColumn("_key", F.coalesce(key, F.lit(0))).repartition(tasks, numbering.of)
    return together.mapInArrow(_task(numbering), T.StructType([*log.schema.fields, *_ADDED]))


_ADDED = (T.StructField("position", T.IntegerType()), T.StructField("n", T.IntegerType()))


def _task(numbering: Numbering):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if held:
            yield from _number(pa.Table.from_batches(held), numbering).to_batches(max_chunksize=1 << 16)

    return run


def _number(table: pa.Table, numbering: Numbering) -> pa.Table:
    table = table.combine_chunks()
    owner_r, tie_r = _ranks(table.column(numbering.of)), _ranks(table.column(numbering.within))
    if numbering.keep:
        kept_r = _kept(table, owner_r, tie_r, first=numbering.keep == "keep_first")
        if not kept_r.all():
            table, owner_r, tie_r = table.filter(pa.array(kept_r)), owner_r[kept_r], tie_r[kept_r]
    free_r = pc.is_null(table.column("part")).to_numpy().astype(np.int64)
    group_r = 2 * owner_r + free_r
    position_r, n_r = positions_from_end(group_r, table.column("_key").to_numpy(), tie_r)
    table = table.drop_columns(["_key"])
    for name, array_r in (("position", position_r), ("n", n_r)):
        table = table.append_column(name, pa.array(array_r, pa.int32()))
    return table


def _ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Each id's place among the distinct ids in the order of UTF-8 bytes."""
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    ranks: npt.NDArray[np.int64] = rank[encoded.indices.to_numpy()]
    return ranks


def _kept(
    table: pa.Table, owner_r: npt.NDArray[np.int64], tie_r: npt.NDArray[np.int64], *, first: bool
) -> npt.NDArray[np.bool_]:
    """One row of each pair, by the rule of `splits.without_duplicates`."""
    doubled_r = repeated(owner_r, tie_r)
    kept_r = ~doubled_r
    best: dict[tuple[int, int], tuple[object, int]] = {}
    places = np.flatnonzero(doubled_r)
    columns = [
        name for name in ("event_time", "rating", "part", "attributes") if name in table.column_names
    ]
    for place, row in zip(
        places.tolist(), table.select(columns).take(pa.array(places)).to_pylist(), strict=True
    ):
        pair = (int(owner_r[place]), int(tie_r[place]))
        order = _order(row, first=first)
        if pair not in best or order > best[pair][0]:  # type: ignore[operator]
            best[pair] = (order, place)
    kept_r[[place for _, place in best.values()]] = True
    return kept_r


def _order(row: dict[str, object], *, first: bool) -> tuple[object, ...]:
    """As Spark orders a struct: what is missing comes first."""
    time = int(row["event_time"] or 0)  # type: ignore[call-overload]
    attributes = row.get("attributes")
    values = None if attributes is None else [_nullable(value) for _, value in attributes]  # type: ignore[attr-defined]
    return (-time if first else time, row["rating"], _nullable(row["part"]), _nullable(values))


def _nullable(value: object) -> tuple[object, ...]:
    return (False,) if value is None else (True, value)
