"""Where each user's truth items stand: one Arrow pass over user blocks, for every metric and every k.

The blocks of users meet the catalogue inside the worker, which maps the item side from one file a
host; no (user, item) row is ever made. Lists and score tables come as arrays, one row a user.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.definitions import Definition
from recbench_spark.evaluation.ranking.batches import RANKING, item_lists, ranking_batch
from recbench_spark.evaluation.ranking.sources import Source, ids_to_lists
from recbench_spark.kernels.ranking import lists as list_kernel
from recbench_spark.kernels.ranking.counting import Settings
from recbench_spark.kernels.ranking.devices import choose_device
from recbench_spark.kernels.ranking.memory import limit_memory
from recbench_spark.kernels.ranking.positives import Counts, ItemLists
from recbench_spark.kernels.ranking.scorers import Scorer, UserBlock, count_listed, count_ranks
from recbench_spark.shared_files import flat

Batches = Iterator[pa.RecordBatch]
GIVEN = ("rated", "given", "uniform", "popularity")
"""Candidate modes in which each user brings the candidates."""


@dataclass(frozen=True)
class Request:
    """What is ranked: the definition, how long the lists are that are asked for (0: none), and up to
    where ranks are counted (None: all; where users bring the candidates, always all).
    """

    definition: Definition
    top: int = 0
    cutoff: int | None = None


def users_of_parts(
    blocks: DataFrame, parts: Sequence[str], threshold: float | None, keep_empty: bool
) -> DataFrame:
    """The users of the held-out parts with the arrays that ranking needs: one row a user and part.

    Args:
        blocks: rows of `user_blocks` of one split.
        parts: valid, test, open_loop.
        threshold: rating from which a training item belongs to a user's history.
        keep_empty: keep users without truth (they count 0 under empty_users=zero).

    Returns:
        user_id, part, user_key, item_ids, items, relevance, slices, masked, history.
    """
    exploded = blocks.withColumn("part", F.explode(F.array(*(F.lit(part) for part in parts))))
    truth = F.col("held_out")[F.col("part")]
    kept = exploded if keep_empty else exploded.where(truth.isNotNull())
    # What validation holds out is known by the time of the test, and no longer to be recommended.
    valid = F.coalesce(F.col("held_out")["valid"]["items"], F.array().cast("array<int>"))
    # array_sort calls a comparator a pair; and nothing is sorted where nothing was held out to validate.
    known = F.when(F.size(valid) == 0, F.col("train_items")).otherwise(
        F.sort_array(F.concat("train_items", valid))
    )
    return kept.select(
        "user_id",
        "part",
        "user_key",
        *(_or_empty(truth[name], kind).alias(name) for name, kind in _TRUTH.items()),
        truth["slices"].alias("slices"),
        F.when(F.col("part") == "valid", F.col("train_items")).otherwise(known).alias("masked"),
        _history(threshold).alias("history"),
    )


_TRUTH = {"item_ids": "array<string>", "items": "array<int>", "relevance": "array<double>"}


def _or_empty(column: Column, kind: str) -> Column:
    return F.coalesce(column, F.array().cast(kind))


def _history(threshold: float | None) -> Column:
    """Training items whose rating makes them relevant."""
    if threshold is None:
        return F.expr("filter(train_items, (x, n) -> train_ratings[n] > 0)")
    return F.expr(f"filter(train_items, (x, n) -> train_ratings[n] >= {float(threshold)!r}D)")


# ------------------------------------------------------------------------------- scored by a model


def rank_scored(users: DataFrame, source: Source, request: Request) -> DataFrame:
    """Rankings of users by a model. No shuffle.

    A task holds a batch of users, one tile of scores, and maps the item side (one copy a host).

    Args:
        users: rows of `users_of_parts`; with `vector` for models of vectors, with `candidates`
            (item indices) where the definition's candidates are `given`.
        source: the model.
        request: definition and length of lists.
    """
    if not source.wants_history:  # as long as all other columns together
        users = users.drop("history")
    share = float(users.sparkSession.conf.get("spark.task.resource.gpu.amount", "1") or 1)
    return users.mapInArrow(partial(_score_batches, source, request, share), RANKING)


def _score_batches(source: Source, request: Request, gpu_share: float, batches: Batches) -> Batches:
    scorer, device = source.scorer(), task_device(gpu_share)
    item_ids = source.item_ids() if request.top else None
    for batch in batches:
        counts = _count(scorer, user_block(batch, source.dims), request, device, batch)
        top = None
        if item_ids is not None and counts.top_items_uk is not None:
            top = ids_to_lists(item_ids, counts.top_items_uk)
        yield _counted_batch(batch, counts, top)


def _count(
    scorer: Scorer, users: UserBlock, request: Request, device: str, batch: pa.RecordBatch
) -> Counts:
    truth, masked = item_lists(batch, "items"), item_lists(batch, "masked")
    mode = request.definition.candidates
    if mode in GIVEN:
        listed = truth if mode == "rated" else item_lists(batch, "candidates")
        counts = count_listed(scorer, users, truth, listed, top_k=request.top)
    else:
        nothing = ItemLists.empty(masked.users)
        out = masked if mode == "unseen" else nothing
        settings = Settings(top_k=request.top, cutoff=request.cutoff)
        counts = count_ranks(scorer, users, truth, out, device=device, settings=settings)
    return _without_unknown_users(batch, truth, counts)


def user_block(batch: pa.RecordBatch, dims: int) -> UserBlock:
    """What scorers may want to know of a batch's users."""
    vectors = None
    if "vector" in batch.schema.names:
        vectors = _matrix(batch.column("vector"), dims)
    keys = batch.column("user_key").to_numpy()
    histories = item_lists(batch, "history") if "history" in batch.schema.names else None
    return UserBlock(keys, vectors, histories)


