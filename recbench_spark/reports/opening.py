"""Sum up what happened, and which models can be shipped.

A report shows this on its first screen. To ship a model means to deploy it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import permutations

from recbench_spark.reports import phrases
from recbench_spark.reports.build import describe_failed_attempts, find_failed
from recbench_spark.reports.facts import Leaderboard, LeaderboardRow, ManifestFacts, Report
from recbench_spark.reports.glossary import name_counted
from recbench_spark.reports.leaderboards import pair_with_open_loop
from recbench_spark.reports.night_facts import Fall, Opening
from recbench_spark.schemas import TIME_FACTS

FRACTIONS = (
    (1 / 10, "a tenth"), (1 / 5, "a fifth"), (1 / 4, "a quarter"), (1 / 3, "a third"), (1 / 2, "half"),
    (2 / 3, "two thirds"), (3 / 4, "three quarters"), (4 / 5, "four fifths"), (9 / 10, "nine tenths"),
)  # fmt: skip
"""Shares with a name."""

NEAR = 0.01
"""Largest distance to use a named share; else the per cent stand."""

MAX_EVENTS = 5
SETTINGS_SHOWN = 2


def make_opening(report: Report) -> Opening:
    """Return verdict, events and the best models to ship."""
    falls = sorted(report.falls, key=lambda fall: (not fall.is_shipped, -measure_fall(fall), fall.model))
    gated = [f"{row.check} ({', '.join(row.models)}): {row.detail}" for row in report.failures]
    failed, _ = find_failed(report.runs)
    kinds = phrases.map_kinds(report.leaderboards)
    events = [
        *_cut_events(
            [describe_fall(fall, kinds.get(fall.model, "")) for fall in falls], "in the view regressions"
        ),
        *_cut_events([f"A gate failed: {text}." for text in gated], "in the table checks"),
        *_cut_events([f"{doubt}." for doubt in report.doubts], "in the view model_verdicts"),
        *_cut_events([f"{model} failed: see Runs." for model in failed], "that failed, in Runs"),
        *_cut_events(describe_failed_attempts(report.runs), "of such attempts, in Runs"),
    ]
    tone, verdict = _choose_verdict(report, falls)
    shipped, finding = describe_shipped(report), find_reversal(report.leaderboards)
    return Opening(tone, verdict, tuple(events), shipped, finding, describe_evaluated(report))


def _cut_events(events: Sequence[str], place: str) -> list[str]:
    """Keep the first events; count and place the others."""
    rest = len(events) - MAX_EVENTS
    return [*events[:MAX_EVENTS], *([f"{rest} more {place}."] if rest > 0 else [])]


def _choose_verdict(report: Report, falls: Sequence[Fall]) -> tuple[str, str]:
    """Return tone and verdict: the first one that holds."""
    fallen = list(dict.fromkeys(fall.model for fall in falls if fall.is_shipped))
    failed, outdated = find_failed(report.runs)
    rows = [(board.part, row) for board in report.leaderboards for row in board.rows]
    missing = sorted(
        {f"{row.model} on {part}" for part, row in rows if not math.isfinite(row.estimate.value)}
    )
    has_values = any(math.isfinite(row.estimate.value) for _, row in rows)
    others = "" if outdated or missing else "; the other models have values"
    worse = f"Do not ship {_join_names(fallen)}: worse than an earlier night by more than is allowed"
    earlier = f"The last attempt failed, so figures are of an earlier one: {_join_names(outdated)}"
    verdicts = (
        (fallen, "bad", worse),
        (report.failures, "bad", "Do not ship before the failed gates are looked at"),
        (not has_values, "bad", "No model of this night has a value"),
        (failed, "warn", f"{_join_names(failed)} failed{others}"),
        (outdated, "warn", earlier),
        (missing, "warn", f"No value for {_join_names(missing)}"),
        (falls, "warn", "Nothing that could be shipped fell; a model that nobody ships did"),
        (report.doubts, "warn", "Look before you ship: a number is too good, or does not hold"),
    )
    calm = ("good", _describe_calm(report))
    return next(((tone, verdict) for holds, tone, verdict in verdicts if holds), calm)


def _join_names(names: Sequence[str]) -> str:
    """Join the first three names, and count the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _describe_calm(report: Report) -> str:
    """Word the verdict where nothing failed, fell or is missing."""
    has_nights = any(row.trend for board in report.leaderboards for row in board.rows)
    if not has_nights:
        return "Every model has a value; there is no earlier night to compare with"
    if report.has_rules:
        return "No model fell by more than is allowed"
    return "Every model has a value; no rule says how far one may fall"


# ------------------------------------------------------------------------------- falls


