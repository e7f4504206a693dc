"""Plausibility of results that are handed in: sums over held-out pairs in, a sentence of doubt out.

Two rules. The level: a result is doubted when it lies beyond the best run that is trusted (published, made
here, or accepted by an operator) by more than honest progress and the noise of repeated runs explain.
Exactness: predictions that lie very near a rating hit it no more often than those a little farther off,
unless true ratings are among them. Error rates on simulated submissions stand in `docs/submissions.md`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

SIGMAS = 5.0
"""Standard deviations of noise that a result must exceed to be doubted."""

MANY_METHODS = 3
"""From so many methods on, the best run of a board has most of what can be had."""

MAX_WAY_SHARE = 0.9
"""Share of the way from the best run to the best possible value that noise excuses at most."""

EXACT_MARGIN = 0.05
"""Difference between two rates of hits that calibration alone explains."""

MIN_PAIRS = 50
"""Pairs that each of two rates needs."""

FAR_DISTANCE = 0.5
"""Share of the scale's width: predictions outside the scale by more are far off."""

FAR_SHARE, OUTSIDE_SHARE, MEAN_SHIFT = 0.01, 0.5, 0.5
"""Largest shares of predictions far outside and outside the scale; largest shift of the mean, in standard
deviations of the ratings that are learnt from."""


class ProgressLimits(NamedTuple):
    """Largest honest share of the way from the best trusted run to the best possible value.

    Attributes:
        many: where at least `MANY_METHODS` methods are trusted.
        few: where there are fewer.
        alone: where there is none, from the value that a constant prediction has.
    """

    many: float
    few: float
    alone: float


RATING_LIMITS = ProgressLimits(0.08, 0.15, 0.5)
"""The largest step from the best of three or more methods to the next best is 1.3 % of RMSE on
the published boards; from means of users and items to the best run of `docs/ratings.md` it is 10 %."""

RANKING_LIMITS = ProgressLimits(0.25, 0.5, 0.99)
"""From popular items to the best run of the NCF paper's split: 27 % of the way to 1; from item neighbours
and two more methods: 10 %."""


class TrustedRun(NamedTuple):
    """The best run that a result is held against.

    Attributes:
        name: what it is called.
        value: of the board's metric.
        noise: standard deviation over folds and over seeds of its repeated runs, 0 where not known.
        methods: number of different methods that are trusted; 0: `value` is that of a constant.
    """

    name: str
    value: float
    noise: float
    methods: int


class RatingHits(NamedTuple):
    """Predictions by their distance from the nearest rating inside the scale, in steps of the scale.

    Attributes:
        near: number within a tenth of a step.
        near_hits: those of them whose true rating is that one.
        next: number between one and two tenths of a step.
        next_hits: those of them whose true rating is that one.
    """

    near: int
    near_hits: int
    next: int
    next_hits: int


class PredictionSpread(NamedTuple):
    """Predictions beside the scale of the log.

    Attributes:
        rows: number of predictions.
        outside: number outside the scale.
        far: number outside by more than `FAR_DISTANCE` of its width.
        mean: of the predictions.
        scale: lowest and highest rating.
        learnt_mean: mean of the ratings that are learnt from.
        learnt_spread: their standard deviation.
    """

    rows: int
    outside: int
    far: int
    mean: float
    scale: tuple[float, float]
    learnt_mean: float
    learnt_spread: float


def plausible_bound(trusted: TrustedRun, possible: float, limits: ProgressLimits, error: float) -> float:
    """The value beyond which a result is doubted.

    Args:
        trusted: the best trusted run.
        possible: the best value that the metric can have: 0 of an error, 1 of a share.
        limits: of the task.
        error: standard error of the result.

    >>> round(bound(Trusted("means", 0.9, 0.003, 1), 0.0, RATINGS, 0.0), 3)
    0.765
    """
    share = (
        limits.many if trusted.methods >= MANY_METHODS else limits.few if trusted.methods else limits.alone
    )
    way = possible - trusted.value
    noise = SIGMAS * math.hypot(trusted.noise, error)
    return trusted.value + math.copysign(min(max(share * abs(way), noise), MAX_WAY_SHARE * abs(way)), way)


def check_level(
    value: float, trusted: TrustedRun, possible: float, limits: ProgressLimits, error: float, where: str
) -> str | None:
    """The sentence of a result that is better than progress and noise allow; None of any other.

    Args:
        value: of the result, on rows that are not shown back.
        trusted: see `plausible_bound`.
        possible: see `plausible_bound`.
        limits: see `plausible_bound`.
        error: see `plausible_bound`.
        where: names the rows in words.
    """
    end = plausible_bound(trusted, possible, limits, error)
    if trusted.value == possible or abs(possible - value) >= abs(possible - end):
        return None
    return (
        f"{value:.4f} {where} is beyond {end:.4f}, the most that progress over the best trusted run"
        f" ({trusted.name}, {trusted.value:.4f}) and the noise of repeated runs explain"
    )


def check_exactness(hits: RatingHits) -> str | None:
    """The sentence of predictions among which true ratings are; None of any other.

    Predictions at the ends of the scale, where clipping gathers them, are not counted in `hits`.

    >>> exactness_doubt(Hits(2000, 900, 2000, 880)) is None
    True
    """
    if min(hits.near, hits.next) < MIN_PAIRS:
        return None
    near, beside = hits.near_hits / hits.near, hits.next_hits / hits.next
    variance = near * (1 - near) / hits.near + beside * (1 - beside) / hits.next
    if near - beside <= max(EXACT_MARGIN, SIGMAS * math.sqrt(variance)):
        return None
    return (
        f"of {hits.near:,} predictions within a tenth of a step of a rating {near:.1%} are the true rating,"
        f" of those a little farther off {beside:.1%}: true ratings are among the predictions"
    )


def check_scale(spans: PredictionSpread) -> str | None:
    """The sentence of predictions on another scale than the log; None where clipping to it is fair."""
    low, high = spans.scale
    on = f"the log's scale is {low:g} to {high:g}, the mean of what is learnt from {spans.learnt_mean:.2f}"
    if spans.far > FAR_SHARE * spans.rows or spans.outside > OUTSIDE_SHARE * spans.rows:
        counts = f"{spans.outside:,} of {spans.rows:,} predictions lie outside the scale, {spans.far:,} far"
        return f"{counts}; {on}"
    shift = spans.mean - spans.learnt_mean
    if abs(shift) > MEAN_SHIFT * spans.learnt_spread > 0:
        return f"the mean of the predictions is {spans.mean:.2f}, {shift:+.2f} off; {on}"
    return None
