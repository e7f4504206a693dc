"""Add earlier nights to a report: trends and tested differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd

from recbench_spark.metrics.kernels.about import about_metric
from recbench_spark.reports.facts import Leaderboard, LeaderboardRow, Report, ReportedMeasure
from recbench_spark.reports.frame_values import (
    PART_ORDER,
    is_missing,
    order_key,
    read_facts,
    read_real,
    read_records,
    read_text,
    read_whole,
)
from recbench_spark.reports.night_facts import ComparedPair, Fall, NightValue, Trend
from recbench_spark.reports.phrases import describe_leaders

NIGHTS_SHOWN = 14
PAIRS_SHOWN = 40

HISTORY_COLUMNS = (
    *("logical_date", "dataset", "split", "part", "model", "metric", "definition", "k", "estimator"),
    *("value", "ci_low", "ci_high", "n"),
)
"""Columns of `current_metrics` for trends."""

COMPARED_COLUMNS = (
    *("kind", "logical_date", "other_date", "model", "other", "part", "metric", "definition", "k", "users"),
    *("value", "other_value", "difference", "ci_low", "ci_high", "p_holm", "verdict", "allowed_drop"),
    *("regressed", "e_fall", "with_baseline", "run_id", "other_run_id"),
)
"""Columns of `current_comparisons` for falls and pairs."""


def add_nights(report: Report, history: pd.DataFrame, pairs: Sequence[ComparedPair]) -> Report:
    """Add earlier nights to the report.

    Args:
        report: the night's own facts.
        history: the suite's rows of `current_metrics` at the headline, until the report's night.
        pairs: tested differences.
    """
    values = _group_history(history)
    fallen = {(fall.model, fall.part) for fall in report.falls}
    boards = tuple(
        replace(board, rows=tuple(_add_night(board, row, values, fallen) for row in board.rows))
        for board in report.leaderboards
    )
    return replace(report, leaderboards=boards, compared=tuple(pairs))


def _group_history(history: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, NightValue]]:
    """Map dataset, split, part, measure and model to nightly values."""
    values: dict[tuple[Any, ...], dict[str, NightValue]] = {}
    for row in read_records(history, "current_metrics", HISTORY_COLUMNS):
        if not is_missing(row["value"]):
            texts = (read_text(row[name]) for name in ("dataset", "split", "part", "model"))
            key = (*texts, read_facts(ReportedMeasure, row))
            day, users = read_text(row["logical_date"])[:10], read_whole(row["n"]) or 0
            low, high = read_real(row["ci_low"]), read_real(row["ci_high"])
            values.setdefault(key, {})[day] = NightValue(day, float(row["value"]), low, high, users)
    return values


def _add_night(
    board: Leaderboard,
    row: LeaderboardRow,
    values: dict[tuple[Any, ...], dict[str, NightValue]],
    fallen: set[tuple[str, str]],
) -> LeaderboardRow:
    """Add a trend to a row with earlier nights.

    Earlier nights have the same dataset and split.
    """
    nights = values.get((board.dataset, board.split, board.part, row.model, board.measure), {})
    shown = tuple(nights[day] for day in sorted(nights))[-NIGHTS_SHOWN:]
    ends_tonight = bool(shown) and shown[-1].value == row.estimate.value
    trend = Trend(shown) if len(shown) > 1 and ends_tonight else None
    return replace(row, trend=trend, fell=(row.model, board.part) in fallen)


def add_tests(report: Report, rows: pd.DataFrame) -> Report:
    """Judge board orders by the night's paired tests.

    The result shows in marks and sentences.

    Args:
        report: facts on one split; several splits are left as they are.
        rows: as in `make_pairs_compared`.
    """
    if len({board.split_id for board in report.leaderboards}) > 1:
        return report
    tests: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in read_records(rows, "current_comparisons", COMPARED_COLUMNS):
        p = read_real(row["p_holm"])
        if row["kind"] == "pair" and p is not None:
            measure = read_facts(ReportedMeasure, row, estimator="holdout")
            key = (read_text(row["part"]), measure, read_text(row["model"]))
            tests.setdefault(key, {})[read_text(row["other"])] = p
    boards = tuple(_add_tests(board, tests) for board in report.leaderboards)
    new = dict(zip(describe_leaders(report.leaderboards), describe_leaders(boards), strict=True))
    summary = tuple(new.get(sentence, sentence) for sentence in report.summary)
    return replace(report, leaderboards=boards, summary=summary)


def _add_tests(board: Leaderboard, tests: dict[tuple[Any, ...], dict[str, float]]) -> Leaderboard:
    rows = [replace(r, tests=tests.get((board.part, board.measure, r.model), {})) for r in board.rows]
    opens = [*(one.is_open(other) for one, other in pairwise(rows)), None]
    marked = (replace(row, overlaps_next=is_open) for row, is_open in zip(rows, opens, strict=True))
    return replace(board, rows=tuple(marked))


def make_pairs_compared(rows: pd.DataFrame) -> tuple[ComparedPair, ...]:
    """Return differences to a baseline, and to models' earlier nights.

    Args:
        rows: rows of `current_comparisons` for a night's runs, at one metric and cut-off.
    """
    pairs = [
        _make_pair(row)
        for row in read_records(rows, "current_comparisons", COMPARED_COLUMNS)
        if row["kind"] != "pair" or bool(row["with_baseline"])
    ]
    return tuple(sorted(pairs, key=_order_pair)[:PAIRS_SHOWN])


def _order_pair(pair: ComparedPair) -> tuple[Any, ...]:
    part = order_key(pair.part, PART_ORDER)
    kind = order_key(pair.kind, ("pair", "previous", "baseline"))
    difference = about_metric(pair.label.partition("@")[0]).sort_key(pair.difference)
    return *part, pair.definition, *kind, difference, pair.model, pair.other


def _make_pair(row: dict[str, Any]) -> ComparedPair:
    is_pair = row["kind"] == "pair"
    return read_facts(
        ComparedPair,
        row,
        label=read_facts(ReportedMeasure, row, estimator="holdout").label,
        other=read_text(row["other"]) if is_pair else read_text(row["other_date"])[:10],
        low=read_real(row["ci_low"]),
        high=read_real(row["ci_high"]),
        p=read_real(row["p_holm"]),
    )


def make_fall(row: dict[str, Any], causes: Sequence[str], is_shipped: bool) -> Fall:
    """Make a regression.

    Args:
        row: a row of `current_comparisons`.
        causes: what the two runs have recorded differently.
        is_shipped: whether the model could be deployed.
    """
    measure = read_facts(ReportedMeasure, row, estimator="holdout")
    return read_facts(
        Fall,
        row,
        label=measure.label,
        best=about_metric(measure.metric).best,
        day=read_text(row["logical_date"])[:10],
        other_date=read_text(row["other_date"])[:10],
        low=read_real(row["ci_low"]),
        high=read_real(row["ci_high"]),
        allowed=read_real(row["allowed_drop"]),
        other=read_text(row["other"]),
        causes=tuple(causes),
        is_shipped=is_shipped,
    )
