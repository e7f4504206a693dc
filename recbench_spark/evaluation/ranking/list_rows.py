"""Given lists and scores as rows, in blocks: a task holds all rows of its users, and Java none of them.

Spark groups, joins and sorts a row at a time; here tasks deal the rows out by user, and whoever holds a
user's rows counts them, finds what stands twice, and ranks the user by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.blocks import (
    PACKED,
    chunks,
    content,
    dealt_by,
    dealt_out,
    rows_dealt,
    tasks_for,
    unpacked,
)
from recbench_spark.evaluation.ranking.given import rank_batches, with_lists
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.rank import RANKING, needed
from recbench_spark.evaluation.ranking.request import Request
from recbench_spark.kernels.arrays import Ints

Batches = Iterator[pa.RecordBatch]

IDS = ("user_id", "item_id")

COUNTED = "of STRING, id STRING, n BIGINT, twice BIGINT, trained BIGINT"
"""A user or an item of a task: its rows; of users also those whose pair stood before, or in training."""

USERS_A_BATCH = 4096
"""Users ranked at once."""

ROWS, TRAIN, USERS = 0, 1, 2
"""What a block holds: rows that were given, training rows, users."""

BEYOND = np.uint64(1 << 32)
"""Keys of items that are not in the catalogue begin here."""


@dataclass(frozen=True)
class ListRows:
    """Rows of lists or scores, dealt out by user; kept, since they are counted before they are ranked.

    Attributes:
        packed: blocks (PACKED and what they hold), those of one user in one partition.
        tasks: how many partitions.
        notes: metadata of the ids' columns as they were stored.
        values: the columns beside the ids.
    """

    packed: DataFrame
    tasks: int
    notes: Mapping[str, dict[str, Any]]
    values: tuple[str, ...]

    @classmethod
    def of(cls, rows: DataFrame, train: DataFrame | None = None) -> ListRows:
        """Deal the rows out: one shuffle of blocks. A task holds about `blocks.ROWS_A_TASK` rows.

        Args:
            rows: user_id, item_id (text, or whole numbers), and rank or score.
            train: user_id, item_id of rows that lists should not recommend again; None: not looked at.
        """
        tasks = tasks_for(rows.sparkSession, rows.count())
        packed = _marked(_dealt(rows, tasks), ROWS)
        if train is not None:
            packed = packed.union(_marked(_dealt(train.select(*IDS), tasks), TRAIN))
        notes = {name: rows.schema[name].metadata for name in IDS}
        values = tuple(name for name in rows.columns if name not in IDS)
        return cls(packed.repartitionById(tasks, F.col("task")).cache(), tasks, notes, values)

    @cached_property
    def counted(self) -> DataFrame:
        """Rows of COUNTED: each task's users, and each task's items."""
        return self.packed.mapInArrow(_count, COUNTED).cache()

    def distinct(self, name: str) -> DataFrame:
        """The users (each once) or items (once a task) of the rows, as a column of that name, and `n`."""
        there = self.counted.where((F.col("of") == name) & (F.col("n") > 0))
        return there.select(F.col("id").alias(name, metadata=self.notes[name]), "n")

    def sums(self) -> tuple[int, int, int]:
        """Rows; those whose pair stood before; those whose pair is one of training."""
        of_users = self.counted.where(F.col("of") == "user_id")
        (row,) = of_users.agg(
            *(F.coalesce(F.sum(x), F.lit(0)) for x in ("n", "twice", "trained"))
        ).collect()
        return int(row[0]), int(row[1]), int(row[2])

    def ranked(self, users: DataFrame, known: KnownItems, request: Request, *, mask: bool) -> DataFrame:
        """Rankings of users by their rows. Shuffles the users, and the blocks as they are.

        Args:
            users: rows of `users_of_parts`.
            known: the catalogue.
            request: definition and length of lists.
            mask: drop a user's training items from the lists.
        """
        slim = needed(users, request, mask).withColumn("_key", F.xxhash64("user_id"))
        dealt = _marked(dealt_by(slim, F.col("_key"), self.tasks), USERS)
        rows = self.packed.where(F.col("holds") == ROWS)
        together = rows.union(dealt).repartitionById(self.tasks, F.col("task"))
        return together.mapInArrow(
            partial(_rank, known=known, request=request, values=self.values), RANKING
        )

    @property
    def kept(self) -> tuple[DataFrame, ...]:
        """What Spark holds of the rows."""
        return self.counted, self.packed


def _marked(packed: DataFrame, holds: int) -> DataFrame:
    return packed.select("task", "rows", F.lit(holds).alias("holds"))


def _dealt(rows: DataFrame, tasks: int) -> DataFrame:
    return rows.mapInArrow(partial(_deal, tasks=tasks), PACKED)


# --------------------------------------------------------------------------------- in a task


def _deal(batches: Batches, tasks: int) -> Batches:
    """Blocks of rows by Spark's `xxhash64` of the user's id as text, as `blocks` deals users out."""
    for table in chunks(batches, rows_dealt(tasks)):
        codes = table.column("user_id").combine_chunks().dictionary_encode()
        ids = codes.dictionary.cast(pa.string())
        # As Spark's pmod of the hash, which is a number with a sign.
        task_d = np.mod(_hashes(ids).view(np.int64), tasks).astype(np.int32)
        dealt, packed = zip(*dealt_out(table, task_d[codes.indices.to_numpy()]), strict=True)
        columns = [pa.array(dealt, pa.int32()), pa.array(packed, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "rows"])


def _held(batches: Batches) -> Callable[[int], pa.Table | None]:
    """The tables of a task, by what they hold."""
    blocks: dict[int, list[pa.Buffer]] = {}
    for batch in batches:
        for holds, rows in zip(batch.column("holds").to_pylist(), batch.column("rows"), strict=True):
            blocks.setdefault(holds, []).append(rows.as_buffer())
    return lambda holds: unpacked(blocks.pop(holds, []))


def _encoded(table: pa.Table, name: str) -> tuple[pa.Array, Ints]:
    """The distinct ids of a column as text, and the number of each row's."""
    codes = table.column(name).combine_chunks().dictionary_encode()
    return codes.dictionary.cast(pa.string()), codes.indices.to_numpy().astype(np.int64)


