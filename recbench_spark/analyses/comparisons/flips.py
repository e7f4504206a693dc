"""Smallest sets of items or users that decide a verdict.

Without the set, the order of two models reverses. A truth item's contribution to an additive metric is
rounded to 2^-30. Contributions are added up by item, or by user, for each run; as whole numbers they have
the same sum in any order. Passes over buckets of bits (`analyses.comparisons.kernels.paradoxes`) then
select the largest differences between two runs, for all verdicts at once and with the same answer as a
sort. A verdict compares sums over users. It is also a verdict on means if both models are averaged over the
same users. The denominator in NDCG and recall, the best possible value for a user, does not change. Axes: p
truth items, n items or users, m models, c columns (metric x cut-off), b buckets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.differences import ComparedRun
from recbench_spark.analyses.comparisons.kernels import paradoxes as kernel
from recbench_spark.analyses.comparisons.kernels.paradoxes import Crossing, Flip
from recbench_spark.analyses.comparisons.paradoxes import split_by_run
from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.core.arrays import Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.ranking.batches import split_by_part, to_rankings
from recbench_spark.storage.blocks import Rows, TaskRows, reduce_tasks
from recbench_spark.storage.packed_blocks import Block, partition_rows

ITEMS, USERS = "items", "users"
SHOWN_IDS = 20
"""Largest number of ids reported per set."""

CELLS = 1 << 22
"""Ids x models x columns processed at once: 32 MB."""


@dataclass(frozen=True)
class ModelPair:
    """A verdict to examine: two models, a column, removed members.

    Models are indices in the plan's runs; members are items or users.
    """

    removed: str
    part: str
    column: int
    model: int
    other: int


@dataclass(frozen=True)
class FlipPlan:
    """A split's runs, additive metrics, cut-offs, and model pairs.

    See `additive_metrics`.
    """

    runs: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    definition: Definition
    pairs: tuple[ModelPair, ...]

    @property
    def columns(self) -> list[tuple[str, int | None]]:
        """Return each column's metric and cut-off."""
        return metric_columns(self.metrics, self.ks)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the pairs' held-out parts."""
        return tuple(sorted({pair.part for pair in self.pairs}))

    @property
    def removed(self) -> tuple[str, ...]:
        """Return what the pairs remove: items, users or both."""
        return tuple(sorted({pair.removed for pair in self.pairs}))


@dataclass(frozen=True)
class FlipVerdict:
    """One pair's smallest set, and what led to it.

    Attributes:
        pair: the two models, the column, and what is removed.
        sign: sign of the models' difference.
        total: the summed difference.
        n_candidates: how many items or users contribute.
        flip: the smallest set; None: no set reverses the verdict.
        ids: the set's first ids.
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
    """Select metrics that are sums over items under a definition."""
    settings = exposure.EstimatorSettings()
    return tuple(m for m in metrics if exposure.reason("snips_global", m, definition, settings) is None)


def metric_columns(metrics: Sequence[str], ks: Sequence[int]) -> list[tuple[str, int | None]]:
    """List each column's metric and cut-off, in order."""
    return [(metric, k) for metric in metrics for k in exposure.columns(metric, ks)]


def find_smallest_flips(rankings: Rows, plan: FlipPlan, tasks: int) -> list[FlipVerdict]:
    """Search each verdict's smallest set.

    Equal sums have no verdict (see the kernel's `Flip`). Contributions are shuffled once by id, and the
    runner keeps them for the passes; each pass shuffles at most 2^14 rows per verdict and task. The driver
    holds one row per verdict.

    Args:
        rankings: rows of the table `rankings`, from any runs.
        plan: runs, metrics, verdicts.
        tasks: number of shuffle tasks.
    """
    with deal_contributions(rankings, plan, tasks).keep() as contributions:
        reduce = partial(_reduce_pairs, contributions, tasks)
        starts = reduce(_start_measure(plan))
        searches = {x: FlipSearch(int(np.sign(total)), abs(total)) for x, total, _, _ in starts if total}
        largest = max((row[3] for row in starts), default=0)
        last_searches = dict(searches)
        # All values below 2^shift are in one bucket, so such a pass would select nothing.
        shifts = [shift for shift in kernel.SHIFTS if largest >> shift] or [0]
        for before, shift in zip((None, *shifts), shifts, strict=False):
            crossings = reduce(_pass_measure(plan, last_searches, before, shift)) if last_searches else []
            last_searches = {x: replace(last_searches[x], last=Crossing(*at)) for x, *at in crossings}
        crossed = {x: (s, s.last) for x, s in last_searches.items() if s.last}
        flips = {x: kernel.resolve(last, s.goal) for x, (s, last) in crossed.items()}
        # A set's sign, its least contribution, and the number of reported ids.
        limits = {
            x: (s.sign, last.bucket, min(flips[x].count, SHOWN_IDS)) for x, (s, last) in crossed.items()
        }
        rows = reduce(_largest_measure(plan, limits)) if flips else []
    unit, n_candidates = 2.0**-kernel.BITS, {x: n for x, _, n, _ in starts}
    first = {x: list(own) for x, own in groupby(rows, key=itemgetter(0))}
    verdicts = []
    for x, search in searches.items():
        ids = tuple(name for _, _, name in first.get(x, []))
        amounts = tuple(amount * unit for _, amount, _ in first.get(x, []))
        facts = (search.sign, search.goal * unit, n_candidates[x], flips.get(x))
        verdicts.append(FlipVerdict(plan.pairs[x], *facts, ids, amounts))
    return verdicts


