"""Debiased estimates by several estimators, from one run's rankings.

They correct exposure bias. Users are added as whole numbers (`core.ratios`, `core.resampling`), so an
estimate does not depend on the partitioning. Its interval resamples users, and with them the denominator
and the strata's sizes. Uniformly exposed parts need no correction and are left out. Axes: u users, c
columns (metric x cut-off), s strata, r bootstrap replicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.analyses.exposure.estimation_plan import STRATIFIED, SUM, EstimationPlan
from recbench_spark.analyses.exposure.kernels import exposure
from recbench_spark.analyses.exposure.kernels.exposure import Parts, Rewards
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges, propose
from recbench_spark.core import ratios, resampling
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.metrics import accuracy as metric_rows
from recbench_spark.metrics.accuracy import HOLDOUT, RANKING_COLUMNS, SLICE, MetricColumn
from recbench_spark.metrics.list_rows import sum_lists
from recbench_spark.ranking.batches import split_by_part, to_rankings
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.schemas import METRICS
from recbench_spark.storage.shared_arrays import flatten_lists

# ------------------------------------------------------------------------------- sums over users

KEY = (*SLICE, "estimator", "strata", "metric")
EstimateKey = tuple[str, str, int | None, str | None]
"""Part, estimator; for `stratified` also the strata's index in the plan, and the metric."""


def estimation_measure(plan: EstimationPlan) -> Measure:
    """Return the measure for all estimates with a value.

    Its estimates are each metric and cut-off by each estimator. It reads rankings with `propensity`; with
    the columns from `rewards.add_rewards` where the plan has a reward model. It makes rows of `metrics`
    and, as `replicates`, those for `EstimationPlan.compared` (else NULL).
    """
    rewards = ("truth_rewards", "listed_rewards") if plan.rewards else ()
    needs = (*RANKING_COLUMNS, "propensity", *rewards)
    return Measure(partial(_task_totals, plan), KEY, partial(_finish, plan), needs, METRICS)


def _task_totals(plan: EstimationPlan, batches: Batches) -> Batches:
    totals: dict[EstimateKey, Ints] = {}
    for batch in batches:
        for part, users in split_by_part(batch):
            if part not in plan.parts:
                continue
            for (estimator, n, metric), sums in _totals(plan, part, users).items():
                key = (part, estimator, n, metric)
                totals[key] = totals[key] + sums if key in totals else sums
    for (part, estimator, n, metric), sums in totals.items():
        row: dict[str, Any] = {"part": part, "slice_key": None, "slice_value": None}
        row |= {"estimator": estimator, "strata": n, "metric": metric, "totals": sums}
        yield pa.RecordBatch.from_pylist([row], schema=_TOTALS)


_TOTALS = pa.schema(
    [
        *((name, pa.string()) for name in (*SLICE, "estimator")),
        ("strata", pa.int32()),
        ("metric", pa.string()),
        ("totals", pa.list_(pa.int64())),
    ]
)


def _totals(
    plan: EstimationPlan, part: str, users: pa.RecordBatch
) -> dict[tuple[str, int | None, str | None], Ints]:
    """Add up whole numbers over users.

    Each estimator has sums, and so has each number of strata and metric.
    """
    rankings, keys = to_rankings(users), users.column("user_key").to_numpy()
    propensity_p = flatten_lists(users.column("propensity"))[1]
    totals: dict[tuple[str, int | None, str | None], Ints] = {}
    parts = _contributions(plan, rankings, propensity_p, _rewards(users, plan))
    for name, sums in _sum_weighted(plan, part, parts, keys):
        totals[name, None, None] = sums
    for n, cut in enumerate(plan.strata if STRATIFIED in plan.estimators else ()):
        for metric, sums in _sum_strata(plan, cut, rankings, propensity_p, keys):
            totals[STRATIFIED, n, metric] = sums
    return totals


def _rewards(users: pa.RecordBatch, plan: EstimationPlan) -> Rewards | None:
    if not plan.rewards:
        return None
    offsets, listed = flatten_lists(users.column("listed_rewards"))
    return Rewards(offsets, listed, flatten_lists(users.column("truth_rewards"))[1])


# ------------------------------------------------------------------------------- weighted estimators


def _sum_weighted(
    plan: EstimationPlan, part: str, parts_by_metric: dict[tuple[str, str], Parts], keys: Ints
) -> Iterator[tuple[str, Ints]]:
    """Yield each estimator's totals for `_finish_weighted`.

    All share the bootstrap weights.
    """
    scaled = {}
    for name in plan.ratio_estimators:
        own = []
        for metric in plan.estimable_metrics(name):
            parts, (f, g) = parts_by_metric[name, metric], plan.scalings(name, metric, part)
            own.append(Parts(parts.numerator * f, parts.denominator * g, _size_factor(parts)))
        if own:
            scaled[name] = _join_parts(own)
    if not scaled:
        return
    boot, start = plan.measured.bootstrap, 0
    sums = exposure.replicate_sums(_join_parts(list(scaled.values())), keys, boot.replicates, boot.seed)
    for name, joined in scaled.items():
        end = start + joined.numerator.shape[1]
        moments = ratios.ratio_moments(joined.numerator, joined.denominator)
        sizes = resampling.exact_sums(_size_factor(joined))
        yield name, _concatenate(moments, sizes, sums[:, :, start:end])
        start = end


