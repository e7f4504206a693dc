"""Collect learning curves, and where they cross.

A curve has a model's values by given ratings.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from recbench_spark.reports.facts import (
    CurveFacts,
    CurveLine,
    LearningCurveFacts,
    MetricEstimate,
    ReportedMeasure,
)
from recbench_spark.reports.frame_values import PART_ORDER, order_key, read_real, read_records

COLUMNS = ("run_id", "part", "metric", "k", "definition", "given", "value", "ci_low", "ci_high", "n")

GIVEN = "given ratings"
"""Name of the horizontal axis."""


def make_learning_curves(
    curves: pd.DataFrame, models: dict[str, str], crossings: pd.DataFrame
) -> tuple[LearningCurveFacts, ...]:
    """Return each part's curves and crossings.

    Args:
        curves: rows of `learning_curves` for one metric and cut-off.
        models: run id -> model, for the shown runs.
        crossings: this night's rows of `curve_crossings`, for the same metric and cut-off.
    """
    rows = [row for row in read_records(curves, "learning_curves", COLUMNS) if row["run_id"] in models]
    keys = {(str(row["part"]), str(row["definition"])) for row in rows}
    facts = []
    for part, definition in sorted(keys, key=lambda key: (*order_key(key[0], PART_ORDER), key[1])):
        chosen = [row for row in rows if (row["part"], row["definition"]) == (part, definition)]
        here = crossings[(crossings.part == part) & (crossings.definition == definition)]
        facts.append(LearningCurveFacts(_make_curve(chosen, models), describe_crossings(here)))
    return tuple(one for one in facts if len(one.curve.ks) > 1 and one.curve.lines)


def _make_curve(rows: list[dict[str, Any]], models: dict[str, str]) -> CurveFacts:
    """Make one line for each model, skipping points without value."""
    points: dict[str, dict[int, MetricEstimate]] = {}
    counts: dict[int, int] = {}
    for row in rows:
        value, given, n = read_real(row["value"]), int(row["given"]), int(row["n"])
        counts[given] = max(counts.get(given, 0), n)
        if value is not None and math.isfinite(value):
            estimate = MetricEstimate(value, read_real(row["ci_low"]), read_real(row["ci_high"]), n)
            points.setdefault(models[str(row["run_id"])], {})[given] = estimate
    lines = tuple(
        CurveLine(model, tuple(sorted(at)), tuple(at[given] for given in sorted(at)))
        for model, at in sorted(points.items(), key=lambda line: (-line[1][max(line[1])].value, line[0]))
    )
    shown = tuple(sorted({point for line in lines for point in line.ks}))
    first = rows[0]
    measure = ReportedMeasure(str(first["metric"]), int(first["k"]), str(first["definition"]), "holdout")
    return CurveFacts(str(first["part"]), measure, shown, lines, GIVEN, tuple(counts[at] for at in shown))


def describe_crossings(crossings: pd.DataFrame) -> tuple[str, ...]:
    """Describe each model pair, shown crossings first."""
    ordered = crossings.sort_values(["shown", "model", "other"], ascending=[False, True, True])
    return tuple(_describe_crossing(row) for row in ordered.to_dict("records"))


def _describe_crossing(row: dict[Any, Any]) -> str:
    share = f"adjusted share at the ends {row['share_holm']:.3f}"
    if not row["shown"]:
        return f"{row['model']} and {row['other']}: no crossing shown ({share})."
    return (
        f"{row['first']} up to {row['given']} given ratings, then {row['then']} (interval "
        f"{row['given_low']} to {row['given_high']}): mean {row['value']:.4f} ({share})."
    )
