"""Falls in slices: all values of a slice are watched at once.

Values and labels are read as for `changes`. A task adds up the users of each value as whole numbers (see
`analyses.comparisons.kernels.significance`), so the partitioning does not change a bit. Holm's adjustment
over all models and values of a rule bounds the chance that a night without a fall names one. Axes: u users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import ndtr, ndtri

from recbench_spark.analyses.comparisons.changes import ChangePlan, ChangeRows, deal_labelled, read_cells
from recbench_spark.analyses.comparisons.counted import name_owners
from recbench_spark.analyses.comparisons.differences import (
    HOLDOUT,
    ComparisonPlan,
    estimate_pair,
    pair_means,
)
from recbench_spark.analyses.comparisons.kernels import significance as kernel
from recbench_spark.analyses.comparisons.tables import name_results
from recbench_spark.config import Regression
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.schemas import SLICE_COMPARISONS
from recbench_spark.storage.blocks import Engine, reduce_tasks
from recbench_spark.storage.shared_arrays import flatten_lists

MOST_NAMED = 20
"""Most pooled values that a row names."""

RESULTS = pa.schema([("rule", pa.int32()), *name_results(SLICE_COMPARISONS)])
"""Columns of each value; some follow from all values of a rule."""


def compare_slices(engine: Engine, rows: ChangeRows, plan: ComparisonPlan, tasks: int) -> pa.Table:
    """Compare runs by the values of watched slices.

    The result has the columns of `slice_comparisons` that follow from the numbers: a row for each rule,
    pair of runs and value. Shuffles the rules' metrics and the labels once by user, then a row per
    task and value. The driver holds the results.

    Args:
        engine: the runner.
        rows: user values, and labels of tonight's runs.
        plan: runs, groups and rules; rules without a slice are left out.
        tasks: number of shuffle tasks.
    """
    rules = tuple(rule for rule in plan.rules if rule.slice)
    metrics, ks = (tuple(dict.fromkeys(getattr(rule, name) for rule in rules)) for name in ("metric", "k"))
    plan = replace(plan, rules=rules, metrics=metrics, ks=ks)
    users = deal_labelled(engine, rows, _pair_runs(plan), tasks)
    results = reduce_tasks({"values": slice_measure(plan)}, users, tasks)
    return name_owners(_judge(plan, results.get("values", RESULTS.empty_table())), plan.numbers)


def compare_groups(numbers: Sequence[Mapping[str, Any]], plan: ComparisonPlan) -> pa.Table:
    """Compare runs by groups of items: rows as from `compare_slices`.

    Groups of items share their users, and numbers over groups have no value for a user. So the standard
    error of a difference is the sum of both runs' own, the largest that it can be: a test keeps its level
    and finds fewer falls. Groups that fewer than `least_users` users make up are left out.

    Args:
        numbers: rows of `metrics` of the plan's runs.
        plan: runs, groups and rules.
    """
    cells: dict[tuple[Any, ...], dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in numbers:
        if row["estimator"] == HOLDOUT and None not in (row["slice_value"], row["value"], row["stderr"]):
            cell = (row["run_id"], row["part"], row["metric"], row["k"], row["slice_key"])
            cells.setdefault(cell, {})[row["definition"], row["slice_value"]] = row
    rows: list[dict[str, Any]] = []
    for one in list_watched(plan):
        rule, run, other = plan.rules[one.rule], plan.runs[one.run], plan.runs[one.other]
        watched = (rule.part, rule.metric, rule.k, rule.slice)
        now, then = (cells.get((each.run_id, *watched), {}) for each in (run, other))
        for definition, value in sorted(now.keys() & then.keys()):
            pair = now[definition, value], then[definition, value]
            if min(row["n"] for row in pair) >= rule.least_users:
                facts = _name_pair(plan, one) | {"definition": definition, "slice_value": value}
                rows.append(facts | _test_means(*pair, plan.bootstrap.level))
    return _judge(plan, pa.Table.from_pylist(rows, RESULTS))


def _test_means(now: Mapping[str, Any], then: Mapping[str, Any], level: float) -> dict[str, Any]:
    """Test the difference of two means whose errors depend in an unknown way."""
    difference, error = now["value"] - then["value"], now["stderr"] + then["stderr"]
    reach = -float(ndtri((1 - level) / 2)) * error
    known = {"value": now["value"], "other_value": then["value"], "users": min(now["n"], then["n"])}
    known |= {"difference": difference, "stderr": error, "ci_low": difference - reach}
    p = 2 * float(ndtr(-abs(difference) / error)) if error else float(difference == 0)
    return known | {"ci_high": difference + reach, "p_t": p}


# ------------------------------------------------------------------------------- sums of a task


class Watched(NamedTuple):
    """Two runs that a rule compares, as places in the plan."""

    rule: int
    kind: str
    run: int
    other: int


def list_watched(plan: ComparisonPlan) -> list[Watched]:
    """List the pairs of runs that rules with a slice compare."""
    watched = []
    for number, rule in enumerate(plan.rules):
        for group in plan.groups:
            baseline = plan.baseline(group, rule.part, rule.metric, rule.k)
            is_against = rule.against == ("model" if group.kind == "pair" else group.kind)
            for member, run in enumerate(group.runs):
                is_own = rule.model in (None, plan.runs[run].model)
                if is_against and is_own and baseline not in (None, member):
                    watched.append(Watched(number, group.kind, run, group.runs[baseline]))
    return watched


def _pair_runs(plan: ComparisonPlan) -> ChangePlan:
    """Return what tasks read: the watched pairs, the other run first."""
    pairs = tuple((plan.runs[one.other], plan.runs[one.run]) for one in list_watched(plan))
    slices = tuple(sorted({str(rule.slice) for rule in plan.rules}))
    return ChangePlan(pairs, plan.metrics, plan.ks, slices, plan.numbers)


_CELL = ("watched", "definition")
_TOTALS = pa.schema(
    {
        "watched": pa.int32(),
        **dict.fromkeys(("definition", "label"), pa.string()),
        "sums": pa.list_(pa.int64()),
    }
)
"""Pair sums (9, 2, 2) of a value's users."""


