"""Models that rank by scores of their own: the ranks are those of a plain loop over stored models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.rating.registry import load
from recbench_spark.night.benchmark_checks import check_night
from recbench_spark.schemas import FITS, RANKINGS, SPLITS
from tests.nights import Ran, read_rows, read_split, run, small

MODELS: list[dict[str, Any]] = [
    {"name": "neumf", "kind": "neumf", "dims": 4, "layers": [8, 6, 4], "epochs": 2},
    {"name": "mlp", "kind": "mlp", "layers": [8, 4], "epochs": 2},
    {"name": "svdpp", "kind": "bayesian_mf", "features": "u,i,iu", "dims": 3, "samples": 6, "keep": 3},
    {"name": "near", "kind": "tests.own_model:NearestPlace"},
    {"name": "broken", "kind": "tests.own_model:NearestPlace", "wrong": "nan"},
]
UNRANKED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "bayesian_mf", "features": "u,i,t"}, "features 'u,i,t' need a day, and a ranking has none"),
    ({"kind": "bayesian_mf", "keep": 0}, "keep: 0 stores no sample to rank by"),
    ({"kind": "rbm"}, "kind 'rbm' predicts pairs and ranks nothing"),
    ({"kind": "item_neighbours"}, "kind 'item_neighbours' predicts pairs and ranks nothing"),
]
GOOD = ("neumf", "mlp", "svdpp", "near")


@pytest.fixture(scope="module")
def night(small_night: Ran) -> Ran:
    evaluation = {
        "metrics": ["ndcg"],
        "k": [5],
        "bootstrap": {"replicates": 10},
        "definition": {"threshold": 4},
    }
    return run(small_night.store, small(name="blocks", models=MODELS, evaluation=evaluation))


def order_ids(ids: set[str]) -> list[str]:
    return sorted(ids, key=int) if all(one.isdigit() for one in ids) else sorted(ids)


@pytest.mark.full
@pytest.mark.parametrize("name", GOOD)
def test_ranks_are_those_of_a_plain_loop_over_the_stored_model(night: Ran, name: str) -> None:
    store = night.store
    rows = read_split(night.night, SPLITS)
    users, items = order_ids({row.user_id for row in rows}), order_ids({row.item_id for row in rows})
    sides = ("user_id", "item_id")
    known = {side: {getattr(row, side) for row in rows if row.part == "train"} for side in sides}
    masked: dict[str, set[str]] = {}
    for row in rows:
        if row.part in ("train", "valid"):
            masked.setdefault(row.user_id, set()).add(row.item_id)
    (config,) = (model for model in night.benchmark.models if model.name == name)
    place = f"{store.files_root}/fit_files/{make_adapter(config).key(night.night.data)}/model.npz"
    model: Any = load(Path(place))
    scores = model.score(np.arange(len(users)), np.arange(len(items)))
    ranked = read_rows(store, RANKINGS, run_id=night.outcome.run_ids[name], part="test")
    assert len(ranked) > 50
    for row in ranked:
        if row.user_id not in known["user_id"]:
            assert set(row.above) == {-1} and row.length == 0
            continue
        of_user = dict(zip(items, scores[users.index(row.user_id)], strict=True))
        candidates = known["item_id"] - masked[row.user_id]
        assert row.length == len(candidates)
        for item, above in zip(row.item_ids, row.above, strict=True):
            if item not in known["item_id"]:
                assert above == -1
            else:
                assert above == sum(of_user[other] > of_user[item] for other in candidates)


@pytest.mark.full
def test_a_model_of_nan_fails_alone(night: Ran) -> None:
    assert set(night.outcome.run_ids) == set(GOOD)
    assert "not finite" in night.outcome.failed["broken"]


@pytest.mark.parametrize(("model", "message"), UNRANKED)
def test_models_that_cannot_rank_are_refused_before_spark(model: dict[str, Any], message: str) -> None:
    document = {"name": "x", "dataset": {"name": "x", "reader": "world"}}
    models = [{"name": "popular", "kind": "popular"}, {"name": "mine", **model}]
    with pytest.raises(ConfigError, match=f"model mine: {message}"):
        check_night(make_benchmark({**document, "models": models}, [], "test"))
    rating = {"task": "rating", "metrics": ["rmse"]}
    document |= {"models": models[1:], "evaluation": rating, "headline": "rmse"}
    check_night(make_benchmark(document, [], "test"))


@pytest.mark.parametrize("model", MODELS)
def test_models_that_rank_are_taken(model: dict[str, Any]) -> None:
    document = {"name": "x", "dataset": {"name": "x", "reader": "world"}, "models": [model]}
    check_night(make_benchmark(document, [], "test"))


@pytest.mark.full
def test_all_fits_are_tasks_side_by_side_and_are_made_once(night: Ran) -> None:
    assert f"fit {len(MODELS)} models side by side" in night.remarks
    fitted = sorted(GOOD)
    assert list_fits(night) == fitted
    again = run(night.store, night.benchmark, force=True)
    assert set(again.outcome.run_ids) == set(GOOD) and list_fits(night) == fitted


def list_fits(night: Ran) -> list[str]:
    """Return the models of the fits of this night that succeeded."""
    names = {model["name"] for model in MODELS}
    rows = read_rows(night.store, FITS, status="succeeded")
    return sorted(row.model for row in rows if row.model in names)
