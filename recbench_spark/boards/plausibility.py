"""Doubt submitted results which look too good.

Counts over held-out pairs go in, a sentence of doubt comes out. There are two rules. Level: a result is
doubted if it beats the best trusted run (published, run here, or accepted by an operator) by more than
progress and noise between repeated runs explain. Exactness: predictions very near a rating are not right
more often than predictions a little farther away, unless true ratings are among them.
`docs/how_to/submissions.md` has the error rates on simulated submissions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

SIGMAS = 5.0
"""A doubted result exceeds noise by this many standard deviations."""

MANY_METHODS = 3
"""From this number of methods on, little progress beyond a board's best run is plausible."""

MAX_WAY_SHARE = 0.9
"""Largest share of the way from the best run to the best possible value which noise can explain."""

EXACT_MARGIN = 0.05
"""Difference between two hit rates which calibration alone can explain."""

MIN_PAIRS = 50
"""Fewest pairs for a hit rate."""

FAR_DISTANCE = 0.5
"""Distance outside the scale, as a share of its width, from which on predictions are far outside."""

FAR_SHARE, OUTSIDE_SHARE, MEAN_SHIFT = 0.01, 0.5, 0.5
"""Largest shares of predictions far outside and outside the scale; largest shift of the mean, in standard
deviations of the training ratings.
"""


class ProgressLimits(NamedTuple):
    """Largest plausible steps towards the best possible value.

    A step is a share of the way there from the best trusted run.

    Attributes:
        many: limit if at least `MANY_METHODS` methods are trusted.
        few: limit if fewer are.
        alone: limit without a trusted method, from a constant prediction's value.
    """

    many: float
    few: float
    alone: float


RATING_LIMITS = ProgressLimits(0.08, 0.15, 0.5)
"""The largest step from the best of three or more methods to the next best is 1.3 % of RMSE on the
published boards; from means to the best run in `docs/measured/ratings.md` it is 10 %.
"""

RANKING_LIMITS = ProgressLimits(0.25, 0.5, 0.99)
"""From popular items to the best run on the NCF paper's split: 27 % of the way to 1; from item neighbours
and two more methods: 10 %.
"""


class TrustedRun(NamedTuple):
    """The best trusted run, with which a result is compared.

    Attributes:
        name: its name.
        value: its value in the board's metric.
        noise: standard deviation of its repeated runs over folds and seeds; 0 if not known.
        methods: number of different trusted methods; 0: `value` is a constant prediction's.
    """

    name: str
    value: float
    noise: float
    methods: int


class RatingHits(NamedTuple):
    """Predictions counted by distance from the nearest rating.

    Distances are in steps of the scale, and ratings inside it.

    Attributes:
        near: number within a tenth of a step.
        near_hits: how many of them have that true rating.
        next: number between one and two tenths of a step.
        next_hits: how many of them have that true rating.
    """

    near: int
    near_hits: int
    next: int
    next_hits: int


class PredictionSpread(NamedTuple):
    """The place of predictions on the log's scale.

    Attributes:
        rows: number of predictions.
        outside: number outside the scale.
        far: number outside by more than `FAR_DISTANCE` of its width.
        mean: mean prediction.
        scale: lowest and highest rating.
        learnt_mean: mean of the training ratings.
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
    """Return the value beyond which a result is doubted.

    Args:
        trusted: the best trusted run.
        possible: the metric's best possible value: 0 for an error, 1 for a share.
        limits: limits for the task.
        error: standard error of the result.

    >>> round(plausible_bound(TrustedRun("means", 0.9, 0.003, 1), 0.0, RATING_LIMITS, 0.0), 3)
    0.765
    """
    share = (
        limits.many if trusted.methods >= MANY_METHODS else limits.few if trusted.methods else limits.alone
    )
    way = possible - trusted.value
    noise = SIGMAS * math.hypot(trusted.noise, error)
    return trusted.value + math.copysign(min(max(share * abs(way), noise), MAX_WAY_SHARE * abs(way)), way)


def check_level(
    value: float, trusted: TrustedRun, possible: float, limits: ProgressLimits, error: float, *, where: str
) -> str | None:
    """Return a sentence of doubt about a result's level.

    A doubted result is better than progress and noise explain. None: nothing is doubted.

    Args:
        value: the result's value, on rows that submitters never see.
        trusted: see `plausible_bound`.
        possible: see `plausible_bound`.
        limits: see `plausible_bound`.
        error: see `plausible_bound`.
        where: description of the rows.
    """
    end = plausible_bound(trusted, possible, limits, error)
    if trusted.value == possible or abs(possible - value) >= abs(possible - end):
        return None
    return (
        f"{value:.4f} {where} is beyond {end:.4f}, the most that progress over the best trusted run"
        f" ({trusted.name}, {trusted.value:.4f}) and the noise of repeated runs explain"
    )


def check_exactness(hits: RatingHits) -> str | None:
    """Return a sentence of doubt if true ratings were predicted.

    None: they are not among the predictions. `hits` leaves out predictions at the scale's ends, which
    clipping puts there.

    >>> check_exactness(RatingHits(2000, 900, 2000, 880)) is None
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
    """Return a sentence if predictions are on another scale.

    None: to clip them to the log's scale is fair.
    """
    low, high = spans.scale
    on = f"the log's scale is {low:g} to {high:g}, the mean of what is learnt from {spans.learnt_mean:.2f}"
    if spans.far > FAR_SHARE * spans.rows or spans.outside > OUTSIDE_SHARE * spans.rows:
        counts = f"{spans.outside:,} of {spans.rows:,} predictions lie outside the scale, {spans.far:,} far"
        return f"{counts}; {on}"
    shift = spans.mean - spans.learnt_mean
    if abs(shift) > MEAN_SHIFT * spans.learnt_spread > 0:
        return f"the mean of the predictions is {spans.mean:.2f}, {shift:+.2f} off; {on}"
    return None
