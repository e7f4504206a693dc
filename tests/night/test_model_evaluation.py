"""A night and the one call rank by one path: the same rankings and the same findings."""

from __future__ import annotations

import io
import random
from typing import Any

import pandas as pd
import pytest

import recbench_spark
from recbench_spark.config import CandidateDraw
from recbench_spark.night.run_night import open_night
from recbench_spark.night.split import prepare_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CHECKS, ITEMS, RANKINGS, SPLITS
from recbench_spark.storage.store import Store
from tests.nights import DATE, read_pandas, read_split, run, small

SETTINGS: dict[str, Any] = {
    "dataset": {
        "name": "tiny",
        "reader": "world",
        "world": {"users": 60, "items": 50, "interactions": 1000, "open_loop": 0, "seed": 3},
    },
    "split": {"protocol": "RO_RS", "ratio": [0.8, 0, 0.2], "seed": 5},
}
COMPARED = [
    "user_id",
    "item_ids",
    "relevance",
    "above",
    "tied",
    "before",
    "length",
    "drawn",
    "pool",
    "top_items",
]


@pytest.fixture(scope="module")
def world(spark, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A store with one split, its parts, and tables of another system; one user is unknown to it."""
    folder = tmp_path_factory.mktemp("tiny")
    store = Store(spark, str(folder / "warehouse"))
    night = open_night(store, benchmark([], "unseen"), DATE)
    prepare_split(store, night.benchmark, night.split_id, Journal(io.StringIO()))
    log = read_pandas(store, SPLITS, split_id=night.split_id)
    items, rng = sorted(row.item_id for row in read_split(night, ITEMS)), random.Random(4)
    users = sorted(set(log.user_id))[1:]
    tables = {
        "users": pd.DataFrame({"user_id": users, "vector": [[rng.gauss(0, 1), 1.0] for _ in users]}),
        "items": pd.DataFrame({"item_id": items, "vector": [[rng.gauss(0, 1), 0.5] for _ in items]}),
        "rows": pd.DataFrame(
            [(u, i, float(rng.randrange(4))) for u in users for i in rng.sample(items, 9)],
            columns=["user_id", "item_id", "score"],
        ),
    }
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet")
    return {"store": store, "log": log, "folder": folder, **tables}


def benchmark(models: list[dict[str, Any]], mode: str) -> Any:
    evaluation = {
        "metrics": ["ndcg", "coverage"], "k": [3], "slices": [], "draw": {"n": 5},
        "definition": {"candidates": mode},
    }  # fmt: skip
    published = {"name": "paper", "kind": "published", "figures": {"ndcg@3": 0.1}}
    return small(**SETTINGS, models=models or [published], evaluation=evaluation)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("embeddings", "unseen"), ("embeddings", "uniform"), ("scores", "unseen"), ("lists", "unseen")],
)
def test_a_night_and_the_one_call_rank_alike(spark, world: dict[str, Any], kind: str, mode: str) -> None:
    folder, log = world["folder"], world["log"]
    paths = {name: str(folder / f"{name}.parquet") for name in ("users", "items", "rows")}
    given = {"users": paths["users"], "items": paths["items"]}
    settings = given if kind == "embeddings" else {"path": paths["rows"]}
    store = world["store"]
    ran = run(store, benchmark([{"name": "m", "kind": kind, **settings}], mode), force=True)
    stored = [("run_id", "=", ran.outcome.run_ids["m"])]
    rankings = store.read_partition(RANKINGS, "run_id", ran.outcome.run_ids["m"])
    tables = {name: spark.createDataFrame(world[name]) for name in ("users", "items", "rows")}
    system = (tables["users"], tables["items"]) if kind == "embeddings" else tables["rows"]
    parts = {part: log[log.part == part][["user_id", "item_id", "rating"]] for part in ("train", "test")}
    result = recbench_spark.evaluate(
        spark.createDataFrame(parts["test"].rename(columns={"rating": "relevance"})),
        train=spark.createDataFrame(parts["train"]),
        metrics=("ndcg", "coverage"), k=(3,), definition={"candidates": mode}, draw=CandidateDraw(n=5),
        **{kind: system},
    )  # fmt: skip
    assert rows(rankings) == rows(result.rankings)
    result_checks = {check.check: check.observed for check in result.checks}
    checks = {row["check"]: row["observed"] for row in store.rows(CHECKS, stored)}
    common = checks.keys() & result_checks.keys()
    assert {name: checks[name] for name in common} == {name: result_checks[name] for name in common}
    assert len(common) >= (3 if kind == "embeddings" else 8), sorted(common)
    result.release()


def rows(rankings: Any) -> list[str]:
    texts = sorted(repr(row.asDict()) for row in rankings.select(*COMPARED).collect())
    assert len(texts) > 20
    return texts
