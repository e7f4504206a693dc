"""Alternating least squares by Spark MLlib."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import MllibAlsModel
from recbench_spark.engine.sessions import SparkEngine, set_checkpoints
from recbench_spark.engine.versions import make_frame
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.adapters.frames import keep_relevant
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.fits.logs import as_text
from recbench_spark.models.fold_in_settings import (
    ConfidenceFoldIn,
    FoldInSettings,
    RidgeFoldIn,
    require_ridge,
)
from recbench_spark.runtime.indexing import add_dense_index
from recbench_spark.runtime.session import cache_frame
from recbench_spark.storage.blocks import TaskRows

VECTOR = T.ArrayType(T.FloatType())


class MllibAlsAdapter(ModelAdapter[MllibAlsModel]):
    """Fits MLlib's ALS and ranks by its vectors."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit MLlib's factors."""
        ids = as_text(data.choose_items(self.settings).ids())
        numbers = pa.array(range(len(ids)), pa.int32())
        items = make_frame(data.spark, pa.table({"item_id": ids, "item_index": numbers}))
        return train_als(data.train_rows, items, self.settings, data.threshold, data.scratch_folder())

    def predict(self, users: DataFrame, data: SplitData) -> TaskRows:
        """Predict vector products; unknown pairs get the mean rating."""
        if self.settings.implicit:
            raise ConfigError(
                f"model {self.settings.name}: implicit ALS does not predict ratings", "implicit: false"
            )
        return self.predict_products(users, data)

    def check_prefixes(self) -> None:
        """Raise ConfigError if a user with one rating has no vector."""
        require_ridge(self.settings.name, self.settings.regularization, "regularization")

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return a fold-in with the fit's settings."""
        settings = self.settings
        if settings.implicit:
            return ConfidenceFoldIn(settings.regularization, settings.alpha, data.threshold)
        return RidgeFoldIn(settings.regularization)


CHECKPOINT_EVERY = 3
"""Iterations between checkpoints. A task deserialises the lineage since the last one: ten iterations
overflow the stack of a small JVM."""


def train_als(
    train: DataFrame, items: DataFrame, model: MllibAlsModel, threshold: float | None, scratch: str
) -> Trained:
    """Fit alternating least squares by Spark MLlib.

    Implicit models (Hu, Koren and Volinsky, ICDM 2008) see relevant rows, each with preference 1; explicit
    ones see every rating.

    Args:
        train: user_id, item_id, rating.
        items: item_id, item_index.
        model: settings (rank, iterations and more).
        threshold: lowest rating of a relevant row.
        scratch: checkpoint folder all executors can read.
    """
    rows = keep_relevant(train, threshold).withColumn("rating", F.lit(1.0)) if model.implicit else train
    if rows.limit(1).isEmpty():
        raise DataError(f"model {model.name}: no training rows", "lower the relevance threshold")
    users = cache_frame(add_dense_index(rows.select("user_id").distinct(), F.col("user_id"), "user_index"))
    ratings = rows.join(users, "user_id").join(items.select("item_id", "item_index"), "item_id")
    set_checkpoints(train.sparkSession, scratch, f"model {model.name} (mllib_als)")
    blocks = max(2, SparkEngine(train.sparkSession).cores)
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
