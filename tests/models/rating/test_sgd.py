"""SGD: an epoch against plain Python bit for bit, the settings, early stopping, divergence."""

from __future__ import annotations

import numpy as np
import pytest

from recbench_spark.errors import DataError
from recbench_spark.models.rating import sgd
from recbench_spark.models.rating.draws import (
    draw_held_out,
    hash_order,
    make_triples,
    permutation,
    shuffle,
)
from recbench_spark.models.rating.interface import check_ratings, rmse
from recbench_spark.models.rating.registry import make_settings
from recbench_spark.models.rating.sgd import SgdSettings, fit_sgd
from recbench_spark.models.rating.simd import LANES, pad_dims
from tests.models.rating.worlds import plant_ratings

one = np.float32


def plain_epoch(parameters, triples, rates, regularisers) -> None:
    """The same descent with one number after the other, each rounded to float32."""
    b_u, b_i, p, q = parameters
    keep = [one(1) - rate * reg for rate, reg in zip(rates, regularisers, strict=True)]
    for u, i, target in triples.tolist():
        e = one(target) - (b_u[u] + b_i[i] + plain_dot(p[u], q[i]))
        b_u[u] = keep[0] * b_u[u] + rates[0] * e
        b_i[i] = keep[1] * b_i[i] + rates[1] * e
        for d in range(p.shape[1]):
            old_p, old_q = p[u, d], q[i, d]
            p[u, d] = keep[2] * old_p + (rates[2] * e) * old_q
            q[i, d] = keep[3] * old_q + (rates[3] * e) * old_p


def plain_dot(p, q):
    lanes = [one(0)] * LANES
    for d in range(len(p)):
        lanes[d % LANES] = lanes[d % LANES] + p[d] * q[d]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[n] + lanes[n + half] for n in range(half)]
    return lanes[0]


RATES = {"user_biases": 0.01, "item_biases": 0.02, "user_factors": 0.03, "item_factors": 0.015}
REGULARISERS = {"user_biases": 0.1, "item_biases": 0.05, "user_factors": 0.02, "item_factors": 0.07}


@pytest.mark.parametrize("dims", [1, 5, 16, 20, 33])
def test_an_epoch_equals_plain_python_bit_for_bit(dims: int) -> None:
    train, _ = plant_ratings(20, 15)
    settings = SgdSettings(dims=dims, rates=RATES, regularisers=REGULARISERS, rate_decay=0.9)
    ours = sgd.start(train, settings, seed=4)
    plain = ours.copy()
    triples = sgd.subtract_centre(train, sgd._centre(train, settings))
    sgd.run_epoch(ours, triples, settings, epoch=2)
    rates = [one(rate * 0.9**2) for rate in RATES.values()]
    plain_epoch(plain, triples, rates, [one(r) for r in REGULARISERS.values()])
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert ours.p_ud.shape[1] == pad_dims(dims) and (ours.p_ud[:, dims:] == 0).all()


def test_a_first_step_by_hand() -> None:
    """One rating 5, no centring, p = q = 0, all rates 1/2: e = 5, both biases 5/2, factors stay 0."""
    settings = SgdSettings(dims=1, epochs=1, rates=0.5, regularisers=0, centring="none", init_sd=0)
    model = fit_sgd(check_ratings([0], [0], [5], (1, 5)), settings, seed=0).model
    assert (model.mean, model.bias_u[0], model.bias_i[0], model.p_ud[0, 0]) == (0, 2.5, 2.5, 0)
    assert model.predict(np.array([0]), np.array([0])).tolist() == [5]


def test_a_single_number_stands_for_all_four() -> None:
    settings = make_settings({"kind": "sgd_mf", "rates": 0.003, "regularisers": REGULARISERS})
    assert settings.rates.model_dump() == dict.fromkeys(RATES, 0.003)
    assert settings.regularisers.model_dump() == REGULARISERS


def errors(train, test, **settings):
    chosen = {"dims": 3, "epochs": 12, "rates": 0.02} | settings
    return fit_sgd(train, SgdSettings(**make_settings({"kind": "sgd_mf"} | chosen).model_dump()), 1, test)