def describe_fall(fall: Fall, kind: str = "") -> str:
    """Describe a regression to a reader who knows no metrics.

    The numbers have four decimals, like the tables. `kind`: the model's.
    """
    before, now = phrases.format_decimals(fall.other_value), phrases.format_decimals(fall.value)
    numbers = f"{fall.label} from {before} to {now}"
    where = f"on {fall.part}{fall.slice}, {fall.users:,} users"
    nights = {"baseline": f"the night that the file names, {fall.other_date}", "pair": fall.other}
    since = f"against {nights.get(fall.kind, f'its night before, {fall.other_date}')}"
    causes = f"; {', '.join(fall.causes)}" if fall.causes else ""
    model = phrases.name_model(fall.model, kind)
    return f"{model} {describe_move(fall)}: {numbers} ({where}), {since}{causes}."


def describe_move(fall: Fall) -> str:
    """Describe how far a number moved.

    For example `fell by two thirds`, or `rose by 43 %` where small is best.
    """
    verb = "fell" if fall.difference < 0 else "rose"
    share = measure_fall(fall)
    if fall.best == "near 0" or not math.isfinite(share):
        return f"moved by {phrases.format_signed(fall.difference)}"
    return f"{verb} by {share_in_words(share)}"


def measure_fall(fall: Fall) -> float:
    """Return a fall as a share of the earlier value.

    The share is infinite where it has no meaning.
    """
    if fall.other_value <= 0 or not math.isfinite(fall.value):
        return math.inf
    return abs(fall.value - fall.other_value) / fall.other_value


def share_in_words(share: float) -> str:
    """Name a share by words where possible, else in percent.

    >>> share_in_words(0.6633), share_in_words(0.43), share_in_words(0.004)
    ('two thirds', '43 %', '0.4 %')
    """
    size, name = min(FRACTIONS, key=lambda one: abs(one[0] - share))
    if abs(size - share) <= NEAR:
        return name
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def list_causes(
    changed_inputs: Iterable[str], changed_settings: Iterable[str], code: str | None, day: str, before: str
) -> tuple[str, ...]:
    """Describe what two runs of a model recorded differently.

    Args:
        changed_inputs: names of inputs with another content, such as `lists`.
        changed_settings: the model's settings as `name from a to b`.
        code: revisions that differ, in words; None: none.
        day: the later night.
        before: the earlier night.
    """
    is_next_day = (date.fromisoformat(day) - date.fromisoformat(before)).days == 1
    when = f"on {day}" if is_next_day else f"between {before} and {day}"
    inputs = [f"{'the' if name == 'log' else 'its'} {name} changed {when}" for name in changed_inputs]
    changed = list(changed_settings)
    settings = [f"its setting {text} {when}" for text in changed[:SETTINGS_SHOWN]]
    if len(changed) > SETTINGS_SHOWN:
        settings.append(f"and {len(changed) - SETTINGS_SHOWN} more of its settings")
    return (*inputs, *settings, *([f"the code changed {when} ({code})"] if code else []))


# ------------------------------------------------------------------------------- what was found, on what


