"""Ranks among the items that are candidates at each user's moment.

Items are cut into segments by the time from which they are candidates. A segment has its own tiles, so
users whose moment lies before it never multiply them, and users whose moment lies behind it have no item to
hide. Only the segments that a moment cuts hide items. Axes: i items, u users in order of their moments,
p periods.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels import counting, cutoff, positives
from recbench_spark.ranking.kernels.counting import CountingSettings, PreparedBlock
from recbench_spark.ranking.kernels.positives import Positives
from recbench_spark.ranking.kernels.products import Products

ALWAYS = 2**63 - 1
"""End of a period without end."""

SEGMENTS, FEWEST = 16, 4096
"""Most segments beside that of all moments, and items in each but the last: a segment takes 9 bytes for
each item of the catalogue."""


class Periods(NamedTuple):
    """Times at which items are candidates, in microseconds.

    Item i is one in [begin_p, end_p) for p from offsets_i[i] to offsets_i[i + 1], which ascend.
    """

    offsets_i: Ints
    begin_p: Ints
    end_p: Ints


class UserMoments(NamedTuple):
    """Users' moments, ascending, and the items' periods.

    moment_u: microseconds, (u,). span: the first and last moment of all users, also of other blocks.
    """

    moment_u: Ints
    periods: Periods
    span: tuple[int, int]


class Segment(NamedTuple):
    """Some items: their products; when any and all of them are candidates.

    any_: some may be from its first until its second time; all_: each is.
    """

    products: Products
    any_: tuple[int, int]
    all_: tuple[int, int]


@compile_kernel
def _is_available(periods: Periods, i: int, moment: int) -> bool:
    available = False
    for p in range(periods.offsets_i[i], periods.offsets_i[i + 1]):
        available |= (periods.begin_p[p] <= moment) & (moment < periods.end_p[p])
    return available


@compile_kernel
def mark_available(periods: Periods, items_n: Ints, moment_n: Ints) -> Bools:
    """Mark items that are candidates at their moments, (n,)."""
    out = np.zeros(len(items_n), np.bool_)
    for n in range(len(items_n)):
        out[n] = items_n[n] >= 0 and _is_available(periods, items_n[n], moment_n[n])
    return out


@compile_kernel
def hide_rows(scores_ri: Floats, first_user: int, moments: UserMoments) -> None:
    """Make scores NaN where the item is no candidate."""
    for r in range(scores_ri.shape[0]):
        for i in range(scores_ri.shape[1]):
            if not _is_available(moments.periods, i, moments.moment_u[first_user + r]):
                scores_ri[r, i] = np.nan


def count_available(scored_i: Bools, moments: UserMoments, plan: Positives) -> Ints:
    """Count scored candidates without the user's masked ones, (u,)."""
    periods = moments.periods
    scored_p = np.repeat(scored_i, np.diff(periods.offsets_i))
    begun, ended = (
        np.searchsorted(np.sort(times_p[scored_p]), moments.moment_u, "right")
        for times_p in (periods.begin_p, periods.end_p)
    )
    user_m = np.repeat(np.arange(len(moments.moment_u)), np.diff(plan.masked_offsets))
    masked_m = mark_available(periods, plan.masked_items, moments.moment_u[user_m])
    counts_u: Ints = begun - ended - np.bincount(user_m[masked_m], minlength=len(moments.moment_u))
    return counts_u


def count_candidates(scored_i: Bools, as_of: UserMoments | None, plan: Positives) -> Ints:
    """Count scored items without the user's masked ones, (u,), at users' moments if there are any."""
    if as_of is None:
        return positives.count_candidates(scored_i, plan)
    return count_available(scored_i, as_of, plan)


