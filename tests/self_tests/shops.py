"""A planted shop: users with tastes, a log of forty days, and models that teams deliver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recbench_spark.config import Benchmark, parse

BEGIN, DAY = 1_767_225_600, 86_400  # 2026-01-01
DAYS, ROWS, LENGTH = 40, 14, 20
DAY_BEFORE, LAST_DAY = "2026-02-08", "2026-02-09"


def write_shop(folder: Path, users: int = 240, items: int = 90, seed: int = 1) -> None:
    """Write log.csv, and vectors, scores and lists of models."""
    rng = np.random.default_rng(seed)
    taste, item = rng.standard_normal((users, 5)), rng.standard_normal((items, 5))
    bias = rng.standard_normal(items) * 0.7
    utility = taste @ item.T + bias
    noisy = utility + rng.gumbel(size=utility.shape)
    chosen = np.argsort(-noisy, axis=1)[:, :ROWS]
    times = np.sort(rng.integers(0, DAYS * DAY, (users, ROWS)), axis=1)
    order = np.argsort(rng.random((users, ROWS)), axis=1)
    rows = [
        (f"u{u}", f"i{chosen[u, order[u, n]]}", 1 + (4 if utility[u, chosen[u, order[u, n]]] > 1 else 2),
         BEGIN + times[u, n], ("it", "de", "fr")[u % 3])
        for u in range(users) for n in range(ROWS)
    ]  # fmt: skip
    names = ["user_id", "item_id", "rating", "event_time", "country"]
    pd.DataFrame(rows, columns=names).to_csv(folder / "log.csv", index=False)
    for name, noise in (("ours", 0.2), ("theirs", 0.6)):
        own, other = ((one + noise * rng.standard_normal(one.shape)) for one in (taste, item))
        write_vectors(folder / f"{name}-users.parquet", "user_id", "u", own)
        write_vectors(folder / f"{name}-items.parquet", "item_id", "i", other)
    scores = utility + 0.3 * rng.standard_normal(utility.shape)
    pairs = [(f"u{u}", f"i{i}", float(scores[u, i])) for u in range(users) for i in range(items)]
    pd.DataFrame(pairs, columns=["user_id", "item_id", "score"]).to_parquet(folder / "scores.parquet")
    for day, end in ((LAST_DAY, DAYS * DAY), (DAY_BEFORE, (DAYS - 1) * DAY)):
        lists = []
        for u in range(users):
            known = [f"i{chosen[u, order[u, n]]}" for n in range(ROWS) if times[u, n] < end][:-3]
            ranked = [name for i in np.argsort(-scores[u]) if (name := f"i{i}") not in known]
            lists += [(f"u{u}", one, rank) for rank, one in enumerate(ranked[:LENGTH], 1)]
        frame = pd.DataFrame(lists, columns=["user_id", "item_id", "rank"])
        frame.to_parquet(folder / f"lists-{day}.parquet")


def write_vectors(path: Path, name: str, letter: str, vectors: Any) -> None:
    ids = [f"{letter}{n}" for n in range(len(vectors))]
    pd.DataFrame({name: ids, "vector": list(vectors.astype(np.float32))}).to_parquet(path)


RULES: dict[str, Any] = {
    "gates": [
        *({"fact": fact, "moved": 0.1, "action": "warn"} for fact in ("rows", "users", "items")),
        {"fact": "newest_event", "part": "log", "still": True, "action": "warn"},
        {"fact": "oldest_event", "part": "log", "moved": 0, "action": "warn"},
    ],
    "comparisons": {"metrics": ["ndcg", "recall"], "k": [10, 20]},
    "regressions": [
        {"metric": "ndcg", "k": 10, "drop": 0.002, "certain": True, "rise": 0.05},
        {"metric": "recall", "k": 20, "drop": 0.002, "certain": True},
    ],
}
"""What `recbench init` writes."""


def make_benchmark(folder: Path, **changes: Any) -> Benchmark:
    vectors = [
        {"name": name, "kind": "embeddings", "users": str(folder / f"{name}-users.parquet"),
         "items": str(folder / f"{name}-items.parquet")}
        for name in ("ours", "theirs")
    ]  # fmt: skip
    document = {
        "name": "shop",
        "dataset": {"name": "shop", "reader": "csv", "path": str(folder / "log.csv"),
                    "attributes": ["country"]},
        "split": {"order": "temporal", "holdout": "last_n", "n": 3, "seed": 5},
        "models": [
            {"name": "popular", "kind": "popular"},
            *vectors,
            {"name": "scores", "kind": "scores", "path": str(folder / "scores.parquet")},
            {"name": "lists", "kind": "lists", "path": str(folder / "lists-{logical_date}.parquet")},
        ],
        "evaluation": {"metrics": ["ndcg", "recall"], "k": [10, 20], "definition": {"threshold": 4},
                       "slices": [{"key": "country", "of": "log"}], "bootstrap": {"replicates": 50}},
        **RULES,
        **changes,
    }  # fmt: skip
    return parse(Benchmark, document, "tests/self_tests/shops.py")
