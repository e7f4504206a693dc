"""Judge whether a baseline is under-tuned, and give reasons.

The verdict is a pure function of what is known about a run. There are six reasons, and each is enough: the
best trial is at an edge of the space and the error still falls towards it; the trials predict a better
setting within the space; the search found a better setting than the run uses; a rival had far more trials;
a better run of the same method is known; a setting that matters for this method elsewhere was never
searched. Statistical significance is no excuse: it does not include the spread over setups (Rendle, Zhang
and Koren 2019, section 5).

Three notes accuse nobody: `never_searched`; `no_power`, if the trials decide nothing; and
`better_not_used`, if the best trial is better by less than the required gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from recbench_spark.boards.fold_statistics import compare_folds
from recbench_spark.boards.published import Board, BoardRun
from recbench_spark.boards.response_surfaces import MIN_EXTRA_TRIALS, REACH, Surface
from recbench_spark.boards.searches import Floats, SearchTrials

LEVELS = 5
"""Number of levels for cutting a range."""

SIGMAS = 2.0
"""A difference must exceed noise by this many standard deviations."""

MIN_RELATIVE_DIFFERENCE = 0.002
"""Smallest difference that counts, as a share of the value, if no spread is known: .0016 of .8."""

BETTER_SHARE = 0.75
"""Share of trials, the best ones, for fitting a slope. Failed trials would bend it."""

FEW_SHARE = 0.5
"""Share of a rival's trials below which a budget is small."""

TRIALS_PER_COEFFICIENT = 2
"""Fewest trials beyond the coefficients, for each coefficient, to fit a slope."""

MIN_GAIN_SHARE = 0.01
"""Gain, as a share of the value, which a better setting needs for a baseline to be under-tuned."""

MIN_GAIN_SPREADS = 3.0
"""The same gain in spreads over folds; the larger of both counts."""

SURE_CHANCE, UNSURE_CHANCE = 0.85, 0.2
"""Chances of such a gain from which on a run is under-tuned, and from which on the trials decide nothing.
"""

SAME_SETTING_SHARE = 0.02
"""Difference, as a share of the range, up to which two values are the same setting, rounded."""

SIGNIFICANCE_LEVEL = 0.01
"""p of paired folds below which another run of the same method is better, corrected for their number."""


class TuningReason(NamedTuple):
    """A reason why a baseline is under-tuned: code and sentence."""

    code: Literal[
        "edge", "unfinished_search", "better_not_used", "fewer_settings", "better_run_known",
        "unsearched_setting",
    ]  # fmt: skip
    text: str


class TuningNote(NamedTuple):
    """A limit to what the board knows about a run.

    A note has a code and a sentence, and accuses nobody.
    """

    code: Literal["never_searched", "no_power", "better_not_used"]
    text: str


class TuningVerdict(NamedTuple):
    """The verdict on a run, with its reasons and notes.

    Attributes:
        method: its name.
        reasons: reasons to call it under-tuned; empty if there is none.
        notes: limits to what is known about it.
    """

    method: str
    reasons: tuple[TuningReason, ...]
    notes: tuple[TuningNote, ...] = ()

    @property
    def remarks(self) -> list[TuningReason | TuningNote]:
        """All reasons, then all notes."""
        return [*self.reasons, *self.notes]

    @property
    def under_tuned(self) -> bool:
        """True if there is a reason."""
        return bool(self.reasons)


def judge_run(
    run: BoardRun,
    board: Board,
    search: SearchTrials | None = None,
    rivals: Mapping[str, SearchTrials] | None = None,
    effects_elsewhere: Mapping[str, float] | None = None,
    *,
    used: Mapping[str, float] | None = None,
) -> TuningVerdict:
    """Return the verdict on a run: reasons and notes.

    Args:
        run: the run in question.
        board: all known runs on the benchmark, among them better runs of the same method.
        search: trials in its search, if known.
        rivals: searches of other methods, by method.
        effects_elsewhere: settings and by how much each has moved this method on another benchmark or in
            another work, relative to the value there; what moves less than `MIN_RELATIVE_DIFFERENCE` does
            not count.
        used: values of the searched settings in this run; None: the best trial's.
    """
    remarks: list[TuningReason | TuningNote | None] = [find_better_run(run, board)]
    if search is not None:
        remarks += [*judge_search(search, run, used), check_budget(search, rivals or {})]
        effects = (effects_elsewhere or {}).items()
        remarks += [check_setting_searched(search, name, by) for name, by in effects]
    reasons = tuple(one for one in remarks if isinstance(one, TuningReason))
    return TuningVerdict(run.method, reasons, tuple(one for one in remarks if isinstance(one, TuningNote)))


