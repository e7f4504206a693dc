"""Start another library's Spark session with this package's settings.

The relevant lines of its properties file are taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SETTINGS = ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions", "spark.ui.enabled")


def get_session() -> Any:
    """Start a new session; each environment has its own Spark."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    properties = Path(__file__).resolve().parents[2] / "conf" / "spark" / "local.conf"
    lines = [line.split() for line in properties.read_text().splitlines() if line.startswith("spark.")]
    builder = SparkSession.builder.config("spark.log.level", "ERROR")
    for key, value in lines:
        if key in SETTINGS:
            builder = builder.config(key, value)
    return builder.getOrCreate()
