"""Start the Spark session of another library, with the relevant lines of the properties file of this
package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SETTINGS = ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions", "spark.ui.enabled")


def get_session() -> Any:
    """Return a new session; each library's environment has a Spark of its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    properties = Path(__file__).resolve().parents[2] / "conf" / "spark" / "local.conf"
    lines = [line.split() for line in properties.read_text().splitlines() if line.startswith("spark.")]
    builder = SparkSession.builder.config("spark.log.level", "ERROR")
    for key, value in lines:
        if key in SETTINGS:
            builder = builder.config(key, value)
    return builder.getOrCreate()