def _reduce_pairs(contributions: TaskRows, tasks: int, measure: Measure) -> list[tuple[Any, ...]]:
    """Return all verdicts' results, sorted by verdict."""
    results = reduce_tasks({"pairs": measure}, contributions, tasks).get("pairs")
    rows = [] if results is None else [tuple(row.values()) for row in results.to_pylist()]
    return sorted(rows, key=itemgetter(0))


# ------------------------------------------------------------------------------- contributions


def deal_contributions(rankings: Rows, plan: FlipPlan, tasks: int) -> TaskRows:
    """Sum what each item or user adds to each model.

    A sum is a multiple of 2^-30, and stands in the task of its id. The rows are (removed, part, id, run,
    v0, v1 ...); an id's rows are consecutive.
    """
    columns = (
        "run_id", "user_id", "part", "item_ids", "relevance", "above", "tied", "before", "length"
    )  # fmt: skip
    dealt = rankings.deal(columns, partial(_task_contributions, plan=plan, tasks=tasks), tasks)
    return dealt.then(_sum_by_run, ())


def _task_contributions(tables: Iterable[pa.Table], plan: FlipPlan, tasks: int) -> Iterator[Block]:
    batches = chain.from_iterable(table.combine_chunks().to_batches() for table in tables)
    for run, rows in split_by_run(batches, plan.runs, plan.parts):
        for part, users in split_by_part(rows):
            addends = exposure.addends(to_rankings(users), plan.metrics, plan.ks, plan.definition)
            values_pc = kernel.to_fixed_point(np.nan_to_num(np.concatenate(list(addends.values()), axis=1)))
            for removed in plan.removed:
                ids = pc.list_flatten(users.column("item_ids"))
                if removed == USERS:
                    ids = users.column("user_id").take(pc.list_parent_indices(users.column("item_ids")))
                sums = _sum_by_id(ids, values_pc, {"run": run, "part": part, "removed": removed})
                if len(sums):
                    yield from partition_rows(sums, (hash_ids(sums.column("id")) % tasks).astype(np.int64))


def _sum_by_id(ids: pa.Array, values_pc: Ints, facts: dict[str, Any]) -> pa.Table:
    """Add up the contributions: one row per id."""
    values = {f"v{c}": pa.array(value_p) for c, value_p in enumerate(values_pc.T)}
    sums = _add_up(pa.table({"id": ids, **values}), ("id",))
    for name, kind in (("run", pa.int32()), ("part", pa.string()), ("removed", pa.string())):
        sums = sums.append_column(name, pa.repeat(pa.scalar(facts[name], kind), len(sums)))
    return sums.combine_chunks()


def _add_up(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    names = [name for name in rows.column_names if name not in key]
    sums = rows.group_by(list(key), use_threads=False).aggregate([(name, "sum") for name in names])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])


def _sum_by_run(rows: pa.Table) -> pa.Table:
    """Add up a task's contributions; an id's rows are consecutive."""
    key = ("removed", "part", "id", "run")
    return _add_up(rows, key).sort_by([(name, "ascending") for name in key])


def _differences(
    plan: FlipPlan, pair_indices: Iterable[int], batches: Batches
) -> Iterator[tuple[int, pa.Array, Ints]]:
    """Yield, per requested pair, ids and model differences, (n,)."""
    pairs = [(x, plan.pairs[x]) for x in sorted(pair_indices)]
    rows = pa.Table.from_batches(batches)
    for removed, part in sorted({(pair.removed, pair.part) for _, pair in pairs}):
        mask = pc.and_(pc.equal(rows.column("removed"), removed), pc.equal(rows.column("part"), part))
        for ids, values_nmc in _dense_contributions(rows.filter(mask), plan):
            for x, pair in pairs:
                if (pair.removed, pair.part) == (removed, part):
                    values_nm = values_nmc[:, :, pair.column]
                    yield x, ids, values_nm[:, pair.model] - values_nm[:, pair.other]


