"""Compare models by each estimator for exposure bias.

The estimators are compared with the holdout and the open loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.comparisons.kernels.agreement import swap_orders
from recbench_spark.analyses.comparisons.kernels.significance import kendall_tau_b
from recbench_spark.analyses.exposure.kernels.exposure import ESTIMATORS
from recbench_spark.reports.facts import (
    CorrectionColumn,
    CorrectionFacts,
    Leaderboard,
    MetricEstimate,
    Number,
)
from recbench_spark.reports.phrases import note_on_estimators

HOLDOUT, OPEN_LOOP = "holdout", "open_loop"


def is_corrected(number: Number) -> bool:
    """Tell whether a number corrects for exposure.

    DCG, which has no leaderboard of its own, counts too.
    """
    estimator = number.measure.estimator
    return (estimator in ESTIMATORS and estimator != HOLDOUT) or number.measure.metric == "dcg"


def make_corrections(
    numbers: Iterable[Number], boards: Sequence[Leaderboard]
) -> tuple[CorrectionFacts, ...]:
    """Collect, for each corrected board, one measure by all estimators."""
    corrected = [
        number
        for number in numbers
        if is_corrected(number) and number.slice_key is None and math.isfinite(number.estimate.value)
    ]
    all_facts = (_make_correction(board, corrected, _find_reference(board, boards)) for board in boards)
    return tuple(
        replace(facts, columns=join_equal(facts.columns))
        for facts in all_facts
        if len(facts.columns) > 1 + (facts.reference is not None)
    )


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
) -> CorrectionFacts:
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
    return CorrectionFacts(
        board.part, board.measure, models, tested, OPEN_LOOP if reference else None, note
    )


def _board_estimates(board: Leaderboard) -> dict[str, MetricEstimate]:
    return {row.model: row.estimate for row in board.rows}


def _group_by_estimator(
    board: Leaderboard, corrected: Sequence[Number]
) -> dict[str, dict[str, MetricEstimate]]:
    """Map estimator (with its strata) -> model -> estimate.

    Estimators are in their own order.
    """
    board_key = (board.split_id, board.part, board.measure.metric, board.measure.k)
    estimates: dict[tuple[int, str], dict[str, MetricEstimate]] = {}
    for n in corrected:
        if (n.split_id, n.part, n.measure.metric, n.measure.k) == board_key:
            strata = n.measure.definition.partition(";strata=")[2]
            name = f"{n.measure.estimator} {strata}".strip().replace("_", " ")
            place = ESTIMATORS.index(n.measure.estimator), name
            estimates.setdefault(place, {})[n.model] = n.estimate
    return {name: estimates[place, name] for place, name in sorted(estimates)}


def _make_column(
    board: Leaderboard,
    name: str,
    models: Sequence[str],
    values: dict[str, MetricEstimate],
    truth: dict[str, MetricEstimate],
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


def _agreement(values: dict[str, MetricEstimate], truth: dict[str, MetricEstimate]) -> float | None:
    """Compute Kendall's tau-b between two rankings of common models.

    The result is None below two models.
    """
    pairs = _common_values(values, truth)
    return _none_if_nan(kendall_tau_b(pairs[:, 0], pairs[:, 1])) if len(pairs) > 1 else None


def _agreement_p_value(
    values: dict[str, MetricEstimate], holdout: dict[str, MetricEstimate], truth: dict[str, MetricEstimate]
) -> float | None:
    """Return the p of so large a lead by chance.

    The lead is over the holdout, in agreement with the truth.
    """
    own, other, open_loop = _common_values(values, holdout, truth).T
    return _none_if_nan(swap_orders(own, other, open_loop))


def _common_values(*estimates: dict[str, MetricEstimate]) -> npt.NDArray[np.float64]:
    """Return the values of models every estimator has, (m, estimators)."""
    names = sorted(set.intersection(*(set(values) for values in estimates)))
    table = np.array([[values[m].value for values in estimates] for m in names])
    table = table.reshape(len(names), len(estimates))
    common: npt.NDArray[np.float64] = table[np.isfinite(table).all(axis=1)]
    return common


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
