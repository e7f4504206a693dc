"""Weak-AND over token postings: candidates are items with S >= theta.

For query q and item i, S(q, i) = sum_b w_b [token_b(q) = token_b(i)], summed in band order. Items chosen
for every query have S = infinity. Two ways find the same set. Counting adds w_b over all postings of the
query. Pivots skip postings whose items have an upper bound below theta (Broder et al. 2003, section 4).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.errors import ConfigError

LAST = 2**31 - 1
"""Item of an exhausted list; larger than each index."""
SAFE = 1.0 - 1e-9
"""Factor below 1 on the limit of a skip: upper bounds and scores are summed in different orders."""


class Postings(NamedTuple):
    """Item lists by band and token, ascending.

    `bands_b`: (bands + 1,) offsets into `tokens_t`, whose tokens ascend within a band. `offsets_t`: (tokens
    + 1,) offsets into `items_p`. `always_a`: ascending items, candidates for every query. `cut`: items left
    out by full buckets.
    """

    bands_b: Ints
    tokens_t: Ints
    offsets_t: Ints
    items_p: Ints32
    always_a: Ints32
    cut: int


class Threshold(NamedTuple):
    """The weight of each band, float64 (bands,), and the sum to reach, theta."""

    weights_b: Floats
    theta: float


class Matches(NamedTuple):
    """Candidates for a block of queries, and what they cost.

    `offsets_u`: (u + 1,). `items_c`: ascending within each query. `visited`: postings read.
    """

    offsets_u: Ints
    items_c: Ints32
    visited: int


def make_threshold(theta: float, bands: int, weights_b: Floats | None = None) -> Threshold:
    """Return the threshold; without `weights_b` each band weighs 1.

    Raises:
        ConfigError: theta is not positive, or no item could reach it.
    """
    weights = np.ones(bands) if weights_b is None else np.asarray(weights_b, np.float64)
    if len(weights) != bands or not (weights > 0.0).all() or not np.isfinite(weights).all():
        raise ConfigError(
            f"{len(weights)} weights for {bands} bands", "give a positive weight for each band"
        )
    if not 0.0 < theta <= weights.sum():
        raise ConfigError(
            f"theta {theta:g} for bands of {weights.sum():g} in all",
            "theta is above 0 and at most the sum of the weights",
        )
    return Threshold(weights, float(theta))


def make_postings(tokens_ib: Ints, always_i: Bools, largest_bucket: int) -> Postings:
    """Sort the items by band and token.

    Args:
        tokens_ib: (items, bands) tokens.
        always_i: mask over items which are candidates for every query; they stand in no bucket.
        largest_bucket: most items in a bucket. It keeps the smaller indices, and `cut` counts the others.
    """
    others = np.flatnonzero(~always_i)
    tokens, counts, items, cut = [], [], [], 0
    bands = [0]
    for b in range(tokens_ib.shape[1]):
        column = tokens_ib[others, b]
        order = np.argsort(column, kind="stable")
        distinct, first, sizes = np.unique(column[order], return_index=True, return_counts=True)
        place = np.arange(len(order)) - np.repeat(first, sizes)
        stays = place < largest_bucket
        cut += int(len(order) - np.count_nonzero(stays))
        tokens.append(distinct)
        counts.append(np.minimum(sizes, largest_bucket))
        items.append(others[order[stays]].astype(np.int32))
        bands.append(bands[-1] + len(distinct))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    always = np.flatnonzero(always_i).astype(np.int32)
    return Postings(
        np.array(bands, np.int64), np.concatenate(tokens), offsets, np.concatenate(items), always, cut
    )


@compile_kernel
def find_bucket(postings: Postings, band: int, token: int) -> tuple[int, int]:
    """Return start and stop of a token's items.

    An unknown token has an empty range.
    """
    low, high = postings.bands_b[band], postings.bands_b[band + 1]
    at = low + np.searchsorted(postings.tokens_t[low:high], token)
    if at == high or postings.tokens_t[at] != token:
        return 0, 0
    return postings.offsets_t[at], postings.offsets_t[at + 1]


@compile_kernel
def grow(items_c: Ints32, size: int, more: int) -> Ints32:
    """Return the array with room for `more` items after `size`."""
    if size + more <= len(items_c):
        return items_c
    larger = np.empty(max(2 * len(items_c), size + more), np.int32)
    larger[:size] = items_c[:size]
    return larger


@compile_kernel
def merge_always(items_c: Ints32, always_a: Ints32) -> None:
    """Sort a query's candidates in place.

    Args:
        items_c: room for the items in `always_a`, then the others in any order.
        always_a: items proposed to every query, ascending; the others contain none of them.
    """
    other, a = len(always_a), 0
    items_c[other:].sort()
    for place in range(len(items_c)):
        if a == len(always_a):
            return  # the remaining items stand where they belong
        if other < len(items_c) and items_c[other] < always_a[a]:
            items_c[place] = items_c[other]
            other += 1
        else:
            items_c[place] = always_a[a]
            a += 1


@compile_kernel
def match_by_counting(tokens_ub: Ints, postings: Postings, threshold: Threshold, n_items: int) -> Matches:
    """Return the candidates by adding each posting's weight.

    Memory is 12 bytes per item.
    """
    scores = np.zeros(n_items)
    seen = np.empty(n_items, np.int32)
    offsets = np.zeros(len(tokens_ub) + 1, np.int64)
    items_c, size, visited = np.empty(1024, np.int32), 0, 0
    for u in range(len(tokens_ub)):
        n_seen = 0
        for b in range(tokens_ub.shape[1]):
            start, stop = find_bucket(postings, b, tokens_ub[u, b])
            visited += stop - start
            weight = threshold.weights_b[b]
            for p in range(start, stop):
                i = postings.items_p[p]
                if scores[i] == 0.0:
                    seen[n_seen] = i
                    n_seen += 1
                scores[i] += weight
        begin, n_always = size, len(postings.always_a)
        items_c = grow(items_c, size, n_seen + n_always)
        size += n_always
        for s in range(n_seen):
            if scores[seen[s]] >= threshold.theta:
                items_c[size] = seen[s]
                size += 1
            scores[seen[s]] = 0.0
        merge_always(items_c[begin:size], postings.always_a)
        offsets[u + 1] = size
    return Matches(offsets, items_c[:size].copy(), visited)


@compile_kernel
def seek(items_p: Ints32, at: int, stop: int, item: int) -> int:
    """Return the first place from `at` whose item reaches `item`.

    Step widths double, then a binary search ends it.
    """
    step, low = 1, at
    while low + step < stop and items_p[low + step] < item:
        low += step
        step *= 2
    high = min(low + step, stop)
    while low < high:
        middle = (low + high) // 2
        if items_p[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low


@compile_kernel
def sort_lists(order: Ints, doc_b: Ints) -> None:
    """Sort the lists by present item.

    Insertion sort is quick here: few lists have moved since the last time.
    """
    for s in range(1, len(order)):
        list_s, at = order[s], s
        while at > 0 and doc_b[order[at - 1]] > doc_b[list_s]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = list_s


@compile_kernel
def find_pivot(order: Ints, doc_b: Ints, threshold: Threshold) -> int:
    """Return the first item which can reach theta, else `LAST`.

    `order` holds the lists sorted by present item.
    """
    bound = 0.0
    for s in range(len(order)):
        bound += threshold.weights_b[order[s]]
        if bound >= threshold.theta * SAFE:
            return int(doc_b[order[s]])
    return LAST


@compile_kernel
def add_weights(doc_b: Ints, item: int, weights_b: Floats) -> float:
    """Return an item's S: weights of lists there, in band order."""
    score = 0.0
    for b in range(len(doc_b)):
        if doc_b[b] == item:
            score += weights_b[b]
    return score


