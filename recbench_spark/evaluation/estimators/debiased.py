"""Estimates under exposure bias, side by side, from the rankings of one run.

Users add whole numbers (`kernels.ratios`, `kernels.resampling`), so that an estimate does not depend on
how they are spread; its interval resamples users, and with them its denominator and the sizes of the
strata. Uniformly exposed parts need no correction and are left out.

Axes: u users, c columns (metric x cut-off), s strata, r bootstrap replicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.errors import DataError
from recbench_spark.evaluation.estimators.exposure import Weights
from recbench_spark.evaluation.measure import RankingMeasure
from recbench_spark.evaluation.metrics import accuracy as metric_rows
from recbench_spark.evaluation.metrics.accuracy import (
    HOLDOUT,
    METRIC_ROWS,
    RANKING_COLUMNS,
    SLICE,
    MetricColumn,
)
from recbench_spark.evaluation.ranking.batches import split_by_part, to_rankings
from recbench_spark.kernels import ratios, resampling
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.estimators import exposure
from recbench_spark.kernels.estimators.exposure import (
    MODELLED,
    QUOTIENTS,
    EstimatorSettings,
    Parts,
    Rewards,
)
from recbench_spark.kernels.estimators.strata import StratumEdges, propose
from recbench_spark.kernels.metrics.accuracy import METRICS
from recbench_spark.kernels.ranking.rankings import Rankings
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.shared_arrays import flatten_lists

UNIFORM = ("open_loop",)
"""Parts in which every item was as likely to be shown as any other."""

STRATIFIED = "stratified"
SUM = "dcg"
"""Estimated beside `ndcg`, which is a quotient: what a reward model, or chances, can say of it."""

LARGEST_DISCOUNT = 1.5
"""No discount of a rank is larger: 1 / ln 2 = 1.44."""


@dataclass(frozen=True)
class EstimationPlan:
    """What is estimated.

    measured: metrics, cut-offs, definition, bootstrap. estimators: names, in order. exposed: the
    propensities, as definitions name them. strata: one for each number of them. weights: of each part.
    rewards: how a reward model is named, if there is one. compared: the metric and cut-off whose
    replicates are kept, by which a number of strata is proposed. n_items: of the catalogue.
    """

    measured: metric_rows.MetricPlan
    estimators: tuple[str, ...]
    settings: EstimatorSettings
    exposed: str
    strata: tuple[StratumEdges, ...]
    weights: Mapping[str, Weights]
    n_items: int
    rewards: str | None = None
    compared: tuple[str, int | None] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are corrected."""
        return tuple(part for part in self.weights if part not in UNIFORM)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of ranks, with `dcg` where NDCG is asked for."""
        names = self.measured.rank_metrics
        return (*names, SUM) if "ndcg" in names else names

    @property
    def weighted_estimators(self) -> tuple[str, ...]:
        """All estimators but `stratified`; `holdout` for what else has no row of it."""
        return (HOLDOUT, *(name for name in self.estimators if name != STRATIFIED))

    def reason(self, estimator: str, metric: str) -> str | None:
        """Why there is no value; None where there is one."""
        if estimator == STRATIFIED and metric == SUM:
            return "strata are combined for the metrics asked for"
        if estimator == STRATIFIED and not self.strata:
            return "all items are shown alike"
        definition, given = self.measured.definition, bool(self.rewards)
        return exposure.reason(estimator, metric, definition, self.settings, rewards=given)

    def estimable_metrics(self, estimator: str) -> list[str]:
        """The metrics of an estimator that have a value."""
        if estimator == HOLDOUT:
            return [SUM] if SUM in self.metrics else []
        return [metric for metric in self.metrics if self.reason(estimator, metric) is None]

    def columns(self, estimator: str, metric: str, cut: StratumEdges | None = None) -> list[MetricColumn]:
        """What the columns of an estimate are."""
        definition = self.measured.definition.describe(METRICS[_plain_metric(metric)].axes)
        definition = ";".join([definition, *self._settings(estimator, cut)])
        ks = exposure.columns(metric, self.measured.ks)
        return [MetricColumn(metric, k, definition, estimator) for k in ks]

    def table(self, estimator: str) -> list[MetricColumn]:
        """The columns of all metrics of a weighing estimator, in order."""
        return [
            column for name in self.estimable_metrics(estimator) for column in self.columns(estimator, name)
        ]

    def _settings(self, estimator: str, cut: StratumEdges | None) -> list[str]:
        """What an estimate depends on beside the metric's own axes."""
        given, exposed = self.settings, f"propensities={self.exposed}"
        model = f"rewards={self.rewards}"
        own = {
            HOLDOUT: [],
            "clipped_ips": [exposed, f"clip={given.clip:g}"],
            "dm": [model],
            "dr": [exposed, model],
            "switch_dr": [exposed, model, f"switch={given.switch:g}"],
            "dros": [exposed, model, f"shrink={given.shrink:g}"],
            STRATIFIED: [exposed, *([f"strata={cut.asked} {cut.kind}"] if cut else [])],
        }
        return own.get(estimator, [exposed])

    def scalings(self, estimator: str, metric: str, part: str) -> tuple[float, float]:
        """Powers of two that bring numerators and denominators near to 2^10 (see `ratios.scaling`)."""
        numerator, denominator = self._bounds(estimator, metric, self.weights[part])
        return ratios.scaling(numerator), ratios.scaling(denominator)

    def _bounds(self, estimator: str, metric: str, weights: Weights) -> tuple[float, float]:
        """What no user's parts exceed."""
        largest, longest = self._largest_weight(estimator, weights), float(weights.longest)
        total = LARGEST_DISCOUNT * longest * largest * max(_largest_gain(metric, weights.grade, self), 1.0)
        if estimator == exposure.POOLED:
            return total, longest * largest
        if estimator == "snips_global":
            # The ideal list of `ideal=k` has as many items as there are ranks.
            return total, total * (self.n_items if self.measured.definition.ideal == "k" else 1)
        if estimator in MODELLED:
            return 2 * total + LARGEST_DISCOUNT * max(self.measured.ks), 1.0
        return (1.0 if metric in QUOTIENTS else total), 1.0

    def _largest_weight(self, estimator: str, weights: Weights) -> float:
        given = self.settings
        bounds = {
            HOLDOUT: 1.0,
            "clipped_ips": min(weights.largest, given.clip),
            "snips_user": float(weights.longest),
            "switch_dr": min(weights.largest, given.switch),
            "dros": min(weights.largest, math.sqrt(given.shrink) / 2),
        }
        return bounds.get(estimator, weights.largest)


