"""Users and items of which training tells a model nothing: no list, and no place in one, in every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.models.rating import registry
from recbench_spark.models.rating.registry import ALL_FAMILIES
from recbench_spark.models.rating.sgd import RatingFactorModel
from recbench_spark.models.settings import MODELS, list_kinds
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from tests.nights import Ran, run, small

FIT = {"epochs": 1, "batch": 64, "validation": 0.2}
FEATURES = {"features": {"kind": "hashed", "dims": 4}}
LEARNERS: dict[str, dict[str, Any]] = {
    "als": {"rank": 3, "iterations": 2},
    "als_wr": {"dims": 3, "sweeps": 2},
    "gmf": {"dims": 3, "epochs": 2},
    "implicit_als": {"dims": 3, "sweeps": 2},
    "logistic_mf": {"dims": 3, "epochs": 2},
    "nsvd1": {"dims": 3, "epochs": 2},
    "sgd_mf": {"dims": 3, "epochs": 2},
    "wmf": {"dims": 3, "epochs": 2},
}
"""Learners of `models.rating` that lists can be made by."""

OTHERS: dict[str, dict[str, Any]] = {
    "gru4rec": {"epochs": 1, "dims": 4},
    "graph": {**FEATURES, "layers": [{"width": 4}, {"width": 4}]},
    "graphsage": {**FIT, **FEATURES, "width": 4, "samples": [3, 3]},
    "item_knn": {"neighbours": 10},
    "lightgcn": {**FIT, "dims": 4, "layers": 2},
    "memn2n": {"epochs": 1, "dims": 4, "hops": 2},
    "mf_bpr": {**FIT, "dims": 4},
    "mllib_als": {"rank": 3, "iterations": 2},
    "pinsage": {**FIT, **FEATURES, "width": 4, "top": 5, "walks": 20, "negatives": 20},
    "sasrec": {"epochs": 1, "dims": 4},
}
RANKERS = {**LEARNERS, **OTHERS}
EVERYBODY = ("popular", "random")
"""Models that know something of every user: that there is one."""

LIKED, DISLIKED = 5.0, 1.0
COLD, COOL = ("cold0", "cold1", "cold2"), ("cool0", "cool1")
"""Users without a training row; users whose training rows are dislikes alone."""

NEVER, DISLIKED_ITEM = "90", "91"
"""An item without a training row; one whose training rows are dislikes alone."""

BY_LIKES = {
    *("als", "gru4rec", "implicit_als", "item_knn", "lightgcn", "logistic_mf", "memn2n", "mf_bpr"),
    "mllib_als",
    *("pinsage", "sasrec"),
}
"""Kinds that learn from relevant rows alone."""


def write_log(path: Path) -> dict[str, Any]:
    """A log with parts of its own: users like items of their parity."""
    draw = np.random.default_rng(1)
    rows = [("u00", DISLIKED_ITEM, DISLIKED, "valid")]
    for user in range(30):
        own = draw.permutation(10)[:8] * 2 + user % 2
        rows += [(f"u{user:02}", str(item), LIKED, "train") for item in own[:6]]
        rows += [(f"u{user:02}", str(item), LIKED, "test") for item in own[6:]]
        rows += [(f"u{user:02}", NEVER, LIKED, "test"), (f"u{user:02}", DISLIKED_ITEM, LIKED, "test")]
    rows += [(user, "3", DISLIKED, "train") for user in COOL]
    rows += [("cool0", DISLIKED_ITEM, DISLIKED, "train")]
    rows += [(user, item, LIKED, "test") for user in (*COLD, *COOL) for item in ("4", "5")]
    names = ("user_id", "item_id", "rating", "part")
    table = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({**table, "event_time": list(range(len(rows)))}), path)
    columns = {name: name for name in (*names, "event_time")}
    return {"name": "log", "reader": "parquet", "path": str(path), "columns": columns}


ON_SPARK, OF_GRAPHS = ("mllib_als",), ("graph", "graphsage", "pinsage")
MARKS = {"mllib_als": pytest.mark.spark} | dict.fromkeys(OF_GRAPHS, pytest.mark.full)
KINDS = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in RANKERS]


@pytest.fixture(scope="module")
def local_night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    models = [{"name": kind, "kind": kind, **own} for kind, own in RANKERS.items() if kind not in MARKS]
    models += [{"name": "centred", "kind": "item_knn", "scores": "centred_mean"}]
    models += [{"name": kind, "kind": kind} for kind in EVERYBODY]
    place = tmp_path_factory.mktemp("local")
    return run_models(ArrowStore(str(place / "w")), place, models)


@pytest.fixture(scope="module")
def spark_night(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("spark")
    models = [{"name": kind, "kind": kind, **RANKERS[kind]} for kind in ON_SPARK]
    return run_models(Store(spark, str(place / "w")), place, models)


@pytest.fixture(scope="module")
def graph_night(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("graphs")
    models = [{"name": kind, "kind": kind, **RANKERS[kind]} for kind in OF_GRAPHS]
    return run_models(ArrowStore(str(place / "w")), place, models)


@pytest.fixture
def night(request: pytest.FixtureRequest) -> Ran:
    """The night that has the kind of a test."""
    kind = request.node.callspec.params.get("kind")
    graphs = "graph_night" if kind in OF_GRAPHS else "local_night"
    return request.getfixturevalue("spark_night" if kind in ON_SPARK else graphs)


def run_models(store: Any, place: Path, models: list[dict[str, Any]]) -> Ran:
    """Run a night of models over the one split."""
    evaluation = {
        "metrics": ["ndcg"],
        "k": [5],
        "definition": {"threshold": 4},
        "bootstrap": {"replicates": 10},
    }
    requests = small(
        models=models, dataset=write_log(place / "log.parquet"), split={"protocol": "given"},
        evaluation=evaluation,
    )  # fmt: skip
    return run(store, requests)


def rankings(night: Ran, model: str) -> dict[str, Any]:
    """A row a user."""
    run_id = night.outcome.run_ids[model]
    rows = DeltaTable(night.store.folder / "rankings").to_pandas(partitions=[("run_id", "=", run_id)])
    return {row.user_id: row for row in rows[rows["part"] == "test"].itertuples()}


def without_output(night: Ran, model: str) -> float:
    """Observed by the check that counts them."""
    run_id = night.outcome.run_ids[model]
    checks = DeltaTable(night.store.folder / "checks").to_pandas()
    mine = checks[(checks["run_id"] == run_id) & (checks["check"] == "test: users without output")]
    return float(mine["observed"].iloc[0])


def test_every_kind_is_tried() -> None:
    """A kind that ranks and is not here would not be looked at."""
    learners = {
        kind for kind, family in ALL_FAMILIES.items() if issubclass(family.model, RatingFactorModel)
    }
    assert learners == set(LEARNERS)
    handed_over = {
        "embeddings",
        "lists",
        "scores",
        "published",
        "retrieved",
        "switch",
        "cornac",
    }  # cornac is an extra
    predicting = set(ALL_FAMILIES) - learners
    ours = {kind for kind in list_kinds() if MODELS[kind].__module__.startswith("recbench_spark.")}
    assert ours - handed_over - predicting - {"truth"} == {*RANKERS, *EVERYBODY}


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_users_without_training_rows_get_no_list_and_are_counted(kind: str, night: Ran) -> None:
    result = rankings(night, kind)
    nobody = {*COLD, *COOL} if kind in BY_LIKES else {*COLD}
    for user, row in result.items():
        known = user not in nobody
        assert (row.length > 0) == known, user
        assert (max(row.above) >= 0) == known, user
    assert without_output(night, kind) == len(nobody)


@pytest.mark.full
@pytest.mark.parametrize("kind", [*KINDS, "centred", "popular"])
def test_items_without_training_rows_have_no_place_in_a_list(kind: str, night: Ran) -> None:
    """Item-kNN scores items of dislikes alone 0, as it knows them; of dislikes graphs have an edge."""
    row = rankings(night, kind)["u01"]  # u00 has the disliked item in valid, so it is not asked again
    place = dict(zip(row.item_ids, row.above, strict=True))
    assert place[NEVER] == -1
    learns_from_dislikes = kind not in BY_LIKES - {"pinsage", "item_knn"}
    assert (place[DISLIKED_ITEM] >= 0) == learns_from_dislikes


@pytest.mark.full
@pytest.mark.parametrize("model", [*EVERYBODY, "centred"])
def test_who_scores_by_items_alone_ranks_for_everybody(model: str, night: Ran) -> None:
    assert without_output(night, model) == 0
    for row in rankings(night, model).values():
        place = dict(zip(row.item_ids, row.above, strict=True))
        assert place.pop(NEVER, -1) == -1 or model == "random"
        assert min(place.values()) >= 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["als_wr", "nsvd1", "sgd_mf"])
def test_predicted_ratings_of_unknown_users_are_those_of_the_model(kind: str, night: Ran) -> None:
    """Watched during the fit, they are the mean and the item's bias, as before."""
    (folder,) = (f for f in list_fit_files(night) if read_row(f)["kind"] == kind)
    model = registry.load(folder / "model.npz")
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    users, items = (pq.read_table(folder / f"{side}s.parquet").to_pydict() for side in ("user", "item"))
    assert not set(COLD) & set(users["user_id"]) and NEVER not in items["item_id"]
    biases = dict(zip(items["item_id"], items["bias"], strict=True))
    cold = [row for row in rows if row["user_id"] in COLD]
    assert len(cold) == 2 * len(COLD)
    for row in cold:
        assert row["prediction"] == np.clip(biases[row["item_id"]], *model.scale)


def list_fit_files(night: Ran) -> list[Path]:
    """Folders of the learners' fits."""
    return [file.parent for file in Path(night.store.scratch).rglob("fit.json")]


def read_row(folder: Path) -> dict[str, Any]:
    """The row of a fit."""
    return dict(json.loads((folder / "fit.json").read_text()))
