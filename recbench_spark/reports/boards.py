"""Show a board as text and as a page.

It has rows, verdicts with their reasons, and search results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from recbench_spark.analyses.comparisons.kernels.significance import holm
from recbench_spark.boards.entries import BESIDE_TABLE, Entry
from recbench_spark.boards.fold_statistics import PairedFolds, compare_folds
from recbench_spark.boards.searches import ExpectedBest, SearchTrials, expected_best, late_gain
from recbench_spark.boards.verdicts import TuningVerdict


@dataclass(frozen=True)
class BoardRow:
    """A row as the page shows it."""

    position: int | None
    entry: Entry
    verdict: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Curve:
    """A method's expected best validation result by search budget.

    Attributes:
        model: the model's name.
        best: expected best and interval, by budget.
        gain: gain from the last doubling of the budget.
    """

    model: str
    best: ExpectedBest
    gain: float

    def points(self) -> list[tuple[int, float, float, float]]:
        """Return budget, expected best and interval at doubling budgets."""
        n = len(self.best.budget_n)
        shown = sorted({*(2**k for k in range(n.bit_length())), n} & set(range(1, n + 1)))
        columns = (self.best.expected_n, self.best.low_n, self.best.high_n)
        return [(k, *(float(column[k - 1]) for column in columns)) for k in shown]


@dataclass(frozen=True)
class BoardFacts:
    """Everything a board's page shows.

    Attributes:
        name: the board's name.
        rows: rows by part, best first.
        tables: rows of views, by title.
        curves: curves of searches.
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
    verdicts: Mapping[str, TuningVerdict],
    searches: Mapping[str, SearchTrials],
    views: Mapping[str, pd.DataFrame],
    *,
    figures: Sequence[tuple[str, str]] = (),
    held_back: Mapping[str, str] | None = None,
) -> BoardFacts:
    """Collect a board's facts.

    Positions are among all rows of a part; a number beside a table has none. `held_back`: the reason to
    hold a row back, by entry id; such a row has no position either.
    """
    rows, places = [], dict[str | None, int]()
    for entry in entries:
        doubt = (held_back or {}).get(entry.entry_id)
        counted = entry.evidence != BESIDE_TABLE and doubt is None
        places[entry.part] = places.get(entry.part, 0) + counted
        verdict = verdicts.get(entry.entry_id)
        notes = verdict.notes if verdict else ()
        is_accused = bool(verdict and verdict.reasons)
        text = "under-tuned baseline" if is_accused else " and ".join(_NOTES[note.code] for note in notes)
        reasons = tuple(remark.text for remark in verdict.remarks) if verdict else ()
        if doubt is not None:
            text, reasons = HELD_BACK, (doubt, f"entry {entry.entry_id}")
        rows.append(BoardRow(places[entry.part] if counted else None, entry, text, reasons))
    curves = tuple(Curve(model, expected_best(s), late_gain(s)) for model, s in sorted(searches.items()))
    tables = {TITLES[view]: frame for view, frame in views.items() if len(frame)}
    return BoardFacts(name, tuple(rows), tables, curves, tuple(figures))


_NOTES = {"never_searched": "never searched", "no_power": "no power", "better_not_used": "better not used"}
HELD_BACK = "held back as implausible: it does not count"
"""Verdict on a result better than the noise allows."""

TITLES = {
    "board_gaps": "One method, by who ran it",
    "board_progress": "Progress over the baselines, as published and corrected",
    "board_spreads": "Spread over setups beside the spread over folds",
    "board_looks": "Looks at hidden parts",
    "board_decided": "Held back, accepted and retracted",
}


def board_text(facts: BoardFacts) -> str:
    """Show the board in a terminal."""
    lines = [
        f"board {facts.name}",
        f"{'':3} {'method as called':28} {'part':6} {'value':>7} {'folds':>7} {'ran by':9} "
        f"{'settings':>8}  verdict",
    ]
    for row in facts.rows:
        entry = row.entry
        place = "" if row.position is None else str(row.position)
        settings = "-" if entry.budget_settings is None else str(entry.budget_settings)
        folds = format_spread(entry.spread_folds)
        lines.append(
            f"{place:>3} {entry.name:28} {entry.part or '':6} {entry.value:7.4f} "
            f"{folds:>7} {entry.ran_by or '?':9} {settings:>8}  {row.verdict}".rstrip()
        )
        lines += [f"{'':12}because {reason}" for reason in row.reasons]
    for curve in facts.curves:
        points = ", ".join(f"{best:.4f} of {n}" for n, best, _, _ in curve.points())
        lines.append(f"search of {curve.model}: expected best {points}; last doubling {curve.gain:.4f}")
    return "\n".join(lines)


def format_spread(value: float | None) -> str:
    """Format a spread; a dash if there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def pairs_text(name: str, entries: Sequence[Entry]) -> str:
    """Compare every two rows of a board by fold.

    Shown are the mean difference, t, and p with Holm's correction. Differences are the first row's value
    less the second's. Folds share most training rows, so p is too small. But the paired difference
    removes what makes a fold hard for both.
    """
    pairs = _pair_entries(entries)
    if not pairs:
        return f"board {name}: no two rows of which the values of the same folds are known"
    adjusted = holm(np.array([pair.p for _, _, pair in pairs]))
    n_folds = max(pair.folds for _, _, pair in pairs)
    header = " ".join(f"{f'fold {fold}':>8}" for fold in range(n_folds))
    lines = [
        f"board {name}: the first row less the second, fold by fold; {len(pairs)} pairs, Holm's correction",
        f"{'first':28} {'second':28} {'mean':>8} {'t':>7} {'p':>8} {'p (Holm)':>8} {header}",
    ]
    for (first, second, pair), p in zip(pairs, adjusted, strict=True):
        folds = " ".join(f"{difference:+8.4f}" for difference in pair.differences_f)
        numbers = f"{pair.mean:+8.4f} {pair.t:+7.2f} {pair.p:8.2g} {p:8.2g}"
        names = f"{_display_name(first, entries):28} {_display_name(second, entries):28}"
        lines.append(f"{names} {numbers} {folds}".rstrip())
    return "\n".join(lines)


def _pair_entries(entries: Sequence[Entry]) -> list[tuple[Entry, Entry, PairedFolds]]:
    """Pair the entries of one part with the same folds.

    Pairs are in board order.
    """
    same_part = ((one, two) for one, two in combinations(entries, 2) if one.part == two.part)
    compared = ((one, two, compare_folds(one.fold_values, two.fold_values)) for one, two in same_part)
    return [(one, two, pair) for one, two, pair in compared if pair is not None]


def _display_name(entry: Entry, entries: Sequence[Entry]) -> str:
    """Name an entry, with its id if names repeat."""
    alike = sum(other.name == entry.name for other in entries)
    return entry.name if alike == 1 else f"{entry.name} {entry.entry_id[:6]}"