def _contributions(
    plan: EstimationPlan, rankings: Rankings, propensity_p: Floats, rewards: Rewards | None
) -> dict[tuple[str, str], Parts]:
    measured, names = plan.measured, plan.ratio_estimators
    parts: dict[tuple[str, str], Parts] = {}
    for estimators, metrics in ((names[:1], plan.estimable_metrics(HOLDOUT)), (names[1:], plan.metrics)):
        what = (rankings, propensity_p, metrics, measured.ks, measured.definition)
        parts |= exposure.contributions(
            *what, estimators=estimators, settings=plan.settings, rewards=rewards
        )
    return parts


def _size_factor(parts: Parts) -> Floats:
    """Return each user's number of items, or 1.

    The factor is 1 unless the estimate is multiplied by the mean number.
    """
    size = np.ones_like(parts.numerator) if parts.size is None else parts.size
    factor: Floats = np.where(np.isnan(parts.numerator), np.nan, size)
    return factor


def _join_parts(parts: list[Parts]) -> Parts:
    """Concatenate the columns of several estimates."""
    numerators = np.concatenate([part.numerator for part in parts], axis=1)
    denominators = np.concatenate([part.denominator for part in parts], axis=1)
    return Parts(numerators, denominators, np.concatenate([_size_factor(part) for part in parts], axis=1))


def _concatenate(*arrays: Ints) -> Ints:
    return np.concatenate([array.ravel() for array in arrays])


