"""Ranking on Spark: positions of each user's truth items, in one Arrow pass for every metric and every k.

Workers map the item side from one file per host and score blocks of users against it, so that no row per
(user, item) exists. Lists and score tables are arrays, one row per user. `scored` and `given` process the
batches, without Spark.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import read_setting
from recbench_spark.evaluation.batch_schemas import LISTED_USERS
from recbench_spark.evaluation.ranking.candidates import Candidates, add_candidates
from recbench_spark.evaluation.ranking.given import group_lists, rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.kernels.streams import Batches
from recbench_spark.schemas import RANKINGS
from recbench_spark.storage.frame_blocks import FrameBlocks, shuffle_blocks
from recbench_spark.storage.spark_types import spark_columns, spark_schema

RANKING = T.StructType([column for column in spark_schema(RANKINGS) if column.name != "run_id"])
"""Schema of the table `rankings` without the run."""


@dataclass(frozen=True)
class ScoredModel:
    """A model that scores; `vectors`: user_id, vector of its users, where the source needs vectors."""

    source: Source
    vectors: DataFrame | None = None


@dataclass(frozen=True)
class GivenRows:
    """Lists or scores of another system; the listed items are the candidates.

    rows: user_id, item_id, and rank (from 1) or score. items: the catalogue, item_id and item_index.
    mask: a user's training items are taken out (scores) or stay in the list (lists).
    """

    rows: DataFrame
    items: DataFrame
    mask: bool


RankingInput = ScoredModel | GivenRows
"""Input of a ranking: a model, or the output of another system."""


def rank(
    users: DataFrame, ranked: RankingInput, request: RankingRequest, candidates: Candidates | None = None
) -> DataFrame:
    """Rank users' truth items by a model or by lists; all rankings on Spark are made here.

    Shuffles users and their candidates, vectors or lists by user, one row each. A task holds a batch of
    users, for models also one tile of scores, and maps the item side (one copy per host).

    Args:
        users: rows of `select_part_users`.
        ranked: a model, or lists of another system.
        request: definition, length of lists, largest rank that is counted.
        candidates: candidates of each user, for models that score; None: the catalogue.

    Returns:
        Rows of `rankings` without a run.
    """
    if isinstance(ranked, GivenRows):
        listed = users.join(group_rows(ranked, request), "user_id", "left")
        unused = ["history", *([] if ranked.mask else ["masked"])]
        return listed.drop(*unused).mapInArrow(partial(rank_batches, request), RANKING)
    users = add_candidates(users, candidates)
    if ranked.vectors is not None:
        users = users.join(ranked.vectors.select("user_id", "vector"), "user_id", "left")
    if not ranked.source.wants_history:  # as long as all other columns together
        users = users.drop("history")
    share = read_gpu_share(users.sparkSession)
    return users.mapInArrow(partial(_score_task, ranked.source, request, share), RANKING)


def _score_task(source: Source, request: RankingRequest, gpu_share: float, batches: Batches) -> Batches:
    return score_batches(source, request, batches, device=task_device(gpu_share))


def read_gpu_share(spark: SparkSession) -> float:
    """Return the share of a GPU that each task has, as Spark's settings say."""
    return float(read_setting(spark, "spark.task.resource.gpu.amount") or 1)


def task_device(gpu_share: float = 1.0) -> str:
    """Return the GPU that Spark assigned to this task, else the CPU.

    `gpu_share`: `spark.task.resource.gpu.amount`; below 1 the task uses its share of the GPU's memory.
    """
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    resources = context.resources() if context else {}
    if "gpu" not in resources:
        return "cpu"
    # Without a GPU torch is loaded where scores are multiplied, and small work does not need it at all.
    from recbench_spark.kernels.ranking.devices import choose_device  # noqa: PLC0415
    from recbench_spark.kernels.ranking.memory import limit_memory  # noqa: PLC0415

    with warnings.catch_warnings():
        # Warnings of a worker go to the executor's log; one per task is enough.
        warnings.simplefilter("once")
        device = choose_device(resources["gpu"].addresses)
    limit_memory(device, gpu_share)
    return str(device)


# ------------------------------------------------------------------------------- lists of other systems


def key_lists(ranked: GivenRows, request: RankingRequest) -> DataFrame:
    """Return the rows of lists with a number for each item, for `given.group_lists`.

    Items outside of the catalogue keep their place in the list; they are never truth items.

    Returns:
        user_id, key, item_id where lists are requested, rank and score where the rows have them.
    """
    index = ranked.items.select("item_id", F.col("item_index").cast("long").alias("index"))
    # Unknown items get keys beyond the catalogue, so that they stay distinct.
    unknown = F.shiftrightunsigned(F.xxhash64("item_id"), 2) + F.lit(1 << 32)
    keyed = ranked.rows.join(index, "item_id", "left").withColumn("key", F.coalesce("index", unknown))
    casts = {"rank": "long", "score": "double"}
    values = (F.col(name).cast(casts[name]).alias(name) for name in casts if name in keyed.columns)
    return keyed.select("user_id", "key", *(["item_id"] if request.top else []), *values)


def list_columns(ranked: GivenRows, request: RankingRequest) -> pa.Schema:
    """Return the columns that `given.group_lists` makes of the rows of lists."""
    names = {"list_items", *(["list_ids"] if request.top else [])}
    names |= {f"list_{name}s" for name in ("rank", "score") if name in ranked.rows.columns}
    return pa.schema([field for field in LISTED_USERS if field.name in names])


def group_rows(ranked: GivenRows, request: RankingRequest) -> DataFrame:
    """Return one row for each user with a list. Shuffles the rows by user, in blocks."""
    rows = key_lists(ranked, request)
    packed = shuffle_blocks(rows, F.xxhash64("user_id"), SparkEngine(rows.sparkSession).count_tasks(0))
    schema = pa.schema([LISTED_USERS.field("user_id"), *list_columns(ranked, request)])
    return FrameBlocks(packed, group_lists, tuple(schema.names), schema=spark_columns(schema)).rows()
