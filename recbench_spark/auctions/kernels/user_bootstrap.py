"""Take a replay's sums apart by user.

A bootstrap then draws users instead of queries.

A user meets many queries, so a pair's (query, ad) click rate changes with the drawn users. The sums are
linear in the weights to first order: beside what its own auctions show, a user adds each estimate's
derivative by the weight of each own logged impression (the infinitesimal jackknife, Efron 1982, "The
jackknife, the bootstrap and other resampling plans", section 6.3). A click enters by its distance from what
was expected. A pair's click rate at one slot is no good expectation, since it follows its few clicks: a
single impression's distance would be 0. So the expectation is the pair's rate over all slots, a theta, and
the distance is divided by sqrt(1 - theta / mass); theta / mass is the impression's share in its pair
(MacKinnon and White 1985, HC2). Axes: u users, r participants, g pairs, s slots, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recbench_spark.auctions.kernels.click_estimates import (
    FIXED,
    NEVER_SHOWN,
    OTHER_SLOT,
    SAME_SLOT,
    Log,
    PairTotals,
    Totals,
    estimate_clicks,
    scale_value,
)
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts
from recbench_spark.auctions.kernels.position_curve import fill_shares
from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel

Impressions = tuple[Ints, Ints, Ints32, Ints32]
"""Each participant's user, pair, logged slot (negative: not shown) and click, (r,)."""


@dataclass(frozen=True, eq=False)
class UserRows:
    """Logged participants by user, for a bootstrap over users.

    Attributes:
        key_u: (u,) each user's hash: the key of its bootstrap weights.
        impressions: each participant's user, pair, logged slot and click.
        auctions_u: (u,) each user's auctions.
        corrected: whether clicks enter by their distance from the pair's rate over all slots; if not, sums
            are the derivatives to the last bit, and too small where a pair was shown a few times.
    """

    key_u: Ints
    impressions: Impressions
    auctions_u: Ints
    corrected: bool = True

    def add_log(self, counts: ImpressionCounts, set_s: Ints, theta_s: Floats) -> Ints:
        """Return what each user adds to the logged policy.

        The result is int64 (u, c): see `auction_parts.LogColumns`.
        """
        slots = len(set_s)
        width = 2 + 3 * slots + slots * (slots + 1) // 2
        sums = np.zeros((len(self.key_u), width), dtype=np.int64)
        sums[:, 0] = self.auctions_u * np.int64(UNIT)
        log = (counts.shown_gs, counts.clicks_gs, theta_s, set_s)
        _add_impressions(self.impressions, log, self.corrected, sums)
        return sums

    def add_model(
        self,
        pairs: PairTotals,
        slot_r: Ints32,
        price_r: Floats,
        probability_r: Floats,
        elsewhere: PairShowings | None = None,
    ) -> Ints:
        """Return what each user adds to a model's estimates.

        The result is int64 (u, c): see `estimate_clicks`.

        Args:
            pairs: pair counts, and their totals.
            slot_r, price_r, probability_r: (r,) slot in the replay (negative: not shown), price of a click
                as a share of the largest bid, and predicted probability.
            elsewhere: the same pairs' showings in other parts' auctions; None: there are none.
        """
        user_r, pair_r, _, _ = self.impressions
        rows = (user_r, pair_r, slot_r, price_r, probability_r)
        sums = estimate_clicks(rows, pairs, len(self.key_u))
        shape = pairs.log[0].shape
        showings = PairShowings.count(pair_r, slot_r, price_r, shape)
        times_gs, prices_gs = showings.spread(shape)
        if elsewhere is not None:
            more_times, more_prices = elsewhere.spread(shape)
            times_gs, prices_gs = times_gs + more_times, prices_gs + more_prices
        model = pairs.model
        rules = (int(model.rules.minimum), float(model.rules.shrinkage), model.main, self.corrected)
        _add_derivatives(self.impressions, (times_gs, prices_gs), pairs.log, pairs.totals, rules, sums)
        return sums


