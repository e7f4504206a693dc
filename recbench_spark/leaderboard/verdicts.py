"""The verdict "under-tuned baseline", with its reasons: a pure function of what is known of a run.

Six reasons, each enough: the best of its search lies on an edge of the space and the error still falls
towards it; its trials predict a better setting within the space; its search found a better setting than
the run uses; it was given far fewer settings than a rival; a better run of the same method is known; a
setting was never searched that has moved this method elsewhere. Significance is no excuse: it says nothing
of the spread over setups (Rendle, Zhang and Koren 2019, section 5).

Three notes accuse nobody: `never_searched`; `no_power`, which says that the trials decide nothing; and
`better_not_used`, where what was found is better by less than makes a run under-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from recbench_spark.leaderboard.fold_statistics import paired_folds
from recbench_spark.leaderboard.published import Board, Run
from recbench_spark.leaderboard.response_surfaces import LEAST, REACH, Surface
from recbench_spark.leaderboard.searches import Floats, Search

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

SLOPES = 2
"""A slope among other settings is fitted where so many trials are left for each coefficient."""

WORTH = 0.01
"""What a better setting has to gain, as a share of the value, before a baseline counts as under-tuned."""

FOLDS_NOISE = 3.0
"""And in spreads over folds: whichever of both is more."""

SURE, UNSURE = 0.85, 0.2
"""Chances of such a gain from which on a run is under-tuned, and from which on nothing is decided."""

SAME_PLACE = 0.02
"""Settings that differ by no more than this share of their range are one setting, rounded."""

SIGNIFICANT = 0.01
"""The p of paired folds below which another run of the same method is better, over all that are known."""


class Reason(NamedTuple):
    """Why a baseline is under-tuned, as a code and in words."""

    code: Literal[
        "edge", "unfinished_search", "better_not_used", "fewer_settings", "better_run_known",
        "unsearched_setting",
    ]  # fmt: skip
    text: str


class Note(NamedTuple):
    """What the board cannot say of a run, as a code and in words; nobody is accused."""

    code: Literal["never_searched", "no_power", "better_not_used"]
    text: str


class Verdict(NamedTuple):
    """What is to be thought of a run.

    Attributes:
        method: its name.
        reasons: why it is under-tuned; empty where it is not.
        notes: what cannot be said of it.
    """

    method: str
    reasons: tuple[Reason, ...]
    notes: tuple[Note, ...] = ()

    @property
    def said(self) -> list[Reason | Note]:
        """Reasons, then notes."""
        return [*self.reasons, *self.notes]

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
    used: Mapping[str, float] | None = None,
) -> Verdict:
    """All reasons there are to call a run under-tuned.

    Args:
        run: the run in question.
        board: all known runs of the benchmark; better runs of the same method are looked for there.
        search: how its settings were found, if known.
        rivals: the searches of what it is compared with, by method.
        moved_elsewhere: settings and by how much each has moved this method on another benchmark or in
            another work, relative to the value there; what moves less than `RELATIVE` does not count.
        used: the run's own values of the settings that were searched; None: those of the best trial.
    """
    reasons: list[Reason | None] = [better_run_known(run, board)]
    notes: tuple[Note, ...] = ()
    if search is not None:
        judged = judge_search(search, run, used)
        notes = tuple(one for one in judged if isinstance(one, Note))
        reasons += [one for one in judged if isinstance(one, Reason)]
        reasons.append(fewer_settings(search, rivals or {}))
        reasons += [unsearched(search, name, by) for name, by in (moved_elsewhere or {}).items()]
    return Verdict(run.method, tuple(reason for reason in reasons if reason is not None), notes)


def judge_search(search: Search, run: Run, used: Mapping[str, float] | None) -> list[Reason | Note]:
    """Reasons and notes that the trials of a search give: was more found, or is more to be gained?"""
    if used is not None and not uses_best(search, used):
        found = compare_with_best(search, run, used)
        decided = isinstance(found, Reason) or found.code == "no_power"
        more = None if decided else more_to_gain(search, run, used)
        return [found] if more is None else [found, more]
    edges = [edge for name in search.space if (edge := at_edge(search, name)) is not None]
    more = None if edges else more_to_gain(search, run)
    return [*edges] if more is None else [more]


def uses_best(search: Search, used: Mapping[str, float]) -> bool:
    """Whether a run uses the setting that its search found best, or one that did as well but for noise."""
    losses, at = search.losses(), trial_of(search, used)
    return at is not None and float(losses[at] - losses.min()) <= noise_of(search)


def noise_of(search: Search) -> float:
    """The difference of two trials that chance or rounding explain."""
    best = float(np.abs(search.losses()).min())
    return max(SIGMAS * float(np.sqrt(2)) * search.noise, RELATIVE * best)


def trial_of(search: Search, used: Mapping[str, float]) -> int | None:
    """The number of the trial that tried these settings, rounded ones included; None: none did."""
    names = list(search.space)
    places = np.column_stack([_tried_places(search, name) for name in names])
    own = _place_of(search, names, used)
    exact = np.array([name in search.choices for name in names])
    away = np.abs(places - own)
    same = np.where(exact, away < 1e-9, away <= SAME_PLACE).all(axis=1)
    return int(np.argmin(np.where(same, away.sum(axis=1), np.inf))) if same.any() else None


def compare_with_best(search: Search, run: Run, used: Mapping[str, float]) -> Reason | Note:
    """What to think of a run whose settings are not the best that its search found.

    Returns:
        A reason where the best is better by what makes a run under-tuned, else a note.
    """
    losses, at = search.losses(), trial_of(search, used)
    best = search.trials[int(losses.argmin())]
    told = f"the search of {len(losses)} settings found {in_words(best.settings)}"
    if at is not None:
        told += (
            f": {best.value:g} against {search.trials[at].value:g} on validation rows, and it was not used"
        )
        worth = float(losses[at] - losses.min()) > worth_of(search, run)
        return Reason("better_not_used", told) if worth else Note("better_not_used", told)
    told += ", which is not used"
    worth_chance, chance = (
        _chance_of_best(search, used, by) for by in (worth_of(search, run), noise_of(search))
    )
    if worth_chance is None or chance is None:
        return Note("no_power", f"{told}; too few trials tell whether it is better")
    if worth_chance >= SURE:
        return Reason("better_not_used", f"{told}: predicted to be better than {in_words(used)}")
    if worth_chance >= UNSURE:
        return Note("no_power", f"{told}; the trials do not tell how much better it is")
    if chance >= SURE:
        return Note("better_not_used", f"{told}: predicted to be a little better than {in_words(used)}")
    return Note(
        "never_searched", f"{told}: predicted to be no better than what is used, which no search found"
    )


def _chance_of_best(search: Search, used: Mapping[str, float], gain: float) -> float | None:
    """The chance that the best trial is better by more than `gain` than settings that were not tried."""
    names = _varied(search)
    fitted = _surface(search, names)
    if fitted is None:
        return None
    own = _place_of(search, names, used)
    return float(fitted.chances(own, fitted.places_nd[:1], gain)[0])


def _place_of(search: Search, names: Sequence[str], used: Mapping[str, float]) -> Floats:
    """(d,) the place of some settings."""
    return np.array([float(_places(np.array([used[n]]), search.space[n])[0]) for n in names])


def worth_of(search: Search, run: Run) -> float:
    """What has to be gained before a run counts as under-tuned, in units of the value."""
    best = float(search.losses().min())
    return max(WORTH * abs(best), FOLDS_NOISE * (run.spread or 0.0))


def more_to_gain(search: Search, run: Run, used: Mapping[str, float] | None = None) -> Reason | Note | None:
    """A setting that nobody tried is predicted to be better by `WORTH` or thrice the noise of folds.

    Args:
        search: the trials.
        run: the run in question.
        used: the settings that it is to be better than; None: the best trial's.

    Returns:
        A reason where the chance is `SURE`, None where it is below `UNSURE`, else that nothing is decided.
    """
    names, losses = _varied(search), search.losses()
    if not names:
        return None
    gain = worth_of(search, run)
    counts = f"{len(losses)} trials of {len(names)} settings"
    told = f"{counts} do not decide whether {gain:.2g} more could be gained"
    fitted = _surface(search, names)
    if fitted is None:
        return Note("no_power", told)
    place = fitted.places_nd[0] if used is None else _place_of(search, names, used)
    found = fitted.most_surely_better(place, gain, _reach(search, names))
    if found.chance < UNSURE:
        return None
    if found.chance < SURE:
        return Note("no_power", f"{told} (chance {found.chance:.0%})")
    return _predicted(search, names, found.place_d, gain)


def _predicted(search: Search, names: Sequence[str], place: Floats, gain: float) -> Reason:
    values = {n: _value_at(float(x), search.space[n]) for n, x in zip(names, place, strict=True)}
    beyond = [name for name, x in zip(names, place, strict=True) if not 0 <= x <= 1]
    told = f"{in_words(values)} is predicted to be better by more than {gain:.2g}"
    if beyond:
        return Reason("edge", f"{told}, beyond the edge of {', '.join(beyond)}")
    return Reason("unfinished_search", f"{told} than the best of {len(search.trials)} settings tried")


def in_words(settings: Mapping[str, float]) -> str:
    """Settings and their values, such as `rates .003, dims 8`."""
    return ", ".join(f"{name} {value:.3g}" for name, value in sorted(settings.items()))


def _varied(search: Search) -> list[str]:
    """Settings that took more than one value."""
    return [name for name in search.space if len({trial.settings[name] for trial in search.trials}) > 1]


def _surface(search: Search, names: Sequence[str]) -> Surface | None:
    """The losses over the settings that varied; None of too few trials."""
    if not names or len(search.trials) < len(names) + LEAST:
        return None
    places = np.column_stack([_tried_places(search, name) for name in names])
    return Surface(places, search.losses(), search.noise)


def _tried_places(search: Search, name: str) -> Floats:
    return _places(np.array([trial.settings[name] for trial in search.trials]), search.space[name])


def _reach(search: Search, names: Sequence[str]) -> Floats:
    """(d, 2) how far beyond each edge a setting may lie: a choice not at all, no number past 0."""
    found = []
    for name in names:
        low, high = min(search.space[name]), max(search.space[name])
        room = low / (high - low) if low >= 0 and not _logarithmic(low, high) and high > low else REACH
        found.append((0.0, 0.0) if name in search.choices else (min(room, REACH), REACH))
    return np.array(found)


def verdicts(board: Board) -> list[Verdict]:
    """A verdict on every run of a board, from the board alone."""
    return [verdict(run, board) for run in board.runs]


def better_run_known(run: Run, board: Board) -> Reason | None:
    """Another run of the same method that is better by more than spread or rounding explain.

    Runs whose folds are known are compared fold by fold, by Student's paired t: a hard fold is hard
    for both. p counts as often as there are such runs (Bonferroni).
    """
    same = [
        other
        for other in board.runs
        if other != run and board.canonical(other.method) == board.canonical(run.method)
    ]
    if not same:
        return None
    best = max(same, key=lambda other: board.better(other.value, run.value))
    paired = _better_by_folds(run, same, board)
    if paired is not None:
        return paired
    noise = SIGMAS * float(np.hypot(run.spread or 0.0, best.spread or 0.0))
    if board.better(best.value, run.value) <= max(noise, RELATIVE * abs(run.value)):
        return None
    who = f" ({best.ran_by})" if best.ran_by else ""
    return Reason("better_run_known", f"{best.method}{who} reached {best.value:g} against {run.value:g}")


def _better_by_folds(run: Run, others: Sequence[Run], board: Board) -> Reason | None:
    known = [(other, paired_folds(run.by_fold, other.by_fold)) for other in others]
    tested = [(other, pair) for other, pair in known if pair is not None]
    sure = [
        (other, pair)
        for other, pair in tested
        if board.better(other.value, run.value) > 0 and pair.p * len(tested) < SIGNIFICANT
    ]
    if not sure:
        return None
    best, pair = max(sure, key=lambda one: board.better(one[0].value, run.value))
    told = f"{best.method} is better by {abs(pair.mean):.2g}, fold by fold, over {pair.folds} folds"
    return Reason("better_run_known", f"{told} (p = {pair.p:.2g}): {best.value:g} against {run.value:g}")


def at_edge(search: Search, name: str) -> Reason | None:
    """The best value of a setting is an outermost one, and the error still falls towards it.

    One setting alone varied: the best of each level falls over the three outermost, the last time by
    more than the noise. Several: the slope at the edge of a quadratic fit to the better trials points
    outwards, by more than chance. Too few trials for a fit show nothing here: `more_to_gain` judges them.
    """
    if name in search.choices:
        return None
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
    if _logarithmic(low, high):
        low, high, values = np.log(low), np.log(high), np.log(values)
    return np.asarray((values - low) / ((high - low) or 1.0))


def _logarithmic(low: float, high: float) -> bool:
    return low > 0 and high >= 10 * low


def _value_at(place: float, space: tuple[float, ...]) -> float:
    """The value at a place: the inverse of `_places`."""
    low, high = min(space), max(space)
    return float(low * (high / low) ** place if _logarithmic(low, high) else low + (high - low) * place)


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
    if free < SLOPES * design.shape[1]:
        return False
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ losses[better]
    variance = max(np.square(losses[better] - design @ found).sum() / free, search.noise**2)
    return bool(found[0] > SIGMAS * np.sqrt(variance * inverse[0, 0]))
