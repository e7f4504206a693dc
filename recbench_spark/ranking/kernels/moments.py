"""Items that are candidates at each user's moment.

Counting hides the others where it hides masked items. Users come in order of their moments, so a tile of
items keeps which of its places are candidates, and each item changes it when its period begins or ends.
Axes: i items, u users, p periods, e changes (begins and ends), k tiles, n a tile's changes, t places.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels import positives
from recbench_spark.ranking.kernels.families import Reached
from recbench_spark.ranking.kernels.positives import Positives
from recbench_spark.ranking.kernels.products import Products
from recbench_spark.ranking.kernels.word_loops import Whole

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

    time_e, item_e, step_e: all begins (1) and ends (-1) of periods, in order of time.
    """

    moment_u: Ints
    periods: Periods
    time_e: Ints
    item_e: Ints
    step_e: Ints

    def deal(self, products: Products, cuts: Iterable[tuple[int, int]]) -> DealtChanges:
        """Deal changes to tiles of a model's places, which begin and end at `cuts`.

        The model keeps them for the next users.
        """
        if not len(self.moment_u):
            return DealtChanges(*[_NONE] * 3)
        start_k = np.array([0, *(stop for _, stop in cuts)])
        key, made = start_k.tobytes(), products.changes
        if key not in made or made[key][0] is not self.time_e:
            tile_t = np.repeat(np.arange(len(start_k) - 1), np.diff(start_k))
            place_e = products.order.place_i[self.item_e]
            made[key] = self.time_e, DealtChanges(*_deal(self.time_e, place_e, tile_t, start_k))
        dealt: DealtChanges = made[key][1]
        return dealt


class TileChanges(NamedTuple):
    """Changes of a tile's places, and where they have led.

    time_n, place_n: which place changes when, in order of time. there_t: -1 for places that are candidates
    at `last`, else 0: no places, where each item is looked up. `last`: the last moment, and the number of
    changes until then.
    """

    time_n: Ints
    place_n: Ints
    there_t: Whole
    last: Ints


def place_moments(moment_u: Ints, periods: Periods) -> UserMoments:
    """Return users' moments among items' periods."""
    item_p = np.repeat(np.arange(len(periods.offsets_i) - 1), np.diff(periods.offsets_i))
    ends_p = periods.end_p < ALWAYS
    time_e = np.append(periods.begin_p, periods.end_p[ends_p])
    order = np.argsort(time_e, kind="stable")
    step_e = np.repeat([1, -1], [len(item_p), ends_p.sum()])[order]
    return UserMoments(moment_u, periods, time_e[order], np.append(item_p, item_p[ends_p])[order], step_e)


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
    moment_r = moments.moment_u[first_user : first_user + len(scores_ri)]
    there_i, e = np.zeros(scores_ri.shape[1], np.bool_), 0
    for r in np.argsort(moment_r):
        while e < len(moments.time_e) and moments.time_e[e] <= moment_r[r]:
            there_i[moments.item_e[e]] = not there_i[moments.item_e[e]]
            e += 1
        for i in range(len(there_i)):
            scores_ri[r, i] = scores_ri[r, i] if there_i[i] else np.nan


def count_candidates(scored_i: Bools, moments: UserMoments, plan: Positives) -> Ints:
    """Count scored candidates without the user's masked ones, (u,)."""
    if not len(moments.moment_u):
        return positives.count_candidates(scored_i, plan)
    users_u = order_users(np.arange(len(moments.moment_u)), moments)
    return _count_there(scored_i, users_u, moments, plan.masked_offsets, plan.masked_items)


