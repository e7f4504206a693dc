"""Stored models fold prefixes in as a refit from their stored item vectors does, in every kind that can."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.prefix_scorers import COLUMNS, VECTORS, fold_given_rows
from recbench_spark.models.prefix_vectors import FoldInSettings, RidgeFoldIn
from recbench_spark.ranking.kernels.scorers import DotScorer
from recbench_spark.ranking.part_users import PART_USERS, map_user_blocks, select_part_users
from recbench_spark.schemas import CHECKS, ITEMS, RANKINGS, RUNS, SPLITS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.blocks import return_rows
from recbench_spark.storage.store import Store
from tests.nights import TINY, Ran, read_pandas, read_split, run, small
from tests.nights import read_rows as read_all
from tests.refits import RefittingFolder, refit
from tests.rows import read_rows

pytestmark = pytest.mark.full

LIKES = {"unobserved_weight": 0.2, "regulariser": 0.03}
FIT = {"epochs": 1, "batch": 64, "validation": 0.2, "dims": 4}
KINDS: dict[str, dict[str, Any]] = {
    "als": {"kind": "als", "rank": 3, "iterations": 2},
    "explicit": {"kind": "als", "rank": 3, "iterations": 2, "implicit": False},
    "half": {"kind": "als", "rank": 3, "iterations": 2, "frequency": 0.5},
    "half_stars": {"kind": "als", "rank": 3, "iterations": 2, "frequency": 0.5, "implicit": False},
    "mllib_als": {"kind": "mllib_als", "rank": 3, "iterations": 2},
    "mllib_stars": {"kind": "mllib_als", "rank": 3, "iterations": 2, "implicit": False},
    "als_wr": {"kind": "als_wr", "dims": 3, "sweeps": 2},
    "implicit_als": {"kind": "implicit_als", "dims": 3, "sweeps": 2},
    "sgd_mf": {"kind": "sgd_mf", "dims": 3, "epochs": 2},
    "mf_bpr": {"kind": "mf_bpr", **FIT, "fold_in": LIKES},
    "mf_bpr_strong": {"kind": "mf_bpr", **FIT, "fold_in": {**LIKES, "regulariser": 3.0}},
    "lightgcn": {"kind": "lightgcn", **FIT, "layers": 1, "fold_in": LIKES},
}
WITHOUT_VECTORS = {"item_knn": {"kind": "item_knn"}, "popular": {"kind": "popular"}}
WIDTH, N_ITEMS = 5, 30


def write_item_vectors(path: Path) -> str:
    """Vectors of the items of the world, but for two, and of an item of another world."""
    draw, ids = np.random.default_rng(5), [f"i{n:05}" for n in range(N_ITEMS - 2)] + ["elsewhere"]
    vectors = [draw.normal(size=WIDTH).astype(np.float32).tolist() for _ in ids]
    pq.write_table(pa.table({"item_id": ids, "vector": vectors, "bias": [0.25] * len(ids)}), path)
    return str(path)


ON_SPARK = ("mllib_als", "mllib_stars")


@pytest.fixture(scope="module")
def spark_night(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The models of MLlib alone."""
    models = [{"name": name, **KINDS[name]} for name in ON_SPARK]
    return run_models(Store(spark, str(tmp_path_factory.mktemp("given_spark"))), models)


@pytest.fixture(scope="module")
def local_night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("given")
    items = write_item_vectors(place / "items.parquet")
    theirs = {
        "likes": {"kind": "embeddings", "items": items, "fold_in": LIKES},
        "ratings": {
            "kind": "embeddings", "items": items,
            "fold_in": {"targets": "ratings", "regulariser": 0.3, "bias_regulariser": 1.0},
        },
    }  # fmt: skip
    chosen = (KINDS | WITHOUT_VECTORS | theirs).items()
    models = [{"name": name, **model} for name, model in chosen if name not in ON_SPARK]
    return run_models(ArrowStore(str(place / "w")), models)


@pytest.fixture
def night(request: pytest.FixtureRequest) -> Ran:
    """The night that has the model of a test."""
    name = getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("name")
    return request.getfixturevalue("spark_night" if name in ON_SPARK else "local_night")


