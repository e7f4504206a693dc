"""Preferences between a model's rankings and the baseline's.

No cut-off and no weight by rank is chosen: the places of each user's relevant items are compared. Rankings
are shuffled once by user; a task holds the places of its users. Axes: q questions, u users, p items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import stdtrit

from recbench_spark.analyses.comparisons.differences import ComparisonPlan
from recbench_spark.analyses.comparisons.kernels.spreads import compare_places
from recbench_spark.analyses.comparisons.paired_values import deal_by_user, equal_key_ranges, select_runs
from recbench_spark.analyses.comparisons.tables import name_results
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics.list_rows import sum_lists
from recbench_spark.metrics.questions import Owners
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.schemas import PREFERENCES, QUERY_ID
from recbench_spark.storage.blocks import Rows, reduce_tasks
from recbench_spark.storage.packed_blocks import Block
from recbench_spark.storage.shared_arrays import flatten_lists

MEASURES = ("lexiprecision", "lexirecall", "recall_paired")
"""Measures of preference, in the columns of `compare_places`."""

_READ = ("run_id", "user_id", "user_key", "part", QUERY_ID, "relevance", "above", "tied")
_QUESTION = ("part", "user_id", QUERY_ID)
_TOTALS = pa.schema(
    {
        "part": pa.string(),
        "member": pa.int32(),
        **dict.fromkeys(("moments", "preferred", "against"), pa.list_(pa.int64())),
    }
)


@dataclass(frozen=True)
class PreferencePlan:
    """Runs to compare, by the headline's baseline.

    compared: its group of kind pair has tonight's models. headline: metric and cut-off by which the best
    model is the baseline, where the file names none. threshold: relevance from which an item is relevant.
    """

    compared: ComparisonPlan
    headline: tuple[str, int | None]
    threshold: float | None


def compare_preferences(rankings: Rows, plan: PreferencePlan, tasks: int) -> pa.Table:
    """Compare tonight's models with the baseline: columns of `preferences`.

    Args:
        rankings: rows of the runs.
        plan: the runs.
        tasks: number of shuffle tasks.
    """
    dealt = rankings.deal(_READ, partial(_deal_places, plan=plan, tasks=tasks), tasks)
    measure = Measure(partial(_sum_preferences, plan), ("part", "member"), partial(_finish, plan), ())
    return reduce_tasks({"preferences": measure}, dealt, tasks).get("preferences", RESULTS.empty_table())


def _deal_places(tables: Iterable[pa.Table], plan: PreferencePlan, tasks: int) -> Iterator[Block]:
    """Deal the places of relevant items, ascending, by user."""
    run_ids = [run.run_id for run in plan.compared.runs]
    for table in tables:
        rows = select_runs(table, run_ids).combine_chunks()
        offsets, relevance_p = flatten_lists(rows.column("relevance").combine_chunks())
        above_p, tied_p = (flatten_lists(rows.column(n).combine_chunks())[1] for n in ("above", "tied"))
        place_p = np.where(above_p < 0, np.inf, above_p + tied_p / 2)
        kept_p = mark_relevant(relevance_p, plan.threshold)
        row_p = np.repeat(np.arange(len(rows)), np.diff(offsets))[kept_p]
        order = np.lexsort((place_p[kept_p], row_p))
        bounds = np.concatenate([[0], np.cumsum(kept_p)])[offsets]
        places = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(place_p[kept_p][order]))
        query = pc.fill_null(rows.column(QUERY_ID), "")
        own = rows.select(["part", "user_id", "user_key", "run"]).append_column(QUERY_ID, query)
        yield from deal_by_user(own.append_column("places", places), tasks)


def _sum_preferences(plan: PreferencePlan, batches: Batches) -> Batches:
    """Compare a task's users: rows of `_TOTALS`."""
    rows = pa.Table.from_batches(batches)
    rows = rows.sort_by([(name, "ascending") for name in (*_QUESTION, "run")]).combine_chunks()
    for start, stop in equal_key_ranges(rows, ("part",)):
        own = rows.slice(start, stop - start).combine_chunks()
        first = [begin for begin, _ in equal_key_ranges(own, _QUESTION)]
        question_r = np.searchsorted(first, np.arange(len(own)), side="right") - 1
        part, runs = own.column("part")[0].as_py(), own.column("run").to_numpy()
        for member, place, other in _list_compared(plan, part):
            one, base = np.flatnonzero(runs == place), np.flatnonzero(runs == other)
            _, *at = np.intersect1d(question_r[one], question_r[base], return_indices=True)
            totals = _compare_sides(own.take(pa.array(one[at[0]])), own.take(pa.array(base[at[1]])))
            if totals is not None:
                yield pa.RecordBatch.from_pylist([{"part": part, "member": member, **totals}], _TOTALS)


