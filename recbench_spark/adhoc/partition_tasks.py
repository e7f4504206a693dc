"""Truth, training rows and lists that were dealt out by user: what a task makes of those of its users.

Functions of Arrow batches: they deal rows out; and where all rows of a user lie together, count what the
checks and the catalogue want to know, make the rows of `USERS` and rank them. What they call is what an
evaluation in one process calls (`truth_tables`, `ranking.given`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.adhoc.ground_truth import (
    CatalogueItems,
    InteractionPairs,
    build_user_table,
    count_pairs,
    distinct_pairs,
    popularity_labels,
)
from recbench_spark.data.arrow_rows import IDS_TYPE, combine_column, distinct_ids, find_indices
from recbench_spark.evaluation.ranking.given import add_lists, rank_batches
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.arrays import Ints
from recbench_spark.kernels.hashed_ids import hash_ids
from recbench_spark.kernels.ids import CANONICAL_INTEGER
from recbench_spark.kernels.streams import Batches
from recbench_spark.schemas import IDS
from recbench_spark.storage.blocks import buffer_rows, chunks, pack_batch, unpack_blocks

LISTED, TRAIN, TRUTH = 0, 1, 2
"""What a block holds: rows of lists or scores, training rows, rows of the truth."""

VALUES = {"rank": pa.int64(), "score": pa.float64(), "rating": pa.float64()}
"""Columns beside the ids."""

PACKED = "task INT, rows BINARY, holds INT"
"""The task that a block goes to, its rows, and what they are."""

COUNT_SCHEMA = pa.schema(
    {
        "item_id": pa.string(),
        **dict.fromkeys(("listed", "train", "truth"), pa.int64()),
        "sums": pa.map_(pa.string(), pa.int64()),
    }
)
"""A row an item of a task: rows that list it, distinct pairs of training and of the truth. And a row a task
without an item: sums over its users, who are no other task's."""

BATCH_USERS = 4096
"""Users handed on, or ranked, at once."""


@dataclass(frozen=True)
class TaskCatalogue:
    """What tasks know of the whole: the catalogue, and from which training counts items are torso and head.

    bounds: None where there are no training rows, and no classes.
    """

    known: KnownItems
    bounds: tuple[int, int] | None

    def items(self, ids: pa.Array) -> CatalogueItems:
        """These items of the catalogue, in its order."""
        index, n_train = self.known.find(ids)
        order = np.argsort(index)
        labels = None if self.bounds is None else popularity_labels(n_train[order], self.bounds)
        return CatalogueItems(ids.take(pa.array(order)), index[order], labels)


# ------------------------------------------------------------------------------------ dealing out


def partition_rows(tasks: int, holds: int, batches: Batches) -> Batches:
    """Blocks of rows (PACKED) by Spark's `xxhash64` of the user's id as text, as `blocks` deals users out.

    Args:
        tasks: how many there are.
        holds: what the rows are.
        batches: user_id (text, or whole numbers), and what goes with it.
    """
    for table in chunks(batches, buffer_rows(tasks)):
        codes = table.column("user_id").combine_chunks().dictionary_encode()
        # As Spark's pmod of the hash, which is a number with a sign.
        hash_d = hash_ids(codes.dictionary.cast(pa.string())).view(np.int64)
        task_d = np.mod(hash_d, tasks).astype(np.int32)
        packed = pack_batch(table, task_d[codes.indices.to_numpy()])
        kind = pa.repeat(pa.scalar(holds, pa.int32()), packed.num_rows)
        yield packed.append_column("holds", kind)


def unpack_tables(batches: Batches, values: Mapping[int, tuple[str, ...]]) -> dict[int, pa.Table]:
    """The tables of a task by what they hold, ids as text, each once in a dictionary.

    Args:
        batches: rows of PACKED.
        values: of each kind of rows the columns beside the ids.
    """
    blocks: dict[int, list[pa.Buffer]] = {holds: [] for holds in values}
    for batch in batches:
        for holds, rows in zip(batch.column("holds").to_pylist(), batch.column("rows"), strict=True):
            blocks[holds].append(rows.as_buffer())
    return {holds: _typed_table(unpack_blocks(blocks.pop(holds)), names) for holds, names in values.items()}


def _typed_table(rows: pa.Table | None, values: tuple[str, ...]) -> pa.Table:
    schema = pa.schema({**dict.fromkeys(IDS, IDS_TYPE), **{name: VALUES[name] for name in values}})
    if rows is None:
        return schema.empty_table()
    return pa.table(
        [*(_dictionary_column(rows, name) for name in IDS), *rows.select(values).columns], schema=schema
    )


