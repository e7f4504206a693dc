"""Tasks over inputs that are partitioned by user: truth, training rows and lists.

Functions of Arrow batches partition the rows. Where all rows of a user are in one task, they count what
checks and catalogue need, build the rows of `USERS` and rank the users. They call the same functions as the
local engine (`ground_truth`, `ranking.given`).
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
    count_common_pairs,
    count_pairs,
    distinct_pairs,
)
from recbench_spark.data.arrow_rows import IDS_TYPE, combine_column, distinct_ids, find_indices
from recbench_spark.evaluation.ranking.given import add_lists, rank_batches
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking_counts import count_gaps
from recbench_spark.kernels.arrays import Ints
from recbench_spark.kernels.hashed_ids import hash_ids
from recbench_spark.kernels.ids import CANONICAL_INTEGER
from recbench_spark.kernels.streams import Batches, chunks
from recbench_spark.protocol.popularity import label_popularity
from recbench_spark.schemas import IDS
from recbench_spark.storage.packed_blocks import buffer_rows, pack_batch, unpack_blocks

LISTED, TRAIN, TRUTH = 0, 1, 2
"""Kinds of rows in a block: rows of lists or scores, training rows, rows of the truth."""

VALUES = {"rank": pa.int64(), "score": pa.float64(), "rating": pa.float64()}
"""Types of the columns beside the ids."""

PACKED = "task INT, rows BINARY, holds INT"
"""Columns of a block: its task, its rows, and their kind."""

COUNT_SCHEMA = pa.schema(
    {
        "item_id": pa.string(),
        **dict.fromkeys(("listed", "train", "truth"), pa.int64()),
        "sums": pa.map_(pa.string(), pa.int64()),
    }
)
"""One row per item of a task: rows that list it, distinct pairs of training and of the truth. And one row
per task with NULL for the item: sums over its users, who belong to no other task."""

BATCH_USERS = 4096
"""Users per batch."""


@dataclass(frozen=True)
class TaskCatalogue:
    """The catalogue as tasks see it, and the bounds of its popularity classes.

    lookup: look-up of ids; bounds: training counts from which items are torso and head, None without
    training rows.
    """

    lookup: KnownItems
    bounds: tuple[int, int] | None

    def items(self, ids: pa.Array) -> CatalogueItems:
        """Return these items of the catalogue, in the order of the catalogue."""
        index, n_train = self.lookup.find(ids)
        order = np.argsort(index)
        labels = None if self.bounds is None else label_popularity(n_train[order], self.bounds)
        return CatalogueItems(ids.take(pa.array(order)), index[order], labels)


# ----------------------------------------------------------------------------------- partitioning


def partition_rows(tasks: int, holds: int, batches: Batches) -> Batches:
    """Pack rows into blocks (PACKED) by Spark's `xxhash64` of the user's id as text, as `blocks` does.

    Args:
        tasks: number of tasks.
        holds: kind of the rows.
        batches: user_id (text, or whole numbers) and other columns.
    """
    for table in chunks(batches, buffer_rows(tasks)):
        codes = table.column("user_id").combine_chunks().dictionary_encode()
        # This equals Spark's pmod of the hash, which is a signed number.
        hash_d = hash_ids(codes.dictionary.cast(pa.string())).view(np.int64)
        task_d = np.mod(hash_d, tasks).astype(np.int32)
        packed = pack_batch(table, task_d[codes.indices.to_numpy()])
        kind = pa.repeat(pa.scalar(holds, pa.int32()), packed.num_rows)
        yield packed.append_column("holds", kind)


def unpack_tables(batches: Batches, values: Mapping[int, tuple[str, ...]]) -> dict[int, pa.Table]:
    """Return the tables of a task by kind, with ids as text in a dictionary.

    Args:
        batches: rows of PACKED.
        values: for each kind of rows, the columns beside the ids.
    """
    blocks: dict[int, list[pa.Buffer]] = {holds: [] for holds in values}
    for batch in batches:
        for holds, rows in zip(batch.column("holds").to_pylist(), batch.column("rows"), strict=True):
            blocks[holds].append(rows.as_buffer())
    return {
        holds: _convert_table(unpack_blocks(blocks.pop(holds)), names) for holds, names in values.items()
    }


def _convert_table(rows: pa.Table | None, values: tuple[str, ...]) -> pa.Table:
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
    """Count a task's rows: rows of COUNT_SCHEMA.

    Args:
        values: as in `unpack_tables`.
        batches: rows of PACKED.
    """
    tables = unpack_tables(batches, values)
    users, items = (distinct_ids([table.column(name) for table in tables.values()]) for name in IDS)
    truth, train = (distinct_pairs(tables[holds], users, items) for holds in (TRUTH, TRAIN))
    rows, (pairs, dropped) = tables[LISTED], train
    user_r, item_r = (
        find_indices(rows.column("user_id"), users),
        find_indices(rows.column("item_id"), items),
    )
    yield _item_counts(items, (item_r, pairs.item_r, truth[0].item_r))
    sums = {"truth dropped": truth[1], "train dropped": dropped, **_user_counts(tables)}
    n = len(items)
    sums |= {"truth pairs": len(truth[0].user_r), "truth trained": count_common_pairs(truth[0], pairs, n)}
    sums |= count_pairs(user_r * n + item_r, pairs.user_r * n + pairs.item_r)
    if "rank" in rows.column_names:
        sums["gaps"] = count_gaps(user_r, rows.column("rank").to_numpy())
    yield pa.RecordBatch.from_pylist([{"sums": list(sums.items())}], schema=COUNT_SCHEMA)


def _item_counts(items: pa.Array, places: Sequence[Ints]) -> pa.RecordBatch:
    counts = [pa.array(np.bincount(item_r, minlength=len(items))) for item_r in places]
    sums = pa.nulls(len(items), COUNT_SCHEMA.field("sums").type)
    return pa.RecordBatch.from_arrays([items, *counts, sums], schema=COUNT_SCHEMA)


def _user_counts(tables: Mapping[int, pa.Table]) -> dict[str, int]:
    """Count the users of each table, those whose ids are whole numbers, and those with truth."""
    counts = {}
    truth = distinct_ids([tables[TRUTH].column("user_id")])
    for holds, name in ((LISTED, "listed"), (TRAIN, "train"), (TRUTH, "truth")):
        users = distinct_ids([tables[holds].column("user_id")])
        numbers = pc.match_substring_regex(users, CANONICAL_INTEGER)
        counts[f"{name} users"] = len(users)
        counts[f"{name} numbers"] = pc.sum(numbers, min_count=0).as_py()
        counts[f"{name} common"] = pc.sum(pc.is_in(users, value_set=truth), min_count=0).as_py()
    return counts


# ------------------------------------------------------------------------------ users and their rankings


def build_users(
    catalogue: TaskCatalogue, values: Mapping[int, tuple[str, ...]], batches: Batches
) -> Batches:
    """Build the rows of `USERS`: users of the truth, with their training items as `masked`."""
    yield from _user_table(catalogue, unpack_tables(batches, values)).to_batches(BATCH_USERS)


def rank_users(
    catalogue: TaskCatalogue,
    request: RankingRequest,
    mask: bool,
    values: Mapping[int, tuple[str, ...]],
    batches: Batches,
) -> Batches:
    """Rank the users of the truth by their lists or scores: rows of `RANKED_USERS`.

    Args:
        catalogue: the catalogue.
        request: definition and length of lists.
        mask: drop a user's training items from the lists.
        values: as `unpack_tables` takes them.
        batches: rows of PACKED.
    """
    tables = unpack_tables(batches, values)
    users, rows = _user_table(catalogue, tables), tables[LISTED]
    user_r = find_indices(rows.column("user_id"), combine_column(users.column("user_id")))
    listed = rows.column("item_id").combine_chunks()
    # Every listed item is in the catalogue.
    keys_r = catalogue.lookup.find(listed.dictionary)[0][listed.indices.to_numpy()]
    if request.top:
        rows = rows.set_column(1, "item_id", combine_column(rows.column("item_id")))
    listed = add_lists(users if mask else users.drop_columns("masked"), user_r, keys_r, rows, request)
    yield from rank_batches(request, iter(listed.combine_chunks().to_batches(BATCH_USERS)))


def _user_table(catalogue: TaskCatalogue, tables: Mapping[int, pa.Table]) -> pa.Table:
    truth, train = tables[TRUTH], tables[TRAIN]
    truth_users = distinct_ids([truth.column("user_id")])
    # Users of the truth come first; the others get no row.
    all_users = distinct_ids([truth_users, train.column("user_id")])
    items = catalogue.items(distinct_ids([truth.column("item_id"), train.column("item_id")]))
    parts: list[InteractionPairs] = [
        distinct_pairs(table, all_users, items.ids)[0] for table in (truth, train)
    ]
    return build_user_table(truth_users, parts[0], parts[1], items)