@dataclass(frozen=True, eq=False)
class PairShowings:
    """Showings of pairs at slots in a replay, (n,) each.

    No place stands there twice.

    Attributes:
        place_n: pair x number of slots + slot.
        times_n: how often the replay shows the pair there.
        prices_n: summed click prices, multiples of 2^-30 of the largest bid.
    """

    place_n: Ints
    times_n: Ints
    prices_n: Ints

    @classmethod
    def count(cls, pair_r: Ints, slot_r: Ints32, price_r: Floats, shape: tuple[int, int]) -> PairShowings:
        """Count pairs' showings; `shape`: numbers of pairs and slots."""
        times_gs, prices_gs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        _count_showings(pair_r, slot_r, price_r, times_gs, prices_gs)
        place_n = np.flatnonzero(times_gs)
        return cls(place_n, times_gs.ravel()[place_n], prices_gs.ravel()[place_n])

    @classmethod
    def add_up(cls, places: Ints, times: Ints, prices: Ints) -> PairShowings:
        """Add up showings with repeated places, (n,) each."""
        place_n, index = np.unique(places, return_inverse=True)
        sums = np.zeros((2, len(place_n)), dtype=np.int64)
        np.add.at(sums[0], index, times)
        np.add.at(sums[1], index, prices)
        return cls(place_n, sums[0], sums[1])

    def stack(self) -> Ints:
        """Return places, times and prices as one array, (3, n)."""
        return np.stack([self.place_n, self.times_n, self.prices_n])

    def spread(self, shape: tuple[int, int]) -> tuple[Ints, Ints]:
        """Return times and prices by pair and slot, (g, s)."""
        times, prices = np.zeros(shape[0] * shape[1], np.int64), np.zeros(shape[0] * shape[1], np.int64)
        times[self.place_n], prices[self.place_n] = self.times_n, self.prices_n
        return times.reshape(shape), prices.reshape(shape)


@compile_kernel
def _add_impressions(impressions: Impressions, log: Log, corrected: bool, sums_uc: Ints) -> None:
    """Add impressions, clicks, and derivatives of the curve's likelihood."""
    user_r, pair_r, slot_r, click_r = impressions
    shown_gs, clicks_gs, theta_s, set_s = log
    slots, unit = len(theta_s), np.int64(UNIT)
    share_s = np.empty(slots)
    for r in range(len(user_r)):
        t, pair = slot_r[r], pair_r[r]
        if t < 0:
            continue
        row = sums_uc[user_r[r]]
        row[1 + t] += unit
        row[1 + slots + t] += click_r[r] * unit
        if (shown_gs[pair] > 0).sum() > 1:
            row[1 + 2 * slots] += click_r[r] * unit
        clicks = fill_shares(shown_gs[pair], clicks_gs[pair], set_s[t], (set_s, theta_s), share_s)
        if clicks > 0:
            part = share_s[t] / shown_gs[pair, t]
            surprise = (click_r[r] - clicks * part) * (_correct(part) if corrected else 1.0)
            _add_shares(row, t, (float(surprise), float(click_r[r])), share_s)


@compile_kernel
def _correct(part: float) -> float:
    """Return the factor for a distance.

    The impression is a `part` of the expectation; if it is all, the factor is 0.
    """
    return 1.0 / np.sqrt(1.0 - part) if part < 1.0 - 1e-9 else 0.0


@compile_kernel
def _add_shares(row: Ints, t: int, parts: tuple[float, float], share_s: Floats) -> None:
    """Add to gradient and information.

    Shares of slots in other sets are 0.
    """
    surprise, click = parts
    slots = len(share_s)
    for s in range(slots):
        same = 1.0 if s == t else 0.0
        row[2 + 2 * slots + s] += scale_value(surprise * (same - share_s[s]))
        if click > 0 and share_s[s] > 0:
            first = 2 + 3 * slots + s * slots - s * (s - 1) // 2  # of the row of the upper triangle
            for other in range(s, slots):
                own = share_s[s] if s == other else 0.0
                row[first + other - s] += scale_value(click * (own - share_s[s] * share_s[other]))


