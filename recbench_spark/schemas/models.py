"""Tables of trained models."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import DOUBLE, ITEM_ID, Table, TableColumn, array_type, text_column

EMBEDDINGS = Table(
    "embeddings",
    "Vectors of trained models.",
    (
        text_column("model_id", "Hash of the split and the model's settings."),
        text_column("side", "user or item."),
        text_column("id", "Original user or item id."),
        TableColumn("vector", array_type(T.FloatType()), "Embedding, float32.", False),
        TableColumn("bias", DOUBLE, "Added to the score; 0 where the model has none.", False),
    ),
    partition_by=("model_id", "side"),
)

SIMILARITIES = Table(
    "similarities",
    "Item-to-item weights of neighbourhood models.",
    (
        text_column("model_id", "Hash of the split and the model's settings."),
        ITEM_ID,
        text_column("neighbour_id", "Item whose presence in the history raises the score of item_id."),
        TableColumn("weight", DOUBLE, "Added to the score per interaction with the neighbour.", False),
    ),
    partition_by=("model_id",),
)
