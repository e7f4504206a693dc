"""The ceiling: what the best order of a run's candidates would reach.

The candidates are those that the run ranked, so truth outside a pool, or a list, stays unranked. Metrics
of the best order follow from the rankings alone: no further pass is made. Axes: u users, p truth items, c
metrics x cut-offs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.definitions import GRADED_GAINS, Definition
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.engine.whole_users import keep_users_whole
from recbench_spark.metrics import accuracy
from recbench_spark.metrics.accuracy import SLICE, MetricPlan, MetricTotals
from recbench_spark.metrics.kernels import accuracy as kernel
from recbench_spark.metrics.kernels.about import best_when
from recbench_spark.metrics.kernels.chunk import Chunk, divide, sum_by
from recbench_spark.metrics.questions import average_moments, read_owners
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.schemas import CEILINGS


def ceiling_measure(plan: MetricPlan) -> Measure:
    """Return the measure for `ceilings`: one row a metric and cut-off.

    Intervals are Student's over users: nothing is resampled.
    """
    sums, finish = partial(_sum_ceilings, plan), partial(_finish, plan)
    return Measure(sums, SLICE, finish, accuracy.RANKING_COLUMNS, CEILINGS)


def measure_best(plan: MetricPlan, rankings: Rankings) -> dict[str, Floats]:
    """Compute all rank metrics of the best order, (u, c) each."""
    kinds, kind_u = keep_kinds(rankings)
    best: dict[Definition, list[str]] = {}
    for name in plan.rank_metrics:
        is_graded = "gain" in kernel.METRICS[name].axes
        best.setdefault(choose_order(plan.definition, is_graded), []).append(name)
    values: dict[str, Floats] = {}
    for order, names in best.items():
        ranks = order_best(kinds, order)
        values |= kernel.measure(ranks, names, plan.ks, plan.definition, plan.uncut)
    return {name: values[name][kind_u] for name in plan.rank_metrics}


def keep_kinds(rankings: Rankings) -> tuple[Rankings, Ints]:
    """Return a user of each kind, and each user's kind, (u,).

    Where all truth has one grade, users with as many items, ranks and candidates have one best order.
    """
    relevance, count_u = rankings.relevance, np.diff(rankings.offsets)
    if len(relevance) == 0 or (relevance != relevance[0]).any():
        return rankings, np.arange(len(count_u))
    before_p = np.concatenate([[0], np.cumsum(rankings.above >= 0)])
    ranked_u, length_u = np.diff(before_p[rankings.offsets]), rankings.length
    code_u = (length_u * (ranked_u.max() + 1) + ranked_u) * (count_u.max() + 1) + count_u
    _, first_n, kind_u = np.unique(code_u, return_index=True, return_inverse=True)
    count_n, ranked_n, length_n = (one_u[first_n] for one_u in (count_u, ranked_u, length_u))
    offsets = np.concatenate([[0], np.cumsum(count_n)])
    place_p = np.arange(offsets[-1]) - np.repeat(offsets[:-1], count_n)
    above = np.where(place_p < np.repeat(ranked_n, count_n), 0, -1)
    nothing = np.zeros_like(above)
    return Rankings(offsets, relevance[: len(above)], above, nothing, nothing, length_n), kind_u


def choose_order(definition: Definition, is_graded: bool) -> Definition:
    """Return the definition by which a metric's best order is made.

    Only metrics with gains look at grades. Relevant items with a loss are last in theirs, alone.
    """
    if not is_graded:
        return definition.model_copy(update={"gain": "binary"})
    if definition.gain in GRADED_GAINS and (definition.threshold or 0.0) < definition.grade_origin:
        return definition.model_copy(update={"threshold": definition.grade_origin})
    return definition


def order_best(rankings: Rankings, definition: Definition) -> Rankings:
    """Return the ranks of the best order of each user's candidates.

    Relevant items and gains come first, the best grades before, and losses last: as optimistic ties would
    order them if all candidates were tied. Items without a rank stay so.
    """
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    is_ranked, nothing = rankings.above >= 0, np.zeros_like(rankings.above)
    tied = replace(
        rankings,
        above=np.where(is_ranked, 0, -1),
        tied=np.where(is_ranked, rankings.length[user_p] - 1, 0),
        before=nothing,
    )
    rank_p = Chunk(tied, (1,), definition.model_copy(update={"ties": "optimistic"})).rank_p
    return replace(rankings, above=rank_p - 1, tied=nothing, before=nothing)


def measure_reach(rankings: Rankings, definition: Definition) -> Floats:
    """Return the share of relevant items with a rank, (u, 1).

    NaN for users without a relevant item.
    """
    chunk = Chunk(rankings, (1,), definition)
    found_u = sum_by(chunk.user_p, chunk.relevant_p & (rankings.above >= 0), len(rankings.length))
    return divide(found_u, chunk.relevant, empty=np.nan)[:, None]


def _sum_ceilings(plan: MetricPlan, batches: Batches) -> Batches:
    """Sum ceilings, losses and reach by part: rows of `TOTALS`."""

    def totals(users: pa.RecordBatch) -> MetricTotals:
        rankings = to_rankings(users)
        best, own = (
            np.concatenate(list(measured(plan, rankings).values()), axis=1)
            for measured in (measure_best, accuracy.measure_ranks)
        )
        table = np.concatenate([best, best - own, measure_reach(rankings, plan.definition)], axis=1)
        owners, values = read_owners(users).weigh(table, plan.definition.weigh)
        return MetricTotals(owners.moments(values), *np.zeros((2, 0, table.shape[1]), np.int64))

    yield from accuracy.sum_by_part(keep_users_whole(batches), totals)


def _finish(plan: MetricPlan, table: pa.Table) -> pa.Table:
    """Compute a part's rows from its `TOTALS`."""
    columns, level = plan.table(plan.rank_metrics), plan.bootstrap.level
    c = len(columns)
    moments = accuracy.add_up(table, 2 * c + 1, 0).moments_c5
    value, stderr, n, users = average_moments(moments)
    lower = np.isin([column.metric for column in columns], best_when("small"))
    value[c : 2 * c] *= np.where(lower, -1.0, 1.0)
    reach = stdtrit(np.maximum(users - 1, 1), (1 + level) / 2) * stderr
    low, high = resampling.hide_points(value - reach, value + reach, users, level)
    metric, k, definition, _ = zip(*columns, strict=True)
    named: dict[str, object] = {
        "part": accuracy.repeat_text(table, "part", c),
        "metric": pa.array(metric),
        "definition": pa.array(definition),
        "k": pa.array(k, pa.int32()),
        "n": pa.array(n[:c]),
    }
    for place, name in enumerate(("ceiling", "lost")):
        for numbers, end in ((value, ""), (stderr, "_stderr"), (low, "_low"), (high, "_high")):
            own = numbers[place * c : (place + 1) * c]
            named[name + end] = pa.array(own, mask=np.isnan(own))
    for numbers, end in ((value, ""), (stderr, "_stderr")):
        own = np.repeat(numbers[-1], c)
        named["reach" + end] = pa.array(own, mask=np.isnan(own))
    return pa.table(named)
