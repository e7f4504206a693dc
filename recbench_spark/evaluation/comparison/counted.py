"""Numbers of models that have several runs on one night: each number belongs to one of these runs.

A model that was evaluated again with other metrics has two runs, and each of them owns some of the numbers
that count (the view `current_metrics`). One run represents the model and night in a plan. `gather_rows`
moves the rows of all these numbers to it, and `name_owners` puts the owner of each number back into the
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

WHOLE_RANKING = 0
"""Value for NULL, the whole ranking, in look-ups of cut-offs."""

_NUMBER = ("part", "metric", "definition")


@dataclass(frozen=True, order=True)
class CountedNumber:
    """A number that counts, of a model and night with several runs.

    Attributes:
        run_id: the run that represents the model and night.
        owner: the run whose number counts.
        part, metric, definition: as in the table `metrics`.
        k: cut-off; WHOLE_RANKING: the whole ranking.
    """

    run_id: str
    owner: str
    part: str
    metric: str
    definition: str
    k: int


_TYPES = "run_id STRING, owner STRING, part STRING, metric STRING, definition STRING, k INT"


def gather_rows(user_metrics: DataFrame, numbers: Sequence[CountedNumber]) -> DataFrame:
    """Return rows of `user_metrics` with all numbers of a model and night under one run.

    Rows of runs that share no numbers stay as they are. Nothing is shuffled: the numbers are broadcast.

    Args:
        user_metrics: rows of the table, of any runs.
        numbers: all numbers that count, of each model and night with several runs.
    """
    if not numbers:
        return user_metrics
    shared = sorted({run_id for number in numbers for run_id in (number.run_id, number.owner)})
    representatives = _numbers_frame(user_metrics.sparkSession, numbers).withColumnRenamed(
        "run_id", "standing"
    )
    owned_numbers = representatives.groupBy("standing", F.col("owner").alias("run_id"), *_NUMBER)
    cut_offs = owned_numbers.agg(F.collect_list("k").alias("owned_ks"))
    pairs = F.filter(
        F.arrays_zip("ks", "values"),
        lambda pair: F.array_contains("owned_ks", F.coalesce(pair["ks"], F.lit(WHOLE_RANKING))),
    )
    shared_rows = user_metrics.where(F.col("run_id").isin(shared))
    chosen = shared_rows.join(F.broadcast(cut_offs), ["run_id", *_NUMBER]).withColumn("pairs", pairs)
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
        conditions = [named[name] == F.col("owners.run_id")]
        conditions += [named[column] == F.col(f"owners.{column}") for column in _NUMBER]
        conditions += [F.coalesce(named["k"], F.lit(WHOLE_RANKING)) == F.col("owners.k")]
        renamed = F.coalesce(F.col("owners.owner"), named[name]).alias(name)
        columns = [renamed if column == name else named[column] for column in named.columns]
        named = named.join(F.broadcast(owners), conditions, "left").select(*columns)
    return named


def _numbers_frame(spark: SparkSession, numbers: Sequence[CountedNumber]) -> DataFrame:
    return spark.createDataFrame([astuple(number) for number in numbers], _TYPES)