def judge_search(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float] | None
) -> list[TuningReason | TuningNote]:
    """Return the reasons and notes from a search's trials."""
    if used is not None and not uses_best(search, used):
        remark = compare_with_best(search, run, used)
        is_decided = isinstance(remark, TuningReason) or remark.code == "no_power"
        gain = None if is_decided else predict_gain(search, run, used)
        return [remark] if gain is None else [remark, gain]
    edges = [edge for name in search.space if (edge := check_edge(search, name)) is not None]
    gain = None if edges else predict_gain(search, run)
    return [*edges] if gain is None else [gain]


def uses_best(search: SearchTrials, used: Mapping[str, float]) -> bool:
    """Return whether a run uses its search's best setting.

    One as good within noise counts, too.
    """
    losses, at = search.losses(), find_trial(search, used)
    return at is not None and float(losses[at] - losses.min()) <= trial_noise(search)


def trial_noise(search: SearchTrials) -> float:
    """Return the difference between trials which noise or rounding explain."""
    best = float(np.abs(search.losses()).min())
    return max(SIGMAS * float(np.sqrt(2)) * search.noise, MIN_RELATIVE_DIFFERENCE * best)


def find_trial(search: SearchTrials, used: Mapping[str, float]) -> int | None:
    """Return the trial with these settings, up to rounding.

    None: no trial has them.
    """
    names = list(search.space)
    places = _trial_places(search, names)
    own = _settings_place(search, names, used)
    exact = np.array([name in search.choices for name in names])
    away = np.abs(places - own)
    same = np.where(exact, away < 1e-9, away <= SAME_SETTING_SHARE).all(axis=1)
    return int(np.argmin(np.where(same, away.sum(axis=1), np.inf))) if same.any() else None


def compare_with_best(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float]
) -> TuningReason | TuningNote:
    """Judge a run without its search's best settings.

    Returns:
        A reason if the best trial is better by the required gain, else a note.
    """
    losses, at = search.losses(), find_trial(search, used)
    best = search.trials[int(losses.argmin())]
    text = f"the search of {len(losses)} settings found {describe_settings(best.settings)}"
    if at is not None:
        text += (
            f": {best.value:g} against {search.trials[at].value:g} on validation rows, and it was not used"
        )
        is_large = float(losses[at] - losses.min()) > required_gain(search, run)
        return TuningReason("better_not_used", text) if is_large else TuningNote("better_not_used", text)
    text += ", which is not used"
    names = _varying_settings(search)
    fitted = _fit_surface(search, names)
    if fitted is None:
        return TuningNote("no_power", f"{text}; too few trials tell whether it is better")
    own, gains = _settings_place(search, names, used), (required_gain(search, run), trial_noise(search))
    # Chances that the best trial beats the untried settings by more than each gain.
    worth_chance, chance = (float(fitted.chances(own, fitted.places_nd[:1], gain)[0]) for gain in gains)
    settings = describe_settings(used)
    if worth_chance >= SURE_CHANCE:
        return TuningReason("better_not_used", f"{text}: predicted to be better than {settings}")
    if worth_chance >= UNSURE_CHANCE:
        return TuningNote("no_power", f"{text}; the trials do not tell how much better it is")
    if chance >= SURE_CHANCE:
        return TuningNote("better_not_used", f"{text}: predicted to be a little better than {settings}")
    text += ": predicted to be no better than what is used, which no search found"
    return TuningNote("never_searched", text)


def _settings_place(search: SearchTrials, names: Sequence[str], used: Mapping[str, float]) -> Floats:
    """Return the place (d,) of some settings."""
    return np.array([float(_scale_to_unit(np.array([used[n]]), search.space[n])[0]) for n in names])


def required_gain(search: SearchTrials, run: BoardRun) -> float:
    """Return the gain from which on a run is under-tuned.

    The gain is in units of the value.
    """
    best = float(search.losses().min())
    return max(MIN_GAIN_SHARE * abs(best), MIN_GAIN_SPREADS * (run.spread or 0.0))


