"""Quantities shared by accuracy metrics, from truth items' ranks.

A `Chunk` holds some users under one definition: it counts relevant items, gains, hits, precisions and
discounted gains at every cut-off, and each metric in `accuracy` is a short function of it.

Axes: u users, p truth items, c cut-offs (a kernel's last column is the uncut value), k ranks, g groups. The
truth items in a group share a range of ranks, r = a + 1 .. a + m; R of them are relevant, with C relevant
items in earlier groups. If ties are broken, each item is its own group, m = 1; if ties are expected, a
group holds all truth items with one score, and all its orders are equally likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.metrics.kernels import ties
from recbench_spark.metrics.kernels.about import About
from recbench_spark.metrics.kernels.ties import harmonic
from recbench_spark.ranking.kernels.rankings import Rankings, mark_relevant
from recbench_spark.splits.kernels.positions import ascending

Weight = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Gives the weight for a rank r = 1, 2, ..."""


LARGEST_GAIN = 2.0**1000
"""Largest gain: smaller ones can be summed over any list."""


@dataclass(frozen=True)
class Metric:
    """A registered metric; `axes` are its definition axes."""

    name: str
    function: Callable[[Chunk], Floats]
    axes: tuple[str, ...]
    cuts: Literal["k", "both", "uncut"]
    users_axis: str
    worst: float
    about: About


@dataclass(frozen=True)
class Groups:
    """Truth items sharing a rank range, by user and rank."""

    user: Ints
    above: Ints
    size: Ints
    relevant: Floats
    gain: Floats
    prior: Floats

    @cached_property
    def certain(self) -> bool:
        """True if every rank is known: groups have one item."""
        return bool((self.size == 1).all())


