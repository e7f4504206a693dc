"""Models that need no Spark: the tables of both runners, held-out users, processes that die."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.config import Benchmark, WorldSettings, make_benchmark
from recbench_spark.core.own_modules import import_attribute
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import FallbackToSpark
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.fits.logs import to_decimals
from recbench_spark.models.fits.running import run_tasks
from recbench_spark.models.settings import list_kinds, model_class, name_adapter
from recbench_spark.night.model_fits import fit_models_in_tasks, train_model
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.ranking.kernels.scorers import DotScorer
from recbench_spark.runtime.failures import POOL_BROKEN, describe_error
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import EMBEDDINGS, FITS, ITEMS
from recbench_spark.schemas import SPLITS as SPLITS_TABLE
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from tests.night.test_local_splits import split_log, write_log
from tests.rows import read_rows
from tools.compare_warehouses import main as compare

WORLD = WorldSettings(users=50, items=40, interactions=1000, open_loop=0, seed=3)
MODELS: list[dict[str, Any]] = [
    {"kind": "random"},
    {"kind": "popular"},
    {"kind": "truth"},
    {"kind": "item_knn", "neighbours": 6},
    {"kind": "item_knn", "neighbours": 4, "scores": "centred_mean", "max_history": 5},
    {"kind": "item_knn", "neighbours": 40, "scores": "centred_mean"},
    {"kind": "als", "rank": 3, "iterations": 2},
    {"kind": "als", "rank": 3, "iterations": 2, "implicit": False},
    {"kind": "implicit_als", "dims": 3, "sweeps": 2},
    {"kind": "sgd_mf", "dims": 3, "epochs": 2},
    {"kind": "means"},
    {"kind": "means", "means": "items_users", "user_shrinkage": 3.0, "item_shrinkage": 2.0},
    {"kind": "means", "means": "items"},
    {"kind": "means", "means": "users"},
    {"kind": "means", "means": "global"},
]
FEW = [MODELS[n] for n in (1, 3, 6, 9, 10)]
"""One of each family."""
LEARNT = ("als", "implicit_als", "sgd_mf")
SPLITS: dict[str, dict[str, Any]] = {
    "ratio": {"protocol": "RO_RS", "ratio": [0.6, 0.2, 0.2]},
    "users": {"protocol": "RO_RS", "held_out": {"of": "users", "test": 0.3}},
    "items": {"protocol": "TO_RS", "held_out": {"of": "items", "test": 0.3}},
    "repeats": {"protocol": "TO_LS", "repeats": "keep"},
}


def make(path: str, split: str, models: list[dict[str, Any]] = MODELS) -> Benchmark:
    document = {
        "name": "fits",
        "dataset": {"name": "log", "reader": "parquet", "path": path},
        "split": SPLITS[split],
        "evaluation": {"metrics": ["ndcg"], "k": [5], "definition": {"threshold": 4}},
        "models": [{"name": f"m{n}", **model} for n, model in enumerate(models)],
    }
    if split != "repeats":
        document["dataset"]["duplicates"] = "keep_last"
    return make_benchmark(document, [], "test")


def open_night(store: Any, benchmark: Benchmark) -> BenchmarkNight:
    split_id = split_log(store, benchmark)
    return BenchmarkNight(store, benchmark, benchmark.definition, split_id, {}, date(2026, 1, 1))


def fit_all(store: Any, benchmark: Benchmark) -> BenchmarkNight:
    night, journal = open_night(store, benchmark), Journal(io.StringIO())
    vars(night)["data"] = replace(night.data, world=WORLD)  # which a file has no place for beside a log
    learnt = {model.name for model in benchmark.models if model.kind in LEARNT}
    assert fit_models_in_tasks(night, benchmark.models, journal) == learnt
    for model in benchmark.models:
        train_model(night, model, journal)
    return night


@pytest.mark.parametrize("split", SPLITS)
def test_tables_of_both_runners_are_the_same(spark, tmp_path: Path, split: str) -> None:
    """One process, two processes, and Spark."""
    chosen = MODELS if split in ("users", "repeats") else FEW
    benchmark = make(write_log(tmp_path / "log", 5, text=split == "users"), split, chosen)
    als = chosen.index(MODELS[6])
    places = [str(tmp_path / place) for place in ("one", "two", "spark")]
    stores = ArrowStore(places[0]), ArrowStore(places[1], workers=2), Store(spark, places[2])
    nights = [fit_all(store, benchmark) for store in stores]
    assert [compare([place, places[2]]) for place in places[:2]] == [0, 0]
    assert len(stores[0].rows(FITS)) == sum(model["kind"] in LEARNT for model in chosen)
    vectors = []
    for night in nights:
        adapter = make_adapter(benchmark.models[als])
        trained = adapter.load(night.data)
        source = adapter.open_source(trained, night.data)
        ranked = adapter.rank_users(trained, source, night.data)
        assert ranked is not None
        vectors.append(sorted(map(repr, read_rows(ranked, ("user_id", "vector")))))
    assert vectors[0] == vectors[1] == vectors[2]


def test_held_out_users_have_the_vectors_of_their_given_rows(tmp_path: Path) -> None:
    benchmark = make(write_log(tmp_path / "log", 6), "users")
    store = ArrowStore(str(tmp_path / "w"))
    data = fit_all(store, benchmark).data
    adapter = make_adapter(benchmark.models[6])
    trained = adapter.load(data)
    scorer, folder = adapter.make_prefix_scorer(trained, data).open()
    assert isinstance(scorer, DotScorer) and folder is not None
    ranked = adapter.rank_users(trained, adapter.open_source(trained, data), data)
    assert ranked is not None
    vectors = {row["user_id"]: row["vector"] for row in read_rows(ranked, ("user_id", "vector"))}
    fitted = {row["id"] for row in store.rows(EMBEDDINGS, [("side", "=", "user")])}
    given = store.rows(SPLITS_TABLE, [("part", "=", "given")])
    held_out = sorted({row["user_id"] for row in given if row["rating"] >= 4})
    assert set(vectors) - set(held_out) <= fitted and len(held_out) > 5
    for user in held_out:
        own = [row for row in given if row["user_id"] == user]
        index = {row["item_id"]: row["item_index"] for row in store.rows(ITEMS)}
        rows = sorted((index[row["item_id"]], row["rating"]) for row in own)
        items, ratings = np.array([item for item, _ in rows]), np.array([rating for _, rating in rows])
        folded = folder.fold(np.array([0, len(rows)]), items, ratings)
        if folded.known_p[-1]:
            assert vectors[user] == folded.vectors_pd[-1].tolist()
        else:
            assert user not in vectors


@pytest.mark.parametrize("order", ["users_items", "items_users", "items", "users", "global"])
def test_means_equal_fractions(tmp_path: Path, order: str) -> None:
    settings = {"kind": "means", "means": order, "user_shrinkage": 3.0, "item_shrinkage": 2.0}
    benchmark = make(write_log(tmp_path / "log", 8), "ratio", [settings])
    store = ArrowStore(str(tmp_path / "w"))
    night = open_night(store, benchmark)
    train_model(night, benchmark.models[0], Journal(io.StringIO()))
    rows = store.rows(SPLITS_TABLE, [("part", "=", "train")])
    mean = Fraction(sum(Fraction(row["rating"]) for row in rows), len(rows))
    left = [Fraction(row["rating"]) - mean for row in rows]
    expected: dict[str, dict[str, Fraction]] = {
        "item": {row["item_id"]: Fraction() for row in rows}, "user": {},
    }  # fmt: skip
    for side in () if order == "global" else tuple(name[:-1] for name in order.split("_")):
        ids, shrinkage = [row[f"{side}_id"] for row in rows], 3 if side == "user" else 2
        groups = {one: [x for x, name in zip(left, ids, strict=True) if name == one] for one in set(ids)}
        expected[side] = {one: sum(own) / (len(own) + shrinkage) for one, own in groups.items()}
        left = [x - expected[side][one] for x, one in zip(left, ids, strict=True)]
    biases = {side: {} for side in expected}
    for row in store.rows(EMBEDDINGS):
        assert row["vector"] == []
        biases[row["side"]][row["id"]] = row["bias"]
    assert biases["user"] == pytest.approx(
        {one: float(x) for one, x in expected["user"].items()}, abs=1e-13
    )
    wanted = {one: float(mean + x) for one, x in expected["item"].items()}
    assert biases["item"] == pytest.approx(wanted, abs=1e-13)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, "0.100000000000000"), (2.1234567890123455, "2.123456789012346"), (-1e-16, "0.000000000000000")],
)
def test_decimals_round_the_shortest_text_half_up(number: float, text: str) -> None:
    (rounded,) = to_decimals(np.array([number])).to_pylist()
    assert rounded == Decimal(text)


def test_kinds_that_need_spark_say_so(tmp_path: Path) -> None:
    """Before any work; the others are listed, so that a change is seen."""
    models = [{"kind": "mllib_als"}]
    benchmark = make(write_log(tmp_path / "log", 7), "ratio", models)
    store = ArrowStore(str(tmp_path / "w"))
    night = open_night(store, benchmark)
    for model in benchmark.models:
        with pytest.raises(FallbackToSpark, match=f"model {model.name}: kind '{model.kind}'"):
            train_model(night, model, Journal(io.StringIO()))
        with pytest.raises(FallbackToSpark):
            _ = night.data.train_rows
    ranked = [kind for kind in list_kinds() if kind != "published"]
    kinds = {kind: import_attribute(name_adapter(model_class(kind)), kind) for kind in ranked}
    local = {kind for kind, adapter in kinds.items() if adapter.runs_local}
    assert {
        "popular",
        "random",
        "truth",
        "item_knn",
        "als",
        "implicit_als",
        "means",
        "neumf",
        "rbm",
        "mf_bpr",
        "lightgcn",
        "sasrec",
        "gru4rec",
        "memn2n",
        "pinsage",
        "graph",
        "embeddings",
        "scores",
        "switch",
        "lists",
    } <= local
    assert "mllib_als" not in local


def end_second(task: int) -> dict[str, Any]:
    """Die in task 1, as a process without memory does."""
    if task == 1:
        os._exit(9)
    return {"task": task, "process": os.getpid()}


def test_a_process_that_dies_takes_no_other_fit_with_it(tmp_path: Path) -> None:
    engine = LocalEngine(str(tmp_path), 2)
    results = sorted(run_tasks(engine, [0, 1, 2], end_second, 2), key=lambda result: result.place)
    assert [result.row and result.row["task"] for result in results] == [0, None, 2]
    assert all(result.row is None or result.row["process"] != os.getpid() for result in results)
    error = results[1].error
    assert error is not None and describe_error(error) == POOL_BROKEN


def test_one_process_runs_fits_itself(tmp_path: Path) -> None:
    (result,) = run_tasks(LocalEngine(str(tmp_path)), [0], end_second, 1)
    assert result.row == {"task": 0, "process": os.getpid()}
