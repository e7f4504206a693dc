"""Item-to-item evaluation on Spark: for labelled pairs query -> item, all items but the query are ranked.

A query is a user who has the vector of an item and whose only training item is the query itself, so ranks,
ties and ids are those of every other evaluation. The metrics are in `evaluation.metrics.pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.adhoc.pair_checks import METRIC_OPTIONS, lost_queries_check, refuse_self_pairs
from recbench_spark.adhoc.spark_engine import conform_result, evaluate
from recbench_spark.data.external_inputs import convert_rows
from recbench_spark.engine.versions import make_frame
from recbench_spark.evaluation.batch_schemas import USER_VALUES, to_ddl
from recbench_spark.evaluation.metrics.pairs import pair_measure, value_batches
from recbench_spark.evaluation.result import Result
from recbench_spark.schemas import METRICS, USER_METRICS
from recbench_spark.storage.frame_blocks import reduce_frame
from recbench_spark.storage.spark_types import require


def evaluate_pairs(
    items: DataFrame,
    pairs: DataFrame,
    *,
    k: Sequence[int] = (10, 100, 500),
    similarity: Literal["dot", "cosine"] = "dot",
    scratch: str | None = None,
) -> Result:
    """Compute hit rates and scaled MRR of labelled pairs; a pair without both vectors is a miss.

    Args:
        items: item_id, vector[, bias]; all of them are ranked.
        pairs: query_id, item_id, one row per labelled pair.
        k: cut-offs of the hit rate.
        similarity: similarity of two vectors.
        scratch: folder that all executors can read.

    Returns:
        A result whose users are queries. stderr is over the means of queries; n counts pairs.

    Raises:
        SchemaError: a column is missing.
        DataError: a query is paired with itself; NULL ids; unusable vectors.
    """
    require(pairs, ["query_id", "item_id"], "pairs")
    # Ids keep their type: where they are whole numbers, ties go to the smaller number.
    truth = pairs.select(F.col("query_id").alias("user_id"), "item_id")
    refuse_self_pairs(convert_rows(truth, {}, "pairs").where("user_id = item_id").count())
    queries = truth.select("user_id").distinct()
    as_users = items.select(F.col("item_id").alias("user_id"), "vector")
    vectors = as_users.join(queries, "user_id", "left_semi")
    self_pairs = queries.withColumn("item_id", F.col("user_id"))
    options: dict[str, Any] = {
        "k": tuple(k),
        "similarity": similarity,
        "scratch": scratch,
        **METRIC_OPTIONS,
    }
    result = evaluate(truth, embeddings=(vectors, items), train=self_pairs, **options)
    assert result.rankings is not None
    lost = queries.join(as_users, "user_id", "left_anti").count()
    rows, per_query = _metrics(result.rankings, tuple(sorted(set(k))))
    return Result(rows, per_query, result.rankings, [*result.checks, lost_queries_check(lost)], result.kept)


def _metrics(rankings: DataFrame, ks: Sequence[int]) -> tuple[DataFrame, DataFrame]:
    """Compute rows of `metrics` and `user_metrics` without the run."""
    rows = reduce_frame({"pairs": pair_measure(ks)}, rankings)["pairs"]
    overall = make_frame(rankings.sparkSession, rows)
    ranked = rankings.select("user_id", "above", "before")
    per_query = ranked.mapInArrow(partial(value_batches, ks), to_ddl(USER_VALUES))
    return conform_result(overall, METRICS), conform_result(per_query, USER_METRICS)