@dataclass(frozen=True)
class Chunk:
    """Some users under one definition, with metrics' shared quantities.

    Each quantity is computed at its first use.
    """

    rankings: Rankings
    ks: tuple[int, ...]
    definition: Definition

    def values(self, metric: Metric) -> Floats:
        """Compute a metric, (u, c), with user axes applied."""
        every = metric.function(self)
        value = {"k": every[:, :-1], "both": every, "uncut": every[:, -1:]}[metric.cuts].copy()
        # Sums are rounded: five items' parts may add up to 1 + 2e-16 in place of 1.
        np.clip(value, *metric.about.bounds_under(self.definition), out=value)
        empty = metric.worst if self.definition.empty_users == "zero" else np.nan
        value[self.length == 0] = metric.worst
        value[self.relevant == 0] = empty
        value[~self._user_mask(metric.users_axis)] = np.nan
        return value

    def _user_mask(self, users_axis: str) -> Bools:
        users = getattr(self.definition, users_axis)
        users = self.definition.users if users == "same" else users
        truth, output = np.diff(self.rankings.offsets) > 0, self.length > 0
        return {"truth": truth, "output": output, "both": truth & output}[users]

    @property
    def length(self) -> Ints:
        """Each user's ranked candidates, (u,)."""
        return self.rankings.length

    @cached_property
    def user_p(self) -> Ints:
        """Each truth item's user."""
        return np.repeat(np.arange(len(self.length)), np.diff(self.rankings.offsets))

    @cached_property
    def relevant_p(self) -> Bools:
        """True for each relevant truth item."""
        return is_relevant(self.rankings.relevance, self.definition)

    @cached_property
    def relevant(self) -> Floats:
        """Each user's relevant truth items, ranked or not, (u,)."""
        return sum_by(self.user_p, self.relevant_p, len(self.length))

    @cached_property
    def gain_p(self) -> Floats:
        """Each truth item's gain."""
        grade = self.rankings.relevance
        check_gains(grade, self.definition)
        if self.definition.gain == "binary":
            return self.relevant_p.astype(np.float64)
        if self.definition.gain == "exponential_above":
            above = grade - (self.definition.threshold or 0.0)
            return np.where(self.relevant_p, np.exp2(above + 1.0) - 1.0, 0.0)
        if self.definition.grade_origin:
            grade = grade - self.definition.grade_origin
        if self.definition.negative_grades == "clip":
            grade = np.maximum(grade, 0.0)
        return grade if self.definition.gain == "linear" else np.exp2(grade) - 1.0

    @cached_property
    def k_uc(self) -> Floats:
        """Each column's cut-off, (u, c + 1); uncut: the list's length."""
        at_k = np.broadcast_to(np.asarray(self.ks, dtype=np.float64), (len(self.length), len(self.ks)))
        return np.column_stack([at_k, self.length])

    @cached_property
    def depth(self) -> int:
        """Ranks that can matter at a cut-off.

        Nothing changes beyond the longest list or truth.
        """
        return max_depth(self.rankings, self.ks)

    @cached_property
    def _last_k(self) -> Ints:
        return np.minimum(np.asarray(self.ks, dtype=np.int64), self.depth) - 1

    @cached_property
    def rank_p(self) -> Ints:
        """Each truth item's rank, ties broken as defined; 0: not ranked."""
        r = self.rankings
        if self.definition.ties in ("id", "expected", "hashed"):
            return np.where(r.above < 0, 0, 1 + r.above + r.before)
        if self.definition.ties == "id_descending":
            return self.rank_by_larger_id
        return np.where(r.above < 0, 0, self._extreme_rank())

    @property
    def rank_by_larger_id(self) -> Ints:
        """Truth items' ranks, larger tied ids first; 0: not ranked."""
        r = self.rankings
        return np.where(r.above < 0, 0, 1 + r.above + r.tied - r.before)

    def _extreme_rank(self) -> Ints:
        """Return ranks with good items first or last in ties.

        Optimistic ties put them first, pessimistic ones last. Good items are relevant or have a gain;
        harmful ones stand at the other end. No order is best for all metrics if items with a negative gain
        are relevant: the threshold is then below the origin of the grades.
        """
        r = self.rankings
        good = self.relevant_p | (self.gain_p > 0)
        order = np.lexsort((-r.relevance, ~good, r.above, self.user_p))
        first = _run_starts(self.user_p[order], r.above[order])
        place, count = np.empty_like(r.above), np.empty_like(r.above)
        place[order] = np.arange(len(order)) - first
        count[order] = np.bincount(first, minlength=len(order))[first]
        size = r.tied + 1
        optimistic = r.above + 1 + place + np.where(good, 0, size - count)
        mirrored = 2 * r.above + size + 1 - optimistic
        return optimistic if self.definition.ties == "optimistic" else mirrored

    @cached_property
    def groups(self) -> Groups:
        """These users' groups under the definition's rule for ties."""
        if self.definition.ties == "expected":
            return self.tie_groups
        return self.certain_groups(self.rank_p)

    def certain_groups(self, rank_p: Ints) -> Groups:
        """Return one group per ranked truth item, at its rank."""
        keep = self.rankings.above >= 0
        return self._make_groups(rank_p[keep] - 1, np.ones_like(rank_p[keep]), keep)

    @cached_property
    def tie_groups(self) -> Groups:
        """Group equal scores, under any rule for ties."""
        keep = self.rankings.above >= 0
        return self._make_groups(self.rankings.above[keep], self.rankings.tied[keep] + 1, keep)

    def _make_groups(self, above: Ints, size: Ints, keep: Bools) -> Groups:
        user, gain, relevant = self.user_p[keep], self.gain_p[keep], self.relevant_p[keep]
        # Sorted by gain as well: the sum of a group's gains then does not depend on the input order.
        order = ascending(user, above, gain)
        user, above = user[order], above[order]
        is_first = _run_starts(user, above) == np.arange(len(user))
        head, index = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        n_relevant = sum_by(index, relevant[order], len(head))
        gains = sum_by(index, gain[order], len(head))
        prior = _running_total(n_relevant, user[head])
        return Groups(user[head], above[head], size[order][head], n_relevant, gains, prior)

    def total(self, groups: Groups, amount: Floats, weight: Weight) -> Floats:
        """Sum weight(r) x expected amount at r over ranks r <= k.

        Returns (u, c + 1), the last uncut. A group's amount is spread evenly over its ranks.
        """
        at_k = self._curve(groups, amount, weight)[:, self._last_k]
        mean = amount * _mean_weight(groups, weight)
        uncut = sum_by(groups.user, mean, len(self.length))
        return np.column_stack([at_k, uncut])

    def _curve(self, groups: Groups, amount: Floats, weight: Weight) -> Floats:
        """Return the sums at k = 1 .. depth: (u, k).

        Every slot (user, rank) belongs to one group.
        """
        count = np.clip(self.depth - groups.above, 0, groups.size)
        group = np.repeat(np.arange(len(count)), count)
        place = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
        slot = groups.above[group] + place
        weight_k = weight(np.arange(1.0, self.depth + 1))
        curve = np.zeros((len(self.length), self.depth))
        curve[groups.user[group], slot] = (amount / groups.size)[group] * weight_k[slot]
        return np.cumsum(curve, axis=1, out=curve)

    @cached_property
    def hits(self) -> Floats:
        """Expected relevant items among the first k, (u, c + 1)."""
        return self.total(self.groups, self.groups.relevant, np.ones_like)

    @cached_property
    def precision_length(self) -> Floats:
        """Precision's denominator, (u, c + 1)."""
        other = {"k": None, "list": self.length, "min_k_relevant": self.relevant}
        return cap_by_user(self.k_uc, other[self.definition.precision_by])

    @cached_property
    def recall_length(self) -> Floats:
        """Recall's denominator, (u, c + 1)."""
        if self.definition.recall_by == "min_k_relevant":
            return self.reachable_hits
        return np.broadcast_to(self.relevant[:, None], self.k_uc.shape)

    @cached_property
    def reachable_hits(self) -> Floats:
        """Most possible hits, min(k, relevant), (u, c + 1).

        Uncut: relevant, at any list length.
        """
        at_most = np.minimum(self.k_uc, self.relevant[:, None])
        at_most[:, -1] = self.relevant
        return at_most

    @cached_property
    def precision_sum(self) -> Floats:
        """Sum of precisions at relevant items among the first k.

        Returns (u, c + 1). Take a relevant item at rank r in a group: C items before the group are
        relevant, and each of the r - a - 1 ranks between with chance b = (R - 1) / (m - 1) (McSherry and
        Najork 2008, section 3): precision (C + 1 + b (r - a - 1)) / r.
        """
        parts = [self.total(self.groups, *part) for part in self._precision_parts]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @cached_property
    def _precision_parts(self) -> list[tuple[Floats, Weight]]:
        """Group amounts whose weighted sums are the precisions.

        The second one is for ties.
        """
        g = self.groups
        b = (g.relevant - 1) / np.maximum(g.size - 1, 1)
        constant = g.prior + 1 - np.where(g.size == 1, 0.0, b * (g.above + 1))
        first: tuple[Floats, Weight] = (g.relevant * constant, np.reciprocal)
        return [first] if g.certain else [first, (g.relevant * b, np.ones_like)]

    @cached_property
    def mean_precision_at_hits(self) -> Floats:
        """Mean precision at relevant items among the first k.

        (u, c + 1), 0 without any such item.
        """
        if self.definition.ap_ties == "last_rank":
            return divide(self.shared_precision_sum, self._hits_at_last_rank)
        value, g = divide(self.precision_sum, self.hits), self.groups
        if g.certain:
            return value
        curve = sum((self._curve(g, *part) for part in self._precision_parts), np.zeros(1))
        for column, k in enumerate(self._last_k + 1):
            cut = np.flatnonzero((g.above < k) & (k < g.above + g.size))
            user, above = g.user[cut], g.above[cut]
            earlier = np.where(above > 0, curve[user, above - 1], 0.0)
            tie = ties.CutTie(above, k - above, g.size[cut], g.relevant[cut], g.prior[cut], earlier)
            value[user, column] = ties.average_precision_over_orders(tie)
        return value

    @cached_property
    def shared_precision_sum(self) -> Floats:
        """Sum of the same precisions, ties at their last rank.

        (u, c + 1).
        """
        g = self.tie_groups
        return self.total(self._last_ranks, g.relevant * (g.prior + g.relevant), np.reciprocal)

    @cached_property
    def _hits_at_last_rank(self) -> Floats:
        return self.total(self._last_ranks, self.tie_groups.relevant, np.ones_like)

    @cached_property
    def _last_ranks(self) -> Groups:
        g = self.tie_groups
        return Groups(g.user, g.above + g.size - 1, np.ones_like(g.size), g.relevant, g.gain, g.prior)

    @cached_property
    def mean_precision(self) -> Floats:
        """Mean precision@n over n = 1..k, (u, c + 1).

        A relevant item at rank r counts in each n >= r: sum_{n=r}^{k} 1/n = H(k) - H(r - 1).
        """
        later = self.total(self.groups, self.groups.relevant, lambda r: harmonic(r - 1))
        return divide(self.hits * harmonic(self.k_uc) - later, self.k_uc)

    @cached_property
    def first_hit(self) -> tuple[Floats, Floats]:
        """P(hit by k), E(1 / first hit's rank), (u, c + 1).

        A first hit beyond k counts 0.
        """
        g = self.groups
        first = (g.prior == 0) & (g.relevant > 0)
        hit_chance, reciprocal = np.zeros(self.k_uc.shape), np.zeros(self.k_uc.shape)
        user, above = g.user[first], g.above[first]
        if g.certain:
            shown = above[:, None] < np.append(np.asarray(self.ks, dtype=np.float64), np.inf)
            hit_chance[user] = shown
            reciprocal[user] = shown / (above[:, None] + 1.0)
        else:
            parts = ties.first_in_tie(above, g.size[first], g.relevant[first], self.ks, self.depth)
            hit_chance[user], reciprocal[user] = parts
        return hit_chance, reciprocal

    @cached_property
    def discount(self) -> Weight:
        """A rank's discount."""
        return {
            "log2": lambda r: 1.0 / np.log2(r + 1.0),
            "log2_max2": lambda r: 1.0 / np.log2(np.maximum(r, 2.0)),
            "ln": lambda r: 1.0 / np.log(r + 1.0),
        }[self.definition.discount]

    @cached_property
    def dcg(self) -> Floats:
        """Discounted cumulative gain, (u, c + 1)."""
        groups = self.tie_groups if self.definition.ndcg_ties == "expected" else self.groups
        return self.total(groups, groups.gain, self.discount)

    @cached_property
    def ideal(self) -> Floats:
        """The ideal list's DCG, (u, c + 1)."""
        if self.definition.ideal == "k":
            most = np.zeros(len(self.length))
            np.maximum.at(most, self.user_p, self.gain_p)
            return most[:, None] * self._ones_dcg(self.k_uc)
        if self.definition.gain == "binary" and self.definition.ideal != "min_relevant_list":
            best = self._ones_dcg(self.reachable_hits)
        elif self.definition.negative_grades == "signed":
            best = self.best_dcg(np.maximum(self.gain_p, 0.0))
        else:
            best = self.best_dcg(self.gain_p)
        return best[:, [-1] * best.shape[1]] if self.definition.ideal == "relevant" else best

    def _ones_dcg(self, length_uc: Floats) -> Floats:
        ranks = np.arange(1.0, length_uc.max(initial=0.0) + 1)
        table = np.concatenate([[0.0], np.cumsum(self.discount(ranks))])
        return table[length_uc.astype(np.int64)]

    def best_dcg(self, gain_p: Floats) -> Floats:
        """Return the best DCG with these gains, (u, c + 1).

        An unrated item (gain 0) can always replace a negative one, except if only the user's rated items
        are candidates: then they have to be shown. An ideal list may be no longer than the list itself.
        """
        order = np.lexsort((-gain_p, self.user_p))
        user, gain = self.user_p[order], gain_p[order]
        place = np.arange(len(order)) - self.rankings.offsets[user]
        forced = (place < self.length[user]) & (self.definition.candidates == "rated")
        beyond = (place >= self.length[user]) & (self.definition.ideal == "min_relevant_list")
        gain = np.where(((gain > 0) | forced) & ~beyond, gain, 0.0)
        one = np.ones_like(place)
        groups = Groups(user, place, one, one.astype(np.float64), gain, one.astype(np.float64))
        return self.total(groups, gain, self.discount)


