"""Make leaderboards, agreements, curves and slices from numbers.

Agreements are between parts, and curves go over cut-offs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise, product

from recbench_spark.core.checks import TRAINING_ROWS
from recbench_spark.metrics.kernels.about import place_in_reports
from recbench_spark.reports.facts import (
    Agreement,
    AgreementRow,
    CheckRow,
    CurveFacts,
    CurveLine,
    Leaderboard,
    LeaderboardRow,
    MetricEstimate,
    Number,
    ReportedMeasure,
    SliceFacts,
)
from recbench_spark.reports.frame_values import PART_ORDER, order_key

SLICE_ORDER = ("head", "torso", "tail", "cold")
CURVES_PER_PART = 4
SLICES_PER_KEY = 12


def choose_headline(numbers: Sequence[Number], headline: str) -> tuple[str, int | None, tuple[str, ...]]:
    """Choose the metric and cut-off to rank models by.

    A note says if `headline` was not measured.
    """
    name, _, cut = headline.partition("@")
    headline_key = (name, int(cut) if cut.isdecimal() else None)
    measured = {(n.measure.metric, n.measure.k) for n in numbers if n.slice_key is None}
    if not measured or headline_key in measured:
        return (*headline_key, ())
    same = [pair for pair in measured if pair[0] == name]
    metric, k = min(same or measured, key=lambda pair: (place_in_reports(pair[0]), -(pair[1] or 0)))
    label = ReportedMeasure(metric, k, "", "").label
    return metric, k, (f"{headline} was not measured; models are ranked by {label} instead.",)


def make_leaderboards(numbers: Iterable[Number], metric: str, k: int | None) -> tuple[Leaderboard, ...]:
    """Make one board for each split, part, definition and estimator.

    Boards have values of the metric.
    """
    overall = [number for number in numbers if number.slice_key is None]
    chosen = [n for n in overall if (n.measure.metric, n.measure.k) == (metric, k)]
    keys = {(n.split_id, n.part, n.measure) for n in chosen}
    boards = [
        _make_board(
            [n for n in chosen if (n.split_id, n.part, n.measure) == key],
            [n for n in overall if (n.split_id, n.part) == key[:2]],
        )
        for key in keys
    ]
    return tuple(
        sorted(boards, key=lambda b: (*order_key(b.part, PART_ORDER), b.dataset, b.split_id, b.measure))
    )


def add_training_rows(board: Leaderboard, checks: Sequence[CheckRow]) -> Leaderboard:
    """Count the training items in each model's unfiltered lists."""
    if all(row.model_kind in UNFILTERED_KINDS for row in board.rows):
        return board
    rows_by_model = {
        model: int(check.observed or 0)
        for check in checks
        if check.check == TRAINING_ROWS
        for model in check.models
    }
    rows = tuple(replace(row, training_rows=rows_by_model.get(row.model, 0)) for row in board.rows)
    return replace(board, rows=rows)


UNFILTERED_KINDS = ("lists", "published")
"""Model kinds whose lists are not filtered: training items stay in them."""


def _make_board(chosen: list[Number], same_part: list[Number]) -> Leaderboard:
    measure = chosen[0].measure
    sort_keys = {number.model: measure.sort_key(number.estimate.value) for number in chosen}
    ordered = sorted(chosen, key=lambda number: (sort_keys[number.model], number.model))
    others = _other_measures(measure, same_part)
    estimates = {(number.model, number.measure): number.estimate for number in same_part}
    overlaps = [a.estimate.overlaps(b.estimate) for a, b in pairwise(ordered)]
    rows = tuple(
        LeaderboardRow(
            position=1 + sum(other < sort_keys[number.model] for other in sort_keys.values()),
            model=number.model,
            model_kind=number.model_kind,
            source=number.source,
            estimate=number.estimate,
            others=tuple(estimates.get((number.model, other)) for other in others),
            overlaps_next=overlap,
        )
        for number, overlap in zip(ordered, [*overlaps, None], strict=True)
    )
    first = chosen[0]
    return Leaderboard(first.split_id, first.dataset, first.split, first.part, measure, others, rows)


def _other_measures(headline: ReportedMeasure, numbers: Iterable[Number]) -> tuple[ReportedMeasure, ...]:
    """Choose one measure for each other metric.

    The measure has the headline's cut-off and a similar definition.
    """
    measures = {n.measure for n in numbers if n.measure.metric != headline.metric}
    candidates = [m for m in measures if m.k in (headline.k, None) and m.estimator == headline.estimator]
    candidates.sort(
        key=lambda m: (
            place_in_reports(m.metric),
            m.metric,
            m.k != headline.k,
            m.definition != headline.definition,
            m.definition,
        )
    )
    return tuple(next(group) for _, group in groupby(candidates, key=lambda m: m.metric))