def _list_compared(plan: PreferencePlan, part: str) -> Iterator[tuple[int, int, int]]:
    """Yield each model's place in its group, its run, and the baseline's run."""
    for group in plan.compared.groups:
        baseline = plan.compared.baseline(group, part, *plan.headline) if group.kind == "pair" else None
        for member, place in enumerate(group.runs):
            if baseline not in (None, member):
                yield member, place, group.runs[baseline]


def _compare_sides(own: pa.Table, other: pa.Table) -> dict[str, Any] | None:
    """Sum preferences over the same questions of two runs."""
    (offsets, place_p), (bounds, other_p) = (
        flatten_lists(side.column("places").combine_chunks()) for side in (own, other)
    )
    if not len(own) or (offsets != bounds).any():
        return None
    values_q3 = compare_places(place_p, other_p, offsets)
    users = own.column("user_id").combine_chunks().dictionary_encode().indices.to_numpy()
    keys = own.column("user_key").to_numpy()
    owners, values_u3 = Owners(keys, users).weigh(values_q3, "users")
    counts = {"preferred": (values_u3 > 0).sum(axis=0), "against": (values_u3 < 0).sum(axis=0)}
    moments: Ints = owners.moments(values_u3)
    return {"moments": moments.ravel().tolist(), **{name: n.tolist() for name, n in counts.items()}}


RESULTS = name_results(PREFERENCES)
"""Columns that follow from the numbers."""


def _finish(plan: PreferencePlan, table: pa.Table) -> pa.Table:
    """Compute a model's rows, one for each measure."""
    part, member = table.column("part")[0].as_py(), table.column("member")[0].as_py()
    runs, group = plan.compared.runs, next(one for one in plan.compared.groups if one.kind == "pair")
    run = runs[group.runs[member]]
    other = next(runs[base] for m, _, base in _list_compared(plan, part) if m == member)
    value, stderr, n = resampling.mean_and_error(sum_lists(table, "moments", (len(MEASURES), -1)))
    level = plan.compared.bootstrap.level
    reach: Floats = stdtrit(np.maximum(n - 1, 1), (1 + level) / 2) * stderr
    low, high = resampling.hide_points(value - reach, value + reach, n, level)
    counts = [sum_lists(table, name, (len(MEASURES),)) for name in ("preferred", "against")]
    facts = {
        **{"logical_date": run.logical_date, "model": run.model, "run_id": run.run_id, "part": part},
        **{"other": other.model, "other_run_id": other.run_id},
    }
    names = ("measure", "users", "preferred", "against", "value", "stderr", "ci_low", "ci_high")
    numbers = (MEASURES, n, *counts, value, stderr, low.clip(-1), high.clip(max=1))
    columns = {name: pa.repeat(pa.scalar(fact), len(n)) for name, fact in facts.items()}
    columns |= {name: pa.array(one, from_pandas=True) for name, one in zip(names, numbers, strict=True)}
    return pa.table(columns).select(RESULTS.names).cast(RESULTS)
