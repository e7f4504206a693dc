"""Hold some queries' auctions as arrays, and sum them.

Axes: a auctions, r participants (contiguous by auction, by ad id), g pairs (query,
ad) (contiguous by query), q queries, s slots, c columns, b bootstrap replicates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.click_estimates import ClickModel, PairTotals, estimate_clicks
from recbench_spark.auctions.kernels.counts import UNIT, ImpressionCounts, SlotTotals
from recbench_spark.auctions.kernels.mechanism import AuctionOrder, OperatingPoint, SlotCounts
from recbench_spark.auctions.kernels.position_curve import CurveDerivatives
from recbench_spark.auctions.kernels.user_bootstrap import UserRows
from recbench_spark.core import resampling
from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.core.threads import one_thread_products

LARGEST_CELL = np.int64(1 << 40)
"""Largest whole number in a bootstrap row; larger ones take several rows, so that blocks in
`resampling.bootstrap_sums` have their full 256 rows: 256 x the largest weight, 20, x 2^40 is below 2^53.
"""


@dataclass(frozen=True, eq=False)
class AuctionRows:
    """Participants in auctions, (r,) each, by query, auction and ad.

    Attributes:
        query_r, auction_r, ad_r: whole numbers from 0; ad numbers follow their ids. Rows of
            one auction are neighbours.
        bid_r, quality_r: inputs of the score beside the probability; bids as shares of the largest one.
        slot_r, click_r: logged slot, negative for losers, and click.
    """

    query_r: Ints
    auction_r: Ints
    ad_r: Ints
    bid_r: Floats
    quality_r: Floats
    slot_r: Ints32
    click_r: Ints32


@dataclass(frozen=True, eq=False)
class AuctionPart:
    """Some queries' auctions as arrays, with their pair counts.

    Attributes:
        key_q: (q,) each query's hash: the key of its bootstrap weights.
        pair_starts_q: (q + 1,) each query's first pair.
        auctions_q: (q,) auctions in this part.
        starts_a: (a + 1,) each auction's first participant.
        query_r, pair_r: (r,) each participant's query and pair.
        bid_r, quality_r: (r,) inputs of the score beside the probability.
        slot_r, click_r: (r,) logged slot, negative for losers, and click.
        counts: each pair's impressions and clicks over the whole log.
        owned_g: (g,) pairs that this part adds to the log's sums. A large query's auctions stand in
            several parts, and one part adds each of its pairs. None: all pairs.
        largest_bid: the unit in which revenue is added.
        user_key_r: (r,) hash of each participant's user, -1 if it is missing; None: no users.
    """

    key_q: Ints
    pair_starts_q: Ints
    auctions_q: Ints
    starts_a: Ints
    query_r: Ints
    pair_r: Ints
    bid_r: Floats
    quality_r: Floats
    slot_r: Ints32
    click_r: Ints32
    counts: ImpressionCounts = field(repr=False)
    owned_g: Bools | None = field(default=None, repr=False)
    largest_bid: float = 1.0
    user_key_r: Ints | None = field(default=None, repr=False)

    @classmethod
    def from_rows(cls, rows: AuctionRows, key_q: Ints, slots: int) -> AuctionPart:
        """Make a part from rows by query, auction and ad.

        Args:
            rows: participants.
            key_q: (q,) each query's hash.
            slots: number of slots in the whole log.
        """
        pair_r, pair_starts_q = number_pairs(rows.query_r, rows.ad_r, len(key_q))
        pairs = int(pair_starts_q[-1])
        firsts_a = np.flatnonzero(np.diff(rows.auction_r, prepend=-1))
        auctions_q = np.bincount(rows.query_r[firsts_a], minlength=len(key_q)).astype(np.int64)
        starts_a = np.append(firsts_a, len(rows.ad_r)).astype(np.int64)
        counts = ImpressionCounts.from_rows(pair_r, rows.slot_r, rows.click_r, pairs, slots)
        by_row = (rows.query_r, pair_r, rows.bid_r, rows.quality_r, rows.slot_r, rows.click_r)
        return cls(key_q, pair_starts_q, auctions_q, starts_a, *by_row, counts)

    def rank(self, probability_r: Floats, exponent: float) -> AuctionOrder:
        """Sort all auctions by a model's scores."""
        return AuctionOrder.from_scores(self.starts_a, self.bid_r, probability_r, self.quality_r, exponent)

    def run(self, order: AuctionOrder, point: OperatingPoint, slots: SlotCounts) -> tuple[Ints32, Floats]:
        """Return each participant's slot and price at a point.

        The price is a share of the largest bid.
        """
        slot_r, price_r = order.run(point, slots)
        price_r /= self.largest_bid
        return slot_r, price_r

    def replay(
        self,
        order: AuctionOrder,
        probability_r: Floats,
        point: OperatingPoint,
        model: ClickModel,
        slots: SlotCounts,
    ) -> Ints:
        """Return a model's estimates at a point, by query."""
        pairs = PairTotals.from_counts(self.counts, model)
        return self.estimate(*self.run(order, point, slots), probability_r, pairs)

    def estimate(self, slot_r: Ints32, price_r: Floats, probability_r: Floats, pairs: PairTotals) -> Ints:
        """Return a model's estimates by query, from slots and prices.

        See `estimate_clicks`.
        """
        rows = (self.query_r, self.pair_r, slot_r, price_r, probability_r)
        return estimate_clicks(rows, pairs, len(self.key_q))

    @cached_property
    def users(self) -> UserRows:
        """The part's logged participants by user.

        The log must have users.
        """
        assert self.user_key_r is not None, "the caller looks first"
        key_u, user_r = np.unique(self.user_key_r, return_inverse=True)
        auctions_u = np.bincount(user_r[self.starts_a[:-1]], minlength=len(key_u))
        impressions = (user_r.astype(np.int64), self.pair_r, self.slot_r, self.click_r)
        return UserRows(key_u, impressions, auctions_u.astype(np.int64))

    @cached_property
    def own_counts(self) -> ImpressionCounts:
        """Counts for own pairs; for others, 0.

        This part adds its own pairs to the log's sums.
        """
        if self.owned_g is None:
            return self.counts
        own = self.owned_g[:, None]
        return ImpressionCounts(self.counts.shown_gs * own, self.counts.clicks_gs * own)

    @cached_property
    def telling_pairs(self) -> ImpressionCounts:
        """Pairs which say something about the curve.

        Such pairs have clicks, and were seen at two or more slots.
        """
        counts = self.own_counts
        telling = (counts.clicks_gs.any(axis=1)) & ((counts.shown_gs > 0).sum(axis=1) > 1)
        return ImpressionCounts(counts.shown_gs[telling], counts.clicks_gs[telling])

    def count_slots(self) -> SlotTotals:
        """Count impressions and clicks by slot, over own pairs."""
        counts = self.own_counts
        return SlotTotals(
            counts.shown_gs.sum(axis=0, dtype=np.int64), counts.clicks_gs.sum(axis=0, dtype=np.int64)
        )

    def derive_curve(self, set_s: Ints, log_theta_s: Floats) -> CurveDerivatives:
        """Return derivatives of the curve's likelihood, (s,) and (s, s).

        The derivatives are over all this part's pairs.
        """
        counts = self.telling_pairs
        whole = np.array([0, len(counts.shown_gs)], dtype=np.int64)
        parts = position_curve.compute_derivatives(counts, whole, set_s, log_theta_s)
        return CurveDerivatives(parts.gradient[0], parts.information[0])

    def log_columns(self, set_s: Ints, log_theta_s: Floats) -> Ints:
        """Return what each query adds to the logged policy.

        The result is int64 (q, c): see `LogColumns`.
        """
        counts = self.own_counts
        derived = position_curve.compute_derivatives(counts, self.pair_starts_q, set_s, log_theta_s)
        queries, slots = len(self.key_q), len(set_s)
        sums = np.zeros((queries, 2 + 2 * slots), dtype=np.int64)
        sums[:, 0] = self.auctions_q
        _add_pair_counts(counts.shown_gs, counts.clicks_gs, self.pair_starts_q, sums)
        information = derived.information[:, *np.triu_indices(slots)]
        return np.concatenate([sums * np.int64(UNIT), derived.gradient, information], axis=1)


