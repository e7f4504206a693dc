"""Read MovieLens files, 100K to 32M: ratings, and the attributes of users and items."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from recbench_spark.config import Dataset
from recbench_spark.data.readers.files import read_fields
from recbench_spark.data.readers.paths import find_file, is_folder
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.data.text_layouts import (
    LAYOUTS,
    MOVIELENS,
    SOURCE_COLUMNS,
    name_layout,
)


def read_movielens(spark: SparkSession, dataset: Dataset) -> RawLog:
    """Read the ratings file at or under the path: `u.data`, `ratings.dat` (`::`) or `ratings.csv`."""
    path, name = _find_ratings(spark, str(dataset.path), MOVIELENS[dataset.reader])
    text = read_fields(spark, path, LAYOUTS[name])
    return RawLog(
        text.frame,
        path,
        text.line,
        SOURCE_COLUMNS.get(name, {}),
        ("event_time",),
        time_unit=dataset.time_unit,
    )


def _find_ratings(spark: SparkSession, path: str, names: tuple[str, ...]) -> tuple[str, str]:
    """Find the ratings file at or under the path, and the name of its layout."""
    file = find_file(spark, path, names) if is_folder(spark, path) else path
    return file, name_layout(Path(file), names)
