"""A board as text and as a page: rows, verdicts with their reasons, who ran what, what searches gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from recbench_spark.boards.entries import BESIDE, Entry
from recbench_spark.boards.searches import BestOf, Search, best_of, still_to_gain
from recbench_spark.boards.verdicts import Verdict


@dataclass(frozen=True)
class BoardRow:
    """A row as it is shown."""

    position: int | None
    entry: Entry
    verdict: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Curve:
    """The best of n settings of a method, on validation rows.

    Attributes:
        model: name.
        best: expected best and interval, by budget.
        gain: what the last doubling of the budget brought.
    """

    model: str
    best: BestOf
    gain: float

    def points(self) -> list[tuple[int, float, float, float]]:
        """Budget, expected best, interval, at doubling budgets."""
        n = len(self.best.budget_n)
        shown = sorted({*(2**k for k in range(n.bit_length())), n} & set(range(1, n + 1)))
        columns = (self.best.expected_n, self.best.low_n, self.best.high_n)
        return [(k, *(float(column[k - 1]) for column in columns)) for k in shown]


@dataclass(frozen=True)
class BoardFacts:
    """All that a page of a board shows.

    Attributes:
        name: of the board.
        rows: by part, best first.
        tables: rows of views, by title.
        curves: of searches.
        figures: titles and pictures as SVG.
    """

    name: str
    rows: tuple[BoardRow, ...]
    tables: Mapping[str, pd.DataFrame]
    curves: tuple[Curve, ...]
    figures: tuple[tuple[str, str], ...] = ()


def make_board(
    name: str,
    entries: Sequence[Entry],
    verdicts: Mapping[str, Verdict],
    searches: Mapping[str, Search],
    views: Mapping[str, pd.DataFrame],
    figures: Sequence[tuple[str, str]] = (),
    held: Mapping[str, str] | None = None,
) -> BoardFacts:
    """The facts of a board. Positions are among all rows of a part; a number beside a table has none.

    `held`: why a row is held back, by entry id; it has no position either.
    """
    rows, places = [], dict[str | None, int]()
    for entry in entries:
        doubt = (held or {}).get(entry.entry_id)
        counted = entry.evidence != BESIDE and doubt is None
        places[entry.part] = places.get(entry.part, 0) + counted
        found = verdicts.get(entry.entry_id)
        reasons = tuple(reason.text for reason in found.reasons) if found else ()
        told = "under-tuned baseline" if reasons else ""
        if doubt is not None:
            told, reasons = HELD_BACK, (doubt, f"entry {entry.entry_id}")
        rows.append(BoardRow(places[entry.part] if counted else None, entry, told, reasons))
    curves = tuple(Curve(model, best_of(s), still_to_gain(s)) for model, s in sorted(searches.items()))
    tables = {TITLES[view]: frame for view, frame in views.items() if len(frame)}
    return BoardFacts(name, tuple(rows), tables, curves, tuple(figures))


HELD_BACK = "held back as implausible: it does not count"
"""The verdict on a result that is better than the noise allows."""

TITLES = {
    "board_gaps": "One method, by who ran it",
    "board_progress": "Progress over the baselines, as published and corrected",
    "board_spreads": "Spread over setups beside the spread over folds",
    "board_looks": "Looks at hidden parts",
    "board_decided": "Held back, accepted and retracted",
}


def board_text(facts: BoardFacts) -> str:
    """The board for a terminal."""
    lines = [
        f"board {facts.name}",
        f"{'':3} {'method as called':28} {'part':6} {'value':>7} {'folds':>7} {'ran by':9} "
        f"{'settings':>8}  verdict",
    ]
    for row in facts.rows:
        entry = row.entry
        place = "" if row.position is None else str(row.position)
        settings = "-" if entry.budget_settings is None else str(entry.budget_settings)
        lines.append(
            f"{place:>3} {entry.name:28} {entry.part or '':6} {entry.value:7.4f} "
            f"{spread(entry.spread_folds):>7} {entry.ran_by or '?':9} {settings:>8}  {row.verdict}".rstrip()
        )
        lines += [f"{'':12}because {reason}" for reason in row.reasons]
    for curve in facts.curves:
        told = ", ".join(f"{best:.4f} of {n}" for n, best, _, _ in curve.points())
        lines.append(f"search of {curve.model}: expected best {told}; last doubling {curve.gain:.4f}")
    return "\n".join(lines)


def spread(value: float | None) -> str:
    """A spread, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
