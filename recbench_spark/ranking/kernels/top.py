"""The first K candidates by score, then smaller index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.positives import Positives
from recbench_spark.ranking.kernels.products import Pairing, exact_scores, uncertainty_range

BLOCK = 64  # scores compared together when a few in a tile are needed


class TopCandidates(NamedTuple):
    """List places and best candidates, kept between tiles."""

    masked_at: Ints
    slot_at: Ints
    best_items: Ints
    best_x: Floats32
    best_count: Ints
    best_cut: Floats32
    best_bound: Floats


def make_work(plan: Positives, bound_u: Floats, top_k: int) -> TopCandidates:
    """Return the state before the first tile.

    Each list has room for twice its candidates and some.
    """
    users = len(plan.slot_offsets) - 1
    room = 2 * top_k + 4 * BLOCK if top_k else 0
    return TopCandidates(
        masked_at=plan.masked_offsets[:-1].copy(),
        slot_at=plan.slot_offsets[:-1].copy(),
        best_items=np.empty((users, room), np.int64),
        best_x=np.empty((users, room), np.float32),
        best_count=np.zeros(users, np.int64),
        best_cut=np.full(users, -np.inf, np.float32),
        best_bound=bound_u,
    )


@compile_kernel
def count_within(block: Floats32, low: np.float32, high: np.float32) -> int:
    """Return #{low <= x <= high}."""
    within = np.int32(0)
    for c in range(len(block)):
        within = np.int32(within + ((block[c] >= low) & (block[c] <= high)))
    return int(within)


@compile_kernel
def collect(row: Floats32, start: int, u: int, pairing: Pairing, top_k: int, work: TopCandidates) -> None:
    """Collect candidates that may be among the first K.

    A running threshold selects them; full lists are compacted.
    """
    items, x = work.best_items[u], work.best_x[u]
    count, cut = work.best_count[u], work.best_cut[u]
    for begin in range(0, len(row), BLOCK):
        block = row[begin : begin + BLOCK]
        reached = count_within(block, cut, np.float32(np.inf))
        if reached == 0:
            continue
        if count + reached > len(items):
            work.best_count[u] = count
            _compact(u, pairing, top_k, work)
            count, cut = work.best_count[u], work.best_cut[u]
        for c in range(len(block)):
            if block[c] >= cut:
                items[count], x[count] = start + begin + c, block[c]
                count += 1
    work.best_count[u] = count


@compile_kernel
def _compact(u: int, pairing: Pairing, top_k: int, work: TopCandidates) -> None:
    """Drop candidates certainly beaten by K others.

    If many stay, those which K others beat exactly are dropped too. Items arrive by rising index and stay
    in this order, so a later item loses every tie.
    """
    count, bound = work.best_count[u], work.best_bound[u]
    if count <= top_k:
        return
    kth = np.partition(work.best_x[u, :count], count - top_k)[count - top_k]
    low, _ = uncertainty_range(np.float64(kth), 2.0 * bound)
    cut = max(work.best_cut[u], low)
    _keep(u, work.best_x[u, :count] >= cut, work)
    count = work.best_count[u]
    if count > top_k + BLOCK:
        scores = exact_scores(pairing, np.full(count, u), work.best_items[u, :count])
        best = np.zeros(count, np.bool_)
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        best[order] = True
        low, _ = uncertainty_range(scores[order[-1]], bound)
        cut = max(cut, low)
        _keep(u, best, work)
    work.best_cut[u] = cut


@compile_kernel
def _keep(u: int, kept: Bools, work: TopCandidates) -> None:
    at = 0
    for c in range(len(kept)):
        if kept[c]:
            work.best_items[u, at] = work.best_items[u, c]
            work.best_x[u, at] = work.best_x[u, c]
            at += 1
    work.best_count[u] = at


@compile_kernel
def sort_best(
    users_u: Ints, pairing: Pairing, items_uc: Ints, count_u: Ints, top_k: int
) -> tuple[Ints, Floats]:
    """Return each user's first K candidates by exact score.

    Rows of `items_uc` ascend.
    """
    top_items = np.full((len(users_u), top_k), -1, np.int64)
    top_scores = np.full((len(users_u), top_k), np.nan)
    for r in range(len(users_u)):
        items = items_uc[r, : count_u[r]]
        scores = exact_scores(pairing, np.full(len(items), users_u[r]), items)
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top_items[r, k], top_scores[r, k] = items[order[k]], scores[order[k]]
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
