"""Show leaderboards on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from recbench_spark.core.text_tables import align_cells
from recbench_spark.reports import phrases
from recbench_spark.reports.advice import split_notes
from recbench_spark.reports.facts import (
    CheckRow,
    CorrectionFacts,
    Leaderboard,
    LeaderboardRow,
    MetricEstimate,
    MultiverseFacts,
    Report,
)
from recbench_spark.reports.glossary import name_counted
from recbench_spark.reports.leaderboards import list_columns
from recbench_spark.reports.opening import make_opening
from recbench_spark.reports.scales import Axis, axis_for

BAR_WIDTH = 24
MAX_COLUMNS = 3
NAME_WIDTH = 24

OPEN_ORDER = (
    "~ no paired test tells it from the next model or, without one, their intervals overlap: "
    "the order of the two may be chance"
)
"""Note on marked rows, whose order may be chance."""


def leaderboard_text(report: Report) -> str:
    """Show a report in a terminal.

    First comes the answer, then tables, sentences, failed checks, and last the notes.
    """
    opening = make_opening(report)
    lines = [f"{report.suite}  {report.logical_date}".rstrip(), opening.sentences[0]]
    lines += [opening.evaluated, ""] if opening.evaluated else [""]
    several = len({board.split_id for board in report.leaderboards}) > 1
    for board in report.leaderboards:
        lines += [*_board_text(board, report.level, several), ""]
    for facts in report.corrections:
        lines += [*_corrections_text(facts), ""]
    lines += report.summary
    findings, notes = split_notes(report)
    if findings:
        lines += ["", *(f"{row.severity}: {row.check}: {_finding_text(row)}" for row in findings[:5])]
    if others := findings[5:]:
        names = ", ".join(dict.fromkeys(row.check for row in others))
        # In a line: the most urgent ones stand above.
        lines.append(f"{others[0].severity}: {len(others)} more did not pass: {names}")
    if notes:
        count, are = (f"{len(notes)} notes", "are") if len(notes) > 1 else ("1 note", "is")
        lines += ["", f"{count} of no consequence {are} at the end of the report's section on checks"]
    return "\n".join(_printable(line) for line in lines)


def multiverse_text(facts: MultiverseFacts) -> str:
    """Tabulate the share of worlds where row beats column."""
    width = max(8, *(len(_shorten(model)) for model in facts.models))
    protocols = f" over {facts.protocols} protocols" if facts.protocols > 1 else ""
    lines = [f"{facts.part}: share of {facts.worlds:,} worlds a pair{protocols} in which the row wins"]
    lines.append(" ".join([" " * width, *(_shorten(model).rjust(width) for model in facts.models)]))
    for model, shares in zip(facts.models, facts.shares, strict=True):
        cells = ("" if share is None else f"{100 * share:.0f} %" for share in shares)
        lines.append(" ".join([_shorten(model).ljust(width), *(cell.rjust(width) for cell in cells)]))
    return "\n".join(_printable(line) for line in lines)


def _shorten(model: str) -> str:
    return model if len(model) <= NAME_WIDTH else model[: NAME_WIDTH - 1] + "…"


def _finding_text(row: CheckRow) -> str:
    models = ", ".join(row.models[:3]) + (" ..." if len(row.models) > 3 else "")
    allowed = "" if row.threshold is None else f", allowed {phrases.format_number(row.threshold)}"
    return f"{phrases.format_number(row.observed)}{allowed}; {row.detail} ({models})"


def _board_text(board: Leaderboard, level: float | None, several_splits: bool) -> list[str]:
    axis = axis_for([row.estimate for row in board.rows], 0, BAR_WIDTH - 1)
    columns = list_columns(board)[""][:MAX_COLUMNS]
    others = [board.others[n] for n in columns]
    ends = f"{axis.low:.3g}".ljust(BAR_WIDTH - 6) + f"{axis.high:.3g}".rjust(6)
    labels = (board.measure.label, ends, *(m.label for m in others))
    header = ["", "#", "model", *labels, name_counted(board.measure)]
    table = [header, *(_row_text(row, axis, columns) for row in board.rows)]
    lines = align_cells(table, {1, *range(5, len(header))})
    title = f"{board.part}: {board.measure.label}, definition {board.measure.definition}"
    if board.measure.estimator != "holdout":
        title += f", estimator {board.measure.estimator}"
    if several_splits:
        title += f", {board.dataset}, split {board.split_id} ({board.split})"
    notes = [
        f"{other.label}: definition {other.definition}"
        for other in others
        if other.definition != board.measure.definition
    ]
    if any(row.overlaps_next for row in board.rows):
        notes.append(OPEN_ORDER)
    notes += [f"* {row.note}" for row in board.rows if row.note]
    notes += [
        f"{row.model}: {phrases.NOT_SHIPPED['truth']}" for row in board.rows if row.model_kind == "truth"
    ]
    rule = "─" * max(len(line) for line in lines)
    return [f"{title}, {phrases.level_in_words(level)}", lines[0], rule, *lines[1:], *notes]


def _row_text(row: LeaderboardRow, axis: Axis, columns: Sequence[int]) -> list[str]:
    name = _shorten(row.model)
    return [
        "~" if row.overlaps_next else " ",
        str(row.position),
        f"{name} *" if row.note else name,
        phrases.format_estimate(row.estimate),
        interval_bar(row.estimate, axis),
        *(phrases.format_value(row.others[n]) for n in columns),
        f"{row.estimate.n:,}",
    ]


def _corrections_text(facts: CorrectionFacts) -> list[str]:
    """Tabulate models by estimator, with a line of agreements."""
    header = ["model", *(column.name for column in facts.columns)]
    table = [
        [_shorten(model), *(phrases.format_value(column.estimates[m]) for column in facts.columns)]
        for m, model in enumerate(facts.models)
    ]
    agreement = [column.agreement for column in facts.columns]
    has_agreement = any(tau is not None for tau in agreement)
    if has_agreement:
        table.append(["tau-b", *("" if tau is None else f"{tau:.2f}" for tau in agreement)])
    if any(column.p is not None for column in facts.columns):
        table.append(["p", *("" if c.p is None else f"{c.p:.2f}" for c in facts.columns)])
    lines = align_cells([header, *table])
    suffix = "; tau-b: agreement of the order with that of the open loop" if has_agreement else ""
    suffix += ", p: of one better than the holdout's" if "p" in [row[0] for row in table] else ""
    title = f"{facts.part}: {facts.measure.label} under exposure bias, by estimator{suffix}"
    return [title, lines[0], "─" * max(map(len, lines)), *lines[1:], *([facts.note] if facts.note else [])]


def interval_bar(estimate: MetricEstimate, axis: Axis) -> str:
    """Draw the interval in characters: `     ├──●──┤    `.

    The dot is the value.
    """
    cells = [" "] * BAR_WIDTH
    if estimate.interval is not None:
        low, high = (round(axis(end)) for end in estimate.interval)
        cells[low : high + 1] = "─" * (high + 1 - low)
        cells[low], cells[high] = "├", "┤"
    if math.isfinite(estimate.value):
        cells[round(axis(estimate.value))] = "●"
    return "".join(cells)


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in line)
