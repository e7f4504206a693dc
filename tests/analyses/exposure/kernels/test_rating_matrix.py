"""Errors over all cells of a rating matrix: by hand, over all exposures, and coverage."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error

from recbench_spark.analyses.exposure.kernels import rating_matrix
from recbench_spark.core.ratios import ratio_and_error, ratio_moments
from recbench_spark.errors import DataError

RATING = np.array([[5.0, 1, 3], [2, 4, 1]])
PREDICTION = np.array([[4.0, 2, 3], [2, 2, 2]])
MODEL = np.array([[3.0, 3, 3], [1, 2, 3]])
CHANCE = np.array([[0.5, 0.1, 0.8], [0.9, 0.25, 0.4]])


def totals(known: Any, loss: Any, *, model: bool = True) -> Any:
    """Sums over the users of the little matrix of which `known` cells are seen."""
    delta = rating_matrix.losses(PREDICTION, RATING, loss)
    imputed = rating_matrix.losses(PREDICTION, MODEL, loss)
    offsets = np.cumsum([0, *known.sum(axis=1)])
    extra = {"imputed_n": imputed[known], "imputed_u": imputed.sum(axis=1)} if model else {}
    return rating_matrix.user_sums(offsets, delta[known], CHANCE[known], 3, **extra).sum(axis=0)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_over_all_exposures_ips_and_dr_are_the_truth_and_naive_is_not(loss: Any) -> None:
    truth = rating_matrix.losses(PREDICTION, RATING, loss).mean()
    mean = dict.fromkeys(["ips", "dr", "naive"], 0.0)
    seen = 0.0
    for shown in itertools.product([False, True], repeat=6):
        known = np.array(shown).reshape(2, 3)
        likely = float(np.prod(np.where(known, CHANCE, 1 - CHANCE)))
        result = rating_matrix.from_totals(totals(known, loss))
        seen += likely * known.any()
        for name, value in mean.items():
            mean[name] = value + likely * float(np.nan_to_num(result[name]))
    assert mean["ips"] == pytest.approx(truth) and mean["dr"] == pytest.approx(truth)
    assert abs(mean["naive"] / seen - truth) > 0.05


def test_by_hand() -> None:
    """Known: (0, 0) with d = 1, p = 1/2 and (1, 1) with d = 4, p = 1/4."""
    known = np.array([[True, False, False], [False, True, False]])
    result = rating_matrix.from_totals(totals(known, "squared"))
    assert result["naive"] == 2.5 and result["ips"] == 18 / 6 and result["snips"] == 18 / 6
    # Imputed errors (4 - 3)^2, 1, 0 and 1, 0, 1: sum 4; corrections (1 - 1) 2 and (4 - 0) 4.
    assert result["dr"] == pytest.approx((4 + 16) / 6)
    assert np.isnan(rating_matrix.from_totals(totals(known, "squared", model=False))["dr"])


def test_everything_known_is_the_plain_error() -> None:
    every = np.ones((2, 3), dtype=bool)
    offsets, one = np.array([0, 3, 6]), np.ones(6)
    for loss, plain in (("squared", mean_squared_error), ("absolute", mean_absolute_error)):
        delta: Any = rating_matrix.losses(PREDICTION, RATING, loss)  # type: ignore[arg-type]
        sums = rating_matrix.user_sums(
            offsets, delta[every], one, 3, one * 9, imputed_u=np.full(2, 27.0)
        ).sum(axis=0)
        for name, value in rating_matrix.from_totals(sums).items():
            assert value == pytest.approx(plain(RATING.ravel(), PREDICTION.ravel())), name


def test_replicates_and_users_without_ratings() -> None:
    sums = rating_matrix.user_sums(np.array([0, 0, 1]), np.array([2.0]), np.array([0.5]), 4)
    assert sums[0].tolist()[:5] == [0, 4, 0, 0, 0] and np.isnan(sums[:, 5:]).all()
    result = rating_matrix.from_totals(np.stack([sums.sum(axis=0), sums[0]]))
    assert result["ips"].tolist() == [4 / 8, 0.0] and math.isnan(result["snips"][1])
    with pytest.raises(DataError, match="not positive"):
        rating_matrix.user_sums(np.array([0, 1]), np.ones(1), np.zeros(1), 4)


def test_a_masked_full_matrix_is_recovered_as_often_as_intervals_promise() -> None:
    """Users 300, items 40, high ratings seen more often: ips, snips and dr cover, naive does not."""
    rng = np.random.default_rng(0)
    rating = rng.integers(1, 6, (300, 40)).astype(float)
    prediction, model = np.full_like(rating, 3.4), np.clip(rating + rng.normal(size=rating.shape), 1, 5)
    chance = np.array([0, 0.05, 0.1, 0.15, 0.3, 0.6])[rating.astype(int)]
    delta, imputed = (rating_matrix.losses(prediction, r, "squared") for r in (rating, model))
    truth, worlds, covered = delta.mean(), 200, dict.fromkeys(rating_matrix.ESTIMATES, 0)
    for _ in range(worlds):
        known = rng.random(rating.shape) < chance
        offsets = np.cumsum([0, *known.sum(axis=1)])
        sums = rating_matrix.user_sums(
            offsets, delta[known], chance[known], 40, imputed[known], imputed_u=imputed.sum(axis=1)
        )
        top, below = rating_matrix.parts(sums)
        value, error, _ = ratio_and_error(ratio_moments(top / 64, below / 64))
        for e, name in enumerate(rating_matrix.ESTIMATES):
            covered[name] += bool(abs(value[e] - truth) < 1.96 * error[e])
    assert covered["naive"] == 0
    assert all(0.9 * worlds <= covered[name] for name in ("ips", "snips", "dr"))