def predict_gain(
    search: SearchTrials, run: BoardRun, used: Mapping[str, float] | None = None
) -> TuningReason | TuningNote | None:
    """Judge whether an untried setting promises the required gain.

    Args:
        search: the trials.
        run: the run in question.
        used: settings to be improved; None: the best trial's.

    Returns:
        A reason if the chance is `SURE_CHANCE` or more, None if it is below `UNSURE_CHANCE`, else a note.
    """
    names, losses = _varying_settings(search), search.losses()
    if not names:
        return None
    gain = required_gain(search, run)
    counts = f"{len(losses)} trials of {len(names)} settings"
    text = f"{counts} do not decide whether {gain:.2g} more could be gained"
    fitted = _fit_surface(search, names)
    if fitted is None:
        return TuningNote("no_power", text)
    place = fitted.places_nd[0] if used is None else _settings_place(search, names, used)
    better = fitted.find_better(place, gain, _edge_reach(search, names))
    if better.chance < UNSURE_CHANCE:
        return None
    if better.chance < SURE_CHANCE:
        return TuningNote("no_power", f"{text} (chance {better.chance:.0%})")
    return _describe_prediction(search, names, better.place_d, gain)


def _describe_prediction(
    search: SearchTrials, names: Sequence[str], place: Floats, gain: float
) -> TuningReason:
    values = {n: _scale_from_unit(float(x), search.space[n]) for n, x in zip(names, place, strict=True)}
    beyond = [name for name, x in zip(names, place, strict=True) if not 0 <= x <= 1]
    text = f"{describe_settings(values)} is predicted to be better by more than {gain:.2g}"
    if beyond:
        return TuningReason("edge", f"{text}, beyond the edge of {', '.join(beyond)}")
    return TuningReason("unfinished_search", f"{text} than the best of {len(search.trials)} settings tried")


def describe_settings(settings: Mapping[str, float]) -> str:
    """Return settings as text, such as `rates .003, dims 8`."""
    return ", ".join(f"{name} {value:.3g}" for name, value in sorted(settings.items()))


def _varying_settings(search: SearchTrials) -> list[str]:
    """Return the settings which took more than one value."""
    return [name for name in search.space if len({trial.settings[name] for trial in search.trials}) > 1]


def _fit_surface(search: SearchTrials, names: Sequence[str]) -> Surface | None:
    """Fit losses over the varied settings; None for few trials."""
    if not names or len(search.trials) < len(names) + MIN_EXTRA_TRIALS:
        return None
    return Surface(_trial_places(search, names), search.losses(), search.noise)


def _trial_places(search: SearchTrials, names: Sequence[str]) -> Floats:
    """Return the trials' places (n, d), 0 to 1 over the space."""
    tried = {name: np.array([trial.settings[name] for trial in search.trials]) for name in names}
    return np.column_stack([_scale_to_unit(values, search.space[name]) for name, values in tried.items()])


def _edge_reach(search: SearchTrials, names: Sequence[str]) -> Floats:
    """Return (d, 2) distances beyond each edge.

    A choice has 0, and no number goes below 0.
    """
    reach = []
    for name in names:
        low, high = min(search.space[name]), max(search.space[name])
        room = low / (high - low) if low >= 0 and not _is_logarithmic(low, high) and high > low else REACH
        reach.append((0.0, 0.0) if name in search.choices else (min(room, REACH), REACH))
    return np.array(reach)


def find_better_run(run: BoardRun, board: Board) -> TuningReason | None:
    """Return a better run of the same method, if any.

    Spread and rounding must not explain the difference. Runs with known folds are compared fold by fold by
    Student's paired t, since a hard fold is hard for both. p is multiplied by the number of such runs
    (Bonferroni).
    """
    method = board.canonical(run.method)
    same = [other for other in board.runs if other != run and board.canonical(other.method) == method]
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
    text = f"{best.method}{who} reached {best.value:g} against {run.value:g}"
    return TuningReason("better_run_known", text)


def _find_better_by_folds(run: BoardRun, others: Sequence[BoardRun], board: Board) -> TuningReason | None:
    known = [(other, compare_folds(run.by_fold, other.by_fold)) for other in others]
    tested = [(other, pair) for other, pair in known if pair is not None]
    better = [(other, pair) for other, pair in tested if board.improvement(other.value, run.value) > 0]
    sure = [(other, pair) for other, pair in better if pair.p * len(tested) < SIGNIFICANCE_LEVEL]
    if not sure:
        return None
    best, pair = max(sure, key=lambda one: board.improvement(one[0].value, run.value))
    text = f"{best.method} is better by {abs(pair.mean):.2g}, fold by fold, over {pair.folds} folds"
    text += f" (p = {pair.p:.2g}): {best.value:g} against {run.value:g}"
    return TuningReason("better_run_known", text)


