"""Gibbs sampling: conditionals against dense algebra, Geweke's test, the same bits under threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from recbench_spark.errors import ConfigError, DataError
from recbench_spark.models.rating import bayesian
from recbench_spark.models.rating.bayesian import (
    BayesianModel,
    BayesianSettings,
    Sampler,
    check_ranking,
    choose_samples,
    fit_bayesian,
)
from recbench_spark.models.rating.blocks import DrawKey, draw_side, make_prior
from recbench_spark.models.rating.draws import as_unsigned, draw_state, fill_normals
from recbench_spark.models.rating.gibbs import (
    BagPrior,
    FeatureDraw,
    bag_sums,
    draw_bag_factor,
    draw_gamma,
    draw_normal_wishart,
    make_bag,
)
from recbench_spark.models.rating.interface import ScoringModel, check_ratings, rmse
from tests.models.rating.worlds import plant_ratings

FEATURES = ["u,i", "u,i,t", "u,i,iu", "u,i,iu,ii", "u,i,t,iu", "u,i,t,iu,ii"]
DIMS, USERS, ITEMS = 3, 6, 5


def matrix_6x5():
    """22 of the 30 cells of a 6 x 5 matrix, on three days."""
    cells = [(u, i) for u in range(USERS) for i in range(ITEMS) if (u * 3 + i * 5) % 7 not in (3, 6)]
    users, items = np.array(cells).T
    ratings = 1 + (users * 7 + items * 11) % 9 / 2
    return check_ratings(users, items, ratings, (1, 5), (users + items) % 3 * 86_400 + 5)


def make_sampler(features: str, sweeps: int = 2, **more) -> Sampler:
    """A chain some steps on, so that nothing is zero any more."""
    sampler = Sampler(matrix_6x5(), BayesianSettings(features=features, dims=DIMS, **more), seed=3)
    for number in range(sweeps):
        sampler.sweep(number)
    return sampler


class Dense:
    """A factorisation machine on the fully expanded design matrix, in float64, slow and obvious."""

    def __init__(self, sampler: Sampler, features: str) -> None:
        ratings = matrix_6x5()
        names = features.split(",")
        days = ratings.times_r // 86_400
        bought = {"iu": lambda r: ratings.items_r[ratings.users_r == ratings.users_r[r]]}
        bought["ii"] = lambda r: ratings.users_r[ratings.items_r == ratings.items_r[r]]
        columns, values = [], []
        for part, key in zip(sampler.parts, (ratings.users_r, ratings.items_r, days), strict=False):
            columns.append(np.eye(len(part.own.biases) - 1)[key])
            values.append(np.column_stack([part.own.biases, part.own.factors[:, :DIMS]])[:-1])
        for name, part in zip(("iu", "ii"), sampler.parts, strict=False):
            if name in names:
                bags = [bought[name](r) for r in range(len(ratings))]
                wide = np.zeros((len(bags), len(part.z_jk)))
                for r, bag in enumerate(bags):
                    wide[r, bag] = 1 / np.sqrt(len(bag))
                columns.append(wide)
                values.append(part.z_jk)
        self.starts = np.cumsum([0, *(block.shape[1] for block in columns)])
        self.x, self.theta = np.hstack(columns), np.vstack(values).astype(np.float64)
        self.y = (ratings.ratings_r - ratings.ratings_r.mean()) / ratings.ratings_r.std()

    def predictions(self) -> np.ndarray:
        """Rendle 2010, equation 5."""
        w, v = self.theta[:, 0], self.theta[:, 1:]
        pairs = ((self.x @ v) ** 2 - self.x**2 @ v**2).sum(axis=1) / 2
        return self.x @ w + pairs

    def derivatives(self, j: int) -> np.ndarray:
        """(r, 1 + d) of the prediction by (w_j, v_j); the prediction is linear in them."""
        rest = self.x @ self.theta[:, 1:] - np.outer(self.x[:, j], self.theta[j, 1:])
        return self.x[:, [j]] * np.column_stack([np.ones(len(self.x)), rest])

    def conditional(self, j: int, mean, precision, alpha: float):
        """Mean and precision of (w_j, v_j) given all else."""
        h = self.derivatives(j)
        targets = self.y - self.predictions() + h @ self.theta[j]
        result = precision + alpha * h.T @ h
        return np.linalg.solve(result, precision @ mean + alpha * h.T @ targets), result


def some_prior(k: int):
    mean = np.linspace(-0.3, 0.4, k)
    root = np.eye(k) + np.tri(k) / 5
    return mean, 2 * root @ root.T


@pytest.mark.parametrize("features", FEATURES)
def test_predictions_are_those_of_the_expanded_design(features: str) -> None:
    sampler = make_sampler(features)
    part = sampler.parts[0]
    residuals = np.empty(len(part.a_r))
    residuals[part.ratings.order_r] = sampler.residuals(part, sampler.others(0))
    dense = Dense(sampler, features)
    assert residuals == pytest.approx(dense.y - dense.predictions(), abs=2e-5)


@pytest.mark.parametrize("features", FEATURES)
def test_conditionals_of_rows_equal_dense_algebra(features: str) -> None:
    """Mean, and the noise of the draw: it is U^-1 z with U'U the dense precision, bias first."""
    mean, precision = some_prior(DIMS + 1)
    for at in range(len(make_sampler(features).parts)):
        sampler = make_sampler(features)
        part, alpha, key = sampler.parts[at], 1.7, DrawKey(as_unsigned(9), 4, 2)
        dense = Dense(sampler, features)
        drawn = []
        for spread in (0.0, 1.0):
            prior = make_prior(mean, precision, alpha, sampler.length, spread)
            b, c = sampler.others(at)
            draw_side(part.own, part.fixed, b, c, part.ratings, prior=prior, key=key)
            drawn.append(np.column_stack([part.own.biases, part.own.factors[:, :DIMS]]).astype(np.float64))
        for a in part.rated:
            wanted, result = dense.conditional(dense.starts[at] + a, mean, precision, alpha)
            assert drawn[0][a] == pytest.approx(wanted, abs=3e-5)
            z = np.zeros(DIMS + 1)
            fill_normals(np.uint64(draw_state(key.seed, key.what, key.sweep, a)), z)
            noise = np.linalg.solve(np.linalg.cholesky(result).T, z)
            assert drawn[1][a] - drawn[0][a] == pytest.approx(noise, abs=3e-5)