@pytest.mark.parametrize(
    "changed",
    [
        {"dims": 4}, {"rates": 0.01}, {"rates": RATES}, {"regularisers": 0.1}, {"rate_decay": 0.9},
        {"centring": "users"}, {"centring": "items_users"}, {"biases": False}, {"order": "given"},
        {"order": "shuffled_once"}, {"init_sd": 0.2}, {"stopping": {"share": 0.2}},
    ],
)  # fmt: skip
def test_every_setting_changes_the_result(changed) -> None:
    train, test = plant_ratings()
    assert errors(train, test, **changed).rmse_s[-1] != errors(train, test).rmse_s[-1]


def test_row_order_matters_only_where_it_is_requested() -> None:
    train, test = plant_ratings()
    mixed = train.rows(np.random.default_rng(0).permutation(len(train)))
    for order in ("shuffled", "shuffled_once"):
        same = [errors(rows, test, order=order, centring="none").watched_p for rows in (train, mixed)]
        assert (same[0] == same[1]).all()
    given = [errors(rows, test, order="given", centring="none").watched_p for rows in (train, mixed)]
    assert (given[0] != given[1]).any()


def test_early_stopping_keeps_the_best_epoch() -> None:
    """Without regularisation 8 dims learn the noise by heart: the error on held-out ratings rises again."""
    train, test = plant_ratings(40, 30)
    free = {"dims": 8, "regularisers": 0, "epochs": 200, "rates": 0.05}
    stopped = errors(train, test, **free, stopping={"share": 0.15, "patience": 5})
    on = errors(train, test, **free, stopping={"share": 0.15, "patience": 1000})
    assert stopped.steps < 200 and len(stopped.rmse_s) == stopped.steps
    assert rmse(stopped.watched_p, test.ratings_r) == stopped.rmse_s[stopped.steps - 6]
    assert (on.rmse_s[: stopped.steps] == stopped.rmse_s).all()
    assert stopped.rmse_s[stopped.steps - 6] < 0.98 * on.rmse_s[-1]


def test_a_descent_that_diverges_is_named() -> None:
    train, test = plant_ratings()
    with pytest.raises(DataError, match=r"diverged in epoch \d+"):
        errors(train, test, rates=30, epochs=50)


def test_too_small_for_a_part_to_stop_on() -> None:
    ratings = check_ratings([0], [0], [4], (1, 5))
    with pytest.raises(DataError, match="leaves an empty part"):
        fit_sgd(ratings, SgdSettings(stopping={"share": 0.1}), seed=1)


def test_permutations_are_uniform() -> None:
    """All 6 orders of 3 rows about equally often; each a permutation."""
    drawn = [tuple(permutation(3, seed=5, step=step).tolist()) for step in range(6000)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and abs(counts - 1000).max() < 5 * np.sqrt(1000 * 5 / 6)
    assert sorted(permutation(1000, 1, 1).tolist()) == list(range(1000))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 64, 65, 66, 67, 500])
def test_triples_are_shuffled_as_the_permutation_says(rows: int) -> None:
    """Around the 64 rows that are fetched ahead; a NaN's bits too stay what they were."""
    triples = make_triples(np.arange(rows), np.arange(rows) + 7, np.arange(rows) - 0.5)
    triples["target"][rows // 2 : rows // 2 + 1] = np.nan
    before = triples.copy()
    shuffle(triples, seed=-3, step=2)
    wanted = before[permutation(rows, -3, 2)]
    for name in triples.dtype.names:
        assert triples[name].tobytes() == wanted[name].tobytes()


def test_hash_order_and_hold_out_follow_the_ratings_not_the_rows() -> None:
    train, _ = plant_ratings()
    mixed = train.rows(np.random.default_rng(1).permutation(len(train)))
    first, second = train.rows(hash_order(train, 3)), mixed.rows(hash_order(mixed, 3))
    assert (first.ratings_r == second.ratings_r).all()
    out = draw_held_out(train, 0.25, 3)
    assert abs(out.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(train))
    assert draw_held_out(train, 0.5, 3)[out].all()
