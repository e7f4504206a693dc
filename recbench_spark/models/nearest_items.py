"""Each item's most similar items, counted user by user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recbench_spark.core.arrays import Floats, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel, readonly


@dataclass(frozen=True)
class SimilarItems:
    """The most similar items for a block of items.

    There are n rows, by item, then falling weight.

    Attributes:
        items: (n,) the item whose score is raised.
        neighbours: (n,) the item in the history which raises it.
        weights: (n,) cosine similarity.
    """

    items: Ints
    neighbours: Ints
    weights: Floats


def cosine_neighbours(
    items_by_users: Any, users_by_items: Any, n_i: Ints, block: range, k: int
) -> SimilarItems:
    """Return the k nearest items j != i for each item i.

    s_ij = |U_i and U_j| / sqrt(n_i n_j), and equal similarities go to the smaller item index. They are
    equal numbers where their squares are equal fractions: 3 / sqrt(13 * 18) and 1 / sqrt(13 * 2), divided
    by roots, differ in the last bit. So the root is taken of |U_i and U_j|^2 / (n_i n_j), which float64
    rounds by its value alone.

    Args:
        items_by_users: (items, users) binary CSR matrix.
        users_by_items: (users, items) binary CSR matrix, its transpose.
        n_i: (items,) users of each item.
        block: items whose neighbours are computed.
        k: neighbours of each item.
    """
    sides = items_by_users, users_by_items
    offsets_i, offsets_u, n_i = (
        readonly(np.asarray(some, np.int64)) for some in (*(side.indptr for side in sides), n_i)
    )
    users_n, items_n = (readonly(np.asarray(side.indices, np.int32)) for side in sides)
    bounds = np.array([block.start, block.stop, k])
    n_b, neighbours, weights = _find_nearest(offsets_i, offsets_u, users_n, items_n, n_i, bounds)
    return SimilarItems(np.repeat(np.arange(block.start, block.stop), n_b), neighbours, weights)


@compile_kernel
def _find_nearest(
    offsets_i: Ints, offsets_u: Ints, users_n: Ints32, items_n: Ints32, n_i: Ints, bounds: Ints
) -> tuple[Ints, Ints, Floats]:
    """Return each item's number of neighbours, and all neighbours and weights, end to end.

    `bounds`: first item, end of items, and k.
    """
    start, stop, k = bounds
    n_items = len(n_i)
    common_i, met = np.zeros(n_items, np.int64), np.empty(n_items, np.int64)
    above, below = np.empty(n_items, np.int64), np.empty(n_items, np.int64)
    n_b, size = np.zeros(stop - start, np.int64), 0
    neighbours, weights = np.empty((stop - start) * k, np.int64), np.empty((stop - start) * k)
    for i in range(start, stop):
        m = 0
        for a in range(offsets_i[i], offsets_i[i + 1]):
            user = users_n[a]
            for b in range(offsets_u[user], offsets_u[user + 1]):
                j = items_n[b]
                if common_i[j] == 0 and j != i:
                    met[m] = j
                    m += 1
                common_i[j] += 1
        for place in range(m):
            j = met[place]
            above[place], below[place] = common_i[j] * common_i[j], n_i[i] * n_i[j]
            common_i[j] = 0
        common_i[i] = 0
        weight_m = np.sqrt(_divide_exactly(above[:m], below[:m]))
        met_m = met[:m].copy()
        if m > k:
            # A sort of all would take most of the time.
            likely = weight_m >= np.partition(weight_m, m - k)[m - k]
            weight_m, met_m = weight_m[likely], met_m[likely]
        order = np.argsort(met_m)
        order = order[np.argsort(-weight_m[order], kind="mergesort")][:k]
        n_b[i - start] = len(order)
        neighbours[size : size + len(order)] = met_m[order]
        weights[size : size + len(order)] = weight_m[order]
        size += len(order)
    return n_b, neighbours[:size], weights[:size]


EXACT = 1 << 53
"""Whole numbers below it are exact in float64."""


@compile_kernel
def _divide_exactly(above_n: Ints, below_n: Ints) -> Floats:
    """Divide whole numbers; equal fractions give equal float64 numbers.

    Large ones are reduced first.
    """
    quotient_n = np.empty(len(above_n))
    for n in range(len(above_n)):
        above, below = above_n[n], below_n[n]
        if below >= EXACT:
            one, other = above, below
            while other:
                one, other = other, one % other
            above, below = above // one, below // one
        quotient_n[n] = above / below
    return quotient_n
