"""Item neighbours: similarities and predictions against loops."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.errors import DataError
from recbench_spark.models.rating import item_neighbours
from recbench_spark.models.rating.interface import check_ratings
from recbench_spark.models.rating.item_neighbours import ItemNeighboursSettings, fit_item_neighbours
from recbench_spark.models.rating.means import MeansSettings, fit_deviations
from tests.models.rating.worlds import plant_ratings


def slow_prediction(train, settings, left, u: int, i: int) -> float:
    """One pair, straight from the definition."""

    def left_ratings(item):
        return {user: left[user, item] for user in range(train.n_users) if (user, item) in left}

    result = []
    for j in range(train.n_items):
        both = left_ratings(i).keys() & left_ratings(j).keys()
        if (u, j) not in left or j == i or not both:
            continue
        product = sum(left[v, i] * left[v, j] for v in both)
        norm = (sum(left[v, i] ** 2 for v in both) * sum(left[v, j] ** 2 for v in both)) ** 0.5
        s = len(both) / (len(both) + settings.shrinkage) * product / norm
        if s > 0:
            result.append((-s, j))
    best = [(-s, j) for s, j in sorted(result)[: settings.neighbours]]
    return sum(s * left[u, j] for s, j in best) / sum(s for s, _ in best) if best else 0.0


def test_predictions_equal_loops() -> None:
    train, test = plant_ratings(15, 12)
    settings = ItemNeighboursSettings(neighbours=3, shrinkage=2)
    model = fit_item_neighbours(train, settings).model
    centre = fit_deviations(train, MeansSettings())
    rows = zip(train.users_r.tolist(), train.items_r.tolist(), strict=True)
    left_r = train.ratings_r - centre.baseline(train.users_r, train.items_r)
    left = dict(zip(rows, left_r.tolist(), strict=True))
    pairs = list(zip(test.users_r.tolist(), test.items_r.tolist(), strict=True))
    wanted = [slow_prediction(train, settings, left, u, i) for u, i in pairs]
    expected = np.clip(centre.baseline(test.users_r, test.items_r) + wanted, 1, 5)
    assert model.predict(test.users_r, test.items_r) == pytest.approx(expected, abs=1e-5)


def test_too_many_items_for_one_matrix(monkeypatch) -> None:
    monkeypatch.setattr(item_neighbours, "LARGEST", 3)
    with pytest.raises(DataError, match="4 items are too many"):
        fit_item_neighbours(check_ratings([0], [3], [1]), ItemNeighboursSettings())