def make_agreements(boards: Sequence[Leaderboard]) -> tuple[Agreement, ...]:
    """Compare part `test` with the uniformly exposed `open_loop`.

    Both parts must be there.
    """
    return tuple(_make_agreement(held_out, uniform) for held_out, uniform in pair_with_open_loop(boards))


def pair_with_open_loop(boards: Sequence[Leaderboard]) -> Iterator[tuple[Leaderboard, Leaderboard]]:
    """Yield each board on `test` with that on `open_loop`.

    Both must rank two models.
    """
    for held_out, uniform in product(boards, boards):
        if (
            (held_out.part, uniform.part) == ("test", "open_loop")
            and (held_out.split_id, held_out.measure) == (uniform.split_id, uniform.measure)
            and len(_finite_models(held_out) & _finite_models(uniform)) > 1
        ):
            yield held_out, uniform


def _finite_models(board: Leaderboard) -> set[str]:
    return {row.model for row in board.rows if math.isfinite(row.estimate.value)}


def _make_agreement(one: Leaderboard, other: Leaderboard) -> Agreement:
    others = {row.model: row for row in other.rows}
    rows = tuple(
        AgreementRow(
            row.model,
            row.position,
            others[row.model].position,
            row.estimate,
            others[row.model].estimate,
        )
        for row in one.rows
        if row.model in others and math.isfinite(row.estimate.value + others[row.model].estimate.value)
    )
    pairs = list(combinations(rows, 2))
    opposite = [
        (a, b)
        for a, b in pairs
        if (a.first_position - b.first_position) * (a.second_position - b.second_position) < 0
    ]
    clear = [
        (a, b)
        for a, b in opposite
        if a.first.overlaps(b.first) is False and a.second.overlaps(b.second) is False
    ]
    return Agreement(one.measure, one.part, other.part, rows, len(pairs), len(opposite), len(clear))


def make_curves(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[CurveFacts, ...]:
    """Make each board's metrics by cut-off.

    The board's own metric comes first, then its other columns.
    """
    overall = [n for n in numbers if n.slice_key is None and n.measure.k is not None]
    curves: list[CurveFacts] = []
    for board in boards:
        board_curves = [
            curve
            for measure in (board.measure, *board.others)
            if len((curve := _make_curve(overall, board, measure)).ks) > 1
        ]
        curves += board_curves[:CURVES_PER_PART]
    return tuple(curves)


def _make_curve(numbers: list[Number], board: Leaderboard, measure: ReportedMeasure) -> CurveFacts:
    board_measure = (measure.metric, measure.definition, measure.estimator)
    points: dict[str, dict[int, MetricEstimate]] = {row.model: {} for row in board.rows}
    for n in numbers:
        if (
            (n.split_id, n.part) == (board.split_id, board.part)
            and (n.measure.metric, n.measure.definition, n.measure.estimator) == board_measure
            and n.measure.k is not None
            and n.model in points
            and math.isfinite(n.estimate.value)
        ):
            points[n.model][n.measure.k] = n.estimate
    lines = tuple(
        CurveLine(model, tuple(sorted(at)), tuple(at[k] for k in sorted(at)))
        for model, at in points.items()
        if at
    )
    ks = tuple(sorted({k for line in lines for k in line.ks}))
    return CurveFacts(board.part, measure, ks, lines)


def make_slices(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[SliceFacts, ...]:
    """Make each board's measure within each kind of slice.

    Only the largest of many slices are kept.
    """
    sliced = [number for number in numbers if number.slice_key is not None]
    return tuple(
        _make_slices(board, key, [n for n in board_numbers if n.slice_key == key])
        for board in boards
        if (
            board_numbers := [
                n
                for n in sliced
                if (n.split_id, n.part, n.measure) == (board.split_id, board.part, board.measure)
            ]
        )
        for key in sorted({n.slice_key or "" for n in board_numbers})
    )


def _make_slices(board: Leaderboard, key: str, numbers: list[Number]) -> SliceFacts:
    size: dict[str, int] = {}
    for n in numbers:
        size[n.slice_value or ""] = max(size.get(n.slice_value or "", 0), n.estimate.n)
    largest = sorted(size, key=lambda value: (-size[value], value))[:SLICES_PER_KEY]
    values = tuple(sorted(largest, key=lambda value: order_key(value, SLICE_ORDER)))
    estimates = {(n.model, n.slice_value or ""): n.estimate for n in numbers}
    rows = tuple(
        (row.model, tuple(estimates.get((row.model, value)) for value in values)) for row in board.rows
    )
    return SliceFacts(board.part, board.measure, key, values, rows, len(size) - len(values))
