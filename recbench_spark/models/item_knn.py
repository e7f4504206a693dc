"""Item-based nearest neighbours (Deshpande and Karypis, TOIS 2004) on a user x item matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SimilarItems:
    """The most similar items of a block of items: n rows, by item, then falling weight.

    Attributes:
        items: (n,) the item whose score is raised.
        neighbours: (n,) the item in the history that raises it.
        weights: (n,) cosine similarity.
    """

    items: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def cosine_neighbours(
    users_of_i: Any, items_of_u: Any, n_i: npt.NDArray[np.int64], block: range, k: int
) -> SimilarItems:
    """s_ij = |U_i and U_j| / sqrt(n_i n_j); each item i of the block keeps its k largest, j != i.

    Equal similarities go to the smaller item index. They are equal numbers where their squares are
    equal fractions: 3 / sqrt(13 * 18) and 1 / sqrt(13 * 2), divided by roots, differ in the last bit, so
    the root is taken of |U_i and U_j|^2 / (n_i n_j), which float64 rounds by its value alone.

    Args:
        users_of_i: (items, users) binary CSR matrix.
        items_of_u: (users, items) binary CSR matrix, its transpose.
        n_i: (items,) users of each item.
        block: items whose neighbours are wanted.
        k: neighbours kept.
    """
    together = (users_of_i[block.start : block.stop] @ items_of_u).tocsr()
    rows = np.repeat(np.arange(block.start, block.stop), np.diff(together.indptr))
    columns = together.indices.astype(np.int64)
    other = rows != columns
    rows, columns, counts = rows[other], columns[other], together.data[other]
    weights = np.sqrt(
        _divide_exactly(counts.astype(np.int64) ** 2, n_i[rows].astype(np.int64) * n_i[columns])
    )
    order = np.lexsort((columns, -weights, rows))
    rows, columns, weights = rows[order], columns[order], weights[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left")
    kept = place < k
    return SimilarItems(rows[kept], columns[kept], weights[kept])


EXACT = 1 << 53
"""Whole numbers below it are float64 numbers."""


def _divide_exactly(
    above_n: npt.NDArray[np.int64], below_n: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Fractions as float64: equal ones, equal numbers. Those of larger numbers are reduced first."""
    large = below_n >= EXACT
    if large.any():
        divisor = np.gcd(above_n[large], below_n[large])
        above_n, below_n = above_n.copy(), below_n.copy()
        above_n[large] //= divisor
        below_n[large] //= divisor
    quotient_n: npt.NDArray[np.float64] = above_n / below_n
    return quotient_n


def normalise_weights(given: SimilarItems) -> SimilarItems:
    """The same neighbours with the weights of each item divided by their sum: s_ij / sum_j s_ij."""
    sums = np.bincount(given.items, given.weights) if len(given.items) else np.zeros(0)
    return SimilarItems(given.items, given.neighbours, given.weights / sums[given.items])


def centring_bias(
    mean_i: npt.NDArray[np.float64],
    offsets_j: npt.NDArray[np.int64],
    items_n: npt.NDArray[np.int64],
    weights_n: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """(i,) b_i = mean_i - sum_j s_ij mean_j, so that sum_j s_ij r_uj + b_i is the centred score.

    mean_i + sum_j s_ij (r_uj - mean_j) multiplied out: the part that does not depend on the user.

    Args:
        mean_i: (i,) mean of each item's column over all users.
        offsets_j: (i + 1,) bounds of row j, the items that item j speaks for.
        items_n: (n,) these items.
        weights_n: (n,) similarities s_ij.
    """
    expected_n = np.repeat(mean_i, np.diff(offsets_j)) * weights_n
    # By size, so that items with the same terms have the same sum, whatever their order.
    order_n = np.lexsort((expected_n, items_n))
    return mean_i - np.bincount(items_n[order_n], expected_n[order_n], minlength=len(mean_i))


def binary_matrix(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], n_items: int) -> Any:
    """A user x item CSR matrix of ones from its row bounds and item indices.

    Whole numbers: sums of float32 stand still at 2^24 users.
    """
    from scipy import sparse  # noqa: PLC0415 (half a second that few need)

    ones = np.ones(len(indices), dtype=np.int32)
    return sparse.csr_matrix((ones, indices, indptr), shape=(len(indptr) - 1, n_items))