def _split_totals(totals: Ints, *shapes: tuple[int, ...]) -> list[Ints]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    pieces = np.split(totals, ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


@dataclass(frozen=True)
class _Estimates:
    """One part's values, with errors, users and replicates.

    Value, standard error and users, (c,) each, and replicates, (r, c).
    """

    value: Floats
    error: Floats
    users: Ints
    replicates: Floats


def _finish_weighted(plan: EstimationPlan, part: str, estimator: str, totals: Ints) -> _Estimates:
    columns, r = plan.table(estimator), plan.measured.bootstrap.replicates
    c = len(columns)
    moments, sizes, sums = _split_totals(totals, (c, 11), (c, 2), (4, r, c))
    scalings = np.array([plan.scalings(estimator, column.metric, part) for column in columns])
    back = scalings[:, 1] / scalings[:, 0]
    ratio, error, users = ratios.ratio_and_error(moments)
    mean_size = exposure.divide_sums(resampling.from_sums(sizes), users.astype(np.float64))
    value, replicates = ratio * back * mean_size, exposure.replicate_estimates(sums) * back
    if estimator == exposure.POOLED:
        # Moment columns 3 and 4 are the summed denominators.
        mean = resampling.from_sums(moments[:, 3:5]) / scalings[:, 1] / np.maximum(users, 1)
        means = resampling.replicate_means(sums[1], sums[3]) / scalings[:, 1]
        value, replicates = value * _pool_factors(plan, mean), replicates * _pool_factors(plan, means)
    # These are products of a ratio and a mean: the ratio's delta method alone is not their error.
    pooled = np.array([estimator == "snips_global" and x.metric in exposure.SUMS for x in columns])
    error = np.where(pooled | (estimator == exposure.POOLED), _replicate_stderr(replicates), error * back)
    return _Estimates(value, error, users, replicates)


def _pool_factors(plan: EstimationPlan, mean_xc: Floats) -> Floats:
    """Return factors from quotients to `ips_pooled` estimates.

    The factors follow from mean denominators.
    """
    factors, start = np.empty_like(mean_xc), 0
    for metric in plan.estimable_metrics(exposure.POOLED):
        end = start + len(plan.columns(exposure.POOLED, metric))
        at = (..., slice(start, end))
        factors[at] = exposure.pool_factor(metric, plan.measured.ks, plan.measured.definition, mean_xc[at])
        start = end
    return factors


def _replicate_stderr(replicates_rc: Floats) -> Floats:
    """Return the replicates' standard deviation; NaN below two."""
    estimable = (~np.isnan(replicates_rc)).sum(axis=0) > 1
    spread: Floats = np.full(estimable.shape, np.nan)
    if estimable.any():
        spread[estimable] = np.nanstd(replicates_rc[:, estimable], axis=0, ddof=1)
    return spread


# ------------------------------------------------------------------------------- stratified estimator


def _sum_strata(
    plan: EstimationPlan, cut: StratumEdges, rankings: Rankings, propensity_p: Floats, keys: Ints
) -> Iterator[tuple[str, Ints]]:
    """Yield each metric's totals for `_finish_stratified`.

    All share the bootstrap weights.
    """
    measured, boot, s = plan.measured, plan.measured.bootstrap, len(cut.items)
    strata_p, metrics = cut.assign(propensity_p), measured.rank_metrics
    values, sizes_us = exposure.measure_by_stratum(
        rankings, strata_p, s, metrics, measured.ks, definition=measured.definition
    )
    # Users without truth in a stratum are not averaged there, as in a slice, even where empty users count.
    flat_values = {
        name: np.where(sizes_us[:, :, None] > 0, value, np.nan).reshape(len(keys), -1)
        for name, value in values.items()
    }
    columns = np.concatenate([*flat_values.values(), sizes_us.astype(np.float64)], axis=1)
    sums, weights = resampling.bootstrap_sums(keys, columns, boot.replicates, boot.seed)
    start = 0
    for name, value in flat_values.items():
        end = start + value.shape[1]
        has_value = ~np.isnan(value.reshape(len(keys), s, -1))
        users, sizes = has_value.any(axis=1).sum(axis=0), sizes_us.sum(axis=0)
        drawn = (sums[:, start:end], weights[:, start:end], sums[:, -s:])
        yield name, _concatenate(users, resampling.moments(value), sizes, *drawn)
        start = end


def _finish_stratified(plan: EstimationPlan, cut: StratumEdges, metric: str, totals: Ints) -> _Estimates:
    r, s = plan.measured.bootstrap.replicates, len(cut.items)
    c = len(plan.columns(STRATIFIED, metric))
    users, moments, sizes, sums, weights, boot_sizes = _split_totals(
        totals, (c,), (s * c, 5), (s,), (r, s * c), (r, s * c), (r, s)
    )
    mean_sc = resampling.mean_and_error(moments)[0].reshape(s, c)
    means_rsc = resampling.replicate_means(sums, weights).reshape(r, s, c)
    value, _ = exposure.combine_strata(mean_sc, sizes)
    replicates, _ = exposure.combine_strata(means_rsc, boot_sizes)
    return _Estimates(value, _replicate_stderr(replicates), users, replicates)


# ------------------------------------------------------------------------------- finishing


def _finish(plan: EstimationPlan, table: pa.Table) -> pa.Table:
    """Compute the estimates for one part and estimator.

    For strata: for one number of strata and one metric.
    """
    totals = sum_lists(table, "totals", (-1,))
    key = ("part", "estimator", "strata", "metric")
    part, estimator, n, metric = (table.column(name)[0].as_py() for name in key)
    if n is None:
        columns, estimates = plan.table(estimator), _finish_weighted(plan, part, estimator, totals)
    else:
        columns = plan.columns(estimator, metric, plan.strata[n])
        estimates = _finish_stratified(plan, plan.strata[n], metric, totals)
    level = plan.measured.bootstrap.level
    bounds = resampling.percentile_interval(estimates.replicates, level)
    interval = resampling.hide_points(*bounds, estimates.users, level)
    numbers = (estimates.value, estimates.error, *interval)
    replicates = [
        estimates.replicates[:, c] if n is not None and plan.compared == (x.metric, x.k) else None
        for c, x in enumerate(columns)
    ]
    rows_of_metrics = metric_rows.metric_table(table, columns, numbers, estimates.users)
    return rows_of_metrics.append_column("replicates", pa.array(replicates, pa.list_(pa.float64())))


# ------------------------------------------------------------------------------- missing values


def missing_estimates(plan: EstimationPlan) -> list[tuple[MetricColumn, str]]:
    """List columns without a value, each with the reason."""
    missing = []
    for estimator, metric in product(plan.estimators, plan.metrics):
        reason = plan.reason(estimator, metric)
        if reason and (estimator, metric) != (STRATIFIED, SUM):
            missing += [(column, reason) for column in plan.columns(estimator, metric)]
    return missing


# ------------------------------------------------------------------------------- number of strata


@dataclass(frozen=True)
class Proposal:
    """Estimates by number of strata, and the proposed number.

    steps: an interval for each step to the next number of strata.
    """

    strata: tuple[int, ...]
    values: tuple[float, ...]
    steps: tuple[tuple[float, float], ...]
    proposed: int | None


def propose_strata(rows: list[Any], plan: EstimationPlan, part: str) -> Proposal:
    """Propose the number of strata from which neighbours agree.

    See `analyses.sampling.kernels.strata.propose`.

    Args:
        rows: results of `estimation_measure`; only those with replicates are used.
        plan: plan for the estimates.
        part: held-out part.
    """
    by_definition = {row.definition: row for row in rows if row.part == part and row.replicates is not None}
    assert plan.compared is not None
    metric = plan.compared[0]
    definitions = {
        cut.requested: plan.columns(STRATIFIED, metric, cut)[0].definition for cut in plan.strata
    }
    estimates = {n: by_definition[text] for n, text in sorted(definitions.items()) if text in by_definition}
    replicates = [np.array(row.replicates, dtype=np.float64) for row in estimates.values()]
    steps = [after - before for before, after in pairwise(replicates)]
    low, high = np.zeros(0), np.zeros(0)
    if steps:
        level = plan.measured.bootstrap.level
        low, high = resampling.percentile_interval(np.column_stack(steps), level)
    values = tuple(float("nan") if row.value is None else row.value for row in estimates.values())
    bounds = tuple(zip(low.tolist(), high.tolist(), strict=True))
    return Proposal(tuple(estimates), values, bounds, propose(list(estimates), low.tolist(), high.tolist()))