def count_products(
    prepared: PreparedBlock, settings: CountingSettings, moments: UserMoments
) -> tuple[Ints, Floats] | None:
    """Count all segments on the CPU into `prepared.tally`.

    Returns the first K if `top_k` is set.
    """
    users, top_k = len(moments.moment_u), settings.top_k
    best = np.full((users, top_k), -1), np.full((users, top_k), np.nan)
    for segment in _cut_segments(prepared.products, moments):
        first, last = np.searchsorted(moments.moment_u, segment.any_)
        if first == last:
            continue
        users_u, plan = np.arange(first, last), _hide_items(prepared.plan, segment, moments)
        part = prepared._replace(products=segment.products, plan=plan)
        if cutoff.applies(part, settings):
            cutoff.count_products(part, settings, users_u)
        elif top := counting.count_products(part, settings, users_u):
            _merge_lists(best, slice(first, last), top)
    return best if top_k else None


def _cut_segments(products: Products, moments: UserMoments) -> list[Segment]:
    """Cut scored items by their first time; the last cut is kept.

    Items that are candidates at all moments are the first segment.
    """
    offsets_i, begin_p, end_p = moments.periods
    begins, span, segments = products.segments.get("", (None, None, []))
    if begins is not begin_p or span != moments.span:
        items = np.flatnonzero(products.scored_i & (np.diff(offsets_i) > 0))
        first_n, until_n = begin_p[offsets_i[items]], end_p[offsets_i[items]]
        always_n = (first_n <= moments.span[0]) & (until_n > moments.span[1])
        others = items[~always_n][np.argsort(first_n[~always_n], kind="stable")]
        size = max(FEWEST, -(-len(others) // SEGMENTS))
        cuts = [items[always_n], *(others[at : at + size] for at in range(0, len(others), size))]
        segments = [_make_segment(products, cut, moments.periods) for cut in cuts if len(cut)]
        products.segments[""] = begin_p, moments.span, segments
    return segments


def _make_segment(products: Products, items: Ints, periods: Periods) -> Segment:
    scored_i = np.zeros(len(products.scored_i), np.bool_)
    scored_i[items] = True
    offsets_i, begin_p, end_p = periods
    first_n, last_n = offsets_i[items], offsets_i[items + 1] - 1
    some = int(begin_p[first_n].min()), int(end_p[last_n].max())
    every = int(begin_p[first_n].max()), int(end_p[first_n].min())
    return Segment(replace(products, scored_i=scored_i, share=None), some, every)


def _hide_items(plan: Positives, segment: Segment, moments: UserMoments) -> Positives:
    """Return the plan with the segment's masked and unavailable items alone."""
    cut_u = (moments.moment_u < segment.all_[0]) | (moments.moment_u >= segment.all_[1])
    place_i, items_t = segment.products.order.place_i, segment.products.order.items_t
    hidden = _list_hidden(plan, cut_u, items_t, place_i, moments)
    return plan._replace(masked_offsets=hidden[0], masked_items=hidden[1])


@compile_kernel
def _list_hidden(
    plan: Positives, cut_u: Bools, items_t: Ints, place_i: Ints, moments: UserMoments
) -> tuple[Ints, Ints]:
    """Return each user's items to hide, in two passes: count and fill."""
    users = len(cut_u)
    offsets, items = np.zeros(users + 1, np.int64), np.empty(0, np.int64)
    for fill in (False, True):
        end = 0
        for u in range(users):
            for m in range(plan.masked_offsets[u], plan.masked_offsets[u + 1]):
                if place_i[plan.masked_items[m]] >= 0:
                    if fill:
                        items[end] = plan.masked_items[m]
                    end += 1
            for t in range(len(items_t) if cut_u[u] else 0):
                if not _is_available(moments.periods, items_t[t], moments.moment_u[u]):
                    if fill:
                        items[end] = items_t[t]
                    end += 1
            offsets[u + 1] = end
        if not fill:
            items = np.empty(end, np.int64)
    return offsets, items


def _merge_lists(best: tuple[Ints, Floats], users: slice, top: tuple[Ints, Floats]) -> None:
    """Keep the first K of two lists for each user."""
    items, scores = (
        np.concatenate([one[users], other], axis=1) for one, other in zip(best, top, strict=True)
    )
    cost = np.where(items < 0, np.inf, -scores)
    order = np.lexsort((items, cost), axis=1)[:, : best[0].shape[1]]
    for one, merged in zip(best, (items, scores), strict=True):
        one[users] = np.take_along_axis(merged, order, axis=1)
