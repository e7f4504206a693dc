"""Predictions of ratings for users' truth items, by models whose scores are ratings."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from recbench_spark.evaluation.ranking.batches import read_item_lists
from recbench_spark.evaluation.ranking.scored import user_block
from recbench_spark.evaluation.ranking.sources import Source
from recbench_spark.kernels.arrays import Bools, Floats
from recbench_spark.kernels.ranking.positives import ItemLists
from recbench_spark.kernels.ranking.scorers import Scorer, UserBlock
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.shared_arrays import flatten_lists

PREDICTED = (
    "user_id STRING, part STRING, user_key LONG, "
    "prediction ARRAY<DOUBLE>, outcome ARRAY<DOUBLE>, unknown INT"
)


def predict_scored(users: DataFrame, source: Source, mean: float) -> DataFrame:
    """Predict users' truth items by a model's scores. No shuffle; a task holds one batch.

    Args:
        users: rows of `rank.select_part_users`; with `vector` for models with vectors of users, and with
            `user_bias` (added to each score) where users have one.
        source: the model.
        mean: prediction for a pair whose user or item the model does not know.

    Returns:
        Rows of `PREDICTED`; `unknown`: number of such pairs.
    """
    return users.mapInArrow(partial(predict_batches, source, mean), PREDICTED)


def predict_batches(source: Source, mean: float, batches: Batches) -> Batches:
    """Predict batches of users: rows of `PREDICTED`."""
    scorer = source.scorer()
    for batch in batches:
        truth = read_item_lists(batch, "items")
        known_p = _find_known_pairs(batch, truth, scorer)
        prediction_p = np.full(len(known_p), mean)
        prediction_p[known_p] = _scores(scorer, user_block(batch, source), truth, known_p)
        if "user_bias" in batch.schema.names:
            bias_u = batch.column("user_bias").to_numpy()
            prediction_p += np.repeat(bias_u, np.diff(truth.offsets_u))
        yield _prediction_batch(batch, truth, prediction_p, known_p)


def _find_known_pairs(batch: pa.RecordBatch, truth: ItemLists, scorer: Scorer) -> Bools:
    """Mark the pairs whose user and item the model knows."""
    scored_p = (truth.items_p >= 0) & scorer.scored_i[np.maximum(truth.items_p, 0)]
    if "vector" not in batch.schema.names:
        return np.asarray(scored_p)
    known_u = batch.column("vector").is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(scored_p & np.repeat(known_u, np.diff(truth.offsets_u)))


def _scores(scorer: Scorer, users: UserBlock, truth: ItemLists, known_p: Bools) -> Floats:
    """Return the scores of the known pairs, in their order."""
    before_p = np.concatenate([[0], np.cumsum(known_p)])
    return scorer.score_listed(users, ItemLists(before_p[truth.offsets_u], truth.items_p[known_p]))


def _prediction_batch(
    batch: pa.RecordBatch, truth: ItemLists, prediction_p: Floats, known_p: Bools
) -> pa.RecordBatch:
    bounds = pa.array(truth.offsets_u, pa.int32())
    before_p = np.concatenate([[0], np.cumsum(~known_p)])
    columns = {
        "user_id": batch.column("user_id"),
        "part": batch.column("part"),
        "user_key": batch.column("user_key"),
        "prediction": pa.ListArray.from_arrays(bounds, pa.array(prediction_p)),
        "outcome": pa.ListArray.from_arrays(bounds, pa.array(flatten_lists(batch.column("relevance"))[1])),
        "unknown": pa.array(np.diff(before_p[truth.offsets_u]), pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)
