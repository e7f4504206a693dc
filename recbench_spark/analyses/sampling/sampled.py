"""Corrected metrics from uniformly drawn candidates, beside raw values.

A raw value (estimator `holdout`) does not estimate the metric over all items. Here each truth item is
ranked against the drawn negatives alone, and the draw's table turns its sampled rank into an estimate of
the metric over all candidates (see `analyses.sampling.kernels.sampled`). A user's value is the mean over
the user's truth items, one by one. With one truth item per user, as under leave-one-out, it estimates the
metric itself; with several, it estimates recall where each item is ranked without the others, and the
definition has `items=one_by_one`. Only relevant items are averaged, by the definition's rules for users,
ties, discounts and denominators. A metric is not corrected if one item's rank does not determine it;
`check_uncorrected_metrics` reports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.sampling.kernels import sampled
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.definitions import Definition
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.accuracy import MetricColumn, MetricPlan, MetricTotals, TruthSelection
from recbench_spark.metrics.kernels.accuracy import METRICS, measure
from recbench_spark.metrics.kernels.chunk import Chunk, divide
from recbench_spark.ranking.batches import to_rankings
from recbench_spark.schemas import METRICS as METRICS_TABLE

LIKELIHOOD = "maximum_likelihood"
LIKELIHOOD_REPLICATES = 100
"""Replicates for this estimator. Each is a separate EM: a hundred take a second."""

DIGITS = 3
"""The number of candidates is rounded to so many digits: users with similar numbers share a table."""


def correction_measures(plan: MetricPlan, estimators: Sequence[str], draws: int) -> dict[str, Measure]:
    """Return measures for corrected metrics, by name.

    Each measure makes a row of `metrics` per estimator. Users without drawn candidates are left out.

    Args:
        plan: metrics (corrected where one rank determines them), cut-offs, definition, bootstrap.
        estimators: names in `analyses.sampling.kernels.sampled.ESTIMATORS`, and `maximum_likelihood`.
        draws: how many negatives most users have; the likelihood uses those users alone.
    """
    measures = {}
    table_estimators = [name for name in estimators if name != LIKELIHOOD]
    if table_estimators:
        columns = correction_columns(plan, table_estimators)
        finish = partial(metric_rows.finish_metrics, columns, plan.bootstrap)
        sums = partial(_table_totals, plan, table_estimators)
        measures["corrected"] = Measure(sums, metric_rows.SLICE, finish, DRAWN_COLUMNS, METRICS_TABLE)
    if LIKELIHOOD in estimators:
        replicates = min(plan.bootstrap.replicates, LIKELIHOOD_REPLICATES)
        small_plan = replace(plan, bootstrap=plan.bootstrap.model_copy(update={"replicates": replicates}))
        sums = partial(_task_histograms, small_plan, draws)
        finish = partial(_finish_likelihood, small_plan, draws)
        measures["likely"] = Measure(sums, metric_rows.SLICE, finish, DRAWN_COLUMNS, METRICS_TABLE)
    return measures


DRAWN_COLUMNS = (*metric_rows.RANKING_COLUMNS, "drawn", "pool")
"""Columns of `RANKED_USERS` read by corrections."""


def _select_drawn_users(batches: Batches, draws: int | None = None) -> Batches:
    """Select users with drawn candidates.

    With `draws`: only users with so many.
    """
    for batch in batches:
        selected = pc.is_valid(batch.column("pool"))
        if draws is not None:
            selected = pc.and_(selected, pc.fill_null(pc.equal(batch.column("drawn"), draws), False))
        rows = batch.filter(selected)
        if rows.num_rows:
            yield rows


def correctable_metrics(plan: MetricPlan) -> list[str]:
    """List requested metrics determined by one item's rank."""
    return [name for name in plan.rank_metrics if sampled.no_value(name, plan.definition) is None]


