"""Metrics under exposure bias: each user's part in an estimate.

An estimate is sum(numerator) / sum(denominator) over users (`Parts`), so a bootstrap over users resamples
the denominator too; if an estimator averages users, the denominator is 1. A truth item has the weight
w = 1 / p. For quotients p is its chance to be shown. For sums, and ips_pooled, p is its chance to be in the
evaluated part if it is no training pair: for a test part with a share s of the shown pairs this is
s p / (1 - (1 - s) p), and with the log's p sums are s times too small. With all p = 1 every weighted
estimator is the holdout, except the quotients of snips_global and ips_pooled, which pool users.

holdout       the plain metric
ips           each gain w in place of 1, in the metric and in its own denominator: recall is divided
              by the user's weight, NDCG by the weighted gains' ideal, precision by k
              (Jadidinejad et al. 2021). Sums need chances, the quotients do not.
clipped_ips   the same with min(w, clip)
snips_user    w scaled to mean 1 within the user (Yang et al. 2018), as if items were drawn alike
snips_global  w scaled to mean 1 over all users: sum(w a) / sum(w) x mean number of items;
              quotients: summed numerators / summed denominators
ips_pooled    quotients alone, both sides pooled over users: the mean of sum(w a) / the best list's value
              for a user with mean(sum(w)) relevant items; linear between whole numbers of items
              (see `ideal_value`)
dm            the reward model alone: discount x expected reward, summed over the list
dr            dm + w (reward - expected) x discount, summed over the truth
switch_dr     dr with w only if w <= switch, else 0 (Wang, Agarwal and Dudik 2017)
dros          dr with shrink w / (w^2 + shrink) (Su et al. 2020)
stratified    |Q_s| / |Q| M(Q_s), summed over strata (see `measure_by_stratum` and `combine_strata`)

NDCG under weights. For ips, clipped_ips, snips_user and snips_global the ideal list has the shown relevant
items, at any weight: it is shorter than the user's own, and items with large weights come first. If
exposure follows popularity, such an NDCG can be farther from the truth than the holdout's
(`docs/measured/exposure_study.md`). The sums (hits, precision, DCG) have no ideal; ips leaves no bias.
ips_pooled estimates, at binary gains,

    (sum_u DCG_u / U) / I(sum_u n_u / U),   I(n) = the DCG of n relevant items on the first ranks,

for all U users and their n_u relevant items, shown or not. Numerator and mean number are unbiased under
chances, so the quotient converges to this as users grow, even if each was shown little. It is the mean
NDCG over users if all have equally many relevant items, or at least k each; else it differs by as much as
NDCG and I(n_u) vary together, and by I(mean) - mean(I) >= 0, since I is concave. A user without a relevant
item in the log counts under any `empty_users`: a relevant item may not have been shown.

Axes: u users, p truth items, c cut-offs (the last uncut), s strata, n list entries, x weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from recbench_spark.analyses.exposure.kernels.propensities import check
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.definitions import Definition, ExposureEstimator
from recbench_spark.core.resampling import bootstrap_sums, replicate_means, replicate_ratios
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.metrics.kernels.accuracy import METRICS, cutoffs, measure
from recbench_spark.metrics.kernels.chunk import Chunk, Weight, divide
from recbench_spark.ranking.kernels.rankings import Rankings

ESTIMATORS = ("holdout", *get_args(ExposureEstimator))
"""Names in the column `estimator`."""

WEIGHTED = ("ips", "clipped_ips", "snips_user", "snips_global")
POOLED = "ips_pooled"
MODELLED = ("dm", "dr", "switch_dr", "dros")
SUMS = ("hit", "precision", "dcg")
"""Metrics adding up over items: hits (as a number), hits / k, discounted gain."""
QUOTIENTS = ("recall", "ndcg")
"""Metrics divided by the best possible value, weighted as well."""


@dataclass(frozen=True)
class EstimatorSettings:
    """Settings for estimators with cut or shrunk weights.

    clip: largest weight in clipped_ips. switch: largest weight trusted by switch_dr. shrink: lambda in
    dros. chances: true if propensities are chances (see `propensities.CHANCES`).
    """

    clip: float = 100.0
    switch: float = 100.0
    shrink: float = 100.0
    chances: bool = True


@dataclass(frozen=True)
class Rewards:
    """A model's chances that users like listed and truth items.

    offsets: (u + 1,), list bounds; listed: (n,), best first; truth: (p,).
    """

    offsets: Ints
    listed: Floats
    truth: Floats


@dataclass(frozen=True)
class Parts:
    """Users' parts: sum(numerator) / sum(denominator) [x mean(size)] is the estimate.

    All float64 (u, c), columns as `columns` says, NaN for users left out; size: None if it is 1. pooled:
    turns the mean denominator into a factor for the quotient (see `pool_factor`).
    """

    numerator: Floats
    denominator: Floats
    size: Floats | None = None
    pooled: Callable[[Floats], Floats] | None = None

    def estimate(self) -> Floats:
        """Return these users' estimate, (c,), by plain float sums."""
        total = np.nansum(self.denominator, axis=0)
        ratio = divide_sums(np.nansum(self.numerator, axis=0), total)
        if self.pooled is not None:
            counted = (~np.isnan(self.denominator)).sum(axis=0).astype(np.float64)
            return ratio * self.pooled(divide_sums(total, counted))
        if self.size is None:
            return ratio
        users = (~np.isnan(self.size)).sum(axis=0).astype(np.float64)
        return ratio * divide_sums(np.nansum(self.size, axis=0), users)


