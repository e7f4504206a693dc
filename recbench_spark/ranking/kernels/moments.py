"""Items that are candidates at each user's moment.

Counting hides the others where it hides masked items. In a tile of products, places with a period are
ranked by its begin and by its end. Two numbers for each user and tile then say which of them it has, so
whole vectors are compared at once. Up to a cut-off few products are written, and each is looked up. Axes:
i items, u users, p periods, t places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels import positives
from recbench_spark.ranking.kernels.positives import Positives
from recbench_spark.ranking.kernels.word_loops import Whole, Words

ALWAYS = 2**63 - 1
"""End of a period without end."""


class Periods(NamedTuple):
    """Times at which items are candidates, in microseconds.

    Item i is one in [begin_p, end_p) for p from offsets_i[i] to offsets_i[i + 1], which ascend.
    """

    offsets_i: Ints
    begin_p: Ints
    end_p: Ints


class UserMoments(NamedTuple):
    """Users' moments in microseconds, (u,), and items' periods; no moments: all items are candidates.

    begins, ends: all begins and ends of periods, ascending.
    """

    moment_u: Ints
    periods: Periods
    begins: Ints
    ends: Ints


class TilePeriods(NamedTuple):
    """A tile's periods by rank.

    The n-th period of the item at place t begins as the begin_nt[n, t]-th of all n-th ones in the tile and
    ends as the end_nt[n, t]-th; begins and ends hold these times in order. Places without such a period
    begin last.
    """

    begin_nt: Words
    end_nt: Words
    begins_nt: Ints
    ends_nt: Ints


def place_moments(moment_u: Ints, periods: Periods) -> UserMoments:
    """Return users' moments among items' periods."""
    return UserMoments(moment_u, periods, np.sort(periods.begin_p), np.sort(periods.end_p))


_NONE = np.empty(0, np.int64)
NO_MOMENTS = place_moments(_NONE, Periods(np.zeros(1, np.int64), _NONE, _NONE))
"""No moments: all items are candidates."""


@compile_kernel
def is_available(periods: Periods, i: int, moment: int) -> bool:
    """Tell whether an item is a candidate at a moment."""
    available = False
    for p in range(periods.offsets_i[i], periods.offsets_i[i + 1]):
        available |= (periods.begin_p[p] <= moment) & (moment < periods.end_p[p])
    return available


@compile_kernel
def mark_available(periods: Periods, items_n: Ints, moment_n: Ints) -> Bools:
    """Mark items that are candidates at their moments, (n,)."""
    out = np.zeros(len(items_n), np.bool_)
    for n in range(len(items_n)):
        out[n] = items_n[n] >= 0 and is_available(periods, items_n[n], moment_n[n])
    return out


@compile_kernel
def hide_rows(scores_ri: Floats, first_user: int, moments: UserMoments) -> None:
    """Make scores NaN where the item is no candidate."""
    for r in range(scores_ri.shape[0] if len(moments.moment_u) else 0):
        for i in range(scores_ri.shape[1]):
            if not is_available(moments.periods, i, moments.moment_u[first_user + r]):
                scores_ri[r, i] = np.nan


def count_candidates(scored_i: Bools, moments: UserMoments, plan: Positives) -> Ints:
    """Count scored candidates without the user's masked ones, (u,)."""
    if not len(moments.moment_u):
        return positives.count_candidates(scored_i, plan)
    periods, moment_u = moments.periods, moments.moment_u
    counts_u = _count_open(moments.begins, moments.ends, moment_u)
    other_p = np.repeat(~scored_i, np.diff(periods.offsets_i))
    counts_u -= _count_open(np.sort(periods.begin_p[other_p]), np.sort(periods.end_p[other_p]), moment_u)
    user_m = np.repeat(np.arange(len(moment_u)), np.diff(plan.masked_offsets))
    masked_m = mark_available(periods, plan.masked_items, moment_u[user_m])
    return counts_u - np.bincount(user_m[masked_m], minlength=len(moment_u))


def _count_open(begins: Ints, ends: Ints, moment_u: Ints) -> Ints:
    """Count periods that have begun and not ended, (u,)."""
    counts: Ints = np.searchsorted(begins, moment_u, "right") - np.searchsorted(ends, moment_u, "right")
    return counts


def rank_periods(items_t: Ints, width: int, moments: UserMoments) -> TilePeriods:
    """Rank a tile's periods; its rows are padded to a width."""
    offsets_i, begin_p, end_p = moments.periods
    count_t = np.diff(offsets_i)[items_t] if len(moments.moment_u) else np.zeros(0, np.int64)
    size = int(count_t.max(initial=0)), len(items_t)
    times, ranks = np.full((2, *size), ALWAYS), np.zeros((2, size[0], width), np.int16)
    for n in range(size[0]):
        there = count_t > n
        for time_t, rank_t, time_p in zip(times[:, n], ranks[:, n], (begin_p, end_p), strict=True):
            time_t[there] = time_p[offsets_i[items_t[there]] + n]
            order = np.argsort(time_t, kind="stable")
            rank_t[order] = np.arange(len(order))
            time_t[:] = time_t[order]
    return TilePeriods(*ranks, *times)


@compile_kernel
def hide_absent(
    products_rt: Whole, users_r: Ints, moments: UserMoments, tile: TilePeriods, never: int
) -> None:
    """Set products of items that are no candidates below all others."""
    begin_nt, end_nt, begins_nt, ends_nt = tile
    there_t = np.empty(begin_nt.shape[1], np.int16)
    for r in range(len(users_r) if len(moments.moment_u) else 0):
        moment = moments.moment_u[users_r[r]]
        there_t[:] = 0
        for n in range(len(begin_nt)):
            begun = np.int16(np.searchsorted(begins_nt[n], moment, "right"))
            ended = np.int16(np.searchsorted(ends_nt[n], moment, "right"))
            for t in range(len(there_t) if begun > ended else 0):
                there_t[t] |= np.int16(begin_nt[n, t] < begun) & np.int16(end_nt[n, t] >= ended)
        for t in range(len(there_t)):
            products_rt[r, t] = products_rt[r, t] if there_t[t] else never