def _dictionary_column(rows: pa.Table, name: str) -> pa.Array:
    codes = combine_column(rows.column(name)).dictionary_encode()
    return pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast(pa.string()))


# --------------------------------------------------------------------------------------- counting


def count_rows(values: Mapping[int, tuple[str, ...]], batches: Batches) -> Batches:
    """Rows of COUNTED of a task's rows.

    Args:
        values: as `unpack_tables` takes them.
        batches: rows of PACKED.
    """
    tables = unpack_tables(batches, values)
    users, items = (distinct_ids([table.column(name) for table in tables.values()]) for name in IDS)
    truth, train = (distinct_pairs(tables[holds], users, items) for holds in (TRUTH, TRAIN))
    rows, (known, dropped) = tables[LISTED], train
    user_r, item_r = (
        find_indices(rows.column("user_id"), users),
        find_indices(rows.column("item_id"), items),
    )
    yield _item_counts(items, (item_r, known.item_r, truth[0].item_r))
    sums = {"truth dropped": truth[1], "train dropped": dropped, **_user_counts(tables)}
    n = len(items)
    sums |= count_pairs(user_r * n + item_r, known.user_r * n + known.item_r)
    yield pa.RecordBatch.from_pylist([{"sums": list(sums.items())}], schema=COUNT_SCHEMA)


def _item_counts(items: pa.Array, places: Sequence[Ints]) -> pa.RecordBatch:
    counts = [pa.array(np.bincount(item_r, minlength=len(items))) for item_r in places]
    sums = pa.nulls(len(items), COUNT_SCHEMA.field("sums").type)
    return pa.RecordBatch.from_arrays([items, *counts, sums], schema=COUNT_SCHEMA)


def _user_counts(tables: Mapping[int, pa.Table]) -> dict[str, int]:
    """Users of each table, how many are whole numbers, and how many have truth."""
    found = {}
    truth = distinct_ids([tables[TRUTH].column("user_id")])
    for holds, name in ((LISTED, "listed"), (TRAIN, "train"), (TRUTH, "truth")):
        users = distinct_ids([tables[holds].column("user_id")])
        numbers = pc.match_substring_regex(users, CANONICAL_INTEGER)
        found[f"{name} users"] = len(users)
        found[f"{name} numbers"] = pc.sum(numbers, min_count=0).as_py()
        found[f"{name} common"] = pc.sum(pc.is_in(users, value_set=truth), min_count=0).as_py()
    return found


# ------------------------------------------------------------------------------ users, and their ranks


def build_users(world: TaskCatalogue, values: Mapping[int, tuple[str, ...]], batches: Batches) -> Batches:
    """Rows of `USERS`: those of the truth, with their training items as `masked`."""
    yield from _user_table(world, unpack_tables(batches, values)).to_batches(BATCH_USERS)


def rank_users(
    world: TaskCatalogue,
    request: RankingRequest,
    mask: bool,
    values: Mapping[int, tuple[str, ...]],
    batches: Batches,
) -> Batches:
    """Rows of `RANKED`: the users of the truth by their lists or scores.

    Args:
        world: the catalogue.
        request: definition and length of lists.
        mask: drop a user's training items from the lists.
        values: as `unpack_tables` takes them.
        batches: rows of PACKED.
    """
    tables = unpack_tables(batches, values)
    found, rows = _user_table(world, tables), tables[LISTED]
    user_r = find_indices(rows.column("user_id"), combine_column(found.column("user_id")))
    listed = rows.column("item_id").combine_chunks()
    # Every listed item is in the catalogue.
    keys_r = world.known.find(listed.dictionary)[0][listed.indices.to_numpy()]
    if request.top:
        rows = rows.set_column(1, "item_id", combine_column(rows.column("item_id")))
    listed = add_lists(found if mask else found.drop_columns("masked"), user_r, keys_r, rows, request)
    yield from rank_batches(request, iter(listed.combine_chunks().to_batches(BATCH_USERS)))


def _user_table(world: TaskCatalogue, tables: Mapping[int, pa.Table]) -> pa.Table:
    truth, train = tables[TRUTH], tables[TRAIN]
    own = distinct_ids([truth.column("user_id")])
    # Those of the truth come first: the others have no row.
    every = distinct_ids([own, train.column("user_id")])
    items = world.items(distinct_ids([truth.column("item_id"), train.column("item_id")]))
    parts: list[InteractionPairs] = [distinct_pairs(table, every, items.ids)[0] for table in (truth, train)]
    return build_user_table(own, parts[0], parts[1], items)