def replicate_sums(parts: Parts, keys: npt.NDArray[Any], replicates: int, seed: int) -> Ints:
    """Sum each bootstrap replicate, int64 (4, r, c).

    Sums are to be added over batches of users. The rows are numerators, denominators, sizes, and drawn
    users. They are rounded to 2^-30: numerators and denominators come multiplied by powers of two, the same
    for all batches, from all users' largest part by `ratios.scaling`.
    """
    size = np.ones_like(parts.numerator) if parts.size is None else parts.size
    size = np.where(np.isnan(parts.numerator), np.nan, size)
    values = np.concatenate([parts.numerator, parts.denominator, size], axis=1)
    sums, totals = bootstrap_sums(keys, values, replicates, seed)
    c = size.shape[1]
    return np.stack([sums[:, :c], sums[:, c : 2 * c], sums[:, 2 * c :], totals[:, :c]])


def replicate_estimates(sums: Ints, pooled: Callable[[Floats], Floats] | None = None) -> Floats:
    """Return each replicate's estimate, (r, c).

    It is multiplied by the numerators' scaling over the denominators'. sums: added `replicate_sums`;
    `pooled` as in `Parts`, for parts that are not scaled.
    """
    ratio = replicate_ratios(sums[0], sums[1])
    if pooled is not None:
        return ratio * pooled(replicate_means(sums[1], sums[3]))
    return ratio * replicate_means(sums[2], sums[3])


