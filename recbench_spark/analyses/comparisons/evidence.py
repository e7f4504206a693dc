"""Tests from counted differences: Wilcoxon's, and evidence valid at every look.

Wealth of bets on users (`analyses.comparisons.kernels.betting`) is kept per night in `comparisons`, and
multiplied over the nights of a pair of models. A sequential rule alarms where e-BH over all sequential
rules of the night finds a fall. Metrics with values beyond 1 have no bets: their bounds are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.differences import ComparisonPlan, find_rules, list_bounds
from recbench_spark.analyses.comparisons.kernels import betting
from recbench_spark.analyses.comparisons.kernels import significance as kernel
from recbench_spark.core.arrays import Floats, Ints

GAINS = pa.list_(pa.float64())
NO_GAINS: Floats = np.zeros(2 * betting.BETS)
NO_FALLS: Floats = np.zeros(betting.BETS)

COUNTED = pa.schema({"p_wilcoxon": pa.float64(), "bet_gains": GAINS, "fall_gains": GAINS})
"""Columns computed from one night's histogram. bet_gains: logarithms of wealth, (2 b,), of bets on a
difference above 0, then below 0; fall_gains: of bets on a fall beyond the rule's drop, (b,)."""

EVIDENCE = ("e_value", "e_bh", "e_fall")


def read_gains(row: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """Return a row's `bet_gains` and `fall_gains`; zeros where NULL."""
    gains, falls = row.get("bet_gains"), row.get("fall_gains")
    return (
        NO_GAINS if gains is None else np.asarray(gains, dtype=np.float64),
        NO_FALLS if falls is None else np.asarray(falls, dtype=np.float64),
    )


def turn_gains(gains: Floats) -> Floats:
    """Return `bet_gains` for the pair the other way round."""
    return np.roll(gains, betting.BETS)


def find_allowed_fall(plan: ComparisonPlan, row: Mapping[str, Any]) -> float | None:
    """Return the fall a sequential rule allows; None: no such rule."""
    bounds = list_bounds(find_rules(plan, row), "drop")
    return min(drop for drop, _ in bounds) if any(rule.sequential for _, rule in bounds) else None


def add_counted_tests(
    plan: ComparisonPlan, results: pa.Table, counted: Mapping[int, tuple[Ints, Ints]]
) -> pa.Table:
    """Add the columns `COUNTED` to a cell's differences.

    Args:
        plan: runs, rules and settings.
        results: the differences.
        counted: member -> different steps from the baseline, ascending, and users with each.
    """
    rows = [
        _test_histogram(plan, row, *counted[row["member"]])
        if row["with_baseline"] and row["member"] in counted
        else (None,) * len(COUNTED)
        for row in results.to_pylist()
    ]
    for place, name in enumerate(COUNTED.names):
        column = pa.array([row[place] for row in rows], COUNTED.field(name).type)
        results = results.append_column(name, column)
    return results


def _test_histogram(
    plan: ComparisonPlan, row: Mapping[str, Any], steps: Ints, users: Ints
) -> tuple[float, Floats | None, Floats | None]:
    p_wilcoxon = kernel.wilcoxon(steps, users).p
    if plan.scale(row["metric"]) != 1 or np.abs(steps).max() > 1 << kernel.DIFFERENCE_BITS:
        return p_wilcoxon, None, None
    sides = [betting.bet_on_users(sign * steps, users, 0.0, plan.planned_looks) for sign in (1, -1)]
    allowed = find_allowed_fall(plan, row)
    falls = None
    if allowed is not None:
        fallen = steps if row["metric"] in plan.lower else -steps
        falls = betting.bet_on_users(fallen, users, allowed, plan.planned_looks)
    return p_wilcoxon, np.concatenate(sides), falls


def add_evidence(plan: ComparisonPlan, results: pa.Table) -> pa.Table:
    """Add e-values, and mark falls that sequential rules find.

    e_value: against "no difference", over all looks at a pair of models, else of this night. e_bh: the same
    by e-BH over comparisons with the baseline of one kind and part. e_fall: of a fall beyond
    `allowed_drop`, by e-BH over all sequential rules; where nights are compared, divided by the planned
    nights.
    """
    rows = results.select(["kind", "part", "seen_gains", "seen_falls", *COUNTED.names[1:]]).to_pylist()
    columns = (("bet_gains", "seen_gains"), ("fall_gains", "seen_falls"))
    e_x, fall_x = (np.array([_weigh(row, *names) for row in rows]) for names in columns)
    nights_x = np.array([1 if row["kind"] == "pair" else plan.nights for row in rows])
    found_x = betting.adjust_evidence(fall_x / nights_x)
    adjusted_x = np.full(len(rows), np.nan)
    for family in {(row["kind"], row["part"]) for row in rows}:
        own = np.array([(row["kind"], row["part"]) == family for row in rows])
        adjusted_x[own] = betting.adjust_evidence(e_x[own])
    for name, e in zip(EVIDENCE, (e_x, adjusted_x, found_x), strict=True):
        results = results.append_column(name, pa.array(e, pa.float64(), mask=np.isnan(e)))
    alarms = pa.array(np.nan_to_num(found_x) >= 1 / (1 - plan.bootstrap.level))
    place = results.schema.get_field_index("regressed")
    return results.set_column(place, "regressed", pc.or_(results.column("regressed"), alarms))


def _weigh(row: Mapping[str, Any], tonight: str, before: str) -> float:
    if row[tonight] is None:
        return np.nan
    return float(betting.measure_evidence(np.asarray(row[tonight]) + (row[before] or 0.0)))
