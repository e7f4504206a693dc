"""Inputs of the matrix's jobs, drawn once from a fixed seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

USERS, ITEMS, ROWS, EDGES = 200, 100, 4000, 3000
LISTED = 20
WORLD = {"users": USERS, "items": ITEMS, "interactions": 5000, "open_loop": 2000, "loop": 0.95, "seed": 42}
NIGHT: dict[str, Any] = {
    "dataset": {"name": "world", "reader": "world", "world": WORLD},
    "split": {"protocol": "RO_RS", "ratio": [0.8, 0.0, 0.2], "seed": 42},
    "headline": "ndcg@10",
}
WIDE: dict[str, Any] = {
    "name": "platforms",
    "models": [
        {"name": "random", "kind": "random"},
        {"name": "popular", "kind": "popular"},
        {"name": "item_knn", "kind": "item_knn", "neighbours": 100},
    ],
    "evaluation": {
        "k": [1, 3, 5, 10, 20],
        "parts": ["test", "open_loop"],
        "definition": {"threshold": 4},
        "slices": [{"key": "popularity", "of": "popularity"}],
        "exposure": {"propensities": {"method": "true"}},
    },
    "paradoxes": {"metrics": ["ndcg"], "k": [10], "replicates": 50, "flips_against": "all"},
}
ALS: dict[str, Any] = {
    "name": "platforms_als",
    "models": [{"name": "als_8", "kind": "mllib_als", "rank": 8}],
    "evaluation": {"k": [10], "definition": {"threshold": 4}},
}


def write_inputs(folder: Path) -> None:
    """Write files of a night, a log, lists with their truth, and edges."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in (("night", WIDE), ("als", ALS)):  # JSON is YAML
        (folder / f"{name}.yaml").write_text(json.dumps(NIGHT | settings, indent=1), encoding="utf-8")
    draw = np.random.default_rng(51)
    log = draw_log(draw)
    pq.write_table(log, folder / "log.parquet")
    pc.write_csv(log, folder / "log.csv")
    order = np.argsort(draw.random((USERS, ITEMS)), axis=1)
    pq.write_table(list_items(order[:, :LISTED]), folder / "lists.parquet")
    truth = list_items(order[:, LISTED - 3 : LISTED + 3]).drop_columns(["rank"])
    pq.write_table(truth, folder / "truth.parquet")
    ends = {"src": draw.integers(0, USERS, EDGES), "dst": draw.integers(0, USERS, EDGES)}
    pc.write_csv(pa.table(ends), folder / "edges.csv")


def draw_log(draw: np.random.Generator) -> pa.Table:
    """Return a log without repeats, in a drawn order."""
    pairs = draw.permutation(USERS * ITEMS)[:ROWS]
    columns = {
        "user_id": pairs // ITEMS,
        "item_id": pairs % ITEMS,
        "rating": draw.integers(1, 6, ROWS).astype(float),
        "event_time": 1_600_000_000 + draw.permutation(ROWS),
    }
    return pa.table(columns)


def list_items(items: np.ndarray) -> pa.Table:
    """Return rows of lists, one list a user."""
    users, length = items.shape
    ranks = np.tile(np.arange(1, length + 1), users)
    return pa.table(
        {"user_id": np.repeat(np.arange(users), length), "item_id": items.ravel(), "rank": ranks}
    )