def _matrix(column: pa.ListArray, dims: int) -> npt.NDArray[np.float32]:
    """Vectors of the model's width as rows; users without one get zeros and are taken out afterwards."""
    offsets, values = flat(column)
    known = np.diff(offsets) > 0
    vectors = np.zeros((len(known), dims), np.float32)
    vectors[known] = values.reshape(int(known.sum()), dims)
    return vectors


def _without_unknown_users(batch: pa.RecordBatch, truth: ItemLists, counts: Counts) -> Counts:
    """Users for whom the model has no vector get no list: nothing of theirs is ranked."""
    if "vector" not in batch.schema.names or not batch.column("vector").null_count:
        return counts
    known_u = batch.column("vector").is_valid().to_numpy(zero_copy_only=False)
    known_p = np.repeat(known_u, np.diff(truth.offsets_u))
    top = counts.top_items_uk
    return Counts(
        np.where(known_p, counts.above_p, -1),
        np.where(known_p, counts.tied_p, 0),
        np.where(known_p, counts.before_p, 0),
        np.where(known_u, counts.candidates_u, 0),
        None if top is None else np.where(known_u[:, None], top, -1),
        counts.top_scores_uk,
    )


def _counted_batch(batch: pa.RecordBatch, counts: Counts, top: pa.Array | None) -> pa.RecordBatch:
    offsets, relevance = flat(batch.column("relevance"))
    columns = {
        "item_ids": batch.column("item_ids").flatten(),
        "relevance": relevance,
        "above": counts.above_p,
        "tied": counts.tied_p,
        "before": counts.before_p,
    }
    return ranking_batch(batch, offsets, columns, counts.candidates_u, top)


def task_device(gpu_share: float = 1.0) -> str:
    """The GPU Spark gave to this task, else the CPU with as many threads as the task has cores.

    `gpu_share`: `spark.task.resource.gpu.amount`; below 1 the task keeps to its part of the memory.
    """
    context = TaskContext.get()
    resources = context.resources() if context else {}
    addresses = resources["gpu"].addresses if "gpu" in resources else []
    torch.set_num_threads(context.cpus() if context else 1)
    with warnings.catch_warnings():
        # A worker's warnings go to the executor's log; once a task is enough.
        warnings.simplefilter("once")
        device = choose_device(addresses)
    limit_memory(device, gpu_share)
    return str(device)


# ------------------------------------------------------------------------------- given lists