def _dense_contributions(rows: pa.Table, plan: FlipPlan) -> Iterator[tuple[pa.Array, Ints]]:
    """Yield ids, and what each adds to models, (n, m, c)."""
    m, c = len(plan.runs), len(plan.columns)
    ids = rows.column("id").combine_chunks().dictionary_encode()  # equal ids stand together
    id_r, run_r = ids.indices.to_numpy(), rows.column("run").to_numpy()
    values_rc = np.column_stack([rows.column(f"v{column}").to_numpy() for column in range(c)])
    step = max(1, CELLS // (m * c))
    for start in range(0, len(ids.dictionary), step):
        names = ids.dictionary.slice(start, step)
        first, last = np.searchsorted(id_r, [start, start + len(names)])
        dense = np.zeros((len(names), m, c), dtype=np.int64)
        dense[id_r[first:last] - start, run_r[first:last]] = values_rc[first:last]
        yield names, dense


# ------------------------------------------------------------------------------- passes


@dataclass(frozen=True)
class FlipSearch:
    """One pair's search so far.

    The state has the verdict's sign, the sum to exceed, and the last crossing.
    """

    sign: int
    goal: int
    last: Crossing | None = None

    def positive_inside(self, difference_n: Ints, shift: int | None) -> npt.NDArray[np.bool_]:
        """Mark positive contributions inside the last pass's bucket, (n,)."""
        value = difference_n * self.sign
        inside = value > 0
        if self.last is not None and shift is not None:
            inside &= kernel.buckets(value, shift) == self.last.bucket
        return np.asarray(inside)


_STARTS = pa.schema({"pair": pa.int32(), **dict.fromkeys(("total", "n", "largest"), pa.int64())})


def _start_measure(plan: FlipPlan) -> Measure:
    """Return the measure for each verdict's totals.

    Each total has the sum, the number of ids and the largest contribution.
    """
    return Measure(partial(_task_sums, plan), ("pair",), _add_starts, ())


def _add_starts(table: pa.Table) -> pa.Table:
    added = table.group_by("pair").aggregate([("total", "sum"), ("n", "sum"), ("largest", "max")])
    return added.rename_columns(_STARTS.names).cast(_STARTS)


def _task_sums(plan: FlipPlan, batches: Batches) -> Batches:
    sums = np.zeros((3, len(plan.pairs)), dtype=np.int64)
    for x, ids, difference in _differences(plan, range(len(plan.pairs)), batches):
        sums[:2, x] += (difference.sum(), len(ids))
        sums[2, x] = max(sums[2, x], np.abs(difference).max(initial=0))
    pairs = pa.array(range(len(plan.pairs)), pa.int32())
    yield pa.RecordBatch.from_arrays([pairs, *map(pa.array, sums)], schema=_STARTS)


def _pass_measure(
    plan: FlipPlan, searches: dict[int, FlipSearch], before: int | None, shift: int
) -> Measure:
    """Return the measure for each pair's bucket across the goal.

    Pairs reversed by no set have none.
    """
    sums = partial(_task_buckets, plan, searches, before, shift)
    return Measure(sums, ("pair",), partial(_find_crossing, searches), ())


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


_CROSSINGS = pa.schema({"pair": pa.int32(), **dict.fromkeys(("bucket", "count", "removed"), pa.int64())})


def _find_crossing(searches: dict[int, FlipSearch], table: pa.Table) -> pa.Table:
    x = table.column("pair")[0].as_py()
    bucket_sums = _add_up(table.drop_columns(["pair"]), ("bucket",))
    buckets, counts, sums = (bucket_sums.column(name).to_numpy() for name in ("bucket", "n", "total"))
    crossing = kernel.crossing(buckets, counts, sums, searches[x].goal, searches[x].last)
    rows = [] if crossing is None else [{"pair": x, **asdict(crossing)}]
    return pa.Table.from_pylist(rows, _CROSSINGS)


# ------------------------------------------------------------------------------- removed ids


def _largest_measure(plan: FlipPlan, limits: dict[int, tuple[int, int, int]]) -> Measure:
    """Return the measure for each set's first ids and contributions.

    The largest come first, equal ones by id as text.
    """
    return Measure(partial(_task_largest, plan, limits), ("pair",), partial(_sort_largest, limits), ())


def _sort_largest(limits: dict[int, tuple[int, int, int]], table: pa.Table) -> pa.Table:
    rows = sorted(table.to_pylist(), key=lambda row: (-row["amount"], row["id"]))
    return pa.Table.from_pylist(rows[: limits[rows[0]["pair"]][2]], table.schema)


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
