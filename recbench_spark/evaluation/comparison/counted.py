"""Numbers of a model and night that several runs have: each is compared by the run whose number counts.

A model that was evaluated again with other metrics has two runs, and either has numbers that count (the
view `current_metrics`). One of them stands for the model and night in a plan. `gather_rows` gives it the
rows of all these numbers, and `name_owners` puts the run that owns a number back into the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

WHOLE_RANKING = 0
"""Stands for NULL, the whole ranking, where cut-offs are looked up."""

_NUMBER = ("part", "metric", "definition")


@dataclass(frozen=True, order=True)
class CountedNumber:
    """A number of a model and night that has several runs.

    Attributes:
        run_id: the run that stands for the model and night.
        owner: the run whose number counts.
        part, metric, definition: as in the table `metrics`.
        k: cut-off; WHOLE: the whole ranking.
    """

    run_id: str
    owner: str
    part: str
    metric: str
    definition: str
    k: int


_TYPES = "run_id STRING, owner STRING, part STRING, metric STRING, definition STRING, k INT"


def gather_rows(user_metrics: DataFrame, numbers: Sequence[CountedNumber]) -> DataFrame:
    """Return rows of `user_metrics` in which every number stands under one run of its model and night.

    Rows of runs that share no numbers stay as they are. Nothing is shuffled: the numbers are broadcast.

    Args:
        user_metrics: rows of the table, of any runs.
        numbers: of each model and night that has several runs, all that count.
    """
    if not numbers:
        return user_metrics
    shared = sorted({run_id for number in numbers for run_id in (number.run_id, number.owner)})
    standing = _numbers_frame(user_metrics.sparkSession, numbers).withColumnRenamed("run_id", "standing")
    owned = standing.groupBy("standing", F.col("owner").alias("run_id"), *_NUMBER)
    cut_offs = owned.agg(F.collect_list("k").alias("owned_ks"))
    pairs = F.filter(
        F.arrays_zip("ks", "values"),
        lambda pair: F.array_contains("owned_ks", F.coalesce(pair["ks"], F.lit(WHOLE_RANKING))),
    )
    of_shared = user_metrics.where(F.col("run_id").isin(shared))
    chosen = of_shared.join(F.broadcast(cut_offs), ["run_id", *_NUMBER]).withColumn("pairs", pairs)
    lists = {"ks": F.col("pairs.ks"), "values": F.col("pairs.values")}
    gathered = chosen.where(F.size("pairs") > 0).withColumns({"run_id": F.col("standing"), **lists})
    alone = user_metrics.where(~F.col("run_id").isin(shared))
    return alone.unionByName(gathered.select(*user_metrics.columns))


def name_owners(results: DataFrame, numbers: Sequence[CountedNumber]) -> DataFrame:
    """Return results whose `run_id` and `other_run_id` are those of the runs that own the numbers.

    Args:
        results: with columns run_id, other_run_id, part, metric, definition, k.
        numbers: as in `gather_rows`.
    """
    if not numbers:
        return results
    named = results
    for name in ("run_id", "other_run_id"):
        owners = _numbers_frame(results.sparkSession, numbers).alias("owners")
        place = [named[name] == F.col("owners.run_id")]
        place += [named[column] == F.col(f"owners.{column}") for column in _NUMBER]
        place += [F.coalesce(named["k"], F.lit(WHOLE_RANKING)) == F.col("owners.k")]
        renamed = F.coalesce(F.col("owners.owner"), named[name]).alias(name)
        columns = [renamed if column == name else named[column] for column in named.columns]
        named = named.join(F.broadcast(owners), place, "left").select(*columns)
    return named


def _numbers_frame(spark: SparkSession, numbers: Sequence[CountedNumber]) -> DataFrame:
    return spark.createDataFrame([astuple(number) for number in numbers], _TYPES)