def run_models(store: Any, models: list[dict[str, Any]]) -> Ran:
    """Run a night of models; a fifth of the users is held out after four given rows."""
    split = {"holdout": "n_given", "n": 4, "held_out": {"of": "users", "test": 0.3}, "seed": 2}
    evaluation = {**TINY["evaluation"], "definition": {"threshold": 4}}
    requests = small(dataset=TINY["dataset"], split=split, models=models, evaluation=evaluation)
    return run(store, requests)


def open_model(night: Ran, name: str) -> tuple[Any, Any, FoldInSettings | None]:
    """Return the scorer, the folder and the settings of the fold-in, as a task opens them."""
    data = night.night.data
    (model,) = (model for model in night.benchmark.models if model.name == name)
    adapter = make_adapter(model)
    prefix_scorer = adapter.make_prefix_scorer(adapter.load(data), data)
    return *prefix_scorer.open(), prefix_scorer.fold_in


def read_histories(night: Ran) -> tuple[Any, Any, Any]:
    """All rows of the held-out users, with items by index."""
    rows = read_given(night, "given", "test")
    table = rows[rows["item"].notna()].rename(columns={"item": "item_index"})
    table = table.sort_values(["user_id", "part", "item_index"])
    users, counts = np.unique(table["user_id"], return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    assert len(users) > 5 and counts.min() > 4
    return offsets, table["item_index"].to_numpy(np.int64), table["rating"].to_numpy(np.float64)


def index_items(night: Ran) -> dict[str, int]:
    return {row.item_id: row.item_index for row in read_split(night.night, ITEMS)}


def read_given(night: Ran, *parts: str) -> pd.DataFrame:
    """Rows of parts of the split, with the items' places in the catalogue."""
    rows = read_pandas(night.store, SPLITS, split_id=night.night.split_id)
    rows = rows[rows["part"].isin(parts)].copy()
    rows["item"] = rows["item_id"].map(index_items(night))
    return rows


MLLIB = [pytest.param(name, marks=pytest.mark.spark) for name in ON_SPARK]


@pytest.mark.parametrize(
    "name", [*(name for name in KINDS if name not in ON_SPARK), *MLLIB, "likes", "ratings"]
)
def test_stored_models_fold_in_as_refits(night: Ran, name: str) -> None:
    scorer, folder, fold_in = open_model(night, name)
    assert isinstance(scorer, DotScorer) and fold_in is not None
    products = scorer.products
    model = (np.asarray(products.vectors_id), np.asarray(products.bias_i), np.asarray(products.scored_i))
    rows = read_histories(night)
    solved_pd, known_p = folder.solve(*rows)
    exact_pd, expected_p = RefittingFolder(fold_in, model).solve(*rows)
    assert known_p.tolist() == expected_p.tolist() and known_p.any()
    np.testing.assert_allclose(solved_pd, exact_pd, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["explicit", MLLIB[1]])
def test_ratings_of_held_out_users_are_predicted_by_their_given_rows(night: Ran, name: str) -> None:
    """Unknown are pairs with an item that training does not know, and no user who has given rows."""
    data = night.night.data
    (model,) = (model for model in night.benchmark.models if model.name == name)
    adapter = make_adapter(model)
    select = partial(select_part_users, parts=["test"], threshold=None, keep_empty=False)
    blocks = map_user_blocks(data.store, data.split_id, select, PART_USERS.names)
    predicted = pa.concat_tables(adapter.predict(blocks, data).each(return_rows)).to_pandas()
    trained = adapter.load(data)
    ranked = adapter.rank_users(trained, adapter.open_source(trained, data), data)
    assert ranked is not None and trained.items is not None
    vectors = {row["user_id"]: row["vector"] for row in read_rows(ranked, ("user_id", "vector"))}
    items = {row["item_id"]: row["vector"] for row in read_rows(trained.items, ("item_id", "vector"))}
    index = {place: item for item, place in index_items(night).items()}
    low, high = data.rating_log.scale if name == "explicit" else (-np.inf, np.inf)
    items_of = {row["user_id"]: row["items"] for row in read_rows(blocks, ("user_id", "items"))}
    assert len(predicted) > 5 and set(predicted.user_id) <= set(vectors)
    for row in predicted.itertuples():
        known = [items.get(index[item]) for item in items_of[row.user_id]]
        assert row.unknown == sum(vector is None for vector in known)
        wanted = [
            data.mean_rating if vector is None else np.clip(np.dot(vectors[row.user_id], vector), low, high)
            for vector in known
        ]
        assert row.prediction == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", WITHOUT_VECTORS)
def test_models_without_vectors_of_users_need_no_folder(night: Ran, name: str) -> None:
    _, folder, fold_in = open_model(night, name)
    assert folder is None and fold_in is None


def test_models_that_differ_in_fold_in_alone_are_fitted_once(night: Ran) -> None:
    scorers = [open_model(night, name)[0] for name in ("mf_bpr", "mf_bpr_strong")]
    assert scorers[0].products.vectors_id.tobytes() == scorers[1].products.vectors_id.tobytes()
    assert night.remarks.count("pairs of ") == 2  # one of MF-BPR, one of LightGCN
    runs = [row for name in ("mf_bpr", "mf_bpr_strong") for row in read_all(night.store, RUNS, model=name)]
    assert len({row.run_key for row in runs}) == 2


@pytest.mark.parametrize(("name", "lowest"), [("likes", 4.0), ("ratings", 0.0)])
def test_item_vectors_alone_rank_held_out_users_by_their_given_rows(
    night: Ran, name: str, lowest: float
) -> None:
    """The vectors of an ordinary ranking are the last ones of a prefix of the given rows."""
    data = night.night.data
    (model,) = (model for model in night.benchmark.models if model.name == name)
    adapter = make_adapter(model)
    prefix_scorer = adapter.make_prefix_scorer(adapter.load(data), data)
    fold = partial(fold_given_rows, known=data.known_items, model=prefix_scorer)
    parts = data.open_by_user(COLUMNS, fold, VECTORS).each(pa.Table.to_pandas)
    folded = pd.concat(parts)
    given = read_given(night, "given")
    _, folder, _ = open_model(night, name)
    assert set(folded.user_id) == set(given.loc[given.rating >= lowest, "user_id"])
    assert len(folded) > (1 if lowest else 5)
    for user_id, vector in zip(folded.user_id, folded.vector, strict=True):
        own = given[given.user_id == user_id].sort_values("item")
        rows = own["item"].to_numpy(np.int64), own["rating"].to_numpy(np.float64)
        expected = folder.fold(np.array([0, len(own)]), *rows).vectors_pd[-1]
        assert np.asarray(vector, np.float32).tobytes() == expected.tobytes()
    assert name in night.outcome.run_ids and not night.outcome.failed


FOLDED = ["als_wr", "implicit_als", "sgd_mf", "mf_bpr", "mf_bpr_strong", "lightgcn", "likes", "ratings"]
"""Models whose fit gives held-out users no vector."""


@pytest.mark.parametrize("name", FOLDED)
def test_held_out_users_are_ranked_in_the_ordinary_numbers(night: Ran, name: str) -> None:
    """Each rank of a held-out user is that of a refit from the given rows, rounded to float32."""
    run_id, index = night.outcome.run_ids[name], index_items(night)
    scorer, _, fold_in = open_model(night, name)
    products = scorer.products
    vectors_id, biases_i = np.asarray(products.vectors_id), np.asarray(products.bias_i)
    scored_i = np.asarray(products.scored_i)
    given = read_given(night, "given")
    ranked = silent = 0
    for row in night.store.rows(RANKINGS, [("run_id", "=", run_id), ("part", "=", "test")]):
        own = given[given.user_id == row["user_id"]].sort_values("item")
        items, ratings = own["item"].to_numpy(np.int64), own["rating"].to_numpy(np.float64)
        vector = refit(fold_in, (vectors_id, biases_i, scored_i), items, ratings)
        if vector is None:
            assert row["length"] == 0
            silent += 1
            continue
        scores_i = vectors_id.astype(np.float64) @ vector.astype(np.float32).astype(np.float64) + biases_i
        candidates = [i for i in np.flatnonzero(scored_i) if i not in set(items.tolist())]
        assert row["length"] == len(candidates)
        truth = [index[item] for item in row["item_ids"]]
        above = [
            sum(scores_i[i] > scores_i[item] for i in candidates) if scored_i[item] else -1
            for item in truth
        ]
        assert row["above"] == above
        ranked += 1
    assert ranked > (5 if isinstance(fold_in, RidgeFoldIn) else 1)
    (check,) = night.store.rows(
        CHECKS, [("run_id", "=", run_id), ("check", "=", "test: users without output")]
    )
    assert check["observed"] == silent