def _plain_metric(metric: str) -> str:
    return "ndcg" if metric == SUM else metric


def _largest_gain(metric: str, grade: float, plan: EstimationPlan) -> float:
    """The size of the largest gain of an item whose relevance is at most this in size."""
    kind = plan.measured.definition.gain
    if metric not in (SUM, "ndcg") or kind == "binary":
        return 1.0
    above = (
        grade - (plan.measured.definition.threshold or 0.0) + 1.0 if kind == "exponential_above" else grade
    )
    largest: float = grade if kind == "linear" else math.exp2(above)
    return largest


# ------------------------------------------------------------------------------- of all users

KEY = (*SLICE, "estimator", "strata", "metric")
TOTALS = (
    "part STRING, slice_key STRING, slice_value STRING, estimator STRING, strata INT, metric STRING, "
    "totals ARRAY<LONG>"
)
ESTIMATES = f"{METRIC_ROWS}, replicates ARRAY<DOUBLE>"
"""Rows of `metrics`, and the replicates of what is compared (else NULL)."""

EstimateKey = tuple[str, str, int | None, str | None]
"""Part, estimator; place of the strata in the plan and metric, where stratified."""


def compute_estimates(rankings: DataFrame, plan: EstimationPlan) -> DataFrame:
    """Rows of `metrics` for each estimator, metric and cut-off that has a value.

    Each task adds its users up; shuffled is a row per task, part and estimator (of strata: number of
    them and metric) of columns x replicates whole numbers.

    Args:
        rankings: rows of the table `rankings` of one run, with `propensity`; from `add_rewards`
            where the plan has a reward model.
        plan: what is estimated.
    """
    further = ["truth_rewards", "listed_rewards"] if plan.rewards else []
    narrow = rankings.where(F.col("part").isin(*plan.parts)).select(
        *RANKING_COLUMNS, "propensity", *further
    )
    totals = narrow.mapInArrow(partial(_task_totals, plan), TOTALS)

    # Spark reads the kind of function from these annotations, which a partial does not show.
    def finish(table: pa.Table) -> pa.Table:
        return _finish(plan, table)

    return totals.groupBy(*KEY).applyInArrow(finish, ESTIMATES)


def estimation_measure(plan: EstimationPlan) -> RankingMeasure:
    """What `compute_estimates` works out, of rankings of any origin."""
    return RankingMeasure(partial(_task_totals, plan), KEY, partial(_finish, plan))


