"""Count and number a labelled log's items, piece by piece: functions on Arrow tables, no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.protocol.labels import TRAIN
from recbench_spark.protocol.popularity import find_bounds, label_popularity
from recbench_spark.protocol.positions import encode_ids, id_column, name_parts
from recbench_spark.storage.blocks import PieceRows

MOST_ITEMS = 1 << 20
"""Items that one process counts and numbers, some 100 MB; Spark does it for larger catalogues."""

NO_ITEMS = pa.schema([("item_id", pa.string()), ("n_train", pa.int64())]).empty_table()


class Catalogue(NamedTuple):
    """Rows of `items` without the split, their number, and where classes of popularity begin."""

    rows: Any
    n: int
    bounds: tuple[int, int]


def count_catalogue(rows: PieceRows, numeric: bool) -> Catalogue | None:
    """Build one row per item: item_id, item_index, n_train, popularity; None beyond MOST_ITEMS items.

    Tasks count the items of their pieces, and the driver adds them up and numbers them.

    Args:
        rows: the labelled log.
        numeric: true if ids are ordered as numbers.
    """
    counts = rows.reduce(("item_id", "part"), count_tables, _add_pair)
    if counts is None:
        return None
    items, bounds = number_items(counts, numeric)
    return Catalogue(items, len(items), bounds)


def count_tables(tables: Iterable[pa.Table]) -> pa.Table | None:
    """Count the items of some labelled rows, as `add_counts`."""
    return add_counts(map(count_items, tables))


def count_items(rows: pa.Table) -> pa.Table:
    """Count each item's training rows: item_id, n_train."""
    items = id_column(encode_ids(rows), "item_id")
    item_r, n_items = items.indices.to_numpy(), len(items.dictionary)
    names, part_r = name_parts(rows)
    in_train_r = part_r == (names.index(TRAIN) if TRAIN in names else -1)
    # A file's dictionary may name items whose rows were dropped.
    there_x = np.bincount(item_r, minlength=n_items) > 0
    n_train_x = np.bincount(item_r[in_train_r], minlength=n_items)
    counts = pa.table({"item_id": items.dictionary, "n_train": pa.array(n_train_x.astype(np.int64))})
    return counts.filter(pa.array(there_x))


def add_counts(counts: Iterable[pa.Table | None]) -> pa.Table | None:
    """Add up counts; None if they name more than MOST_ITEMS items."""
    total = NO_ITEMS
    for one in counts:
        if one is None:
            return None
        total = _add_two(total, one)
        if len(total) > MOST_ITEMS:
            return None
    return total


def _add_pair(one: pa.Table | None, other: pa.Table | None) -> pa.Table | None:
    return add_counts([one, other])


def _add_two(one: pa.Table, other: pa.Table) -> pa.Table:
    summed = pa.concat_tables([one, other]).group_by("item_id").aggregate([("n_train", "sum")])
    return summed.select(["item_id", "n_train_sum"]).rename_columns(["item_id", "n_train"])


def number_items(counts: pa.Table, numeric: bool) -> tuple[pa.Table, tuple[int, int]]:
    """Return rows for `items` in tie order, and their `class_bounds`.

    Args:
        counts: item_id and n_train, each item once.
        numeric: true if ids are ordered as numbers, else by UTF-8 bytes.
    """
    ids = counts.column("item_id").combine_chunks()
    ordered = counts.take(pc.sort_indices(ids.cast(pa.int64()) if numeric else ids))
    n_train = ordered.column("n_train").to_numpy()
    bounds = find_bounds(n_train)
    index = pa.array(np.arange(len(ordered), dtype=np.int32))
    classes = pa.array(label_popularity(n_train, bounds))
    return ordered.append_column("item_index", index).append_column("popularity", classes), bounds
