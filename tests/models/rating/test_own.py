"""A model of another package: a class with `fit`, ranked as any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recbench_spark.config import make_benchmark
from recbench_spark.errors import ConfigError, DataError, DivergedError
from recbench_spark.models.rating.kinds import learner_settings
from recbench_spark.models.rating.own import OwnModel, fit_own
from recbench_spark.models.rating.registry import fit, learns_relevant, load, make_settings, save
from recbench_spark.schemas import FITS, METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.models.rating.worlds import plant_ratings
from tests.nights import Ran, read_rows, run, small
from tests.own_model import Distances, NearestPlace, PureSvd

KIND = "tests.own_model:PureSvd"


def make_learner(**settings: Any) -> Any:
    model = PureSvd(name="mine", kind="pure_svd", **settings)
    document = learner_settings(model).model_dump()
    assert document["kind"] == KIND and not learns_relevant(document)
    return make_settings(document)


def test_the_vectors_are_those_that_the_class_returns() -> None:
    train, test = plant_ratings()
    fitted: Any = fit(train, make_learner(dims=3), 1, test)
    users, items, _ = PureSvd(name="mine", kind="pure_svd", dims=3).fit(train, 1)
    scores = np.einsum("pd,pd->p", np.asarray(users)[test.users_r], np.asarray(items)[test.items_r])
    rated = (np.bincount(train.users_r, minlength=train.n_users)[test.users_r] > 0) & (
        np.bincount(train.items_r, minlength=train.n_items)[test.items_r] > 0
    )
    np.testing.assert_allclose(fitted.watched_p[rated], scores[rated], rtol=1e-5, atol=1e-5)
    assert not fitted.watched_p[~rated].any()


def make_place_learner(**settings: Any) -> Any:
    return make_settings(
        learner_settings(NearestPlace(name="mine", kind="nearest_place", **settings)).model_dump()
    )


def test_an_object_with_scores_is_stored_without_pickle_and_scores_the_same(tmp_path: Any) -> None:
    train, test = plant_ratings()
    fitted = fit(train, make_place_learner(), 1, test)
    stored: Any = load(save(fitted.model, tmp_path / "model.npz"))
    direct: Any = NearestPlace(name="mine", kind="nearest_place").fit(train, 1)
    users, items = np.arange(train.n_users), np.arange(train.n_items)
    assert np.array_equal(stored.score(users, items), direct.score(users, items))
    assert np.array_equal(fitted.watched_p, direct.score(users, items)[test.users_r, test.items_r])
    assert (
        stored.class_name == "tests.own_model:Distances" and stored.predict(np.array([-1]), items[:1]) == 0
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("shape", r"Distances: scores of one user have shape \(40, 1\)"),
        ("text", r"Distances: scores of one user have shape \(1, 40\) and type <U"),
        ("list", r"Distances: a file cannot keep attribute 'items_id', a list"),
        ("nothing", r"NearestPlace: fit returned a NoneType"),
    ],
)
def test_objects_that_cannot_rank_are_refused_by_name(wrong: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit(plant_ratings()[0], make_place_learner(wrong=wrong), 1, plant_ratings()[1])


class Holder:
    """An object that holds what a test gives it."""

    unset: Any = None

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def score(self, users: Any, items: Any) -> Any:
        assert self.unset is None
        return np.zeros((len(users), len(items)))


def test_what_an_object_holds_comes_back_and_nothing_is_lost(tmp_path: Any) -> None:
    held = {"array": np.arange(3), "number": 2.5, "text": "x", "flag": True, "unset": None}
    stored: Any = load(save(OwnModel(Holder(**held)), tmp_path / "model.npz"))
    assert stored.fitted.number == 2.5 and stored.fitted.text == "x" and stored.fitted.flag is True
    assert stored.fitted.array.tolist() == [0, 1, 2] and stored.score(np.arange(2), np.arange(3)).shape == (
        2,
        3,
    )
    for name, value in (
        ("kind", "x"),
        ("file", 1),
        ("missing", None),
        ("table", {}),
        ("rows", np.array([{}])),
    ):
        with pytest.raises(DataError, match=f"Holder: a file cannot keep attribute '{name}'"):
            OwnModel(Holder(**{name: value})).list_arrays()


def test_a_class_that_tasks_cannot_import_is_refused() -> None:
    class Hidden(Distances):
        pass

    _, test = plant_ratings()
    with pytest.raises(ConfigError, match=r"class of a fitted model .*Hidden"):
        fit_own(OwnModel(Hidden(np.zeros((60, 2)), np.zeros((40, 2)))), test)


def test_only_relevant_pairs_are_learnt_from_if_the_file_says_so() -> None:
    model = PureSvd(name="mine", kind="pure_svd", positives="relevant")
    assert learns_relevant(learner_settings(model).model_dump())


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("rows", DataError, r"vectors of users have shape"),
        ("text", DataError, r"vectors of users have shape .* and type <U"),
        ("nan", DivergedError, r"numbers that are not finite"),
        ("width", DataError, r"users have 4 dimensions, and items 3"),
        ("bias", DataError, r"the bias has shape \(2,\)"),
    ],
)
def test_wrong_vectors_are_refused_by_name(wrong: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(plant_ratings()[0], make_learner(wrong=wrong), 1)


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="PureSvdd"):
        make_settings({"kind": f"{KIND}d", "settings": {}})
    document = {"name": "x", "dataset": {"name": "x", "reader": "world"}}
    with pytest.raises(ConfigError, match="dims"):
        models = [{"name": "a", "kind": KIND, "dims": "many"}]
        make_benchmark({**document, "models": models}, [], "test")


@pytest.mark.full
def test_a_night_fits_models_side_by_side_and_ranks_them(small_night: Ran) -> None:
    """Fits that succeed come in one commit; the one that fails fails alone, and nothing is fitted twice."""
    models = [
        {"name": "svd", "kind": KIND, "dims": 3},
        {"name": "wrong", "kind": KIND, "wrong": "rows"},
        {"name": "wmf", "kind": "wmf", "dims": 3, "epochs": 3},
        {"name": "ials", "kind": "implicit_als", "dims": 2, "sweeps": 2},
        {"name": "random", "kind": "random"},
    ]
    evaluation = {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    store, benchmark = small_night.store, small(name="own", models=models, evaluation=evaluation)
    first = run(store, benchmark)
    assert "fit 4 models side by side: svd, wrong, wmf, ials" in first.remarks
    assert set(first.outcome.failed) == {"wrong"}
    assert "vectors of users have shape" in first.outcome.failed["wrong"]
    rows = read_rows(store, METRICS, metric="ndcg", k=5, part="test")
    values = {row.run_id: row.value for row in rows if row.slice_key is None}
    assert values[first.outcome.run_ids["svd"]] > values[first.outcome.run_ids["random"]]
    assert list_fits(store, "svd", "wmf", "wrong") == ["svd", "wmf", "wrong"]
    again = run(store, benchmark)
    assert "side by side" not in again.remarks
    assert list_fits(store, "svd") == ["svd"]
    newer = {"name": "svd", "kind": KIND, "dims": 3, "version": "2"}
    run(store, small(name="own", models=[newer, models[-1]], evaluation=evaluation))
    assert list_fits(store, "svd") == ["svd", "svd"], "the code may have changed"


def list_fits(store: ArrowStore, *names: str) -> list[str]:
    """Return the models of the rows of `fits` that some models have."""
    return sorted(row.model for row in read_rows(store, FITS) if row.model in names)
