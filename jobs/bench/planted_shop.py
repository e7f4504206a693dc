"""A planted shop: users with tastes, a log of forty days, and models that teams deliver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

BEGIN, DAY_SECONDS = 1_767_225_600, 86_400  # 2026-01-01
DAYS, ROWS, TESTED, LENGTH = 40, 14, 3, 20
DAY_BEFORE, LAST_DAY = "2026-02-08", "2026-02-09"


def write_shop(folder: Path, users: int, items: int = 90, seed: int = 1) -> None:
    """Write log.csv, vectors and scores of models, and lists for the last two days."""
    rng = np.random.default_rng(seed)
    taste, item = rng.standard_normal((users, 5)), rng.standard_normal((items, 5))
    utility = taste @ item.T + rng.standard_normal(items) * 0.7
    best = np.argsort(-(utility + rng.gumbel(size=utility.shape)), axis=1)[:, :ROWS]
    times = np.sort(rng.integers(0, DAYS * DAY_SECONDS, (users, ROWS)), axis=1)
    bought = np.take_along_axis(best, np.argsort(rng.random((users, ROWS)), axis=1), axis=1)
    user = np.repeat(np.arange(users), ROWS)
    log = {
        "user_id": [f"u{u}" for u in user],
        "item_id": [f"i{i}" for i in bought.ravel()],
        "rating": np.where(utility[user, bought.ravel()] > 1, 5, 3),
        "event_time": BEGIN + times.ravel(),
        "country": np.array(["it", "de", "fr"])[user % 3],
    }
    pd.DataFrame(log).to_csv(folder / "log.csv", index=False)
    for name, noise in (("ours", 0.2), ("theirs", 0.6)):
        own, other = (one + noise * rng.standard_normal(one.shape) for one in (taste, item))
        _write_vectors(folder / f"{name}-users.parquet", "user_id", own)
        _write_vectors(folder / f"{name}-items.parquet", "item_id", other)
    scores = utility + 0.3 * rng.standard_normal(utility.shape)
    _write_pairs(folder / "scores.parquet", np.tile(np.arange(items), (users, 1)), score=scores)
    for day, end in ((LAST_DAY, DAYS * DAY_SECONDS), (DAY_BEFORE, (DAYS - 1) * DAY_SECONDS)):
        left = scores.copy()
        for u in range(users):
            left[u, bought[u, times[u] < end][:-TESTED]] = -np.inf
        lists = np.argsort(-left, axis=1)[:, :LENGTH]
        rank = np.broadcast_to(np.arange(1, LENGTH + 1), lists.shape)
        _write_pairs(folder / f"lists-{day}.parquet", lists, rank=rank)


def _write_vectors(path: Path, name: str, vectors: npt.NDArray[Any]) -> None:
    ids = [f"{name[0]}{n}" for n in range(len(vectors))]
    pd.DataFrame({name: ids, "vector": list(vectors.astype(np.float32))}).to_parquet(path)


def _write_pairs(path: Path, items: npt.NDArray[Any], **values: npt.NDArray[Any]) -> None:
    users = np.repeat(np.arange(len(items)), items.shape[1])
    columns = {"user_id": [f"u{u}" for u in users], "item_id": [f"i{i}" for i in items.ravel()]}
    pd.DataFrame({**columns, **{name: one.ravel() for name, one in values.items()}}).to_parquet(path)


def describe_shop(folder: Path) -> dict[str, Any]:
    """Return the document of a benchmark file for a shop, without rules."""
    vectors = [
        {
            "name": name,
            "kind": "embeddings",
            "users": str(folder / f"{name}-users.parquet"),
            "items": str(folder / f"{name}-items.parquet"),
        }
        for name in ("ours", "theirs")
    ]
    lists = str(folder / "lists-{logical_date}.parquet")
    return {
        "name": "shop",
        "dataset": {
            "name": "shop",
            "reader": "csv",
            "path": str(folder / "log.csv"),
            "attributes": ["country"],
        },
        "split": {"order": "temporal", "holdout": "last_n", "n": TESTED, "seed": 5},
        "models": [
            {"name": "popular", "kind": "popular"},
            *vectors,
            {"name": "scores", "kind": "scores", "path": str(folder / "scores.parquet")},
            {"name": "lists", "kind": "lists", "path": lists},
        ],
        "evaluation": {
            "metrics": ["hit", "mrr", "ndcg", "recall"],
            "k": [5, 10, 20],
            "definition": {"threshold": 4},
            "slices": [{"key": "country", "of": "log"}],
        },
    }
