"""Alternating least squares against dense normal equations."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.models.rating.als import (
    AlsSettings,
    ImplicitAlsSettings,
    fit_als,
    fit_implicit_als,
)
from recbench_spark.models.rating.interface import check_ratings
from recbench_spark.models.rating.normals import normal_table
from tests.models.rating.worlds import plant_ratings

D = 3


def small():
    users, items = np.array([(u, i) for u in range(6) for i in range(5) if (u + 2 * i) % 3]).T
    return check_ratings(users, items, 1 + (users * 7 + items * 11) % 9 / 2, (1, 5), n_users=7)


def dense_als(ratings, settings, seed: int):
    """Rows (bias, factors) of both sides by numpy's solver, written down from the objective."""
    keys, mean = (ratings.users_r, ratings.items_r), ratings.ratings_r.mean()
    rows = [np.zeros((n, 1 + D)) for n in (ratings.n_users, ratings.n_items)]
    for at in (0, 1):
        rows[at][:, 1:] = normal_table((len(rows[at]), D), settings.init_sd, seed, at)
    for _ in range(settings.sweeps):
        for at in (0, 1):
            for a in np.unique(keys[at]):
                chosen = keys[at] == a
                other = rows[1 - at][keys[1 - at][chosen]]
                h = np.column_stack([np.ones(len(other)), other[:, 1:]])
                t = ratings.ratings_r[chosen] - mean - other[:, 0]
                ridge = settings.regulariser * len(h) * np.eye(1 + D)
                rows[at][a] = np.linalg.solve(h.T @ h + ridge, h.T @ t)
    return rows


def test_als_equals_dense_normal_equations() -> None:
    ratings, settings = small(), AlsSettings(dims=D, sweeps=3, regulariser=0.07)
    model = fit_als(ratings, settings, seed=2).model
    users, items = dense_als(ratings, settings, seed=2)
    assert model.bias_u[:6] == pytest.approx(users[:6, 0], abs=2e-5)
    assert model.p_ud[:6] == pytest.approx(users[:6, 1:], abs=1e-4)
    assert model.q_id == pytest.approx(items[:, 1:], abs=1e-4)
    assert model.bias_u[6] == 0 and (model.p_ud[6] == 0).all()


def dense_implicit(ratings, settings, seed: int):
    """All cells written out: 1 with weight 1 where there is a pair, and alpha_0 times a 0 everywhere."""
    seen = np.zeros((ratings.n_users, ratings.n_items))
    seen[ratings.users_r, ratings.items_r] = 1
    factors = [
        normal_table((n, D), settings.init_sd, seed, at).astype(float) for at, n in enumerate(seen.shape)
    ]
    factors[0][~seen.any(axis=1)] = 0
    for _ in range(settings.sweeps):
        for at, cells in enumerate((seen, seen.T)):
            other = factors[1 - at]
            for a in np.flatnonzero(cells.any(axis=1)):
                weights = cells[a] + settings.unobserved_weight
                size = cells[a].sum() + settings.unobserved_weight * len(other)
                ridge = settings.regulariser * size**settings.frequency * np.eye(D)
                factors[at][a] = np.linalg.solve((other.T * weights) @ other + ridge, other.T @ cells[a])
    return factors


@pytest.mark.parametrize("frequency", [0.0, 0.5, 1.0])
def test_implicit_als_equals_dense_normal_equations(frequency: float) -> None:
    settings = ImplicitAlsSettings(dims=D, sweeps=3, regulariser=0.05, frequency=frequency)
    model = fit_implicit_als(small(), settings, seed=2).model
    users, items = dense_implicit(small(), settings, seed=2)
    assert model.p_ud == pytest.approx(users, abs=1e-4) and model.q_id == pytest.approx(items, abs=1e-4)
    assert max(abs(model.bias_u).max(), abs(model.bias_i).max()) < 1e-20 and model.mean == 0


def test_threads_change_no_bit() -> None:
    train, _ = plant_ratings()
    first = fit_als(train, AlsSettings(dims=9, sweeps=2), 1).model
    assert (fit_als(train, AlsSettings(dims=9, sweeps=2), 1, threads=3).model.p_ud == first.p_ud).all()
