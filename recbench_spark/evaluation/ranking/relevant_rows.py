"""Relevant grades as a condition of Spark: `kernels.ranking.rankings.mark_relevant` on columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from recbench_spark.kernels.ranking.rankings import list_roundings


def is_relevant(grade: Column, threshold: float | None) -> Column:
    """Return whether a grade reaches the threshold; without a threshold, whether it is above 0."""
    if threshold is None:
        return grade > 0
    equal = list_roundings(threshold)
    reached = grade >= F.lit(float(threshold))
    return reached | grade.isin(equal) if equal else reached