def divide(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any], empty: float = 0.0) -> Floats:
    """Return numerator / denominator; `empty` for denominators up to 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    out: Floats = np.full(shape, empty)
    np.divide(numerator, denominator, out=out, where=denominator > 0)
    return out


def _mean_weight(groups: Groups, weight: Weight) -> Floats:
    """Return each group's mean rank weight.

    The mean is taken from prefix sums (error about 1e-13).
    """
    own = weight(groups.above + 1.0)
    if groups.certain:
        return own
    end = groups.above + groups.size
    prefix = np.concatenate([[0.0], np.cumsum(weight(np.arange(1.0, end.max() + 1)))])
    return np.where(groups.size == 1, own, (prefix[end] - prefix[groups.above]) / groups.size)


def is_relevant(relevance: Floats, definition: Definition) -> Bools:
    """Mark relevance at or above the definition's threshold.

    None: above 0.
    """
    return mark_relevant(relevance, definition.threshold)


def cap_by_user(value_uc: Floats, limit_u: Floats | Ints | None) -> Floats:
    """Limit values (u, c) per user; None: no limit."""
    return value_uc if limit_u is None else np.minimum(value_uc, limit_u[:, None])


def _run_starts(user: Ints, value: Ints) -> Ints:
    """Return where each run of equal (user, value) begins.

    Pairs are sorted.
    """
    new = np.ones(len(user), dtype=bool)
    new[1:] = (user[1:] != user[:-1]) | (value[1:] != value[:-1])
    return np.maximum.accumulate(np.where(new, np.arange(len(user)), 0))


def sum_by(index: Ints, amount: npt.NDArray[Any], count: int) -> Floats:
    """Sum each index's amounts, in input order: (count,)."""
    return np.bincount(index, weights=amount, minlength=count).astype(np.float64, copy=False)


