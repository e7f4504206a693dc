"""Where each user's truth items stand: one Arrow pass over user blocks, for every metric and every k.

The blocks of users meet the catalogue inside the worker, which maps the item side from one file a
host; no (user, item) row is ever made. Lists and score tables come as arrays, one row a user. What is
done with a batch stands in `scored` and `given`, without Spark.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.evaluation.ranking.candidates import Candidates, add_candidates
from recbench_spark.evaluation.ranking.given import rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.kernels.streams import Batches
from recbench_spark.schemas import RANKINGS

RANKING = T.StructType([column for column in RANKINGS.schema if column.name != "run_id"])
"""Rows of the table `rankings` before they are given a run."""


@dataclass(frozen=True)
class ScoredModel:
    """A model that scores; `vectors`: user_id, vector of its users, where the source asks for vectors."""

    source: Source
    vectors: DataFrame | None = None


@dataclass(frozen=True)
class GivenRows:
    """Lists or scores of another system, which are their own candidates.

    rows: user_id, item_id, and rank (from 1) or score. items: the catalogue, item_id and item_index.
    mask: a user's training items are taken out (scores), or count as they are (lists).
    """

    rows: DataFrame
    items: DataFrame
    mask: bool


RankingInput = ScoredModel | GivenRows
"""What is ranked."""


def rank(
    users: DataFrame, ranked: RankingInput, request: RankingRequest, candidates: Candidates | None = None
) -> DataFrame:
    """Rankings of users: the one way from what a system knows to where the truth stands.

    Shuffles users, and what is joined to them, by user: candidates, vectors, lists, one row each. A task
    holds a batch of users, of models also one tile of scores, and maps the item side (one copy a host).

    Args:
        users: rows of `select_part_users`.
        ranked: a model, or given lists.
        request: definition, length of lists, up to where ranks are counted.
        candidates: what users' items are ranked among, where users bring it (models that score).

    Returns:
        Rows of `rankings` without a run.
    """
    if isinstance(ranked, GivenRows):
        lists = group_lists(ranked.rows, ranked.items)
        return rank_listed(users.join(lists, "user_id", "left"), request, ranked.mask)
    users = add_candidates(users, candidates)
    if ranked.vectors is not None:
        users = users.join(ranked.vectors.select("user_id", "vector"), "user_id", "left")
    if not ranked.source.wants_history:  # as long as all other columns together
        users = users.drop("history")
    share = float(users.sparkSession.conf.get("spark.task.resource.gpu.amount", "1") or 1)
    return users.mapInArrow(partial(_score_task, ranked.source, request, share), RANKING)


def _score_task(source: Source, request: RankingRequest, gpu_share: float, batches: Batches) -> Batches:
    return score_batches(source, request, batches, device=task_device(gpu_share))


def task_device(gpu_share: float = 1.0) -> str:
    """The GPU Spark gave to this task, else the CPU.

    `gpu_share`: `spark.task.resource.gpu.amount`; below 1 the task keeps to its part of the memory.
    """
    context = TaskContext.get()
    resources = context.resources() if context else {}
    if "gpu" not in resources:
        return "cpu"
    # Here: what is ranked without a GPU loads torch where it multiplies, and small work has no use for it.
    from recbench_spark.kernels.ranking.devices import choose_device  # noqa: PLC0415
    from recbench_spark.kernels.ranking.memory import limit_memory  # noqa: PLC0415

    with warnings.catch_warnings():
        # A worker's warnings go to the executor's log; once a task is enough.
        warnings.simplefilter("once")
        device = choose_device(resources["gpu"].addresses)
    limit_memory(device, gpu_share)
    return str(device)


# ------------------------------------------------------------------------------- users


def select_part_users(
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
        _relevant_history(threshold).alias("history"),
    )


_TRUTH = {"item_ids": "array<string>", "items": "array<int>", "relevance": "array<double>"}


def _or_empty(column: Column, kind: str) -> Column:
    return F.coalesce(column, F.array().cast(kind))


def _relevant_history(threshold: float | None) -> Column:
    """Training items whose rating makes them relevant."""
    if threshold is None:
        return F.expr("filter(train_items, (x, n) -> train_ratings[n] > 0)")
    return F.expr(f"filter(train_items, (x, n) -> train_ratings[n] >= {float(threshold)!r}D)")


# ------------------------------------------------------------------------------- given lists


def group_lists(rows: DataFrame, items: DataFrame) -> DataFrame:
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


def rank_listed(users: DataFrame, request: RankingRequest, mask: bool) -> DataFrame:
    """Rankings where each user's row holds the list already. No shuffle; one batch in memory.

    Only the columns that are needed go to Python: ids of items are as long as all other columns.

    Args:
        users: rows of `select_part_users` with the columns of `group_lists`.
        request: definition and length of lists.
        mask: drop a user's training items from the lists.
    """
    return required_columns(users, request, mask).mapInArrow(partial(rank_batches, request), RANKING)


def required_columns(users: DataFrame, request: RankingRequest, mask: bool) -> DataFrame:
    """The columns that `rank_batches` reads."""
    unused = ["history", *([] if mask else ["masked"]), *([] if request.top else ["list_ids"])]
    return users.drop(*unused)
