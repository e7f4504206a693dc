"""NSVD1: two epochs against plain Python, and divergence."""

from __future__ import annotations

import pytest

from recbench_spark.errors import DataError
from recbench_spark.models.rating import nsvd
from recbench_spark.models.rating.draws import permutation
from recbench_spark.models.rating.nsvd import NsvdSettings, fit_nsvd
from tests.models.rating.worlds import plant_ratings


def plain_epoch(b_u, b_i, q, y, histories, order, rate: float, reg: float) -> None:
    for u in order:
        rows = range(histories.starts_u[u], histories.starts_u[u + 1])
        items = [histories.items_r[r] for r in rows]
        weight = 1 / max(len(items), 1) ** 0.5
        x = sum((y[i] for i in items), 0 * q[0]) * weight
        gradient = 0 * x
        for r, i in zip(rows, items, strict=True):
            e = histories.left_r[r] - b_u[u] - b_i[i] - q[i] @ x
            b_u[u] += rate * (e - reg * b_u[u])
            b_i[i] += rate * (e - reg * b_i[i])
            gradient = gradient + e * q[i]
            q[i] += rate * (e * x - reg * q[i])
        for i in items:
            y[i] += rate * (weight * gradient - reg * y[i])


def test_epochs_equal_plain_python() -> None:
    train, _ = plant_ratings(12, 9)
    settings = NsvdSettings(dims=3, init_sd=0.5)
    ours, plain = nsvd.start(train, settings, 1), nsvd.start(train, settings, 1)
    histories = nsvd.make_histories(train)
    for epoch in range(2):
        order = permutation(train.n_users, 1, epoch)
        nsvd.descend(ours, histories, order, 0.05, 0.02)
        plain_epoch(*plain, histories, order.tolist(), 0.05, 0.02)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.ravel() == pytest.approx(theirs.ravel(), abs=1e-12)


def test_a_descent_that_diverges_is_named() -> None:
    with pytest.raises(DataError, match="diverged in epoch"):
        fit_nsvd(plant_ratings()[0], NsvdSettings(dims=3, rate=5), 1)
