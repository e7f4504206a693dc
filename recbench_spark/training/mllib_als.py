"""Alternating least squares by Spark MLlib, and vectors of users folded into its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import MllibAlsModel
from recbench_spark.engine.sessions import count_cores, set_checkpoints
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.evaluation.ranking import predict
from recbench_spark.indexing import add_dense_index
from recbench_spark.models import fold_in as folding
from recbench_spark.models.fold_in_settings import (
    ConfidenceFoldIn,
    FoldInSettings,
    RidgeFoldIn,
    require_ridge,
)
from recbench_spark.runtime.session import cache_frame
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.shared_rows import load_parquet, write_parquet
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained, keep_relevant

VECTOR = T.ArrayType(T.FloatType())


class MllibAlsAdapter(ModelAdapter[MllibAlsModel]):
    """Adapter of MLlib's ALS: vectors of users and items."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit MLlib's factors, and fold in users held out from training by their given rows."""
        scratch = data.scratch_folder()
        known = data.choose_items(self.settings).rows
        trained = train_als(data.train_rows, known, self.settings, data.threshold, scratch)
        folded = self.fold_in(trained, data)
        if folded is None:
            return trained
        assert trained.users is not None
        return replace(trained, users=trained.users.unionByName(folded))

    def predict(self, users: DataFrame, data: SplitData) -> DataFrame:
        """Predict products of vectors; pairs that training does not know get the mean rating."""
        if self.settings.implicit:
            raise ConfigError(
                f"model {self.settings.name}: implicit ALS does not predict ratings", "implicit: false"
            )
        trained = self.load(data)
        assert trained.users is not None
        known = users.join(trained.users.drop("bias"), "user_id", "left")
        return predict.predict_scored(known, self.source(trained, data), data.mean_rating)

    def fold_in(self, trained: Trained, data: SplitData) -> DataFrame | None:
        """Solve one ridge regression per user held out from training."""
        if not data.folds_users:
            return None
        scratch = data.scratch_folder()
        known = data.choose_items(self.settings).rows
        return fold_in(data.given_rows, trained, known, self.settings, data.threshold, scratch=scratch)

    def check_prefixes(self) -> None:
        """Check that a user with one rating has a vector. Raises ConfigError."""
        require_ridge(self.settings.name, self.settings.regularization, "regularization")

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return the settings of the fit."""
        settings = self.settings
        if settings.implicit:
            return ConfidenceFoldIn(settings.regularization, settings.alpha, data.threshold)
        return RidgeFoldIn(settings.regularization)


CHECKPOINT_EVERY = 3
"""Iterations between checkpoints. A task deserialises the lineage since the last one: that of ten
iterations
overflows the stack of a small JVM."""


def train_als(
    train: DataFrame, items: DataFrame, model: MllibAlsModel, threshold: float | None, scratch: str
) -> Trained:
    """Fit alternating least squares by Spark MLlib; implicit: Hu, Koren and Volinsky (ICDM 2008).

    Implicit models see relevant rows, each with preference 1; explicit ones see every rating.

    Args:
        train: user_id, item_id, rating.
        items: item_id, item_index.
        model: settings (rank, iterations and more).
        threshold: lowest rating of a relevant row.
        scratch: folder that all executors can read, for checkpoints.
    """
    rows = keep_relevant(train, threshold).withColumn("rating", F.lit(1.0)) if model.implicit else train
    if rows.limit(1).isEmpty():
        raise DataError(f"model {model.name}: no training rows", "lower the relevance threshold")
    users = cache_frame(add_dense_index(rows.select("user_id").distinct(), F.col("user_id"), "user_index"))
    ratings = rows.join(users, "user_id").join(items.select("item_id", "item_index"), "item_id")
    set_checkpoints(train.sparkSession, scratch, f"model {model.name} (mllib_als)")
    blocks = max(2, count_cores(train.sparkSession))
    als = ALS(
        rank=model.rank,
        maxIter=model.iterations,
        regParam=model.regularization,
        alpha=model.alpha,
        implicitPrefs=model.implicit,
        seed=model.seed,
        userCol="user_index",
        itemCol="item_index",
        ratingCol="rating",
        numUserBlocks=blocks,
        numItemBlocks=blocks,
        checkpointInterval=CHECKPOINT_EVERY,
    )
    fitted = als.fit(ratings.select("user_index", "item_index", "rating"))
    return Trained(
        users=_vectors(fitted.userFactors, users, "user"),
        items=_vectors(fitted.itemFactors, items, "item"),
    )


