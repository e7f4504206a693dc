"""Read a MovieLens folder as arrays: likes, titles and genres.

Spark is not needed.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.errors import DataError
from recbench_spark.models.networks.factors import UserItemPairs, make_pairs

Floats = npt.NDArray[np.float32]
LIKED_RATING = 4
"""Smallest rating of a liked pair."""

WORD_DIMS = 32


class Movies(NamedTuple):
    """A folder's movies by id, with and without likes.

    Attributes:
        pairs: the pairs with a rating of at least LIKED_RATING.
        genres: (movies, genres) 0 or 1, genres in alphabetical order.
        words: (movies, WORD_DIMS) hashed title words.
        ids: (movies,) the folder's ids.
    """

    pairs: UserItemPairs
    genres: Floats
    words: Floats
    ids: npt.NDArray[np.int64]


def read_movies(folder: Path) -> Movies:
    """Read liked pairs, genres and title words.

    The folder is ml-100k, ml-1m or ml-latest-small.

    Raises:
        DataError: none of the known files is there.
    """
    ratings, titles = read_ratings(folder), read_titles(folder)
    liked = ratings[(ratings["rating"] >= LIKED_RATING) & ratings["item"].isin(titles.keys())]
    ids = np.array(sorted(titles))
    users = np.unique(liked["user"])
    pairs = make_pairs(
        np.searchsorted(users, liked["user"]), np.searchsorted(ids, liked["item"]), len(users), len(ids)
    )
    names = sorted({genre for _, own in titles.values() for genre in own})
    genres = np.array([[genre in titles[i][1] for genre in names] for i in ids.tolist()], np.float32)
    return Movies(pairs, genres, np.stack([hash_words(titles[i][0]) for i in ids.tolist()]), ids)


def write_features(path: Path, ids: npt.NDArray[np.int64], features: Floats) -> None:
    """Write (id, vector) as `features` for graph models.

    Args:
        path: the Parquet file.
        ids: (n,) whole numbers.
        features: (n, d).
    """
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1])
    pq.write_table(pa.table({"id": ids, "vector": vectors.cast(pa.list_(pa.float32()))}), path)


def read_ratings(folder: Path) -> pd.DataFrame:
    """Read each row's user, item and rating.

    Raises:
        DataError: none of the known files is there.
    """
    files: dict[str, dict[str, Any]] = {
        "ratings.tsv.gz": {"sep": "\t"}, "u.data": {"sep": "\t", "header": None}, "ratings.csv": {},
    }  # fmt: skip
    for name, layout in files.items():
        if (folder / name).exists():
            ratings: pd.DataFrame = pd.read_csv(folder / name, **layout).iloc[:, :3]
            ratings.columns = ["user", "item", "rating"]
            return ratings
    raise DataError(f"{folder}: no ratings.tsv.gz, u.data or ratings.csv", "give a MovieLens folder")


def read_titles(folder: Path) -> dict[int, tuple[str, list[str]]]:
    """Read title and genres by id.

    Raises:
        DataError: none of the known files is there.
    """
    titles = {}
    if (folder / "movies.csv").exists():
        rows = pd.read_csv(folder / "movies.csv").to_numpy().tolist()
        return {int(i): (str(title), str(genres).split("|")) for i, title, genres in rows}
    if (folder / "movies.dat").exists():
        for line in (folder / "movies.dat").read_text(encoding="latin-1").splitlines():
            number, title, genres = line.split("::")
            titles[int(number)] = (title, genres.split("|"))
        return titles
    if not (folder / "u.item").exists():
        raise DataError(f"{folder}: no movies.csv, movies.dat or u.item", "give a MovieLens folder")
    for line in (folder / "u.item").read_text(encoding="latin-1").splitlines():
        number, title, *_, flags = line.split("|", 5)
        titles[int(number)] = (title, [str(n) for n, flag in enumerate(flags.split("|")) if flag == "1"])
    return titles


def hash_words(title: str) -> Floats:
    """Hash words to a vector (WORD_DIMS,).

    Each word's hash chooses its place and its sign.
    """
    vector = np.zeros(WORD_DIMS, np.float32)
    for word in re.findall(r"[a-z0-9]+", title.lower()):
        place = zlib.crc32(word.encode())
        vector[place % WORD_DIMS] += 1.0 if place >> 16 & 1 else -1.0
    return vector


def log_degree(pairs: UserItemPairs) -> Floats:
    """Return log(1 + pairs) / 5, (items, 1).

    The number is as large as other features.
    """
    counts = np.bincount(pairs.item, minlength=pairs.items)
    return (np.log1p(counts)[:, None] / 5).astype(np.float32)