def as_lists(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Rows (user_id, item_id, rank or score) as one row a user. Shuffles the rows by user.

    Items that are not in the catalogue keep their place in the list; no truth item can be one.

    Args:
        rows: user_id, item_id, and rank (from 1) or score, or both (rank wins).
        items: item_id, item_index.

    Returns:
        user_id, list_items, list_ids, and list_ranks, list_scores where there are such columns.
    """
    index = items.select("item_id", F.col("item_index").cast("long").alias("index"))
    # Unknown items need a key of their own, beyond the catalogue, to tell them from each other.
    unknown = F.shiftrightunsigned(F.xxhash64("item_id"), 2) + F.lit(1 << 32)
    keyed = rows.join(index, "item_id", "left").withColumn("key", F.coalesce("index", unknown))
    rank = F.col("rank").cast("long") if "rank" in rows.columns else F.lit(None).cast("long")
    score = F.col("score").cast("double") if "score" in rows.columns else F.lit(None).cast("double")
    entry = F.struct("key", F.col("item_id").alias("id"), rank.alias("rank"), score.alias("score"))
    grouped = keyed.groupBy("user_id").agg(F.sort_array(F.collect_list(entry)).alias("entries"))
    return grouped.select(
        "user_id",
        F.transform("entries", lambda e: e["key"]).alias("list_items"),
        F.transform("entries", lambda e: e["id"]).alias("list_ids"),
        *(_values(name).alias(f"list_{name}s") for name in ("rank", "score") if name in rows.columns),
    )


def _values(name: str) -> Column:
    return F.transform("entries", lambda e: e[name])


def rank_given(users: DataFrame, lists: DataFrame, request: Request, mask: bool) -> DataFrame:
    """Rankings of users by given lists. Shuffles users and lists by user, one row each.

    Args:
        users: rows of `users_of_parts`.
        lists: rows of `as_lists`.
        request: definition and length of lists.
        mask: drop a user's training items from the lists (score tables), or leave them (lists).
    """
    return rank_listed(users.join(lists, "user_id", "left"), request, mask)


def rank_listed(users: DataFrame, request: Request, mask: bool) -> DataFrame:
    """As `rank_given`, where each user's row holds the list already. No shuffle; one batch in memory.

    Only the columns that are needed go to Python: ids of items are as long as all other columns.

    Args:
        users: rows of `users_of_parts` with the columns of `as_lists`.
        request: definition and length of lists.
        mask: drop a user's training items from the lists.
    """
    return needed(users, request, mask).mapInArrow(partial(rank_batches, request), RANKING)


def needed(users: DataFrame, request: Request, mask: bool) -> DataFrame:
    """The columns that `rank_batches` reads."""
    unused = ["history", *([] if mask else ["masked"]), *([] if request.top else ["list_ids"])]
    return users.drop(*unused)


def rank_batches(request: Request, batches: Batches) -> Batches:
    """Rows of `RANKING` of users with their lists; those with `masked` without these items."""
    for batch in batches:
        offsets, truth_items = flat(batch.column("items"))
        relevance = flat(batch.column("relevance"))[1]
        truth = list_kernel.Truth(offsets, truth_items.astype(np.int64), relevance)
        found = list_kernel.rank_lists(
            _lists(batch), truth, request.definition, _masked(batch), top=request.top
        )
        yield _listed_batch(batch, found)


def _masked(batch: pa.RecordBatch) -> list_kernel.Items | None:
    if "masked" not in batch.schema.names:
        return None
    masked = item_lists(batch, "masked")
    return list_kernel.Items(masked.offsets_u, masked.items_p)


def _lists(batch: pa.RecordBatch) -> list_kernel.Lists:
    offsets, keys = flat(batch.column("list_items"))
    values = {}
    for name in ("rank", "score"):
        if f"list_{name}s" in batch.schema.names:
            values[name] = flat(batch.column(f"list_{name}s"))[1]
    return list_kernel.Lists(offsets, keys.astype(np.int64), **values)


def _listed_batch(batch: pa.RecordBatch, found: list_kernel.RankedLists) -> pa.RecordBatch:
    rankings = found.rankings
    top = None
    if found.top is not None:
        ids = _ids_of(batch, found.top.keys)
        top = pa.ListArray.from_arrays(pa.array(found.top.offsets, pa.int32()), ids)
    columns = {
        "item_ids": batch.column("item_ids").flatten(),
        "relevance": rankings.relevance,
        "above": rankings.above,
        "tied": rankings.tied,
        "before": rankings.before,
    }
    return ranking_batch(batch, rankings.offsets, columns, rankings.length, top)


def _ids_of(batch: pa.RecordBatch, keys: npt.NDArray[np.int64]) -> pa.Array:
    """Original ids of keys that stand in the batch's lists."""
    known, first = np.unique(flat(batch.column("list_items"))[1], return_index=True)
    places = first[np.searchsorted(known, keys)] if len(known) else np.zeros(0, np.int64)
    return batch.column("list_ids").flatten().take(pa.array(places))
