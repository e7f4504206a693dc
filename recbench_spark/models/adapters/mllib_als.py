"""Alternating least squares by Spark MLlib, in a night and on folds.

Fits on folds give rows of `fits`, as tasks do.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

import pyarrow as pa
from pyspark.ml.recommendation import ALS
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Bootstrap, MllibAlsModel
from recbench_spark.engine.sessions import SparkEngine, set_checkpoints
from recbench_spark.engine.versions import make_frame
from recbench_spark.errors import ConfigError, DataError, Interrupted, is_cancelled
from recbench_spark.metrics import predictions
from recbench_spark.models.adapters.frames import keep_relevant
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.fits.logs import SharedRatingLog, as_text, mean_rating
from recbench_spark.models.fits.tasks import FitTask, Row
from recbench_spark.models.prefix_vectors import ConfidenceFoldIn, FoldInSettings, RidgeFoldIn
from recbench_spark.runtime.failures import describe_with_trace, is_java_gone
from recbench_spark.runtime.indexing import add_dense_index
from recbench_spark.runtime.session import cache_frame, cache_scope
from recbench_spark.storage.blocks import TaskRows
from recbench_spark.storage.frame_blocks import FrameRows, load_parquet
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.store import Store

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
        if not self.settings.regularization > 0:
            raise ConfigError(
                f"model {self.settings.name}: a regulariser of 0 leaves users with few ratings without a "
                "solution",
                "regularization above 0",
            )

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
        users=_vectors(fitted.userFactors, users, "user"), items=_vectors(fitted.itemFactors, items, "item")
    )


def _vectors(factors: DataFrame, ids: DataFrame, side: str) -> DataFrame:
    rows = ids.join(factors, F.col(f"{side}_index") == F.col("id"))
    vector = F.col("features").cast(VECTOR).alias("vector")
    return rows.select(f"{side}_id", vector, F.lit(0.0).alias("bias"))


NO_BOOTSTRAP = Bootstrap(replicates=0)


def fit_als(store: Store, model: MllibAlsModel, task: FitTask, files: SharedRatingLog) -> Row:
    """Fit with all executors and measure as a night does.

    A failure gives a row too. A pair with a user or item unknown to training gets the mean rating; nothing
    is clipped. Peak memory and CPU seconds are spread over executors, so the row has none.

    Raises:
        Interrupted: Spark's jobs were cancelled.
    """
    started, before = datetime.now(UTC), time.monotonic()
    row: Row = {
        "fit_id": task.fit_id, "model": model.name, "kind": model.kind, "dims": model.rank,
        "settings_json": task.settings_json,
        "seed": task.seed, "fold": task.fold, "parts": list(task.watched),
        "threads": store.engine.cores,
    }  # fmt: skip
    try:
        row |= _fit_and_measure(store, model, task, files) | {"status": "succeeded"}
    except Exception as error:
        if is_cancelled(error):
            raise Interrupted from error
        if is_java_gone(error):
            raise
        row |= {"status": "failed", "error": describe_with_trace(error)}
    row |= {"seconds": time.monotonic() - before, "started_at": started, "finished_at": datetime.now(UTC)}
    return row


@cache_scope()
def _fit_and_measure(store: Store, model: MllibAlsModel, task: FitTask, files: SharedRatingLog) -> Row:
    rows = load_parquet(store.spark, *files.shared.files)
    train = rows.where(F.col("part").isin(*task.train)).select("user_id", "item_id", "rating")
    watched = rows.where(F.col("part").isin(*task.watched))
    listed = rows if task.whole else train
    items = add_dense_index(listed.select("item_id").distinct(), F.col("item_id"), "item_index")
    seeded = model.model_copy(update={"seed": task.seed})
    trained = train_als(train, items, seeded, None, scratch_folder(store.scratch))
    assert trained.users is not None and trained.items is not None
    pairs = _predict_pairs(
        watched, trained.users, trained.items, mean_rating(FrameRows(rows), task.train)
    ).cache()
    engine, n = SparkEngine(store.spark), pairs.count()
    with predictions.deal_users(engine, FrameRows(pairs), ("part",), n).keep() as users:
        whole = _measure_errors(users)
        by_part = {part: _measure_errors(users, part)["rmse"] for part in task.watched}
    pairs.unpersist()
    return {
        "n_train": train.count(), "n_watched": n,
        "steps": model.iterations, "rmse_by_step": [], **whole, "rmse_by_part": by_part,
    }  # fmt: skip


def _predict_pairs(watched: DataFrame, users: DataFrame, items: DataFrame, mean: float) -> DataFrame:
    p = users.select("user_id", F.col("vector").alias("p"))
    q = items.select("item_id", F.col("vector").alias("q"))

    def product(x: Column, y: Column) -> Column:
        return x.cast("double") * y.cast("double")

    def add(total: Column, term: Column) -> Column:
        return total + term

    dot = F.aggregate(F.zip_with("p", "q", product), F.lit(0.0), add)
    joined = watched.join(p, "user_id", "left").join(q, "item_id", "left")
    prediction = F.coalesce(dot, F.lit(mean)).alias("prediction")
    return joined.select("user_id", "part", prediction, F.col("rating").alias("outcome"))


def _measure_errors(users: TaskRows, part: str | None = None) -> dict[str, float]:
    totals = predictions.PredictionTotals.from_sums(users.each(partial(_sum_part, part=part)), NO_BOOTSTRAP)
    rows = {str(row["metric"]): float(row["value"] or 0.0) for row in totals.overall()}
    return {metric: rows[metric] for metric in ("rmse", "mae")}


def _sum_part(users: pa.Table, part: str | None) -> predictions.UserSums:
    return predictions.sum_users(
        [users if part is None else predictions.select_predictions(users, "part", part)], NO_BOOTSTRAP
    )
