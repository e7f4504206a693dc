"""The first K candidates by score, then smaller index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.products import Pairing, Products, score_items
from recbench_spark.ranking.kernels.word_loops import BLOCK, Whole, fetch, scan
from recbench_spark.ranking.kernels.words import TINY, limits

_ROOM = 256  # candidates beyond twice K
_PAD = 32  # scores compared at once
_FEW = 512  # candidates up to which counting orders them faster than a sort
_MOST = 2**31 - 1  # a candidate's largest low, in units
_LEVELS = 2.0**30  # units up to the largest score


class TopCandidates(NamedTuple):
    """Each user's candidates for the first K, kept between tiles.

    A score lies within [low, low + width), in whole units of the user. `cut`: K candidates have at least
    this score. Rows of `low` are padded with numbers below all others.
    """

    items: Ints32
    low: Ints32
    counts: Ints
    cut: Ints
    width: Ints
    unit: Floats


def make_work(products: Products, pairing: Pairing, top_k: int) -> TopCandidates:
    """Return the state before the first tile."""
    users, length_t = len(pairing.length_u), products.order.length_t
    room = -(-(2 * top_k + _ROOM) // BLOCK) * BLOCK if top_k else 0
    largest = pairing.length_u * length_t.max(initial=0.0) + np.abs(products.bias_i).max(initial=0.0)
    return TopCandidates(
        items=np.empty((users, room), np.int32),
        low=np.full((users, room), -_MOST - 1, np.int32),
        counts=np.zeros(users, np.int64),
        cut=np.full(users, -_MOST),
        width=np.zeros(users, np.int64),
        unit=np.maximum(largest / _LEVELS, TINY),
    )


@compile_kernel
def collect(
    found_rt: Whole,
    users_r: Ints,
    items_t: Ints,
    fits: Floats,
    limits_: tuple[int, int],
    pairing: Pairing,
    work: TopCandidates,
    places: Ints32,
) -> None:
    """Collect candidates that may be among the first K.

    The K-th best so far is their limit; full lists are compacted.
    """
    most, top_k = limits_
    items_uc, low_uc, count_u, cut_u = work.items, work.low, work.counts, work.cut
    for r in range(len(users_r)):
        u, unit = users_r[r], work.unit[users_r[r]]
        own, bound = fits[r, 0] / unit, fits[r, 1] / unit + 1.0  # one unit more covers the roundings
        work.width[u] = max(work.width[u], int(min(own * fits[r, 2] + 2.0 * bound, _LEVELS)) + 1)
        if cut_u[u] == -_MOST:
            kth = _find_kth(found_rt, r, (-most, most), top_k)
            cut_u[u] = max(cut_u[u], _whole(kth * own - bound)) if kth > -most else cut_u[u]
        low, count = _limit(u, fits[r], most, work), count_u[u]
        _, end = scan(found_rt, r, low, most, places, 0)
        first = 0
        while first < end:
            taken = min(end - first, items_uc.shape[1] - count)
            for n in range(taken):
                t = np.uint32(places[first + n])
                items_uc[u, count + n] = items_t[t]
                low_uc[u, count + n] = _whole(found_rt[r, t] * own - bound)
            first, count = first + taken, count + taken
            if count > 2 * top_k + _ROOM // 4:
                count = _compact(u, count, pairing, top_k, work)
        count_u[u] = count


@compile_kernel
def _whole(low: float) -> np.int32:
    return np.int32(np.floor(min(max(low, -_LEVELS), _LEVELS)))


@compile_kernel
def _limit(u: int, fit_4: Floats, most: int, work: TopCandidates) -> int:
    """Return the least product that may have a score within the cut."""
    return limits((work.cut[u] - 1) * work.unit[u], fit_4, most)[0] if work.cut[u] > -_MOST else -most


@compile_kernel
def _find_kth(rows: Whole, r: int, ends: tuple[int, int], top_k: int) -> int:
    """Return a limit that K numbers in a row reach, and few more.

    It lies within `ends`; the first of them if fewer reach any other.
    """
    (low, high), none = ends, np.empty(0, np.int32)
    while high - low > 1:
        middle = (low + high) // 2
        reached, _ = scan(rows, r, middle, middle, none, 0)
        if reached < top_k:
            high = middle
        else:
            low = middle
            if reached <= top_k + top_k // 8:
                break
    return low


@compile_kernel
def _compact(u: int, count: int, pairing: Pairing, top_k: int, work: TopCandidates) -> int:
    """Drop candidates certainly beaten by K others; return how many stay.

    If many stay, those which K others beat exactly are dropped too.
    """
    items, low = work.items[u], work.low[u]
    lows = work.low[u : u + 1, : -(-count // BLOCK) * BLOCK]
    work.cut[u] = max(work.cut[u], _find_kth(lows, 0, (work.cut[u], int(_LEVELS) + 1), top_k))
    least, at = work.cut[u] - work.width[u], 0
    for c in range(count):
        items[at], low[at], kept = items[c], low[c], low[c] >= least
        at += kept
    if at > len(items) - _ROOM // 4:
        best_items, scores = _score_best(u, pairing, items[:at], top_k)
        at = len(best_items)
        for c in range(at):
            items[c], low[c] = best_items[c], _whole(scores[c] / work.unit[u] - 1.0)
        work.cut[u] = max(work.cut[u], low[at - 1])
    low[at:] = -_MOST - 1
    return at


@compile_kernel
def _score_best(u: int, pairing: Pairing, items: Ints32, top_k: int) -> tuple[Ints32, Floats]:
    """Return the first K candidates and their exact scores."""
    scores = score_items(pairing, u, items)
    best_items, best_scores = np.full_like(items, -1), np.empty_like(scores)
    padded = np.full(-(-len(scores) // _PAD) * _PAD, -np.inf)
    padded[: len(scores)] = scores
    if len(items) > _FEW or not _place_all(items, padded, best_items, best_scores):
        by_item = np.argsort(items)
        best = by_item[np.argsort(-scores[by_item], kind="mergesort")]
        best_items[:], best_scores[:] = items[best], scores[best]
    return best_items[:top_k], best_scores[:top_k]


@compile_kernel
def _place_all(items: Ints32, scores: Floats, best_items: Ints32, best_scores: Floats) -> bool:
    """Order some candidates by counting; false if many scores are equal.

    `scores` are padded, so vectors compare all.
    """
    steps = 0
    for n in range(len(items)):
        item, at = items[n], _count_above(scores, scores[n])
        while best_items[at] >= 0:  # equal scores stand by item
            if best_items[at] > item:
                best_items[at], item = item, best_items[at]
            at, steps = at + 1, steps + 1
        best_items[at], best_scores[at] = item, scores[n]
        if steps > 4 * len(items):
            return False
    return True


@compile_kernel
def _count_above(scores: Floats, score: float) -> int:
    """Return #{higher}; a loop alone is compiled to vectors."""
    above = 0
    for n in range(len(scores)):
        above += scores[n] > score
    return above


