"""Order an index's candidates exactly and measure their recall.

`ranking.kernels.products` scores candidates again in float64, without the user's training items. They are
ordered by score, then by smaller index, as in exact lists. So an index decides which items are candidates,
and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.products import Pairing, error_bound, exact_score

BIAS_ERROR = 2.0**-50
"""Bound on the relative error when float64 divides and adds a bias, with room to spare."""


class ItemSets(NamedTuple):
    """One ascending item set per user, for candidates or masks.

    `offsets_u`: (u + 1,). `items_p`: int32.
    """

    offsets_u: Ints
    items_p: Ints32


class RetrievedLists(NamedTuple):
    """Recommendation lists for a block of users.

    `items_uk`: (u, k) padded with -1. `scores_uk`: (u, k) padded with NaN.
    """

    items_uk: Ints
    scores_uk: Floats


def _multiply_rows(user_d: Floats32, item_d: Floats32) -> float:
    """Return the float32 product of two rows, summed in any order."""
    total = np.float32(0.0)
    for d in range(len(user_d)):
        total += user_d[d] * item_d[d]
    return float(total)


multiply_rows = compile_kernel(_multiply_rows, fastmath={"reassoc", "contract"})


@compile_kernel
def remove_items(items_c: Ints32, masked_m: Ints32, out_c: Ints32) -> int:
    """Copy the unmasked items, in ascending order; return their number."""
    size, m = 0, 0
    for c in range(len(items_c)):
        while m < len(masked_m) and masked_m[m] < items_c[c]:
            m += 1
        if m == len(masked_m) or masked_m[m] != items_c[c]:
            out_c[size] = items_c[c]
            size += 1
    return size


@compile_kernel
def score_items(pairing: Pairing, u: int, items_c: Ints32) -> Floats:
    """Return `exact_score` of each item.

    Four sums go on side by side, each in its own order.
    """
    scores, four = np.empty(len(items_c)), len(items_c) // 4 * 4
    user_d = pairing.vectors_ud[u]
    for c in range(0, four, 4):
        i, j, k, m = items_c[c], items_c[c + 1], items_c[c + 2], items_c[c + 3]
        a, b, e, f = 0.0, 0.0, 0.0, 0.0
        for d in range(len(user_d)):
            x = np.float64(user_d[d])
            a += x * np.float64(pairing.vectors_id[i, d])
            b += x * np.float64(pairing.vectors_id[j, d])
            e += x * np.float64(pairing.vectors_id[k, d])
            f += x * np.float64(pairing.vectors_id[m, d])
        scores[c], scores[c + 1], scores[c + 2], scores[c + 3] = a, b, e, f
        for n in range(c, c + 4):
            i = items_c[n]
            if not (pairing.length_u[u] > 0.0 and pairing.length_i[i] > 0.0):
                scores[n] = 0.0
            scores[n] = scores[n] / pairing.divisor_i[i] + pairing.bias_i[i]
    for c in range(four, len(items_c)):
        scores[c] = exact_score(pairing, u, items_c[c])
    return scores


@compile_kernel
def rank_candidates(pairing: Pairing, candidates: ItemSets, masked: ItemSets, top_k: int) -> RetrievedLists:
    """Return each user's best K candidates by score, then index.

    A float32 product with its error bound drops a candidate which K others certainly beat. The rest get
    exact scores.

    Args:
        pairing: user and item vectors; see `ranking.kernels.products.make_pairing`.
        candidates: items proposed by an index.
        masked: items which a user's list leaves out.
        top_k: length of the lists.
    """
    users = len(candidates.offsets_u) - 1
    top = RetrievedLists(np.full((users, top_k), -1, np.int64), np.full((users, top_k), np.nan))
    longest = 0
    for u in range(users):
        longest = max(longest, candidates.offsets_u[u + 1] - candidates.offsets_u[u])
    items_c = np.empty(longest, np.int32)
    for u in range(users):
        row = candidates.items_p[candidates.offsets_u[u] : candidates.offsets_u[u + 1]]
        hidden = masked.items_p[masked.offsets_u[u] : masked.offsets_u[u + 1]]
        size = remove_items(row, hidden, items_c)
        if size > 2 * top_k:
            size = _drop_beaten(u, pairing, items_c, size, top_k)
        scores = score_items(pairing, u, items_c[:size])
        order = np.argsort(-scores, kind="mergesort")[:top_k]
        for k in range(len(order)):
            top.items_uk[u, k], top.scores_uk[u, k] = items_c[order[k]], scores[order[k]]
    return top


@compile_kernel
def _drop_beaten(u: int, pairing: Pairing, items_c: Ints32, size: int, top_k: int) -> int:
    """Keep candidates which may reach the first K; return their number.

    The kept ones stay in order, in the same array.
    """
    x, bound = np.empty(size), 0.0
    user_d = pairing.vectors_ud[u]
    for c in range(size):
        i = items_c[c]
        product = multiply_rows(user_d, pairing.vectors_id[i])
        x[c] = product / pairing.divisor_i[i] + pairing.bias_i[i]
        raw = pairing.length_i[i] * pairing.divisor_i[i]  # the vector's length before division
        own = error_bound(pairing.length_u[u], raw, 0.0, len(user_d)) / pairing.divisor_i[i]
        bound = max(bound, own + BIAS_ERROR * (abs(x[c]) + abs(pairing.bias_i[i])))
    kth = np.partition(x, size - top_k)[size - top_k]
    left = 0
    for c in range(size):
        if not x[c] < kth - 2.0 * bound:
            items_c[left] = items_c[c]
            left += 1
    return left


def measure_recall(scores_uk: Floats, exact_uk: Floats, top_k: int) -> Floats:
    """Return each user's recall@K, a share of min(K, candidates) items.

    The share counts distinct items whose score reaches the K-th best exact score, so an item counts if it
    ties with the K-th. ann-benchmarks also counts copies of an item, and distances within 1e-3; this
    function does not. A user without candidates gets NaN.

    Args:
        scores_uk: exact scores of distinct retrieved items, falling, padded with NaN.
        exact_uk: the best exact scores, falling, padded with NaN where a user has fewer candidates.
        top_k: the cut-off; both arrays have at least so many columns.
    """
    is_missing = np.isnan(exact_uk[:, :top_k])
    least_u = np.where(is_missing, np.inf, exact_uk[:, :top_k]).min(axis=1, initial=np.inf)
    with np.errstate(invalid="ignore"):
        reached_u = np.count_nonzero(scores_uk[:, :top_k] >= least_u[:, None], axis=1)
        recall: Floats = reached_u / np.count_nonzero(~is_missing, axis=1)
    return recall
