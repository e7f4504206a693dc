"""Read MovieLens files, 100K to 32M: ratings, and the attributes of users and items."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from recbench_spark.config import Dataset
from recbench_spark.data.readers.files import Layout, read_fields
from recbench_spark.data.readers.paths import find_file, is_folder
from recbench_spark.data.readers.raw import RawLog
from recbench_spark.storage.local_files import bare_name

RATINGS = ("user_id", "item_id", "rating", "event_time")
GENRES = tuple(f"genre{n}" for n in range(19))

LAYOUTS: dict[str, Layout] = {
    "u.data": Layout("\t", RATINGS),
    "u.user": Layout("|", ("user_id", "age", "gender", "occupation", "zip_code"), "ISO-8859-1"),
    "u.item": Layout("|", ("item_id", "title", "release_date", "video_date", "url", *GENRES), "ISO-8859-1"),
    "ratings.dat": Layout("::", RATINGS),
    "users.dat": Layout("::", ("user_id", "gender", "age", "occupation", "zip_code"), "ISO-8859-1"),
    "movies.dat": Layout("::", ("item_id", "title", "genres"), "ISO-8859-1"),
    "ratings.tsv": Layout("\t"),
    "ratings.csv": Layout(","),
}
"""Layouts by file name; a `.gz` ending may follow."""

MOVIELENS: dict[str, tuple[str, ...]] = {
    "movielens_100k": ("u.data",),
    "movielens_1m": ("ratings.dat", "ratings.tsv"),
    "movielens_10m": ("ratings.dat",),
    "movielens_20m": ("ratings.csv",),
    "movielens_25m": ("ratings.csv",),
    "movielens_32m": ("ratings.csv",),
    "movielens_latest": ("ratings.csv",),
}
"""The ratings file of each data set: the first one that exists."""

SOURCE_COLUMNS: dict[str, dict[str, str]] = {
    "ratings.tsv": {"user_id": "user", "item_id": "item"},
    "ratings.csv": {"user_id": "userId", "item_id": "movieId", "event_time": "timestamp"},
}
"""Canonical names to the header's names, where they differ."""


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


def name_layout(file: Path, names: tuple[str, ...]) -> str:
    """Return the name in LAYOUTS of a ratings file's layout, by its ending."""
    ending = Path(bare_name(file.name)).suffix
    return next((name for name in names if Path(name).suffix == ending), names[0])
