"""Logistic matrix factorisation against plain Python, and that it finds what was planted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recbench_spark.errors import DataError
from recbench_spark.models.rating import logistic
from recbench_spark.models.rating.draws import as_unsigned, draw_state, uniform
from recbench_spark.models.rating.interface import check_ratings
from recbench_spark.models.rating.logistic import NEGATIVES, LogisticSettings, fit_logistic
from tests.models.rating.worlds import plant_ratings


def test_an_epoch_equals_plain_python() -> None:
    train, _ = plant_ratings(10, 8)
    settings = LogisticSettings(dims=3, negatives=2, rate=0.1, regulariser=0.3, init_sd=0.5)
    ours = logistic.start(train, settings, 1)
    bias, b_u, b_i, p, q = (table.astype(float) for table in ours)
    logistic.descend(ours, train.users_r, train.items_r, settings, seed=4, epoch=6)
    keep = 1 - 0.1 * 0.3
    for r, (u, i) in enumerate(zip(train.users_r, train.items_r, strict=True)):
        state = np.uint64(draw_state(as_unsigned(4), NEGATIVES, 6, r))
        for j, label in [(i, 1), *((int(uniform(state, n) * train.n_items), 0) for n in range(2))]:
            step = 0.1 * (label - 1 / (1 + math.exp(-(bias[0] + b_u[u] + b_i[j] + p[u] @ q[j]))))
            bias[0] += step
            b_u[u], b_i[j] = keep * b_u[u] + step, keep * b_i[j] + step
            p[u], q[j] = keep * p[u] + step * q[j], keep * q[j] + step * p[u]
    for mine, theirs in zip(ours, (bias, b_u, b_i, p, q), strict=True):
        assert mine.ravel() == pytest.approx(theirs.ravel(), abs=1e-4)


def test_two_groups_of_users_and_items_are_found() -> None:
    """Users 0 to 9 have items 0 to 9, the others the others: a pair within scores above any across."""
    users, items = np.array([(u, i) for u in range(20) for i in range(20) if u // 10 == i // 10]).T
    ratings = check_ratings(users, items, np.ones(200))
    model = fit_logistic(ratings, LogisticSettings(dims=4, epochs=60, rate=0.05), seed=1).model
    u, i = np.indices((20, 20)).reshape(2, -1)
    scores, within = model.predict(u, i), u // 10 == i // 10
    assert scores[within].min() > scores[~within].max()


def test_a_descent_that_diverges_is_named() -> None:
    with pytest.raises(DataError, match="diverged in epoch"):
        fit_logistic(plant_ratings()[0], LogisticSettings(dims=3, rate=900, epochs=9), 1)
