"""Count and number a labelled log's items, without Spark.

Work goes piece by piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.sources.dealt_ids import deal_table
from recbench_spark.splits.labels import TRAIN
from recbench_spark.splits.popularity import class_bounds, find_bounds, label_popularity
from recbench_spark.splits.positions import encode_ids, id_column, name_parts
from recbench_spark.storage.blocks import PieceRows, Rows
from recbench_spark.storage.packed_blocks import Block, partition_rows

MOST_ITEMS = 1 << 20
"""Items that one process counts and numbers, some 100 MB; tasks do it for larger catalogues."""

COUNTED = ("item_id", "n_train")
NUMBERED = (*COUNTED, "item_index", "popularity")

SAMPLED = 64
"""Ids that each task names, to cut all ids into ranges."""

NO_ITEMS = pa.schema([("item_id", pa.string()), ("n_train", pa.int64())]).empty_table()


class Catalogue(NamedTuple):
    """A split's item rows, their number, and its popularity bounds.

    The rows are those in `items` without the split.
    """

    rows: Any
    n: int
    bounds: tuple[int, int]


def count_catalogue(rows: PieceRows, numeric: bool) -> Catalogue | None:
    """Build one row per item, for at most MOST_ITEMS items.

    Columns are item_id, item_index, n_train, popularity. Tasks count the items in their pieces, and the
    driver adds them up and numbers them.

    Args:
        rows: the labelled log.
        numeric: true if ids sort as numbers.
    """
    counts = rows.reduce(("item_id", "part"), count_tables, _add_pair)
    if counts is None:
        return None
    items, bounds = number_items(counts, numeric)
    return Catalogue(items, len(items), bounds)


class Ranges(NamedTuple):
    """Cuts between ranges of ids, as numbers or texts.

    A cut is the begin of each range but the first. Texts sort by UTF-8 bytes.
    """

    cuts: npt.NDArray[Any]
    numeric: bool

    def list_keys(self, counts: pa.Table) -> npt.NDArray[Any]:
        """Return the values by which items are ordered, (i,)."""
        ids = counts.column("item_id")
        return np.array((ids.cast(pa.int64()) if self.numeric else ids).to_pylist(), object)

    def find(self, counts: pa.Table) -> Ints:
        """Return each item's range, (i,)."""
        return np.searchsorted(self.cuts, self.list_keys(counts), "right")


@contextmanager
def number_by_tasks(rows: Rows, numeric: bool, tasks: int) -> Iterator[Catalogue]:
    """Build `count_catalogue` in tasks, for any number of items.

    The tasks work on any runner, with two shuffles: counts by item, and items by ranges of ids. The driver
    holds some ids from each task, and the distinct training counts, at most sqrt(2 rows) numbers. The rows
    can be read within the context.
    """
    dealt = rows.deal(("item_id", "part"), partial(_deal_counts, tasks=tasks), tasks)
    with dealt.then(partial(_add_two, NO_ITEMS), COUNTED).keep() as counted:
        ranges = Ranges(np.zeros(0, object), numeric)
        keys = np.sort(np.concatenate([ranges.cuts, *counted.each(partial(_sample_keys, ranges=ranges))]))
        ranges = Ranges(keys[len(keys) * np.arange(1, tasks) // tasks] if len(keys) else keys, numeric)
        with counted.deal(partial(_deal_ranges, ranges=ranges), tasks).keep() as ordered:
            facts = sorted(ordered.each(partial(_count_range, ranges=ranges)))
            sizes = [n for _, n, _ in facts]
            starts = dict(zip((place for place, *_ in facts), accumulate([0, *sizes]), strict=False))
            items = sum((Counter(trained) for *_, trained in facts), start=Counter[int]())
            bounds = class_bounds(sorted(items), [items[n] for n in sorted(items)])
            number = partial(_number_range, ranges=ranges, starts=starts, bounds=bounds)
            yield Catalogue(ordered.then(number, NUMBERED), sum(sizes), bounds)


def _deal_counts(tables: Iterable[pa.Table], tasks: int) -> Iterator[Block]:
    yield from deal_table(map(count_items, tables), "item_id", tasks)


def _sample_keys(counts: pa.Table, ranges: Ranges) -> npt.NDArray[Any]:
    keys = np.sort(ranges.list_keys(counts))
    return keys[len(keys) * np.arange(SAMPLED) // SAMPLED]


def _deal_ranges(tables: Iterable[pa.Table], ranges: Ranges) -> Iterator[Block]:
    for counts in tables:
        yield from partition_rows(counts.combine_chunks(), ranges.find(counts))


def _count_range(counts: pa.Table, ranges: Ranges) -> tuple[int, int, dict[int, int]]:
    """Return a range's number, its items, and their histogram.

    The histogram counts items by training count above 0.
    """
    n_train_i = counts.column("n_train").to_numpy()
    values, items = np.unique(n_train_i[n_train_i > 0], return_counts=True)
    trained = dict(zip(values.tolist(), items.tolist(), strict=True))
    return int(ranges.find(counts.slice(0, 1))[0]), len(counts), trained


def _number_range(
    counts: pa.Table, ranges: Ranges, starts: Mapping[int, int], bounds: tuple[int, int]
) -> pa.Table:
    return _number(counts, ranges.numeric, bounds, starts[int(ranges.find(counts.slice(0, 1))[0])])


def count_tables(tables: Iterable[pa.Table]) -> pa.Table | None:
    """Count the items in some labelled rows, as `add_counts`."""
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
    """Add up counts; None beyond MOST_ITEMS items."""
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
    """Return rows for `items` in tie order, and `class_bounds`.

    Args:
        counts: item_id and n_train, each item once.
        numeric: true if ids sort as numbers, else by UTF-8 bytes.
    """
    bounds = find_bounds(counts.column("n_train").to_numpy())
    return _number(counts, numeric, bounds), bounds


def _number(counts: pa.Table, numeric: bool, bounds: tuple[int, int], start: int = 0) -> pa.Table:
    ids = counts.column("item_id").combine_chunks()
    ordered = counts.take(pc.sort_indices(ids.cast(pa.int64()) if numeric else ids))
    index = pa.array(np.arange(start, start + len(ordered), dtype=np.int32))
    classes = pa.array(label_popularity(ordered.column("n_train").to_numpy(), bounds))
    return ordered.append_column("item_index", index).append_column("popularity", classes)
