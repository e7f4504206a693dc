"""Means by hand, as fractions."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.models.rating.interface import UNSEEN, check_ratings
from recbench_spark.models.rating.means import MeansSettings, fit_deviations, fit_means

# User 0 gave items 0, 1 the ratings 5, 3; user 1 gave item 0 a 4. The mean of all is 4.
RATINGS = check_ratings([0, 0, 1], [0, 1, 0], [5, 3, 4], (1, 5), n_users=3, n_items=3)


def test_items_then_users_by_hand() -> None:
    """b_0 = (1 + 0) / (2 + 1) = 1/3, b_1 = -1 / (1 + 1) = -1/2; left 2/3, -1/2, -1/3 of the three ratings.

    b_u=0 = (2/3 - 1/2) / (2 + 2) = 1/24, b_u=1 = (-1/3) / (1 + 2) = -1/9.
    """
    settings = MeansSettings(means="items_users", item_shrinkage=1, user_shrinkage=2)
    model = fit_deviations(RATINGS, settings)
    assert model.mean == 4
    assert model.bias_i.tolist() == pytest.approx([1 / 3, -1 / 2, 0], rel=1e-15)
    assert model.bias_u.tolist() == pytest.approx([1 / 24, -1 / 9, 0], rel=1e-14)
    result = model.predict(np.array([0, 1, 2, UNSEEN]), np.array([0, 1, UNSEEN, 1]))
    assert result.tolist() == pytest.approx(
        [4 + 1 / 24 + 1 / 3, 4 - 1 / 9 - 1 / 2, 4, 4 - 1 / 2], rel=1e-15
    )


@pytest.mark.parametrize(
    ("means", "wanted"),
    [("global", 4), ("users", 4 + 0 / 2), ("items", 4 + 1 / 2), ("users_items", 4 + 0 + 1 / 2)],
)
def test_other_means_without_shrinkage(means: str, wanted: float) -> None:
    """The means of user 0 and item 0. Users first: b_u = 0, 0, so items are left with (1 + 0) / 2."""
    model = fit_deviations(RATINGS, MeansSettings(means=means, user_shrinkage=0, item_shrinkage=0))
    assert model.predict(np.array([0]), np.array([0])).tolist() == [wanted]


def test_predictions_stay_on_the_scale() -> None:
    """Mean 3, user +2, item +2 would be 7 (users first leave nothing to items, so: by hand)."""
    ratings = check_ratings([0, 1, 1, 2], [0, 0, 1, 1], [5, 1, 1, 5], (1, 5))
    model = fit_deviations(ratings, MeansSettings(means="users", user_shrinkage=0))
    assert model.predict(np.array([0, 1]), np.array([1, 0])).tolist() == [5, 1]


def test_watched_ratings_are_followed() -> None:
    fit = fit_means(RATINGS, MeansSettings(means="global"), watched=RATINGS)
    assert fit.watched_p.tolist() == [4, 4, 4]
    assert fit.rmse_s.tolist() == pytest.approx([(2 / 3) ** 0.5], rel=1e-15)