def _running_total(value: Floats, user: Ints) -> Floats:
    """Sum each user's earlier values, exactly for whole numbers.

    Users are sorted.
    """
    before = np.cumsum(value) - value
    return before - before[_run_starts(user, np.zeros_like(user))]


def max_depth(rankings: Rankings, ks: Sequence[int]) -> int:
    """Return the largest rank that can matter at these cut-offs."""
    longest = max(rankings.length.max(initial=1), np.diff(rankings.offsets).max(initial=1))
    return int(min(max(ks, default=1), longest))


def check_gains(relevance: Floats, definition: Definition) -> None:
    """Check relevance for gains beyond 2^1000.

    Raises:
        DataError: there is one: sums of such gains are no float64.
    """
    above = definition.gain == "exponential_above"
    exponent = 1.0 - (definition.threshold or 0.0) if above else -definition.grade_origin
    linear, binary = definition.gain == "linear", definition.gain == "binary"
    size = np.abs(relevance + exponent) if linear else relevance + exponent
    wrong = np.zeros(0) if binary else relevance[size > (LARGEST_GAIN if linear else np.log2(LARGEST_GAIN))]
    if len(wrong):
        raise DataError(
            f"{len(wrong)} truth rows with a relevance such as {wrong[0]:g}, whose gain "
            f"({definition.gain}) is beyond 2^1000",
            "scale the relevance down, or set definition.gain=linear or binary",
        )