@compile_kernel
def _add_pair_counts(shown_gs: Ints32, clicks_gs: Ints32, starts_q: Ints, sums_qc: Ints) -> None:
    """Add impressions and clicks by slot, and multi-slot clicks.

    Slot counts stand from column 1 on. Multi-slot clicks are on pairs seen at several slots.
    """
    slots = shown_gs.shape[1]
    for q in range(len(starts_q) - 1):
        for g in range(starts_q[q], starts_q[q + 1]):
            places, clicks = 0, 0
            for s in range(slots):
                sums_qc[q, 1 + s] += shown_gs[g, s]
                sums_qc[q, 1 + slots + s] += clicks_gs[g, s]
                places += shown_gs[g, s] > 0
                clicks += clicks_gs[g, s]
            if places > 1:
                sums_qc[q, 1 + 2 * slots] += clicks


@dataclass(frozen=True)
class LogColumns:
    """The logged policy's sums by name, as floats (..., c).

    These sums are over queries.

    Attributes:
        auctions: (...) auctions.
        shown, clicks: (..., s) impressions and clicks by slot.
        multi_slot_clicks: (...) clicks on pairs seen at two or more slots.
        gradient, information: (..., s) and (..., s, s) derivatives of the curve's likelihood.
    """

    auctions: Floats
    shown: Floats
    clicks: Floats
    multi_slot_clicks: Floats
    gradient: Floats
    information: Floats

    @classmethod
    def from_sums(cls, sums: Floats, slots: int) -> LogColumns:
        """Take the columns of `AuctionPart.log_columns` apart.

        The columns hold one triangle of the symmetric `information`.
        """
        ends = np.cumsum([1, slots, slots, 1, slots])
        auctions, shown, clicks, several, gradient, triangle = np.split(sums, ends, axis=-1)
        square = np.empty((*sums.shape[:-1], slots, slots))
        row, column = np.triu_indices(slots)
        square[..., row, column] = square[..., column, row] = triangle
        return cls(auctions[..., 0], shown, clicks, several[..., 0], gradient, square)