@compile_kernel
def _match_query(
    place_b: Ints, stop_b: Ints, postings: Postings, threshold: Threshold, items_c: Ints32, size: int
) -> tuple[Ints32, int, int]:
    """Append a query's candidates except `always_a`; see `match_by_pivots`."""
    bands, items, last = len(place_b), postings.items_p, LAST
    doc_b = np.empty(bands, np.int64)
    for b in range(bands):
        doc_b[b] = items[place_b[b]] if place_b[b] < stop_b[b] else last
    visited, order = 0, np.arange(bands)
    while True:
        sort_lists(order, doc_b)
        pivot = find_pivot(order, doc_b, threshold)
        if pivot == last:
            return items_c, size, visited
        whole = doc_b[order[0]] == pivot
        if whole and add_weights(doc_b, pivot, threshold.weights_b) >= threshold.theta:
            items_c = grow(items_c, size, 1)
            items_c[size] = pivot
            size += 1
        goal = pivot + 1 if whole else pivot
        for b in range(bands):
            if doc_b[b] < goal:
                place_b[b] = seek(items, place_b[b], stop_b[b], goal)
                visited += 1
                doc_b[b] = items[place_b[b]] if place_b[b] < stop_b[b] else last


@compile_kernel
def match_by_pivots(tokens_ub: Ints, postings: Postings, threshold: Threshold, n_items: int) -> Matches:
    """Return the candidates by pivots, which skip postings below theta.

    Lists advance together in ascending item order. The pivot is the first item where the lists at it or
    before it have weights of theta or more in sum: no item before it can reach theta. `visited` counts the
    lists' steps.
    """
    offsets = np.zeros(len(tokens_ub) + 1, np.int64)
    items_c, size, visited = np.empty(1024, np.int32), 0, 0
    bands = tokens_ub.shape[1]
    place_b, stop_b = np.empty(bands, np.int64), np.empty(bands, np.int64)
    for u in range(len(tokens_ub)):
        begin, n_always = size, len(postings.always_a)
        items_c = grow(items_c, size, n_always)
        for b in range(bands):
            place_b[b], stop_b[b] = find_bucket(postings, b, tokens_ub[u, b])
        items_c, size, steps = _match_query(place_b, stop_b, postings, threshold, items_c, size + n_always)
        visited += steps
        merge_always(items_c[begin:size], postings.always_a)
        offsets[u + 1] = size
    return Matches(offsets, items_c[:size].copy(), visited)