def _vectors(factors: DataFrame, ids: DataFrame, side: str) -> DataFrame:
    rows = ids.join(factors, F.col(f"{side}_index") == F.col("id"))
    vector = F.col("features").cast(VECTOR).alias("vector")
    return rows.select(f"{side}_id", vector, F.lit(0.0).alias("bias"))


def fold_in(
    given: DataFrame,
    trained: Trained,
    items: DataFrame,
    model: MllibAlsModel,
    threshold: float | None,
    *,
    scratch: str,
) -> DataFrame:
    """Compute vectors of users without training rows from their given rows, by one ridge regression each.

    Shuffles the given rows by user. Item factors are written once and mapped by every worker. A user gets
    no vector if the model knows none of the given items.

    Args:
        given: user_id, item_id, rating of users without training rows.
        trained: result of `train_als`.
        items: item_id, item_index.
        model: rank, regularization, alpha, implicit as in training.
        threshold: lowest rating of a relevant row.
        scratch: folder that all executors can read; must not exist yet.

    Returns:
        user_id, vector, bias.
    """
    assert trained.items is not None
    factors = trained.items.join(items.select("item_id", "item_index"), "item_id")
    files = write_parquet(factors.select("item_index", "vector"), scratch)
    written = load_parquet(given.sparkSession, *files)
    shared = SharedRows(Path(scratch).name, files)
    rows = keep_relevant(given, threshold).withColumn("rating", F.lit(1.0)) if model.implicit else given
    index = items.join(written.select("item_index"), "item_index").select("item_id", "item_index")
    row = F.struct(F.col("item_index").alias("item"), F.col("rating").alias("rating"))
    histories = (
        rows.join(index, "item_id").groupBy("user_id").agg(F.sort_array(F.collect_list(row)).alias("rows"))
    )
    users = histories.select(
        "user_id", F.col("rows.item").alias("items"), F.col("rows.rating").alias("ratings")
    )
    task = _fold_task(shared, items.count(), model)
    return users.mapInArrow(task, "user_id STRING, vector ARRAY<FLOAT>, bias DOUBLE")


def _fold_task(shared: SharedRows, n_items: int, model: MllibAlsModel):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrays = shared.arrays(lambda rows, folder: _build_factors(rows, folder, n_items, model.rank))
        factors_id = np.asarray(arrays["factors"], np.float64)
        for batch in batches:
            offsets, items = shared_arrays.flatten_lists(batch.column("items"))
            ratings = shared_arrays.flatten_lists(batch.column("ratings"))[1]
            if model.implicit:
                vectors_ud = folding.fold_in_implicit(
                    offsets, items, ratings, factors_id, model.regularization, alpha=model.alpha
                )
            else:
                vectors_ud = folding.fold_in_explicit(
                    offsets, items, ratings, factors_id, model.regularization
                )
            bounds = pa.array(np.arange(0, vectors_ud.size + 1, model.rank), pa.int32())
            vectors = pa.ListArray.from_arrays(bounds, pa.array(vectors_ud.astype(np.float32).ravel()))
            bias = pa.array(np.zeros(batch.num_rows))
            columns = [batch.column("user_id"), vectors, bias]
            yield pa.RecordBatch.from_arrays(columns, ["user_id", "vector", "bias"])

    return run


def _build_factors(rows: ds.Dataset, folder: Path, n_items: int, rank: int) -> None:
    """Write item factors by item_index, zeros for items without training rows: 4 rank bytes per item."""
    factors_id = shared_arrays.create_array(folder, "factors", (n_items, rank), np.float32)
    for batch in rows.to_batches(columns=["item_index", "vector"]):
        index = batch.column("item_index").to_numpy()
        factors_id[index] = shared_arrays.flatten_lists(batch.column("vector"))[1].reshape(len(index), rank)
