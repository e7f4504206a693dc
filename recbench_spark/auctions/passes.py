"""Passes over a log's parts, which return whole numbers.

They count, fit the position curve, and add up the logged policy, or a model at points. So the cut into
parts changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from recbench_spark.auctions.auction_log import AuctionLogParts, LogArrays, LoggedPart, Sums
from recbench_spark.auctions.kernels import position_curve
from recbench_spark.auctions.kernels.auction_parts import bootstrap_columns
from recbench_spark.auctions.kernels.click_estimates import ClickModel, PairTotals, count_columns
from recbench_spark.auctions.kernels.counts import SlotTotals
from recbench_spark.auctions.kernels.mechanism import OperatingPoint, SlotCounts
from recbench_spark.auctions.kernels.user_bootstrap import PairShowings
from recbench_spark.auctions.settings import ReplaySettings
from recbench_spark.config import Bootstrap
from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.errors import ConfigError, DataError

CELLS_AT_ONCE = 1 << 24
"""Numbers (queries x columns) that a part holds at once, 128 MiB, unless one point alone has more."""


def count_part(part: LoggedPart) -> Sums:
    """Count a part's impressions, clicks, links and auctions.

    Shapes are (s,) for impressions and clicks, (s, s) for links, and (3,) for auctions, their squares and
    queries.
    """
    counts = part.auctions.own_counts
    totals = part.auctions.count_slots()
    auctions_q = part.whole_auctions_q
    queries = np.array([auctions_q.sum(), (auctions_q * auctions_q).sum(), (auctions_q > 0).sum()])
    links = position_curve.find_links(counts).astype(np.int64)
    return totals.shown_s, totals.clicks_s, links, queries


def derive_part(part: LoggedPart, set_s: Ints, log_theta: Floats) -> Sums:
    """Return a part's derivatives of the curve's likelihood.

    The derivatives have the shapes (s,) and (s, s).
    """
    return part.auctions.derive_curve(set_s, log_theta)


def sum_logged_policy(
    part: LoggedPart, set_s: Ints, log_theta: Floats, bootstrap: Bootstrap, by_user: bool
) -> Sums:
    """Return a part's sums for the logged policy: (c,) and (b, c).

    The first are sums over queries, the second replicates.
    """
    auctions = part.auctions
    rows, units = auctions.log_columns(set_s, log_theta), None
    if by_user:
        units = auctions.users.add_log(auctions.counts, set_s, np.exp(log_theta))
    return _sum_rows(part, rows, bootstrap, units)


@dataclass(frozen=True, eq=False)
class ModelPass:
    """Pass for a model: (p, c) and (p, b, c).

    The first are sums over queries, the second replicates.
    """

    model: str
    points: tuple[OperatingPoint, ...]
    clicks: ClickModel
    slots: SlotCounts
    bootstrap: Bootstrap
    by_user: bool = False

    def __call__(self, part: LoggedPart) -> Sums:
        """Return a part's sums."""
        columns = count_columns(len(self.slots))
        units = len(part.auctions.users.key_u if self.by_user else part.auctions.key_q)
        size = max(1, CELLS_AT_ONCE // max(1, units * columns))
        numbers = range(len(self.points))
        each = [self._add_points(part, numbers[n : n + size]) for n in numbers[::size]]
        sums, boot = (np.concatenate(arrays, axis=-1) for arrays in zip(*each, strict=True))
        replicates = boot.reshape(len(boot), len(self.points), columns).transpose(1, 0, 2)
        return sums.reshape(len(self.points), columns), replicates

    def count_showings(self, part: LoggedPart) -> Iterator[PairShowings]:
        """Yield a part's pair showings at each point."""
        for _, slot_r, price_r in self._run_points(part, range(len(self.points))):
            shape = part.auctions.counts.shown_gs.shape
            yield PairShowings.count(part.auctions.pair_r, slot_r, price_r, shape)

    def _run_points(self, part: LoggedPart, numbers: range) -> Iterator[tuple[int, Ints32, Floats]]:
        """Yield number, slots and prices for some points.

        Scores with one exponent are sorted once.
        """
        order, exponent = None, None
        for number in numbers:
            point = self.points[number]
            if order is None or exponent != point.exponent:
                order = part.auctions.rank(part.probabilities[self.model], point.exponent)
                exponent = point.exponent
            yield number, *part.auctions.run(order, point, self.slots)

    def _add_points(self, part: LoggedPart, numbers: range) -> Sums:
        """Return the sums for some points side by side."""
        rows, users = [], []
        probability_r = part.probabilities[self.model]
        pairs = PairTotals.from_counts(part.auctions.counts, self.clicks)
        for number, slot_r, price_r in self._run_points(part, numbers):
            rows.append(part.auctions.estimate(slot_r, price_r, probability_r, pairs))
            if self.by_user:
                elsewhere = part.read_elsewhere(number) if part.read_elsewhere else None
                users.append(
                    part.auctions.users.add_model(pairs, slot_r, price_r, probability_r, elsewhere)
                )
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
        return _sum_rows(part, joined, self.bootstrap, np.concatenate(users, axis=1) if users else None)


def _sum_rows(part: LoggedPart, rows: Ints, bootstrap: Bootstrap, user_rows: Ints | None) -> Sums:
    """Return sums over queries, (c,), and replicates, (b, c).

    Replicates are drawn over queries or users.
    """
    sums, number, seed = rows.sum(axis=0), bootstrap.replicates, bootstrap.seed
    if user_rows is None:
        return sums, bootstrap_columns(part.auctions.key_q, rows, number, seed)
    # To first order a replicate is the whole and, for each user, (weight - 1) x its row.
    drawn = bootstrap_columns(part.auctions.users.key_u, user_rows, number, seed)
    return sums, drawn + (sums - user_rows.sum(axis=0))


def count_users(log: AuctionLogParts) -> Ints:
    """Return auctions, their squares summed by user, and users, (3,).

    Raises:
        ConfigError: the log has no users. DataError: an auction without a user, or with two.
    """
    (problems,) = log.add(find_user_problems)
    if problems[0]:
        raise ConfigError(
            "replay.resample: user: the log has no column user_id", "log.columns: {user_id: NAME} maps it"
        )
    for rows, reason in zip(problems[1:].tolist(), USER_PROBLEMS, strict=True):
        if rows:
            raise DataError(
                f"replay.resample: user: {rows:,} rows of the log {reason}",
                "give each auction one user, or resample queries",
            )
    return log.count_users()


USER_PROBLEMS = ("have no user_id", "have another user_id than the first row of their auction")
"""Mistakes about users, in the order in which they are reported."""


def find_user_problems(part: LoggedPart) -> Sums:
    """Count a part's mistakes about users, (3,).

    The first number is 1 if it has no users; the others are rows with each of USER_PROBLEMS.
    """
    user_r, starts_a = part.auctions.user_key_r, part.auctions.starts_a
    if user_r is None:
        return (np.array([1, 0, 0]),)
    first_r = np.repeat(user_r[starts_a[:-1]], np.diff(starts_a))
    return (np.array([0, (user_r < 0).sum(), (user_r != first_r).sum()]),)


def add_up_log(log: AuctionLogParts, settings: ReplaySettings) -> LogArrays:
    """Return what no model and no operating point changes.

    Returns:
        Auctions, squares and queries (3,), and the same for what is resampled (3,); the first slot in each
        connected set and log theta, (s,) each; the log's sums (c,) and replicates (b, c).
    """
    shown, clicks, links, queries = log.add(count_part)
    set_s, log_theta = _fit_curve(log, SlotTotals(shown, clicks), links > 0, settings.curve)
    by_user = settings.resample == "user"
    units = count_users(log) if by_user else queries
    work = partial(sum_logged_policy, set_s=set_s, log_theta=log_theta, by_user=by_user)
    sums, boot = log.add(partial(work, bootstrap=settings.bootstrap))
    return queries, units, set_s, log_theta, sums, boot


def _fit_curve(log: AuctionLogParts, totals: SlotTotals, links: Bools, kind: str) -> tuple[Ints, Floats]:
    """Return each slot's connected set, and log theta, (s,) each.

    A set is named by its first slot.
    """
    if kind == "plain":
        clicked = totals.clicks_s > 0
        first = int(np.argmax(clicked)) if clicked.any() else 0
        set_s = np.where(clicked, first, np.arange(len(clicked)))
        return set_s, position_curve.plain_curve(totals.reference_s)
    set_s = position_curve.find_connected_sets(links)

    def derive(log_theta: Floats) -> position_curve.CurveDerivatives:
        work = partial(derive_part, set_s=set_s, log_theta=log_theta)
        return position_curve.CurveDerivatives(*log.add(work))

    return set_s, position_curve.fit_curve(derive, set_s)
