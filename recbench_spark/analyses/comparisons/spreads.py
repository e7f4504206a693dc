"""Spread of tonight's values over users: percentiles, the worst tenth, losers.

Values are read as for `comparisons`, in the same shuffle by user. Tasks count users by value, in steps of
2^-16 of the metric's scale, so no partitioning changes a bit. Axes: u users, m models, c cut-offs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from recbench_spark.analyses.comparisons import paired_values as paired
from recbench_spark.analyses.comparisons.differences import CELL, ComparisonPlan, add_counts, count_steps
from recbench_spark.analyses.comparisons.kernels import spreads as kernel
from recbench_spark.analyses.comparisons.kernels.significance import DIFFERENCE_BITS, difference_steps
from recbench_spark.analyses.comparisons.tables import name_results
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics.list_rows import sum_lists
from recbench_spark.schemas import USER_SPREADS
from recbench_spark.storage.shared_arrays import flatten_lists

_CELL = (*CELL, "member")
_TOTALS = pa.schema(
    {
        **dict.fromkeys(CELL[:3], pa.string()),
        **dict.fromkeys(_CELL[3:], pa.int32()),
        **dict.fromkeys(("steps", "users", "outcomes"), pa.list_(pa.int64())),
    }
)
"""A run's different values in steps, the users of each, and `Outcomes` in one list."""


class Outcomes(NamedTuple):
    """Users of a run and of the baseline: both, better, worse, and the steps that the last lose."""

    both: int
    winners: int
    losers: int
    lost: int


def spread_measure(plan: ComparisonPlan) -> Measure:
    """Return the measure for `user_spreads`: a cell for each run and number.

    Only groups of kind pair count: tonight's models. The measure needs all rows of a user at once. A cell
    holds a count for each different value, at most 2^17.
    """
    return Measure(partial(_sum_spreads, plan), _CELL, partial(_finish, plan), (), USER_SPREADS)


def _sum_spreads(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Count some users by value: rows of `_TOTALS`."""
    for side in paired.read_paired_values(batches, len(plan.runs), plan.ks):
        rows = list(_count_values(plan, side))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _TOTALS)


def _count_values(plan: ComparisonPlan, side: paired.PairedValues) -> Iterator[dict[str, Any]]:
    sign = -1 if side.key[1] in plan.lower else 1
    for number, group in enumerate(plan.groups):
        values = side.values_unc[:, list(group.runs)] * plan.scale(side.key[1])
        for c, k in enumerate(plan.ks if group.kind == "pair" else ()):
            lost = dict(_compare_with_baseline(plan, (number, side.key, k), values[:, :, c], sign))
            for m in range(values.shape[1]):
                own_u = values[:, m, c]
                steps, users = np.unique(difference_steps(own_u[~np.isnan(own_u)]), return_counts=True)
                counted = steps.tolist(), users.tolist(), [*lost.get(m, Outcomes(0, 0, 0, 0))]
                if len(steps):
                    yield dict(zip(_TOTALS.names, (*side.key, k, number, m, *counted), strict=True))


def _compare_with_baseline(
    plan: ComparisonPlan, place: tuple[int, tuple[str, str, str], int | None], values_um: Floats, sign: int
) -> Iterator[tuple[int, Outcomes]]:
    """Yield each other run, and how its users fare beside the baseline."""
    number, key, k = place
    baseline = plan.baseline(plan.groups[number], key[0], key[1], k)
    for m, steps, users in count_steps(values_um, baseline) if baseline is not None else ():
        gains = sign * steps
        worse = gains < 0
        lost = int(-(gains[worse] * users[worse]).sum())
        yield m, Outcomes(int(users.sum()), int(users[gains > 0].sum()), int(users[worse].sum()), lost)


def _finish(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    """Compute a run's row for one number."""
    part, metric, definition, k, number, m = (table.column(name)[0].as_py() for name in _CELL)
    group, unit = plan.groups[number], 2.0**-DIFFERENCE_BITS / plan.scale(metric)
    sides = (flatten_lists(table.column(name).combine_chunks())[1] for name in ("steps", "users"))
    steps, users = add_counts(*sides)
    outcomes = Outcomes(*sum_lists(table, "outcomes", (len(Outcomes._fields),)).tolist())
    baseline = plan.baseline(group, part, metric, k)
    run = plan.runs[group.runs[m]]
    row = {
        **{"logical_date": run.logical_date, "model": run.model, "run_id": run.run_id},
        **{"part": part, "metric": metric, "definition": definition, "k": k},
        **describe_spread(
            np.multiply(steps, unit, dtype=np.float64),
            users,
            plan.bootstrap.level,
            smallest_best=metric in plan.lower,
        ),
    }
    if baseline not in (None, m):
        other = plan.runs[group.runs[baseline]]
        row |= {"other": other.model, "other_run_id": other.run_id}
        row |= describe_losers(outcomes, unit, plan.bootstrap.level)
    return pa.Table.from_pylist([row], RESULTS)


RESULTS = name_results(USER_SPREADS)
"""Columns that follow from the numbers."""


def describe_spread(
    value_v: Floats, users_v: Ints, level: float, *, smallest_best: bool = False
) -> dict[str, Any]:
    """Describe how values spread over users: columns of `user_spreads`.

    Args:
        value_v: different values, ascending.
        users_v: users of each.
        level: coverage of the intervals.
        smallest_best: whether small values are best, so the worst tenth has the largest.
    """
    percentiles = kernel.find_percentiles(value_v, users_v, level)
    sign, turn = (-1, slice(None, None, -1)) if smallest_best else (1, slice(None))
    worst = [sign * one for one in kernel.average_worst(sign * value_v[turn], users_v[turn], level)]
    worst[1:] = sorted(worst[1:])
    lorenz = kernel.trace_lorenz(value_v, users_v)
    row = {"users": int(users_v.sum()), "percents": list(kernel.PERCENTS)}
    row |= {"zeros": int(users_v[value_v == 0].sum()), "gini": kernel.measure_gini(value_v, users_v)}
    names = ("percentiles", "percentile_lows", "percentile_highs")
    row |= {name: _hide_unknown(values) for name, values in zip(names, percentiles, strict=True)}
    row |= dict(zip(("worst_tenth", "worst_tenth_low", "worst_tenth_high"), worst, strict=True))
    row["lorenz"] = None if math.isnan(lorenz[0]) else lorenz.tolist()
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
    }


def _hide_unknown(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def describe_losers(outcomes: Outcomes, unit: float, level: float) -> dict[str, Any]:
    """Describe how users fare beside the baseline: columns of `user_spreads`.

    `unit` is the value of a step. A difference below half a step is none.
    """
    both, winners, losers, lost = outcomes
    row: dict[str, Any] = {"both": both, "winners": winners, "losers": losers}
    if both:
        low, high = kernel.bound_share(losers, both, level)
        row |= {"losing_share": losers / both, "losing_low": low, "losing_high": high}
    return row | {"mean_loss": lost * unit / losers if losers else None}
