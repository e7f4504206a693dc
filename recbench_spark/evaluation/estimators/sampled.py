"""Corrected estimates from candidates drawn uniformly, beside the raw sampled values.

A raw value (estimator `holdout`) measures another thing than the metric over all items. Here each
truth item is ranked against the drawn negatives alone, and a table made for the draw turns its
sampled rank into an estimate of the metric over all candidates (see `kernels.estimators.sampled`). A user's
value is the mean over the user's truth items, one by one: with one truth item per user, as under
leave-one-out, it estimates the metric itself; with several, recall where each is ranked without the
others, which the definition says as `items=one_by_one`. Only relevant items are averaged, by the rules
for users, ties, discounts and denominators of the definition; a metric that under its definition does not
follow from the rank of one item is not corrected, and `uncorrected_checks` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from recbench_spark.checks import Check
from recbench_spark.definitions import Definition
from recbench_spark.evaluation.measure import RankingMeasure
from recbench_spark.evaluation.metrics import accuracy as metric_rows
from recbench_spark.evaluation.metrics.accuracy import (
    METRIC_ROWS,
    RANKING_COLUMNS,
    SLICE,
    TOTALS,
    MetricColumn,
    MetricPlan,
    MetricTotals,
    TruthSelection,
)
from recbench_spark.evaluation.ranking.batches import to_rankings
from recbench_spark.kernels import resampling
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.estimators import sampled
from recbench_spark.kernels.metrics.accuracy import METRICS, measure
from recbench_spark.kernels.metrics.chunk import Chunk
from recbench_spark.kernels.streams import Batches

LIKELIHOOD = "maximum_likelihood"
LIKELIHOOD_REPLICATES = 100
"""Each replicate of this estimator is an EM of its own: a second for a hundred of them."""

DIGITS = 3
"""Digits to which the number of candidates is kept: tables are made once for each, and shared."""


def compute_corrected_metrics(
    rankings: DataFrame, plan: MetricPlan, estimators: Sequence[str], draws: int
) -> DataFrame:
    """Rows of `metrics` for each corrected estimator, with intervals over users.

    Nothing is shuffled but one row per task and slice.

    Args:
        rankings: rows of the table `rankings` with `drawn` and `pool`; users without are left out.
        plan: metrics (those that follow from one rank are corrected), cut-offs, definition, bootstrap.
        estimators: names of `kernels.estimators.sampled.ESTIMATORS`, and `maximum_likelihood`.
        draws: negatives drawn for most users: the likelihood is of those users alone.
    """
    drawn = rankings.where("pool IS NOT NULL").select(*RANKING_COLUMNS, "drawn", "pool")
    frames = (
        _apply_measure(drawn, measure) for measure in correction_measures(plan, estimators, draws).values()
    )
    return reduce(DataFrame.unionByName, frames)


def _apply_measure(drawn: DataFrame, measure: RankingMeasure) -> DataFrame:
    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return measure.finish(table)

    return drawn.mapInArrow(measure.sums, TOTALS).groupBy(*SLICE).applyInArrow(finish, METRIC_ROWS)


def correction_measures(
    plan: MetricPlan, estimators: Sequence[str], draws: int
) -> dict[str, RankingMeasure]:
    """What `compute_corrected_metrics` works out, of rankings of any origin; users without a pool are left out."""
    found = {}
    by_table = [name for name in estimators if name != LIKELIHOOD]
    if by_table:
        finish = partial(metric_rows.finish_metrics, corrected_columns(plan, by_table), plan.bootstrap)
        found["corrected"] = RankingMeasure(partial(_table_totals, plan, by_table), SLICE, finish)
    if LIKELIHOOD in estimators:
        replicates = min(plan.bootstrap.replicates, LIKELIHOOD_REPLICATES)
        few = replace(plan, bootstrap=plan.bootstrap.model_copy(update={"replicates": replicates}))
        sums, finish = partial(_task_histograms, few, draws), partial(_finish_likelihood, few, draws)
        found["likely"] = RankingMeasure(sums, SLICE, finish)
    return found


def _select_drawn_users(batches: Batches, draws: int | None = None) -> Batches:
    """The users of whom candidates were drawn; `draws`: as many."""
    for batch in batches:
        kept = pc.is_valid(batch.column("pool"))
        if draws is not None:
            kept = pc.and_(kept, pc.fill_null(pc.equal(batch.column("drawn"), draws), False))
        some = batch.filter(kept)
        if some.num_rows:
            yield some


def correctable_metrics(plan: MetricPlan) -> list[str]:
    """The metrics asked for that follow, as they are defined, from the rank of one item."""
    return [name for name in plan.rank_metrics if sampled.no_value(name, plan.definition) is None]


def uncorrected_checks(plan: MetricPlan, estimators: Sequence[str]) -> list[Check]:
    """A check for each metric that is not corrected, with the reason."""
    reasons = {name: sampled.no_value(name, plan.definition) for name in plan.rank_metrics}
    wanted = plan.definition.candidates == "uniform" and bool(estimators)
    return [
        Check(
            f"{name}: no corrected estimates", 1, None, "info", f"drawn candidates stay uncorrected: {why}"
        )
        for name, why in reasons.items()
        if wanted and why
    ]


def corrected_columns(plan: MetricPlan, estimators: Sequence[str]) -> list[MetricColumn]:
    """The columns of all estimators' values, in order."""
    asked = plan.table(correctable_metrics(plan))
    return [
        MetricColumn(metric, k, f"{definition};items=one_by_one", name)
        for name in estimators
        for metric, k, definition, _ in asked
    ]


