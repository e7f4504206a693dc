"""Tests of differences between runs, by night or over time.

Compared are all models of a night, and each model with its past. Users stay in tasks. Each task turns its
users into whole numbers (see `analyses.comparisons.kernels.significance`), m x m and replicates x m for m
models, key by key. These are added up in one group per metric and cut-off, and the tests are computed from
the sums. The partitioning does not change the numbers. Axes: u users, m models in a group, c cut-offs, r
replicates, x pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons import differences as tests
from recbench_spark.analyses.comparisons import evidence
from recbench_spark.analyses.comparisons import paired_values as paired
from recbench_spark.analyses.comparisons.counted import gather_rows, name_owners
from recbench_spark.analyses.comparisons.differences import CELL, ComparisonPlan, PairSums
from recbench_spark.analyses.comparisons.kernels.significance import PLANES
from recbench_spark.analyses.comparisons.paired_values import KEY, PairedValues
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure, Measures
from recbench_spark.metrics.list_rows import sum_lists
from recbench_spark.storage.blocks import Rows, reduce_tasks
from recbench_spark.storage.packed_blocks import Block
from recbench_spark.storage.shared_arrays import flatten_lists

COLUMNS = (*KEY, "estimator", "run_id", "user_id", "ks", "values")
"""Compared columns of `user_metrics`."""


def metric_scales(user_metrics: Rows, metrics: Sequence[str]) -> dict[str, float]:
    """Compute `ComparisonPlan.scales` for unbounded metrics.

    Scales follow from the largest values. Cost: one scan; rows are not shuffled.
    """
    largest: dict[str, float | None] = {}
    sizes = user_metrics.each(("metric", "definition", "values"), partial(_find_largest_values, metrics))
    for (metric, _), value in (pair for task in sizes if metrics for pair in task):
        largest[metric] = max(value or 0.0, largest.get(metric) or 0.0)
    return tests.scale_values(largest)


def _find_largest_values(metrics: Sequence[str], tables: Iterable[pa.Table]) -> list[Any]:
    wanted = pa.array(metrics, pa.string())
    rows = (table.filter(pc.is_in(table.column("metric"), value_set=wanted)) for table in tables)
    return [pair for own in rows for pair in find_largest(own).items()]


def find_largest(user_metrics: pa.Table) -> dict[tuple[str, str], float | None]:
    """Return the largest absolute value by metric and definition.

    user_metrics: rows of the table.
    """
    largest: dict[tuple[str, str], float | None] = {}
    names = user_metrics.select(["metric", "definition"])
    for pair in names.group_by(["metric", "definition"]).aggregate([]).to_pylist():
        is_own = pc.and_(*(pc.equal(names.column(name), pair[name]) for name in pair))
        values = flatten_lists(user_metrics.column("values").filter(is_own))[1].astype(np.float64)
        known = np.abs(values[~np.isnan(values)])
        largest[pair["metric"], pair["definition"]] = float(known.max()) if len(known) else None
    return largest


def compare(user_metrics: Rows, plan: ComparisonPlan, earlier: EarlierLooks, tasks: int) -> pa.Table:
    """Compare runs as `compare_beside`, and measure nothing else."""
    return compare_beside(user_metrics, plan, earlier, tasks, {})[0]


def compare_beside(
    user_metrics: Rows, plan: ComparisonPlan, earlier: EarlierLooks, tasks: int, measures: Measures
) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Compare runs: one row per difference, and other measures' results.

    Rows have the columns of `comparisons` computed from the numbers. Shuffles the rows once by user, then a
    row per task, metric, cut-off and group, with counted differences from the baselines (at most 2^17
    different ones each). The driver holds the results.

    Args:
        user_metrics: rows of the table, from any runs.
        plan: runs, groups, metrics, tests.
        earlier: looks at the data on earlier nights.
        tasks: number of shuffle tasks.
        measures: other measures of the same rows, by name.
    """
    n = plan.tasks(tasks)
    users = user_metrics.deal(COLUMNS, partial(_deal_users, plan=plan, tasks=n), n)
    finishing = plan.finishing_tasks(n)
    reduced = reduce_tasks(
        {"tests": difference_measure(plan), **measures}, users.then(paired.sort_by_user, ()), finishing
    )
    results = name_owners(adjust_families(reduced.pop("tests", _EMPTY), plan, earlier), plan.numbers)
    return results, reduced