def check_edge(search: SearchTrials, name: str) -> TuningReason | None:
    """Check whether a setting's best value is at an edge.

    The error must still fall towards it. If this setting alone varied, the best losses at the three
    outermost levels must fall, the last time by more than the noise. If several varied, the slope of a
    quadratic fit to the better trials must point outwards at the edge by more than chance. `predict_gain`
    judges searches with too few trials for a fit.
    """
    if name in search.choices:
        return None
    places, losses = _trial_places(search, [name])[:, 0], search.losses()
    side = _find_edge_side(places, losses)
    if side is None:
        return None
    falls = _profile_falls if _varying_settings(search) == [name] else _slope_falls
    if not falls(search, places, losses, side):
        return None
    at = search.trials[int(losses.argmin())].settings[name]
    return TuningReason("edge", f"the best {name} ({at:g}) lies on the edge of its space")


def check_budget(search: SearchTrials, rivals: Mapping[str, SearchTrials]) -> TuningReason | None:
    """Check whether a rival had far more trials."""
    most = max(rivals, key=lambda name: len(rivals[name].trials), default=None)
    if most is None or len(search.trials) >= FEW_SHARE * len(rivals[most].trials):
        return None
    counts = f"{len(search.trials)} settings tried, {len(rivals[most].trials)} of {most}"
    return TuningReason("fewer_settings", counts)


def check_setting_searched(search: SearchTrials, name: str, moved_by: float) -> TuningReason | None:
    """Check whether a setting that matters elsewhere was searched.

    A setting was not searched if it had one value at most.
    """
    if name in _varying_settings(search) or abs(moved_by) <= MIN_RELATIVE_DIFFERENCE:
        return None
    text = f"{name} was never searched and moved the method by {moved_by:.1%}"
    return TuningReason("unsearched_setting", text)


def _scale_to_unit(values: Floats, space: tuple[float, ...]) -> Floats:
    """Scale values to 0 to 1 over the space.

    The scale is logarithmic if the space spans a factor of 10.
    """
    low, high = min(space), max(space)
    if _is_logarithmic(low, high):
        low, high, values = np.log(low), np.log(high), np.log(values)
    return np.asarray((values - low) / ((high - low) or 1.0))


def _is_logarithmic(low: float, high: float) -> bool:
    return low > 0 and high >= 10 * low


def _scale_from_unit(place: float, space: tuple[float, ...]) -> float:
    """Return the value at a place: the inverse of `_scale_to_unit`."""
    low, high = min(space), max(space)
    return float(low * (high / low) ** place if _is_logarithmic(low, high) else low + (high - low) * place)


def _group_levels(places: Floats) -> Floats:
    """Return few values unchanged, and many rounded to levels."""
    if len(np.unique(places)) <= 2 * LEVELS:
        return places
    return np.clip(np.floor(places * LEVELS), 0, LEVELS - 1) / (LEVELS - 1)


def _find_edge_side(places: Floats, losses: Floats) -> int | None:
    """Return the side where the best trial is outermost.

    0 is low, and 1 high. It is in the lowest or highest of two or more levels; None: it is not.
    """
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
    """Return whether a quadratic fit falls outwards at the edge.

    The fit is c + b x + a x^2 by least squares, where x is the distance from the edge. Other settings enter
    alike.
    """
    better = losses <= np.quantile(losses, BETTER_SHARE)
    columns = [np.ones(len(losses))]
    for x in _trial_places(search, list(search.space)).T:
        columns += [] if np.allclose(x, places) else [x, x**2]
    away = np.abs(side - places)
    design = np.column_stack([away, away**2, *columns])[better]
    free = len(design) - design.shape[1]
    if free < TRIALS_PER_COEFFICIENT * design.shape[1]:
        return False
    inverse = np.linalg.pinv(design.T @ design)
    coefficients = inverse @ design.T @ losses[better]
    variance = max(np.square(losses[better] - design @ coefficients).sum() / free, search.noise**2)
    return bool(coefficients[0] > SIGMAS * np.sqrt(variance * inverse[0, 0]))