@compile_kernel
def finish_lists(users_u: Ints, pairing: Pairing, top_k: int, work: TopCandidates) -> tuple[Ints, Floats]:
    """Return each user's first K candidates by exact score."""
    for u in users_u:
        if work.counts[u] > top_k:
            work.counts[u] = _compact(u, work.counts[u], pairing, top_k, work)
    return sort_best(users_u, pairing, work.items[users_u], work.counts[users_u], top_k)


@compile_kernel
def sort_best(
    users_u: Ints, pairing: Pairing, items_uc: Ints32, count_u: Ints, top_k: int
) -> tuple[Ints, Floats]:
    """Return the first K of each user's candidates, padded with -1 and NaN."""
    top_items = np.full((len(users_u), top_k), -1, np.int64)
    top_scores = np.full((len(users_u), top_k), np.nan)
    for r in range(len(users_u)):
        for c in range(count_u[r + 1] if r + 1 < len(users_u) else 0):
            fetch(pairing.vectors_id, items_uc[r + 1, c])
        items, scores = _score_best(users_u[r], pairing, items_uc[r, : count_u[r]], top_k)
        top_items[r, : len(items)], top_scores[r, : len(items)] = items, scores
    return top_items, top_scores


@compile_kernel
def top_rows(scores_ri: Floats, top_k: int) -> tuple[Ints, Floats]:
    """Return each row's first K by score, then smaller index.

    NaN is not a candidate.
    """
    if top_k == 0:
        return np.empty((len(scores_ri), 0), np.int64), np.empty((len(scores_ri), 0))
    top_items = np.full((len(scores_ri), top_k), -1, np.int64)
    top_scores = np.full((len(scores_ri), top_k), np.nan)
    for r in range(len(scores_ri)):
        items = np.flatnonzero(~np.isnan(scores_ri[r]))
        scores = scores_ri[r][items]
        if len(items) > top_k:
            kth = np.partition(scores, len(items) - top_k)[len(items) - top_k]
            items, scores = items[scores >= kth], scores[scores >= kth]
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[r, k], top_scores[r, k] = items[order[k]], scores[order[k]]
    return top_items, top_scores


@compile_kernel
def top_lists(offsets_u: Ints, items_c: Ints, scores_c: Floats, top_k: int) -> tuple[Ints, Floats]:
    """Return each list's first K by score, then smaller index."""
    users = len(offsets_u) - 1
    top_items = np.full((users, top_k), -1, np.int64)
    top_scores = np.full((users, top_k), np.nan)
    for u in range(users):
        row = slice(offsets_u[u], offsets_u[u + 1])
        items, scores = items_c[row], scores_c[row]
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[u, k], top_scores[u, k] = items[order[k]], scores[order[k]]
    return top_items, top_scores