def _deal_users(tables: Iterable[pa.Table], plan: ComparisonPlan, tasks: int) -> Iterator[Block]:
    run_ids = [run.run_id for run in plan.runs]
    for rows in tables:
        wanted = gather_rows(select_holdout(rows, plan.metrics), plan.numbers)
        yield from paired.deal_by_user(paired.key_users(wanted, run_ids), tasks)


def select_holdout(rows: pa.Table, metrics: Sequence[str]) -> pa.Table:
    """Return some metrics' rows without estimates."""
    wanted = pc.is_in(rows.column("metric"), value_set=pa.array(metrics, pa.string()))
    return rows.filter(pc.and_(wanted, pc.equal(rows.column("estimator"), tests.HOLDOUT)))


# ------------------------------------------------------------------------------- sums of users

_SUMS = ("pairs", "boots", "weights", "signs")
_STEPS = ("steps", "users")
_TOTALS = pa.schema(
    {
        **dict.fromkeys(CELL[:3], pa.string()),
        **dict.fromkeys((*CELL[3:], "member"), pa.int32()),
        **dict.fromkeys((*_SUMS, *_STEPS), pa.list_(pa.int64())),
    }
)
"""A cell's sums; or, with a member, differences from the baseline in steps, and the users of each."""


def difference_measure(plan: ComparisonPlan) -> Measure:
    """Return the measure testing all pairs.

    The measure needs all rows of a user at once.
    """
    needs = (*KEY, "user_id", "user_key", "run", "ks", "values")
    return Measure(partial(_sum_pairs, plan), CELL, partial(_finish, plan), needs)


def _sum_pairs(plan: ComparisonPlan, batches: Batches) -> Batches:
    """Sum some users' rows: rows of `_TOTALS`, key by key.

    Input rows are sorted by `sort_by_user`.
    """
    key: tuple[str, str, str] | None = None
    total: PairSums = {}
    steps: dict[tuple[int, int, int], Counter[int]] = {}
    for side in paired.read_paired_values(batches, len(plan.runs), plan.ks):
        if key not in (None, side.key):
            yield _pack_sums(plan, key, total, steps)
            total, steps = {}, {}
        key = side.key
        tests.add_users(total, side, plan)
        _add_steps(steps, side, plan)
    if key is not None:
        yield _pack_sums(plan, key, total, steps)


def _add_steps(
    total: dict[tuple[int, int, int], Counter[int]], side: PairedValues, plan: ComparisonPlan
) -> None:
    """Count users by difference from a baseline, for Wilcoxon's test."""
    for number, group in enumerate(plan.groups):
        values_umc = tests.group_values(side, group, plan)
        for c, k in enumerate(plan.ks):
            baseline = plan.baseline(group, *side.key[:2], k)
            if baseline is not None:
                for m, steps, users in tests.count_steps(values_umc[:, :, c], baseline):
                    counts = dict(zip(steps.tolist(), users.tolist(), strict=True))
                    total.setdefault((c, number, m), Counter()).update(counts)


def _pack_sums(
    plan: ComparisonPlan, key: Any, total: PairSums, steps: Mapping[tuple[int, int, int], Counter[int]]
) -> pa.RecordBatch:
    rows = [
        dict(zip((*CELL, *_SUMS), (*key, plan.ks[c], group, *(part.ravel() for part in sums)), strict=True))
        for (c, group), sums in total.items()
    ]
    for (c, group, m), counts in steps.items():
        cell = (*key, plan.ks[c], group, m, list(counts), list(counts.values()))
        rows.append(dict(zip((*CELL, "member", *_STEPS), cell, strict=True)))
    return pa.RecordBatch.from_pylist(rows, _TOTALS)


# ------------------------------------------------------------------------------- tests of a cell