@pytest.mark.parametrize(("features", "at"), [("u,i,iu", 0), ("u,i,t,iu,ii", 0), ("u,i,t,iu,ii", 1)])
def test_conditionals_of_bags_equal_dense_algebra(features: str, at: int) -> None:
    """Number by number, feature by feature, each from the dense conditional of a whole row."""
    sampler = make_sampler(features)
    part, others, alpha = sampler.parts[at], sampler.others(at), 1.7
    mean, precision = some_prior(DIMS + 1)
    dense, draw = Dense(sampler, features), FeatureDraw(as_unsigned(2), 8, 5)
    e_r = sampler.residuals(part, others)
    first = dense.starts[len(sampler.parts) + at]
    for k in range(DIMS + 1):
        o_r = bayesian._other_factors(part, others, k)
        prior = BagPrior(mean, precision, alpha)
        draw_bag_factor(part.bag, part.ratings.starts_a, o_r, e_r, part.z_jk, k, prior, draw)
        z = np.zeros(len(part.z_jk))
        fill_normals(np.uint64(draw_state(draw.seed, draw.what, draw.sweep, k)), z)
        for j in range(len(part.z_jk)):
            centre, result = dense.conditional(first + j, mean, precision, alpha)
            away = np.delete(dense.theta[first + j] - centre, k)
            number = (
                centre[k] - np.delete(result[k], k) @ away / result[k, k] + z[j] / np.sqrt(result[k, k])
            )
            assert part.z_jk[j, k] == pytest.approx(number, abs=1e-4)
            dense.theta[first + j, k] = number
    order = part.ratings.order_r
    assert e_r == pytest.approx((dense.y - dense.predictions())[order], abs=2e-4)


def test_a_bag_by_hand() -> None:
    """Row 0 holds features 0 and 1, row 1 nothing, row 2 feature 1: x = 1/sqrt 2, -, 1."""
    bag = make_bag(np.array([0, 0, 2, 0]), np.array([1, 0, 1, 1]), 3, 2)
    assert bag.features_n.tolist() == [0, 1, 1] and bag.starts_a.tolist() == [0, 2, 2, 3]
    assert bag.owners_n.tolist() == [0, 0, 2] and bag.starts_j.tolist() == [0, 1, 3]
    sums, biases = bag_sums(bag, np.array([[1.0, 2.0], [3.0, 4.0]]))
    root = np.sqrt(0.5)
    assert sums[:, 0].tolist() == pytest.approx([6 * root, 0, 4])
    # 1/2 ((6 root)^2 - (4 + 16) / 2) = 1/2 (18 - 10) = root^2 * 2 * 4: the one pair within the bag.
    assert biases.tolist() == pytest.approx([4 * root + 4, 0, 3])


# ------------------------------------------------------------------------------- Geweke's joint test

PRIOR = {"degrees": 8.0, "mean_strength": 3.0, "noise_shape": 6.0, "noise_rate": 3.0, "precision": 0.5}


