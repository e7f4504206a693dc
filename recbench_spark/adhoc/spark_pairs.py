"""Item to item on Spark: labelled pairs query -> item, all items but the query ranked by their vectors.

A query is a user whose vector is that of an item and whose only training item is itself: ranks, ties and
ids are those of every other evaluation. The metrics stand in `evaluation.metrics.pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.adhoc.spark_engine import conform_result, evaluate
from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap
from recbench_spark.data.external_inputs import convert_rows
from recbench_spark.errors import DataError
from recbench_spark.evaluation.batch_schemas import USER_VALUES, to_ddl
from recbench_spark.evaluation.metrics import pairs as measures
from recbench_spark.evaluation.result import Result
from recbench_spark.schemas import METRICS, USER_METRICS, require


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
    refuse_self_pairs(convert_rows(truth, {}, "pairs").where("user_id = item_id").count())
    queries = truth.select("user_id").distinct()
    as_users = items.select(F.col("item_id").alias("user_id"), "vector")
    vectors = as_users.join(queries, "user_id", "left_semi")
    itself = queries.withColumn("item_id", F.col("user_id"))
    asked: dict[str, Any] = {"k": tuple(k), "similarity": similarity, "scratch": scratch, **METRIC_OPTIONS}
    found = evaluate(truth, embeddings=(vectors, items), train=itself, **asked)
    assert found.rankings is not None
    lost = queries.join(as_users, "user_id", "left_anti").count()
    rows, per_query = _metrics(found.rankings, tuple(sorted(set(k))))
    return Result(rows, per_query, found.rankings, [*found.checks, lost_queries_check(lost)], found.kept)


METRIC_OPTIONS: dict[str, Any] = {"metrics": ("recall",), "bootstrap": Bootstrap(replicates=0)}
"""What is asked of the ranking, whose own metrics are not looked at."""


def refuse_self_pairs(own: int) -> None:
    """DataError where queries are paired with themselves."""
    if own:
        raise DataError(f"pairs: {own} queries are paired with themselves", "leave these rows out")


def lost_queries_check(lost: int) -> Check:
    """The check of queries that no item's vector is of."""
    return Check("queries without a vector", lost, 0.0, "warning", "their pairs count as misses")


def _metrics(rankings: DataFrame, ks: Sequence[int]) -> tuple[DataFrame, DataFrame]:
    """Rows of `metrics` and of `user_metrics`, without the run. One row a task comes to the driver."""
    ranked = rankings.select("user_id", "above", "before")
    totals = ranked.mapInArrow(partial(measures.total_batches, ks), to_ddl(measures.TOTALS)).toArrow()
    overall = rankings.sparkSession.createDataFrame(measures.metric_rows(ks, totals))
    per_query = ranked.mapInArrow(partial(measures.value_batches, ks), to_ddl(USER_VALUES))
    return conform_result(overall, METRICS), conform_result(per_query, USER_METRICS)