def check_uncorrected_metrics(plan: MetricPlan, estimators: Sequence[str]) -> list[Check]:
    """Return a check per uncorrected metric, with the reason."""
    checks = []
    if plan.definition.candidates == "uniform" and estimators:
        for name in plan.rank_metrics:
            if why := sampled.no_value(name, plan.definition):
                why = f"drawn candidates stay uncorrected: {why}"
                checks.append(Check(f"{name}: no corrected estimates", 1, None, "info", why))
    return checks


def correction_columns(plan: MetricPlan, estimators: Sequence[str]) -> list[MetricColumn]:
    """List all estimators' value columns, in order."""
    columns = plan.table(correctable_metrics(plan))
    return [
        MetricColumn(metric, k, f"{definition};items=one_by_one", name)
        for name in estimators
        for metric, k, definition, _ in columns
    ]


# ------------------------------------------------------------------------------- tables of estimates


def _table_totals(plan: MetricPlan, estimators: Sequence[str], batches: Batches) -> Batches:
    def totals(selection: TruthSelection) -> MetricTotals:
        draws = _user_draws(selection)
        values = {
            f"{name} {metric}": _user_estimates(name, metric, plan, selection, draws)
            for name in estimators
            for metric in correctable_metrics(plan)
        }
        return metric_rows.sum_users(values, selection.owners, plan.bootstrap, plan.definition.weigh)

    yield from metric_rows.sum_by_slice(_select_drawn_users(batches), totals)


def _sample_ranks(selection: TruthSelection, metric: str, plan: MetricPlan) -> tuple[Floats, Ints, Ints]:
    """Return users' raw values, sampled ranks and offsets.

    Raw values (u, c) are NaN where the definition leaves the user out. Ranks (p,) are those of relevant
    items, each ranked without the user's other truth items. Offsets are (u + 1,).
    """
    rule = sampled.rank_definition(metric, plan.definition)
    relevant_p = Chunk(selection.rankings, (1,), plan.definition).relevant_p
    rank_p = sampled.sampled_ranks(to_rankings(selection.batch), rule)[selection.selected_p][relevant_p]
    offsets = np.concatenate([[0], np.cumsum(relevant_p)])[selection.rankings.offsets].astype(np.int64)
    raw = measure(selection.rankings, [metric], plan.ks, plan.definition, plan.uncut)[metric]
    return raw, rank_p, offsets


def _user_draws(selection: TruthSelection) -> list[tuple[int, int]]:
    """Return each user's candidates and drawn negatives.

    Candidates are the item and its pool, rounded.
    """
    pool, drawn = selection.column("pool"), selection.column("drawn")
    return [(_round_to_digits(n + 1), m) for n, m in zip(pool.tolist(), drawn.tolist(), strict=True)]


def _round_to_digits(n: int) -> int:
    return int(round(n, min(0, DIGITS - len(str(n)))))


def _user_estimates(
    estimator: str, metric: str, plan: MetricPlan, selection: TruthSelection, draws: list[tuple[int, int]]
) -> Floats:
    """Estimate users' values, (u, c), by their draws' tables.

    Users whom the definition leaves out, or gives an empty list's value, keep their raw values; so do those
    without negatives to draw.
    """
    ks = tuple(plan.columns(metric))
    values, rank_p, offsets = _sample_ranks(selection, metric, plan)
    estimable = ~np.isnan(values[:, 0]) & (np.diff(offsets) > 0) & (selection.rankings.length > 0)
    for draw in sorted({draw for draw in draws if draw[1] > 0}):
        table = _estimate_table(estimator, metric, ks, draw, plan.definition)
        users = estimable & np.array([other == draw for other in draws])
        # Other users' ranks can exceed this table; their values are not used.
        values[users] = sampled.user_values(offsets, np.minimum(rank_p, len(table)), table)[users]
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


# ------------------------------------------------------------------------------- maximum likelihood


def _group_metrics(plan: MetricPlan) -> list[list[str]]:
    """Group requested metrics by equal ranks and users."""
    groups: dict[tuple[Definition, str], list[str]] = {}
    for metric in correctable_metrics(plan):
        rule = sampled.rank_definition(metric, plan.definition)
        groups.setdefault((rule, METRICS[metric].users_axis), []).append(metric)
    return list(groups.values())


