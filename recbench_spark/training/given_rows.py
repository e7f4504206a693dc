"""Vectors of users from the rows that they are given, by the fold-in of learning curves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.evaluation.ranking.prefix_scorers import PrefixScorer
from recbench_spark.storage import shared_arrays


def fold_given_rows(given: DataFrame, items: DataFrame, model: PrefixScorer) -> DataFrame:
    """Compute vectors of users from all their given rows; users whom the model does not know have none.

    One shuffle of the given rows by user. A task maps the item side, and holds one batch of histories with
    the vectors of their items.

    Args:
        given: user_id, item_id, rating.
        items: item_id, item_index.
        model: the item side and its fold-in.

    Returns:
        user_id, vector.
    """
    row = F.struct(F.col("item_index").alias("item"), F.col("rating").cast("double").alias("rating"))
    indexed = given.join(items.select("item_id", "item_index"), "item_id")
    histories = indexed.groupBy("user_id").agg(F.sort_array(F.collect_list(row)).alias("rows"))
    users = histories.select(
        "user_id", F.col("rows.item").alias("items"), F.col("rows.rating").alias("ratings")
    )
    return users.mapInArrow(_fold_task(model), "user_id STRING, vector ARRAY<FLOAT>")


def _fold_task(model: PrefixScorer):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = model.open()[1]
        assert folder is not None
        for batch in batches:
            offsets, items = shared_arrays.flatten_lists(batch.column("items"))
            ratings = shared_arrays.flatten_lists(batch.column("ratings"))[1]
            folded = folder.fold(offsets, items.astype(np.int64), ratings)
            last_u = offsets[1:] - 1
            known_u = folded.known_p[last_u]
            vectors_ud = np.ascontiguousarray(folded.vectors_pd[last_u[known_u]])
            bounds = pa.array(np.arange(0, vectors_ud.size + 1, model.source.dims), pa.int32())
            vectors = pa.ListArray.from_arrays(bounds, pa.array(vectors_ud.ravel()))
            ids = batch.column("user_id").filter(pa.array(known_u))
            yield pa.RecordBatch.from_arrays([ids, vectors], ["user_id", "vector"])

    return run
