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

from recbench_spark.leaderboard.fold_statistics import compare_folds
from recbench_spark.leaderboard.published import Board, BoardRun
from recbench_spark.leaderboard.response_surfaces import MIN_EXTRA_TRIALS, REACH, Surface
from recbench_spark.leaderboard.searches import Floats, SearchTrials

LEVELS = 5
"""Stretches that a range is cut into."""

SIGMAS = 2.0
"""Standard deviations of noise that a difference has to exceed."""

MIN_RELATIVE_DIFFERENCE = 0.002
"""A better run counts from this share of the value on, where no spread is known: .0016 of .8."""

BETTER_SHARE = 0.75
"""The share of trials, the best ones, that a slope is fitted to: what failed outright bends it."""

FEW_SHARE = 0.5
"""Fewer than this share of a rival's settings are few."""

TRIALS_PER_COEFFICIENT = 2
"""A slope among other settings is fitted where so many trials are left for each coefficient."""

MIN_GAIN_SHARE = 0.01
"""What a better setting has to gain, as a share of the value, before a baseline counts as under-tuned."""

MIN_GAIN_SPREADS = 3.0
"""And in spreads over folds: whichever of both is more."""

SURE_CHANCE, UNSURE_CHANCE = 0.85, 0.2
"""Chances of such a gain from which on a run is under-tuned, and from which on nothing is decided."""

SAME_SETTING_SHARE = 0.02
"""Settings that differ by no more than this share of their range are one setting, rounded."""

SIGNIFICANCE_LEVEL = 0.01
"""The p of paired folds below which another run of the same method is better, over all that are known."""


class TuningReason(NamedTuple):
    """Why a baseline is under-tuned, as a code and in words."""

    code: Literal[
        "edge", "unfinished_search", "better_not_used", "fewer_settings", "better_run_known",
        "unsearched_setting",
    ]  # fmt: skip
    text: str


class TuningNote(NamedTuple):
    """What the board cannot say of a run, as a code and in words; nobody is accused."""

    code: Literal["never_searched", "no_power", "better_not_used"]
    text: str


class TuningVerdict(NamedTuple):
    """What is to be thought of a run.

    Attributes:
        method: its name.
        reasons: why it is under-tuned; empty where it is not.
        notes: what cannot be said of it.
    """

    method: str
    reasons: tuple[TuningReason, ...]
    notes: tuple[TuningNote, ...] = ()

    @property
    def remarks(self) -> list[TuningReason | TuningNote]:
        """Reasons, then notes."""
        return [*self.reasons, *self.notes]

    @property
    def under_tuned(self) -> bool:
        """Whether there is a reason."""
        return bool(self.reasons)


def judge_run(
    run: BoardRun,
    board: Board,
    search: SearchTrials | None = None,
    rivals: Mapping[str, SearchTrials] | None = None,
    effects_elsewhere: Mapping[str, float] | None = None,
    used: Mapping[str, float] | None = None,
) -> TuningVerdict:
    """All reasons there are to call a run under-tuned.

    Args:
        run: the run in question.
        board: all known runs of the benchmark; better runs of the same method are looked for there.
        search: how its settings were found, if known.
        rivals: the searches of what it is compared with, by method.
        moved_elsewhere: settings and by how much each has moved this method on another benchmark or in
            another work, relative to the value there; what moves less than `MIN_RELATIVE_DIFFERENCE` does not count.
        used: the run's own values of the settings that were searched; None: those of the best trial.
    """
    reasons: list[TuningReason | None] = [better_run_known(run, board)]
    notes: tuple[TuningNote, ...] = ()
    if search is not None:
        judged = judge_search(search, run, used)
        notes = tuple(one for one in judged if isinstance(one, TuningNote))
        reasons += [one for one in judged if isinstance(one, TuningReason)]
        reasons.append(fewer_settings(search, rivals or {}))
        reasons += [
            check_setting_searched(search, name, by) for name, by in (effects_elsewhere or {}).items()
        ]
    return TuningVerdict(run.method, tuple(reason for reason in reasons if reason is not None), notes)


def judge_search(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float] | None
) -> list[TuningReason | TuningNote]:
    """Reasons and notes that the trials of a search give: was more found, or is more to be gained?"""
    if used is not None and not uses_best(search, used):
        found = compare_with_best(search, run, used)
        decided = isinstance(found, TuningReason) or found.code == "no_power"
        more = None if decided else predict_gain(search, run, used)
        return [found] if more is None else [found, more]
    edges = [edge for name in search.space if (edge := check_edge(search, name)) is not None]
    more = None if edges else predict_gain(search, run)
    return [*edges] if more is None else [more]