# ------------------------------------------------------------------------------- by tables


def _table_totals(plan: MetricPlan, estimators: Sequence[str], batches: Batches) -> Batches:
    def totals(some: TruthSelection) -> MetricTotals:
        draws = _user_draws(some)
        values = {
            f"{name} {metric}": _user_estimates(name, metric, plan, some, draws)
            for name in estimators
            for metric in correctable_metrics(plan)
        }
        return metric_rows.sum_users(values, some.keys_u, plan.bootstrap)

    yield from metric_rows.sum_by_slice(_select_drawn_users(batches), totals)


def _sampled_ranks(some: TruthSelection, metric: str, plan: MetricPlan) -> tuple[Floats, Ints, Ints]:
    """Raw values of the users, (u, c), sampled ranks of their relevant items, (p,), and offsets, (u + 1,).

    Where the raw value is NaN the definition leaves the user out. All other truth items of a user are
    taken out of the way before an item is ranked.
    """
    rule = sampled.rank_definition(metric, plan.definition)
    relevant_p = Chunk(some.rankings, (1,), plan.definition).relevant_p
    rank_p = sampled.sampled_ranks(to_rankings(some.batch), rule)[some.kept][relevant_p]
    offsets = np.concatenate([[0], np.cumsum(relevant_p)])[some.rankings.offsets].astype(np.int64)
    raw = measure(some.rankings, [metric], plan.ks, plan.definition, plan.uncut)[metric]
    return raw, rank_p, offsets


def _user_draws(some: TruthSelection) -> list[tuple[int, int]]:
    """Candidates (the item and its pool, in few digits) and negatives drawn, of each user."""
    pool, drawn = some.column("pool"), some.column("drawn")
    return [(_round_to_digits(n + 1), m) for n, m in zip(pool.tolist(), drawn.tolist(), strict=True)]


def _round_to_digits(n: int) -> int:
    return int(round(n, min(0, DIGITS - len(str(n)))))


def _user_estimates(
    estimator: str, metric: str, plan: MetricPlan, some: TruthSelection, draws: list[tuple[int, int]]
) -> Floats:
    """The estimates of each user, (u, c); users are looked up in the table of their own draw.

    Users whom the definition leaves out, or gives the value of an empty list, are so here.
    """
    ks = tuple(plan.columns(metric))
    values, rank_p, offsets = _sampled_ranks(some, metric, plan)
    usual = ~np.isnan(values[:, 0]) & (np.diff(offsets) > 0) & (some.rankings.length > 0)
    for draw in sorted(set(draws)):
        table = _estimate_table(estimator, metric, ks, draw, plan.definition)
        mine = usual & np.array([other == draw for other in draws])
        # Other users' ranks may lie beyond this table; their values are not kept.
        values[mine] = sampled.user_values(offsets, np.minimum(rank_p, len(table)), table)[mine]
    return values


@lru_cache(maxsize=4096)
def _estimate_table(
    estimator: str,
    metric: str,
    ks: tuple[int | None, ...],
    draw: tuple[int, int],
    definition: Definition,
) -> Floats:
    n, m = draw
    return sampled.ESTIMATORS[estimator](metric, ks, sampled.NegativeDraw(n, min(m, n - 1)), definition)