def _task_totals(plan: EstimationPlan, batches: Batches) -> Batches:
    totals: dict[EstimateKey, Ints] = {}
    for batch in batches:
        for part, users in split_by_part(batch):
            if part not in plan.parts:
                continue
            for (estimator, n, metric), found in _totals(plan, part, users).items():
                place = (part, estimator, n, metric)
                totals[place] = totals[place] + found if place in totals else found
    for (part, estimator, n, metric), found in totals.items():
        row: dict[str, Any] = {"part": part, "slice_key": None, "slice_value": None}
        row |= {"estimator": estimator, "strata": n, "metric": metric, "totals": found}
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
    """Ints numbers to be added over users: for each estimator, and each number of strata and metric."""
    rankings, keys = to_rankings(users), users.column("user_key").to_numpy()
    propensity_p = flatten_lists(users.column("propensity"))[1]
    found: dict[tuple[str, int | None, str | None], Ints] = {}
    for name, sums in _weighted_totals(plan, part, rankings, propensity_p, keys, _rewards(users, plan)):
        found[name, None, None] = sums
    for n, cut in enumerate(plan.strata if STRATIFIED in plan.estimators else ()):
        for metric, sums in _stratified_totals(plan, cut, rankings, propensity_p, keys):
            found[STRATIFIED, n, metric] = sums
    return found


def _rewards(users: pa.RecordBatch, plan: EstimationPlan) -> Rewards | None:
    if not plan.rewards:
        return None
    offsets, listed = flatten_lists(users.column("listed_rewards"))
    return Rewards(offsets, listed, flatten_lists(users.column("truth_rewards"))[1])


# ------------------------------------------------------------------------------- by weights


def _weighted_totals(
    plan: EstimationPlan,
    part: str,
    rankings: Rankings,
    propensity_p: Floats,
    keys: Ints,
    rewards: Rewards | None,
) -> Iterator[tuple[str, Ints]]:
    """Of each estimator what `_finish_weighted` needs; bootstrap weights are drawn once for all."""
    made = _contributions(plan, rankings, propensity_p, rewards)
    scaled = {
        name: _join_parts(
            [
                _scale_parts(made[name, m], plan.scalings(name, m, part))
                for m in plan.estimable_metrics(name)
            ]
        )
        for name in plan.weighted_estimators
        if plan.estimable_metrics(name)
    }
    if not scaled:
        return
    boot, start = plan.measured.bootstrap, 0
    sums = exposure.replicate_sums(_join_parts(list(scaled.values())), keys, boot.replicates, boot.seed)
    for name, parts in scaled.items():
        end = start + parts.numerator.shape[1]
        moments = ratios.ratio_moments(parts.numerator, parts.denominator)
        sizes = resampling.exact_sums(_size_factor(parts))
        yield name, _flatten(moments, sizes, sums[:, :, start:end])
        start = end


def _contributions(
    plan: EstimationPlan, rankings: Rankings, propensity_p: Floats, rewards: Rewards | None
) -> dict[tuple[str, str], Parts]:
    measured, names = plan.measured, plan.weighted_estimators
    made: dict[tuple[str, str], Parts] = {}
    for some, metrics in ((names[:1], plan.estimable_metrics(HOLDOUT)), (names[1:], plan.metrics)):
        made |= exposure.contributions(
            rankings, propensity_p, metrics, measured.ks, measured.definition, some, plan.settings, rewards
        )
    return made


def _scale_parts(parts: Parts, scalings: tuple[float, float]) -> Parts:
    return Parts(parts.numerator * scalings[0], parts.denominator * scalings[1], _size_factor(parts))


def _size_factor(parts: Parts) -> Floats:
    """How many items each user has where the estimate is multiplied by their mean, else 1."""
    size = np.ones_like(parts.numerator) if parts.size is None else parts.size
    kept: Floats = np.where(np.isnan(parts.numerator), np.nan, size)
    return kept


def _join_parts(parts: list[Parts]) -> Parts:
    """The columns of several estimates side by side."""
    numerators = np.concatenate([part.numerator for part in parts], axis=1)
    denominators = np.concatenate([part.denominator for part in parts], axis=1)
    return Parts(numerators, denominators, np.concatenate([_size_factor(part) for part in parts], axis=1))


def _flatten(*arrays: Ints) -> Ints:
    return np.concatenate([array.ravel() for array in arrays])