def uses_best(search: SearchTrials, used: Mapping[str, float]) -> bool:
    """Whether a run uses the setting that its search found best, or one that did as well but for noise."""
    losses, at = search.losses(), find_trial(search, used)
    return at is not None and float(losses[at] - losses.min()) <= trial_noise(search)


def trial_noise(search: SearchTrials) -> float:
    """The difference of two trials that chance or rounding explain."""
    best = float(np.abs(search.losses()).min())
    return max(SIGMAS * float(np.sqrt(2)) * search.noise, MIN_RELATIVE_DIFFERENCE * best)


def find_trial(search: SearchTrials, used: Mapping[str, float]) -> int | None:
    """The number of the trial that tried these settings, rounded ones included; None: none did."""
    names = list(search.space)
    places = np.column_stack([_trial_places(search, name) for name in names])
    own = _settings_place(search, names, used)
    exact = np.array([name in search.choices for name in names])
    away = np.abs(places - own)
    same = np.where(exact, away < 1e-9, away <= SAME_SETTING_SHARE).all(axis=1)
    return int(np.argmin(np.where(same, away.sum(axis=1), np.inf))) if same.any() else None


def compare_with_best(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float]
) -> TuningReason | TuningNote:
    """What to think of a run whose settings are not the best that its search found.

    Returns:
        A reason where the best is better by what makes a run under-tuned, else a note.
    """
    losses, at = search.losses(), find_trial(search, used)
    best = search.trials[int(losses.argmin())]
    told = f"the search of {len(losses)} settings found {describe_settings(best.settings)}"
    if at is not None:
        told += (
            f": {best.value:g} against {search.trials[at].value:g} on validation rows, and it was not used"
        )
        worth = float(losses[at] - losses.min()) > required_gain(search, run)
        return TuningReason("better_not_used", told) if worth else TuningNote("better_not_used", told)
    told += ", which is not used"
    worth_chance, chance = (
        _best_trial_chance(search, used, by) for by in (required_gain(search, run), trial_noise(search))
    )
    if worth_chance is None or chance is None:
        return TuningNote("no_power", f"{told}; too few trials tell whether it is better")
    if worth_chance >= SURE_CHANCE:
        return TuningReason(
            "better_not_used", f"{told}: predicted to be better than {describe_settings(used)}"
        )
    if worth_chance >= UNSURE_CHANCE:
        return TuningNote("no_power", f"{told}; the trials do not tell how much better it is")
    if chance >= SURE_CHANCE:
        return TuningNote(
            "better_not_used", f"{told}: predicted to be a little better than {describe_settings(used)}"
        )
    return TuningNote(
        "never_searched", f"{told}: predicted to be no better than what is used, which no search found"
    )


def _best_trial_chance(search: SearchTrials, used: Mapping[str, float], gain: float) -> float | None:
    """The chance that the best trial is better by more than `gain` than settings that were not tried."""
    names = _varying_settings(search)
    fitted = _fit_surface(search, names)
    if fitted is None:
        return None
    own = _settings_place(search, names, used)
    return float(fitted.chances(own, fitted.places_nd[:1], gain)[0])


def _settings_place(search: SearchTrials, names: Sequence[str], used: Mapping[str, float]) -> Floats:
    """(d,) the place of some settings."""
    return np.array([float(_scale_to_unit(np.array([used[n]]), search.space[n])[0]) for n in names])


def required_gain(search: SearchTrials, run: BoardRun) -> float:
    """What has to be gained before a run counts as under-tuned, in units of the value."""
    best = float(search.losses().min())
    return max(MIN_GAIN_SHARE * abs(best), MIN_GAIN_SPREADS * (run.spread or 0.0))


def predict_gain(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float] | None = None
) -> TuningReason | TuningNote | None:
    """A setting that nobody tried is predicted to be better by `MIN_GAIN_SHARE` or thrice the noise of folds.

    Args:
        search: the trials.
        run: the run in question.
        used: the settings that it is to be better than; None: the best trial's.

    Returns:
        A reason where the chance is `SURE_CHANCE`, None where it is below `UNSURE_CHANCE`, else that nothing is decided.
    """
    names, losses = _varying_settings(search), search.losses()
    if not names:
        return None
    gain = required_gain(search, run)
    counts = f"{len(losses)} trials of {len(names)} settings"
    told = f"{counts} do not decide whether {gain:.2g} more could be gained"
    fitted = _fit_surface(search, names)
    if fitted is None:
        return TuningNote("no_power", told)
    place = fitted.places_nd[0] if used is None else _settings_place(search, names, used)
    found = fitted.find_better(place, gain, _edge_reach(search, names))
    if found.chance < UNSURE_CHANCE:
        return None
    if found.chance < SURE_CHANCE:
        return TuningNote("no_power", f"{told} (chance {found.chance:.0%})")
    return _describe_prediction(search, names, found.place_d, gain)


