"""Tables of trained models."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import DOUBLE, ITEM_ID, Column, Table, array_of, text_id

EMBEDDINGS = Table(
    "embeddings",
    "Vectors of trained models.",
    (
        text_id("model_id", "Hash of the split and the model's settings."),
        text_id("side", "user or item."),
        text_id("id", "Original user or item id."),
        Column("vector", array_of(T.FloatType()), "Embedding, float32.", False),
        Column("bias", DOUBLE, "Added to the score; 0 where the model has none.", False),
    ),
    partition_by=("model_id", "side"),
)

SIMILARITIES = Table(
    "similarities",
    "Item-to-item weights of neighbourhood models.",
    (
        text_id("model_id", "Hash of the split and the model's settings."),
        ITEM_ID,
        text_id("neighbour_id", "Item whose presence in the history raises the score of item_id."),
        Column("weight", DOUBLE, "Added to the score per interaction with the neighbour.", False),
    ),
    partition_by=("model_id",),
)
