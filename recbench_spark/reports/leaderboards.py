"""Make leaderboards, agreements, curves, slices and corrections from numbers.

Agreements are between parts, and curves go over cut-offs. Corrections compare models by each estimator
for exposure bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise, product
from typing import Any

import numpy as np

from recbench_spark.analyses.comparisons.kernels.agreement import swap_orders
from recbench_spark.analyses.comparisons.kernels.significance import kendall_tau_b
from recbench_spark.analyses.exposure.kernels.exposure import ESTIMATORS
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import TRAINING_ROWS
from recbench_spark.metrics.kernels.about import FAMILIES, about_metric, place_in_reports
from recbench_spark.reports import facts
from recbench_spark.reports.facts import (
    CorrectionColumn,
    Leaderboard,
    MetricEstimate,
    Number,
    ReportedMeasure,
)
from recbench_spark.reports.frame_values import PART_ORDER, order_key, read_real
from recbench_spark.reports.phrases import note_on_estimators

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
    parts: dict[tuple[str, str], list[Number]] = {}
    for number in numbers:
        if number.slice_key is None:
            parts.setdefault((number.split_id, number.part), []).append(number)
    boards = [
        _make_board([n for n in same_part if n.measure == measure], same_part)
        for same_part in parts.values()
        for measure in {n.measure for n in same_part if (n.measure.metric, n.measure.k) == (metric, k)}
    ]
    return tuple(
        sorted(boards, key=lambda b: (*order_key(b.part, PART_ORDER), b.dataset, b.split_id, b.measure))
    )


def add_training_rows(board: Leaderboard, checks: Sequence[facts.CheckRow]) -> Leaderboard:
    """Count the training items in each model's unfiltered lists."""
    if all(row.model_kind in UNFILTERED_KINDS for row in board.rows):
        return board
    counted = [check for check in checks if check.check == TRAINING_ROWS]
    rows_by_model = {model: int(check.observed or 0) for check in counted for model in check.models}
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
        facts.LeaderboardRow(
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
    candidates.sort(key=lambda m: (m.k != headline.k, m.definition != headline.definition, m.definition))
    candidates.sort(key=lambda m: (place_in_reports(m.metric), m.metric))
    return tuple(next(group) for _, group in groupby(candidates, key=lambda m: m.metric))


def list_columns(board: Leaderboard) -> dict[str, list[int]]:
    """Return places of other measures by family; "": the main table.

    Metrics beyond accuracy have a table for each family, unless a board always has them.
    """
    columns: dict[str, list[int]] = {"": [], **{family: [] for family in FAMILIES}}
    for n, other in enumerate(board.others):
        about = about_metric(other.metric)
        columns["" if about.on_main_board else about.family].append(n)
    return {family: places for family, places in columns.items() if places or not family}


def make_agreements(boards: Sequence[Leaderboard]) -> tuple[facts.Agreement, ...]:
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


def _make_agreement(one: Leaderboard, other: Leaderboard) -> facts.Agreement:
    by_model = {row.model: row for row in other.rows}
    shared = [(row, by_model[row.model]) for row in one.rows if row.model in by_model]
    rows = tuple(
        facts.AgreementRow(row.model, row.position, second.position, row.estimate, second.estimate)
        for row, second in shared
        if math.isfinite(row.estimate.value + second.estimate.value)
    )
    pairs = list(combinations(rows, 2))
    opposite = [
        (a, b)
        for a, b in pairs
        if (a.first_position - b.first_position) * (a.second_position - b.second_position) < 0
    ]
    clear = sum(
        a.first.overlaps(b.first) is False and a.second.overlaps(b.second) is False for a, b in opposite
    )
    return facts.Agreement(one.measure, one.part, other.part, rows, len(pairs), len(opposite), clear)


def make_curves(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[facts.CurveFacts, ...]:
    """Make each board's metrics by cut-off.

    The board's own metric comes first, then its other columns; a family has its table alone.
    """
    overall = [n for n in numbers if n.slice_key is None and n.measure.k is not None]
    curves: list[facts.CurveFacts] = []
    for board in boards:
        shown = (board.measure, *(board.others[n] for n in list_columns(board)[""]))
        made = (_make_curve(overall, board, measure) for measure in shown)
        curves += [curve for curve in made if len(curve.ks) > 1][:CURVES_PER_PART]
    return tuple(curves)


def _make_curve(numbers: list[Number], board: Leaderboard, measure: ReportedMeasure) -> facts.CurveFacts:
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
    curves = {model: dict(sorted(at.items())) for model, at in points.items() if at}
    lines = tuple(facts.CurveLine(model, tuple(at), tuple(at.values())) for model, at in curves.items())
    ks = tuple(sorted({k for line in lines for k in line.ks}))
    return facts.CurveFacts(board.part, measure, ks, lines)


def make_slices(numbers: Iterable[Number], boards: Iterable[Leaderboard]) -> tuple[facts.SliceFacts, ...]:
    """Make each board's measure within each kind of slice.

    Only the largest of many slices are kept.
    """
    sliced: dict[tuple[Any, ...], dict[str, list[Number]]] = {}
    for n in numbers:
        if n.slice_key is not None:
            by_key = sliced.setdefault((n.split_id, n.part, n.measure), {})
            by_key.setdefault(n.slice_key, []).append(n)
    return tuple(
        _make_slices(board, key, own)
        for board in boards
        for key, own in sorted(sliced.get((board.split_id, board.part, board.measure), {}).items())
    )


def _make_slices(board: Leaderboard, key: str, numbers: list[Number]) -> facts.SliceFacts:
    size: dict[str, int] = {}
    for n in numbers:
        size[n.slice_value or ""] = max(size.get(n.slice_value or "", 0), n.estimate.n)
    largest = sorted(size, key=lambda value: (-size[value], value))[:SLICES_PER_KEY]
    values = tuple(sorted(largest, key=lambda value: order_key(value, SLICE_ORDER)))
    estimates = {(n.model, n.slice_value or ""): n.estimate for n in numbers}
    rows = tuple(
        (row.model, tuple(estimates.get((row.model, value)) for value in values)) for row in board.rows
    )
    return facts.SliceFacts(board.part, board.measure, key, values, rows, len(size) - len(values))


# ------------------------------------------------------------------------------- corrections for exposure

HOLDOUT, OPEN_LOOP = "holdout", "open_loop"

Estimates = dict[str, MetricEstimate]
"""One estimator's values by model."""


def is_corrected(number: Number) -> bool:
    """Tell whether a number corrects for exposure.

    DCG, which has no leaderboard of its own, counts too.
    """
    estimator = number.measure.estimator
    return (estimator in ESTIMATORS and estimator != HOLDOUT) or number.measure.metric == "dcg"


def make_corrections(
    numbers: Iterable[Number], boards: Sequence[Leaderboard]
) -> tuple[facts.CorrectionFacts, ...]:
    """Collect, for each corrected board, one measure by all estimators."""
    overall = [n for n in numbers if n.slice_key is None and math.isfinite(n.estimate.value)]
    corrected = [number for number in overall if is_corrected(number)]
    made = [_make_correction(board, corrected, _find_reference(board, boards)) for board in boards]
    shown = [one for one in made if len(one.columns) > 1 + (one.reference is not None)]
    return tuple(replace(one, columns=join_equal(one.columns)) for one in shown)


def join_equal(columns: Iterable[CorrectionColumn]) -> tuple[CorrectionColumn, ...]:
    """Return each distinct column once, under all its names.

    The open loop stays alone.
    """
    names: dict[CorrectionColumn, list[str]] = {}
    for column in columns:
        key = column if column.name == OPEN_LOOP else replace(column, name="")
        names.setdefault(key, []).append(column.name)
    return tuple(replace(column, name=" = ".join(joined)) for column, joined in names.items())


def _find_reference(board: Leaderboard, boards: Sequence[Leaderboard]) -> Leaderboard | None:
    """Find the open loop's board for a measure and split."""
    same = (b for b in boards if (b.split_id, b.measure) == (board.split_id, board.measure))
    return next((b for b in same if b.part == OPEN_LOOP and board.part != OPEN_LOOP), None)


def _make_correction(
    board: Leaderboard, corrected: Sequence[Number], reference: Leaderboard | None
) -> facts.CorrectionFacts:
    models = tuple(row.model for row in board.rows)
    by_name = {HOLDOUT: _board_estimates(board)} | _group_by_estimator(board, corrected)
    truth = _board_estimates(reference) if reference else {}
    if reference:
        by_name[OPEN_LOOP] = truth
    columns = [_make_column(board, name, models, values, truth) for name, values in by_name.items()]
    tested = tuple(
        replace(column, p=_agreement_p_value(by_name[column.name], by_name[HOLDOUT], truth))
        if column.name not in (HOLDOUT, OPEN_LOOP)
        else column
        for column in columns
    )
    note = note_on_estimators(board.measure.metric, by_name)
    return facts.CorrectionFacts(
        board.part, board.measure, models, tested, OPEN_LOOP if reference else None, note
    )


def _board_estimates(board: Leaderboard) -> Estimates:
    return {row.model: row.estimate for row in board.rows}


def _group_by_estimator(board: Leaderboard, corrected: Sequence[Number]) -> dict[str, Estimates]:
    """Map estimator (with its strata) -> model -> estimate.

    Estimators are in their own order.
    """
    board_key = (board.split_id, board.part, board.measure.metric, board.measure.k)
    estimates: dict[tuple[int, str], Estimates] = {}
    for n in corrected:
        if (n.split_id, n.part, n.measure.metric, n.measure.k) == board_key:
            strata = n.measure.definition.partition(";strata=")[2]
            name = f"{n.measure.estimator} {strata}".strip().replace("_", " ")
            place = ESTIMATORS.index(n.measure.estimator), name
            estimates.setdefault(place, {})[n.model] = n.estimate
    return {name: estimates[place, name] for place, name in sorted(estimates)}


def _make_column(
    board: Leaderboard, name: str, models: Sequence[str], values: Estimates, truth: Estimates
) -> CorrectionColumn:
    estimates = tuple(values.get(model) for model in models)
    sort_keys = [math.inf if e is None else board.measure.sort_key(e.value) for e in estimates]
    places = tuple(
        None if e is None else 1 + sum(other < own for other in sort_keys)
        for e, own in zip(estimates, sort_keys, strict=True)
    )
    return CorrectionColumn(
        name, estimates, places, _agreement(values, truth) if values is not truth else None
    )


def _agreement(values: Estimates, truth: Estimates) -> float | None:
    """Compute Kendall's tau-b between two rankings of common models.

    The result is None below two models.
    """
    pairs = _common_values(values, truth)
    return read_real(kendall_tau_b(pairs[:, 0], pairs[:, 1])) if len(pairs) > 1 else None


def _agreement_p_value(values: Estimates, holdout: Estimates, truth: Estimates) -> float | None:
    """Return the p of so large a lead by chance.

    The lead is over the holdout, in agreement with the truth.
    """
    own, other, open_loop = _common_values(values, holdout, truth).T
    return read_real(swap_orders(own, other, open_loop))


def _common_values(*estimates: Estimates) -> Floats:
    """Return the values of models every estimator has, (m, estimators)."""
    names = sorted(set.intersection(*(set(values) for values in estimates)))
    table = np.array([[values[m].value for values in estimates] for m in names])
    table = table.reshape(len(names), len(estimates))
    common: Floats = table[np.isfinite(table).all(axis=1)]
    return common
