"""Plausibility of submissions: error rates on simulated submissions, and the scale of predictions."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from recbench_spark.boards.plausibility import (
    RANKING_LIMITS,
    RATING_LIMITS,
    PredictionSpread,
    RatingHits,
    TrustedRun,
    check_exactness,
    check_level,
    check_scale,
    plausible_bound,
)

ROWS = 20_000
BEST = TrustedRun("best", 0.82, 0.004, 5)
"""As good as `honest(0.3)`; the signal itself has .76, which is all but 8 per cent better."""


class World:
    """Ratings 1 ... 5 of a mean that honest models know in part; `noise` is the rest."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.signal = 3.6 + 0.75 * self.rng.standard_normal(ROWS)
        noise = 0.75 * self.rng.standard_normal(ROWS)
        self.ratings = np.clip(np.round(self.signal + noise), 1, 5)

    def honest(self, error: float) -> np.ndarray:
        """Predictions that miss the signal by `error`."""
        return np.clip(self.signal + error * self.rng.standard_normal(ROWS), 1, 5)

    def leaky(self, share: float, blur: float = 0.0) -> np.ndarray:
        """Honest ones of which a share are the true ratings, blurred."""
        true = np.clip(self.ratings + blur * self.rng.standard_normal(ROWS), 1, 5)
        return np.where(self.rng.random(ROWS) < share, true, self.honest(0.3))

    def is_doubted(self, predictions: np.ndarray) -> bool:
        y, p = self.ratings, predictions
        value = math.sqrt(np.var(y) * (1 - np.corrcoef(p, y)[0, 1] ** 2))
        level = check_level(value, BEST, 0.0, RATING_LIMITS, BEST.value / math.sqrt(ROWS), where="")
        return bool(level or check_exactness(hits(p, y)))


def hits(p: np.ndarray, y: np.ndarray) -> RatingHits:
    nearest = np.round(p)
    away, inside, hit = np.abs(p - nearest), (nearest > 1) & (nearest < 5), y == nearest
    near, beside = inside & (away <= 0.1), inside & (away > 0.1) & (away <= 0.2)
    return RatingHits(*(int(one.sum()) for one in (near, near & hit, beside, beside & hit)))


def rate(make) -> float:
    return float(np.mean([World(seed).is_doubted(make(World(seed))) for seed in range(40)]))


@pytest.mark.parametrize("error", [0.15, 0.3, 0.5, 0.8])
def test_honest_predictions_are_not_doubted(error: float) -> None:
    assert rate(lambda world: world.honest(error)) == 0.0
    assert rate(lambda world: np.round(world.honest(error))) == 0.0, "rounded to whole ratings"
    assert rate(lambda world: np.round(4 * world.honest(error)) / 4) == 0.0, "rounded to quarters"


@pytest.mark.parametrize(
    ("share", "blur"), [(1.0, 0.0), (0.5, 0.0), (0.1, 0.0), (0.05, 0.0), (0.1, 0.05), (1.0, 0.5)]
)
def test_true_ratings_are_doubted(share: float, blur: float) -> None:
    assert rate(lambda world: world.leaky(share, blur)) == 1.0


def test_a_leak_that_is_too_small_passes_and_the_docs_say_so() -> None:
    assert rate(lambda world: world.leaky(0.005)) < 0.2


def test_true_ratings_on_another_scale_are_doubted_all_the_same() -> None:
    assert rate(lambda world: 20 * world.ratings) == 1.0
    assert rate(lambda world: 6 - world.ratings) == 1.0


def test_the_bound_by_hand() -> None:
    assert plausible_bound(TrustedRun("a", 0.8, 0.0, 3), 0.0, RATING_LIMITS, 0.0) == pytest.approx(0.736)
    assert plausible_bound(TrustedRun("a", 0.8, 0.0, 2), 0.0, RATING_LIMITS, 0.0) == pytest.approx(0.68)
    assert plausible_bound(TrustedRun("a", 0.8, 0.03, 3), 0.0, RATING_LIMITS, 0.04) == pytest.approx(
        0.55
    ), "five times .05"
    assert plausible_bound(TrustedRun("a", 0.8, 9.0, 3), 0.0, RATING_LIMITS, 0.0) == pytest.approx(0.08), (
        "0 is never excused"
    )
    assert plausible_bound(TrustedRun("a", 0.4, 0.0, 3), 1.0, RANKING_LIMITS, 0.0) == pytest.approx(0.55)
    messages = check_level(
        1.0, TrustedRun("als", 0.4, 0.0, 1), 1.0, RANKING_LIMITS, 0.01, where="on part test"
    )
    assert (
        messages is not None
        and messages.startswith("1.0000 on part test is beyond 0.7000")
        and "als" in messages
    )
    assert check_level(0.6, TrustedRun("als", 0.4, 0.0, 1), 1.0, RANKING_LIMITS, 0.01, where="") is None
    assert check_level(0.0, TrustedRun("ones", 0.0, 0.0, 1), 0.0, RATING_LIMITS, 0.0, where="") is None, (
        "all are alike"
    )


def spans(p: np.ndarray, low: float = 1, high: float = 5) -> PredictionSpread:
    far = 0.5 * (high - low)
    outside, beyond = (p < low) | (p > high), (p < low - far) | (p > high + far)
    return PredictionSpread(
        len(p), int(outside.sum()), int(beyond.sum()), float(p.mean()), (low, high), 3.6, 1.1
    )


@pytest.mark.parametrize(
    ("change", "report"),
    [
        (lambda p: p + 2, r"predictions is 5\.\d+, \+2\.\d+ off|lie outside the scale"),
        (lambda p: p - 1, r"mean of the predictions is 2\.\d\d, -\d"),
        (lambda p: 25 * (p - 1), "lie outside the scale"),
        (lambda p: (p - 1) / 4, "lie outside the scale"),
        (lambda p: (p - p.mean()) / p.std(), "lie outside the scale"),
        (lambda p: p * 10 - 32.4, "lie outside the scale"),
    ],
)
def test_another_scale_is_refused(change, report: str) -> None:
    fault = check_scale(spans(change(World(1).honest(0.3))))
    assert fault is not None and "the log's scale is 1 to 5" in fault
    assert re.search(report, fault)


def test_a_little_beyond_the_scale_is_clipped_not_refused() -> None:
    world = World(2)
    unclipped = world.signal + 0.5 * world.rng.standard_normal(ROWS)
    assert spans(unclipped).outside > 200 and check_scale(spans(unclipped)) is None