def slice_measure(plan: ComparisonPlan) -> Measure:
    """Return the measure for differences by value.

    The measure needs all rows of a user at once.
    """
    return Measure(partial(_sum_values, plan), _CELL, partial(_finish, plan), ())


def _sum_values(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Sum some users' rows by value; users must be complete."""
    pairs, watched = _pair_runs(plan), list_watched(plan)
    places = pairs.places
    for (part, metric, definition), values_nuc, labels in read_cells(pairs, pa.Table.from_batches(batches)):
        for number, (one, (other, run)) in enumerate(zip(watched, places, strict=True)):
            rule = plan.rules[one.rule]
            if (rule.part, rule.metric) == (part, metric):
                values_u2 = values_nuc[[run, other], :, plan.ks.index(rule.k)].T * plan.scale(metric)
                names, code_nu = labels[str(rule.slice)]
                totals = [
                    dict(zip(_TOTALS.names, (number, definition, names[code], sums.ravel()), strict=True))
                    for code, sums in _sum_by_label(values_u2, code_nu[run])
                ]
                yield pa.RecordBatch.from_pylist(totals, _TOTALS)


def _sum_by_label(values_u2: Floats, code_u: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield the labels of users with both values, and their pair sums."""
    order = np.argsort(code_u, kind="stable")
    codes, starts = np.unique(code_u[order], return_index=True)
    for code, own in zip(codes.tolist(), np.split(order, starts[1:]), strict=True):
        sums = kernel.pair_sums(values_u2[own])
        if sums[0][0, 1]:
            yield code, sums


# ------------------------------------------------------------------------------- values of a pair


def _finish(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    """Test all values of a pair; those with few users are pooled."""
    one = list_watched(plan)[table.column("watched")[0].as_py()]
    rule = plan.rules[one.rule]
    labels, code_r = np.unique(table.column("label").to_numpy(), return_inverse=True)
    sums = np.zeros((len(labels), kernel.PLANES, 2, 2), np.int64)
    totals = flatten_lists(table.column("sums").combine_chunks())[1]
    np.add.at(sums, code_r, totals.reshape(-1, kernel.PLANES, 2, 2))
    is_small = sums[:, 0, 0, 1] < rule.least_users
    values: list[dict[str, Any]] = [
        {"slice_value": label, **_test(plan, own, rule)}
        for label, own in zip(labels[~is_small].tolist(), sums[~is_small], strict=True)
    ]
    if is_small.any():
        few = {"pooled": int(is_small.sum()), "pooled_values": labels[is_small][:MOST_NAMED].tolist()}
        values.append(few | _test(plan, sums[is_small].sum(axis=0), rule))
    facts = _name_pair(plan, one) | {"definition": table.column("definition")[0].as_py()}
    return pa.Table.from_pylist([facts | value for value in values], RESULTS)


def _name_pair(plan: ComparisonPlan, one: Watched) -> dict[str, Any]:
    """Return the columns that name a rule's pair of runs."""
    rule, run, other = plan.rules[one.rule], plan.runs[one.run], plan.runs[one.other]
    return {
        **{"rule": one.rule, "kind": one.kind, "model": run.model, "other": other.model},
        **{"run_id": run.run_id, "other_run_id": other.run_id},
        **{"logical_date": run.logical_date, "other_date": other.logical_date},
        **{"part": rule.part, "metric": rule.metric, "k": rule.k, "slice_key": rule.slice},
    }


def _test(plan: ComparisonPlan, sums: Ints, rule: Regression) -> dict[str, Any]:
    """Test one value's difference; too few users have no p."""
    scale, users, p = plan.scale(rule.metric), int(sums[0][0, 1]), float(kernel.paired_t(sums).p[0, 1])
    estimates = estimate_pair(sums, plan.bootstrap.level, scale)
    if np.isnan(p):  # all users moved alike: the test of signs, or nobody moved
        p = 2.0 ** (1 - users) if estimates["difference"] else 1.0
    value, other = (pair_means(sums)[at] / scale for at in ((0, 1), (1, 0)))
    known = {"value": value, "other_value": other, "users": users}
    return {**known, **estimates, "p_t": p if users >= rule.least_users else None}


# ------------------------------------------------------------------------------- all values of a rule


def _judge(plan: ComparisonPlan, results: pa.Table) -> pa.Table:
    """Add columns computed from all values of a rule."""
    order = [(name, "ascending") for name in ("rule", "model", "kind", "slice_value")]
    rows = results.sort_by(order).to_pylist()
    for number, rule in enumerate(plan.rules):
        own = [row for row in rows if row["rule"] == number]
        p_x = np.array([row["p_t"] for row in own], dtype=np.float64)
        sign = 1.0 if rule.metric in plan.lower else -1.0
        for row, p in zip(own, kernel.holm(p_x).tolist(), strict=True):
            fell = sign * row["difference"] > (rule.drop or 0.0)
            row |= {"family": int(np.sum(~np.isnan(p_x))), "p_holm": None if np.isnan(p) else p}
            row |= {"allowed_drop": rule.drop, "regressed": fell and p < 1 - plan.bootstrap.level}
    return pa.Table.from_pylist(rows, RESULTS).drop_columns("rule")
