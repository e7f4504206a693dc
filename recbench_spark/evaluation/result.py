"""What one evaluation found, before it is written anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from recbench_spark.checks import Check

PART = "test"
"""The part that what is handed over without a split is evaluated on."""


@dataclass(frozen=True)
class Result:
    """What an evaluation found. Frames are lazy; rankings are kept by Spark until `release`.

    rankings: one row per user (`schemas.RANKINGS`), None for predictions; truth: of predictions, a hash
    of what is predicted.
    """

    metrics: DataFrame
    user_metrics: DataFrame
    rankings: DataFrame | None
    checks: list[Check]
    kept: tuple[DataFrame, ...] = ()
    truth: str | None = None

    def release(self) -> None:
        """Let Spark forget what it kept for these frames."""
        for frame in self.kept:
            frame.unpersist()
