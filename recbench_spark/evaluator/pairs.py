"""Item to item: labelled pairs query -> item, all items but the query ranked by their vectors alone.

Hit rate at K and the scaled mean reciprocal rank, mean 1 / ceil(R / 100) (Ying et al. 2018, section 4.2). A
query is a user whose vector is that of an item and whose only training item is itself: ranks, ties and ids
are those of every other evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap
from recbench_spark.data.handed_over import typed_rows
from recbench_spark.errors import DataError
from recbench_spark.evaluation.result import Result
from recbench_spark.evaluator.evaluate import evaluate
from recbench_spark.schemas import METRICS, USER_METRICS, conform, require

SCALE = 100
"""Ranks of one reciprocal value: 1 to 100 count 1, 101 to 200 a half."""

HIT_RATE, SCALED_MRR = "hit_rate", "scaled_mrr"

DEFINITION = "v1 candidates=all_but_query pairs"


def evaluate_pairs(
    items: DataFrame,
    pairs: DataFrame,
    *,
    k: Sequence[int] = (10, 100, 500),
    similarity: Literal["dot", "cosine"] = "dot",
    scratch: str | None = None,
) -> Result:
    """Hit rates and scaled MRR of labelled pairs; a pair whose query or item has no vector is a miss.

    Args:
        items: item_id, vector[, bias]; all of them are ranked.
        pairs: query_id, item_id, one row a labelled pair.
        k: cut-offs of the hit rate.
        similarity: of vectors.
        scratch: folder that all executors can read.

    Returns:
        A result whose users are queries; stderr is over queries' means, n counts pairs.

    Raises:
        SchemaError: a column is missing. DataError: a query paired with itself, NULL ids, unusable vectors.
    """
    require(pairs, ["query_id", "item_id"], "pairs")
    # Ids keep their type: where they are whole numbers, ties fall to the smaller one.
    truth = pairs.select(F.col("query_id").alias("user_id"), "item_id")
    own = typed_rows(truth, {}, "pairs").where("user_id = item_id").count()
    if own:
        raise DataError(f"pairs: {own} queries are paired with themselves", "leave these rows out")
    queries = truth.select("user_id").distinct()
    as_users = items.select(F.col("item_id").alias("user_id"), "vector")
    vectors = as_users.join(queries, "user_id", "left_semi")
    itself = queries.withColumn("item_id", F.col("user_id"))
    found = evaluate(
        truth,
        embeddings=(vectors, items),
        train=itself,
        k=tuple(k),
        metrics=("recall",),
        similarity=similarity,
        bootstrap=Bootstrap(replicates=0),
        scratch=scratch,
    )
    assert found.rankings is not None
    ranks = ranks_of(found.rankings)
    lost = queries.join(as_users, "user_id", "left_anti").count()
    told = Check("queries without a vector", lost, 0.0, "warning", "their pairs count as misses")
    rows, per_query = _metrics(ranks, tuple(sorted(set(k))))
    return Result(rows, per_query, found.rankings, [*found.checks, told], found.kept)


def ranks_of(rankings: DataFrame) -> DataFrame:
    """user_id, item_id, rank from 1 of each truth item; NULL where it was not ranked."""
    entry = F.explode(F.arrays_zip("item_ids", "above", "before")).alias("entry")
    rank = F.when(F.col("entry.above") >= 0, F.col("entry.above") + F.col("entry.before") + 1)
    return rankings.select("user_id", entry).select(
        "user_id", F.col("entry.item_ids").alias("item_id"), rank.alias("rank")
    )


def _metrics(ranks: DataFrame, ks: Sequence[int]) -> tuple[DataFrame, DataFrame]:
    """Rows of `metrics` and of `user_metrics`, without the run."""
    scaled = F.coalesce(1 / F.ceil(F.col("rank") / SCALE), F.lit(0.0))
    hits: list[Column] = [F.coalesce((F.col("rank") <= at).cast("double"), F.lit(0.0)) for at in ks]
    names = [f"hit_{at}" for at in ks]
    values = ranks.select(
        "user_id", scaled.alias("mrr"), *(h.alias(n) for h, n in zip(hits, names, strict=True))
    )
    by_query = values.groupBy("user_id").agg(
        F.count("*").alias("n"), *(F.avg(name).alias(name) for name in ("mrr", *names))
    )
    return _overall(by_query, ks, names), _per_query(by_query, ks, names)


def _overall(by_query: DataFrame, ks: Sequence[int], names: Sequence[str]) -> DataFrame:
    found = [(SCALED_MRR, None, "mrr"), *((HIT_RATE, at, name) for at, name in zip(ks, names, strict=True))]
    frames = None
    for metric, at, name in found:
        total = by_query.agg(
            (F.sum(F.col(name) * F.col("n")) / F.sum("n")).alias("value"),
            (F.stddev_samp(name) / F.sqrt(F.count("*"))).alias("stderr"),
            F.sum("n").alias("n"),
        )
        row = total.select(
            F.lit("test").alias("part"),
            F.lit(metric).alias("metric"),
            F.lit(DEFINITION).alias("definition"),
            F.lit(at).cast("int").alias("k"),
            F.lit("holdout").alias("estimator"),
            "value",
            "stderr",
            "n",
        )
        frames = row if frames is None else frames.unionByName(row)
    assert frames is not None
    return conform(frames.withColumn("run_id", F.lit("")), METRICS).drop("run_id")


def _per_query(by_query: DataFrame, ks: Sequence[int], names: Sequence[str]) -> DataFrame:
    common: list[Column] = [
        F.col("user_id"),
        F.lit("test").alias("part"),
        F.lit(DEFINITION).alias("definition"),
    ]
    more = [F.lit("holdout").alias("estimator"), F.col("n").cast("int").alias("n_relevant")]
    mrr = by_query.select(
        *common,
        *more,
        F.lit(SCALED_MRR).alias("metric"),
        F.array(F.lit(None).cast("int")).alias("ks"),
        F.array("mrr").alias("values"),
    )
    hits = by_query.select(
        *common,
        *more,
        F.lit(HIT_RATE).alias("metric"),
        F.array(*(F.lit(at) for at in ks)).alias("ks"),
        F.array(*names).alias("values"),
    )
    rows = mrr.unionByName(hits).withColumn("run_id", F.lit(""))
    return conform(rows, USER_METRICS).drop("run_id")
