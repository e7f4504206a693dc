"""Rows made from a night's metrics: gaps between groups, fronts of models.

They need no pass over users: all follows from rows of `metrics`, one for each run, number and slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from recbench_spark.analyses.comparisons.differences import HOLDOUT, ComparisonPlan
from recbench_spark.core.arrays import Floats
from recbench_spark.core.metric_names import split_figure
from recbench_spark.metrics.group_gaps import describe_gaps
from recbench_spark.metrics.kernels.about import about_metric

NumberRow = Mapping[str, Any]
"""A row of `metrics`."""

# ------------------------------------------------------------------------------- gaps between groups


def list_gaps(
    rows: Iterable[NumberRow], plan: ComparisonPlan, slices: Sequence[str]
) -> list[dict[str, Any]]:
    """List rows of `group_gaps`, for tonight's models.

    Args:
        rows: numbers of the plan's runs.
        plan: its group of kind pair has tonight's models.
        slices: keys of slices of users; a user is in one group of each.
    """
    groups: dict[tuple[Any, ...], list[NumberRow]] = {}
    for row in rows:
        if row["slice_key"] in slices and row["estimator"] == HOLDOUT and row["value"] is not None:
            number = (row["slice_key"], row["part"], row["metric"], row["definition"], row["k"])
            groups.setdefault((*number, row["run_id"]), []).append(row)
    facts = {key: describe_gaps(own, key[2], plan.bootstrap.level) for key, own in groups.items()}
    listed = []
    for group in plan.groups:
        for place in group.runs if group.kind == "pair" else ():
            own_keys = (key for key in facts if key[-1] == plan.runs[place].run_id)
            for key in own_keys:
                slice_key, part, metric, definition, k, run_id = key
                row = {"logical_date": plan.runs[place].logical_date, "model": plan.runs[place].model}
                row |= {"run_id": run_id, "part": part, "metric": metric, "definition": definition, "k": k}
                row |= {"slice_key": slice_key, **facts[key]}
                baseline = plan.baseline(group, part, metric, k)
                if baseline is not None and group.runs[baseline] != place:
                    other = plan.runs[group.runs[baseline]]
                    beside = facts.get((*key[:-1], other.run_id), {})
                    row |= {"other": other.model, "other_worst": beside.get("worst_value")}
                    row |= {f"other_{name}": beside.get(name) for name in ("mad", "gap")}
                listed.append(row)
    return listed


# ------------------------------------------------------------------------------- fronts


def list_fronts(
    rows: Iterable[NumberRow], plan: ComparisonPlan, fronts: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """List rows of `fronts`: tonight's models, part by part.

    A model without one of the figures is left out.

    Args:
        rows: numbers of the plan's runs.
        plan: its group of kind pair has tonight's models.
        fronts: figures such as `ndcg@10`, two to `settings.MOST_FIGURES` each.
    """
    values: dict[tuple[str, str], dict[tuple[str, int | None], float]] = {}
    for row in rows:
        if row["slice_key"] is None and row["estimator"] == HOLDOUT and row["value"] is not None:
            own = values.setdefault((row["part"], row["run_id"]), {})
            own[row["metric"], row["k"]] = row["value"]
    runs = [plan.runs[place] for group in plan.groups if group.kind == "pair" for place in group.runs]
    listed = []
    for figures in fronts:
        wanted = [split_figure(figure) for figure in figures]
        for part in sorted({part for part, _ in values}):
            rows_m = [values.get((part, run.run_id), {}) for run in runs]
            known = [m for m, row in enumerate(rows_m) if all(figure in row for figure in wanted)]
            facts = describe_front([[rows_m[m][f] for f in wanted] for m in known], [n for n, _ in wanted])
            for m, fact in zip(known, facts, strict=True):
                named = {"logical_date": runs[m].logical_date, "model": runs[m].model}
                named |= {"run_id": runs[m].run_id}
                fact["dominated_by"] = [runs[known[one]].model for one in fact["dominated_by"]]
                listed.append({**named, "part": part, "front": ", ".join(figures), **fact})
                listed[-1]["figures"] = list(figures)
    return listed


def describe_front(values: Sequence[Sequence[float]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Say of each model whether it is on the front, and its part of the volume.

    The reference of a metric whose large values are best is 0, or its smallest bound; else the largest
    bound, or the worst model's value where there is none.

    Args:
        values: a value of each metric, by model.
        metrics: their names.
    """
    table = np.array(values, dtype=np.float64).reshape(-1, len(metrics))
    reference = np.array([_find_reference(name, table[:, f]) for f, name in enumerate(metrics)])
    sign = np.array([-1.0 if about_metric(name).best == "small" else 1.0 for name in metrics])
    gains = np.clip((table - reference) * sign, 0, None)
    volume, facts = measure_volume(gains), []
    for m, own in enumerate(gains):
        better = [n for n, one in enumerate(gains) if (one >= own).all() and (one > own).any()]
        rest = volume if better else measure_volume(np.delete(gains, m, axis=0))
        facts.append(
            {
                "values": table[m].tolist(),
                **{"on_front": not better, "dominated_by": better, "reference": reference.tolist()},
                **{"hypervolume": volume, "contribution": max(volume - rest, 0.0)},
            }
        )
    return facts


def _find_reference(metric: str, value_m: Floats) -> float:
    about = about_metric(metric)
    if about.best != "small":
        return about.bounds[0] if np.isfinite(about.bounds[0]) else 0.0
    return about.bounds[1] if np.isfinite(about.bounds[1]) else float(value_m.max(initial=0.0))


def measure_volume(gains: Floats) -> float:
    """Return the volume between 0 and some points, (m, f), at least 0 each.

    The hypervolume indicator, by slices of the last axis. Source: Zitzler and Thiele 1999, Multiobjective
    evolutionary algorithms: a comparative case study and the strength Pareto approach.

    >>> measure_volume(np.array([[1.0, 3.0], [2.0, 1.0]]))
    4.0
    """
    if not len(gains):
        return 0.0
    if gains.shape[1] == 1:
        return float(gains.max())
    ends = np.unique(np.append(gains[:, -1], 0.0))
    return math.fsum(
        (high - low) * measure_volume(gains[gains[:, -1] >= high, :-1])
        for low, high in pairwise(ends.tolist())
    )
