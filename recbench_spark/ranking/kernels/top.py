"""The first K candidates by score, then smaller index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.products import Pairing
from recbench_spark.ranking.kernels.word_loops import Whole, scan
from recbench_spark.ranking.kernels.words import limits

_ROOM = 256  # candidates beyond twice K
_FEW = 512  # candidates up to which counting orders them faster than a sort


class TopCandidates(NamedTuple):
    """Each user's candidates for the first K, kept between tiles.

    A score lies within [low, low + width). `cut`: K candidates have at least this score.
    """

    items: Ints32
    low: Floats
    counts: Ints
    cut: Floats
    width: Floats


def make_work(users: int, top_k: int) -> TopCandidates:
    """Return the state before the first tile."""
    room = 2 * top_k + _ROOM if top_k else 0
    return TopCandidates(
        items=np.empty((users, room), np.int32),
        low=np.empty((users, room)),
        counts=np.zeros(users, np.int64),
        cut=np.full(users, -np.inf),
        width=np.zeros(users),
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
    (most, top_k), (items_uc, low_uc, count_u, cut_u, width_u) = limits_, work
    for r in range(len(users_r)):
        u, unit, bound, slack = users_r[r], fits[r, 0], fits[r, 1], fits[r, 2]
        width_u[u] = max(width_u[u], unit * slack + 2.0 * bound)
        if cut_u[u] == -np.inf:
            kth = _find_kth(found_rt, r, most, top_k, places)
            if kth > -most:
                cut_u[u] = kth * unit - bound
        low, count = limits(cut_u[u], unit, bound, slack, most)[0], count_u[u]
        _, end = scan(found_rt, r, low, most, places, 0)
        for n in range(end):
            product = found_rt[r, places[n]]
            if product >= low and count == items_uc.shape[1]:
                count_u[u] = count
                _compact(u, pairing, top_k, work)
                count, low = count_u[u], limits(cut_u[u], unit, bound, slack, most)[0]
            if product >= low:
                items_uc[u, count], low_uc[u, count] = items_t[places[n]], product * unit - bound
                count += 1
        count_u[u] = count


@compile_kernel
def _find_kth(found_rt: Whole, r: int, most: int, top_k: int, places: Ints32) -> int:
    """Return a limit that K products reach, and few more; -most: none."""
    low, high = -most, most
    while high - low > 1:
        middle = (low + high) // 2
        reached, _ = scan(found_rt, r, middle, middle, places, 0)
        if reached < top_k:
            high = middle
        else:
            low = middle
            if reached <= top_k + top_k // 8:
                break
    return low


@compile_kernel
def _find_kth_low(lows: Floats, top_k: int) -> float:
    """Return a limit that K of these numbers reach, and few more."""
    low, high = np.min(lows), np.max(lows)
    for _ in range(64):
        middle, reached = 0.5 * low + 0.5 * high, 0
        for n in range(len(lows)):
            reached += lows[n] >= middle
        if reached < top_k:
            high = middle
        else:
            low = middle
            if reached <= top_k + top_k // 8:
                break
    return low


@compile_kernel
def _compact(u: int, pairing: Pairing, top_k: int, work: TopCandidates) -> None:
    """Drop candidates certainly beaten by K others.

    If many stay, those which K others beat exactly are dropped too.
    """
    count = work.counts[u]
    work.cut[u] = max(work.cut[u], _find_kth_low(work.low[u, :count], top_k))
    _keep(u, work.low[u, :count] + work.width[u] >= work.cut[u], work)
    count = work.counts[u]
    if count > len(work.items[u]) - _ROOM // 4:
        items, scores = _score_best(u, pairing, work.items[u, :count], top_k)
        work.items[u, : len(items)], work.low[u, : len(items)] = items, scores
        work.counts[u], work.cut[u] = len(items), max(work.cut[u], scores[-1])


@compile_kernel
def _keep(u: int, kept: Bools, work: TopCandidates) -> None:
    at = 0
    for c in range(len(kept)):
        if kept[c]:
            work.items[u, at], work.low[u, at] = work.items[u, c], work.low[u, c]
            at += 1
    work.counts[u] = at


def _sum_in_order(u: int, pairing: Pairing, items: Ints32) -> Floats:
    """Return `products.exact_score` for a user's items.

    Four sums run side by side: each addition waits for the one before.
    """
    scores, users, rows = np.empty(len(items)), pairing.vectors_ud, pairing.vectors_id
    last = len(items) - 1
    for n in range(0, len(items), 4):
        a, b, c, e = items[n], items[min(n + 1, last)], items[min(n + 2, last)], items[min(n + 3, last)]
        sum_a, sum_b, sum_c, sum_e = 0.0, 0.0, 0.0, 0.0
        for d in range(users.shape[1]):
            user = np.float64(users[u, d])
            sum_a += user * np.float64(rows[a, d])
            sum_b += user * np.float64(rows[b, d])
            sum_c += user * np.float64(rows[c, d])
            sum_e += user * np.float64(rows[e, d])
        sums = (sum_a, sum_b, sum_c, sum_e)
        for k in range(min(4, len(items) - n)):
            item = items[n + k]
            scores[n + k] = sums[k] / pairing.divisor_i[item] + pairing.bias_i[item]
    return scores


_exact_scores = compile_kernel(_sum_in_order, fastmath={"contract"})  # products are exact: the same bits


@compile_kernel
def _score_best(u: int, pairing: Pairing, items: Ints32, top_k: int) -> tuple[Ints32, Floats]:
    """Return the first K candidates and their exact scores."""
    scores = _exact_scores(u, pairing, items)
    best_items, best_scores = np.full_like(items, -1), np.empty_like(scores)
    if len(items) > _FEW or not _place_all(items, scores, best_items, best_scores):
        by_item = np.argsort(items)
        best = by_item[np.argsort(-scores[by_item], kind="mergesort")]
        best_items[:], best_scores[:] = items[best], scores[best]
    return best_items[:top_k], best_scores[:top_k]


@compile_kernel
def _place_all(items: Ints32, scores: Floats, best_items: Ints32, best_scores: Floats) -> bool:
    """Order some candidates by counting; false if many scores are equal."""
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
        count = work.counts[u]
        if count > top_k:
            cut = _find_kth_low(work.low[u, :count], top_k)
            _keep(u, work.low[u, :count] + work.width[u] >= cut, work)
    return sort_best(users_u, pairing, work.items[users_u], work.counts[users_u], top_k)


@compile_kernel
def sort_best(
    users_u: Ints, pairing: Pairing, items_uc: Ints32, count_u: Ints, top_k: int
) -> tuple[Ints, Floats]:
    """Return the first K of each user's candidates, padded with -1 and NaN."""
    top_items = np.full((len(users_u), top_k), -1, np.int64)
    top_scores = np.full((len(users_u), top_k), np.nan)
    for r in range(len(users_u)):
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
