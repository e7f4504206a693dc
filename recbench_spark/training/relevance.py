"""Which training rows models of implicit feedback see."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def keep_relevant(frame: DataFrame, threshold: float | None) -> DataFrame:
    """Rows whose rating makes them relevant."""
    return frame.where(F.col("rating") > 0 if threshold is None else F.col("rating") >= threshold)