def statistics(sampler: Sampler) -> list[float]:
    """Return the statistics on which both ways of drawing parameters and ratings must agree."""
    result = [sampler.alpha, 1 / sampler.alpha]
    for part in sampler.parts:
        rows = np.column_stack([part.own.biases, part.own.factors[:, :2]])[:-1].astype(np.float64)
        result += [rows.mean(), (rows**2).mean(), rows[0, 0] ** 2, rows[0, 1] * rows[1, 1], rows[0, 1] ** 2]
        if part.bag is not None:
            z = part.z_jk
            result += [z.mean(), (z**2).mean(), z[0, 0] ** 2, z[0, 1] * z[1, 1], z[0, 1] ** 2]
    return result


def draw_from_prior(sampler: Sampler, rng: np.random.Generator) -> None:
    """All parameters from their priors, by numpy."""

    def rows(count: int) -> np.ndarray:
        mean, precision = draw_normal_wishart(sampler.prior(), np.uint64(rng.integers(2**63)))
        root = np.linalg.cholesky(np.linalg.inv(precision))
        return mean + rng.normal(size=(count, len(mean))) @ root.T

    settings = sampler.settings
    sampler.alpha = draw_gamma(settings.noise_shape, settings.noise_rate, np.uint64(rng.integers(2**63)))
    for part in sampler.parts:
        drawn = rows(len(part.own.biases) - 1)
        part.own.biases[:-1], part.own.factors[:-1, :2] = drawn[:, 0], drawn[:, 1:]
        if part.bag is not None:
            part.z_jk[:] = rows(len(part.z_jk))
        sampler._merge(part)


def draw_ratings(sampler: Sampler, rng: np.random.Generator) -> None:
    """New ratings from the model as it stands, to every part the same."""
    part = sampler.parts[0]
    part.ratings.targets_r[:] = 0
    scores_r = np.empty(len(part.a_r))
    scores_r[part.ratings.order_r] = -sampler.residuals(part, sampler.others(0))
    drawn = scores_r + rng.normal(size=len(scores_r)) / np.sqrt(sampler.alpha)
    for part in sampler.parts:
        part.ratings.targets_r[:] = drawn[part.ratings.order_r]


def geweke(features: str, sweeps: int, alter=lambda sampler: None) -> np.ndarray:
    """z-scores of all statistics between draws from the prior and the chain that also draws the ratings.

    Geweke, "Getting it right" (JASA 2004), section 3; the chain's standard errors from batch means.
    """
    rng = np.random.default_rng(6)
    sampler = Sampler(matrix_6x5(), BayesianSettings(features=features, dims=2, **PRIOR), seed=11)
    independent, chain = [], []
    for _ in range(4000):
        draw_from_prior(sampler, rng)
        independent.append(statistics(sampler))
    for number in range(sweeps):
        draw_ratings(sampler, rng)
        sampler.sweep(number)
        alter(sampler)
        chain.append(statistics(sampler))
    first, second = np.array(independent), np.array(chain)
    batches = second.reshape(40, -1, second.shape[1]).mean(axis=1)
    error = np.sqrt(first.var(axis=0) / len(first) + batches.var(axis=0, ddof=1) / len(batches))
    return (first.mean(axis=0) - second.mean(axis=0)) / error


@pytest.mark.parametrize("features", ["u,i", pytest.param("u,i,t,iu,ii", marks=pytest.mark.full)])
def test_geweke(features: str) -> None:
    scores = geweke(features, 8000)
    assert np.abs(scores).max() < 4, scores.round(1)


@pytest.mark.full
def test_geweke_finds_a_noise_that_is_drawn_wrongly() -> None:
    def twice(sampler: Sampler) -> None:
        sampler.alpha *= 1.1

    assert np.abs(geweke("u,i", 4000, twice)).max() > 6


# ------------------------------------------------------------------------------------------- the fit


@pytest.mark.parametrize("features", FEATURES)
def test_threads_and_row_order_change_no_bit(features: str) -> None:
    train, test = plant_ratings()
    settings = BayesianSettings(features=features, dims=5, samples=3, burn_in=1)
    first = fit_bayesian(train, settings, 4, test).watched_p
    assert (fit_bayesian(train, settings, 4, test, threads=3).watched_p == first).all()
    assert (fit_bayesian(train, settings, 5, test).watched_p != first).any()


@pytest.mark.parametrize("features", FEATURES)
def test_more_samples_are_better(features: str) -> None:
    train, test = plant_ratings()
    fit = fit_bayesian(train, BayesianSettings(features=features, dims=4, samples=40, burn_in=4), 1, test)
    assert fit.rmse_s[-1] < 0.99 * fit.rmse_s[0] and fit.rmse_s[-1] < 0.45
    assert len(fit.rmse_s) == 40 and fit.steps == 44
    assert rmse(fit.watched_p, test.ratings_r) == fit.rmse_s[-1]


