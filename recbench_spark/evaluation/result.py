"""What one evaluation found, before it is written anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
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


@dataclass(frozen=True)
class LocalResult:
    """What an evaluation in this process found, as Arrow tables (`to_pandas()`, or any frame of yours).

    metrics, user_metrics: rows of the tables of these names, without a run; rankings: one row per user,
    None for predictions; truth: of predictions, a hash of what is predicted.
    """

    metrics: pa.Table
    user_metrics: pa.Table
    rankings: pa.Table | None
    checks: list[Check]
    truth: str | None = None

    def release(self) -> None:
        """Nothing is kept elsewhere."""
