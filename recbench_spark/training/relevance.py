"""The training rows that models of implicit feedback see."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def keep_relevant(frame: DataFrame, threshold: float | None) -> DataFrame:
    """Keep rows whose rating is at least the threshold (None: above 0)."""
    return frame.where(F.col("rating") > 0 if threshold is None else F.col("rating") >= threshold)
