"""Logs in the shapes of public data sets, with rows of our own: each is written into a folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

FIRST = 1_262_304_000
"""2010-01-01 in seconds."""


def make_rows(users: int = 12, items: int = 15, each: int = 9) -> Iterator[tuple[int, int, int, int]]:
    """Yield user, item, rating and second of rows whose users are active all the time."""
    for user in range(1, users + 1):
        for n in range(each):
            item = 1 + (user * 7 + n * (1 + user % 3)) % items
            yield user, item, 1 + (user + item) % 5, FIRST + 86_400 * 30 * n + 600 * user


def _write(file: Path, lines: list[str]) -> Path:
    text = "\n".join(lines) + "\n"
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text)
    return file


def write_u_data(folder: Path) -> Path:
    return _write(folder / "u.data", ["\t".join(map(str, row)) for row in make_rows()])


def write_ratings_dat(folder: Path) -> Path:
    return _write(folder / "ratings.dat", ["::".join(map(str, row)) for row in make_rows()])


def write_ratings_csv(folder: Path) -> Path:
    lines = ["userId,movieId,rating,timestamp"]
    return _write(folder / "ratings.csv", lines + [f"{u},{i},{r}.5,{t}" for u, i, r, t in make_rows()])


def write_inter(folder: Path) -> Path:
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    return _write(folder / "own.inter", lines + [f"{u}\t{i}\t{r}\t{t}.0" for u, i, r, t in make_rows()])


def write_events(folder: Path) -> Path:
    lines = ["timestamp,visitorid,event,itemid,transactionid"]
    kinds = ("view", "view", "view", "addtocart", "transaction")
    for user, item, rating, second in make_rows():
        number = 9 if rating == 5 else ""
        lines.append(f"{second * 1000 + 117},{user},{kinds[rating - 1]},{item},{number}")
    return _write(folder / "events.csv", lines)


def write_checkins(folder: Path) -> Path:
    """Check-ins without a header: user, time, latitude, longitude, place; packed."""
    lines = []
    for user, item, _, second in make_rows():
        time = np.datetime64(second, "s")
        lines.append(f"{user}\t{time}Z\t{30 + item / 7:.6f}\t{-97 - item / 9:.6f}\t{item}")
    return _write(folder / "checkins.txt.gz", lines)


def write_matrices(folder: Path) -> Path:
    rows = np.zeros((12, 30), int)
    for user, item, rating, _ in make_rows():
        rows[user - 1, item - 1] = rating
    for name, shift in (("train.ascii", 0), ("test.ascii", 15)):
        _write(folder / name, [" ".join(map(str, row)) for row in np.roll(rows, shift, axis=1)])
    return folder


def _make_frame() -> pd.DataFrame:
    return pd.DataFrame(list(make_rows()), columns=["user_id", "item_id", "rating", "timestamp"])


def write_lenskit(folder: Path) -> Path:
    """Write a frame of LensKit: its times are timestamps."""
    frame = _make_frame()
    times = pa.array(frame.timestamp.to_numpy() * 1000, pa.timestamp("ms"))
    rating = pa.array(frame.rating, pa.float32())
    table = pa.table([frame.user_id, frame.item_id, rating, times], names=list(frame.columns))
    pq.write_table(table, folder / "lenskit.parquet")
    return folder / "lenskit.parquet"


def write_replay(folder: Path) -> Path:
    frame = _make_frame().rename(
        columns={"user_id": "user_idx", "item_id": "item_idx", "rating": "relevance"}
    )
    frame.to_parquet(folder / "replay.parquet")
    return folder / "replay.parquet"


def write_reviews(folder: Path) -> Path:
    """Write reviews as objects of JSON: business and date as Yelp has them, with a text beside."""
    lines = []
    for user, item, rating, second in make_rows():
        day = str(np.datetime64(second, "s")).replace("T", " ")
        review = {"review_id": f"r{user}.{item}", "user_id": f"u{user}", "business_id": f"b{item}"}
        review |= {"stars": float(rating), "useful": 0, "text": 'said "so",\nbriefly', "date": day}
        lines.append(json.dumps(review))
    return _write(folder / "reviews.json", lines)


def write_books(folder: Path) -> Path:
    """Write reviews as objects of JSON: two names of an item, and milliseconds, as Amazon has them."""
    lines = []
    for user, item, rating, second in make_rows():
        review = {
            "rating": float(rating),
            "asin": f"A{item}",
            "parent_asin": f"P{item}",
            "user_id": f"U{user}",
        }
        lines.append(json.dumps({**review, "timestamp": second * 1000 + 923, "images": []}))
    return _write(folder / "books.jsonl", lines)


SHAPES: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "movielens 100k": (write_u_data, ()),
    "movielens 1m": (write_ratings_dat, ()),
    "movielens latest": (write_ratings_csv, ()),
    "recbole": (write_inter, ()),
    "retailrocket": (write_events, ()),
    "gowalla": (write_checkins, ("--user-column", "_c0", "--item-column", "_c4")),
    "coat": (write_matrices, ()),
    "lenskit": (write_lenskit, ()),
    "replay": (write_replay, ()),
    "yelp": (write_reviews, ()),
    "amazon": (write_books, ("--item-column", "parent_asin")),
}
"""A function that writes each shape, and the flags that it needs."""