def _describe_prediction(
    search: SearchTrials, names: Sequence[str], place: Floats, gain: float
) -> TuningReason:
    values = {n: _scale_from_unit(float(x), search.space[n]) for n, x in zip(names, place, strict=True)}
    beyond = [name for name, x in zip(names, place, strict=True) if not 0 <= x <= 1]
    told = f"{describe_settings(values)} is predicted to be better by more than {gain:.2g}"
    if beyond:
        return TuningReason("edge", f"{told}, beyond the edge of {', '.join(beyond)}")
    return TuningReason("unfinished_search", f"{told} than the best of {len(search.trials)} settings tried")


def describe_settings(settings: Mapping[str, float]) -> str:
    """Settings and their values, such as `rates .003, dims 8`."""
    return ", ".join(f"{name} {value:.3g}" for name, value in sorted(settings.items()))


def _varying_settings(search: SearchTrials) -> list[str]:
    """Settings that took more than one value."""
    return [name for name in search.space if len({trial.settings[name] for trial in search.trials}) > 1]


def _fit_surface(search: SearchTrials, names: Sequence[str]) -> Surface | None:
    """The losses over the settings that varied; None of too few trials."""
    if not names or len(search.trials) < len(names) + MIN_EXTRA_TRIALS:
        return None
    places = np.column_stack([_trial_places(search, name) for name in names])
    return Surface(places, search.losses(), search.noise)


def _trial_places(search: SearchTrials, name: str) -> Floats:
    return _scale_to_unit(np.array([trial.settings[name] for trial in search.trials]), search.space[name])


def _edge_reach(search: SearchTrials, names: Sequence[str]) -> Floats:
    """(d, 2) how far beyond each edge a setting may lie: a choice not at all, no number past 0."""
    found = []
    for name in names:
        low, high = min(search.space[name]), max(search.space[name])
        room = low / (high - low) if low >= 0 and not _is_logarithmic(low, high) and high > low else REACH
        found.append((0.0, 0.0) if name in search.choices else (min(room, REACH), REACH))
    return np.array(found)


def judge_board(board: Board) -> list[TuningVerdict]:
    """A verdict on every run of a board, from the board alone."""
    return [judge_run(run, board) for run in board.runs]


def better_run_known(run: BoardRun, board: Board) -> TuningReason | None:
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
    best = max(same, key=lambda other: board.improvement(other.value, run.value))
    paired = _find_better_by_folds(run, same, board)
    if paired is not None:
        return paired
    noise = SIGMAS * float(np.hypot(run.spread or 0.0, best.spread or 0.0))
    if board.improvement(best.value, run.value) <= max(noise, MIN_RELATIVE_DIFFERENCE * abs(run.value)):
        return None
    who = f" ({best.ran_by})" if best.ran_by else ""
    return TuningReason(
        "better_run_known", f"{best.method}{who} reached {best.value:g} against {run.value:g}"
    )


def _find_better_by_folds(run: BoardRun, others: Sequence[BoardRun], board: Board) -> TuningReason | None:
    known = [(other, compare_folds(run.by_fold, other.by_fold)) for other in others]
    tested = [(other, pair) for other, pair in known if pair is not None]
    sure = [
        (other, pair)
        for other, pair in tested
        if board.improvement(other.value, run.value) > 0 and pair.p * len(tested) < SIGNIFICANCE_LEVEL
    ]
    if not sure:
        return None
    best, pair = max(sure, key=lambda one: board.improvement(one[0].value, run.value))
    told = f"{best.method} is better by {abs(pair.mean):.2g}, fold by fold, over {pair.folds} folds"
    return TuningReason(
        "better_run_known", f"{told} (p = {pair.p:.2g}): {best.value:g} against {run.value:g}"
    )


