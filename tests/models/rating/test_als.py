"""Alternating least squares against dense normal equations."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from recbench_spark.errors import ConfigError, DivergedError
from recbench_spark.models.rating.als import (
    AlsSettings,
    ImplicitAlsSettings,
    ProductAlsSettings,
    fit_als,
    fit_implicit_als,
    fit_product_als,
)
from recbench_spark.models.rating.draws import normal_table
from recbench_spark.models.rating.interface import UNSEEN, check_ratings
from recbench_spark.models.rating.registry import make_settings
from tests.models.rating.worlds import plant_ratings
from tests.one_fold_in import fold_in_explicit, fold_in_implicit

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


def make_cells(ratings, settings):
    """Confidence, target and pairs of all cells, as the objective names them."""
    shape = ratings.n_users, ratings.n_items
    seen, stars = np.zeros(shape), np.zeros(shape)
    seen[ratings.users_r, ratings.items_r] = 1
    stars[ratings.users_r, ratings.items_r] = ratings.ratings_r
    return (1 + settings.alpha * seen, seen, seen) if settings.implicit else (seen, stars, seen)


def dense_product(ratings, settings, seed: int):
    """Factors of both sides by dense normal equations over all cells, items first."""
    weight, target, seen = make_cells(ratings, settings)
    sd = settings.rank**-0.5
    factors = [normal_table((n, D), sd, seed, at).astype(float) for at, n in enumerate(seen.shape)]
    factors[0][~seen.any(axis=1)] = 0
    for _ in range(settings.iterations):
        for at in (1, 0):
            c, t, n = (cells.T if at else cells for cells in (weight, target, seen))
            other = factors[1 - at]
            for a in np.flatnonzero(n.any(axis=1)):
                ridge = settings.regularization * n[a].sum() ** settings.frequency * np.eye(D)
                factors[at][a] = np.linalg.solve((other.T * c[a]) @ other + ridge, other.T @ (c[a] * t[a]))
    return factors


@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize("frequency", [0.0, 0.5, 1.0])
def test_products_equal_dense_normal_equations(implicit: bool, frequency: float) -> None:
    settings = ProductAlsSettings(
        rank=D, iterations=4, regularization=0.2, alpha=3.0, implicit=implicit, frequency=frequency
    )
    model = fit_product_als(small(), settings, seed=2).model
    users, items = dense_product(small(), settings, seed=2)
    assert model.p_ud == pytest.approx(users, abs=1e-4) and model.q_id == pytest.approx(items, abs=1e-4)
    assert max(abs(model.bias_u).max(), abs(model.bias_i).max()) < 1e-20 and model.mean == 0


@pytest.mark.parametrize("implicit", [True, False])
def test_users_are_the_fold_in_of_the_final_items(implicit: bool) -> None:
    ratings = small()
    settings = ProductAlsSettings(rank=D, iterations=2, regularization=0.2, alpha=3.0, implicit=implicit)
    model = fit_product_als(ratings, settings, seed=2).model
    offsets, order = np.searchsorted(ratings.users_r, np.arange(7)), ratings.items_r
    if implicit:
        ones = np.ones(len(order))
        folded = fold_in_implicit(offsets, order, ones, model.q_id, 0.2, alpha=3.0)
    else:
        folded = fold_in_explicit(offsets, order, ratings.ratings_r, model.q_id, 0.2)
    assert model.p_ud[:6] == pytest.approx(folded, abs=1e-5)


def test_one_factor_by_hand() -> None:
    """User 0 rates both items (4, 2), user 1 the first one (3). Fractions of the first factors follow."""
    ratings = check_ratings([0, 0, 1], [0, 1, 0], [4, 2, 3], (1, 5))
    settings = ProductAlsSettings(rank=1, iterations=1, regularization=0.5, implicit=False)
    model = fit_product_als(ratings, settings, seed=3).model
    p0, p1 = (Fraction(float(x)) for x in normal_table((2, 1), 1.0, 3, 0).ravel())
    q0 = (4 * p0 + 3 * p1) / (p0**2 + p1**2 + Fraction(1, 2) * 2)
    q1 = 2 * p0 / (p0**2 + Fraction(1, 2))
    wanted = (4 * q0 + 2 * q1) / (q0**2 + q1**2 + Fraction(1, 2) * 2), 3 * q0 / (q0**2 + Fraction(1, 2))
    assert model.q_id.ravel() == pytest.approx([float(q0), float(q1)], rel=1e-6)
    assert model.p_ud.ravel() == pytest.approx([float(x) for x in wanted], rel=1e-6)
    pairs = np.array([1, UNSEEN, 0]), np.array([1, 0, UNSEEN])
    assert model.predict(*pairs).tolist()[1:] == [3.0, 3.0]  # the mean of 4, 2 and 3


def test_implicit_products_are_ials_with_other_numbers() -> None:
    """Frequency 0: alpha x (iALS with alpha_0 = 1 / alpha) has the minimum of MLlib's objective, scaled."""
    train, alpha = small(), 4.0
    ours = ProductAlsSettings(rank=D, iterations=300, regularization=0.5, alpha=alpha, frequency=0.0)
    height = 1 + 1 / alpha
    theirs = ImplicitAlsSettings(
        dims=D, sweeps=300, unobserved_weight=1 / alpha, regulariser=0.5 / alpha / height, frequency=0.0
    )
    first, second = fit_product_als(train, ours, 1).model, fit_implicit_als(train, theirs, 1).model
    assert first.p_ud @ first.q_id.T == pytest.approx(height * (second.p_ud @ second.q_id.T), abs=1e-4)


def test_ratings_of_zero_are_learnt_and_are_not_the_mean() -> None:
    ratings = check_ratings([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1], (0, 1), n_users=3, n_items=3)
    settings = ProductAlsSettings(rank=2, iterations=5, regularization=0.01, implicit=False)
    model = fit_product_als(ratings, settings, seed=1).model
    assert model.predict(np.array([0, 2, 0]), np.array([1, 1, 2])).tolist() == [0.0, 0.5, 0.5]


def test_no_regularisation_ends_in_a_sentence_or_in_numbers() -> None:
    free = ProductAlsSettings(rank=9, iterations=2, regularization=0.0, implicit=False)
    with pytest.raises(DivergedError, match="als: vectors are not finite"):
        fit_product_als(small(), free, 1)
    with pytest.raises(ConfigError, match="alpha: 0 makes all pairs alike"):
        make_settings({"kind": "als", "alpha": 0})
    make_settings({"kind": "als", "alpha": 0, "implicit": False})


@pytest.mark.parametrize("implicit", [True, False])
def test_a_rank_beyond_a_thousand_is_solved(implicit: bool) -> None:
    settings = ProductAlsSettings(rank=1030, iterations=1, regularization=1.0, implicit=implicit)
    assert np.isfinite(fit_product_als(small(), settings, 1).model.p_ud).all()


def test_threads_change_no_bit() -> None:
    train, _ = plant_ratings()
    products = ProductAlsSettings(rank=9, iterations=2)
    first, again = (fit_product_als(train, products, 1, threads=n).model for n in (1, 3))
    assert (first.p_ud == again.p_ud).all() and (first.q_id == again.q_id).all()
    first = fit_als(train, AlsSettings(dims=9, sweeps=2), 1).model
    assert (fit_als(train, AlsSettings(dims=9, sweeps=2), 1, threads=3).model.p_ud == first.p_ud).all()
