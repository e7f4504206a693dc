"""The contract of every learner in the registry: clear errors, edge cases, one file, the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.rating.interface import (
    UNSEEN,
    RatingModel,
    Ratings,
    check_ratings,
    rmse,
)
from recbench_spark.models.rating.registry import FAMILIES, fit, load, make_settings, save
from tests.models.rating.worlds import SMALL, plant_ratings

KINDS = sorted(FAMILIES)


def fit_small(kind: str, ratings: Ratings, seed: int = 1, **more):
    return fit(ratings, make_settings({"kind": kind, **SMALL.get(kind, {})}), seed, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_beats_the_mean_and_repeats_its_bits(kind: str) -> None:
    train, test = plant_ratings()
    first = fit_small(kind, train, watched=test)
    constant = rmse(np.full(len(test), train.ratings_r.mean()), test.ratings_r)
    assert isinstance(first.model, RatingModel)
    assert len(first.rmse_s) >= 1 and len(first.watched_p) == len(test)
    assert rmse(first.watched_p, test.ratings_r) < 0.97 * constant
    again = fit_small(kind, train, watched=test, threads=3)
    assert (again.watched_p == first.watched_p).all() and (again.rmse_s == first.rmse_s).all()


@pytest.mark.parametrize("kind", KINDS)
def test_watching_changes_nothing(kind: str) -> None:
    train, test = plant_ratings()
    with_eyes = fit_small(kind, train, watched=test).model
    without = fit_small(kind, train).model
    pairs = test.users_r, test.items_r, test.times_r
    assert (with_eyes.predict(*pairs) == without.predict(*pairs)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_brings_back_every_bit(kind: str, tmp_path) -> None:
    train, test = plant_ratings()
    model = fit_small(kind, train).model
    back = load(save(model, tmp_path / "model.npz"))
    assert type(back) is type(model)
    pairs = test.users_r, test.items_r, test.times_r
    assert (back.predict(*pairs) == model.predict(*pairs)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_users_and_items_have_finite_predictions_on_the_scale(kind: str) -> None:
    train, _ = plant_ratings()
    users, items = np.array([UNSEEN, 0, UNSEEN]), np.array([0, UNSEEN, UNSEEN])
    result = fit_small(kind, train).model.predict(users, items, np.full(3, 10**9))
    assert np.isfinite(result).all() and (result >= 1).all() and (result <= 5).all()
    wrong = np.array([train.n_users])
    with pytest.raises(DataError, match=r"user .* is not among"):
        fit_small(kind, train).model.predict(wrong, np.array([0]), np.array([0]))


def edge(name: str) -> Ratings:
    times = np.arange(6) * 86_400
    if name == "one user":
        return check_ratings(np.zeros(6, int), np.arange(6), [1, 2, 3, 4, 5, 3], (1, 5), times)
    if name == "one rating":
        return check_ratings([0], [0], [4], (1, 5), [0])
    if name == "an item and a user without a rating":
        u, i = np.array([0, 0, 1, 1, 3, 3]), np.array([0, 1, 0, 1, 0, 1])
        return check_ratings(u, i, [1, 2, 3, 4, 5, 3], (1, 5), times, n_users=5, n_items=4)
    u, i = np.indices((20, 10)).reshape(2, -1)
    return check_ratings(u, i, np.full(200, 4.0), (1, 5), np.arange(200) % 3 * 86_400)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["one user", "one rating", "an item and a user without a rating", "all ratings equal"]
)
def test_edge_cases_end_well(kind: str, name: str) -> None:
    ratings = edge(name)
    model = fit_small(kind, ratings).model
    users, items = (a.ravel() for a in np.indices((ratings.n_users, ratings.n_items)))
    result = model.predict(users, items, np.zeros(len(users), np.int64))
    assert np.isfinite(result).all() and (result >= 1).all() and (result <= 5).all()
    if name == "all ratings equal":
        assert result == pytest.approx(4, abs=0.25)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0], [0], [np.nan]), "rating nan in row 0"),
        (([0, 0], [0, 1], [1, 6]), "rating 6 in row 1 is not on the scale 1 to 5"),
        (([0, 0], [0, 1], [1]), r"unequal lengths \[1, 2\]"),
        (([], [], []), "not a single rating"),
        (([-1], [0], [1]), "user -1 is not between 0 and -1"),
        (([0.5], [0], [1]), "users are float64, not whole numbers"),
    ],
)
def test_unusable_ratings_are_named(columns, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_ratings(*columns, scale=(1, 5))


def test_an_index_beyond_the_users_there_are() -> None:
    with pytest.raises(DataError, match="item 3 is not between 0 and 2"):
        check_ratings([0], [3], [1], (1, 5), n_items=3)


def test_settings_are_checked_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"'sgdmf'(.|\n)*did you mean 'sgd_mf'"):
        make_settings({"kind": "sgdmf"})
    with pytest.raises(ConfigError, match=r"dimms(.|\n)*did you mean 'dims'"):
        make_settings({"kind": "sgd_mf", "dimms": 3})
    with pytest.raises(ConfigError, match="dims: Input should be greater than or equal to 1"):
        make_settings({"kind": "sgd_mf", "dims": 0})


def test_files_that_hold_no_model(tmp_path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="holds no model"):
        load(path)
    np.savez(path, kind=np.asarray("mean"))
    with pytest.raises(DataError, match=r"'mean'(.|\n)*did you mean 'means'"):
        load(path)
    np.savez(path, kind=np.asarray("means"), mean=np.asarray(1.0))
    with pytest.raises(DataError, match="has fields"):
        load(path)
    np.savez(path, kind=np.asarray([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="holds no model"):
        load(path)