@compile_kernel
def _count_there(
    scored_i: Bools, users_u: Ints, moments: UserMoments, masked_offsets: Ints, masked_items: Ints
) -> Ints:
    moment_u, _, time_e, item_e, step_e = moments
    counts_u, there_i, e, count = np.empty(len(users_u), np.int64), np.zeros(len(scored_i), np.bool_), 0, 0
    for u in users_u:
        while e < len(time_e) and time_e[e] <= moment_u[u]:
            count += step_e[e] * scored_i[item_e[e]]
            there_i[item_e[e]] = not there_i[item_e[e]]
            e += 1
        counts_u[u] = count
        for m in range(masked_offsets[u], masked_offsets[u + 1]):
            counts_u[u] -= there_i[masked_items[m]]
    return counts_u


def order_users(users_u: Ints, moments: UserMoments) -> Ints:
    """Return users in order of their moments."""
    if not len(moments.moment_u):
        return users_u
    return users_u[np.argsort(moments.moment_u[users_u], kind="stable")]


class DealtChanges(NamedTuple):
    """All tiles' changes, one tile after the other: `place_e` is a place in the tile."""

    bounds_k: Ints
    time_e: Ints
    place_e: Ints

    def open(self, number: int, width: int, kind: type[np.signedinteger[Any]]) -> TileChanges:
        """Return a tile's changes, before all of them.

        `width`: the tile's places with padding; 0: items are looked up. `kind`: the type of its products.
        """
        cut = slice(*self.bounds_k[number : number + 2]) if len(self.bounds_k) else slice(0)
        last = np.array([-ALWAYS, 0])
        return TileChanges(self.time_e[cut], self.place_e[cut], np.zeros(width, kind), last)


@compile_kernel
def _deal(time_e: Ints, place_e: Ints, tile_t: Ints, start_k: Ints) -> tuple[Ints, Ints, Ints]:
    bounds_k = np.zeros(len(start_k) + 1, np.int64)
    for place in place_e:
        if place >= 0:
            bounds_k[tile_t[place] + 2] += 1
    bounds_k = np.cumsum(bounds_k)
    times, places = np.empty(bounds_k[-1], np.int64), np.empty(bounds_k[-1], np.int64)
    for e in range(len(place_e)):
        if place_e[e] >= 0:
            tile = tile_t[place_e[e]]
            at = bounds_k[tile + 1]
            times[at], places[at] = time_e[e], place_e[e] - start_k[tile]
            bounds_k[tile + 1] += 1
    return bounds_k, times, places


@compile_kernel
def move_to(moment: int, tile: TileChanges) -> None:
    """Let a tile's places be as of a moment."""
    time_n, place_n, there_t, last = tile
    if moment < last[0]:
        there_t[:], last[1] = 0, 0
    n = last[1]
    while n < len(time_n) and time_n[n] <= moment:
        there_t[place_n[n]] = ~there_t[place_n[n]]
        n += 1
    last[0], last[1] = moment, n


@compile_kernel
def hide_absent(
    products_rt: Whole, users_r: Ints, moments: UserMoments, tile: TileChanges, never: int
) -> None:
    """Set products of items that are no candidates below all others."""
    there_t = tile.there_t
    below = np.full(1, never, products_rt.dtype)[0]
    for r in range(len(users_r) if len(moments.moment_u) else 0):
        move_to(moments.moment_u[users_r[r]], tile)
        for t in range(len(there_t)):
            products_rt[r, t] = (products_rt[r, t] & there_t[t]) | (below & ~there_t[t])


@compile_kernel
def hide_reached(
    reached: Reached, users_r: Ints, items_t: Ints32, moments: UserMoments, tile: TileChanges, never: int
) -> None:
    """Set written products of items that are no candidates below all others."""
    (places, values, counts), there_t = reached, tile.there_t
    for r in range(len(users_r) if len(moments.moment_u) else 0):
        moment = moments.moment_u[users_r[r]]
        if counts[r] > 0 and len(there_t):
            move_to(moment, tile)
            for c in range(counts[r]):
                values[r, c] = values[r, c] if there_t[places[r, c]] else never
        else:
            for c in range(counts[r]):
                known = is_available(moments.periods, items_t[places[r, c]], moment)
                values[r, c] = values[r, c] if known else never