@dataclass(frozen=True)
class Reversal:
    """Two models the open loop orders the other way round.

    The models are given as their rows on both parts. `sizes`: number of models with a value, on both parts.
    `label`: the measure as people write it.
    """

    model: tuple[LeaderboardRow, LeaderboardRow]
    other: tuple[LeaderboardRow, LeaderboardRow]
    parts: tuple[str, str]
    sizes: tuple[int, int]
    label: str

    @property
    def open_parts(self) -> tuple[str, ...]:
        """Parts where the order of the two may be chance."""
        rows = zip(self.parts, self.model, self.other, strict=True)
        return tuple(part for part, row, other in rows if row.is_open(other) is not False)

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Sort key, larger for what a reader should know first.

        The key holds whether the model falls below `random`, hardly by chance, and how far.
        """
        fall = self.model[1].position - self.model[0].position
        return self.other[1].model_kind == "random", not self.open_parts, fall


def find_reversal(boards: Sequence[Leaderboard]) -> str:
    """Describe the model falling most plainly in the open loop.

    The model falls behind another model.
    """
    one = max(list_reversals(boards), key=lambda one: one.rank, default=None)
    if one is None:
        return ""
    first, second = (_place_in_words(row.position, n) for row, n in zip(one.model, one.sizes, strict=True))
    sentence = (
        f"{one.model[0].model} is {first} on {one.parts[0]} and {second}, below {one.other[0].model}, "
        f"on {one.parts[1]} ({one.label})"
    )
    where = " and on ".join(one.open_parts)
    return sentence + (f"; the order of the two may be chance on {where}." if where else ".")


def list_reversals(boards: Sequence[Leaderboard]) -> Iterator[Reversal]:
    """Yield the deployable model pairs the open loop turns round."""
    for pair in pair_with_open_loop(boards):
        first, second = ({row.model: row for row in _list_known(board)} for board in pair)
        both = [m for m in first if m in second and first[m].model_kind not in phrases.NOT_SHIPPED]
        parts, sizes = (pair[0].part, pair[1].part), (len(first), len(second))
        for a, b in permutations(both, 2):
            if first[a].position < first[b].position and second[a].position > second[b].position:
                model, other = (first[a], second[a]), (first[b], second[b])
                yield Reversal(model, other, parts, sizes, pair[0].measure.label)


def _list_known(board: Leaderboard) -> list[LeaderboardRow]:
    """Return the rows with a value."""
    return [row for row in board.rows if math.isfinite(row.estimate.value)]


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def _place_in_words(place: int, places: int) -> str:
    """Return a place in words.

    >>> _place_in_words(5, 6), _place_in_words(6, 6), _place_in_words(12, 20)
    ('fifth', 'last', 'in place 12')
    """
    if place == places:
        return "last"
    return ORDINALS[place - 1] if place <= len(ORDINALS) else f"in place {place}"


def describe_evaluated(report: Report) -> str:
    """Describe what was measured.

    The text names each part's users, items and rows, and the log's days.
    """
    counted = {one: _list_sizes(one, report.leaderboards) for one in report.manifests}
    words = {one: [*sizes, *_describe_days(one)] for one, sizes in counted.items()}
    return " ".join(f"Evaluated on {one.dataset}: {'; '.join(of)}." for one, of in words.items() if of)


def _list_sizes(manifest: ManifestFacts, boards: Sequence[Leaderboard]) -> list[str]:
    """Return rows, users and items of a board's parts.

    The list is empty where a manifest lacks one of them.
    """
    own: dict[str, Leaderboard] = {}
    for board in boards:
        if board.split_id == manifest.split_id:
            own.setdefault(board.part, board)
    counts = {
        (fact, part): phrases.format_number(value)
        for fact, values in zip(manifest.facts, manifest.values, strict=True)
        for part, value in zip(manifest.parts, values, strict=True)
    }
    return [
        f"{part}, {counts['rows', part]} rows of {_count_users(board, counts['users', part])} and "
        f"{counts['items', part]} items"
        for part, board in own.items()
        if {("users", part), ("items", part), ("rows", part)} <= counts.keys()
    ]


def _count_users(board: Leaderboard, users: str) -> str:
    """Count a part's users.

    Users with a value are counted too, where a mean leaves some out.
    """
    n = phrases.format_number(max(row.estimate.n for row in board.rows))
    is_mean = name_counted(board.measure) == "users" and n != users
    return f"{users} users ({n} with a value)" if is_mean else f"{users} users"


def _describe_days(manifest: ManifestFacts) -> list[str]:
    """Describe the log's days, and the tested period if named."""
    times = {fact: text.split(", ")[-1] for _, fact, text in manifest.texts if fact in TIME_FACTS}
    if not {"oldest_event", "newest_event"} <= times.keys():
        return []
    first, last = (times[name][:10] for name in ("oldest_event", "newest_event"))
    days = (date.fromisoformat(last) - date.fromisoformat(first)).days + 1
    words = [f"a log of {days:,} day{'s' if days > 1 else ''}, {first} to {last}"]
    if {"period_begin", "period_end"} <= times.keys():
        begin, end = times["period_begin"], times["period_end"]
        words.append(f"tested from {begin[:16]} to {end[:16]}{end[19:]}")
    return words


# ------------------------------------------------------------------------------- what can be shipped


def describe_shipped(report: Report) -> tuple[str, ...]:
    """Describe each part's best model to ship.

    The sentence says why better ones cannot be shipped.
    """
    held = find_held(report)
    _, outdated = find_failed(report.runs)
    sentences: dict[str, str] = {}
    for board in report.leaderboards:
        if board.part not in sentences:
            sentences[board.part] = _describe_board(board, held, outdated)
    return tuple(sentences.values())


def find_held(report: Report) -> dict[str, str]:
    """Map each model that cannot be shipped to the reason."""
    reasons = {fall.model: "it regressed" for fall in report.falls}
    reasons |= {model: "a gate failed" for row in report.failures for model in row.models}
    succeeded = {run.model for run in report.runs if run.status == "succeeded"}
    failed = [run.model for run in report.runs if run.status == "failed"]
    reasons |= {model: "it failed" for model in failed if model not in succeeded}
    rows = [row for board in report.leaderboards for row in board.rows]
    return reasons | {
        row.model: phrases.NOT_SHIPPED[row.model_kind]
        for row in rows
        if row.model_kind in phrases.NOT_SHIPPED
    }


def _describe_board(board: Leaderboard, held: dict[str, str], outdated: Sequence[str]) -> str:
    rows = _list_known(board)
    able = [row for row in rows if row.model not in held]
    if not able:
        return f"On {board.part} no model can be shipped."
    best = able[0]
    passed_over = [f"{row.model} ({held[row.model]})" for row in rows if row.position < best.position]
    sentence = (
        f"Best on {board.part} that can be shipped: {best.model}, "
        f"{board.measure.label} {phrases.format_estimate(best.estimate)}"
    )
    if best.model in outdated:
        sentence += ", of an earlier attempt, since its last one failed"
    level = [row.model for row in able[1:] if best.is_open(row)]
    if level:
        others = ", ".join(level[:2]) + (f" and {len(level) - 2} more" if len(level) > 2 else "")
        sentence += f"; its lead over {others} may be chance"
    above = f"; above it: {', '.join(passed_over[:3])}" if passed_over else ""
    return f"{sentence}{above}."