@pytest.mark.parametrize("features", ["u,i", "u,i,t,iu,ii"])
def test_a_model_that_keeps_all_samples_predicts_what_was_watched(features: str) -> None:
    train, test = plant_ratings()
    settings = BayesianSettings(features=features, dims=4, samples=6, keep=6)
    fit = fit_bayesian(train, settings, 1, test)
    result = fit.model.predict(test.users_r, test.items_r, test.times_r)
    assert result == pytest.approx(fit.watched_p, abs=1e-12)


def test_the_unit_of_ratings_does_not_matter() -> None:
    """Ratings 300 times as large: predictions 300 times as large, but for float32."""
    train, test = plant_ratings()
    settings = BayesianSettings(features="u,i,iu", dims=4, samples=5)
    free = (-1e9, 1e9)
    one = dataclasses.replace(train, scale=free)
    many = dataclasses.replace(train, scale=free, ratings_r=300 * train.ratings_r)
    first, second = (fit_bayesian(rows, settings, 1, test).watched_p for rows in (one, many))
    assert second == pytest.approx(300 * first, rel=1e-3)


def test_a_chain_that_leaves_finite_numbers_is_named() -> None:
    sampler = make_sampler("u,i")
    sampler.parts[0].ratings.targets_r[0] = np.nan
    with pytest.raises(DataError, match="left all finite numbers in sweep 3"):
        sampler.sweep(2)


def test_kept_samples_are_spread() -> None:
    assert list(choose_samples(BayesianSettings(samples=12, keep=3))) == [3, 7, 11]
    assert list(choose_samples(BayesianSettings(samples=2, keep=5))) == [0, 1]
    assert list(choose_samples(BayesianSettings(samples=9, keep=0))) == []


def test_a_model_without_samples_says_so() -> None:
    train, _ = plant_ratings()
    model = fit_bayesian(train, BayesianSettings(dims=2, samples=1, keep=0), 1).model
    with pytest.raises(DataError, match=r"kept no samples(.|\n)*set keep"):
        model.predict(np.array([0]), np.array([0]))


def test_time_models_refuse_a_log_without_timestamps_by_name() -> None:
    ratings = check_ratings([0, 1], [0, 1], [3, 4], (1, 5))
    with pytest.raises(DataError, match=r"u,i,t,iu need times(.|\n)*use u,i,iu"):
        fit_bayesian(ratings, BayesianSettings(features="u,i,t,iu"), 1)
    train, _ = plant_ratings()
    model = fit_bayesian(train, BayesianSettings(features="u,i,t", dims=2, samples=1), 1).model
    with pytest.raises(DataError, match="knows the day"):
        model.predict(np.array([0]), np.array([0]))


@pytest.mark.parametrize("features", ["u,i", "u,i,iu", "u,i,iu,ii"])
def test_scores_are_means_over_samples_bit_for_bit_and_agree_with_unclipped_predictions(
    features: str,
) -> None:
    ratings = matrix_6x5()
    model = fit_bayesian(
        ratings, BayesianSettings(features=features, dims=DIMS, samples=5, keep=3), 4
    ).model
    assert isinstance(model, BayesianModel) and isinstance(model, ScoringModel)
    users, items = np.arange(USERS), np.arange(ITEMS)
    scores = model.score(users, items)
    for u in users:
        for i in items:
            total = 0.0
            for n in range(3):
                one = float(model.biases_u[n, u]) + float(model.biases_i[n, i])
                for p, q in zip(
                    model.factors_u[n, u].tolist(), model.factors_i[n, i].tolist(), strict=True
                ):
                    one += p * q
                total += one
            assert scores[u, i] == model.mean + model.spread * (total / 3)
    wide = dataclasses.replace(model, scale=np.array([-np.inf, np.inf]))
    pairs = wide.predict(np.repeat(users, ITEMS), np.tile(items, USERS)).reshape(USERS, ITEMS)
    np.testing.assert_allclose(scores, pairs, atol=1e-5)
    assert np.array_equal(scores[2:3, ::2], model.score(users[2:3], items[::2])), "no block changes a bit"


@pytest.mark.parametrize(
    ("changes", "message"), [({"features": "u,i,t"}, "need a day"), ({"keep": 0}, "keep: 0")]
)
def test_models_that_cannot_rank_are_named(changes: dict, message: str) -> None:
    check_ranking(BayesianSettings(features="u,i,iu,ii"), "mine")
    with pytest.raises(ConfigError, match=f"model mine: .*{message}"):
        check_ranking(BayesianSettings(**changes), "mine")
