"""Users of training, folded into their own model by all their rows, get the vectors of training."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.models.rating import registry
from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.registry import make_prefix_folder

USERS, ITEMS = 30, 20


def draw_ratings() -> Ratings:
    """Draw two thirds of all cells, from two factors and noise, sorted by user."""
    draw = np.random.default_rng(4)
    p, q = draw.normal(size=(USERS, 2)), draw.normal(size=(ITEMS, 2))
    users, items = np.nonzero(draw.random((USERS, ITEMS)) < 0.66)
    stars = 3 + 0.4 * np.sign(users - 14.5) + (p[users] * q[items]).sum(axis=1)
    return Ratings(users, items, np.clip(stars, 1, 5), USERS, ITEMS)


@pytest.mark.parametrize(
    ("document", "worst"),
    [
        ({"kind": "als_wr", "dims": 2, "sweeps": 300}, 1e-4),
        ({"kind": "implicit_als", "dims": 2, "sweeps": 300, "regulariser": 0.05}, 1e-4),
        (
            {"kind": "sgd_mf", "dims": 2, "epochs": 3000, "rates": 0.01, "rate_decay": 0.998,
             "regularisers": {"user_biases": 0.2, "item_biases": 0.04, "user_factors": 0.05,
                              "item_factors": 0.04}},
            0.02,
        ),
        ({"kind": "sgd_mf", "dims": 2, "epochs": 3000, "rates": 0.01, "rate_decay": 0.998,
          "biases": False}, 0.02),
    ],
    ids=["als_wr", "implicit_als", "sgd_mf", "sgd_mf without biases"],
)  # fmt: skip
def test_users_fold_into_their_own_vectors(document: dict, worst: float) -> None:
    ratings, settings = draw_ratings(), registry.make_settings(document)
    model = registry.fit(ratings, settings, 1).model
    folder = make_prefix_folder(settings, model, np.ones(ITEMS, bool))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(ratings.users_r, minlength=USERS))])
    vectors, known = folder.fold(offsets, ratings.items_r, ratings.ratings_r)
    last = vectors[offsets[1:] - 1]
    assert known.all() and np.abs(model.p_ud).max() > 0.3
    assert np.abs(last - model.p_ud[:, :2]).max() < worst


@pytest.mark.parametrize("kind", ["nsvd1", "rbm", "bayesian_mf", "logistic_mf", "means", "item_neighbours"])
def test_kinds_that_cannot_fold_users_in_are_named(kind: str) -> None:
    settings = registry.make_settings({"kind": kind})
    with pytest.raises(ConfigError, match=f"a model of kind '{kind}' cannot fold users in"):
        make_prefix_folder(settings, None, np.ones(2, bool))  # type: ignore[arg-type]


def test_a_regulariser_of_zero_is_refused() -> None:
    settings = registry.make_settings({"kind": "sgd_mf", "dims": 1, "epochs": 1, "regularisers": 0.0})
    model = registry.fit(draw_ratings(), settings, 1).model
    with pytest.raises(ConfigError, match="a regulariser of 0 leaves users"):
        make_prefix_folder(settings, model, np.ones(ITEMS, bool))


@pytest.mark.parametrize("centring", ["users", "items_users", "users_items"])
def test_means_of_users_are_refused(centring: str) -> None:
    """The fit adds the user's mean, which nobody knows of a user who is folded in."""
    settings = registry.make_settings({"kind": "sgd_mf", "dims": 1, "epochs": 1, "centring": centring})
    model = registry.fit(draw_ratings(), settings, 1).model
    with pytest.raises(ConfigError, match=f"centring '{centring}' subtracts means of users"):
        make_prefix_folder(settings, model, np.ones(ITEMS, bool))
