"""Means of users and items on the cluster, by sums of whole numbers."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from recbench_spark.evaluation.ranking import predict
from recbench_spark.models.means import MeansModel
from recbench_spark.protocol.labelled_rows import open_labelled
from recbench_spark.training.fits.logs import collect_facts, find_scale
from recbench_spark.training.frames import clip, unwrap_side
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained

EXACT = "decimal(38,15)"
"""Type in which deviations are summed: its sums are exact, so they are the same under any partitioning."""


class MeansAdapter(ModelAdapter[MeansModel]):
    """Adapter of the mean model: biases hold the overall mean and the deviations of both sides."""

    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Compute the deviations by two shuffles of the training rows, one per side.

        The biases of items include the overall mean, so ranking and prediction use one number.

        Raises:
            DataError: a rating outside `dataset.scale`.
        """
        if data.scale is not None:
            find_scale(collect_facts(open_labelled(data.store, data.split_id)), data.scale)
        mean = data.mean_rating
        rows = data.train_rows.select("user_id", "item_id", (F.col("rating") - F.lit(mean)).alias("left"))
        order = [] if self.settings.means == "global" else self.settings.means.split("_")
        biases = {}
        for side in order:
            biases[side], rows = _deviations(
                rows, side[:-1], getattr(self.settings, f"{side[:-1]}_shrinkage")
            )
        users, items = biases.get("users"), biases.get("items")
        every = data.training_items.rows.select("item_id")
        deviation = F.lit(0.0) if items is None else F.coalesce("bias", F.lit(0.0))
        listed = every if items is None else every.join(items, "item_id", "left")
        shifted = listed.select("item_id", (F.lit(mean) + deviation).alias("bias"))
        return Trained(None if users is None else _without_vectors(users), _without_vectors(shifted))

    def predict(self, users: DataFrame, data: SplitData) -> DataFrame:
        """Predict ratings; unseen users and items without ratings have a deviation of 0.

        Predictions are clipped to `dataset.scale` if it is given. See `ModelAdapter.predict`.
        """
        trained = self.load(data)
        sides = (trained.users, "user"), (trained.items, "item")
        of_users, of_items = (unwrap_side(rows, side, data.spark_store, "bias") for rows, side in sides)
        biases = of_users.select("user_id", F.col("bias").alias("user_bias"))
        known = users.join(biases, "user_id", "left").fillna({"user_bias": 0.0})
        items = data.items.select("item_id").join(of_items.select("item_id", "bias"), "item_id", "left")
        whole = _without_vectors(items.fillna({"bias": data.mean_rating}))
        predictions = predict.predict_scored(known, self.share_vectors(whole, data), data.mean_rating)
        return predictions if data.scale is None else clip(predictions, data.scale)


def _deviations(rows: DataFrame, side: str, shrinkage: float) -> tuple[DataFrame, DataFrame]:
    """Return (ID, bias) of one side, and the rows with the remaining deviation in `left`."""
    ids = f"{side}_id"
    total = F.sum(F.col("left").cast(EXACT)).cast("double")
    biases = rows.groupBy(ids).agg((total / (F.count("*") + F.lit(shrinkage))).alias("bias"))
    left: Column = F.col("left") - F.col("bias")
    return biases, rows.join(biases, ids).withColumn("left", left).drop("bias")


def _without_vectors(biases: DataFrame) -> DataFrame:
    return biases.select(biases.columns[0], F.array().cast("array<float>").alias("vector"), "bias")