def _count(batches: Batches) -> Batches:
    held = _held(batches)
    rows, train = held(ROWS), held(TRAIN)
    if rows is None:
        return
    (users, user_r), (items, item_r) = (_encoded(rows, name) for name in IDS)
    pair_r = user_r << 32 | item_r
    again = np.zeros(len(pair_r), np.bool_)
    order = np.argsort(pair_r, kind="stable")
    again[order[1:]] = np.diff(pair_r[order]) == 0
    trained = np.isin(pair_r, _pairs(train, users, items)) if train is not None else np.zeros_like(again)
    yield _counts("user_id", users, user_r, again, trained)
    yield _counts("item_id", items, item_r, again, trained)


def _counts(of: str, ids: pa.Array, number_r: Ints, *flags: Any) -> pa.RecordBatch:
    numbers = [np.bincount(number_r, minlength=len(ids))]
    numbers += [np.bincount(number_r[flag], minlength=len(ids)) for flag in flags]
    columns = [pa.repeat(of, len(ids)), ids, *(pa.array(n.astype(np.int64)) for n in numbers)]
    return pa.RecordBatch.from_arrays(columns, ["of", "id", "n", "twice", "trained"])


def _pairs(train: pa.Table, users: pa.Array, items: pa.Array) -> Ints:
    """Training pairs as numbers of these users and items, without those that have another."""
    places = []
    for name, known in zip(IDS, (users, items), strict=True):
        ids, number_r = _encoded(train, name)
        places.append(pc.fill_null(pc.index_in(ids, value_set=known), -1).to_numpy()[number_r])
    user_r, item_r = (place.astype(np.int64) for place in places)
    there = (user_r >= 0) & (item_r >= 0)
    found: Ints = (user_r << 32 | item_r)[there]
    return found


def _rank(batches: Batches, known: KnownItems, request: Request, values: tuple[str, ...]) -> Batches:
    held = _held(batches)
    users, rows = held(USERS), held(ROWS)
    if users is None:
        return
    users = users.drop_columns(["_key"]).combine_chunks()
    rows = _nothing(values) if rows is None else rows
    ids, user_r = _encoded(rows, "user_id")
    place_d = pc.fill_null(pc.index_in(ids, value_set=users.column("user_id")), -1).to_numpy()
    items, item_r = _encoded(rows, "item_id")
    rows = rows.set_column(rows.column_names.index("item_id"), "item_id", items.take(pa.array(item_r)))
    listed = with_lists(users, place_d[user_r], _keys(items, known)[item_r], rows, request)
    yield from rank_batches(request, iter(listed.combine_chunks().to_batches(USERS_A_BATCH)))


def _nothing(values: tuple[str, ...]) -> pa.Table:
    kinds = {"rank": pa.int64(), "score": pa.float64()}
    schema = {**dict.fromkeys(IDS, pa.string()), **{name: kinds[name] for name in values}}
    return pa.schema(schema).empty_table()


def _keys(items: pa.Array, known: KnownItems) -> Ints:
    """The index of each item; of those outside the catalogue, a number beyond that tells them apart."""
    index_d, _ = known.find(items)
    return np.where(index_d >= 0, index_d, ((_hashes(items) >> np.uint64(2)) + BEYOND).view(np.int64))


def _hashes(ids: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Spark's `xxhash64` of distinct ids."""
    # Here: numba takes half a second to load, and the driver has no use for it.
    from recbench_spark.kernels import hashing  # noqa: PLC0415

    numbers = np.arange(len(ids), dtype=np.int32)
    return hashing.hash_texts(hashing.Texts(*content(ids)), numbers, hashing.start(len(ids)))
