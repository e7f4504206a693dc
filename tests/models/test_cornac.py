"""Models of cornac: the scores are those that cornac itself gives; wrong names are refused before a fit."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from recbench_spark.errors import ConfigError, MissingError
from recbench_spark.models.cornac import CornacModel, ScoreTable, make_dataset
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.own import Vectors
from recbench_spark.models.rating.registry import fit, make_settings
from tests.models.rating.worlds import plant_ratings

ZOO = {
    "MF": {"use_bias": False, "k": 6},
    "SVD": {"k": 6},
    "PMF": {"variant": "linear"},
    "PMF non-linear": {},
    "MMMF": {"max_iter": 5},
    "BPR": {"max_iter": 5},
    "WBPR": {"max_iter": 5},
    "NMF": {"max_iter": 5},
    "BaselineOnly": {},
}


def test_without_cornac_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cornac.models", None)
    model = CornacModel(name="mine", kind="cornac", model="BPR")
    with pytest.raises(MissingError, match="needs the library cornac") as error:
        model.check("csv")
    assert "pip install 'cornac>=3.0.1'" in error.value.hint


@pytest.mark.parametrize("name", ZOO)
def test_scores_are_those_of_cornac(name: str) -> None:
    """Order and differences within a user are equal; cornac adds means that no order depends on."""
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    import cornac.models

    train, test = plant_ratings()
    chosen, settings = name.partition(" ")[0], ZOO[name]
    model = CornacModel(name="mine", kind="cornac", model=chosen, settings=settings)
    model.check("csv")
    learner = make_settings(learner_settings(model).model_dump())
    fitted: Any = fit(train, learner, 3, test).model
    data = make_dataset(train, 3)
    options: dict[str, Any] = {"verbose": False, "seed": 3, **settings}
    if chosen not in ("PMF",):
        options["num_threads"] = 1
    theirs = getattr(cornac.models, chosen)(**options).fit(data)
    for user in range(5):
        ours = (fitted.p_ud @ fitted.q_id.T + fitted.bias_i)[user][list(data.iid_map)]
        scores = np.asarray(theirs.score(data.uid_map[user]), float)
        np.testing.assert_allclose(ours - ours.mean(), scores - scores.mean(), atol=1e-5)
    again: Any = fit(train.rows(np.arange(len(train))[::-1]), learner, 3).model
    assert np.array_equal(again.p_ud, fitted.p_ud) and np.array_equal(again.q_id, fitted.q_id)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("BPRR", {}, "cornac has no model 'BPRR'"),
        ("BPR", {"kk": 3}, "BPR has no setting 'kk'"),
        ("BPR", {"seed": 3}, "BPR has no setting 'seed'"),
    ],
)
def test_wrong_names_are_refused(model: str, settings: dict[str, Any], message: str) -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    with pytest.raises(ConfigError, match=message):
        CornacModel(name="mine", kind="cornac", model=model, settings=settings).check("csv")


def check_scores(model: CornacModel, theirs: Any) -> None:
    """The stored model scores as cornac's own does; users and items that it does not know have 0."""
    train, test = plant_ratings()
    fitted: Any = fit(train, make_settings(learner_settings(model).model_dump()), 3, test).model
    data = make_dataset(train, 3)
    theirs.fit(data)
    scores = fitted.score(np.arange(train.n_users), np.arange(train.n_items))
    for user, row in data.uid_map.items():
        wanted = np.asarray(theirs.score(row), float).ravel()
        np.testing.assert_array_equal(scores[user][list(data.iid_map)], wanted)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("EASE", {}),
        ("UserKNN", {"k": 5}),
        ("NeuMF", {"backend": "pytorch", "num_epochs": 2, "layers": [16, 8]}),
    ],
)
def test_models_without_vectors_rank_by_their_scores(name: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    import cornac.models

    model = CornacModel(name="mine", kind="cornac", model=name, settings=settings)
    model.check("csv")
    parameters = inspect.signature(getattr(cornac.models, name)).parameters
    fixed = {"seed": 3, "verbose": False, "num_threads": 1}
    options = {key: value for key, value in fixed.items() if key in parameters} | settings
    check_scores(model, getattr(cornac.models, name)(**options))


def test_vectors_that_are_compared_by_distance_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cornac's COE is such a model, and cannot be fitted with numpy 2."""
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    import cornac.models
    from cornac.models import recommender

    monkeypatch.setattr(cornac.models.MF, "get_vector_measure", lambda self: recommender.MEASURE_L2)
    model = CornacModel(name="mine", kind="cornac", model="MF")
    assert isinstance(model.fit(plant_ratings()[0], 1), ScoreTable)
    assert not isinstance(model.fit(plant_ratings()[0], 1), Vectors)


def test_too_many_scores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    monkeypatch.setattr("recbench_spark.models.cornac.MAX_CELLS", 60 * 40 - 1)
    model = CornacModel(name="mine", kind="cornac", model="EASE")
    with pytest.raises(ConfigError, match="EASE has no vectors, and its 60 x 40 scores are too many"):
        model.fit(plant_ratings()[0], 1)


def test_a_fit_that_cornac_cannot_make_is_named() -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    model = CornacModel(name="mine", kind="cornac", model="COE")
    with pytest.raises(
        ConfigError, match="cornac's COE: AttributeError: module 'numpy' has no attribute 'int'"
    ):
        model.fit(plant_ratings()[0], 1)


def test_a_size_that_a_model_does_not_take_is_refused_before_the_fit() -> None:
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    model = CornacModel(name="mine", kind="cornac", model="NeuMF", settings={"num_factors": 10})
    with pytest.raises(
        ConfigError, match=r"NeuMF takes no other num_factors than its last layer, 8; given: 10"
    ):
        model.check("csv")
    CornacModel(name="mine", kind="cornac", model="NeuMF", settings={"num_factors": 8}).check("csv")
