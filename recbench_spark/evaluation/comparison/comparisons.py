"""Significance tests of differences between runs: pairs of models of a night, and models and their past.

Users never leave the cluster. Each task turns its users into whole numbers (see
`kernels.comparison.significance`), m x m and replicates x m for m models, key by key. These are added up in
one group per metric and cut-off, and the tests are computed from the sums. The partitioning does not change
the numbers.
Axes: u users, m models of a group, c cut-offs, r replicates, x pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.versions import change_groups, count_shuffle_tasks
from recbench_spark.evaluation.comparison.counted import gather_rows, name_owners
from recbench_spark.evaluation.comparison.differences import (
    ADJUSTED_COLUMNS,
    CELL,
    HOLDOUT,
    RESULTS,
    ComparisonPlan,
    PairSums,
    add_users,
    count_steps,
    finish_cell,
    finish_family,
    group_values,
    make_scalar,
    scale_values,
)
from recbench_spark.evaluation.comparison.paired_values import read_paired_values, repartition_by_user
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.comparison import significance as kernel
from recbench_spark.kernels.streams import Batches


def metric_scales(user_metrics: DataFrame, metrics: Sequence[str]) -> dict[str, float]:
    """Compute `ComparisonPlan.scales` of unbounded metrics from their largest values.

    Cost: one scan; rows are not shuffled.
    """
    size = F.array_max(F.transform("values", F.abs))
    rows = user_metrics.where(F.col("metric").isin(list(metrics))).groupBy("metric")
    largest_values = {row.metric: row.largest for row in rows.agg(F.max(size).alias("largest")).collect()}
    return scale_values(largest_values)


def compare(user_metrics: DataFrame, plan: ComparisonPlan, earlier: DataFrame) -> DataFrame:
    """Compare runs: one row per difference, with the columns of `comparisons` that the numbers decide.

    Shuffles the rows once by user, then a row per task, metric, cut-off and group, then the counts
    of differences to the baselines (at most 2^17 different ones each), then one row a result.

    Args:
        user_metrics: rows of the table, of any runs.
        plan: runs, groups, metrics, tests.
        earlier: rows of `comparisons` of earlier nights, of kind `pair`: the earlier looks at the data.
    """
    spark = user_metrics.sparkSession
    tasks = plan.tasks(count_shuffle_tasks(spark))
    is_in_plan = (F.col("estimator") == HOLDOUT) & F.col("metric").isin(list(plan.metrics))
    values = gather_rows(user_metrics.where(is_in_plan), plan.numbers)
    rows = repartition_by_user(values, [run.run_id for run in plan.runs], tasks)
    results = _adjust_results(
        _add_earlier_nights(_add_wilcoxon(_differences(rows, plan), rows, plan), earlier), plan
    )
    return name_owners(results, plan.numbers)


# ------------------------------------------------------------------------------- sums of a task

TYPES = "part STRING, metric STRING, definition STRING, k INT, group INT"
_SUMS = ("pairs", "boots", "weights", "signs")
_TOTALS = f"{TYPES}, " + ", ".join(f"{name} ARRAY<LONG>" for name in _SUMS)


def _task_sums(plan: ComparisonPlan, batches: Batches) -> Batches:
    key: tuple[str, str, str] | None = None
    total: PairSums = {}
    for side in read_paired_values(batches, len(plan.runs), plan.ks):
        if side.key != key:
            yield from _sum_batches(plan, key, total)
            key, total = side.key, {}
        add_users(total, side, plan)
    yield from _sum_batches(plan, key, total)


def _sum_batches(plan: ComparisonPlan, key: tuple[str, str, str] | None, total: PairSums) -> Batches:
    for (c, group), sums in total.items():
        assert key is not None
        cell = zip(CELL, (*key, plan.ks[c], group), strict=True)
        lists = {name: pa.array([part.ravel()]) for name, part in zip(_SUMS, sums, strict=True)}
        yield pa.RecordBatch.from_pydict({**{n: make_scalar(n, value) for n, value in cell}, **lists})


# ------------------------------------------------------------------------------- tests of all pairs


def _differences(rows: DataFrame, plan: ComparisonPlan) -> DataFrame:
    totals = rows.mapInArrow(partial(_task_sums, plan), _TOTALS)

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def finish(table: pa.Table) -> pa.Table:
        key = tuple(table.column(name)[0].as_py() for name in CELL)
        return finish_cell(plan, key, _add_up(table, len(plan.groups[key[-1]].runs)))

    return change_groups(totals, CELL, finish, RESULTS)


def _add_up(table: pa.Table, m: int) -> list[Ints]:
    shapes = ((kernel.PLANES, m, m), (-1, m), (-1, m), (-1, m))
    return [
        np.sum([row.values.to_numpy() for row in table.column(name)], axis=0).reshape(shape)
        for name, shape in zip(_SUMS, shapes, strict=True)
    ]


# ------------------------------------------------------------------------------- Wilcoxon's test

_STEPS = f"{TYPES}, member INT, step LONG, users LONG"
_WILCOXON = f"{TYPES}, member INT, p_wilcoxon DOUBLE"


def _add_wilcoxon(results: DataFrame, rows: DataFrame, plan: ComparisonPlan) -> DataFrame:
    """Add the p-value of Wilcoxon's test against the baseline, from counts of users per difference."""
    cell = (*CELL, "member")
    steps = rows.mapInArrow(partial(_task_steps, plan), _STEPS)
    counts = steps.groupBy(*cell, "step").agg(F.sum("users").alias("users"))

    def test(table: pa.Table) -> pa.Table:
        return _wilcoxon(table)

    p_values = change_groups(counts, cell, test, _WILCOXON)
    conditions = [results[name].eqNullSafe(p_values[name]) for name in cell]
    joined = results.join(p_values, [*conditions, results.with_baseline], "left")
    return joined.select(results["*"], p_values.p_wilcoxon)


