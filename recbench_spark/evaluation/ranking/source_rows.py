"""Rows of a model's catalogue, mapped by workers (`sources`), as frames of Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame


def vector_rows(items: DataFrame, vectors: DataFrame) -> DataFrame:
    """Return the catalogue with each item's vector and bias, NULL where the model has none.

    Args:
        items: item_id, item_index.
        vectors: item_id, vector, bias.
    """
    return items.select("item_id", "item_index").join(
        vectors.select("item_id", "vector", "bias"), "item_id", "left"
    )