def divide_sums(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Floats:
    """Divide sums by sums, NaN if the denominator is 0."""
    out: Floats = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def columns(metric: str, ks: Sequence[int]) -> list[int | None]:
    """Return the cut-offs for a metric's columns.

    `dcg` has an uncut one, as `ndcg` has.
    """
    return cutoffs("ndcg" if metric == "dcg" else metric, ks)


def reason(
    estimator: str,
    metric: str,
    definition: Definition,
    settings: EstimatorSettings,
    *,
    rewards: bool = False,
) -> str | None:
    """Return why an estimator has no value for a metric.

    The value is then NULL. None: it has a value.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"unknown estimator '{estimator}'", nearest(estimator, ESTIMATORS))
    if estimator in ("holdout", "stratified"):
        return None
    if metric not in (*SUMS, *QUOTIENTS) or (metric == "hit" and definition.hit == "any"):
        return "the metric is no sum over items"
    if metric == "ndcg" and definition.ideal == "min_relevant_list":
        return "its ideal list is cut at the length of each list"
    if estimator in MODELLED:
        return _model_reason(metric, definition, rewards)
    if estimator == POOLED:
        return _pool_reason(metric, definition, settings)
    return _weights_reason(estimator, metric, definition, settings)


def _weights_reason(
    estimator: str, metric: str, definition: Definition, settings: EstimatorSettings
) -> str | None:
    if metric == "ndcg" and definition.negative_grades != "clip":
        return "gains below 0 have no weighted ideal"
    if metric == "precision" and definition.precision_by == "min_k_relevant":
        return "divided by the number of relevant items, which is not known under exposure"
    if estimator in ("ips", "clipped_ips") and metric in SUMS and not settings.chances:
        return "the propensities are known up to a factor only"
    return None


def _pool_reason(metric: str, definition: Definition, settings: EstimatorSettings) -> str | None:
    if metric in SUMS:
        return "a sum has no ideal: ips"
    if metric == "ndcg" and definition.gain != "binary":
        return "the ideal list of a mean user is known for gains of 0 and 1 alone"
    if not settings.chances:
        return "the propensities are known up to a factor only"
    return None


def _model_reason(metric: str, definition: Definition, rewards: bool) -> str | None:
    if not rewards:
        return "no reward model is given"
    if metric in QUOTIENTS:
        return "divided by what is relevant, of which a reward model says nothing"
    if metric == "precision" and definition.precision_by != "k":
        return "only precision by k is a sum over items"
    if metric == "dcg" and definition.gain != "binary":
        return "the reward model gives chances, not grades"
    return None


def contributions(
    rankings: Rankings,
    propensity_p: Floats,
    metrics: Sequence[str],
    ks: Sequence[int],
    definition: Definition,
    *,
    estimators: Iterable[str],
    settings: EstimatorSettings,
    rewards: Rewards | None = None,
) -> dict[tuple[str, str], Parts]:
    """Return the parts for every (estimator, metric) with a value.

    `reason` explains the missing ones. Users are those whom the definition averages: with
    `empty_users=leave_out` a user without a relevant item in the log does not count, although such an item
    may exist and not have been shown. Estimators of sums are unbiased with `empty_users=zero`, and
    ips_pooled always counts such users. Values do not depend on the batch. Memory: (p, c) numbers.

    Raises:
        DataError: propensities are not positive.
    """
    check(propensity_p)
    work = _UserEstimates(Chunk(rankings, tuple(ks), definition), propensity_p, settings, rewards)
    is_estimable = partial(reason, definition=definition, settings=settings, rewards=rewards is not None)
    wanted = [(e, m) for e in estimators if e != "stratified" for m in metrics]
    return {pair: work.parts(*pair) for pair in wanted if is_estimable(*pair) is None}


def addends(
    rankings: Rankings, metrics: Sequence[str], ks: Sequence[int], definition: Definition
) -> dict[str, Floats]:
    """Return each truth item's part in its user's metric, (p, c).

    NaN for users left out. A user's items sum to the metric; a quotient's denominator is fixed. Summed by
    item (or user), the differences between two models are the candidates for the smallest flips.

    Raises:
        ConfigError: a metric is no such sum.
    """
    settings = EstimatorSettings()
    for name in metrics:
        if reason("snips_global", name, definition, settings) is not None:
            raise ConfigError(
                f"'{name}' is not a sum over items", "hit (hit=count), precision, recall, dcg, ndcg"
            )
    chunk = Chunk(rankings, tuple(ks), definition)
    work = _UserEstimates(chunk, np.ones(len(rankings.relevance)), settings, None)
    return {name: work.addends(name) for name in metrics}


@dataclass(frozen=True)
class _UserEstimates:
    """Some users' rankings with propensities, and shared quantities.

    Estimators share these quantities.
    """

    chunk: Chunk
    propensity: Floats
    settings: EstimatorSettings
    rewards: Rewards | None

    def parts(self, estimator: str, metric: str) -> Parts:
        """Return one estimator's parts for one metric.

        The definition says which users are left out.
        """
        if estimator == "holdout" and metric != "dcg":
            value = self.chunk.values(METRICS[metric])
            return Parts(value, _ones(value))
        if estimator == POOLED:
            return self._pool_over_users(metric)
        values = self._weigh_parts if estimator in WEIGHTED else self._sum
        keep = self._user_mask(metric)
        cuts = slice(None, len(columns(metric, self.chunk.ks)))
        parts = values(estimator, metric)
        cut = [None if part is None else np.where(keep, part, np.nan)[:, cuts] for part in parts]
        return Parts(*cut)  # type: ignore[arg-type]

    def addends(self, metric: str) -> Floats:
        """Return each truth item's part in its user's metric, (p, c)."""
        gain_p, user_p = self._gain(metric), self.chunk.user_p
        value = gain_p[:, None] * self._shares(metric)
        if metric == "precision":
            value = divide(value, self.chunk.precision_length[user_p])
        if metric in QUOTIENTS:
            value = divide(value, self._most(metric, gain_p)[user_p])
        value = np.where(self._user_mask(metric)[user_p], value, np.nan)
        return value[:, : len(columns(metric, self.chunk.ks))]

    def _weigh_parts(self, estimator: str, metric: str) -> tuple[Floats, Floats, Floats | None]:
        weight_p = self._weights(estimator)
        numerator = self._total(metric, weight_p * self._gain(metric))
        if estimator == "snips_global":
            return self._pool_ratio(metric, weight_p, numerator)
        if metric in QUOTIENTS:
            most = self._most(metric, weight_p * self._gain(metric))
            numerator = divide(numerator, most, empty=np.nan if metric == "ndcg" else 0.0)
            numerator[self.chunk.relevant == 0] = 0.0
        return numerator, _ones(numerator), None

    def _pool_ratio(
        self, metric: str, weight_p: Floats, numerator: Floats
    ) -> tuple[Floats, Floats, Floats | None]:
        """Return one quotient of sums in place of a mean.

        The sums and the mean are over users.
        """
        if metric in QUOTIENTS:
            return numerator, self._most(metric, weight_p * self._gain(metric)), None
        counted = (weight_p * self._count_weight, self._count_weight)
        weight, size = (np.broadcast_to(self._by_user(part)[:, None], numerator.shape) for part in counted)
        return numerator, weight, size

    def _pool_over_users(self, metric: str) -> Parts:
        """Return weighted hits or gains, and estimated relevant items."""
        weight_p = 1.0 / self.propensity
        value = self._total(metric, weight_p * self._gain(metric))
        number = np.broadcast_to(self._by_user(weight_p * self._count_weight)[:, None], value.shape)
        keep = self._eligible_users(metric)[:, None]
        cuts = slice(None, len(columns(metric, self.chunk.ks)))
        value, number = (np.where(keep, part, np.nan)[:, cuts] for part in (value, number))
        factor = partial(pool_factor, metric, self.chunk.ks, self.chunk.definition)
        return Parts(value, number, pooled=factor)

    def _weights(self, estimator: str) -> Floats:
        weight = 1.0 / self.propensity
        if estimator == "clipped_ips":
            return np.minimum(weight, self.settings.clip)
        if estimator == "snips_user":
            total, size = self._by_user(weight * self._count_weight), self._by_user(self._count_weight)
            return weight * divide(size, total)[self.chunk.user_p]
        return weight

    def _sum(self, estimator: str, metric: str) -> tuple[Floats, Floats, Floats | None]:
        """Return holdout DCG, and estimators with a reward model."""
        if self.rewards is None or estimator == "holdout":
            value = self._total(metric, self._gain(metric))
        else:
            value = self._model_value(metric)
            if estimator != "dm":
                w_p = correction_weights(estimator, 1.0 / self.propensity, self.settings)
                value = value + self._total(metric, w_p * (self._gain(metric) - self.rewards.truth))
        return value, _ones(value), None

    def _model_value(self, metric: str) -> Floats:
        """Sum weight(rank) x expected reward over the list, (u, c).

        Uncut: NaN for cut lists.
        """
        assert self.rewards is not None
        length = np.diff(self.rewards.offsets)
        user = np.repeat(np.arange(len(length)), length)
        place = np.arange(len(user)) - self.rewards.offsets[user]
        share_nc = shares(place, np.ones_like(place), self.chunk.ks, self._discount(metric))
        value = _sum_by(user, self.rewards.listed[:, None] * share_nc, len(length))
        value[length < self.chunk.length, -1] = np.nan
        return divide(value, self.chunk.precision_length) if metric == "precision" else value

    def _total(self, metric: str, amount_p: Floats) -> Floats:
        """Sum amount x expected rank weight over the truth, (u, c)."""
        value = self._by_user(amount_p[:, None] * self._shares(metric))
        return divide(value, self.chunk.precision_length) if metric == "precision" else value

    def _most(self, metric: str, amount_p: Floats) -> Floats:
        """Return a quotient's denominator: the best list's value, (u, c)."""
        definition = self.chunk.definition
        if metric == "recall" and definition.recall_by == "relevant":
            total = self._by_user(amount_p)[:, None]
            return np.broadcast_to(total, (len(total), len(self.chunk.ks) + 1))
        if metric == "ndcg" and definition.ideal == "k":
            return self._ideal_at_k(amount_p)
        order = np.lexsort((-amount_p, self.chunk.user_p))
        place = np.arange(len(order)) - self.chunk.rankings.offsets[self.chunk.user_p]
        share_pc = shares(place, np.ones_like(place), self.chunk.ks, self._discount(metric))
        best = self._by_user(amount_p[order, None] * share_pc)
        longest = metric == "ndcg" and definition.ideal == "relevant"
        return best[:, [-1] * best.shape[1]] if longest else best

    def _ideal_at_k(self, amount_p: Floats) -> Floats:
        most = np.zeros(len(self.chunk.length))
        np.maximum.at(most, self.chunk.user_p, amount_p)
        ranks = np.arange(1.0, self.chunk.k_uc.max(initial=0.0) + 1)
        ones = np.concatenate([[0.0], np.cumsum(self.chunk.discount(ranks))])
        best: Floats = most[:, None] * ones[self.chunk.k_uc.astype(np.int64)]
        return best

    def _gain(self, metric: str) -> Floats:
        if metric in ("dcg", "ndcg"):
            return self.chunk.gain_p
        return self.chunk.relevant_p.astype(np.float64)

    def _discount(self, metric: str) -> Weight:
        return self.chunk.discount if metric in ("dcg", "ndcg") else np.ones_like

    def _shares(self, metric: str) -> Floats:
        return self._gain_shares if metric in ("dcg", "ndcg") else self._hit_shares

    @cached_property
    def _hit_shares(self) -> Floats:
        return truth_shares(self.chunk, np.ones_like, expected=self.chunk.definition.ties == "expected")

    @cached_property
    def _gain_shares(self) -> Floats:
        expected = "expected" in (self.chunk.definition.ties, self.chunk.definition.ndcg_ties)
        return truth_shares(self.chunk, self.chunk.discount, expected=expected)

    @cached_property
    def _count_weight(self) -> Floats:
        """Return 1 for truth items with relevance or gain, else 0."""
        counted: Bools = self.chunk.relevant_p | (self.chunk.gain_p != 0)
        return counted.astype(np.float64)

    def _by_user(self, amount: Floats) -> Floats:
        return _sum_by(self.chunk.user_p, amount, len(self.chunk.length))

    def _user_mask(self, metric: str) -> Bools:
        """Mark users whose plain metric is a number, (u, 1)."""
        name = "ndcg" if metric == "dcg" else metric
        rule = METRICS[name].users_axis
        counted: Bools = ~np.isnan(self.chunk.values(replace(METRICS["recall"], users_axis=rule)))
        return counted[:, :1]

    def _eligible_users(self, metric: str) -> Bools:
        """Mark users who would count with a relevant item, (u,).

        The item would be in the log.
        """
        definition = self.chunk.definition
        users = definition.ndcg_users if metric == "ndcg" else "same"
        users = definition.users if users == "same" else users
        return np.ones_like(self.chunk.length, np.bool_) if users == "truth" else self.chunk.length > 0


LONGEST_IDEAL = 1 << 24
"""Most relevant items for a mean user; above it there is no value."""


def ideal_value(metric: str, number_xc: Floats, ks: Sequence[int], definition: Definition) -> Floats:
    """Return the best list's value for n relevant items.

    Relevant items have gain 1; values are linear between whole numbers.

    Args:
        metric: recall or ndcg.
        number_xc: numbers of relevant items, columns as `columns` says.
        ks: cut-offs.
        definition: gain, discount and length for the ideal list.
    """
    cuts = np.array([np.inf if k is None else k for k in columns(metric, ks)])
    to_k = definition.recall_by if metric == "recall" else definition.ideal
    length = number_xc if to_k == "relevant" else np.minimum(number_xc, cuts)
    if to_k == "k":
        length = np.broadcast_to(np.where(np.isinf(cuts), np.nan, cuts), number_xc.shape)
    if metric == "recall":
        return length
    length = np.where(length <= LONGEST_IDEAL, length, np.nan)
    ranks = np.arange(1.0, np.ceil(np.nanmax(length, initial=0.0)) + 1)
    none = np.zeros(0, np.int64)
    no_users = Rankings(np.zeros(1, np.int64), np.zeros(0), none, none, none, none)
    table = np.concatenate([[0.0], np.cumsum(Chunk(no_users, tuple(ks), definition).discount(ranks))])
    best: Floats = np.interp(length, np.arange(len(table)), table)
    return best


def pool_factor(metric: str, ks: Sequence[int], definition: Definition, mean_xc: Floats) -> Floats:
    """Return n / I(n) for a mean number n of relevant items.

    This factor turns sum(w a) / sum(w) into ips_pooled.
    """
    return divide_sums(mean_xc, ideal_value(metric, mean_xc, ks, definition))


def correction_weights(estimator: str, weight: Floats, settings: EstimatorSettings) -> Floats:
    """Return weights for dr, switch_dr and dros in place of w.

    Lists and logged rounds use the same weights.
    """
    if estimator == "switch_dr":
        # Chances in float32 give weights with its precision: 1 / .01 is 100.0000022.
        weight = np.where(weight.astype(np.float32) <= np.float32(settings.switch), weight, 0.0)
    if estimator == "dros":
        weight = settings.shrink * weight / (weight**2 + settings.shrink)
    return weight


def truth_shares(chunk: Chunk, weight: Weight, *, expected: bool) -> Floats:
    """Return each truth rank's weight at each cut-off, (p, c).

    0: not ranked. expected: the mean over all orders of a tie.
    """
    r = chunk.rankings
    above, size = (r.above, r.tied + 1) if expected else (chunk.rank_p - 1, np.ones_like(r.tied))
    ranked = r.above >= 0
    share = shares(np.where(ranked, above, 0), np.where(ranked, size, 1), chunk.ks, weight)
    return np.where(ranked[:, None], share, 0.0)


def shares(above: Ints, size: Ints, ks: Sequence[int], weight: Weight) -> Floats:
    """Average weight(r) [r <= k] over r = above + 1 .. above + size.

    Returns (p, c), last uncut. Ties use prefix sums of the weights, with an error about 1e-13.
    """
    end = above + size
    cuts = [np.minimum(end, k) for k in ks] + [end]
    own = weight(above + 1.0)
    single = np.column_stack([np.where(above < cut, own, 0.0) for cut in cuts])
    if (size == 1).all():
        return single
    ranks = np.arange(1.0, end.max(initial=0) + 1)
    prefix = np.concatenate([[0.0], np.cumsum(weight(ranks))])
    spread = [(prefix[np.maximum(cut, above)] - prefix[above]) / size for cut in cuts]
    return np.where(size[:, None] == 1, single, np.column_stack(spread))


def restrict(rankings: Rankings, keep_p: Bools) -> Rankings:
    """Return rankings with these truth items only.

    All others stay candidates, as negatives.
    """
    offsets = np.concatenate([[0], np.cumsum(keep_p)])[rankings.offsets].astype(np.int64)
    above, tied, before = (part[keep_p] for part in (rankings.above, rankings.tied, rankings.before))
    return Rankings(offsets, rankings.relevance[keep_p], above, tied, before, rankings.length)


def measure_by_stratum(
    rankings: Rankings,
    stratum_p: Ints,
    n_strata: int,
    metrics: Sequence[str],
    ks: Sequence[int],
    *,
    definition: Definition,
) -> tuple[dict[str, Floats], Ints]:
    """Measure each metric within each stratum, (u, s, c).

    Also returns each user's truth items by stratum, (u, s). Within a stratum only its own positives count;
    NaN for users without one there. Any metric. Averaged over users these are M(Q_s) and summed |Q_s|, for
    `combine_strata`.
    """
    inside = [measure(restrict(rankings, stratum_p == s), metrics, ks, definition) for s in range(n_strata)]
    values = {name: np.stack([part[name] for part in inside], axis=1) for name in metrics}
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    sizes = np.zeros((len(rankings.length), n_strata), dtype=np.int64)
    np.add.at(sizes, (user_p, stratum_p), 1)
    return values, sizes


def combine_strata(mean_sc: Floats, size_s: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return V = sum_s |Q_s| / |Q| M(Q_s), (..., c).

    Also returns the share of |Q| behind it, (..., c). mean_sc: (..., s, c), NaN for a stratum without
    positives; it is left out and the others' weights grow. size_s: (..., s). Leading axes are bootstrap
    replicates, whose sizes are resampled with their means. A single stratum's value is its mean, to the
    last bit.
    """
    valid = ~np.isnan(mean_sc)
    size = np.where(valid, np.asarray(size_s, dtype=np.float64)[..., None], 0.0)
    total = size.sum(axis=-2)
    value = divide_sums((size * np.where(valid, mean_sc, 0.0)).sum(axis=-2), total)
    if mean_sc.shape[-2] == 1:  # s m / s is not always m
        value = np.where(total > 0, mean_sc[..., 0, :], np.nan)
    every = np.asarray(np.sum(size_s, axis=-1, dtype=np.float64))
    whole = np.broadcast_to(every[..., None], total.shape)
    return value, divide_sums(total, whole)


@dataclass(frozen=True)
class Diagnostics:
    """Basis for an estimate: rows, weights, effective rows.

    rows: number of rows. effective: (sum w)^2 / sum w^2. largest: the largest weight. top_share: share of
    all weight in the 1 % of rows with the largest weights.
    """

    rows: int
    effective: float
    largest: float
    top_share: float


def diagnostics(weight_x: npt.NDArray[Any], rows_x: npt.NDArray[Any], top: float = 0.01) -> Diagnostics:
    """Compute diagnostics from a histogram of weights.

    The histogram has the different weights, and the number of rows with each. The number of top rows is
    rounded up. Effective size: Kong 1992, "A note on importance sampling using standardized weights".
    """
    order = np.argsort(-np.asarray(weight_x, dtype=np.float64), kind="stable")
    weight: Floats = np.asarray(weight_x, dtype=np.float64)[order]
    rows = np.asarray(rows_x, dtype=np.int64)[order]
    n, total = int(rows.sum()), float(rows @ weight)
    if not n or total <= 0:
        return Diagnostics(n, 0.0, 0.0, float("nan"))
    wanted = int(np.ceil(top * n))
    taken = np.clip(wanted - (np.cumsum(rows) - rows), 0, rows)
    return Diagnostics(
        n, total**2 / float(rows @ weight**2), float(weight[0]), float(taken @ weight) / total
    )


def _ones(value: Floats) -> Floats:
    ones: Floats = np.where(np.isnan(value), np.nan, 1.0)
    return ones


def _sum_by(index: Ints, amount: Floats, count: int) -> Floats:
    """Sum each index's amounts, (n,) or (n, c), in input order."""
    if amount.ndim == 1:
        return np.bincount(index, weights=amount, minlength=count).astype(np.float64, copy=False)
    by_column = [np.bincount(index, weights=column, minlength=count) for column in amount.T]
    return np.column_stack(by_column).astype(np.float64, copy=False)