def _split_totals(totals: Ints, *shapes: tuple[int, ...]) -> list[Ints]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    pieces = np.split(totals, ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


@dataclass(frozen=True)
class _Estimates:
    """Estimates: value, standard error, users and replicates, (c,) each but (r, c)."""

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
        # Columns 3 and 4 of the moments are the sum of the denominators.
        mean = resampling.from_sums(moments[:, 3:5]) / scalings[:, 1] / np.maximum(users, 1)
        means = resampling.replicate_means(sums[1], sums[3]) / scalings[:, 1]
        value, replicates = value * _pooled_factor(plan, mean), replicates * _pooled_factor(plan, means)
    # A product of a ratio and a mean: the delta method of a ratio alone is not its error.
    pooled = np.array([estimator == "snips_global" and x.metric in exposure.SUMS for x in columns])
    error = np.where(pooled | (estimator == exposure.POOLED), _replicate_stderr(replicates), error * back)
    return _Estimates(value, error, users, replicates)


def _pooled_factor(plan: EstimationPlan, mean_xc: Floats) -> Floats:
    """What turns the quotients of `ips_pooled` into estimates, from mean denominators, metric by metric."""
    found, start = np.empty_like(mean_xc), 0
    for metric in plan.estimable_metrics(exposure.POOLED):
        end = start + len(plan.columns(exposure.POOLED, metric))
        at = (..., slice(start, end))
        found[at] = exposure.pool_factor(metric, plan.measured.ks, plan.measured.definition, mean_xc[at])
        start = end
    return found


def _replicate_stderr(replicates_rc: Floats) -> Floats:
    """The standard deviation of the replicates, NaN where fewer than two are known."""
    known = (~np.isnan(replicates_rc)).sum(axis=0) > 1
    spread: Floats = np.full(known.shape, np.nan)
    if known.any():
        spread[known] = np.nanstd(replicates_rc[:, known], axis=0, ddof=1)
    return spread


# ------------------------------------------------------------------------------- by strata


def _stratified_totals(
    plan: EstimationPlan, cut: StratumEdges, rankings: Rankings, propensity_p: Floats, keys: Ints
) -> Iterator[tuple[str, Ints]]:
    """Of each metric what `_finish_stratified` needs; bootstrap weights are drawn once for all."""
    measured, boot, s = plan.measured, plan.measured.bootstrap, len(cut.items)
    values, sizes_us = exposure.measure_by_stratum(
        rankings, cut.assign(propensity_p), s, measured.rank_metrics, measured.ks, measured.definition
    )
    # Whoever has no truth in a stratum is not averaged there, as in a slice, also where empty users count.
    flat_values = {
        name: np.where(sizes_us[:, :, None] > 0, value, np.nan).reshape(len(keys), -1)
        for name, value in values.items()
    }
    together = np.concatenate([*flat_values.values(), sizes_us.astype(np.float64)], axis=1)
    sums, weights = resampling.bootstrap_sums(keys, together, boot.replicates, boot.seed)
    start = 0
    for name, value in flat_values.items():
        end = start + value.shape[1]
        known = ~np.isnan(value.reshape(len(keys), s, -1))
        yield (
            name,
            _flatten(
                known.any(axis=1).sum(axis=0),
                resampling.moments(value),
                sizes_us.sum(axis=0),
                sums[:, start:end],
                weights[:, start:end],
                sums[:, -s:],
            ),
        )
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
    """The estimates of one part and estimator (of strata: number of them and metric)."""
    rows = [row.values.to_numpy() for row in table.column("totals")]
    totals: Ints = np.stack(rows).sum(axis=0, dtype=np.int64)
    part, estimator, n, metric = (
        table.column(name)[0].as_py() for name in ("part", "estimator", "strata", "metric")
    )
    if n is None:
        columns, found = plan.table(estimator), _finish_weighted(plan, part, estimator, totals)
    else:
        columns = plan.columns(estimator, metric, plan.strata[n])
        found = _finish_stratified(plan, plan.strata[n], metric, totals)
    ends = resampling.percentile_interval(found.replicates, plan.measured.bootstrap.level)
    numbers = (found.value, found.error, *ends)
    kept = [
        found.replicates[:, c] if n is not None and plan.compared == (x.metric, x.k) else None
        for c, x in enumerate(columns)
    ]
    made = metric_rows.metric_table(table, columns, numbers, found.users)
    return made.append_column("replicates", pa.array(kept, pa.list_(pa.float64())))


# ------------------------------------------------------------------------------- what has no value


def missing_estimates(plan: EstimationPlan) -> list[tuple[MetricColumn, str]]:
    """The columns without a value, each with the reason."""
    return [
        (column, reason)
        for estimator in plan.estimators
        for metric in plan.metrics
        if (reason := plan.reason(estimator, metric)) and (estimator, metric) != (STRATIFIED, SUM)
        for column in plan.columns(estimator, metric)
    ]


# ------------------------------------------------------------------------------- number of strata


@dataclass(frozen=True)
class Proposal:
    """Estimates by number of strata, the intervals of the steps between them, and what is proposed."""

    strata: tuple[int, ...]
    values: tuple[float, ...]
    steps: tuple[tuple[float, float], ...]
    proposed: int | None


def propose_strata(rows: list[Any], plan: EstimationPlan, part: str) -> Proposal:
    """The number of strata from which on neighbouring numbers agree (`kernels.estimators.strata.propose`).

    Args:
        rows: rows `ESTIMATES`, of which those with replicates count.
        plan: what was estimated.
        part: of which part.
    """
    known = {row.definition: row for row in rows if row.part == part and row.replicates is not None}
    assert plan.compared is not None
    metric = plan.compared[0]
    named = {cut.asked: plan.columns(STRATIFIED, metric, cut)[0].definition for cut in plan.strata}
    found = {n: known[named[n]] for n in sorted(named) if named[n] in known}
    replicates = [np.array(row.replicates, dtype=np.float64) for row in found.values()]
    steps = [after - before for before, after in pairwise(replicates)]
    low, high = (
        resampling.percentile_interval(np.column_stack(steps), plan.measured.bootstrap.level)
        if steps
        else (np.zeros(0), np.zeros(0))
    )
    values = tuple(float("nan") if row.value is None else row.value for row in found.values())
    ends = tuple(zip(low.tolist(), high.tolist(), strict=True))
    return Proposal(tuple(found), values, ends, propose(list(found), low.tolist(), high.tolist()))


# ------------------------------------------------------------------------------- reward models


def add_rewards(rankings: DataFrame, rewards: DataFrame) -> DataFrame:
    """The rankings with `truth_rewards` and `listed_rewards`, and how many had none (they count 0).

    Shuffles the (user, item) rows of truth and lists by item (or user and item), then by user; a task
    holds the items of one user at a time.

    Args:
        rankings: rows of the table `rankings` with `top_items`.
        rewards: item_id[, user_id], reward: one row each.

    Returns:
        The rankings with truth_rewards, listed_rewards, unknown_rewards.
    """
    by: list[str] = [name for name in ("user_id", "item_id") if name in rewards.columns]
    listed = F.coalesce("top_items", F.array().cast("array<string>"))
    user = ("user_id", "part")
    places = rankings.select(*user, F.posexplode(F.concat("item_ids", listed)).alias("place", "item_id"))
    joined = places.join(rewards.select(*by, "reward"), by, "left")
    entry = F.struct("place", F.coalesce("reward", F.lit(0.0)).alias("reward"))
    grouped = joined.groupBy(*user).agg(
        F.sort_array(F.collect_list(entry)).alias("entries"),
        F.count_if(F.col("reward").isNull()).alias("unknown_rewards"),
    )
    every = F.coalesce(F.transform("entries", lambda e: e["reward"]), F.array().cast("array<double>"))
    n = F.size("item_ids")
    return (
        rankings.join(grouped, list(user), "left")
        .withColumns(
            {
                "truth_rewards": F.slice(every, F.lit(1), n),
                "listed_rewards": F.slice(every, n + 1, F.size(every)),
                "unknown_rewards": F.coalesce("unknown_rewards", F.lit(0)),
            }
        )
        .drop("entries")
    )


def check_rewards(rewards: DataFrame) -> None:
    """Refuse a reward model that gives no chances, or an item (of a user) twice. One aggregation.

    Raises:
        DataError: with how many rows are wrong.
    """
    by = [name for name in ("user_id", "item_id") if name in rewards.columns]
    value = F.col("reward")
    wrong = value.isNull() | F.isnan(value) | (value < 0) | (value > 1)
    (found,) = rewards.agg(
        F.count_if(wrong).alias("wrong"), (F.count("*") - F.count_distinct(F.struct(*by))).alias("twice")
    ).collect()
    if found.wrong or found.twice:
        raise DataError(
            f"rewards: {found.wrong} rows are not a chance within 0..1, {found.twice} stand twice",
            "one chance per item, or per item of a user",
        )
