"""Answer on a report's first screen what happened and what can be shipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date

from recbench_spark.reports.build import describe_failed_attempts, find_failed
from recbench_spark.reports.facts import Leaderboard, LeaderboardRow, Report
from recbench_spark.reports.night_facts import Fall, Opening
from recbench_spark.reports.phrases import NOT_SHIPPED, format_decimals, format_estimate, format_signed

FRACTIONS = (
    (1 / 10, "a tenth"), (1 / 5, "a fifth"), (1 / 4, "a quarter"), (1 / 3, "a third"), (1 / 2, "half"),
    (2 / 3, "two thirds"), (3 / 4, "three quarters"), (4 / 5, "four fifths"), (9 / 10, "nine tenths"),
)  # fmt: skip
"""Shares that have a name."""

NEAR = 0.01
"""Distance from a named share within which its name is used; else the per cent stand."""

MAX_EVENTS = 5
SETTINGS_SHOWN = 2


def make_opening(report: Report) -> Opening:
    """Return verdict, events and the best models that can be shipped."""
    falls = sorted(report.falls, key=lambda fall: (not fall.is_shipped, -measure_fall(fall), fall.model))
    gated = [f"{row.check} ({', '.join(row.models)}): {row.detail}" for row in report.failures]
    failed, _ = find_failed(report.runs)
    events = [
        *_cut_events([describe_fall(fall) for fall in falls], "in the view regressions"),
        *_cut_events([f"A gate failed: {text}." for text in gated], "in the table checks"),
        *_cut_events([f"{model} failed: see Runs." for model in failed], "that failed, in Runs"),
        *_cut_events(describe_failed_attempts(report.runs), "of such attempts, in Runs"),
    ]
    return Opening(*_choose_verdict(report, falls), tuple(events), describe_shipped(report))


def _cut_events(events: Sequence[str], place: str) -> list[str]:
    """Return the first events, and how many more there are, with their place."""
    rest = len(events) - MAX_EVENTS
    return [*events[:MAX_EVENTS], *([f"{rest} more {place}."] if rest > 0 else [])]


def _choose_verdict(report: Report, falls: Sequence[Fall]) -> tuple[str, str]:
    """Return the tone, and the verdict in one line: the first one that holds."""
    fallen = list(dict.fromkeys(fall.model for fall in falls if fall.is_shipped))
    failed, outdated = find_failed(report.runs)
    missing = _list_missing(report)
    has_values = any(
        math.isfinite(row.estimate.value) for board in report.leaderboards for row in board.rows
    )
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
    )
    calm = ("good", _describe_calm(report))
    return next(((tone, verdict) for holds, tone, verdict in verdicts if holds), calm)


def _list_missing(report: Report) -> list[str]:
    """Return the rows of leaderboards that have no value, as `model on part`."""
    rows = [(board.part, row) for board in report.leaderboards for row in board.rows]
    return sorted({f"{row.model} on {part}" for part, row in rows if not math.isfinite(row.estimate.value)})


def _join_names(names: Sequence[str]) -> str:
    """Return the first three names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _describe_calm(report: Report) -> str:
    """Return the verdict on a night on which nothing failed or fell, and all models have values."""
    has_nights = any(row.trend for board in report.leaderboards for row in board.rows)
    if not has_nights:
        return "Every model has a value; there is no earlier night to compare with"
    if report.has_rules:
        return "No model fell by more than is allowed"
    return "Every model has a value; no rule says how far one may fall"


# ------------------------------------------------------------------------------- falls


def describe_fall(fall: Fall) -> str:
    """Return a regression as a sentence for a reader who knows no metrics.

    The numbers have the four decimals that tables have.
    """
    numbers = f"{fall.label} from {format_decimals(fall.other_value)} to {format_decimals(fall.value)}"
    where = f"on {fall.part}, {fall.users:,} users"
    night = "the night that the file names" if fall.kind == "baseline" else "its night before"
    since = f"against {night}, {fall.other_date}"
    causes = f"; {', '.join(fall.causes)}" if fall.causes else ""
    return f"{fall.model} {describe_move(fall)}: {numbers} ({where}), {since}{causes}."


def describe_move(fall: Fall) -> str:
    """Return how far a number moved: `fell by two thirds`, or `rose by 43 %` where small is best."""
    verb = "fell" if fall.difference < 0 else "rose"
    share = measure_fall(fall)
    if fall.best == "near 0" or not math.isfinite(share):
        return f"moved by {format_signed(fall.difference)}"
    return f"{verb} by {share_in_words(share)}"


def measure_fall(fall: Fall) -> float:
    """Return the size of a fall as a share of the earlier value; infinite where that has no meaning."""
    if fall.other_value <= 0 or not math.isfinite(fall.value):
        return math.inf
    return abs(fall.value - fall.other_value) / fall.other_value


def share_in_words(share: float) -> str:
    """Return a share by its name where it has one, else in per cent.

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
    """Return what two runs of a model have recorded differently, in words.

    Args:
        changed_inputs: names of inputs with another content, such as `lists`.
        changed_settings: settings of the model as `name from a to b`.
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


# ------------------------------------------------------------------------------- what can be shipped


def describe_shipped(report: Report) -> tuple[str, ...]:
    """Return a sentence for each part on its best model that can be shipped, and why better ones cannot."""
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
    reasons |= {
        run.model: "it failed"
        for run in report.runs
        if run.status == "failed" and run.model not in succeeded
    }
    rows = [row for board in report.leaderboards for row in board.rows]
    return reasons | {
        row.model: NOT_SHIPPED[row.model_kind] for row in rows if row.model_kind in NOT_SHIPPED
    }


def _describe_board(board: Leaderboard, held: dict[str, str], outdated: Sequence[str]) -> str:
    rows = [row for row in board.rows if math.isfinite(row.estimate.value)]
    able = [row for row in rows if row.model not in held]
    if not able:
        return f"On {board.part} no model can be shipped."
    best = able[0]
    passed_over = [row for row in rows if row.position < best.position]
    sentence = (
        f"Best on {board.part} that can be shipped: {best.model}, "
        f"{board.measure.label} {format_estimate(best.estimate)}"
    )
    if best.model in outdated:
        sentence += ", of an earlier attempt, since its last one failed"
    level = [row.model for row in able[1:] if best.is_open(row)]
    if level:
        others = ", ".join(level[:2]) + (f" and {len(level) - 2} more" if len(level) > 2 else "")
        sentence += f"; its lead over {others} may be chance"
    return f"{sentence}{_describe_passed_over(passed_over, held)}."


def _describe_passed_over(rows: Sequence[LeaderboardRow], held: dict[str, str]) -> str:
    reasons = [f"{row.model} ({held[row.model]})" for row in rows[:3]]
    return f"; above it: {', '.join(reasons)}" if reasons else ""