def check_edge(search: SearchTrials, name: str) -> TuningReason | None:
    """The best value of a setting is an outermost one, and the error still falls towards it.

    One setting alone varied: the best of each level falls over the three outermost, the last time by
    more than the noise. Several: the slope at the edge of a quadratic fit to the better trials points
    outwards, by more than chance. Too few trials for a fit show nothing here: `predict_gain` judges them.
    """
    if name in search.choices:
        return None
    values = np.array([trial.settings[name] for trial in search.trials])
    places, losses = _scale_to_unit(values, search.space[name]), search.losses()
    side = _find_edge_side(places, losses)
    if side is None:
        return None
    varied = [
        other for other in search.space if len({trial.settings[other] for trial in search.trials}) > 1
    ]
    falls = _profile_falls if varied == [name] else _slope_falls
    if not falls(search, places, losses, side):
        return None
    at = values[losses.argmin()]
    return TuningReason("edge", f"the best {name} ({at:g}) lies on the edge of its space")


def fewer_settings(search: SearchTrials, rivals: Mapping[str, SearchTrials]) -> TuningReason | None:
    """Far fewer trials than the rival that had most."""
    most = max(rivals, key=lambda name: len(rivals[name].trials), default=None)
    if most is None or len(search.trials) >= FEW_SHARE * len(rivals[most].trials):
        return None
    counts = f"{len(search.trials)} settings tried, {len(rivals[most].trials)} of {most}"
    return TuningReason("fewer_settings", counts)


def check_setting_searched(search: SearchTrials, name: str, moved_by: float) -> TuningReason | None:
    """A setting of which one value at most was tried, though it has mattered elsewhere."""
    tried = {trial.settings[name] for trial in search.trials if name in trial.settings}
    if len(tried) > 1 or abs(moved_by) <= MIN_RELATIVE_DIFFERENCE:
        return None
    return TuningReason(
        "unsearched_setting", f"{name} was never searched and moved the method by {moved_by:.1%}"
    )


def _scale_to_unit(values: Floats, space: tuple[float, ...]) -> Floats:
    """Values between 0 and 1, the ends of the space, on a logarithmic scale if it spans a decade."""
    low, high = min(space), max(space)
    if _is_logarithmic(low, high):
        low, high, values = np.log(low), np.log(high), np.log(values)
    return np.asarray((values - low) / ((high - low) or 1.0))


def _is_logarithmic(low: float, high: float) -> bool:
    return low > 0 and high >= 10 * low


def _scale_from_unit(place: float, space: tuple[float, ...]) -> float:
    """The value at a place: the inverse of `_scale_to_unit`."""
    low, high = min(space), max(space)
    return float(low * (high / low) ** place if _is_logarithmic(low, high) else low + (high - low) * place)


def _group_levels(places: Floats) -> Floats:
    """Few values as they are, many by stretch."""
    if len(np.unique(places)) <= 2 * LEVELS:
        return places
    return np.clip(np.floor(places * LEVELS), 0, LEVELS - 1) / (LEVELS - 1)


def _find_edge_side(places: Floats, losses: Floats) -> int | None:
    """0 or 1 if the best trial is in the lowest or highest level of at least two; else None."""
    levels = _group_levels(places)
    tried, best = np.unique(levels), levels[losses.argmin()]
    if len(tried) < 2 or best not in (tried[0], tried[-1]):
        return None
    return int(best == tried[-1])


def _profile_falls(search: SearchTrials, places: Floats, losses: Floats, side: int) -> bool:
    levels = _group_levels(places)
    profile = np.array([losses[levels == level].min() for level in np.unique(levels)])
    outer = (profile[::-1] if side else profile)[:3]
    return bool((np.diff(outer) > 0).all() and outer[1] - outer[0] > SIGMAS * search.noise)


def _slope_falls(search: SearchTrials, places: Floats, losses: Floats, side: int) -> bool:
    """Least squares of c + b x + a x^2, x = distance from the edge, and the same of all other settings."""
    better = losses <= np.quantile(losses, BETTER_SHARE)
    columns = [np.ones(len(losses))]
    for name, space in search.space.items():
        x = _scale_to_unit(np.array([trial.settings[name] for trial in search.trials]), space)
        columns += [] if np.allclose(x, places) else [x, x**2]
    away = np.abs(side - places)
    design = np.column_stack([away, away**2, *columns])[better]
    free = len(design) - design.shape[1]
    if free < TRIALS_PER_COEFFICIENT * design.shape[1]:
        return False
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ losses[better]
    variance = max(np.square(losses[better] - design @ found).sum() / free, search.noise**2)
    return bool(found[0] > SIGMAS * np.sqrt(variance * inverse[0, 0]))