def _finish(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    """Test all pairs in a cell.

    table: its rows of `_TOTALS`, from all tasks.
    """
    key = tuple(table.column(name)[0].as_py() for name in CELL)
    is_step = pc.is_valid(table.column("member"))
    m = len(plan.groups[key[-1]].runs)
    shapes = ((PLANES, m, m), (-1, m), (-1, m), (-1, m))
    parts = table.filter(pc.invert(is_step))
    sums = [sum_lists(parts, name, shape) for name, shape in zip(_SUMS, shapes, strict=True)]
    counted = _add_histograms(table.filter(is_step))
    results = tests.finish_cell(plan, key, sums)
    return evidence.add_counted_tests(plan, results, counted)


def _add_histograms(table: pa.Table) -> dict[int, tuple[Ints, Ints]]:
    """Return each member's different steps, ascending, and their users."""
    counted = {}
    for member in pc.unique(table.column("member")).to_pylist():
        own = table.filter(pc.equal(table.column("member"), member))
        counts = (flatten_lists(own.column(name).combine_chunks())[1] for name in _STEPS)
        counted[member] = tests.add_counts(*counts)
    return counted


# ------------------------------------------------------------------------------- looks, families

LOOK_KEY = ("model", "other", "part", "metric", "definition", "k")


class Look(NamedTuple):
    """Sums of one difference over earlier nights.

    The fields count nights and users, then give the sum and sum of squares over users, and the sums of
    `bet_gains` and `fall_gains`.
    """

    nights: int
    seen: int
    seen_total: float
    seen_squares: float
    seen_gains: Floats
    seen_falls: Floats


FIRST_LOOK = Look(0, 0, 0.0, 0.0, evidence.NO_GAINS, evidence.NO_FALLS)
LOOK_TYPES = (pa.int64(), pa.int64(), pa.float64(), pa.float64(), evidence.GAINS, evidence.GAINS)

EarlierLooks = Mapping[tuple[Any, ...], Look]
"""By LOOK_KEY."""


def sum_looks(earlier: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], Look]:
    """Sum earlier nights' rows of `comparisons`, in their order.

    Both directions of a pair get sums. Rows without a standard error, which needs at least two users, are
    left out. A night without bets leaves the wealth as it was.
    """
    looks: dict[tuple[Any, ...], Look] = {}
    for row in earlier:
        if row["stderr"] is None:
            continue
        n, mean = row["users"], row["difference"]
        # The variance is computed back from the standard error.
        squares = row["stderr"] ** 2 * n * (n - 1) + n * mean**2
        gains, falls = evidence.read_gains(row)
        model, other, *key = (row[name] for name in LOOK_KEY)
        forth = (1, n, n * mean, squares, gains, falls)
        back = (1, n, -(n * mean), squares, evidence.turn_gains(gains), evidence.NO_FALLS)
        for pair, look in (((model, other), forth), ((other, model), back)):
            before = looks.get((*pair, *key), FIRST_LOOK)
            looks[(*pair, *key)] = Look(*(one + more for one, more in zip(before, look, strict=True)))
    return looks


def _add_earlier_looks(results: pa.Table, earlier: EarlierLooks) -> pa.Table:
    """Add earlier nights' sums to each difference."""
    looks = [
        earlier.get(tuple(row[name] for name in LOOK_KEY)) if row["kind"] == "pair" else None
        for row in results.select([*LOOK_KEY, "kind"]).to_pylist()
    ]
    for place, (name, kind) in enumerate(zip(Look._fields, LOOK_TYPES, strict=True)):
        numbers = pa.array([None if one is None else one[place] for one in looks], kind)
        results = results.append_column(name, numbers)
    return results


_NO_LOOKS: EarlierLooks = {}
_EMPTY = pa.schema([*tests.RESULTS, *evidence.COUNTED]).empty_table()


def adjust_families(results: pa.Table, plan: ComparisonPlan, earlier: EarlierLooks = _NO_LOOKS) -> pa.Table:
    """Add columns computed from all results of a kind and part.

    All results are models^2 x metrics x cut-offs rows.
    """
    results = _add_earlier_looks(results, earlier)
    kinds = dict.fromkeys(zip(*(results.column(n).to_pylist() for n in ("kind", "part")), strict=True))
    finished = []
    for kind, part in kinds:
        own = pc.and_(pc.equal(results.column("kind"), kind), pc.equal(results.column("part"), part))
        finished.append(tests.finish_family(plan, results.filter(own)))
    empty = pa.schema([*results.schema, *tests.ADJUSTED]).empty_table()
    return evidence.add_evidence(plan, pa.concat_tables(finished) if finished else empty)
