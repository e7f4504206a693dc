"""Smallest set of items, or of users, whose removal reverses the order of two models.

The contribution of a truth item to an additive metric is rounded to 2^-30. Contributions are added up by
item, or by user, for each run; as whole numbers they have the same sum in any order. Passes over buckets of
bits (`kernels.comparison.paradoxes`) then select the largest differences between two runs, for all verdicts
at once and with the same answer as a sort. A verdict compares sums over users. It is also a verdict on the
means where both models are averaged over the same users.
The denominator of NDCG and recall, the best that a user could get, does not change.
Axes: p truth items, n items or users, m models, c columns (metric x cut-off), b buckets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.definitions import Definition
from recbench_spark.engine.versions import change_groups
from recbench_spark.evaluation.comparison.differences import ComparedRun
from recbench_spark.evaluation.comparison.paradoxes import select_runs, split_by_run
from recbench_spark.evaluation.ranking.batches import split_by_part, to_rankings
from recbench_spark.kernels.arrays import Ints
from recbench_spark.kernels.comparison import paradoxes as kernel
from recbench_spark.kernels.comparison.paradoxes import Crossing, Flip
from recbench_spark.kernels.estimators import exposure
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.shared_arrays import flatten_lists

ITEMS, USERS = "items", "users"
SHOWN_IDS = 20
"""Number of ids that are reported of each set."""

CELLS = 1 << 22
"""Ids x models x columns that are processed at once: 32 MB."""


@dataclass(frozen=True)
class ModelPair:
    """A verdict to examine: two models (indices of the plan's runs), a column, and what is removed."""

    removed: str
    part: str
    column: int
    model: int
    other: int


@dataclass(frozen=True)
class FlipPlan:
    """Runs of one split, additive metrics (see `additive_metrics`), cut-offs, and pairs of models."""

    runs: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    pairs: tuple[ModelPair, ...]

    @property
    def columns(self) -> list[tuple[str, int | None]]:
        """Return metric and cut-off of each column."""
        return metric_columns(self.metrics, self.ks)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the held-out parts of the pairs."""
        return tuple(sorted({pair.part for pair in self.pairs}))

    @property
    def removed(self) -> tuple[str, ...]:
        """Return what the pairs remove: items, users or both."""
        return tuple(sorted({pair.removed for pair in self.pairs}))


@dataclass(frozen=True)
class FlipVerdict:
    """Result for one pair.

    Attributes:
        pair: the two models, the column, and what is removed.
        sign: sign of the difference of the two models.
        total: sum of the difference.
        n_candidates: number of items or users that contribute.
        flip: the smallest set; None: no set reverses the verdict.
        ids: the first ids of the set.
        contributions: their contributions.
    """

    pair: ModelPair
    sign: int
    total: float
    n_candidates: int
    flip: Flip | None
    ids: tuple[str, ...] = ()
    contributions: tuple[float, ...] = ()


def additive_metrics(metrics: Sequence[str], definition: Definition) -> tuple[str, ...]:
    """Select the metrics that are sums over items under a definition."""
    settings = exposure.EstimatorSettings()
    return tuple(m for m in metrics if exposure.reason("snips_global", m, definition, settings) is None)


def metric_columns(metrics: Sequence[str], ks: Sequence[int]) -> list[tuple[str, int | None]]:
    """List metric and cut-off of each column, in order."""
    return [(metric, k) for metric in metrics for k in exposure.columns(metric, ks)]


def find_smallest_flips(rankings: DataFrame, plan: FlipPlan) -> list[FlipVerdict]:
    """Search the smallest set of each verdict; equal sums have no verdict (see `Flip` of the kernel).

    Contributions are shuffled once by (run, id) and once by id. The executors cache them for the passes;
    each pass shuffles at most 2^14 rows per verdict and task. The driver holds one row per verdict.

    Args:
        rankings: rows of the table `rankings`, of any runs.
        plan: runs, metrics, verdicts.
    """
    contributions = compute_contributions(rankings, plan).cache()
    try:
        searches, n_candidates, largest = _start_searches(contributions, plan)
        last_searches = dict(searches)
        # All values below 2^shift are in one bucket, so such a pass would select nothing.
        shifts = [shift for shift in kernel.SHIFTS if largest >> shift] or [0]
        for before, shift in zip((None, *shifts), shifts, strict=False):
            last_searches = (
                _run_pass(contributions, plan, last_searches, before, shift) if last_searches else {}
            )
        flips = {x: kernel.resolve(s.last, s.goal) for x, s in last_searches.items() if s.last}
        ids = _first_ids(contributions, plan, last_searches, flips) if flips else {}
    finally:
        contributions.unpersist()
    return [
        _verdict(plan.pairs[x], s, n_candidates[x], flips.get(x), ids.get(x, []))
        for x, s in searches.items()
    ]


def _verdict(
    pair: ModelPair,
    search: FlipSearch,
    n_candidates: int,
    flip: Flip | None,
    first: Sequence[tuple[int, str]],
) -> FlipVerdict:
    unit = 2.0**-kernel.BITS
    ids, amounts = tuple(i for _, i in first), tuple(amount * unit for amount, _ in first)
    return FlipVerdict(pair, search.sign, search.goal * unit, n_candidates, flip, ids, amounts)


# ------------------------------------------------------------------------------- contributions


def compute_contributions(rankings: DataFrame, plan: FlipPlan) -> DataFrame:
    """Sum what each item or user adds to each model: rows (removed, part, id, numbers), multiples of 2^-30.

    `numbers` holds, for each run with rows, the index of the run and then its columns.
    """
    names = [f"v{c}" for c in range(len(plan.columns))]
    chosen = select_runs(rankings, plan.runs, plan.parts).select(
        "run", "user_id", "part", "item_ids", "relevance", "above", "tied", "before", "length"
    )
    types = "run INT, part STRING, removed STRING, id STRING, " + ", ".join(f"{n} LONG" for n in names)
    added = chosen.mapInArrow(partial(_task_contributions, plan), types)
    key = ("removed", "part", "id")
    run_sums = added.groupBy(*key, "run").agg(*(F.sum(name).alias(name) for name in names))
    numbers = F.flatten(F.collect_list(F.array(F.col("run").cast("long"), *names)))
    return run_sums.groupBy(*key).agg(numbers.alias("numbers"))


def _task_contributions(plan: FlipPlan, batches: Batches) -> Batches:
    for run, rows in split_by_run(batches):
        for part, users in split_by_part(rows):
            addends = exposure.addends(to_rankings(users), plan.metrics, plan.ks, plan.definition)
            values_pc = kernel.to_fixed_point(np.nan_to_num(np.concatenate(list(addends.values()), axis=1)))
            for removed in plan.removed:
                ids = pc.list_flatten(users.column("item_ids"))
                if removed == USERS:
                    ids = users.column("user_id").take(pc.list_parent_indices(users.column("item_ids")))
                yield _sum_by_id(ids, values_pc, {"run": run, "part": part, "removed": removed})


def _sum_by_id(ids: pa.Array, values_pc: Ints, facts: dict[str, Any]) -> pa.RecordBatch:
    """Add up the contributions: one row per id."""
    names = [f"v{c}" for c in range(values_pc.shape[1])]
    table = pa.table({"id": ids, **{n: pa.array(v) for n, v in zip(names, values_pc.T, strict=True)}})
    sums = table.group_by("id", use_threads=False).aggregate([(name, "sum") for name in names])
    n = sums.num_rows
    columns = {
        "run": pa.repeat(pa.scalar(facts["run"], pa.int32()), n),
        "part": pa.repeat(pa.scalar(facts["part"], pa.string()), n),
        "removed": pa.repeat(pa.scalar(facts["removed"], pa.string()), n),
        "id": sums.column("id").combine_chunks(),
        **{name: sums.column(f"{name}_sum").combine_chunks() for name in names},
    }
    return pa.RecordBatch.from_pydict(columns)


def _differences(
    plan: FlipPlan, pair_indices: Iterable[int], batches: Batches
) -> Iterator[tuple[int, pa.Array, Ints]]:
    """Yield, for each requested pair, some ids and the differences of its two models, (n,)."""
    pairs = [(x, plan.pairs[x]) for x in sorted(pair_indices)]
    m, c = len(plan.runs), len(plan.columns)
    groups = sorted({(pair.removed, pair.part) for _, pair in pairs})
    for chunk in _slice_batches(batches, max(1, CELLS // (m * c))):
        for removed, part in groups:
            mask = pc.and_(pc.equal(chunk.column("removed"), removed), pc.equal(chunk.column("part"), part))
            rows = chunk.filter(mask)
            values_nmc = _dense_contributions(rows, m, c)
            for x, pair in pairs:
                if (pair.removed, pair.part) == (removed, part):
                    values_n, other_n = (
                        values_nmc[:, model, pair.column] for model in (pair.model, pair.other)
                    )
                    yield x, rows.column("id"), values_n - other_n


def _slice_batches(batches: Batches, rows: int) -> Batches:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _dense_contributions(batch: pa.RecordBatch, m: int, c: int) -> Ints:
    """Return what each id adds to each model, (n, m, c)."""
    offsets, numbers = flatten_lists(batch.column("numbers"))
    rows = numbers.reshape(-1, c + 1)
    dense = np.zeros((batch.num_rows, m, c), dtype=np.int64)
    dense[np.repeat(np.arange(batch.num_rows), np.diff(offsets) // (c + 1)), rows[:, 0]] = rows[:, 1:]
    return dense


# ------------------------------------------------------------------------------- passes


@dataclass(frozen=True)
class FlipSearch:
    """State of the search for one pair: sign of the verdict, the sum to exceed, and the last crossing."""

    sign: int
    goal: int
    last: Crossing | None = None

    def positive_inside(self, difference_n: Ints, shift: int | None) -> npt.NDArray[np.bool_]:
        """Mark the positive contributions inside the bucket of the pass before, (n,)."""
        value = difference_n * self.sign
        inside = value > 0
        if self.last is not None and shift is not None:
            inside &= kernel.buckets(value, shift) == self.last.bucket
        return np.asarray(inside)


def _start_searches(
    contributions: DataFrame, plan: FlipPlan
) -> tuple[dict[int, FlipSearch], dict[int, int], int]:
    """Return a search per verdict, the number of ids of each, and the largest contribution."""
    sums = contributions.mapInArrow(partial(_task_sums, plan), "pair INT, total LONG, n LONG, largest LONG")
    rows = sums.groupBy("pair").agg(F.sum("total"), F.sum("n"), F.max("largest")).collect()
    searches = {x: FlipSearch(int(np.sign(total)), abs(total)) for x, total, _, _ in sorted(rows) if total}
    return searches, {x: n for x, _, n, _ in rows}, max((row[3] for row in rows), default=0)


def _task_sums(plan: FlipPlan, batches: Batches) -> Batches:
    sums = np.zeros((3, len(plan.pairs)), dtype=np.int64)
    for x, ids, difference in _differences(plan, range(len(plan.pairs)), batches):
        sums[:2, x] += (difference.sum(), len(ids))
        sums[2, x] = max(sums[2, x], np.abs(difference).max(initial=0))
    names = ("total", "n", "largest")
    columns = {name: pa.array(row) for name, row in zip(names, sums, strict=True)}
    yield pa.RecordBatch.from_pydict({"pair": pa.array(range(len(plan.pairs)), pa.int32()), **columns})


def _run_pass(
    contributions: DataFrame,
    plan: FlipPlan,
    searches: dict[int, FlipSearch],
    before: int | None,
    shift: int,
) -> dict[int, FlipSearch]:
    """Find the bucket of each pair that crosses its goal; pairs that no set reverses are dropped."""
    rows = contributions.mapInArrow(
        partial(_task_buckets, plan, searches, before, shift), "pair INT, bucket LONG, n LONG, total LONG"
    )
    bucket_sums = rows.groupBy("pair", "bucket").agg(F.sum("n").alias("n"), F.sum("total").alias("total"))

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def cross(table: pa.Table) -> pa.Table:
        return _find_crossing(searches, table)

    crossings = change_groups(bucket_sums, ("pair",), cross, "pair INT, bucket LONG, n LONG, removed LONG")
    return {
        x: replace(searches[x], last=Crossing(*crossing)) for x, *crossing in sorted(crossings.collect())
    }


def _task_buckets(
    plan: FlipPlan, searches: dict[int, FlipSearch], before: int | None, shift: int, batches: Batches
) -> Batches:
    for x, _, difference in _differences(plan, searches, batches):
        search = searches[x]
        value = difference[search.positive_inside(difference, before)] * search.sign
        bucket, index = np.unique(kernel.buckets(value, shift), return_inverse=True)
        total = np.zeros(len(bucket), dtype=np.int64)
        np.add.at(total, index, value)
        columns = {
            "pair": pa.repeat(pa.scalar(x, pa.int32()), len(bucket)),
            "bucket": pa.array(bucket),
            "n": pa.array(np.bincount(index, minlength=len(bucket)).astype(np.int64)),
            "total": pa.array(total),
        }
        yield pa.RecordBatch.from_pydict(columns)


def _find_crossing(searches: dict[int, FlipSearch], table: pa.Table) -> pa.Table:
    x = table.column("pair")[0].as_py()
    buckets, counts, sums = (table.column(name).to_numpy() for name in ("bucket", "n", "total"))
    crossing = kernel.crossing(buckets, counts, sums, searches[x].goal, searches[x].last)
    rows = [] if crossing is None else [(x, crossing.bucket, crossing.count, crossing.removed)]
    names = ("pair", "bucket", "n", "removed")
    kinds = (pa.int32(), pa.int64(), pa.int64(), pa.int64())
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return pa.table({n: pa.array(v, t) for n, v, t in zip(names, columns, kinds, strict=True)})


# ------------------------------------------------------------------------------- removed ids


def _first_ids(
    contributions: DataFrame, plan: FlipPlan, last_searches: dict[int, FlipSearch], flips: dict[int, Flip]
) -> dict[int, list[tuple[int, str]]]:
    """Read the first ids of each set with their contributions: largest first, equal ones by id as text."""
    limits = {
        x: (last_searches[x].sign, last_searches[x].last.bucket, min(flip.count, SHOWN_IDS))  # type: ignore[union-attr]
        for x, flip in flips.items()
    }
    rows = contributions.mapInArrow(
        partial(_task_largest, plan, limits), "pair INT, amount LONG, id STRING"
    )
    order = F.sort_array(F.collect_list(F.struct((-F.col("amount")).alias("negative"), "id")))
    first_rows = rows.groupBy("pair").agg(F.slice(order, 1, SHOWN_IDS).alias("first")).collect()
    return {x: [(-amount, name) for amount, name in first[: limits[x][2]]] for x, first in first_rows}


def _task_largest(plan: FlipPlan, limits: dict[int, tuple[int, int, int]], batches: Batches) -> Batches:
    best: dict[int, list[tuple[int, str]]] = {x: [] for x in limits}
    for x, ids, difference in _differences(plan, limits, batches):
        sign, least, n = limits[x]
        least = max(least, -best[x][-1][0]) if len(best[x]) == n else least
        inside = np.flatnonzero(difference * sign >= least)
        candidates = zip((-sign * difference[inside]).tolist(), ids.take(inside).to_pylist(), strict=True)
        best[x] = heapq.nsmallest(n, [*best[x], *candidates])
    for x, largest in best.items():
        columns = {
            "pair": pa.repeat(pa.scalar(x, pa.int32()), len(largest)),
            "amount": pa.array([-amount for amount, _ in largest], pa.int64()),
            "id": pa.array([name for _, name in largest], pa.string()),
        }
        yield pa.RecordBatch.from_pydict(columns)