def _task_steps(plan: ComparisonPlan, batches: Batches) -> Batches:
    for side in read_paired_values(batches, len(plan.runs), plan.ks):
        for number, group in enumerate(plan.groups):
            values_umc = group_values(side, group, plan)
            for c, k in enumerate(plan.ks):
                baseline = plan.baseline(group, *side.key[:2], k)
                if baseline is not None:
                    yield from _step_batches(values_umc[:, :, c], baseline, (*side.key, k, number))


def _step_batches(values_um: Floats, baseline: int, cell: tuple[Any, ...]) -> Batches:
    for m, steps, users in count_steps(values_um, baseline):
        columns = {n: pa.repeat(make_scalar(n, v)[0], len(steps)) for n, v in zip(CELL, cell, strict=True)}
        columns["member"] = pa.repeat(pa.scalar(m, pa.int32()), len(steps))
        columns |= {"step": pa.array(steps), "users": pa.array(users)}
        yield pa.RecordBatch.from_pydict(columns)


def _wilcoxon(table: pa.Table) -> pa.Table:
    outcome = kernel.wilcoxon(table.column("step").to_numpy(), table.column("users").to_numpy())
    key = table.slice(0, 1).select([*CELL, "member"])
    return key.append_column("p_wilcoxon", pa.array([outcome.p]))


# ------------------------------------------------------------------------------- looks, families

_DIFFERENCE_KEY = ("model", "other", "part", "metric", "definition", "k")


def _add_earlier_nights(results: DataFrame, earlier: DataFrame) -> DataFrame:
    """Add users, sum and sum of squares of the same differences on earlier nights."""
    n, mean = F.col("users"), F.col("difference")
    # The variance is computed back from the standard error, which needs at least two users.
    squares = F.col("stderr") ** 2 * n * (n - 1) + n * mean**2
    looks = earlier.where("stderr IS NOT NULL").select(
        *_DIFFERENCE_KEY, n.alias("n"), (n * mean).alias("total"), squares.alias("squares")
    )
    reversed_looks = looks.withColumns(
        {"model": F.col("other"), "other": F.col("model"), "total": -F.col("total")}
    )
    sums = (
        looks.unionByName(reversed_looks)
        .groupBy(*_DIFFERENCE_KEY)
        .agg(
            F.count("*").alias("nights"),
            F.sum("n").alias("seen"),
            F.sum("total").alias("seen_total"),
            F.sum("squares").alias("seen_squares"),
        )
    )
    conditions = [results[name].eqNullSafe(sums[name]) for name in _DIFFERENCE_KEY]
    joined = results.join(F.broadcast(sums), [*conditions, results.kind == "pair"], "left")
    return joined.select(results["*"], "nights", "seen", "seen_total", "seen_squares")


def _adjust_results(results: DataFrame, plan: ComparisonPlan) -> DataFrame:
    """Add the columns that need all results of a kind and part: models^2 x metrics x cut-offs rows."""

    def finish(table: pa.Table) -> pa.Table:
        return finish_family(plan, table)

    new_columns = ", ".join(f"{name} {kind}" for name, _, kind in ADJUSTED_COLUMNS)
    types = ", ".join(f"{name} {kind}" for name, kind in results.dtypes)
    return change_groups(results, ("kind", "part"), finish, f"{types}, {new_columns}")
