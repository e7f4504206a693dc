"""The verdict "under-tuned baseline", with its reasons: a pure function of what is known of a run.

Four reasons, each enough: the best of its search lies on an edge of the space and the error still
falls towards it; it was given far fewer settings than a rival; a better run of the same method is
known; a setting was never searched that has moved this method elsewhere. Significance is no excuse: it
says nothing of the spread over setups (Rendle, Zhang and Koren 2019, section 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from recbench_spark.boards.published import Board, Run
from recbench_spark.boards.searches import Floats, Search

LEVELS = 5
"""Stretches that a range is cut into."""

SIGMAS = 2.0
"""Standard deviations of noise that a difference has to exceed."""

RELATIVE = 0.002
"""A better run counts from this share of the value on, where no spread is known: .0016 of .8."""

BETTER = 0.75
"""The share of trials, the best ones, that a slope is fitted to: what failed outright bends it."""

FEW = 0.5
"""Fewer than this share of a rival's settings are few."""


class Reason(NamedTuple):
    """Why a baseline is under-tuned, as a code and in words."""

    code: Literal["edge", "fewer_settings", "better_run_known", "unsearched_setting"]
    text: str


class Verdict(NamedTuple):
    """What is to be thought of a run."""

    method: str
    reasons: tuple[Reason, ...]

    @property
    def under_tuned(self) -> bool:
        """Whether there is a reason."""
        return bool(self.reasons)


def verdict(
    run: Run,
    board: Board,
    search: Search | None = None,
    rivals: Mapping[str, Search] | None = None,
    moved_elsewhere: Mapping[str, float] | None = None,
) -> Verdict:
    """All reasons there are to call a run under-tuned.

    Args:
        run: the run in question.
        board: all known runs of the benchmark; better runs of the same method are looked for there.
        search: how its settings were found, if known.
        rivals: the searches of what it is compared with, by method.
        moved_elsewhere: settings and by how much each has moved this method on another benchmark or in
            another work, relative to the value there; what moves less than `RELATIVE` does not count.
    """
    reasons = [better_run_known(run, board)]
    if search is not None:
        reasons += [at_edge(search, name) for name in search.space]
        reasons.append(fewer_settings(search, rivals or {}))
        reasons += [unsearched(search, name, by) for name, by in (moved_elsewhere or {}).items()]
    return Verdict(run.method, tuple(reason for reason in reasons if reason is not None))


def verdicts(board: Board) -> list[Verdict]:
    """A verdict on every run of a board, from the board alone."""
    return [verdict(run, board) for run in board.runs]


def better_run_known(run: Run, board: Board) -> Reason | None:
    """Another run of the same method that is better by more than spread or rounding explain."""
    same = [
        other
        for other in board.runs
        if other != run and board.canonical(other.method) == board.canonical(run.method)
    ]
    if not same:
        return None
    best = max(same, key=lambda other: board.better(other.value, run.value))
    noise = SIGMAS * float(np.hypot(run.spread or 0.0, best.spread or 0.0))
    if board.better(best.value, run.value) <= max(noise, RELATIVE * abs(run.value)):
        return None
    who = f" ({best.ran_by})" if best.ran_by else ""
    return Reason("better_run_known", f"{best.method}{who} reached {best.value:g} against {run.value:g}")


def at_edge(search: Search, name: str) -> Reason | None:
    """The best value of a setting is an outermost one, and the error still falls towards it.

    One setting alone varied: the best of each level falls over the three outermost, the last time by
    more than the noise. Several: the slope at the edge of a quadratic fit to the better trials points
    outwards, by more than chance; too few trials for a fit show nothing.
    """
    values = np.array([trial.settings[name] for trial in search.trials])
    places, losses = _places(values, search.space[name]), search.losses()
    side = _outermost(places, losses)
    if side is None:
        return None
    varied = [
        other for other in search.space if len({trial.settings[other] for trial in search.trials}) > 1
    ]
    falls = _falls_alone if varied == [name] else _falls_among_others
    if not falls(search, places, losses, side):
        return None
    at = values[losses.argmin()]
    return Reason("edge", f"the best {name} ({at:g}) lies on the edge of its space")


def fewer_settings(search: Search, rivals: Mapping[str, Search]) -> Reason | None:
    """Far fewer trials than the rival that had most."""
    most = max(rivals, key=lambda name: len(rivals[name].trials), default=None)
    if most is None or len(search.trials) >= FEW * len(rivals[most].trials):
        return None
    counts = f"{len(search.trials)} settings tried, {len(rivals[most].trials)} of {most}"
    return Reason("fewer_settings", counts)


def unsearched(search: Search, name: str, moved_by: float) -> Reason | None:
    """A setting of which one value at most was tried, though it has mattered elsewhere."""
    tried = {trial.settings[name] for trial in search.trials if name in trial.settings}
    if len(tried) > 1 or abs(moved_by) <= RELATIVE:
        return None
    return Reason("unsearched_setting", f"{name} was never searched and moved the method by {moved_by:.1%}")


def _places(values: Floats, space: tuple[float, ...]) -> Floats:
    """Values between 0 and 1, the ends of the space, on a logarithmic scale if it spans a decade."""
    low, high = min(space), max(space)
    if low > 0 and high >= 10 * low:
        low, high, values = np.log(low), np.log(high), np.log(values)
    return np.asarray((values - low) / ((high - low) or 1.0))


def _levels(places: Floats) -> Floats:
    """Few values as they are, many by stretch."""
    if len(np.unique(places)) <= 2 * LEVELS:
        return places
    return np.clip(np.floor(places * LEVELS), 0, LEVELS - 1) / (LEVELS - 1)


def _outermost(places: Floats, losses: Floats) -> int | None:
    """0 or 1 if the best trial is in the lowest or highest level of at least two; else None."""
    levels = _levels(places)
    tried, best = np.unique(levels), levels[losses.argmin()]
    if len(tried) < 2 or best not in (tried[0], tried[-1]):
        return None
    return int(best == tried[-1])


def _falls_alone(search: Search, places: Floats, losses: Floats, side: int) -> bool:
    levels = _levels(places)
    profile = np.array([losses[levels == level].min() for level in np.unique(levels)])
    outer = (profile[::-1] if side else profile)[:3]
    return bool((np.diff(outer) > 0).all() and outer[1] - outer[0] > SIGMAS * search.noise)


def _falls_among_others(search: Search, places: Floats, losses: Floats, side: int) -> bool:
    """Least squares of c + b x + a x^2, x = distance from the edge, and the same of all other settings."""
    better = losses <= np.quantile(losses, BETTER)
    columns = [np.ones(len(losses))]
    for name, space in search.space.items():
        x = _places(np.array([trial.settings[name] for trial in search.trials]), space)
        columns += [] if np.allclose(x, places) else [x, x**2]
    away = np.abs(side - places)
    design = np.column_stack([away, away**2, *columns])[better]
    free = len(design) - design.shape[1]
    if free < design.shape[1]:
        return False
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ losses[better]
    variance = max(np.square(losses[better] - design @ found).sum() / free, search.noise**2)
    return bool(found[0] > SIGMAS * np.sqrt(variance * inverse[0, 0]))
