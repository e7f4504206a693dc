"""RBM: an epoch against plain Python, the hidden units by hand, ratings that are no levels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recbench_spark.errors import DataError
from recbench_spark.models.rating import rbm
from recbench_spark.models.rating.draws import as_unsigned, draw_state, uniform
from recbench_spark.models.rating.interface import UNSEEN, check_ratings
from recbench_spark.models.rating.rbm import HIDDEN, VISIBLE, RbmSettings, fit_rbm
from tests.models.rating.worlds import plant_ratings


def sigma(x):
    return 1 / (1 + np.exp(-x))


def plain_epoch(machine, visible, order, rate: float, reg: float, seed, epoch: int) -> None:
    w, b, c = machine
    for u in order:
        rows = range(visible.starts_u[u], visible.starts_u[u + 1])
        items, levels = [visible.items_r[r] for r in rows], [visible.levels_r[r] for r in rows]
        if not items:
            continue
        h = sigma(c + sum(w[i, k] for i, k in zip(items, levels, strict=True)))
        state = np.uint64(draw_state(seed, HIDDEN, epoch, u))
        drawn = np.array([float(uniform(state, d) < h[d]) for d in range(len(h))])
        state, again = np.uint64(draw_state(seed, VISIBLE, epoch, u)), []
        for n, i in enumerate(items):
            weights = np.exp(b[i] + w[i] @ drawn)
            shares = np.cumsum(weights / weights.sum())
            again.append(
                min(int(np.searchsorted(shares, uniform(state, n), side="right")), len(shares) - 1)
            )
        h_again = sigma(c + sum(w[i, k] for i, k in zip(items, again, strict=True)))
        for i, k, other in zip(items, levels, again, strict=True):
            b[i, k] += rate
            b[i, other] -= rate
            w[i, k] += rate * (h - reg * w[i, k])
            w[i, other] -= rate * (h_again + reg * w[i, other])
        c += rate * (h - h_again)


def test_an_epoch_equals_plain_python() -> None:
    train, _ = plant_ratings(12, 9)
    levels, settings = np.unique(train.ratings_r), RbmSettings(dims=4, init_sd=0.3)
    ours, plain = (rbm.start(train, levels, settings, 1) for _ in range(2))
    visible, order = rbm.make_visible(train, levels), np.arange(12, dtype=np.uint32)[::-1].copy()
    rbm.learn(ours, visible, order, (0.1, 0.05), as_unsigned(3), 7)
    plain_epoch(plain, visible, order.tolist(), 0.1, 0.05, as_unsigned(3), 7)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.ravel() == pytest.approx(theirs.ravel(), abs=1e-10)


def test_a_prediction_by_hand() -> None:
    """One hidden unit at probability sigma(1); levels 1 and 5 with energies 0 and 2 sigma(1)."""
    half = np.array([[sigma(1.0)], [0.5]], np.float32)
    weights = np.array([[[0.0], [2.0]]], np.float32)
    model = rbm.Rbm(np.array([1.0, 5.0]), weights, np.zeros((1, 2)), half, np.array([0.25, 0.75]))
    share = math.exp(2 * sigma(1.0)) / (1 + math.exp(2 * sigma(1.0)))
    result = model.predict(np.array([0, UNSEEN, 0]), np.array([0, 0, UNSEEN]))
    assert result.tolist() == pytest.approx([1 + 4 * share, 1 + 4 * sigma(1.0), 4], abs=1e-6)


def test_ratings_that_are_no_levels() -> None:
    ratings = check_ratings(np.zeros(100, int), np.arange(100), np.arange(100) / 7)
    with pytest.raises(DataError, match="100 distinct ratings are too many"):
        fit_rbm(ratings, RbmSettings(), 1)