def number_pairs(query_r: Ints, ad_r: Ints, queries: int) -> tuple[Ints, Ints]:
    """Number pairs (query, ad) by their first row.

    Args:
        query_r: (r,) rising, below `queries`.
        ad_r: (r,) whole numbers from 0; the memory is 8 bytes for each number up to the largest.
        queries: number of queries.

    Returns:
        Each row's pair, (r,), and each query's first pair, then the number of pairs, (q + 1,).
    """
    pair_r = np.empty(len(ad_r), dtype=np.int64)
    starts_q = np.empty(queries + 1, dtype=np.int64)
    pair_of_ad = np.full(int(ad_r.max(initial=0)) + 1, -1, dtype=np.int64)
    _fill_pairs(query_r, ad_r, pair_of_ad, pair_r, starts_q)
    return pair_r, starts_q


@compile_kernel
def _fill_pairs(query_r: Ints, ad_r: Ints, pair_of_ad: Ints, pair_r: Ints, starts_q: Ints) -> None:
    """Fill in pairs.

    If an ad's pair is from an earlier query, its number is below the query's first pair.
    """
    pairs, first, begun = 0, 0, 0
    for r in range(len(ad_r)):
        while begun <= query_r[r]:
            starts_q[begun] = pairs
            begun, first = begun + 1, pairs
        if pair_of_ad[ad_r[r]] < first:
            pair_of_ad[ad_r[r]] = pairs
            pairs += 1
        pair_r[r] = pair_of_ad[ad_r[r]]
    starts_q[begun:] = pairs


def bootstrap_columns(key_q: Ints, sums_qc: Ints, replicates: int, seed: int) -> Ints:
    """Return each replicate's weighted sums, int64 (b, c).

    The sums are multiples of 2^-30, without any rounding.

    Args:
        key_q: (q,) hashes of the queries.
        sums_qc: (q, c) multiples of 2^-30.
        replicates, seed: number and seed of the weights, which follow from key, replicate and seed alone.
    """
    keys, rows = split_rows(key_q, sums_qc)
    used_c = np.flatnonzero(rows.any(axis=0))
    values_qc = rows[:, used_c].astype(np.float64)
    used_cb = np.zeros((len(used_c), replicates), dtype=np.int64)
    with one_thread_products():
        for start in range(0, len(keys), resampling.BLOCK):
            block = slice(start, start + resampling.BLOCK)
            weights = resampling.poisson_weights(keys[block], replicates, seed).astype(np.float64)
            # Exact in any order: all terms and partial sums are whole numbers below 2^53 (LARGEST_CELL).
            used_cb += (values_qc[block].T @ weights).astype(np.int64)
    sums = np.zeros((replicates, rows.shape[1]), dtype=np.int64)
    sums[:, used_c] = used_cb.T
    return sums


def split_rows(key_q: Ints, sums_qc: Ints) -> tuple[Ints, Ints]:
    """Cut rows with too large a number into several rows.

    The new rows have the old row's key, and add up to it.
    """
    if max(sums_qc.max(initial=0), -sums_qc.min(initial=0)) < LARGEST_CELL:
        return key_q, sums_qc
    pieces_q = 1 + np.abs(sums_qc).max(axis=1, initial=0) // LARGEST_CELL
    share = sums_qc // pieces_q[:, None]
    pieces = np.repeat(share, pieces_q, axis=0)
    firsts = np.concatenate([[0], np.cumsum(pieces_q)[:-1]])
    pieces[firsts] += sums_qc - share * pieces_q[:, None]
    return np.repeat(key_q, pieces_q), pieces
