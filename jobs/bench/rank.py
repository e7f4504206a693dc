"""Rank frames on Spark by one model, in one shuffle.

A pass over many models does the same (`shuffle`).
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.evaluation.shuffle import PassInputs, count_tasks, list_sides, to_member
from recbench_spark.evaluation.task import RankedAlone, rank_sides
from recbench_spark.evaluation.task_devices import choose_device
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.schemas import RANKINGS
from recbench_spark.storage.blocks import deal_sides
from recbench_spark.storage.frame_blocks import make_frame_rows
from recbench_spark.storage.spark_types import spark_schema

RANKING = T.StructType([column for column in spark_schema(RANKINGS) if column.name != "run_id"])
"""The schema of `rankings` without its run column."""


def rank(spark: SparkSession, inputs: PassInputs, request: RankingRequest) -> DataFrame:
    """Rank users' truth items by one model or its lists.

    Shuffles users and their candidates, vectors or lists by user once, in blocks. A task holds its users,
    for models also one tile of scores, and maps the item side (one copy per host).

    Args:
        spark: the session.
        inputs: users and a model or lists.
        request: definition, list length, largest rank to count.

    Returns:
        Rows of `rankings` without a run.
    """
    engine = SparkEngine(spark)
    (ranked,) = inputs.ranked
    member, rule = to_member("", ranked, request), inputs.candidates and inputs.candidates.rule
    work = RankedAlone(request, choose_device(engine), rule)
    dealt = deal_sides(engine, list_sides(inputs, request), count_tasks(engine, [member], inputs.n_users))
    rankings = dealt.then(partial(rank_sides, member=member, work=work), tuple(RANKING.names))
    return make_frame_rows(spark, rankings, RANKING)
