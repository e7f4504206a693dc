"""Which differences between runs hold: every pair of models of a night, and each model and its past.

Users never leave the cluster. Each task turns its users into whole numbers (see
`kernels.comparison.significance`), m x m and replicates x m for m models, key by key; these are added up,
one group a metric and cut-off, and become tests. Whatever the partitioning, the numbers are the same.
Axes: u users, m models of a group, c cut-offs, r replicates, x pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap, Regression
from recbench_spark.evaluation.comparison.counted import CountedNumber, gather_rows, name_owners
from recbench_spark.evaluation.comparison.paired_values import (
    PairedValues,
    read_paired_values,
    repartition_by_user,
)
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.comparison import significance as kernel
from recbench_spark.kernels.ratios import scaling
from recbench_spark.kernels.resampling import bootstrap_sums
from recbench_spark.kernels.streams import Batches

HOLDOUT = "holdout"
PAYLOAD = 1 << 30
"""Bytes of partial sums that one group of the last step may receive."""


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared: one model on one night."""

    run_id: str
    model: str
    logical_date: date


@dataclass(frozen=True)
class ComparisonGroup:
    """Runs compared with one another, by their place in `ComparisonPlan.runs`.

    kind: pair (all models of a night), previous or baseline (a model and its earlier run).
    """

    kind: str
    runs: tuple[int, ...]


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared with what, and how.

    baselines: (part, metric, k) -> place in `runs` of the model that pairs are held against.
    scales: metric -> power of two that brings its values below 1, for metrics beyond 1.
    lower: metrics that are best when small.
    numbers: of models and nights that have several runs, those that count; `runs` has one of these runs.
    """

    runs: tuple[ComparedRun, ...]
    groups: tuple[ComparisonGroup, ...]
    metrics: tuple[str, ...]
    ks: tuple[int | None, ...]
    baselines: Mapping[tuple[str, str, int | None], int]
    bootstrap: Bootstrap
    min_users: float = 0.0
    planned_looks: int = 10_000
    lower: tuple[str, ...] = ()
    rules: tuple[Regression, ...] = ()
    scales: Mapping[str, float] | None = None
    numbers: tuple[CountedNumber, ...] = ()

    def scale(self, metric: str) -> float:
        """What values of a metric are multiplied by before they are added up."""
        return (self.scales or {}).get(metric, 1.0)

    def baseline(self, group: ComparisonGroup, part: str, metric: str, k: int | None) -> int | None:
        """Place within the group of what its runs are held against."""
        if group.kind != "pair":
            return 1
        place = self.baselines.get((part, metric, k))
        return group.runs.index(place) if place in group.runs else None

    def tasks(self, wanted: int) -> int:
        """Partitions: as many as wanted, unless their partial sums would fill a machine."""
        m = max(len(group.runs) for group in self.groups)
        one = 8 * m * (kernel.PLANES * m + 3 * self.bootstrap.replicates)
        return max(1, min(wanted, PAYLOAD // one))


def metric_scales(user_metrics: DataFrame, metrics: Sequence[str]) -> dict[str, float]:
    """`ComparisonPlan.scales` of metrics without a bound, from the largest value: one scan, no shuffle
    of rows."""
    size = F.array_max(F.transform("values", F.abs))
    rows = user_metrics.where(F.col("metric").isin(list(metrics))).groupBy("metric")
    found = {row.metric: row.largest for row in rows.agg(F.max(size).alias("largest")).collect()}
    return {name: min(1.0, scaling(value) / 1024) for name, value in found.items() if value}


def compare(user_metrics: DataFrame, plan: ComparisonPlan, earlier: DataFrame) -> DataFrame:
    """One row a difference: the columns of the table `comparisons` that numbers decide.

    Shuffles the rows once by user, then a row per task, metric, cut-off and group, then the counts
    of differences to the baselines (at most 2^17 different ones each), then one row a result.

    Args:
        user_metrics: rows of the table, of any runs.
        plan: runs, groups, metrics, tests.
        earlier: rows of `comparisons` of earlier nights, of kind `pair`: the looks before.
    """
    spark = user_metrics.sparkSession
    tasks = plan.tasks(int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    wanted = (F.col("estimator") == HOLDOUT) & F.col("metric").isin(list(plan.metrics))
    counted = gather_rows(user_metrics.where(wanted), plan.numbers)
    rows = repartition_by_user(counted, [run.run_id for run in plan.runs], tasks)
    found = _adjust_results(
        _add_earlier_nights(_add_wilcoxon(_differences(rows, plan), rows, plan), earlier), plan
    )
    return name_owners(found, plan.numbers)


# ------------------------------------------------------------------------------- sums of a task

_CELL = ("part", "metric", "definition", "k", "group")
_TYPES = "part STRING, metric STRING, definition STRING, k INT, group INT"
_SUMS = ("pairs", "boots", "weights", "signs")
_TOTALS = f"{_TYPES}, " + ", ".join(f"{name} ARRAY<LONG>" for name in _SUMS)

PairSums = dict[tuple[int, int], list[Ints]]
"""Of one key: (cut-off, group) -> pair sums (9, m, m), and three times (r, m)."""


def _task_sums(plan: ComparisonPlan, batches: Batches) -> Batches:
    key: tuple[str, str, str] | None = None
    total: PairSums = {}
    for side in read_paired_values(batches, len(plan.runs), plan.ks):
        if side.key != key:
            yield from _sum_batches(plan, key, total)
            key, total = side.key, {}
        _add_users(total, side, plan)
    yield from _sum_batches(plan, key, total)


def _add_users(total: PairSums, side: PairedValues, plan: ComparisonPlan) -> None:
    for number, group in enumerate(plan.groups):
        values_umc = group_values(side, group, plan)
        for c, found in enumerate(_sums(side.keys_u, values_umc, plan.bootstrap)):
            if (c, number) in total:
                both = zip(total[c, number], found, strict=True)
                total[c, number] = [one + other for one, other in both]
            elif found[0][0].any():
                total[c, number] = found


def group_values(side: PairedValues, group: ComparisonGroup, plan: ComparisonPlan) -> Floats:
    """Scaled values of the runs of a group, (u, m, c); of two nights, users of both."""
    values = side.values_unc[:, list(group.runs)] * plan.scale(side.key[1])
    if group.kind != "pair":
        values[np.isnan(values).any(axis=1, keepdims=True).repeat(values.shape[1], axis=1)] = np.nan
    return values


def _sums(keys_u: Ints, values_umc: Floats, boot: Bootstrap) -> list[list[Ints]]:
    """The sums at each cut-off."""
    u, m, n_cuts = values_umc.shape
    flat_ux = values_umc.reshape(u, m * n_cuts)
    boots, weights = bootstrap_sums(keys_u, flat_ux, boot.replicates, boot.seed)
    signs = kernel.sign_sums(keys_u, flat_ux, boot.replicates, boot.seed)
    at_cuts = [part.reshape(-1, m, n_cuts) for part in (boots, weights, signs)]
    return [
        [kernel.pair_sums(values_umc[:, :, c]), *(part[:, :, c].copy() for part in at_cuts)]
        for c in range(n_cuts)
    ]


def _sum_batches(plan: ComparisonPlan, key: tuple[str, str, str] | None, total: PairSums) -> Batches:
    for (c, group), found in total.items():
        assert key is not None
        cell = zip(_CELL, (*key, plan.ks[c], group), strict=True)
        lists = {name: pa.array([part.ravel()]) for name, part in zip(_SUMS, found, strict=True)}
        yield pa.RecordBatch.from_pydict({**{n: _literal_columns(n, value) for n, value in cell}, **lists})


def _literal_columns(name: str, value: Any) -> pa.Array:
    return pa.array([value], pa.int32() if name in ("k", "group") else pa.string())


# ------------------------------------------------------------------------------- tests of all pairs

_RESULTS = (
    f"{_TYPES}, kind STRING, model STRING, other STRING, run_id STRING, other_run_id STRING, "
    "logical_date DATE, other_date DATE, member INT, users LONG, value DOUBLE, other_value DOUBLE, "
    "difference DOUBLE, stderr DOUBLE, ci_low DOUBLE, ci_high DOUBLE, p_t DOUBLE, "
    "p_randomisation DOUBLE, p_bootstrap DOUBLE, effect DOUBLE, detectable DOUBLE, "
    "with_baseline BOOLEAN, verdict STRING"
)


def _differences(rows: DataFrame, plan: ComparisonPlan) -> DataFrame:
    totals = rows.mapInArrow(partial(_task_sums, plan), _TOTALS)

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return _finish(plan, table)

    return totals.groupBy(*_CELL).applyInArrow(finish, _RESULTS)


def _finish(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    part, metric, definition, k, number = (table.column(name)[0].as_py() for name in _CELL)
    group = plan.groups[number]
    baseline = plan.baseline(group, part, metric, k)
    a, b = _pairs_with_baseline(len(group.runs), baseline)
    cell = {"part": part, "metric": metric, "definition": definition, "k": k, "group": number}
    numbers = _pair_columns(_add_up(table, len(group.runs)), a, b, plan, metric)
    columns = {
        **{name: pa.repeat(_literal_columns(name, value)[0], len(a)) for name, value in cell.items()},
        **_names(plan, group, a, b),
        **numbers,
        "with_baseline": pa.array(b == (-1 if baseline is None else baseline)),
    }
    order = [column.split()[0] for column in _RESULTS.split(", ")]
    known = np.asarray(columns["users"]) > 0
    return pa.table({name: columns[name] for name in order}).filter(pa.array(known))


def _pairs_with_baseline(m: int, baseline: int | None) -> tuple[Ints, Ints]:
    """Every pair once, the baseline as the second."""
    a, b = np.triu_indices(m, 1)
    swap = a == (-1 if baseline is None else baseline)
    return np.where(swap, b, a), np.where(swap, a, b)


def _names(plan: ComparisonPlan, group: ComparisonGroup, a: Ints, b: Ints) -> dict[str, pa.Array]:
    ours, theirs = ([plan.runs[group.runs[place]] for place in side] for side in (a, b))
    return {
        "kind": pa.array([group.kind] * len(a), pa.string()),
        "model": pa.array([run.model for run in ours], pa.string()),
        "other": pa.array([run.model for run in theirs], pa.string()),
        "run_id": pa.array([run.run_id for run in ours], pa.string()),
        "other_run_id": pa.array([run.run_id for run in theirs], pa.string()),
        "logical_date": pa.array([run.logical_date for run in ours], pa.date32()),
        "other_date": pa.array([run.logical_date for run in theirs], pa.date32()),
        "member": pa.array(a, pa.int32()),
    }


def _add_up(table: pa.Table, m: int) -> list[Ints]:
    shapes = ((kernel.PLANES, m, m), (-1, m), (-1, m), (-1, m))
    return [
        np.sum([row.values.to_numpy() for row in table.column(name)], axis=0).reshape(shape)
        for name, shape in zip(_SUMS, shapes, strict=True)
    ]


def _pair_columns(
    sums: list[Ints], a: Ints, b: Ints, plan: ComparisonPlan, metric: str
) -> dict[str, pa.Array]:
    pair_sums, boots, weights, signs = sums
    level, scale = plan.bootstrap.level, plan.scale(metric)
    pairs = kernel.paired_t(pair_sums)
    means = _means(pair_sums)
    low, high, p_bootstrap = kernel.bootstrap_pairs(boots, weights, np.diagonal(means), level)
    student_low, student_high = pairs.interval(level)
    same = kernel.same_users(pair_sums)
    p_randomisation = kernel.randomisation_p(signs, same)
    low, high = np.where(same, low, student_low)[a, b], np.where(same, high, student_high)[a, b]
    found = {
        "value": means[a, b] / scale,
        "other_value": means[b, a] / scale,
        "difference": pairs.mean[a, b] / scale,
        "stderr": pairs.error[a, b] / scale,
        "ci_low": low / scale,
        "ci_high": high / scale,
        "p_t": pairs.p[a, b],
        "p_randomisation": p_randomisation[a, b],
        "p_bootstrap": np.where(same, p_bootstrap, np.nan)[a, b],
        "effect": pairs.effect[a, b],
        "detectable": kernel.minimum_detectable(1.0, level) * pairs.error[a, b] / scale,
    }
    direction = -1.0 if metric in plan.lower else 1.0
    bounds = np.sort(np.stack([low, high], axis=1) / scale * direction, axis=1)
    verdicts = [kernel.practical_verdict(x, y, plan.min_users) for x, y in bounds.tolist()]
    columns = {name: _nullable(numbers) for name, numbers in found.items()}
    return {**columns, "users": pa.array(pairs.users[a, b]), "verdict": pa.array(verdicts, pa.string())}


def _means(pair_sums: Ints) -> Floats:
    """Mean of model a over the users whom it shares with b, (m, m)."""
    total = pair_sums[1].astype(np.float64) * 2.0**kernel.HALF_BITS + pair_sums[2]
    means: Floats = np.full(total.shape, np.nan)
    np.divide(total * kernel.UNIT, pair_sums[0], out=means, where=pair_sums[0] > 0)
    return means


def _nullable(values: npt.NDArray[Any]) -> pa.Array:
    numbers = np.asarray(values, dtype=np.float64)
    return pa.array(numbers, mask=np.isnan(numbers))


# ------------------------------------------------------------------------------- Wilcoxon's test

_STEPS = f"{_TYPES}, member INT, step LONG, users LONG"
_WILCOXON = f"{_TYPES}, member INT, p_wilcoxon DOUBLE"


def _add_wilcoxon(results: DataFrame, rows: DataFrame, plan: ComparisonPlan) -> DataFrame:
    """With p against the baseline: how many users have each difference is counted, not who."""
    cell = (*_CELL, "member")
    steps = rows.mapInArrow(partial(_task_steps, plan), _STEPS)
    counts = steps.groupBy(*cell, "step").agg(F.sum("users").alias("users"))

    def test(table: pa.Table) -> pa.Table:
        return _wilcoxon(table)

    found = counts.groupBy(*cell).applyInArrow(test, _WILCOXON)
    same = [results[name].eqNullSafe(found[name]) for name in cell]
    joined = results.join(found, [*same, results.with_baseline], "left")
    return joined.select(results["*"], found.p_wilcoxon)


def _task_steps(plan: ComparisonPlan, batches: Batches) -> Batches:
    for side in read_paired_values(batches, len(plan.runs), plan.ks):
        for number, group in enumerate(plan.groups):
            values_umc = group_values(side, group, plan)
            for c, k in enumerate(plan.ks):
                baseline = plan.baseline(group, *side.key[:2], k)
                if baseline is not None:
                    yield from _step_batches(values_umc[:, :, c], baseline, (*side.key, k, number))


def _step_batches(values_um: Floats, baseline: int, cell: tuple[Any, ...]) -> Batches:
    for m in range(values_um.shape[1]):
        difference = values_um[:, m] - values_um[:, baseline]
        steps, users = np.unique(
            kernel.difference_steps(difference[~np.isnan(difference)]), return_counts=True
        )
        if m != baseline and len(steps):
            columns = {
                n: pa.repeat(_literal_columns(n, v)[0], len(steps))
                for n, v in zip(_CELL, cell, strict=True)
            }
            columns["member"] = pa.repeat(pa.scalar(m, pa.int32()), len(steps))
            columns |= {"step": pa.array(steps), "users": pa.array(users.astype(np.int64))}
            yield pa.RecordBatch.from_pydict(columns)


def _wilcoxon(table: pa.Table) -> pa.Table:
    found = kernel.wilcoxon(table.column("step").to_numpy(), table.column("users").to_numpy())
    first = table.slice(0, 1).select([*_CELL, "member"])
    return first.append_column("p_wilcoxon", pa.array([found.p]))


# ------------------------------------------------------------------------------- looks, families

_DIFFERENCE_KEY = ("model", "other", "part", "metric", "definition", "k")


def _add_earlier_nights(results: DataFrame, earlier: DataFrame) -> DataFrame:
    """With users, sum and sum of squares of the same differences on earlier nights."""
    n, mean = F.col("users"), F.col("difference")
    # The variance comes back from the standard error; nothing is known of it below two users.
    squares = F.col("stderr") ** 2 * n * (n - 1) + n * mean**2
    told = earlier.where("stderr IS NOT NULL").select(
        *_DIFFERENCE_KEY, n.alias("n"), (n * mean).alias("total"), squares.alias("squares")
    )
    turned = told.withColumns({"model": F.col("other"), "other": F.col("model"), "total": -F.col("total")})
    sums = (
        told.unionByName(turned)
        .groupBy(*_DIFFERENCE_KEY)
        .agg(
            F.count("*").alias("nights"),
            F.sum("n").alias("seen"),
            F.sum("total").alias("seen_total"),
            F.sum("squares").alias("seen_squares"),
        )
    )
    same = [results[name].eqNullSafe(sums[name]) for name in _DIFFERENCE_KEY]
    joined = results.join(F.broadcast(sums), [*same, results.kind == "pair"], "left")
    return joined.select(results["*"], "nights", "seen", "seen_total", "seen_squares")


_ADJUSTED_COLUMNS = (
    ("family", pa.int32(), "INT"),
    ("p_holm", pa.float64(), "DOUBLE"),
    ("p_bh", pa.float64(), "DOUBLE"),
    ("looks", pa.int32(), "INT"),
    ("sequence_users", pa.int64(), "LONG"),
    ("sequence_low", pa.float64(), "DOUBLE"),
    ("sequence_high", pa.float64(), "DOUBLE"),
    ("allowed_drop", pa.float64(), "DOUBLE"),
    ("regressed", pa.bool_(), "BOOLEAN"),
)


def _adjust_results(results: DataFrame, plan: ComparisonPlan) -> DataFrame:
    """With what needs all results of a kind and part: models^2 x metrics x cut-offs rows, no user."""

    def finish(table: pa.Table) -> pa.Table:
        return _finish_family(plan, table)

    added = ", ".join(f"{name} {kind}" for name, _, kind in _ADJUSTED_COLUMNS)
    types = ", ".join(f"{name} {kind}" for name, kind in results.dtypes)
    return results.groupBy("kind", "part").applyInArrow(finish, f"{types}, {added}")


def _finish_family(plan: ComparisonPlan, table: pa.Table) -> pa.Table:
    p_x = _floats(table, "p_t")
    held_x = np.asarray(table.column("with_baseline").to_numpy(), dtype=bool)
    columns: dict[str, Any] = {
        "family": np.where(held_x, np.sum(~np.isnan(p_x[held_x])), np.sum(~np.isnan(p_x))),
        "p_holm": _adjust_by_family(kernel.holm, p_x, held_x),
        "p_bh": _adjust_by_family(kernel.benjamini_hochberg, p_x, held_x),
    }
    rows = table.to_pylist()
    looks = [_sequential_columns(plan, row) for row in rows]
    columns |= dict(zip(("looks", "sequence_users", "sequence_low", "sequence_high"),
                        zip(*looks, strict=True), strict=True))  # fmt: skip
    fallen = [_regression_columns(plan.rules, row, plan.lower) for row in rows]
    columns |= dict(zip(("allowed_drop", "regressed"), zip(*fallen, strict=True), strict=True))
    for name, kind, _ in _ADJUSTED_COLUMNS:
        values = columns[name]
        numbers = _nullable(values) if name in ("p_holm", "p_bh") else pa.array(values, kind)
        table = table.append_column(name, numbers.cast(kind))
    return table


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def _adjust_by_family(
    adjust: Callable[[Floats], Floats], p_x: Floats, held_x: npt.NDArray[np.bool_]
) -> Floats:
    """Comparisons with the baseline are a family of their own; all others belong to all pairs."""
    adjusted = adjust(p_x)
    adjusted[held_x] = adjust(p_x[held_x])
    return adjusted


def _sequential_columns(plan: ComparisonPlan, row: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Looks, differences seen and the interval that holds at all of them."""
    if row["kind"] != "pair" or row["stderr"] is None:
        return (None,) * 4
    n, mean = row["users"], row["difference"]
    total, squares = n * mean, row["stderr"] ** 2 * n * (n - 1) + n * mean**2
    n += row["seen"] or 0
    mean = (total + (row["seen_total"] or 0.0)) / n
    variance = max((squares + (row["seen_squares"] or 0.0) - n * mean**2) / (n - 1), 0.0)
    low, high = kernel.sequence_interval(mean, variance**0.5, n, plan.planned_looks, plan.bootstrap.level)
    return 1 + (row["nights"] or 0), n, low, high


def _regression_columns(
    rules: Sequence[Regression], row: Mapping[str, Any], lower: Sequence[str]
) -> tuple[float | None, bool]:
    """The smallest fall allowed, and whether the fall is larger."""
    asked = [rule for rule in rules if _rule_applies(rule, row)]
    if not asked:
        return None, False
    small = row["metric"] in lower
    fall = row["difference"] if small else -row["difference"]
    certain = row["ci_low"] > 0 if small else row["ci_high"] < 0
    fallen = [fall > rule.drop and (certain or not rule.certain) for rule in asked]
    return min(rule.drop for rule in asked), any(fallen)


def _rule_applies(rule: Regression, row: Mapping[str, Any]) -> bool:
    place = (rule.against, rule.part, rule.metric, rule.k)
    here = (row["kind"], row["part"], row["metric"], row["k"])
    return place == here and rule.model in (None, row["model"])