# ------------------------------------------------------------------------------- by likelihood


def _group_metrics(plan: MetricPlan) -> list[list[str]]:
    """The metrics asked for, those together that look at the same ranks of the same users."""
    groups: dict[tuple[Definition, str], list[str]] = {}
    for metric in correctable_metrics(plan):
        rule = sampled.rank_definition(metric, plan.definition)
        groups.setdefault((rule, METRICS[metric].users_axis), []).append(metric)
    return list(groups.values())


def _task_histograms(plan: MetricPlan, draws: int, batches: Batches) -> Batches:
    """The likely ranks of all truth items together: each task sends histograms of sampled ranks."""

    def totals(some: TruthSelection) -> MetricTotals:
        counts = {group[0]: _user_histograms(some, group[0], plan, draws) for group in _group_metrics(plan)}
        return metric_rows.sum_users(counts, some.keys_u, plan.bootstrap)

    yield from metric_rows.sum_by_slice(_select_drawn_users(batches, draws), totals)


POOL_UNIT = 2.0**24
"""Pools are added in this unit, so that the sums of a bootstrap stay exact."""


def _user_histograms(some: TruthSelection, metric: str, plan: MetricPlan, m: int) -> Floats:
    """Relevant items of each user at each sampled rank 0 (not ranked) .. m + 1, and items x pool.

    NaN for users whom the metric's definition leaves out.
    """
    values, rank_p, offsets = _sampled_ranks(some, metric, plan)
    users, length = len(offsets) - 1, np.diff(offsets)
    cell_p = np.repeat(np.arange(users), length) * (m + 2) + rank_p
    counts = np.bincount(cell_p, minlength=users * (m + 2)).reshape(users, m + 2)
    found = np.column_stack([counts, length * (some.column("pool") / POOL_UNIT)]).astype(np.float64)
    found[np.isnan(values[:, 0])] = np.nan
    return found


def _finish_likelihood(plan: MetricPlan, draws: int, table: pa.Table) -> pa.Table:
    groups, width = _group_metrics(plan), draws + 3
    totals = metric_rows.add_up(table, width * len(groups), plan.bootstrap.replicates)
    mean_j, _, n_j = resampling.mean_and_error(totals.moments_c5)
    every = np.concatenate([mean_j[None, :], totals.boot_bc.astype(np.float64)])
    found: dict[str, tuple[Floats, int]] = {}
    for g, group in enumerate(groups):
        values = _likelihood_values(plan, group, draws, every[:, g * width : (g + 1) * width])
        found |= {metric: (value, int(n_j[g * width])) for metric, value in values.items()}
    values_bc = np.concatenate([found[metric][0] for metric in correctable_metrics(plan)], axis=1)
    columns = corrected_columns(plan, [LIKELIHOOD])
    low, high = resampling.percentile_interval(values_bc[1:], plan.bootstrap.level)
    enough = len(values_bc) > 2
    error = values_bc[1:].std(axis=0, ddof=1) if enough else np.full(len(columns), np.nan)
    counted = np.array([found[column.metric][1] for column in columns], dtype=np.int64)
    return metric_rows.metric_table(table, columns, (values_bc[0], error, low, high), counted)


def _likelihood_values(
    plan: MetricPlan, group: Sequence[str], draws: int, numbers_bj: Floats
) -> dict[str, Floats]:
    """The metrics under the likely ranks, (b, c) each; items that are not ranked are worth 0."""
    count_bj, pools = numbers_bj[:, :-1], numbers_bj[0, -1]
    ranked, items = count_bj[:, 1:].sum(axis=1), count_bj.sum(axis=1)
    if not items[0] > 0:
        return {metric: np.full((len(items), len(plan.columns(metric))), np.nan) for metric in group}
    draw = sampled.NegativeDraw(_round_to_digits(1 + round(pools * POOL_UNIT / items[0])), draws)
    ranks, share = sampled.rank_distribution(count_bj[:, 1:], draw, plan.ks)
    scale = np.divide(ranked, items, out=np.full(len(items), np.nan), where=items > 0)
    tables = {
        metric: sampled.rank_values(metric, ranks.rank, plan.columns(metric), draw.n, plan.definition)
        for metric in group
    }
    return {metric: share @ table * scale[:, None] for metric, table in tables.items()}
