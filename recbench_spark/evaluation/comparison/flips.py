"""The smallest set of items, or of users, whose removal turns a verdict between two models.

What a truth item adds to a metric that is a sum is rounded to 2^-30 and added up by item, or by user,
for each run: whole numbers, in any order to the same bits. The largest differences between two runs
are then found by passes over buckets of their bits (`kernels.comparison.paradoxes`), for all verdicts
at once, with
the same answer as by sorting. Verdicts are of sums over users: those of the means, where two models are
averaged over the same users.
What a user could have had, the denominator of NDCG and recall, is left as it is.
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
from recbench_spark.evaluation.comparison.comparisons import ComparedRun
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
"""Ids kept of each set."""

CELLS = 1 << 22
"""Ids x models x columns worked on at once: 32 MB."""


@dataclass(frozen=True)
class ModelPair:
    """A verdict: two models (places in the plan's runs) at a column, and what may be removed."""

    removed: str
    part: str
    column: int
    model: int
    other: int


@dataclass(frozen=True)
class FlipPlan:
    """Runs of one split, metrics that are sums (see `additive_metrics`), their cut-offs, and the verdicts."""

    runs: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    pairs: tuple[ModelPair, ...]

    @property
    def columns(self) -> list[tuple[str, int | None]]:
        """Metric and cut-off of each column."""
        return metric_columns(self.metrics, self.ks)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that verdicts are of."""
        return tuple(sorted({pair.part for pair in self.pairs}))

    @property
    def removed(self) -> tuple[str, ...]:
        """What is removed: items, users or both."""
        return tuple(sorted({pair.removed for pair in self.pairs}))


@dataclass(frozen=True)
class FlipVerdict:
    """What was found: sign of the verdict, its sum, how many there are, the flip (None: no set turns
    it), and ids and contributions of the first that go."""

    pair: ModelPair
    sign: int
    total: float
    n_candidates: int
    flip: Flip | None
    ids: tuple[str, ...] = ()
    contributions: tuple[float, ...] = ()


def additive_metrics(metrics: Sequence[str], definition: Definition) -> tuple[str, ...]:
    """The metrics that are sums over items under a definition."""
    settings = exposure.EstimatorSettings()
    return tuple(m for m in metrics if exposure.reason("snips_global", m, definition, settings) is None)


def metric_columns(metrics: Sequence[str], ks: Sequence[int]) -> list[tuple[str, int | None]]:
    """Metric and cut-off of each column, in order."""
    return [(metric, k) for metric in metrics for k in exposure.columns(metric, ks)]


def find_smallest_flips(rankings: DataFrame, plan: FlipPlan) -> list[FlipVerdict]:
    """The smallest set of each verdict, equal sums left out (see `Flip` of the kernel).

    Contributions are shuffled once by (run, id) and once by id, and kept on the executors for the
    passes; each pass shuffles at most 2^14 rows per verdict and task. The driver holds a row per verdict.

    Args:
        rankings: rows of the table `rankings`, of any runs.
        plan: runs, metrics, verdicts.
    """
    wide = compute_contributions(rankings, plan).cache()
    try:
        searches, out_of, largest = _start_searches(wide, plan)
        ends = dict(searches)
        # Values below 2^shift all lie in one bucket: such a pass would find nothing.
        shifts = [shift for shift in kernel.SHIFTS if largest >> shift] or [0]
        for before, shift in zip((None, *shifts), shifts, strict=False):
            ends = _run_pass(wide, plan, ends, before, shift) if ends else {}
        flips = {x: kernel.resolve(s.last, s.goal) for x, s in ends.items() if s.last}
        ids = _first_ids(wide, plan, ends, flips) if flips else {}
    finally:
        wide.unpersist()
    return [
        _verdict(plan.pairs[x], s, out_of[x], flips.get(x), ids.get(x, [])) for x, s in searches.items()
    ]


def _verdict(
    pair: ModelPair, search: FlipSearch, out_of: int, flip: Flip | None, first: Sequence[tuple[int, str]]
) -> FlipVerdict:
    unit = 2.0**-kernel.BITS
    ids, amounts = tuple(i for _, i in first), tuple(amount * unit for amount, _ in first)
    return FlipVerdict(pair, search.sign, search.goal * unit, out_of, flip, ids, amounts)


# ------------------------------------------------------------------------------- contributions


def compute_contributions(rankings: DataFrame, plan: FlipPlan) -> DataFrame:
    """Rows (removed, part, id, numbers): what an item or user adds to each model, as multiples of 2^-30.

    numbers: for each run with rows its place, then its columns, one run after another.
    """
    names = [f"v{c}" for c in range(len(plan.columns))]
    chosen = select_runs(rankings, plan.runs, plan.parts).select(
        "run", "user_id", "part", "item_ids", "relevance", "above", "tied", "before", "length"
    )
    types = "run INT, part STRING, removed STRING, id STRING, " + ", ".join(f"{n} LONG" for n in names)
    added = chosen.mapInArrow(partial(_task_contributions, plan), types)
    key = ("removed", "part", "id")
    of_run = added.groupBy(*key, "run").agg(*(F.sum(name).alias(name) for name in names))
    numbers = F.flatten(F.collect_list(F.array(F.col("run").cast("long"), *names)))
    return of_run.groupBy(*key).agg(numbers.alias("numbers"))


def _task_contributions(plan: FlipPlan, batches: Batches) -> Batches:
    for run, mine in split_by_run(batches):
        for part, users in split_by_part(mine):
            found = exposure.addends(to_rankings(users), plan.metrics, plan.ks, plan.definition)
            values_pc = kernel.to_fixed_point(np.nan_to_num(np.concatenate(list(found.values()), axis=1)))
            for removed in plan.removed:
                ids = pc.list_flatten(users.column("item_ids"))
                if removed == USERS:
                    ids = users.column("user_id").take(pc.list_parent_indices(users.column("item_ids")))
                yield _sum_by_id(ids, values_pc, {"run": run, "part": part, "removed": removed})


def _sum_by_id(ids: pa.Array, values_pc: Ints, facts: dict[str, Any]) -> pa.RecordBatch:
    """One row an id."""
    names = [f"v{c}" for c in range(values_pc.shape[1])]
    table = pa.table({"id": ids, **{n: pa.array(v) for n, v in zip(names, values_pc.T, strict=True)}})
    sums = table.group_by("id", use_threads=False).aggregate([(name, "sum") for name in names])
    n = sums.num_rows
    made = {
        "run": pa.repeat(pa.scalar(facts["run"], pa.int32()), n),
        "part": pa.repeat(pa.scalar(facts["part"], pa.string()), n),
        "removed": pa.repeat(pa.scalar(facts["removed"], pa.string()), n),
        "id": sums.column("id").combine_chunks(),
        **{name: sums.column(f"{name}_sum").combine_chunks() for name in names},
    }
    return pa.RecordBatch.from_pydict(made)


def _differences(
    plan: FlipPlan, wanted: Iterable[int], batches: Batches
) -> Iterator[tuple[int, pa.Array, Ints]]:
    """Of each wanted pair some ids and the differences of its two models, (n,)."""
    pairs = [(x, plan.pairs[x]) for x in sorted(wanted)]
    m, c = len(plan.runs), len(plan.columns)
    places = sorted({(pair.removed, pair.part) for _, pair in pairs})
    for some in _slice_batches(batches, max(1, CELLS // (m * c))):
        for removed, part in places:
            here = pc.and_(pc.equal(some.column("removed"), removed), pc.equal(some.column("part"), part))
            mine = some.filter(here)
            values_nmc = _dense_contributions(mine, m, c)
            for x, pair in pairs:
                if (pair.removed, pair.part) == (removed, part):
                    ours, theirs = (values_nmc[:, model, pair.column] for model in (pair.model, pair.other))
                    yield x, mine.column("id"), ours - theirs


def _slice_batches(batches: Batches, rows: int) -> Batches:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _dense_contributions(batch: pa.RecordBatch, m: int, c: int) -> Ints:
    """What each id adds to each model, (n, m, c)."""
    offsets, numbers = flatten_lists(batch.column("numbers"))
    rows = numbers.reshape(-1, c + 1)
    dense = np.zeros((batch.num_rows, m, c), dtype=np.int64)
    dense[np.repeat(np.arange(batch.num_rows), np.diff(offsets) // (c + 1)), rows[:, 0]] = rows[:, 1:]
    return dense


# ------------------------------------------------------------------------------- passes


@dataclass(frozen=True)
class FlipSearch:
    """Where the search for a pair stands: the verdict's sign, the sum to be exceeded, what is taken."""

    sign: int
    goal: int
    last: Crossing | None = None

    def directed(self, difference_n: Ints, before: int | None) -> npt.NDArray[np.bool_]:
        """The positive contributions inside the bucket of the pass before, (n,)."""
        value = difference_n * self.sign
        inside = value > 0
        if self.last is not None and before is not None:
            inside &= kernel.buckets(value, before) == self.last.bucket
        return np.asarray(inside)


def _start_searches(wide: DataFrame, plan: FlipPlan) -> tuple[dict[int, FlipSearch], dict[int, int], int]:
    """Verdicts that there are, the number of ids of each, and the largest contribution."""
    sums = wide.mapInArrow(partial(_task_sums, plan), "pair INT, total LONG, n LONG, largest LONG")
    rows = sums.groupBy("pair").agg(F.sum("total"), F.sum("n"), F.max("largest")).collect()
    searches = {x: FlipSearch(int(np.sign(total)), abs(total)) for x, total, _, _ in sorted(rows) if total}
    return searches, {x: n for x, _, n, _ in rows}, max((row[3] for row in rows), default=0)


def _task_sums(plan: FlipPlan, batches: Batches) -> Batches:
    found = np.zeros((3, len(plan.pairs)), dtype=np.int64)
    for x, ids, difference in _differences(plan, range(len(plan.pairs)), batches):
        found[:2, x] += (difference.sum(), len(ids))
        found[2, x] = max(found[2, x], np.abs(difference).max(initial=0))
    names = ("total", "n", "largest")
    columns = {name: pa.array(row) for name, row in zip(names, found, strict=True)}
    yield pa.RecordBatch.from_pydict({"pair": pa.array(range(len(plan.pairs)), pa.int32()), **columns})


def _run_pass(
    wide: DataFrame, plan: FlipPlan, searches: dict[int, FlipSearch], before: int | None, shift: int
) -> dict[int, FlipSearch]:
    """The bucket of each pair that crosses its goal; pairs that no set turns are gone."""
    rows = wide.mapInArrow(
        partial(_task_buckets, plan, searches, before, shift), "pair INT, bucket LONG, n LONG, total LONG"
    )
    summed = rows.groupBy("pair", "bucket").agg(F.sum("n").alias("n"), F.sum("total").alias("total"))

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def cross(table: pa.Table) -> pa.Table:
        return _find_crossing(searches, table)

    found = summed.groupBy("pair").applyInArrow(cross, "pair INT, bucket LONG, n LONG, removed LONG")
    return {x: replace(searches[x], last=Crossing(*last)) for x, *last in sorted(found.collect())}


def _task_buckets(
    plan: FlipPlan, searches: dict[int, FlipSearch], before: int | None, shift: int, batches: Batches
) -> Batches:
    for x, _, difference in _differences(plan, searches, batches):
        search = searches[x]
        value = difference[search.directed(difference, before)] * search.sign
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
    found = kernel.crossing(buckets, counts, sums, searches[x].goal, searches[x].last)
    rows = [] if found is None else [(x, found.bucket, found.count, found.removed)]
    names = ("pair", "bucket", "n", "removed")
    kinds = (pa.int32(), pa.int64(), pa.int64(), pa.int64())
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    return pa.table({n: pa.array(v, t) for n, v, t in zip(names, columns, kinds, strict=True)})


# ------------------------------------------------------------------------------- who goes


def _first_ids(
    wide: DataFrame, plan: FlipPlan, ends: dict[int, FlipSearch], flips: dict[int, Flip]
) -> dict[int, list[tuple[int, str]]]:
    """The first ids of each set with their contributions: largest first, equal ones by id as text."""
    wanted = {
        x: (ends[x].sign, ends[x].last.bucket, min(flip.count, SHOWN_IDS))  # type: ignore[union-attr]
        for x, flip in flips.items()
    }
    rows = wide.mapInArrow(partial(_task_largest, plan, wanted), "pair INT, amount LONG, id STRING")
    order = F.sort_array(F.collect_list(F.struct((-F.col("amount")).alias("negative"), "id")))
    found = rows.groupBy("pair").agg(F.slice(order, 1, SHOWN_IDS).alias("first")).collect()
    return {x: [(-amount, name) for amount, name in first[: wanted[x][2]]] for x, first in found}


def _task_largest(plan: FlipPlan, wanted: dict[int, tuple[int, int, int]], batches: Batches) -> Batches:
    best: dict[int, list[tuple[int, str]]] = {x: [] for x in wanted}
    for x, ids, difference in _differences(plan, wanted, batches):
        sign, least, n = wanted[x]
        least = max(least, -best[x][-1][0]) if len(best[x]) == n else least
        inside = np.flatnonzero(difference * sign >= least)
        candidates = zip((-sign * difference[inside]).tolist(), ids.take(inside).to_pylist(), strict=True)
        best[x] = heapq.nsmallest(n, [*best[x], *candidates])
    for x, found in best.items():
        columns = {
            "pair": pa.repeat(pa.scalar(x, pa.int32()), len(found)),
            "amount": pa.array([-amount for amount, _ in found], pa.int64()),
            "id": pa.array([name for _, name in found], pa.string()),
        }
        yield pa.RecordBatch.from_pydict(columns)