@compile_kernel
def _count_showings(pair_r: Ints, slot_r: Ints32, price_r: Floats, times_gs: Ints, prices_gs: Ints) -> None:
    """Count pairs' showings at each slot, and sum their prices."""
    for r in range(len(pair_r)):
        if slot_r[r] >= 0:
            times_gs[pair_r[r], slot_r[r]] += 1
            prices_gs[pair_r[r], slot_r[r]] += scale_value(price_r[r])


@compile_kernel
def _add_derivatives(
    impressions: Impressions,
    showings: tuple[Ints, Ints],
    log: Log,
    totals: Totals,
    rules: tuple[int, float, int, bool],
    sums_uc: Ints,
) -> None:
    """Add derivatives by the weight of each logged impression.

    All estimates for its pair have such derivatives.
    """
    user_r, pair_r, slot_r, click_r = impressions
    times_gs, prices_gs = showings
    for r in range(len(user_r)):
        if slot_r[r] < 0:
            continue
        for s in range(times_gs.shape[1]):
            times, price = times_gs[pair_r[r], s], prices_gs[pair_r[r], s] / UNIT
            if times > 0:
                place = (pair_r[r], slot_r[r], s)
                numbers = (float(click_r[r]), float(times), price)
                _add_change(sums_uc[user_r[r]], place, numbers, log, totals, rules)


@compile_kernel
def _add_change(
    row: Ints,
    place: tuple[int, int, int],
    numbers: tuple[float, float, float],
    log: Log,
    totals: Totals,
    rules: tuple[int, float, int, bool],
) -> None:
    """Add the change in an estimate from one more impression.

    The estimate is a pair's at slot s, for all its showings; the impression is at slot t. With n
    impressions behind the rate, own = n / (n + shrinkage) of the estimate is the pair's own rate.
    """
    pair, t, s = place
    click, times, price = numbers
    _, _, theta_s, set_s = log
    clicks_gk, _, mass_gk, places_g, set_index_s = totals
    minimum, shrinkage, main, corrected = rules
    case, rate, trials = _find_rate(pair, s, log, totals, minimum)
    if case == NEVER_SHOWN or set_s[t] != set_s[s] or (case == SAME_SLOT and s != t):
        return
    clicks, mass = clicks_gk[pair, set_index_s[s]], mass_gk[pair, set_index_s[s]]
    own = trials / (trials + shrinkage)
    expected = clicks / mass * theta_s[t] if corrected or case == OTHER_SLOT else rate
    distance = (click - expected) * (_correct(theta_s[t] / mass) if corrected else 1.0)
    change = own * distance * (1.0 / trials if case == SAME_SLOT else theta_s[s] / mass)
    change += rate * own * (1.0 - own) / trials
    row[2 + case] += scale_value(change * times)
    row[5] += scale_value(change * times) if s < main else 0
    row[8] += scale_value(change * price)
    row[10] += scale_value(change * times) if places_g[pair] > 1 else 0
    slots, lent = len(theta_s), own * (1.0 - own) / trials
    row[len(FIXED) + slots + s] -= scale_value(lent * times)
    row[len(FIXED) + 2 * slots + s] -= scale_value(lent * price)
    row[len(FIXED) + 6 * slots + s] -= scale_value(lent * times) if places_g[pair] > 1 else 0


@compile_kernel
def _find_rate(pair: int, slot: int, log: Log, totals: Totals, minimum: int) -> tuple[int, float, int]:
    """Return case, click rate, and impressions behind it.

    The cases are those of `estimate_clicks`.
    """
    shown_gs, clicks_gs, theta_s, _ = log
    clicks_gk, seen_gk, mass_gk, _, set_index_s = totals
    k, own = set_index_s[slot], shown_gs[pair, slot]
    if own > 0 and own >= minimum:
        return SAME_SLOT, clicks_gs[pair, slot] / own, own
    if seen_gk[pair, k] >= minimum and mass_gk[pair, k] > 0.0:
        return OTHER_SLOT, theta_s[slot] * clicks_gk[pair, k] / mass_gk[pair, k], seen_gk[pair, k]
    return NEVER_SHOWN, 0.0, 0