def _task_histograms(plan: MetricPlan, draws: int, batches: Batches) -> Batches:
    """Sum histograms of sampled ranks in a task.

    The likely ranks are estimated from all truth items together.
    """

    def totals(selection: TruthSelection) -> MetricTotals:
        firsts = [group[0] for group in _group_metrics(plan)]
        counts = {name: _user_histograms(selection, name, plan, draws) for name in firsts}
        return metric_rows.sum_users(counts, selection.owners, plan.bootstrap, plan.definition.weigh)

    yield from metric_rows.sum_by_slice(_select_drawn_users(batches, draws), totals)


POOL_UNIT = 2.0**24
"""Unit for adding pools: bootstrap sums stay exact."""


def _user_histograms(selection: TruthSelection, metric: str, plan: MetricPlan, m: int) -> Floats:
    """Count each user's relevant items by sampled rank.

    Also returns items x pool. Sampled ranks run from 0 (not ranked) to m + 1. NaN for users whom the
    metric's definition leaves out.
    """
    values, rank_p, offsets = _sample_ranks(selection, metric, plan)
    users, length = len(offsets) - 1, np.diff(offsets)
    cell_p = np.repeat(np.arange(users), length) * (m + 2) + rank_p
    counts = np.bincount(cell_p, minlength=users * (m + 2)).reshape(users, m + 2)
    pools = length * (selection.column("pool") / POOL_UNIT)
    histograms = np.column_stack([counts, pools]).astype(np.float64)
    histograms[np.isnan(values[:, 0])] = np.nan
    return histograms


def _finish_likelihood(plan: MetricPlan, draws: int, table: pa.Table) -> pa.Table:
    groups, width = _group_metrics(plan), draws + 3
    totals = metric_rows.add_up(table, width * len(groups), plan.bootstrap.replicates)
    mean_j, _, n_j = resampling.mean_and_error(totals.moments_c5)
    numbers = np.concatenate([mean_j[None, :], totals.boot_bc.astype(np.float64)])
    estimates: dict[str, tuple[Floats, int]] = {}
    for g, group in enumerate(groups):
        values = _likelihood_values(plan, group, draws, numbers[:, g * width : (g + 1) * width])
        estimates |= {metric: (value, int(n_j[g * width])) for metric, value in values.items()}
    values_bc = np.concatenate([estimates[metric][0] for metric in correctable_metrics(plan)], axis=1)
    columns = correction_columns(plan, [LIKELIHOOD])
    level = plan.bootstrap.level
    enough = len(values_bc) > 2
    error = values_bc[1:].std(axis=0, ddof=1) if enough else np.full(len(columns), np.nan)
    users = np.array([estimates[column.metric][1] for column in columns], dtype=np.int64)
    low, high = resampling.hide_points(*resampling.percentile_interval(values_bc[1:], level), users, level)
    return metric_rows.metric_table(table, columns, (values_bc[0], error, low, high), users)


def _likelihood_values(
    plan: MetricPlan, group: Sequence[str], draws: int, numbers_bj: Floats
) -> dict[str, Floats]:
    """Return metrics under the likely ranks, (b, c) each.

    Unranked items count 0.
    """
    count_bj, pools = numbers_bj[:, :-1], numbers_bj[0, -1]
    ranked, items = count_bj[:, 1:].sum(axis=1), count_bj.sum(axis=1)
    if not items[0] > 0:
        return {metric: np.full((len(items), len(plan.columns(metric))), np.nan) for metric in group}
    draw = sampled.NegativeDraw(_round_to_digits(1 + round(pools * POOL_UNIT / items[0])), draws)
    ranks, share = sampled.rank_distribution(count_bj[:, 1:], draw, plan.ks)
    scale = divide(ranked, items, np.nan)[:, None]
    values = partial(sampled.rank_values, rank=ranks.rank, n=draw.n, definition=plan.definition)
    return {metric: share @ values(metric, ks=plan.columns(metric)) * scale for metric in group}
